//! A way from a publisher to a router on which everything may happen to a snapshot.

use std::{cell::RefCell, fmt, rc::Rc, time::Duration};

use crate::support::{ms, publishers::StopIt, sleep};
use actix_kv_metrics::{
    LoadSnapshot, RouterActor, SnapshotAck, SnapshotKind, SnapshotRejected,
    actix::{
        Actor, ActorContext, Addr, Context, Handler, ResponseActFuture, Supervised, clock,
        fut::wrap_future,
    },
};
use fastrand::Rng;
use tokio::sync::watch;

/// What was done, in order: printed when the truth does not arrive.
#[derive(Clone)]
pub struct Journal(Rc<Entries>);

struct Entries {
    seed: u64,
    begun: clock::Instant,
    lines: RefCell<Vec<String>>,
}

impl Journal {
    pub fn new(seed: u64) -> Self {
        Self(Rc::new(Entries {
            seed,
            begun: clock::Instant::now(),
            lines: RefCell::default(),
        }))
    }

    pub fn note(&self, what: fmt::Arguments<'_>) {
        let at = self.0.begun.elapsed().as_millis();
        self.0.lines.borrow_mut().push(format!("{at:>5} ms {what}"));
    }
}

impl Drop for Entries {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("seed {}:\n{}", self.seed, self.lines.take().join("\n"));
        }
    }
}

/// What happens to a snapshot. It is delivered unless it says otherwise, and the answer is the router's.
#[derive(Debug, Clone, Copy)]
enum Treatment {
    Passes,
    /// Not delivered; refused after a while.
    Lost(Duration),
    /// Not delivered; unanswered until the chaos is over or the transport dies.
    Swallowed,
    AnswerLost(Duration),
    AnswerSwallowed,
    Late(Duration),
    AnswerLate(Duration),
    /// Refused at once, and delivered later than what follows, perhaps.
    Straggles(Duration),
    Doubled,
    /// Twice, and the second answer counts.
    DoublyAnswered,
    Again(Duration),
    AsksForAll,
    CallsItOld,
    /// The transport dies, and the snapshot with it.
    Dies,
    /// The transport dies without an answer.
    DiesAfter,
}

/// What the transports between one publisher and one router have in common. It outlives all three.
pub struct Way {
    name: String,
    pub router: Rc<RefCell<Addr<RouterActor>>>,
    rng: RefCell<Rng>,
    calm: watch::Receiver<bool>,
    kept: RefCell<Vec<LoadSnapshot>>,
    journal: Journal,
}

impl Way {
    pub fn new(
        name: String,
        router: Rc<RefCell<Addr<RouterActor>>>,
        rng: Rng,
        calm: watch::Receiver<bool>,
        journal: Journal,
    ) -> Rc<Self> {
        Rc::new(Self {
            name,
            router,
            rng: RefCell::new(rng),
            calm,
            kept: RefCell::default(),
            journal,
        })
    }

    fn draw(&self) -> Treatment {
        let mut rng = self.rng.borrow_mut();
        let pause = ms(match rng.u32(..4) {
            0 => rng.u64(..LATEST),
            _ => rng.u64(..25),
        });
        if *self.calm.borrow() {
            return Treatment::Passes;
        }
        match rng.u32(..40) {
            0..3 => Treatment::Lost(pause),
            3 => Treatment::Swallowed,
            4..7 => Treatment::AnswerLost(pause),
            7 => Treatment::AnswerSwallowed,
            8..11 => Treatment::Late(pause),
            11..13 => Treatment::AnswerLate(pause),
            13..17 => Treatment::Straggles(pause),
            17 => Treatment::Doubled,
            18 => Treatment::DoublyAnswered,
            19..22 => Treatment::Again(pause),
            22 => Treatment::AsksForAll,
            23 => Treatment::CallsItOld,
            24 => Treatment::Dies,
            25 => Treatment::DiesAfter,
            _ => Treatment::Passes,
        }
    }

    async fn treat(
        self: Rc<Self>,
        treatment: Treatment,
        snapshot: LoadSnapshot,
    ) -> Result<SnapshotAck, SnapshotRejected> {
        match treatment {
            Treatment::Passes => self.deliver(snapshot).await,
            Treatment::Lost(pause) => {
                sleep(pause).await;
                Err(SnapshotRejected)
            }
            Treatment::Swallowed => self.silence().await,
            Treatment::AnswerLost(pause) => {
                sleep(pause).await;
                let _ = self.deliver(snapshot).await;
                Err(SnapshotRejected)
            }
            Treatment::AnswerSwallowed => {
                let _ = self.deliver(snapshot).await;
                self.silence().await
            }
            Treatment::Late(pause) => {
                sleep(pause).await;
                self.deliver(snapshot).await
            }
            Treatment::AnswerLate(pause) => {
                let answer = self.deliver(snapshot).await;
                sleep(pause).await;
                answer
            }
            Treatment::Straggles(pause) => {
                self.deliver_later(snapshot, pause);
                Err(SnapshotRejected)
            }
            Treatment::Doubled => {
                let answer = self.deliver(snapshot.clone()).await;
                let _ = self.deliver(snapshot).await;
                answer
            }
            Treatment::DoublyAnswered => {
                let _ = self.deliver(snapshot.clone()).await;
                self.deliver(snapshot).await
            }
            Treatment::Again(pause) => {
                self.deliver_later(snapshot.clone(), pause);
                self.deliver(snapshot).await
            }
            Treatment::AsksForAll => {
                let _ = self.deliver(snapshot).await;
                Ok(SnapshotAck::NeedFull)
            }
            Treatment::CallsItOld => {
                let _ = self.deliver(snapshot).await;
                Ok(SnapshotAck::Superseded)
            }
            Treatment::Dies | Treatment::DiesAfter => std::future::pending().await,
        }
    }

