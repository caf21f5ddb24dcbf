//! What the actors of one run write down for its report, and the sign that all requests are over.

use std::{
    cell::{Cell, Ref, RefCell},
    sync::Arc,
};

use actix_kv_metrics::ReportError;
use kv_engine_sim::Event;
use tokio::sync::Notify;

use crate::{journal::Journal, trace::Request};

#[derive(Debug)]
pub(crate) struct RunLog {
    journal: RefCell<Journal>,
    reports: Cell<u64>,
    failed_report: Cell<Option<ReportError>>,
    over: Notify,
}

impl RunLog {
    pub(crate) fn new(requests: &[Arc<Request>]) -> Self {
        Self {
            journal: RefCell::new(Journal::new(requests)),
            reports: Cell::new(0),
            failed_report: Cell::new(None),
            over: Notify::new(),
        }
    }

    pub(crate) fn record(&self, event: Event) {
        self.journal.borrow_mut().record(event);
        self.tell_if_over();
    }

    pub(crate) fn record_refused(&self, number: usize) {
        self.journal.borrow_mut().record_refused(number);
        self.tell_if_over();
    }

    pub(crate) fn record_report(&self, reported: Result<(), ReportError>) {
        match reported {
            Ok(()) => self.reports.set(self.reports.get() + 1),
            Err(error) => self.failed_report.set(Some(error)),
        }
    }

    /// Waits until every request is finished or refused.
    pub(crate) async fn all_over(&self) {
        if !self.journal.borrow().is_complete() {
            self.over.notified().await;
        }
    }

    pub(crate) fn journal(&self) -> Ref<'_, Journal> {
        self.journal.borrow()
    }

    pub(crate) fn reports(&self) -> u64 {
        self.reports.get()
    }

    /// Why the last report that was not taken was not.
    pub(crate) fn failed_report(&self) -> Option<ReportError> {
        self.failed_report.get()
    }

    fn tell_if_over(&self) {
        if self.journal.borrow().is_complete() {
            self.over.notify_one();
        }
    }
}
