//! Requests placed but not yet seen in a report.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use foldhash::fast::RandomState;

use super::slots::{Chain, Links};
use crate::snapshot::Ticket;

/// All outstanding bookings of one router: by number, by worker and by age.
///
/// Workers are row numbers of the load table. Everything is constant time, and nothing is kept of a booking that ended.
#[derive(Debug)]
pub(crate) struct Reservations {
    router: u64,
    issued: u64,
    outstanding: Vec<Reservation>,
    free: Vec<u32>,
    by_number: HashMap<u64, u32, RandomState>,
    age_links: Links,
    by_age: Chain,
    row_links: Links,
    rows: Vec<Booked>,
}

#[derive(Debug, Clone, Copy)]
struct Reservation {
    number: u64,
    row: u32,
    blocks: u64,
    booked_at: Instant,
}

/// What is booked on one worker.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Booked {
    chain: Chain,
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
            outstanding: Vec::new(),
            free: Vec::new(),
            by_number: HashMap::default(),
            age_links: Links::default(),
            by_age: Chain::EMPTY,
            row_links: Links::default(),
            rows: Vec::new(),
        }
    }

    /// Bookings that are outstanding.
    pub(crate) fn len(&self) -> usize {
        self.by_number.len()
    }

    /// What is booked on the worker in `row`.
    #[inline]
    pub(crate) fn booked(&self, row: u32) -> Booked {
        self.rows
            .get(row as usize)
            .copied()
            .unwrap_or(Booked::NOTHING)
    }

    /// Books one request of `blocks` on the worker in `row`.
    pub(crate) fn book(&mut self, row: u32, blocks: u64, now: Instant) -> Ticket {
        self.issued += 1;
        let reservation = Reservation {
            number: self.issued,
            row,
            blocks,
            booked_at: now,
        };
        let place = if let Some(place) = self.free.pop() {
            self.outstanding[place as usize] = reservation;
            place
        } else {
            self.outstanding.push(reservation);
            self.outstanding.len() as u32 - 1
        };
        if self.rows.len() <= row as usize {
            self.rows.resize(row as usize + 1, Booked::NOTHING);
        }
        let booked = &mut self.rows[row as usize];
        booked.blocks = booked.blocks.saturating_add(blocks);
        booked.requests += 1;
        self.row_links.push_back(&mut booked.chain, place);
        self.age_links.push_back(&mut self.by_age, place);
        self.by_number.insert(reservation.number, place);
        Ticket {
            router: self.router,
            number: reservation.number,
        }
    }

    /// Ends the booking under `ticket`; the row it was on, if it was outstanding.
    pub(crate) fn release(&mut self, ticket: Ticket) -> Option<u32> {
        if ticket.router != self.router {
            return None;
        }
        let place = *self.by_number.get(&ticket.number)?;
        Some(self.end(place))
    }

    /// Whether this router issued the ticket.
    pub(crate) fn has_issued(&self, ticket: Ticket) -> bool {
        ticket.router == self.router && (1..=self.issued).contains(&ticket.number)
    }

    /// Whether the ticket is of this life of this router.
    pub(crate) fn is_of_this_router(&self, ticket: Ticket) -> bool {
        ticket.router == self.router
    }

    /// Ends the worker's bookings up to the one it admitted; how many that were.
    pub(crate) fn settle_admitted(&mut self, row: u32, ticket: Ticket) -> u64 {
        self.end_while(row, |reservation| reservation.number <= ticket.number)
    }

    /// Ends the worker's bookings that are at least `settle` old; how many that were.
    pub(crate) fn settle_reported(&mut self, row: u32, settle: Duration, now: Instant) -> u64 {
        self.end_while(row, |reservation| {
            now.saturating_duration_since(reservation.booked_at) >= settle
        })
    }

    /// Ends all bookings of the worker; how many that were.
    pub(crate) fn end_all(&mut self, row: u32) -> u64 {
        self.end_while(row, |_| true)
    }

    /// Ends the oldest booking if it is at least `ttl` old; the row it was on.
    pub(crate) fn pop_expired(&mut self, ttl: Duration, now: Instant) -> Option<u32> {
        let place = self.by_age.front()?;
        let age = now.saturating_duration_since(self.outstanding[place as usize].booked_at);
        (age >= ttl).then(|| self.end(place))
    }

    fn end_while(&mut self, row: u32, ends: impl Fn(Reservation) -> bool) -> u64 {
        let mut ended = 0;
        while let Some(place) = self.booked(row).chain.front() {
            if !ends(self.outstanding[place as usize]) {
                break;
            }
            self.end(place);
            ended += 1;
        }
        ended
    }

    fn end(&mut self, place: u32) -> u32 {
        let reservation = self.outstanding[place as usize];
        let booked = &mut self.rows[reservation.row as usize];
        booked.requests -= 1;
        booked.blocks = if booked.requests == 0 {
            0
        } else {
            booked.blocks.saturating_sub(reservation.blocks)
        };
        self.row_links.remove(&mut booked.chain, place);
        self.age_links.remove(&mut self.by_age, place);
        self.by_number.remove(&reservation.number);
        self.free.push(place);
        reservation.row
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> Instant {
        actix::clock::Instant::now().into_std()
    }

    const TTL: Duration = Duration::from_secs(30);

    #[test]
    fn bookings_end_by_release_watermark_age_and_expiry_and_leave_nothing_behind() {
        let start = now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut reservations = Reservations::new(9);
        let tickets: Vec<_> = (0..5)
            .map(|n| reservations.book(n as u32 % 2, 10 + n, at(n)))
            .collect();
        let booked = reservations.booked(0);
        assert_eq!((booked.blocks, booked.requests), (36, 3));

        assert_eq!(reservations.release(tickets[2]), Some(0));
        assert_eq!(reservations.release(tickets[2]), None);
        let foreign = Ticket {
            router: 8,
            number: 1,
        };
        assert_eq!(reservations.release(foreign), None);
        assert_eq!(reservations.settle_admitted(1, tickets[1]), 1);
        assert_eq!(reservations.booked(1).requests, 1);
        assert_eq!(
            reservations.settle_reported(0, Duration::from_millis(3), at(3)),
            1
        );
        assert_eq!(reservations.pop_expired(TTL, at(30_002)), None);
        assert_eq!(reservations.pop_expired(TTL, at(30_004)), Some(1));
        assert_eq!(reservations.pop_expired(TTL, at(30_004)), Some(0));
        assert_eq!(reservations.len(), 0);
        let booked = reservations.booked(0);
        assert_eq!((booked.blocks, booked.requests), (0, 0));
        assert!(reservations.by_age.is_empty());
        assert_eq!(reservations.free.len(), reservations.outstanding.len());
    }

    #[test]
    fn tickets_that_were_never_issued_are_told_apart() {
        let mut reservations = Reservations::new(9);
        let ticket = reservations.book(0, 1, now());
        assert!(reservations.has_issued(ticket));
        for (router, number) in [(9, 2), (9, 0), (9, u64::MAX), (8, 1)] {
            assert!(!reservations.has_issued(Ticket { router, number }));
        }
    }

    #[test]
    fn hostile_sizes_saturate_and_come_back_to_zero() {
        let now = now();
        let mut reservations = Reservations::new(9);
        reservations.book(0, u64::MAX, now);
        reservations.book(0, u64::MAX, now);
        assert_eq!(reservations.booked(0).blocks, u64::MAX);
        assert_eq!(reservations.end_all(0), 2);
        assert_eq!(reservations.booked(0).blocks, 0);
    }
}
