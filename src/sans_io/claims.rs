//! Whom a load table believes about a worker, and what becomes of the others.
//!
//! Of two publishers that speak of one worker the one with the higher life owns it. The other's newest load is kept beside
//! it and succeeds when the owner lets go, or when the owner has been silent for `stale_after` and the other has reported
//! since.

use super::{
    moment::Moment,
    packed::Packed,
    rows::{Claim, Row},
    sequences::Verdict,
    slots::{Key, RowSlot},
    table::{LoadTable, PartialSnapshot},
};
use crate::{
    metrics::WorkerRank,
    snapshot::{PublisherId, SnapshotKind, Ticket, WorkerLoad},
};

impl LoadTable {
    pub(super) fn handle_load(&mut self, taking: &PartialSnapshot, load: WorkerLoad, now: Moment) {
        let worker = load.worker;
        let said = self.claim(taking, load, now);
        let Some(index) = self.roster.row(worker) else {
            self.join(worker, said);
            return;
        };
        let Some(row) = self.rows.get_mut(index) else {
            return;
        };
        let own = row.claim.owner.id == said.owner.id;
        let kept = row.other(said.owner.id).map(|kept| kept.named_in);
        let named_in = if own { Some(row.claim.named_in) } else { kept };
        if own {
            // It lives all the same, whatever is said of it: a full snapshot that names it does not remove it.
            row.claim.named_in = said.named_in;
        }
        // Named twice in one snapshot, the higher life counts.
        let full = taking.kind == SnapshotKind::Full && named_in != Some(said.named_in);
        let takes_over = full && taking.verdict == Some(Verdict::TakesOver);
        let told_anew = takes_over || full && row.claim.owner.incarnation != said.owner.incarnation;
        if own && (said.life == row.claim.life || told_anew) {
            self.renew(index, said, now);
        } else if said.life >= row.claim.life && may_own(row, &said) {
            self.take_from_owner(index, said, now);
        } else {
            self.counts.late_loads += 1;
            // A higher life that was said by mistake is no more for ever than a higher sequence is.
            let stale_after = self.config.stale_after();
            let silent = row.other(said.owner.id).is_some_and(|kept| {
                kept.named_in != said.named_in
                    && now.saturating_duration_since(kept.heard_at) >= stale_after
            });
            self.keep_out(index, said, takes_over || silent);
            self.reprice(index);
        }
    }

    /// What the load says, in the table's terms.
    #[inline]
    fn claim(&mut self, taking: &PartialSnapshot, load: WorkerLoad, now: Moment) -> Claim {
        let (echoed, misled) = self.newest_of(&load.admitted);
        let metrics = load.metrics.filter(|metrics| {
            let finite = metrics.check().is_ok();
            self.counts.rejected_loads += u64::from(!finite);
            finite
        });
        let built_at = taking.built_at.unwrap_or(now);
        let reported_at = match load.reported {
            Some(before) => built_at.checked_sub(before),
            None if taking.kind == SnapshotKind::Full => None,
            None => Some(built_at),
        };
        let reported_at = reported_at.filter(|_| metrics.is_some());
        Claim {
            owner: taking.publisher,
            life: load.life,
            metrics: metrics.map(Packed::from),
            arrived_at: now,
            heard_at: reported_at.unwrap_or(now),
            reported: reported_at.is_some(),
            echoed,
            misled,
            named_in: taking.number,
            ousted: false,
            draining: load.draining,
        }
    }

    /// The newest ticket of this router among those that a worker says it has admitted; whether one among them was never
    /// issued. Publishers tell the greatest only, so that one hides what is truly echoed.
    fn newest_of(&mut self, admitted: &[Ticket]) -> (u64, bool) {
        let (mut newest, mut misled) = (0, false);
        for ticket in admitted {
            if self.reservations.has_issued(*ticket) {
                newest = newest.max(ticket.number);
            } else if self.reservations.is_of_this_router(*ticket) {
                self.counts.unknown_tickets += 1;
                misled = true;
            }
        }
        (newest, misled)
    }

    /// A worker that was not known.
    fn join(&mut self, worker: WorkerRank, said: Claim) {
        if self.roster.len() >= self.config.max_workers() {
            self.counts.refused_workers += 1;
            return;
        }
        self.publishers.note_worker(said.owner.id);
        let index = self.rows.insert(Row::new(said));
        self.roster.insert(worker, index);
        self.counts.loads += 1;
        self.set_gate(index);
        self.reprice(index);
    }

