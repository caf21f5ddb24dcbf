//! Requests placed but not yet seen in a report.

use std::time::Duration;

use super::{
    moment::Moment,
    numbers::Numbers,
    slots::{BySlot, Chain, Links, RowSlot, Slab, key},
};
use crate::snapshot::Ticket;

/// All outstanding reservations of one router: by number, by worker and by age.
///
/// A reservation is *held* until it is *detached*. Held ones end with their holder or with the worker's life; detached ones
/// also when they are seen, or too old. Workers are row numbers of the load table. Nothing is kept of a reservation that
/// ended, and everything is constant time, but for detaching in another order than was booked.
#[derive(Debug)]
pub(crate) struct Reservations {
    router: u64,
    outstanding: Slab<ReservationSlot, Reservation>,
    by_number: Numbers<ReservationSlot>,
    /// The detached ones of all workers, in the order in which they were detached.
    by_age: Chain<ReservationSlot>,
    age_links: Links<ReservationSlot>,
    /// Those of each worker.
    row_links: Links<ReservationSlot>,
    /// The detached ones of each worker.
    detached_links: Links<ReservationSlot>,
    rows: BySlot<RowSlot, Booked>,
    /// When those were booked that ended since they were asked for last; `None`: nobody asks.
    #[cfg(feature = "metrics")]
    ended: Option<Vec<Moment>>,
}

/// Place of an outstanding reservation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ReservationSlot(u32);
key!(ReservationSlot);

#[derive(Debug, Clone, Copy)]
struct Reservation {
    number: u64,
    row: RowSlot,
    blocks: u64,
    booked_at: Moment,
    detached_at: Option<Moment>,
    stage: Stage,
}

impl Reservation {
    /// Whether it was at least so old at that moment.
    #[inline]
    fn was_as_old(&self, age: Duration, at: Option<Moment>) -> bool {
        let of_then = at.and_then(|at| at.checked_duration_since(self.booked_at));
        of_then.is_some_and(|of_then| of_then >= age)
    }
}

/// What the worker's last report can have seen of a reservation. It only goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Nothing: it was booked since.
    Since,
    /// It may have seen it.
    Before,
    /// It has seen it.
    Seen,
}

/// What is booked on one worker, in three sums: the worker's last report has seen the first, may have seen the second, and
/// cannot have seen the third.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Booked {
    /// In the order in which they were booked,
    all: Chain<ReservationSlot>,
    /// from where on the last report cannot have seen them.
    unseen: Option<ReservationSlot>,
    /// and from where on it need not have seen them.
    unsettled: Option<ReservationSlot>,
    /// The detached ones, in the same order: one that is held must not be in their way.
    detached: Chain<ReservationSlot>,
    /// Seen by the last report.
    pub(crate) seen: Sum,
    /// Booked before the last report, which need not have seen it.
    pub(crate) before: Sum,
    /// Booked since.
    pub(crate) since: Sum,
}

/// Blocks and requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Sum {
    pub(crate) blocks: u64,
    pub(crate) requests: u64,
}

impl Sum {
    const NOTHING: Self = Self {
        blocks: 0,
        requests: 0,
    };

    #[inline]
    fn add(&mut self, blocks: u64) {
        self.blocks = self.blocks.saturating_add(blocks);
        self.requests += 1;
    }

    #[inline]
    fn take(&mut self, blocks: u64) {
        self.requests -= 1;
        self.blocks = if self.requests == 0 {
            0
        } else {
            self.blocks.saturating_sub(blocks)
        };
    }
}

impl Booked {
    const NOTHING: Self = Self {
        all: Chain::EMPTY,
        unseen: None,
        unsettled: None,
        detached: Chain::EMPTY,
        seen: Sum::NOTHING,
        before: Sum::NOTHING,
        since: Sum::NOTHING,
    };

    /// Blocks of all sums.
    #[inline]
    pub(crate) fn blocks(&self) -> u64 {
        self.until_report().saturating_add(self.since.blocks)
    }

    /// Blocks booked before the last report, whether it has seen them or not.
    #[inline]
    pub(crate) fn until_report(&self) -> u64 {
        self.seen.blocks.saturating_add(self.before.blocks)
    }

    /// Requests of all sums.
    #[inline]
    pub(crate) fn requests(&self) -> u64 {
        self.seen.requests + self.before.requests + self.since.requests
    }

