//! What the machine itself adds: a plain actor under a like load.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use actix::{Actor, Arbiter, Context, Handler, Message};

use crate::latency::{Probed, probe};

/// Spins on so many threads, and on an arbiter that gives way after each `turn`, and asks an actor there meanwhile.
pub(crate) async fn busy(
    threads: u64,
    turn: Duration,
    every: Duration,
    length: Duration,
) -> Probed {
    let arbiter = Arbiter::new();
    let echo = Echo::start_in_arbiter(&arbiter.handle(), |_| Echo);
    let stop = Arc::new(AtomicBool::new(false));
    let spinning: Vec<_> = (0..threads)
        .map(|_| {
            let stop = stop.clone();
            thread::spawn(move || while !stop.load(Ordering::Relaxed) {})
        })
        .collect();
    let stopped = stop.clone();
    arbiter.spawn(async move {
        while !stopped.load(Ordering::Relaxed) {
            let began = Instant::now();
            while began.elapsed() < turn {}
            actix_rt::task::yield_now().await;
        }
    });
    let probed = probe(every, Instant::now() + length, || {
        let answer = echo.send(Call);
        async { answer.await.is_ok() }
    });
    let probed = probed.await;
    stop.store(true, Ordering::Relaxed);
    for thread in spinning {
        let _ = thread.join();
    }
    arbiter.stop();
    let _ = arbiter.join();
    probed
}

/// Answers.
struct Echo;

impl Actor for Echo {
    type Context = Context<Self>;
}

struct Call;

impl Message for Call {
    type Result = ();
}

impl Handler<Call> for Echo {
    type Result = ();

    fn handle(&mut self, _: Call, _: &mut Context<Self>) {}
}