    /// Its owner says more of it, or that it lives anew.
    #[inline]
    fn renew(&mut self, index: RowSlot, said: Claim, now: Moment) {
        let Some(row) = self.rows.get_mut(index) else {
            return;
        };
        self.pricing.forget(index, row.known());
        if said.life == row.claim.life {
            row.claim.update(said);
        } else {
            let publisher = said.owner.id;
            row.claim = said;
            self.begin_life(index);
            self.drop_others(index, |claim| claim.owner.id == publisher);
            self.yield_to_higher(index);
        }
        self.heed(index, now);
    }

    /// A publisher whose claim is the better one takes the worker over. What is booked stands, unless it is the same
    /// publisher's: then the worker lives anew.
    fn take_from_owner(&mut self, index: RowSlot, said: Claim, now: Moment) {
        let Some(row) = self.rows.get_mut(index) else {
            return;
        };
        self.pricing.forget(index, row.known());
        let publisher = said.owner.id;
        let former = std::mem::replace(&mut row.claim, said);
        let kept = row.others.iter();
        let returned = kept
            .filter(|claim| claim.owner.id == publisher)
            .any(|claim| claim.life == row.claim.life);
        let own = former.owner.id == publisher;
        if own && !returned {
            self.begin_life(index);
        }
        self.drop_others(index, |claim| claim.owner.id == publisher);
        if own {
            self.publishers.note_worker_gone(publisher);
        } else {
            self.counts.changed_hands += 1;
            self.keep_out(index, former, false);
        }
        self.publishers.note_worker(publisher);
        self.heed(index, now);
    }

    /// The worker lives anew: what was placed on its former life and what came of it is over.
    fn begin_life(&mut self, index: RowSlot) {
        self.counts.dropped += self.reservations.end_all(index);
        self.cooling.forget(index);
        if let Some(row) = self.rows.get_mut(index) {
            row.echoed = 0;
        }
    }

    /// The higher life owns the worker, also when that of its owner has become lower.
    fn yield_to_higher(&mut self, index: RowSlot) {
        let Some(row) = self.rows.get_mut(index) else {
            return;
        };
        let higher = row.successor();
        let stands = |claim: &Claim| !claim.ousted && claim.life > row.claim.life;
        if let Some(place) = higher.filter(|place| stands(&row.others[*place])) {
            std::mem::swap(&mut row.claim, &mut row.others[place]);
            self.counts.changed_hands += 1;
        }
    }

    /// The newest load of somebody who does not own the worker is kept beside. Of the same incarnation a lower life is old,
    /// unless it `takes_over` from what was said before, or the higher life has been silent for `stale_after`.
    fn keep_out(&mut self, index: RowSlot, said: Claim, takes_over: bool) {
        let publisher = said.owner.id;
        let Some(row) = self.rows.get_mut(index) else {
            return;
        };
        if let Some(kept) = row.other(publisher) {
            if said.life == kept.life {
                kept.update(said);
            } else if said.life > kept.life || said.owner != kept.owner || takes_over {
                *kept = said;
            } else {
                kept.named_in = said.named_in;
            }
        } else if self.kept_out < self.config.max_workers() {
            row.others.push(said);
            self.kept_out += 1;
            self.publishers.note_worker(publisher);
        } else {
            self.counts.refused_workers += 1;
        }
    }

    /// The owner has been silent for too long, and another claimant has reported since.
    pub(super) fn oust(&mut self, index: RowSlot, now: Moment) {
        let Some(row) = self.rows.get_mut(index) else {
            return;
        };
        let Some(place) = row.challenger() else {
            return;
        };
        self.pricing.forget(index, row.known());
        std::mem::swap(&mut row.claim, &mut row.others[place]);
        row.others[place].ousted = true;
        row.claim.ousted = false;
        let publisher = row.others[place].owner.id;
        let kept = row.others.iter();
        if kept.filter(|claim| claim.owner.id == publisher).count() > 1 {
            // One of each publisher is kept: that which is still told of.
            row.others.swap_remove(place);
            self.kept_out -= 1;
            self.publishers.note_worker_gone(publisher);
        }
        self.counts.changed_hands += 1;
        self.heed(index, now);
    }

