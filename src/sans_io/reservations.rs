//! Requests placed but not yet seen in a report.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use foldhash::fast::RandomState;

use super::slots::{BySlot, Chain, Links, RowSlot, Slab, key};
use crate::snapshot::Ticket;

/// All outstanding reservations of one router: by number, by worker and by age.
///
/// Workers are row numbers of the load table. Everything is constant time, and nothing is kept of a reservation that ended.
#[derive(Debug)]
pub(crate) struct Reservations {
    router: u64,
    issued: u64,
    outstanding: Slab<ReservationSlot, Reservation>,
    by_number: HashMap<u64, ReservationSlot, RandomState>,
    age_links: Links<ReservationSlot>,
    by_age: Chain<ReservationSlot>,
    row_links: Links<ReservationSlot>,
    rows: BySlot<RowSlot, Booked>,
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
    booked_at: Instant,
}

/// What is booked on one worker.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Booked {
    chain: Chain<ReservationSlot>,
    /// Blocks that the requests will need.
    pub(crate) blocks: u64,
    /// Requests.
    pub(crate) requests: u64,
}

impl Booked {
    const NOTHING: Self = Self {
        chain: Chain::EMPTY,
        blocks: 0,
        requests: 0,
    };
}

impl Reservations {
    /// Nothing booked yet, at the given life of the router.
    pub(crate) fn new(router: u64) -> Self {
        Self {
            router,
            issued: 0,
            outstanding: Slab::default(),
            by_number: HashMap::default(),
            age_links: Links::default(),
            by_age: Chain::EMPTY,
            row_links: Links::default(),
            rows: BySlot::new(Booked::NOTHING),
        }
    }

    /// Reservations that are outstanding.
    pub(crate) fn len(&self) -> usize {
        self.by_number.len()
    }

    /// What is booked on the worker in `row`.
    #[inline]
    pub(crate) fn booked(&self, row: RowSlot) -> Booked {
        self.rows[row]
    }

    /// Books one request of `blocks` on the worker in `row`.
    pub(crate) fn book(&mut self, row: RowSlot, blocks: u64, now: Instant) -> Ticket {
        self.issued += 1;
        let reservation = Reservation {
            number: self.issued,
            row,
            blocks,
            booked_at: now,
        };
        let slot = self.outstanding.insert(reservation);
        let booked = &mut self.rows[row];
        booked.blocks = booked.blocks.saturating_add(blocks);
        booked.requests += 1;
        self.row_links.push_back(&mut booked.chain, slot);
        self.age_links.push_back(&mut self.by_age, slot);
        self.by_number.insert(reservation.number, slot);
        Ticket {
            router: self.router,
            number: reservation.number,
        }
    }

    /// Ends the reservation under `ticket`; the row it was on, if it was outstanding.
    pub(crate) fn release(&mut self, ticket: Ticket) -> Option<RowSlot> {
        if ticket.router != self.router {
            return None;
        }
        let slot = *self.by_number.get(&ticket.number)?;
        self.end(slot)
    }

    /// Whether this router issued the ticket.
    pub(crate) fn has_issued(&self, ticket: Ticket) -> bool {
        ticket.router == self.router && (1..=self.issued).contains(&ticket.number)
    }

    /// Whether the ticket is of this life of this router.
    pub(crate) fn is_of_this_router(&self, ticket: Ticket) -> bool {
        ticket.router == self.router
    }

    /// Ends the worker's reservations up to the one it admitted; how many that were.
    pub(crate) fn settle_admitted(&mut self, row: RowSlot, ticket: Ticket) -> u64 {
        self.end_while(row, |reservation| reservation.number <= ticket.number)
    }

    /// Ends the worker's reservations that are at least `settle` old; how many that were.
    pub(crate) fn settle_reported(&mut self, row: RowSlot, settle: Duration, now: Instant) -> u64 {
        self.end_while(row, |reservation| {
            now.saturating_duration_since(reservation.booked_at) >= settle
        })
    }

    /// Ends all reservations of the worker; how many that were.
    pub(crate) fn end_all(&mut self, row: RowSlot) -> u64 {
        self.end_while(row, |_| true)
    }

    /// Ends the oldest reservation if it is at least `ttl` old; the row it was on.
    pub(crate) fn pop_expired(&mut self, ttl: Duration, now: Instant) -> Option<RowSlot> {
        let slot = self.by_age.front()?;
        let oldest = self.outstanding.get(slot)?;
        if now.saturating_duration_since(oldest.booked_at) < ttl {
            return None;
        }
        self.end(slot)
    }

    fn end_while(&mut self, row: RowSlot, ends: impl Fn(&Reservation) -> bool) -> u64 {
        let mut ended = 0;
        while let Some(slot) = self.booked(row).chain.front()
            && self.outstanding.get(slot).is_some_and(&ends)
        {
            self.end(slot);
            ended += 1;
        }
        ended
    }

    fn end(&mut self, slot: ReservationSlot) -> Option<RowSlot> {
        let reservation = self.outstanding.remove(slot)?;
        let booked = &mut self.rows[reservation.row];
        booked.requests -= 1;
        booked.blocks = if booked.requests == 0 {
            0
        } else {
            booked.blocks.saturating_sub(reservation.blocks)
        };
        self.row_links.remove(&mut booked.chain, slot);
        self.age_links.remove(&mut self.by_age, slot);
        self.by_number.remove(&reservation.number);
        Some(reservation.row)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sans_io::slots::Key;

    fn now() -> Instant {
        actix::clock::Instant::now().into_std()
    }

    fn row(number: u32) -> RowSlot {
        RowSlot::new(number)
    }

    const TTL: Duration = Duration::from_secs(30);

    #[test]
    fn reservations_end_by_release_watermark_age_and_expiry_and_leave_nothing_behind() {
        let start = now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut reservations = Reservations::new(9);
        let tickets: Vec<_> = (0..5)
            .map(|n| reservations.book(row(n as u32 % 2), 10 + n, at(n)))
            .collect();
        let booked = reservations.booked(row(0));
        assert_eq!((booked.blocks, booked.requests), (36, 3));

        assert_eq!(reservations.release(tickets[2]), Some(row(0)));
        assert_eq!(reservations.release(tickets[2]), None);
        let foreign = Ticket {
            router: 8,
            number: 1,
        };
        assert_eq!(reservations.release(foreign), None);
        assert_eq!(reservations.settle_admitted(row(1), tickets[1]), 1);
        assert_eq!(reservations.booked(row(1)).requests, 1);
        assert_eq!(
            reservations.settle_reported(row(0), Duration::from_millis(3), at(3)),
            1
        );
        assert_eq!(reservations.pop_expired(TTL, at(30_002)), None);
        assert_eq!(reservations.pop_expired(TTL, at(30_004)), Some(row(1)));
        assert_eq!(reservations.pop_expired(TTL, at(30_004)), Some(row(0)));
        assert_eq!(reservations.len(), 0);
        let booked = reservations.booked(row(0));
        assert_eq!((booked.blocks, booked.requests), (0, 0));
        assert!(reservations.by_age.is_empty());
        assert_eq!(reservations.outstanding.iter().count(), 0);
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
        assert_eq!(reservations.booked(row(0)).blocks, u64::MAX);
        assert_eq!(reservations.end_all(row(0)), 2);
        assert_eq!(reservations.booked(row(0)).blocks, 0);
    }
}