    #[inline]
    fn sum(&mut self, stage: Stage) -> &mut Sum {
        match stage {
            Stage::Since => &mut self.since,
            Stage::Before => &mut self.before,
            Stage::Seen => &mut self.seen,
        }
    }
}

impl Reservations {
    /// Nothing booked yet, at the given life of the router.
    pub(crate) fn new(router: u64) -> Self {
        Self {
            router,
            outstanding: Slab::default(),
            by_number: Numbers::default(),
            by_age: Chain::EMPTY,
            age_links: Links::default(),
            row_links: Links::default(),
            detached_links: Links::default(),
            rows: BySlot::new(Booked::NOTHING),
            #[cfg(feature = "metrics")]
            ended: None,
        }
    }

    /// Reservations that are outstanding.
    pub(crate) fn len(&self) -> usize {
        self.by_number.len()
    }

    /// Number of the newest ticket; 0: there was none.
    pub(crate) fn newest(&self) -> u64 {
        self.by_number.last()
    }

    /// Number of the newest ticket that is outstanding on the worker; 0: there is none.
    pub(crate) fn newest_on(&self, row: RowSlot) -> u64 {
        let newest = self.rows.at(row).all.back();
        let newest = newest.and_then(|slot| self.outstanding.get(slot));
        newest.map_or(0, |reservation| reservation.number)
    }

    /// How many tickets of greater numbers are outstanding on the worker. Takes time for each.
    pub(crate) fn count_after(&self, row: RowSlot, number: u64) -> usize {
        let newest = self.rows.at(row).all.back();
        let slots = std::iter::successors(newest, |slot| self.row_links.previous(*slot));
        let numbers = slots.filter_map(|slot| Some(self.outstanding.get(slot)?.number));
        numbers.take_while(|of| *of > number).count()
    }

    /// Whether any is detached, which may expire.
    #[inline]
    pub(crate) fn any_detached(&self) -> bool {
        !self.by_age.is_empty()
    }

    /// What is booked on the worker in `row`.
    #[inline]
    pub(crate) fn booked(&self, row: RowSlot) -> &Booked {
        self.rows.at(row)
    }

    /// Books one request of `blocks` on the worker in `row`; it is held.
    #[inline]
    pub(crate) fn book(&mut self, row: RowSlot, blocks: u64, now: Moment) -> Ticket {
        let number = self.by_number.last() + 1;
        let reservation = Reservation {
            number,
            row,
            blocks,
            booked_at: now,
            detached_at: None,
            stage: Stage::Since,
        };
        let slot = self.outstanding.insert(reservation);
        let booked = &mut self.rows[row];
        booked.since.add(blocks);
        booked.unseen.get_or_insert(slot);
        booked.unsettled.get_or_insert(slot);
        self.row_links.push_back(&mut booked.all, slot);
        self.by_number.push(slot);
        Ticket {
            router: self.router,
            number,
        }
    }

    /// The reservation is no longer held. The row it is on, if it was held.
    pub(crate) fn detach(&mut self, ticket: Ticket, now: Moment) -> Option<RowSlot> {
        let slot = self.find(ticket)?;
        let reservation = self.outstanding.get_mut(slot)?;
        if reservation.detached_at.is_some() {
            return None;
        }
        reservation.detached_at = Some(now);
        let (row, number) = (reservation.row, reservation.number);
        let previous = self.last_before(number, self.rows.at(row).detached);
        let detached = &mut self.rows[row].detached;
        self.detached_links.insert_behind(detached, previous, slot);
        self.age_links.push_back(&mut self.by_age, slot);
        Some(row)
    }

    /// The last of the chain with a lower number. Mostly it is at one of the ends, so it is looked for from both.
    fn last_before(&self, number: u64, chain: Chain<ReservationSlot>) -> Option<ReservationSlot> {
        let lower = |slot| {
            self.outstanding
                .get(slot)
                .is_some_and(|r| r.number < number)
        };
        let (mut front, mut back) = (chain.front(), chain.back());
        let mut before_front = None;
        loop {
            let last = back?;
            if lower(last) {
                return Some(last);
            }
            let first = front?;
            if !lower(first) {
                return before_front;
            }
            before_front = front;
            front = self.detached_links.next(first);
            back = self.detached_links.previous(last);
        }
    }

