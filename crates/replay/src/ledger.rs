//! What is left when a run is over: whether it adds up, and the figures it gives.

use std::{fmt, rc::Rc, time::Duration};

use actix_kv_metrics::{LinkStats, PublisherStats, RankLoad, RouterStats};
use kv_engine_sim::{Load, Totals};

use crate::{
    distribution::Distribution,
    engine_actor::metrics,
    report::{Engines, Figures, Reporting, Requests},
    run_log::RunLog,
};

#[derive(Debug)]
pub(crate) struct Ledger {
    pub(crate) members: Vec<Member>,
    pub(crate) log: Rc<RunLog>,
    pub(crate) ages: Distribution,
    pub(crate) publisher: PublisherStats,
    /// The other link is the recorder's.
    pub(crate) router_link: Option<LinkStats>,
    pub(crate) router: RouterStats,
    /// The worker of each request.
    pub(crate) choices: Vec<usize>,
    pub(crate) everything_arrived: bool,
    /// Until the last request was over.
    pub(crate) lasted: Duration,
}

/// An engine at the end.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) id: u64,
    /// Requests placed on it.
    pub(crate) placed: u64,
    pub(crate) is_empty: bool,
    /// The truth.
    pub(crate) load: Load,
    pub(crate) totals: Totals,
    /// What the router knows of it.
    pub(crate) known: Option<RankLoad>,
}

/// What does not add up; never empty.
#[derive(Debug, thiserror::Error)]
pub(crate) struct Violations(Vec<String>);

impl fmt::Display for Violations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the run does not add up:")?;
        for complaint in self.0.iter().take(SHOWN) {
            write!(f, "\n  {complaint}")?;
        }
        match self.0.len().saturating_sub(SHOWN) {
            0 => Ok(()),
            more => write!(f, "\n  and {more} more"),
        }
    }
}

/// Complaints shown: one cause tends to have many.
const SHOWN: usize = 20;

impl Ledger {
    /// # Errors
    ///
    /// If a request did not come to exactly one end, a booking or a block is left over, or the router's table is not the
    /// engines' truth.
    pub(crate) fn check(&self) -> Result<(), Violations> {
        let mut found = self.log.journal().contradictions();
        found.extend(self.wiring_complaints());
        for member in &self.members {
            let complaints = member.complaints().into_iter();
            found.extend(complaints.map(|complaint| format!("engine {}: {complaint}", member.id)));
        }
        if found.is_empty() {
            Ok(())
        } else {
            Err(Violations(found))
        }
    }

    pub(crate) fn figures(&self) -> Figures {
        let journal = self.log.journal();
        Figures {
            requests: Requests {
                arrived: journal.arrived(),
                finished: journal.finished(),
                refused: journal.refused(),
            },
            time_to_first_token: journal.time_to_first_token().summary(),
            end_to_end: journal.end_to_end().summary(),
            inter_token: journal.inter_token().summary(),
            queueing: journal.queueing().summary(),
            age_of_information: self.ages.summary(),
            reporting: self.reporting(),
            timer: self.publisher.timer.into(),
            engines: self.engines(),
        }
    }

    /// About the publisher, the router, and what is between them.
    fn wiring_complaints(&self) -> Vec<String> {
        let arrived = self.log.journal().arrived() as u64;
        let selected = self.router.table.selected;
        let (outstanding, workers) = (self.router.outstanding, self.router.workers);
        let mut found = Vec::new();
        if outstanding > 0 {
            found.push(format!("router: {outstanding} bookings left"));
        }
        if workers != self.members.len() {
            found.push(format!("router: knows {workers} workers"));
        }
        if selected != arrived {
            found.push(format!("router: {selected} choices for {arrived} requests"));
        }
        if !self.everything_arrived {
            found.push("publisher: not everything arrived".to_owned());
        }
        if let Some(error) = self.log.failed_report() {
            found.push(format!("reporter: {error}"));
        }
        found
    }

    fn reporting(&self) -> Reporting {
        let link = self.router_link;
        let (windows, delivery) =
            link.map_or_else(Default::default, |link| (link.windows, link.delivery));
        Reporting {
            reports: self.log.reports(),
            changes: self.publisher.changed,
            snapshots: delivery.snapshots,
            entries: windows.entries,
            suppressed: windows.suppressed,
        }
    }

    fn engines(&self) -> Engines {
        let totals = self.members.iter().map(|member| member.totals);
        let total: Totals = totals.sum();
        Engines {
            virtual_seconds: self.lasted.as_secs_f64(),
            passes: total.passes,
            preemptions: total.preemptions,
            prefix_hit_rate: total.prefix_hit_rate(),
            requests: self.members.iter().map(|member| member.placed).collect(),
        }
    }
}

impl Member {
    fn complaints(&self) -> Vec<String> {
        let Totals {
            finished, refused, ..
        } = self.totals;
        let mut found = Vec::new();
        if !self.is_empty || self.load.active_blocks > 0 {
            found.push(format!("not empty: {:?}", self.load));
        }
        if finished + refused != self.placed {
            found.push(format!(
                "{} placed, {finished} finished, {refused} refused",
                self.placed
            ));
        }
        match &self.known {
            None => found.push("unknown to the router".to_owned()),
            Some(known) if known.metrics != Some(metrics(self.load)) => {
                found.push(format!(
                    "router knows {:?}, truth is {:?}",
                    known.metrics, self.load
                ));
            }
            Some(known) if known.booked_blocks > 0 || known.booked_requests > 0 => {
                found.push(format!(
                    "{} blocks of {} requests booked",
                    known.booked_blocks, known.booked_requests
                ));
            }
            Some(_) => {}
        }
        found
    }
}
