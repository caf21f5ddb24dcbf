//! Two publishers, two routers, a way between each two of them, and everything that may happen to them.

use std::{cell::RefCell, collections::BTreeMap, rc::Rc};

use super::{
    drawn::{BACKOFF, coalescing, metrics, router},
    transport::{Journal, Transport, Way},
    truth::{Truth, id_of},
};
use crate::support::{publishers::*, *};
use actix_kv_metrics::{
    AttachRouter, Backoff, DetachRouter, Flush, LinkId, MetricsChanged, MetricsReporter,
    PublisherActor, PublisherConfig, RouterActor, Shutdown, WorkerJoined, WorkerLeft, WorkerRank,
    actix::{Actor, Addr, Supervisor, clock},
};
use fastrand::Rng;
use tokio::sync::watch;

pub struct World {
    pub(super) rng: Rng,
    journal: Journal,
    pub(super) publishers: [Publisher; 2],
    pub(super) routers: [Router; 2],
    /// By publisher and router.
    pub(super) lanes: [[Lane; 2]; 2],
    pub(super) repairs: Vec<(clock::Instant, Repair)>,
    pub(super) calm: watch::Sender<bool>,
    pub truth: Truth,
}

#[derive(Default)]
pub(super) struct Publisher {
    /// `None`: it has been stopped.
    pub(super) address: Option<Addr<PublisherActor>>,
    supervised: bool,
    reporters: BTreeMap<WorkerRank, MetricsReporter>,
    /// Of lives that have ended since.
    former: Vec<MetricsReporter>,
    former_workers: Vec<WorkerRank>,
}

pub(super) struct Router {
    pub(super) present: Rc<RefCell<Addr<RouterActor>>>,
    supervised: bool,
}

pub(super) struct Lane {
    pub(super) way: Rc<Way>,
    pub(super) transport: Option<Addr<Transport>>,
    pub(super) link: Option<LinkId>,
    /// The router has been replaced, and nobody has told the publisher.
    pub(super) unaware: bool,
}

/// What is mended some time after it broke.
#[derive(Debug, Clone, Copy)]
pub(super) enum Repair {
    Publisher(usize),
    Attach(usize, usize),
}

/// How a publisher ends.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum End {
    Stopped,
    /// Its last values stay.
    ShutDown,
    /// Nobody holds it any more.
    LeftToItself,
}

impl World {
    pub async fn new(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let journal = Journal::new(seed);
        let (calm, told) = watch::channel(false);
        let routers = [(); 2].map(|()| {
            let (router, supervised) = router(&mut rng);
            let present = Rc::new(RefCell::new(router));
            Router {
                present,
                supervised,
            }
        });
        let lane = |publisher: usize, router: usize, rng: &mut Rng| {
            let name = format!("{publisher}>{router}");
            let present = routers[router].present.clone();
            Lane {
                way: Way::new(name, present, rng.fork(), told.clone(), journal.clone()),
                transport: None,
                link: None,
                unaware: false,
            }
        };
        let lanes = [0, 1].map(|p| [0, 1].map(|r| lane(p, r, &mut rng)));
        let mut world = Self {
            rng,
            journal,
            publishers: Default::default(),
            routers,
            lanes,
            repairs: Vec::new(),
            calm,
            truth: Truth::default(),
        };
        for publisher in 0..2 {
            world.begin_publisher(publisher).await;
        }
        world
    }

    /// One thing happens, or is mended.
    pub async fn happen(&mut self) {
        self.mend(false).await;
        let (publisher, router) = (self.rng.usize(..2), self.rng.usize(..2));
        // Workers 2 and 3 are spoken of by both.
        let worker = w(2 * publisher as u64 + self.rng.u64(..4));
        match self.rng.u32(..100) {
            0..58 => self.report(publisher, worker).await,
            58..62 => self.join(publisher, worker).await,
            62..67 => self.make_reporter(publisher, worker),
            67..74 => self.leave(publisher, worker).await,
            74 => drop(self.publishers[publisher].former.pop()),
            75..82 => {
                self.note(format_args!("{publisher}>{router} something comes again"));
                self.lanes[publisher][router].way.redeliver();
            }
            82..85 => self.replace_router(router),
            85..87 => self.restart_router(router),
            87..89 => self.kill_transport(publisher, router),
            89..92 => self.detach(publisher, router).await,
            92..94 => self.attach(publisher, router).await,
            94..96 => self.restart_publisher(publisher),
            96..98 => drop(self.end_publisher(publisher)),
            _ => {
                let within = ms(self.rng.u64(..20));
                if let Some(publisher) = &self.publishers[publisher].address {
                    publisher.do_send(Flush { within });
                }
            }
        }
    }

