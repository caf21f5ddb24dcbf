//! Everybody is asked in turns: one message a worker, whether anything changed or not.

use std::{
    collections::{BTreeMap, VecDeque},
    rc::Rc,
    time::{Duration, Instant},
};

use actix_kv_metrics::LoadSnapshot;

use super::{Feed, News, Said, Sender};

#[derive(Debug)]
pub(super) struct Polled {
    period: Duration,
    next_turn: Instant,
    sender: Sender,
    lives: u64,
    workers: BTreeMap<usize, Page>,
    /// Those the router is to forget or to hear of at the next turn.
    left: Vec<usize>,
    outbox: VecDeque<LoadSnapshot>,
}

/// What a worker would answer if it were asked.
#[derive(Debug)]
struct Page {
    life: u64,
    said: Option<Rc<Said>>,
    told: Option<Rc<Said>>,
    differs_since: Option<Instant>,
}

impl Polled {
    /// The first turn comes at a random time of the first period.
    pub(super) fn new(period: Duration, seed: u64, now: Instant) -> Self {
        let share = fastrand::Rng::with_seed(seed).f64();
        Self {
            period,
            next_turn: now + period.mul_f64(share),
            sender: Sender::default(),
            lives: 0,
            workers: BTreeMap::new(),
            left: Vec::new(),
            outbox: VecDeque::new(),
        }
    }

    fn take_turn(&mut self, now: Instant) {
        self.next_turn += self.period;
        let mut left = std::mem::take(&mut self.left);
        for (worker, page) in &mut self.workers {
            page.told.clone_from(&page.said);
            let since = page.differs_since.take().unwrap_or(now);
            let news = News {
                worker: *worker,
                life: page.life,
                said: page.said.clone(),
                age: now.saturating_duration_since(since),
            };
            let left = std::mem::take(&mut left);
            self.outbox.push_back(self.sender.write(left, [news]));
        }
    }
}

impl Feed for Polled {
    fn handle_joined(&mut self, worker: usize, _: Instant) {
        self.lives += 1;
        let page = Page {
            life: self.lives,
            said: None,
            told: None,
            differs_since: None,
        };
        self.workers.insert(worker, page);
        // Which workers there are is known from elsewhere, at once.
        let news = News {
            worker,
            life: self.lives,
            said: None,
            age: Duration::ZERO,
        };
        self.outbox.push_back(self.sender.write(Vec::new(), [news]));
    }

    fn handle_said(&mut self, said: &Rc<Said>, now: Instant) {
        let Some(page) = self.workers.get_mut(&said.worker) else {
            return;
        };
        page.said = Some(Rc::clone(said));
        if page.told == page.said {
            page.differs_since = None;
        } else {
            page.differs_since.get_or_insert(now);
        }
    }

    fn handle_left(&mut self, worker: usize, _: Instant) {
        if self.workers.remove(&worker).is_some() {
            self.left.push(worker);
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        Some(self.next_turn)
    }

    fn poll_message(&mut self, now: Instant) -> Option<LoadSnapshot> {
        if self.outbox.is_empty() && self.next_turn <= now {
            self.take_turn(now);
        }
        self.outbox.pop_front()
    }
}
