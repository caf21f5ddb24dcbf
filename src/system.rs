//! Starts the actors, wires them, guards them, and shuts them down.

use std::{
    sync::{Arc, OnceLock, PoisonError, RwLock, Weak, atomic::AtomicU64},
    time::Duration,
};

use actix::{Actor, Addr, ArbiterHandle, Context};
use tokio::sync::{Notify, oneshot};

use crate::{
    metrics::WorkerRank,
    publisher::{
        PublisherActor,
        flush::{AwaitAnnounced, FlushReport, Shutdown},
        reporter::{Door, MetricsReporter},
        routers::{AttachRouter, DetachRouter},
    },
    router::{CloseRouter, RouterActor, Selection, StopRouter},
    sans_io::{
        link::LinkId,
        selection::{SelectError, SelectWorker},
    },
    timer::LONGEST_WAIT,
};

mod questions;
mod settings;
mod waiting;

pub use self::{questions::AskError, settings::KvMetricsConfig};

/// A publisher and a router that is replaced when it dies: the handle an application holds.
///
/// Cloning it is cheap, and it may be used from any thread. When the last clone is dropped, the router is no longer
/// guarded; the actors live on as long as something else holds their addresses.
#[derive(Debug, Clone)]
pub struct KvMetrics(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    door: Arc<Door>,
    router: RwLock<Present>,
    /// What the first shutdown answered.
    ended: Arc<OnceLock<FlushReport>>,
    #[cfg(feature = "metrics")]
    observed: crate::observe::ObservedHandle,
    /// Another router runs, or a shutdown has begun.
    router_changed: Notify,
    /// The order of those who wait, which outlives a router.
    next_number: AtomicU64,
}

/// The router that runs just now.
#[derive(Debug)]
struct Present {
    address: Addr<RouterActor>,
    state: RouterState,
    /// A shutdown has begun. Until it has ended, a router that dies is still replaced, and told everything.
    closing: bool,
}

