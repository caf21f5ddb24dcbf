//! Workers that did not take a request, until they take one.

use std::{collections::HashMap, time::Duration};

use foldhash::fast::RandomState;

use super::{moment::Moment, slots::RowSlot};

/// Takes room for the workers in it alone.
///
/// ```text
///         a request fails             its time is over                a request is booked
///  (none) ───────────────▶ cooling ───────────────────▶ on probation ─────────────────────▶ tried
///    ▲                      ▲  ▲                              ▲      the request expires      │ │
///    │                      │  └── a later request fails: twice as long ───────────────────────┘ │
///    └──────────────────────┴── a later request ends well ────────────────────────────────────────┘
/// ```
///
/// *Later* are requests booked after the cooling began: what comes of the others was decided before it.
#[derive(Debug, Default)]
pub(super) struct Cooling {
    workers: HashMap<RowSlot, Cooled, RandomState>,
}

/// One worker that cools or did.
#[derive(Debug, Clone, Copy)]
struct Cooled {
    /// Number of the newest ticket when the cooling began: later ones have greater numbers.
    began_after: u64,
    length: Duration,
    until: Moment,
    /// `until` has come: one request at a time is tried.
    on_probation: bool,
}

impl Cooling {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.workers.is_empty()
    }

    /// The request under the ticket of this number failed; `newest` is the number of the newest ticket. How long and until
    /// when the worker cools by that.
    pub(super) fn fail(
        &mut self,
        row: RowSlot,
        number: u64,
        newest: u64,
        now: Moment,
    ) -> Option<(Duration, Moment)> {
        let length = match self.workers.get(&row) {
            None => SHORTEST,
            Some(cooled) if number > cooled.began_after => LONGEST.min(2 * cooled.length),
            Some(_) => return None,
        };
        // Where time ends it is over at once.
        let until = now.checked_add(length).unwrap_or(now);
        let cooled = Cooled {
            began_after: newest,
            length,
            until,
            on_probation: false,
        };
        self.workers.insert(row, cooled);
        Some((length, until))
    }

    /// The request under the ticket of this number ended well.
    pub(super) fn succeed(&mut self, row: RowSlot, number: u64) {
        if self.began_after(row).is_some_and(|after| number > after) {
            self.forget(row);
        }
    }

    /// The last ticket that says nothing of whether the worker, which cools or did, takes requests.
    pub(super) fn began_after(&self, row: RowSlot) -> Option<u64> {
        self.workers.get(&row).map(|cooled| cooled.began_after)
    }

    /// Whether the worker gets no request. `newest`: number of the newest ticket that is outstanding there.
    pub(super) fn keeps_out(&self, row: RowSlot, newest: u64) -> bool {
        let cooled = self.workers.get(&row);
        cooled.is_some_and(|cooled| !cooled.on_probation || newest > cooled.began_after)
    }

    /// Until when the worker cools.
    pub(super) fn until(&self, row: RowSlot) -> Option<Moment> {
        self.workers.get(&row).map(|cooled| cooled.until)
    }

    /// Looks at the clock. When it is to be looked at again for this worker.
    pub(super) fn look_at(&mut self, row: RowSlot, now: Moment) -> Option<Moment> {
        let cooled = self.workers.get_mut(&row)?;
        cooled.on_probation |= cooled.until <= now;
        (!cooled.on_probation).then_some(cooled.until)
    }

    /// The worker is gone, lives anew, or takes requests.
    pub(super) fn forget(&mut self, row: RowSlot) {
        if self.workers.remove(&row).is_some() && self.workers.is_empty() {
            self.workers = HashMap::default();
        }
    }

    /// The worker moved to another row.
    pub(super) fn move_row(&mut self, from: RowSlot, to: RowSlot) {
        if let Some(cooled) = self.workers.remove(&from) {
            self.workers.insert(to, cooled);
        }
    }

    /// Gives back what is not needed.
    pub(super) fn shrink(&mut self) {
        self.workers.shrink_to(2 * self.workers.len());
    }
}

/// After one refusal: as long as it takes an engine that is overrun to work off a few requests.
const SHORTEST: Duration = Duration::from_millis(500);
/// However often it fails: an engine that was started anew is found within this time, at the price of one request.
const LONGEST: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sans_io::slots::Key;

    #[test]
    fn it_doubles_by_later_requests_only_up_to_the_longest_and_ends_by_them() {
        let now = Moment::from(actix::clock::Instant::now().into_std());
        let row = RowSlot::new(3);
        let mut cooling = Cooling::default();
        let mut fail = |number, newest| {
            let cools = cooling.fail(row, number, newest, now);
            cools.map(|(length, _)| length.as_millis())
        };
        assert_eq!(fail(1, 4), Some(500));
        assert_eq!([2, 3, 4].map(|number| fail(number, 4)), [None; 3]);
        let lengths = (5..12).map(|number| fail(number, number).unwrap());
        let lengths: Vec<_> = lengths.collect();
        assert_eq!(
            lengths,
            [1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000]
        );

        cooling.succeed(row, 11);
        assert_eq!(cooling.look_at(row, now), now.checked_add(LONGEST));
        assert!(cooling.keeps_out(row, 0));
        assert_eq!(
            cooling.look_at(row, now.checked_add(LONGEST).unwrap()),
            None
        );
        assert!(!cooling.keeps_out(row, 11) && cooling.keeps_out(row, 12));
        cooling.move_row(row, RowSlot::new(0));
        cooling.succeed(RowSlot::new(0), 12);
        assert!(cooling.is_empty());
    }
}
