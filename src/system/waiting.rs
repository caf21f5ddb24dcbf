//! Requests that wait for room, at whatever router runs.

use std::{
    pin::pin,
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use actix::Addr;
use tokio::sync::oneshot;

use super::{ARBITER_BLOCKED, KvMetrics, NEWS_WITHIN, RouterState, heard_within};
use crate::{
    router::{
        RouterActor, Selection,
        waiting::{StopWaiting, Wait},
    },
    sans_io::selection::{SelectError, SelectWorker},
};

impl KvMetrics {
    /// Chooses a worker and books the request on it, as [`select`](Self::select) does, but where that would say
    /// [`AllSaturated`](SelectError::AllSaturated) or [`Unavailable`](SelectError::Unavailable) waits for room, or for a router,
    /// `within` at most (100 ms longer if the router's arbiter is blocked).
    ///
    /// First in, first out: who waits is served before any new request, as soon as a worker takes requests again. A request
    /// that only some workers may or can take waits for those, and keeps nobody from the others. Whoever drops the future
    /// waits no longer. If the router dies, the next one is asked, and the place in the order is kept.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use actix_kv_metrics::{ForwardPassMetrics, KvMetrics, KvMetricsConfig, SelectWorker};
    /// # #[actix::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let kv = KvMetrics::start(KvMetricsConfig::default().saturation(0.9)?);
    /// let worker = kv.reporter(7);
    /// worker.report(ForwardPassMetrics::new(950, 1_000, 3))?;
    /// # kv.flush(Duration::from_secs(1)).await;
    /// # let later = actix::spawn(async move {
    /// #     worker.report(ForwardPassMetrics::new(100, 1_000, 0)).unwrap();
    /// #     actix::clock::sleep(Duration::from_secs(1)).await;
    /// # });
    /// let choice = kv.select_within(SelectWorker::blocks(64), Duration::from_secs(5)).await?;
    /// # later.abort();
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// - [`AllSaturated`](SelectError::AllSaturated): every worker allowed was full, drained or cooled all the time, or
    ///   [`max_waiting`](crate::RouterConfigBuilder::max_waiting) requests wait already, which is said at once.
    /// - [`Unavailable`](SelectError::Unavailable): no router ran at the end of that time.
    /// - At once, and also as soon as it becomes so while it waits: [`NoWorkers`](SelectError::NoWorkers),
    ///   [`UnknownWorker`](SelectError::UnknownWorker) and [`NoneAllowed`](SelectError::NoneAllowed), unless the router is yet to hear
    ///   of workers that were announced before, [`TooLarge`](SelectError::TooLarge), and
    ///   [`ShuttingDown`](SelectError::ShuttingDown).
    ///
    /// # Panics
    ///
    /// On a tokio runtime that was built without timers.
    pub async fn select_within(
        &self,
        request: SelectWorker,
        within: Duration,
    ) -> Result<Selection, SelectError> {
        use SelectError::{NoWorkers, NoneAllowed, Unavailable, UnknownWorker};
        let number = self.0.next_number.fetch_add(1, Ordering::Relaxed);
        let deadline = now().checked_add(within);
        let request = request.in_order();
        let mut heard_news = false;
        loop {
            // Whatever happens from here on is heard, also if that is before it is waited for.
            let next_router = pin!(self.0.router_changed.notified());
            match self.wait_at_router(number, request.clone(), deadline).await {
                Err(Unavailable) => {
                    let next = heard_within(left(deadline), next_router).await;
                    next.ok_or_else(|| self.0.refuse(&self.0.read()))?;
                    heard_news = false;
                }
                Err(NoWorkers | NoneAllowed | UnknownWorker) if !heard_news => {
                    // If there is no news, the next answer is the same.
                    self.hear_news(left(deadline).min(NEWS_WITHIN)).await;
                    heard_news = true;
                }
                answer => return answer,
            }
        }
    }

    /// Asks the router that runs just now, and waits there.
    async fn wait_at_router(
        &self,
        number: u64,
        request: SelectWorker,
        deadline: Option<Instant>,
    ) -> Result<Selection, SelectError> {
        let router = {
            let present = self.0.read();
            if present.closing {
                return Err(self.0.refuse(&present));
            }
            if present.state != RouterState::Running {
                // The next one is waited for.
                return Err(SelectError::Unavailable);
            }
            present.address.clone()
        };
        let (answer, answered) = oneshot::channel();
        router.do_send(Wait {
            number,
            request,
            deadline,
            answer,
        });
        let mut place = Place {
            router: Some(router),
            number,
        };
        // The router keeps the time itself, unless its arbiter is blocked.
        let longest = left(deadline).saturating_add(ARBITER_BLOCKED);
        match heard_within(longest, answered).await {
            Some(answer) => {
                place.router = None;
                answer.unwrap_or_else(|_| Err(self.0.read().nobody()))
            }
            None => Err(SelectError::AllSaturated),
        }
    }
}

/// A place in the order, given up when it is dropped before the answer came.
struct Place {
    router: Option<Addr<RouterActor>>,
    number: u64,
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(router) = self.router.take() {
            router.do_send(StopWaiting {
                number: self.number,
            });
        }
    }
}

/// What is left until the deadline.
fn left(deadline: Option<Instant>) -> Duration {
    deadline.map_or(Duration::MAX, |deadline| {
        deadline.saturating_duration_since(now())
    })
}

fn now() -> Instant {
    actix::clock::Instant::now().into_std()
}
