//! Every change at once, one message each.

use std::{
    collections::{HashMap, VecDeque},
    rc::Rc,
    time::{Duration, Instant},
};

use actix_kv_metrics::LoadSnapshot;

use super::{Feed, News, Said, Sender};

#[derive(Debug, Default)]
pub(super) struct Forwarded {
    sender: Sender,
    lives: u64,
    newest: HashMap<usize, News>,
    outbox: VecDeque<LoadSnapshot>,
}

impl Feed for Forwarded {
    fn handle_joined(&mut self, worker: usize, _: Instant) {
        self.lives += 1;
        let news = News {
            worker,
            life: self.lives,
            said: None,
            age: Duration::ZERO,
        };
        self.newest.insert(worker, news.clone());
        self.outbox.push_back(self.sender.write(Vec::new(), [news]));
    }

    fn handle_said(&mut self, said: &Rc<Said>, _: Instant) {
        let Some(newest) = self.newest.get_mut(&said.worker) else {
            return;
        };
        if newest.said.as_ref() != Some(said) {
            newest.said = Some(Rc::clone(said));
            let news = newest.clone();
            self.outbox.push_back(self.sender.write(Vec::new(), [news]));
        }
    }

    fn handle_left(&mut self, worker: usize, _: Instant) {
        if self.newest.remove(&worker).is_some() {
            self.outbox.push_back(self.sender.write(vec![worker], []));
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    fn poll_message(&mut self, _: Instant) -> Option<LoadSnapshot> {
        self.outbox.pop_front()
    }
}
