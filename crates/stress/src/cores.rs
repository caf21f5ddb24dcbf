//! How often a thread lost its core, and how long it waited for one.

use std::{fs, path::PathBuf, time::Duration};

use actix::ArbiterHandle;

/// A thread of this process, as the kernel lists it.
#[derive(Debug, Clone)]
pub(crate) struct Thread(PathBuf);

/// What the thread did without, since it began.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lost {
    /// Times it was taken off its core while it had work.
    pub(crate) times: u64,
    /// How long it had work and no core.
    pub(crate) waited: Duration,
}

impl Thread {
    /// The thread of an arbiter.
    pub(crate) async fn of(arbiter: &ArbiterHandle) -> Self {
        let (told, tells) = tokio::sync::oneshot::channel();
        arbiter.spawn_fn(move || {
            let thread = fs::read_link("/proc/thread-self").expect("the kernel tells");
            let _ = told.send(PathBuf::from("/proc").join(thread));
        });
        Self(tells.await.expect("the arbiter lives"))
    }

    pub(crate) fn lost(&self) -> Lost {
        let read = |file| fs::read_to_string(self.0.join(file)).expect("the thread lives");
        let (status, schedule) = (read("status"), read("schedstat"));
        let number = |text: Option<&str>| text.and_then(|text| text.trim().parse().ok());
        let times = status
            .lines()
            .find_map(|line| line.strip_prefix("nonvoluntary_ctxt_switches:"));
        Lost {
            times: number(times).unwrap_or(0),
            waited: Duration::from_nanos(number(schedule.split(' ').nth(1)).unwrap_or(0)),
        }
    }
}

impl Lost {
    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            times: self.times - before.times,
            waited: self.waited.saturating_sub(before.waited),
        }
    }
}
