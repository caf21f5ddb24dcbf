//! A moment in half the room of an [`Instant`], to be kept for every worker.

use std::{
    num::NonZeroU64,
    sync::OnceLock,
    time::{Duration, Instant},
};

use super::nanos::span;

/// A moment: nanoseconds from 292 years before the first one of this process to as long after it. What is earlier or later
/// counts as that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment(NonZeroU64);

/// As those of an [`Instant`].
impl Moment {
    #[inline]
    pub(super) fn checked_add(self, time: Duration) -> Option<Self> {
        self.0.checked_add(span(time)).map(Self)
    }

    #[inline]
    pub(super) fn checked_sub(self, time: Duration) -> Option<Self> {
        let nanos = self.0.get().checked_sub(span(time))?;
        NonZeroU64::new(nanos).map(Self)
    }

    #[inline]
    pub(super) fn checked_duration_since(self, earlier: Self) -> Option<Duration> {
        let nanos = self.0.get().checked_sub(earlier.0.get());
        nanos.map(Duration::from_nanos)
    }

    #[inline]
    pub(super) fn saturating_duration_since(self, earlier: Self) -> Duration {
        self.checked_duration_since(earlier).unwrap_or_default()
    }
}

impl Moment {
    /// As an [`Instant`], if there is one.
    pub(super) fn instant(self) -> Option<Instant> {
        let first = *FIRST.get()?;
        let nanos = self.0.get();
        match nanos.checked_sub(MIDDLE) {
            Some(after) => first.checked_add(Duration::from_nanos(after)),
            None => first.checked_sub(Duration::from_nanos(MIDDLE - nanos)),
        }
    }
}

impl From<Instant> for Moment {
    #[inline]
    fn from(at: Instant) -> Self {
        let first = *FIRST.get_or_init(|| at);
        let nanos = match at.checked_duration_since(first) {
            Some(after) => MIDDLE.saturating_add(span(after)),
            None => MIDDLE.saturating_sub(span(first.saturating_duration_since(at))),
        };
        Self(NonZeroU64::new(nanos).unwrap_or(NonZeroU64::MIN))
    }
}

/// The moment of the last instant that was asked for, which mostly is asked for again.
#[derive(Debug, Default)]
pub(super) struct LastMoment(Option<(Instant, Moment)>);

impl LastMoment {
    #[inline]
    pub(super) fn of(&mut self, at: Instant) -> Moment {
        match self.0 {
            Some((last, moment)) if last == at => moment,
            _ => self.set(at),
        }
    }

    #[inline(never)]
    fn set(&mut self, at: Instant) -> Moment {
        let moment = at.into();
        self.0 = Some((at, moment));
        moment
    }
}

/// The first instant of this process that became a moment.
static FIRST: OnceLock<Instant> = OnceLock::new();
const MIDDLE: u64 = 1 << 63;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_as_far_apart_as_their_instants_and_in_their_order() {
        let now = actix::clock::Instant::now().into_std();
        let spans = [1, 1_500_000_000, 250 * YEAR].map(Duration::from_nanos);
        let earlier = spans.iter().rev().filter_map(|span| now.checked_sub(*span));
        let later = spans.iter().filter_map(|span| now.checked_add(*span));
        let all: Vec<_> = earlier.chain([now]).chain(later).collect();
        let moments: Vec<_> = all.iter().map(|at| Moment::from(*at)).collect();
        assert!(moments.is_sorted_by(|one, other| one < other));
        for (at, moment) in all.iter().zip(&moments) {
            for (earlier, before) in all.iter().zip(&moments) {
                let apart = at.checked_duration_since(*earlier);
                assert_eq!(moment.checked_duration_since(*before), apart);
                if let Some(apart) = apart {
                    assert_eq!(before.checked_add(apart), Some(*moment));
                    assert_eq!(moment.checked_sub(apart), Some(*before));
                }
            }
            assert_eq!(moment.checked_sub(Duration::MAX), None);
            assert_eq!(moment.checked_add(Duration::MAX), None);
        }
        for (at, moment) in all.iter().zip(&moments) {
            assert_eq!(moment.instant(), Some(*at));
        }
        let mut last = LastMoment::default();
        for at in [now, now, all[0], now] {
            assert_eq!(last.of(at), Moment::from(at));
        }
    }

    const YEAR: u64 = 31_557_600_000_000_000;
}
