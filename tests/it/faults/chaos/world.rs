//! Two publishers, two routers, a way between each two of them, and everything that may happen to them.

use std::{cell::RefCell, collections::BTreeMap, rc::Rc};

use super::{
    drawn::{BACKOFF, coalescing, metrics, router},
    transport::{Journal, LATEST, Transport, Way},
    truth::{Truth, id_of},
};
use crate::support::{publishers::*, *};
use actix_kv_metrics::{
    AttachRouter, Backoff, DetachRouter, Flush, GetLoads, LinkId, MetricsChanged, MetricsReporter,
    PublisherActor, PublisherConfig, RouterActor, Shutdown, WorkerJoined, WorkerLeft, WorkerRank,
    actix::{Actor, Addr, Supervisor, clock},
};
use fastrand::Rng;
use tokio::sync::watch;

pub struct World {
    rng: Rng,
    journal: Journal,
    publishers: [Publisher; 2],
    routers: [Router; 2],
    /// By publisher and router.
    lanes: [[Lane; 2]; 2],
    repairs: Vec<(clock::Instant, Repair)>,
    calm: watch::Sender<bool>,
    pub truth: Truth,
}

#[derive(Default)]
struct Publisher {
    /// `None`: it has been stopped.
    address: Option<Addr<PublisherActor>>,
    supervised: bool,
    reporters: BTreeMap<WorkerRank, MetricsReporter>,
    /// Of lives that have ended since.
    former: Vec<MetricsReporter>,
    former_workers: Vec<WorkerRank>,
}

struct Router {
    present: Rc<RefCell<Addr<RouterActor>>>,
    supervised: bool,
}

struct Lane {
    way: Rc<Way>,
    transport: Option<Addr<Transport>>,
    link: Option<LinkId>,
}

/// What is mended some time after it broke.
#[derive(Debug, Clone, Copy)]
enum Repair {
    Publisher(usize),
    Attach(usize, usize),
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
            96..98 => self.end_publisher(publisher),
            _ => {
                let within = ms(self.rng.u64(..20));
                if let Some(publisher) = &self.publishers[publisher].address {
                    publisher.do_send(Flush { within });
                }
            }
        }
    }

    /// Nothing is broken any more, and what is on its way arrives.
    pub async fn calm_down(&mut self) {
        self.note(format_args!("calm"));
        for lane in self.lanes.iter().flatten() {
            for _ in 0..self.rng.u32(..5) {
                lane.way.redeliver();
            }
        }
        self.mend(true).await;
        self.calm.send_replace(true);
        for (publisher, router) in PAIRS {
            let lane = &self.lanes[publisher][router];
            let stands = lane.transport.as_ref().is_some_and(Addr::connected);
            if lane.link.is_none() || !stands {
                self.attach(publisher, router).await;
            }
        }
        sleep(ms(LATEST)).await;
    }

    /// Each of the workers that both publishers speak of goes on with one of them.
    pub async fn settle_contests(&mut self) {
        for worker in self.truth.contested() {
            let publisher = self.rng.usize(..2);
            self.truth.settle(worker, publisher);
            self.report(publisher, worker).await;
        }
    }

    pub async fn all_leave(&mut self) {
        for publisher in 0..2 {
            for worker in self.truth.workers(publisher) {
                self.leave(publisher, worker).await;
            }
        }
    }

    /// The publishers stop, and what they said last comes again.
    pub async fn end(&mut self) {
        for publisher in 0..2 {
            self.end_publisher(publisher);
        }
        self.repairs.clear();
        settle().await;
        for lane in self.lanes.iter().flatten() {
            for _ in 0..4 {
                lane.way.redeliver_of_the_newest_incarnation();
            }
        }
        sleep(ms(LATEST)).await;
    }

    /// What the routers have that is not so.
    pub async fn errors(&self) -> Vec<String> {
        let mut errors = Vec::new();
        for (number, router) in self.routers.iter().enumerate() {
            let present = router.present.borrow().clone();
            let loads = present.send(GetLoads).await.unwrap();
            let found = self.truth.errors_in(&loads).into_iter();
            errors.extend(found.map(|error| format!("router {number}: {error}")));
        }
        errors
    }

    /// What the publishers still wait for.
    pub async fn waiting(&self) -> Vec<String> {
        let mut waiting = Vec::new();
        for (number, publisher) in self.publishers.iter().enumerate() {
            let Some(publisher) = &publisher.address else {
                continue;
            };
            let pending = pending(publisher).await;
            let links = pending.links.into_iter().filter(|link| !link.lost);
            let open = links
                .filter(|link| link.windows + link.departures > 0 || link.in_flight_for.is_some());
            waiting.extend(open.map(|link| format!("publisher {number}: {link:?}")));
            if pending.timer_armed {
                waiting.push(format!("publisher {number} has a timer armed"));
            }
        }
        waiting
    }

    fn note(&self, what: std::fmt::Arguments<'_>) {
        self.journal.note(what);
    }

    async fn mend(&mut self, all: bool) {
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

    async fn report(&mut self, publisher: usize, worker: WorkerRank) {
        let Some(address) = self.publishers[publisher].address.clone() else {
            return;
        };
        let known = self.truth.claim(publisher, worker);
        let same = known.and_then(|known| known.metrics.clone());
        let same = same.filter(|_| self.rng.u8(..4) == 0);
        let metrics = same.unwrap_or_else(|| metrics(&mut self.rng));
        let blocks = metrics.kv_stats.kv_active_blocks;
        self.note(format_args!("{worker} of {publisher} reports {blocks}"));
        (self.truth).report(publisher, worker, metrics.clone());
        if let Some(reporter) = self.publishers[publisher].reporters.get(&worker) {
            reporter.report(metrics).unwrap();
        } else {
            let changed = MetricsChanged::new(worker, metrics);
            address.send(changed).await.unwrap().unwrap();
        }
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

    async fn leave(&mut self, publisher: usize, worker: WorkerRank) {
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

    /// Another one stands behind the transports, and who started it attaches it.
    fn replace_router(&mut self, number: usize) {
        self.note(format_args!("router {number} is replaced"));
        let (next, supervised) = router(&mut self.rng);
        self.routers[number].supervised = supervised;
        self.routers[number].present.replace(next);
        for publisher in 0..2 {
            self.mend_soon(Repair::Attach(publisher, number));
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

    async fn attach(&mut self, publisher: usize, router: usize) {
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

    fn end_publisher(&mut self, number: usize) {
        let publisher = &mut self.publishers[number];
        let Some(address) = publisher.address.take() else {
            return;
        };
        let within = ms(self.rng.u64(..50));
        let how = match self.rng.u8(..3) {
            0 if !publisher.supervised => {
                address.do_send(StopIt);
                "stopped"
            }
            0 | 1 => {
                address.do_send(Shutdown { within });
                "shut down"
            }
            _ => "left to itself",
        };
        drop(address);
        publisher.former.clear();
        publisher.reporters.clear();
        publisher.former_workers = self.truth.end_publisher(number);
        for lane in &mut self.lanes[number] {
            lane.link = None;
        }
        self.note(format_args!("publisher {number} is {how}"));
        self.mend_soon(Repair::Publisher(number));
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

const PAIRS: [(usize, usize); 4] = [(0, 0), (0, 1), (1, 0), (1, 1)];