    pub(super) fn note(&self, what: std::fmt::Arguments<'_>) {
        self.journal.note(what);
    }

    pub(super) async fn mend(&mut self, all: bool) {
        let now = clock::Instant::now();
        while let Some(place) = (self.repairs.iter()).position(|(at, _)| all || *at <= now) {
            match self.repairs.remove(place).1 {
                Repair::Publisher(publisher) => self.begin_publisher(publisher).await,
                Repair::Attach(publisher, router) => self.attach(publisher, router).await,
            }
        }
    }

    fn mend_soon(&mut self, repair: Repair) {
        let at = clock::Instant::now() + ms(self.rng.u64(..80));
        self.repairs.push((at, repair));
    }

    pub(super) async fn report(&mut self, publisher: usize, worker: WorkerRank) {
        let Some(address) = self.publishers[publisher].address.clone() else {
            return;
        };
        let known = self.truth.claim(publisher, worker);
        let same = known.and_then(|known| known.metrics.clone());
        let same = same.filter(|_| self.rng.u8(..4) == 0);
        let metrics = same.unwrap_or_else(|| metrics(&mut self.rng));
        let blocks = metrics.kv_stats.kv_active_blocks;
        self.note(format_args!("{worker} of {publisher} reports {blocks}"));
        let told = self.has_router(publisher);
        (self.truth).report(publisher, worker, metrics.clone(), told);
        if let Some(reporter) = self.publishers[publisher].reporters.get(&worker) {
            reporter.report(metrics).unwrap();
        } else {
            let changed = MetricsChanged::new(worker, metrics);
            address.send(changed).await.unwrap().unwrap();
        }
    }

    /// Whether a living router is attached to the publisher, as far as it knows.
    fn has_router(&self, publisher: usize) -> bool {
        self.lanes[publisher].iter().any(|lane| {
            let transport = lane.transport.as_ref();
            lane.link.is_some() && transport.is_some_and(Addr::connected)
        })
    }

    async fn join(&mut self, publisher: usize, worker: WorkerRank) {
        let Some(address) = self.publishers[publisher].address.clone() else {
            return;
        };
        self.note(format_args!("{worker} of {publisher} joins"));
        if self.truth.claim(publisher, worker).is_none() {
            self.truth.begin_life(publisher, worker);
        }
        address.send(WorkerJoined { worker }).await.unwrap();
    }

    /// The worker begins a new life with a reporter of its own.
    fn make_reporter(&mut self, publisher: usize, worker: WorkerRank) {
        let Some(address) = self.publishers[publisher].address.clone() else {
            return;
        };
        self.note(format_args!("{worker} of {publisher} has a new reporter"));
        self.truth.begin_life(publisher, worker);
        let reporter = MetricsReporter::new(&address, worker);
        let publisher = &mut self.publishers[publisher];
        let former = publisher.reporters.insert(worker, reporter);
        publisher.former.extend(former);
    }

    pub(super) async fn leave(&mut self, publisher: usize, worker: WorkerRank) {
        let Some(address) = self.publishers[publisher].address.clone() else {
            return;
        };
        self.note(format_args!("{worker} of {publisher} leaves"));
        self.truth.leave(publisher, worker);
        let publisher = &mut self.publishers[publisher];
        match publisher.reporters.remove(&worker) {
            Some(reporter) if self.rng.bool() => drop(reporter),
            reporter => {
                address.send(WorkerLeft { worker }).await.unwrap();
                publisher.former.extend(reporter);
            }
        }
    }

    /// Another one stands behind the transports. Who started it may attach it; else the publisher finds out when it speaks.
    fn replace_router(&mut self, number: usize) {
        self.note(format_args!("router {number} is replaced"));
        let (next, supervised) = router(&mut self.rng);
        self.routers[number].supervised = supervised;
        self.routers[number].present.replace(next);
        for publisher in 0..2 {
            self.lanes[publisher][number].unaware = true;
            if self.rng.bool() {
                self.mend_soon(Repair::Attach(publisher, number));
            }
        }
    }

