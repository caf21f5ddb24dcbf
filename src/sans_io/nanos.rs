//! The time of one link, small enough to be kept for every worker several times over.

use std::{num::NonZeroU64, time::Duration};

/// A moment: nanoseconds since its link was made. 584 years after that are the end of time: what would be later is never,
/// which is `None`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Nanos(NonZeroU64);

impl Nanos {
    /// When the link was made.
    pub(super) const START: Self = Self(NonZeroU64::MIN);

    /// So long after the link was made.
    #[inline]
    pub(super) fn at(elapsed: Duration) -> Self {
        Self(NonZeroU64::MIN.saturating_add(span(elapsed)))
    }

    /// Later by a span; `None`: never.
    #[inline]
    pub(super) fn after(self, span: u64) -> Option<Self> {
        self.0.checked_add(span).map(Self)
    }

    /// Nanoseconds from an earlier moment to this one.
    #[inline]
    pub(super) fn since(self, earlier: Self) -> u64 {
        self.0.get().saturating_sub(earlier.0.get())
    }

    /// How long after the link was made.
    #[inline]
    pub(super) fn elapsed(self) -> Duration {
        Duration::from_nanos(self.since(Self::START))
    }
}

/// As many nanoseconds as fit: 584 years or more are for ever.
#[inline]
pub(super) fn span(duration: Duration) -> u64 {
    let whole = duration.as_secs().saturating_mul(1_000_000_000);
    whole.saturating_add(u64::from(duration.subsec_nanos()))
}

/// The earlier of two moments that may never come.
#[inline]
pub(super) fn earliest(one: Option<Nanos>, other: Option<Nanos>) -> Option<Nanos> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

/// Whether a moment has come.
#[inline]
pub(super) fn has_come(at: Option<Nanos>, now: Nanos) -> bool {
    at.is_some_and(|at| at <= now)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_later_than_the_end_of_time_never_comes() {
        let start = Nanos::START;
        assert_eq!(Nanos::at(Duration::ZERO), start);
        assert_eq!(start.after(span(Duration::MAX)), None);
        let end = start.after(u64::MAX - 1);
        assert_eq!(end, Some(Nanos::at(Duration::MAX)));
        assert_eq!(end.and_then(|end| end.after(1)), None);
        let second = Nanos::at(Duration::from_secs(1));
        assert_eq!(
            (second.since(start), start.since(second)),
            (1_000_000_000, 0)
        );
        assert_eq!(second.elapsed(), Duration::from_secs(1));
    }

    #[test]
    fn never_is_later_than_everything() {
        let (start, end) = (Some(Nanos::START), Some(Nanos::at(Duration::MAX)));
        assert_eq!(earliest(end, start), start);
        assert_eq!(earliest(None, end), end);
        assert_eq!(earliest(None, None), None);
        assert!(has_come(start, Nanos::START) && !has_come(end, Nanos::START));
        assert!(!has_come(None, Nanos::at(Duration::MAX)));
    }
}