    /// Draws the conclusions from what the worker's owner says now.
    fn heed(&mut self, index: RowSlot, now: Moment) {
        let Some(row) = self.rows.get_mut(index) else {
            return;
        };
        self.counts.loads += 1;
        row.echoed = row.echoed.max(row.claim.echoed);
        let stale_after = self.config.stale_after();
        let silence = row
            .silent_since()
            .map(|since| now.saturating_duration_since(since));
        if silence.is_some_and(|silence| silence < stale_after) {
            row.stale = None;
        }
        let (reported_at, draining) = (row.claim.reported_at(), row.claim.draining);
        if self.reservations.booked(index).requests() > 0 {
            self.settle(index);
            if let Some(reported_at) = reported_at {
                self.reservations.note_report(index, reported_at);
            }
        }
        if draining || self.pricing.any_gate_closed() {
            self.set_gate(index);
        }
        self.reprice(index);
    }

    /// A publisher says that a worker left.
    pub(super) fn handle_left(&mut self, publisher: PublisherId, worker: WorkerRank, now: Moment) {
        if let Some(index) = self.roster.row(worker) {
            self.let_go(index, |claim| claim.owner.id == publisher.id, now);
        }
    }

    /// Who fits speaks of the worker no longer; it goes to who else does. Whether it is gone.
    fn let_go(&mut self, index: RowSlot, fits: impl Fn(&Claim) -> bool, now: Moment) -> bool {
        let Some(row) = self.rows.get_mut(index) else {
            return false;
        };
        let owned = fits(&row.claim);
        self.drop_others(index, fits);
        if !owned {
            self.reprice(index);
            return false;
        }
        let Some(row) = self.rows.get_mut(index) else {
            return false;
        };
        let Some(successor) = row.successor() else {
            self.remove(index);
            return true;
        };
        let Some(next) = row.others.swap_remove(successor) else {
            return false;
        };
        self.pricing.forget(index, row.known());
        let former = std::mem::replace(&mut row.claim, next);
        self.kept_out -= 1;
        self.publishers.note_worker_gone(former.owner.id);
        self.counts.changed_hands += 1;
        self.heed(index, now);
        false
    }

    /// Removes up to `most` workers that are gone by the snapshot, looking at more rows than that. Whether none is left.
    pub(super) fn sweep(&mut self, taking: &mut PartialSnapshot, most: usize, now: Moment) -> bool {
        let (publisher, number, kind) = (taking.publisher, taking.number, taking.kind);
        if let SnapshotKind::Delta { .. } = kind {
            return true;
        }
        let gone = |claim: &Claim| match kind {
            SnapshotKind::Closed => claim.owner == publisher,
            _ => claim.owner.id == publisher.id && claim.named_in != number,
        };
        let looks = u32::try_from(most.saturating_mul(ROWS_A_REMOVAL)).unwrap_or(u32::MAX);
        let end = self.rows.slots().min(taking.swept.saturating_add(looks));
        let mut removed = 0;
        while taking.swept < end && removed < most {
            let index = RowSlot::new(taking.swept);
            taking.swept += 1;
            let spoken_of = |row: &Row| gone(&row.claim) || row.others.iter().any(gone);
            if self.rows.get(index).is_some_and(spoken_of) {
                removed += usize::from(self.let_go(index, gone, now));
            }
        }
        taking.swept >= self.rows.slots()
    }

    /// What those who fit said beside the owner is kept no longer.
    fn drop_others(&mut self, index: RowSlot, fits: impl Fn(&Claim) -> bool) {
        let Some(row) = self.rows.get_mut(index) else {
            return;
        };
        row.others.retain(|claim| {
            let dropped = fits(claim);
            if dropped {
                self.kept_out -= 1;
                self.publishers.note_worker_gone(claim.owner.id);
            }
            !dropped
        });
    }

    fn remove(&mut self, index: RowSlot) {
        let Some(row) = self.rows.remove(index) else {
            return;
        };
        self.counts.removed += 1;
        self.counts.dropped += self.reservations.end_all(index);
        self.cooling.forget(index);
        self.deadlines.forget(index);
        self.pricing.remove(index, row.known());
        self.follow_others();
        self.kept_out -= row.others.len();
        for claim in row.others.iter().chain([&row.claim]) {
            self.publishers.note_worker_gone(claim.owner.id);
        }
        self.roster.remove(index);
    }
}

/// Whether a claim that is not lower than the owner's makes its publisher the owner. One that was told before and lost does
/// only with a report since.
fn may_own(row: &mut Row, said: &Claim) -> bool {
    let kept = row.other(said.owner.id);
    let Some(kept) = kept.filter(|kept| kept.life == said.life) else {
        return true;
    };
    said.reported_at() > kept.reported_at()
}

/// Looking at a row takes a tenth of the time of removing it.
const ROWS_A_REMOVAL: usize = 8;