    fn restart_router(&mut self, number: usize) {
        if self.routers[number].supervised {
            self.note(format_args!("router {number} is restarted"));
            self.routers[number].present.borrow().do_send(StopIt);
        }
    }

    fn kill_transport(&mut self, publisher: usize, router: usize) {
        if let Some(transport) = &self.lanes[publisher][router].transport {
            self.note(format_args!("{publisher}>{router} dies"));
            transport.do_send(StopIt);
            self.mend_soon(Repair::Attach(publisher, router));
        }
    }

    pub(super) async fn attach(&mut self, publisher: usize, router: usize) {
        let Some(address) = self.publishers[publisher].address.clone() else {
            return;
        };
        self.note(format_args!("{publisher}>{router} is attached"));
        let lane = &mut self.lanes[publisher][router];
        if !lane.transport.as_ref().is_some_and(Addr::connected) {
            let transport = Transport(lane.way.clone());
            lane.transport = Some(if self.rng.bool() {
                Supervisor::start(move |_| transport)
            } else {
                transport.start()
            });
        }
        let transport = lane.transport.clone().unwrap();
        let attach = AttachRouter::new(transport.recipient());
        lane.link = Some(address.send(attach).await.unwrap());
        lane.unaware = false;
    }

    async fn detach(&mut self, publisher: usize, router: usize) {
        let address = self.publishers[publisher].address.clone();
        let link = self.lanes[publisher][router].link.take();
        if let (Some(address), Some(link)) = (address, link) {
            self.note(format_args!("{publisher}>{router} is detached"));
            assert!(address.send(DetachRouter(link)).await.unwrap());
            self.mend_soon(Repair::Attach(publisher, router));
        }
    }

    fn restart_publisher(&mut self, number: usize) {
        let publisher = &self.publishers[number];
        if let Some(address) = publisher.address.as_ref().filter(|_| publisher.supervised) {
            self.note(format_args!("publisher {number} is restarted"));
            address.do_send(StopIt);
        }
    }

    pub(super) fn end_publisher(&mut self, number: usize) -> End {
        let publisher = &mut self.publishers[number];
        let Some(address) = publisher.address.take() else {
            return End::Stopped;
        };
        let within = ms(self.rng.u64(..50));
        let how = match self.rng.u8(..3) {
            0 if !publisher.supervised => {
                address.do_send(StopIt);
                End::Stopped
            }
            0 | 1 => {
                address.do_send(Shutdown { within });
                End::ShutDown
            }
            _ => End::LeftToItself,
        };
        drop(address);
        let reporters = std::mem::take(&mut publisher.reporters);
        if how == End::ShutDown {
            // One that goes before the shutdown has begun takes its worker with it.
            publisher.former.extend(reporters.into_values());
        } else {
            publisher.former.clear();
        }
        publisher.former_workers = self.truth.end_publisher(number);
        for lane in &mut self.lanes[number] {
            lane.link = None;
        }
        self.note(format_args!("publisher {number} is {how:?}"));
        self.mend_soon(Repair::Publisher(number));
        how
    }

    /// Its first incarnation, or the next: some of its workers report to it at once, some later, some never.
    async fn begin_publisher(&mut self, number: usize) {
        self.note(format_args!("publisher {number} begins"));
        let config = PublisherConfig::builder()
            .id(id_of(number))
            .coalescing(coalescing(&mut self.rng))
            .backoff(Backoff::new(ms(10), ms(BACKOFF)).unwrap())
            .build()
            .unwrap();
        self.truth.begin_publisher(number);
        self.publishers[number].former.clear();
        let supervised = self.rng.bool();
        let address = if supervised {
            Supervisor::start(move |_| PublisherActor::new(config))
        } else {
            PublisherActor::new(config).start()
        };
        self.publishers[number].supervised = supervised;
        self.publishers[number].address = Some(address);
        for worker in std::mem::take(&mut self.publishers[number].former_workers) {
            match self.rng.u8(..6) {
                0 => self.make_reporter(number, worker),
                1 => self.report(number, worker).await,
                _ => {}
            }
        }
        for router in 0..2 {
            if self.rng.bool() {
                self.attach(number, router).await;
            } else {
                self.mend_soon(Repair::Attach(number, router));
            }
        }
    }
}