    /// When those were booked that ended since the last call. The first call begins to note them; whoever makes it goes on to.
    #[cfg(feature = "metrics")]
    pub(crate) fn ended(&mut self) -> std::vec::Drain<'_, Moment> {
        self.ended.get_or_insert_default().drain(..)
    }

    /// Ends the reservation under `ticket`; the row it was on, if it was outstanding.
    #[inline]
    pub(crate) fn release(&mut self, ticket: Ticket) -> Option<RowSlot> {
        let slot = self.find(ticket)?;
        self.end(slot)
    }

    /// Whether this router issued the ticket.
    pub(crate) fn has_issued(&self, ticket: Ticket) -> bool {
        ticket.router == self.router && (1..=self.by_number.last()).contains(&ticket.number)
    }

    /// Whether the ticket is of this life of this router.
    pub(crate) fn is_of_this_router(&self, ticket: Ticket) -> bool {
        ticket.router == self.router
    }

    /// The worker reported: what was booked until then it may have seen. Each reservation is moved once at most.
    pub(crate) fn note_report(&mut self, row: RowSlot, reported_at: Moment) {
        if self.rows.at(row).unseen.is_none() {
            return;
        }
        let booked = &mut self.rows[row];
        while let Some(slot) = booked.unseen
            && let Some(reservation) = self.outstanding.get_mut(slot)
            && reservation.booked_at <= reported_at
        {
            reservation.stage = Stage::Before;
            booked.unseen = self.row_links.next(slot);
            booked.since.take(reservation.blocks);
            booked.before.add(reservation.blocks);
        }
    }

    /// The worker admitted its reservations up to the one with this number, and reported: what it says counts those, and those
    /// that were several times `settle` old. Somebody may hold them still. Each reservation is moved once at most.
    pub(crate) fn note_seen(
        &mut self,
        row: RowSlot,
        number: u64,
        settle: Duration,
        reported_at: Option<Moment>,
    ) {
        if self.rows.at(row).unsettled.is_none() {
            return;
        }
        let after = settle.saturating_mul(SETTLES_TO_BE_SEEN);
        let booked = &mut self.rows[row];
        while let Some(slot) = booked.unsettled
            && let Some(reservation) = self.outstanding.get_mut(slot)
            && (reservation.number <= number || reservation.was_as_old(after, reported_at))
        {
            booked.unsettled = self.row_links.next(slot);
            if booked.unseen == Some(slot) {
                booked.unseen = booked.unsettled;
            }
            booked.sum(reservation.stage).take(reservation.blocks);
            booked.seen.add(reservation.blocks);
            reservation.stage = Stage::Seen;
        }
    }

    /// Ends the worker's detached reservations up to the one with this number, which it admitted; how many that were.
    pub(crate) fn settle_admitted(&mut self, row: RowSlot, number: u64) -> u64 {
        self.end_detached_while(row, |reservation| reservation.number <= number)
    }

    /// Ends the worker's detached reservations that were at least `settle` old when it reported; how many that were.
    pub(crate) fn settle_reported(
        &mut self,
        row: RowSlot,
        settle: Duration,
        reported_at: Moment,
    ) -> u64 {
        self.end_detached_while(row, |reservation| {
            reservation.was_as_old(settle, Some(reported_at))
        })
    }

    /// Ends all reservations of the worker; how many that were.
    pub(crate) fn end_all(&mut self, row: RowSlot) -> u64 {
        let mut ended = 0;
        while let Some(slot) = self.rows.at(row).all.front() {
            self.end(slot);
            ended += 1;
        }
        ended
    }

    /// Ends the reservation that was detached first, if that is at least `ttl` ago; the row it was on.
    pub(crate) fn pop_expired(&mut self, ttl: Duration, now: Moment) -> Option<RowSlot> {
        let slot = self.by_age.front()?;
        let detached_at = self.outstanding.get(slot)?.detached_at?;
        if now.saturating_duration_since(detached_at) < ttl {
            return None;
        }
        self.end(slot)
    }

    /// When the reservation that was detached first expires; `None`: never.
    pub(crate) fn next_expiry(&self, ttl: Duration) -> Option<Moment> {
        let first = self.outstanding.get(self.by_age.front()?)?;
        first.detached_at?.checked_add(ttl)
    }

    /// The worker moved to another row.
    pub(crate) fn move_row(&mut self, from: RowSlot, to: RowSlot) {
        let booked = *self.rows.at(from);
        if booked.requests() == 0 {
            return;
        }
        self.rows.move_value(from, to);
        let mut next = booked.all.front();
        while let Some(slot) = next {
            if let Some(reservation) = self.outstanding.get_mut(slot) {
                reservation.row = to;
            }
            next = self.row_links.next(slot);
        }
    }

    /// There are no rows from this number on; gives back what is not needed.
    pub(crate) fn shrink(&mut self, rows: u32) {
        self.rows.truncate(rows);
        self.by_number.shrink();
    }

    fn find(&self, ticket: Ticket) -> Option<ReservationSlot> {
        if ticket.router != self.router {
            return None;
        }
        self.by_number.get(ticket.number)
    }

    fn end_detached_while(&mut self, row: RowSlot, ends: impl Fn(&Reservation) -> bool) -> u64 {
        let mut ended = 0;
        while let Some(slot) = self.rows.at(row).detached.front()
            && self.outstanding.get(slot).is_some_and(&ends)
        {
            self.end(slot);
            ended += 1;
        }
        ended
    }

    #[inline]
    fn end(&mut self, slot: ReservationSlot) -> Option<RowSlot> {
        let reservation = self.outstanding.remove(slot)?;
        let booked = &mut self.rows[reservation.row];
        booked.sum(reservation.stage).take(reservation.blocks);
        if booked.unseen == Some(slot) {
            booked.unseen = self.row_links.next(slot);
        }
        if booked.unsettled == Some(slot) {
            booked.unsettled = self.row_links.next(slot);
        }
        self.row_links.remove(&mut booked.all, slot);
        if reservation.detached_at.is_some() {
            self.detached_links.remove(&mut booked.detached, slot);
            self.age_links.remove(&mut self.by_age, slot);
        }
        self.by_number.remove(reservation.number);
        #[cfg(feature = "metrics")]
        if let Some(ended) = &mut self.ended {
            ended.push(reservation.booked_at);
        }
        if self.by_number.len() == 0 && self.outstanding.slots() > FEW {
            self.give_back();
        }
        Some(reservation.row)
    }

    /// Nothing is outstanding: what many were kept in is given back.
    #[cold]
    fn give_back(&mut self) {
        self.outstanding = Slab::default();
        self.by_number.shrink();
        self.age_links = Links::default();
        self.row_links = Links::default();
        self.detached_links = Links::default();
    }
}