impl Present {
    /// Why a request is not placed.
    fn nobody(&self) -> SelectError {
        if self.closing {
            SelectError::ShuttingDown
        } else {
            SelectError::Unavailable
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RouterState {
    Running,
    Restarting,
    ShutDown,
}

impl KvMetrics {
    /// Starts the actors within the running actix `System`, attaches the router to the publisher, and guards it.
    ///
    /// # Panics
    ///
    /// Outside an actix `System`, and if [`KvMetricsConfig::check`] finds fault with the settings.
    #[track_caller]
    pub fn start(config: KvMetricsConfig) -> Self {
        let config = match config.settled() {
            Ok(config) => config,
            Err(error) => panic!("{error}"),
        };
        assert!(is_actix_context(), "{OUTSIDE_ACTIX}");
        let publisher_config = config.settings.publisher.clone();
        let ended = Arc::<OnceLock<_>>::default();
        let ended_there = ended.clone();
        let publisher = start_in(config.publisher_arbiter.as_ref(), move || {
            PublisherActor::ending_in(publisher_config, ended_there)
        });
        let (router, died) = start_router(&config);
        let link = publisher.send(AttachRouter::new(router.clone().recipient()).guarded());
        let shared = Arc::new(Shared {
            door: Arc::new(Door::of(publisher)),
            router: RwLock::new(Present {
                address: router,
                state: RouterState::Running,
                closing: false,
            }),
            ended,
            #[cfg(feature = "metrics")]
            observed: Default::default(),
            router_changed: Notify::new(),
            next_number: AtomicU64::new(0),
        });
        let guarded = Arc::downgrade(&shared);
        actix_rt::spawn(async move {
            if let Ok(link) = link.await {
                guard(config, guarded, link, died).await;
            }
        });
        Self(shared)
    }

    /// The publisher.
    pub fn publisher(&self) -> Addr<PublisherActor> {
        self.0.door.publisher().clone()
    }

    /// The newest router: valid until it dies, after which [`select`](Self::select) uses the one that replaces it.
    pub fn router(&self) -> Addr<RouterActor> {
        self.0.read().address.clone()
    }

    #[cfg(feature = "metrics")]
    pub(crate) fn observed(&self) -> &crate::observe::ObservedHandle {
        &self.0.observed
    }

    /// Announces a worker, and gives it what it reports with.
    pub fn reporter(&self, worker: impl Into<WorkerRank>) -> MetricsReporter {
        MetricsReporter::sharing(self.0.door.clone(), worker)
    }

    /// Chooses a worker and books the request on it, at the router that runs just now.
    ///
    /// If the router does not know any worker asked for, it may just not have heard yet: once it knows the workers that
    /// were announced before the call, within a second, it is asked again.
    ///
    /// # Errors
    ///
    /// [`SelectError`] if no worker may be chosen, no router runs just now, or a [`shutdown`](Self::shutdown) has begun.
    ///
    /// # Panics
    ///
    /// On a tokio runtime that was built without timers.
    pub async fn select(&self, request: SelectWorker) -> Result<Selection, SelectError> {
        use SelectError::{NoWorkers, NoneAllowed, UnknownWorker};
        // Sorted here, it takes no time of the router's.
        let request = request.in_order();
        match self.select_once(request.clone()).await {
            Err(unknown @ (NoWorkers | NoneAllowed | UnknownWorker)) => {
                if self.hear_news(NEWS_WITHIN).await || self.0.read().closing {
                    self.select_once(request).await
                } else {
                    Err(unknown)
                }
            }
            answer => answer,
        }
    }

    /// Waits until the router knows the workers that were announced before. `false`: there is no publisher.
    async fn hear_news(&self, within: Duration) -> bool {
        let announced = AwaitAnnounced {
            router: self.router().recipient(),
            within,
        };
        // The publisher keeps the time itself, unless its arbiter is blocked.
        let heard = heard_within(within, self.0.door.publisher().send(announced)).await;
        !matches!(heard, Some(Err(_)))
    }

    async fn select_once(&self, request: SelectWorker) -> Result<Selection, SelectError> {
        let answer = {
            let present = self.0.read();
            if present.closing || present.state != RouterState::Running {
                return Err(self.0.refuse(&present));
            }
            present.address.send(request)
        };
        (answer.await).unwrap_or_else(|_| Err(self.0.refuse(&self.0.read())))
    }

    /// Takes in what was reported before, tells it to the router and to everything else attached, and stops the
    /// publisher, then the router. Answers after `within` at the latest (100 ms later if the publisher's arbiter is
    /// blocked), with what did not arrive. The publisher comes to its end also if nobody waits for the answer any more.
    ///
    /// From its beginning on [`select`](Self::select) says [`SelectError::ShuttingDown`]. Shut down again, at any time and
    /// from any clone, it answers the same report.
    ///
    /// # Panics
    ///
    /// On a tokio runtime that was built without timers.
    pub async fn shutdown(&self, within: Duration) -> FlushReport {
        self.0.close();
        if let Some(report) = self.0.ended.get() {
            self.0.stop_router();
            return report.clone();
        }
        // Whoever drops this future still wants the end: actix skips a message whose answer nobody waits for, but not the
        // first of these two.
        self.0.door.publisher().do_send(Shutdown { within });
        let report = self.0.door.publisher().send(Shutdown { within });
        // The same holds here.
        let longest = within.saturating_add(ARBITER_BLOCKED);
        let report = heard_within(longest, report).await.and_then(Result::ok);
        self.0.stop_router();
        let first = || report.unwrap_or_else(FlushReport::unanswered);
        self.0.ended.get_or_init(first).clone()
    }
}

/// Whether actors can be started on this thread.
fn is_actix_context() -> bool {
    // Nobody can be asked: tokio's local tasks are enough, with or without a System beside them.
    std::panic::catch_unwind(|| drop(actix_rt::spawn(async {}))).is_ok()
}

/// What comes within `longest`; outside a tokio runtime, which has the clock, whatever comes.
async fn heard_within<F: Future>(longest: Duration, answer: F) -> Option<F::Output> {
    if tokio::runtime::Handle::try_current().is_ok() {
        actix::clock::timeout(longest.min(LONGEST_WAIT), answer)
            .await
            .ok()
    } else {
        Some(answer.await)
    }
}

impl Shared {
    fn read(&self) -> std::sync::RwLockReadGuard<'_, Present> {
        self.router.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, Present> {
        self.router.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request is not placed, and no router says why.
    fn refuse(&self, present: &Present) -> SelectError {
        let error = present.nobody();
        #[cfg(feature = "metrics")]
        self.observed.note_refusal(error);
        error
    }

    /// A shutdown begins. Who holds the router's own address learns that from the router.
    fn close(&self) {
        let mut present = self.write();
        present.closing = true;
        present.address.do_send(CloseRouter);
        self.router_changed.notify_waiters();
    }

    fn stop_router(&self) {
        let mut present = self.write();
        if present.state != RouterState::ShutDown {
            present.state = RouterState::ShutDown;
            present.address.do_send(StopRouter);
        }
    }

    /// The router died, or another one was started; `false`: a shutdown came first.
    fn replace(&self, router: Option<Addr<RouterActor>>) -> bool {
        let mut present = self.write();
        if present.state == RouterState::ShutDown {
            return false;
        }
        present.state = RouterState::Restarting;
        if let Some(router) = router {
            if present.closing {
                router.do_send(CloseRouter);
            }
            present.address = router;
            present.state = RouterState::Running;
            self.router_changed.notify_waiters();
        }
        true
    }
}

/// Replaces the router whenever it dies, until a shutdown or the last handle is gone. Warns once of a router that dies over
/// and over: again after one that lived longer than the longest pause.
async fn guard(
    config: KvMetricsConfig,
    shared: Weak<Shared>,
    mut link: LinkId,
    mut died: oneshot::Receiver<()>,
) {
    let mut failures = 0;
    loop {
        let started = actix::clock::Instant::now();
        // Nothing is ever sent: the router's end of the channel is dropped with it.
        let _ = died.await;
        let Some(guarded) = shared.upgrade() else {
            return;
        };
        if !guarded.replace(None) {
            return;
        }
        if started.elapsed() > config.settings.restart.max() {
            failures = 0;
        }
        failures += 1;
        if failures == 1 {
            tracing::warn!("the router died and is started again");
        } else {
            tracing::debug!(failures, "the router died and is started again");
        }
        let publisher = guarded.door.publisher().clone();
        drop(guarded);
        actix::clock::sleep(config.settings.restart.delay(failures)).await;

        // Not before: a shutdown in between counts what the dead router lacks as not arrived.
        publisher.do_send(DetachRouter(link));
        let Some(guarded) = shared.upgrade() else {
            return;
        };
        let (router, died_again) = start_router(&config);
        let attached = publisher.send(AttachRouter::new(router.clone().recipient()).guarded());
        if !guarded.replace(Some(router)) {
            return;
        }
        drop(guarded);
        let Ok(attached) = attached.await else {
            return;
        };
        (link, died) = (attached, died_again);
    }
}

fn start_router(config: &KvMetricsConfig) -> (Addr<RouterActor>, oneshot::Receiver<()>) {
    let (alive, died) = oneshot::channel();
    let router_config = config.settings.router.clone();
    let router = start_in(config.router_arbiter.as_ref(), move || {
        RouterActor::watched(router_config, alive)
    });
    (router, died)
}

fn start_in<A>(
    arbiter: Option<&ArbiterHandle>,
    make: impl FnOnce() -> A + Send + 'static,
) -> Addr<A>
where
    A: Actor<Context = Context<A>>,
{
    match arbiter {
        Some(arbiter) => A::start_in_arbiter(arbiter, |_| make()),
        None => make().start(),
    }
}

/// Says what to do.
const OUTSIDE_ACTIX: &str = "KvMetrics::start must be called within a running actix System: \
    mark `main` with #[actix::main] or #[actix_web::main], or build one with System::with_tokio_rt and call it in its block_on";
/// How much later than asked a shutdown answers if the publisher does not.
const ARBITER_BLOCKED: Duration = Duration::from_millis(100);
/// Longest wait for workers that were announced just now.
const NEWS_WITHIN: Duration = Duration::from_secs(1);
