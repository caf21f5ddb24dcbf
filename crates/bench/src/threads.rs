//! What the system knows of threads: CPU time, voluntary context switches.

use std::{fs, time::Duration};

use actix::{Arbiter, ArbiterHandle};

/// A thread of this process.
#[derive(Debug, Clone, Copy)]
pub struct Thread {
    id: libc::pid_t,
}

impl Thread {
    /// The thread that asks.
    pub fn current() -> Self {
        // SAFETY: takes nothing and cannot fail.
        let id = unsafe { libc::gettid() };
        Self { id }
    }

    /// The thread of an arbiter.
    ///
    /// # Panics
    ///
    /// If the arbiter is gone.
    pub fn of(arbiter: &ArbiterHandle) -> Self {
        let (told, tells) = std::sync::mpsc::channel();
        arbiter.spawn_fn(move || {
            let _ = told.send(Self::current());
        });
        tells.recv().expect("the arbiter lives")
    }

    /// CPU time it has used.
    ///
    /// # Panics
    ///
    /// If the thread is gone.
    pub fn cpu_time(self) -> Duration {
        // The clock of another thread's CPU time, as the kernel names it (CPUCLOCK_PERTHREAD | CPUCLOCK_SCHED).
        read_clock((!self.id << 3) | 6)
    }

    /// Times it went to sleep.
    ///
    /// # Panics
    ///
    /// If the thread is gone.
    pub fn voluntary_switches(self) -> u64 {
        let status = fs::read_to_string(format!("/proc/self/task/{}/status", self.id));
        let status = status.expect("the thread lives");
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        line.and_then(|count| count.trim().parse().ok())
            .expect("the kernel counts them")
    }
}

/// Measures the CPU time of the thread that made it. Unlike the wall clock it stands still while other programs run, and so
/// does it while the thread sleeps: it is for work that never waits.
#[derive(Debug)]
pub struct Stopwatch {
    thread: Thread,
    started: Duration,
}

impl Stopwatch {
    pub fn start() -> Self {
        let thread = Thread::current();
        let started = thread.cpu_time();
        Self { thread, started }
    }

    /// Nanoseconds since, over `count`.
    pub fn nanos_each(&self, count: u64) -> f64 {
        (self.thread.cpu_time() - self.started).as_nanos() as f64 / count as f64
    }
}

/// CPU time of the whole process.
pub fn process_cpu_time() -> Duration {
    read_clock(libc::CLOCK_PROCESS_CPUTIME_ID)
}

/// Memory of this process that is in use.
///
/// # Panics
///
/// If the kernel does not tell.
pub fn resident_bytes() -> u64 {
    let pages = fs::read_to_string("/proc/self/statm").expect("the kernel tells");
    let pages = pages
        .split(' ')
        .nth(1)
        .and_then(|pages| pages.parse::<u64>().ok());
    pages.expect("a number") * 4096
}

/// A thread of its own for actors.
#[derive(Debug)]
pub struct Stage {
    arbiter: Arbiter,
    thread: Thread,
}

impl Stage {
    pub fn new() -> Self {
        let arbiter = Arbiter::new();
        let thread = Thread::of(&arbiter.handle());
        Self { arbiter, thread }
    }

    pub fn arbiter(&self) -> ArbiterHandle {
        self.arbiter.handle()
    }

    pub fn thread(&self) -> Thread {
        self.thread
    }

    /// Stops the actors and waits for the thread's end.
    pub fn close(self) {
        self.arbiter.stop();
        let _ = self.arbiter.join();
    }
}

impl Default for Stage {
    fn default() -> Self {
        Self::new()
    }
}

fn read_clock(clock: libc::clockid_t) -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is valid for writing during the call.
    let answer = unsafe { libc::clock_gettime(clock, &raw mut time) };
    assert_eq!(answer, 0, "the clock {clock} is gone");
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
