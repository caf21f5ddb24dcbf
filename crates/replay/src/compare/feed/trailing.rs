//! Trailing debounce without a cap: each worker sends for itself, once it has been quiet; what it says is compared with
//! what it said before, not with what was sent.

use std::{
    collections::{BTreeSet, HashMap},
    rc::Rc,
    time::{Duration, Instant},
};

use actix_kv_metrics::LoadSnapshot;

use super::{Feed, News, Said, Sender};

#[derive(Debug)]
pub(super) struct Trailing {
    /// [`Duration::MAX`]: nothing is ever sent but which workers there are.
    quiet: Duration,
    sender: Sender,
    lives: u64,
    workers: HashMap<usize, Watched>,
    due: BTreeSet<(Instant, usize)>,
    left: Vec<usize>,
    joined: Vec<News>,
}

#[derive(Debug)]
struct Watched {
    life: u64,
    newest: Option<Rc<Said>>,
    changed_at: Option<Instant>,
    due: Option<Instant>,
}

impl Trailing {
    pub(super) fn new(quiet: Duration) -> Self {
        Self {
            quiet,
            sender: Sender::default(),
            lives: 0,
            workers: HashMap::new(),
            due: BTreeSet::new(),
            left: Vec::new(),
            joined: Vec::new(),
        }
    }
}

impl Feed for Trailing {
    fn handle_joined(&mut self, worker: usize, _: Instant) {
        self.lives += 1;
        let watched = Watched {
            life: self.lives,
            newest: None,
            changed_at: None,
            due: None,
        };
        self.workers.insert(worker, watched);
        self.joined.push(News {
            worker,
            life: self.lives,
            said: None,
            age: Duration::ZERO,
        });
    }

    fn handle_said(&mut self, said: &Rc<Said>, now: Instant) {
        let Some(watched) = self.workers.get_mut(&said.worker) else {
            return;
        };
        if watched.newest.as_ref() == Some(said) {
            return;
        }
        watched.newest = Some(Rc::clone(said));
        watched.changed_at.get_or_insert(now);
        if let Some(due) = watched.due.take() {
            self.due.remove(&(due, said.worker));
        }
        watched.due = now.checked_add(self.quiet);
        self.due.extend(watched.due.map(|due| (due, said.worker)));
    }

    fn handle_left(&mut self, worker: usize, _: Instant) {
        if let Some(watched) = self.workers.remove(&worker) {
            if let Some(due) = watched.due {
                self.due.remove(&(due, worker));
            }
            self.left.push(worker);
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.due.first().map(|(due, _)| *due)
    }

    fn poll_message(&mut self, now: Instant) -> Option<LoadSnapshot> {
        if !self.left.is_empty() || !self.joined.is_empty() {
            let left = std::mem::take(&mut self.left);
            return Some(self.sender.write(left, self.joined.drain(..)));
        }
        let (due, worker) = *self.due.first()?;
        if due > now {
            return None;
        }
        self.due.pop_first();
        let watched = self.workers.get_mut(&worker)?;
        watched.due = None;
        let since = watched.changed_at.take().unwrap_or(now);
        let news = News {
            worker,
            life: watched.life,
            said: watched.newest.clone(),
            age: now.saturating_duration_since(since),
        };
        Some(self.sender.write(Vec::new(), [news]))
    }
}