/// So many times `settle` must a request be on its worker until what that has to compute is taken to be what it says. A guard ends
/// most before: being late costs little (16 engines, one router, held until the end: mean time to the first token 129, 129 and
/// 132 ms at 2, 3 and 4 times on the built-in trace, 146 without), and being early much (requests 100 ms on their way, Mooncake: 497 ms
/// at once, 440 at 2 and more; 140 ms: 522 at 2, 481 at 3 and 4).
const SETTLES_TO_BE_SEEN: u32 = 3;

/// Reservations whose memory is kept once they have ended: 0.2 MiB.
const FEW: u32 = 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sans_io::slots::Key;

    fn now() -> Moment {
        actix::clock::Instant::now().into_std().into()
    }

    fn row(number: u32) -> RowSlot {
        RowSlot::new(number)
    }

    const TTL: Duration = Duration::from_secs(30);

    fn booked(reservations: &Reservations, number: u32) -> (u64, u64) {
        let booked = reservations.booked(row(number));
        (booked.blocks(), booked.requests())
    }

    #[test]
    fn reservations_end_by_release_watermark_age_and_expiry_and_leave_nothing_behind() {
        let start = now();
        let at = |ms| start.checked_add(Duration::from_millis(ms)).unwrap();
        let mut reservations = Reservations::new(9);
        let tickets: Vec<_> = (0..5)
            .map(|n| reservations.book(row(n as u32 % 2), 10 + n, at(n)))
            .collect();
        assert_eq!(booked(&reservations, 0), (36, 3));
        // Held: nothing is seen, and nothing expires.
        assert_eq!(reservations.settle_admitted(row(0), 5), 0);
        assert_eq!(reservations.settle_reported(row(0), TTL, at(60_000)), 0);
        assert_eq!(reservations.pop_expired(TTL, at(60_000)), None);
        for ticket in &tickets {
            let on = row((ticket.number as u32 - 1) % 2);
            assert_eq!(reservations.detach(*ticket, at(5)), Some(on));
            assert_eq!(reservations.detach(*ticket, at(9)), None);
        }

        assert_eq!(reservations.release(tickets[2]), Some(row(0)));
        assert_eq!(reservations.release(tickets[2]), None);
        let foreign = Ticket {
            router: 8,
            number: 1,
        };
        assert_eq!(reservations.release(foreign), None);
        assert_eq!(reservations.detach(foreign, at(9)), None);
        assert_eq!(reservations.settle_admitted(row(1), tickets[1].number), 1);
        assert_eq!(booked(&reservations, 1).1, 1);
        assert_eq!(
            reservations.settle_reported(row(0), Duration::from_millis(3), at(3)),
            1
        );
        assert_eq!(reservations.pop_expired(TTL, at(30_004)), None);
        assert_eq!(reservations.pop_expired(TTL, at(30_005)), Some(row(1)));
        assert_eq!(reservations.pop_expired(TTL, at(30_005)), Some(row(0)));
        assert_eq!(reservations.len(), 0);
        assert_eq!(booked(&reservations, 0), (0, 0));
        assert!(reservations.by_age.is_empty());
        assert_eq!(reservations.outstanding.iter().count(), 0);
    }

    #[test]
    fn detached_in_whatever_order_they_are_seen_in_the_order_of_their_numbers() {
        let now = now();
        let mut rng = fastrand::Rng::with_seed(8);
        for len in 0..40_u64 {
            let mut reservations = Reservations::new(9);
            let mut tickets: Vec<_> = (0..len)
                .map(|_| reservations.book(row(0), 1, now))
                .collect();
            rng.shuffle(&mut tickets);
            for ticket in tickets {
                reservations.detach(ticket, now);
            }
            for number in 1..=len {
                assert_eq!(reservations.settle_admitted(row(0), number), 1);
            }
        }
    }

    #[test]
    fn a_report_moves_what_it_may_have_seen_once() {
        let start = now();
        let at = |ms| start.checked_add(Duration::from_millis(ms)).unwrap();
        let mut reservations = Reservations::new(9);
        let tickets: Vec<_> = (1..=4)
            .map(|n| reservations.book(row(0), 1 << n, at(n)))
            .collect();
        let sums = |reservations: &Reservations| {
            let booked = reservations.booked(row(0));
            (booked.before.blocks, booked.since.blocks)
        };
        assert_eq!(sums(&reservations), (0, 30));
        reservations.note_report(row(0), at(2));
        assert_eq!(sums(&reservations), (6, 24));
        reservations.note_report(row(0), at(1));
        reservations.release(tickets[0]);
        reservations.release(tickets[2]);
        assert_eq!(sums(&reservations), (4, 16));
        reservations.note_report(row(0), at(9));
        assert_eq!(sums(&reservations), (20, 0));
        reservations.move_row(row(0), row(7));
        assert_eq!(reservations.release(tickets[3]), Some(row(7)));
        assert_eq!(reservations.end_all(row(7)), 1);
        assert_eq!(reservations.end_all(row(0)), 0);
        assert!(reservations.booked(row(7)).unseen.is_none());
    }

    #[test]
    fn what_many_were_kept_in_is_given_back() {
        let now = now();
        let mut reservations = Reservations::new(9);
        for _ in 0..=FEW {
            reservations.book(row(0), 1, now);
        }
        assert_eq!(reservations.end_all(row(0)), u64::from(FEW) + 1);
        assert_eq!(reservations.outstanding.slots(), 0);
        let next = reservations.book(row(0), 1, now);
        assert_eq!(next.number, u64::from(FEW) + 2);
        assert_eq!(reservations.release(next), Some(row(0)));
    }

    #[test]
    fn tickets_that_were_never_issued_are_told_apart() {
        let mut reservations = Reservations::new(9);
        let ticket = reservations.book(row(0), 1, now());
        assert!(reservations.has_issued(ticket));
        for (router, number) in [(9, 2), (9, 0), (9, u64::MAX), (8, 1)] {
            assert!(!reservations.has_issued(Ticket { router, number }));
        }
    }

    #[test]
    fn hostile_sizes_saturate_and_come_back_to_zero() {
        let now = now();
        let mut reservations = Reservations::new(9);
        reservations.book(row(0), u64::MAX, now);
        reservations.book(row(0), u64::MAX, now);
        assert_eq!(booked(&reservations, 0), (u64::MAX, 2));
        assert_eq!(reservations.end_all(row(0)), 2);
        assert_eq!(booked(&reservations, 0), (0, 0));
    }
}