    async fn deliver(&self, snapshot: LoadSnapshot) -> Result<SnapshotAck, SnapshotRejected> {
        let (sequence, kind) = (snapshot.sequence, snapshot.kind);
        let router = self.router.borrow().clone();
        let answer = router.send(snapshot).await;
        let answer = answer.unwrap_or(Err(SnapshotRejected));
        let name = &self.name;
        (self.journal).note(format_args!("{name} has {kind:?} {sequence}: {answer:?}"));
        answer
    }

    fn deliver_later(self: &Rc<Self>, snapshot: LoadSnapshot, pause: Duration) {
        let way = self.clone();
        actix_rt::spawn(async move {
            sleep(pause).await;
            let _ = way.deliver(snapshot).await;
        });
    }

    async fn silence(&self) -> Result<SnapshotAck, SnapshotRejected> {
        // The end of the world ends it, too.
        let _ = self.calm.clone().wait_for(|calm| *calm).await;
        Err(SnapshotRejected)
    }

    fn keep(&self, snapshot: &LoadSnapshot) {
        let mut kept = self.kept.borrow_mut();
        if kept.len() == KEPT {
            kept.remove(self.rng.borrow_mut().usize(..KEPT));
        }
        kept.push(snapshot.clone());
    }

    /// Something that was sent before, mostly long ago, comes again within `LATEST` ms.
    pub fn redeliver(self: &Rc<Self>) {
        self.redeliver_if(|_| true);
    }

    /// The same, of what was sent since the publisher was started anew.
    pub fn redeliver_of_the_newest_incarnation(self: &Rc<Self>) {
        let kept = self.kept.borrow();
        let newest = kept.iter().map(|kept| kept.publisher.incarnation).max();
        drop(kept);
        self.redeliver_if(|kept| Some(kept.publisher.incarnation) == newest);
    }

    fn redeliver_if(self: &Rc<Self>, fits: impl Fn(&LoadSnapshot) -> bool) {
        let kept = self.kept.borrow();
        let fitting: Vec<_> = kept.iter().filter(|kept| fits(kept)).collect();
        let mut rng = self.rng.borrow_mut();
        let newest = rng.bool().then(|| fitting.last().copied()).flatten();
        let Some(snapshot) = newest.or_else(|| rng.choice(fitting)) else {
            return;
        };
        self.deliver_later(snapshot.clone(), ms(rng.u64(..LATEST)));
    }
}

/// Stands in a [`Way`]. What it has not answered it never will once it has died.
pub struct Transport(pub Rc<Way>);

impl Actor for Transport {
    type Context = Context<Self>;
}

impl Supervised for Transport {}

impl Handler<LoadSnapshot> for Transport {
    type Result = ResponseActFuture<Self, Result<SnapshotAck, SnapshotRejected>>;

    fn handle(&mut self, snapshot: LoadSnapshot, ctx: &mut Context<Self>) -> Self::Result {
        let way = self.0.clone();
        way.keep(&snapshot);
        let treatment = way.draw();
        let (name, sequence) = (&way.name, snapshot.sequence);
        let kind = match snapshot.kind {
            SnapshotKind::Delta { after } => format!("Delta after {after}"),
            kind => format!("{kind:?}"),
        };
        (way.journal).note(format_args!("{name} {sequence} {kind} {treatment:?}"));
        if let Treatment::Dies | Treatment::DiesAfter = treatment {
            ctx.stop();
        }
        if let Treatment::DiesAfter = treatment {
            way.deliver_later(snapshot.clone(), ms(0));
        }
        Box::pin(wrap_future(way.treat(treatment, snapshot)))
    }
}

impl Handler<StopIt> for Transport {
    type Result = ();

    fn handle(&mut self, _: StopIt, ctx: &mut Context<Self>) {
        ctx.stop();
    }
}

/// Milliseconds that anything is on its way at most.
pub const LATEST: u64 = 300;
/// Snapshots of one way that may come again.
const KEPT: usize = 12;
