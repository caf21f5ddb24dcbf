//! What a router has of a worker, and how much a report differs from it.

use super::{
    packed::Figures,
    reports::{Before, Report},
    slots::{Renumbering, Slab, key},
};
use crate::config::Coalescing;

/// What the router acknowledged, or will have once the snapshot that is out is acknowledged.
///
/// An older value, which is kept while the window is open, is the number of its place: half the room of an `enum`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AtRouter(u32);

impl AtRouter {
    pub(super) const NOTHING: Self = Self(u32::MAX);
    /// A value of a life that has ended.
    pub(super) const OTHER_LIFE: Self = Self(u32::MAX - 1);
    /// A delivery failed: it may have the value or not.
    pub(super) const UNKNOWN: Self = Self(u32::MAX - 2);
    /// The newest value: no window is open.
    pub(super) const NEWEST: Self = Self(u32::MAX - 3);

    /// The place of an older value.
    #[inline]
    pub(super) fn older(self) -> Option<OlderSlot> {
        (self.0 < Self::NEWEST.0).then_some(OlderSlot(self.0))
    }
}

impl From<OlderSlot> for AtRouter {
    #[inline]
    fn from(place: OlderSlot) -> Self {
        Self(place.0)
    }
}

/// The values that routers have and workers have left behind, kept while windows are open.
#[derive(Debug, Default)]
pub(super) struct OlderValues {
    values: Slab<OlderSlot, Before>,
}

/// Place of an older value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OlderSlot(u32);
key!(OlderSlot);

impl OlderValues {
    pub(super) fn keep(&mut self, value: Before) -> AtRouter {
        self.values.insert(value).into()
    }

    /// Gives memory back; the slots have other numbers afterwards.
    pub(super) fn compact(&mut self) -> Option<Renumbering<OlderSlot>> {
        self.values.compact()
    }

    #[inline]
    pub(super) fn at(&self, slot: OlderSlot) -> Option<&Before> {
        self.values.get(slot)
    }

    pub(super) fn forget(&mut self, has: AtRouter) {
        if let Some(slot) = has.older() {
            self.values.remove(slot);
            self.values.give_back_if_free();
        }
    }
}

/// Whether a worker's last urgent change is long enough ago for another.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rested {
    /// For a rise.
    pub(super) for_rise: bool,
    /// For another one.
    pub(super) for_other: bool,
}

/// How much a report differs from what the router has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Difference {
    /// Not at all.
    None,
    /// In what does not bear on a choice, or by less than `significance`.
    Minor,
    /// Enough to be worth a window.
    Significant,
    /// More is to be computed, by enough not to wait for a window.
    Rise,
    /// Enough not to wait for one.
    Urgent,
}

impl Difference {
    /// Compares the newest report with an older one.
    #[inline]
    pub(super) fn between(
        has: &Before,
        newest: &Report,
        settings: &Coalescing,
        rested: Rested,
    ) -> Self {
        if has.draining != newest.draining {
            return Self::in_draining(has, newest, settings, rested);
        }
        let same_tickets = has.admitted == newest.admitted.version();
        match (&has.metrics, &newest.metrics) {
            (None, Some(_)) => Self::Urgent,
            (Some(has), Some(newest)) if has != newest => {
                match Self::between_figures(&has.figures(), &newest.figures(), settings, rested) {
                    Self::Minor if !same_tickets => Self::Significant,
                    difference => difference,
                }
            }
            _ if same_tickets => Self::None,
            _ => Self::Significant,
        }
    }

    /// The worker has begun or ended to drain.
    #[cold]
    fn in_draining(has: &Before, newest: &Report, settings: &Coalescing, rested: Rested) -> Self {
        if rested.for_other {
            return Self::Urgent;
        }
        match (&has.metrics, &newest.metrics) {
            (None, Some(_)) => Self::Urgent,
            (Some(has), Some(newest)) => {
                match Self::between_figures(&has.figures(), &newest.figures(), settings, rested) {
                    Self::Minor => Self::Significant,
                    difference => difference,
                }
            }
            _ => Self::Significant,
        }
    }

    #[inline]
    fn between_figures(
        old: &Figures,
        new: &Figures,
        settings: &Coalescing,
        rested: Rested,
    ) -> Self {
        let (significant, rises) = match (old.num_prefill_blocks, new.num_prefill_blocks) {
            (Some(old), Some(new)) => {
                let enough = old != new && old.abs_diff(new) >= settings.prefill_significance();
                (enough, enough && new > old)
            }
            (old, new) => (old != new, false),
        };
        let mut significant = significant || old.num_requests_waiting != new.num_requests_waiting;
        if let Some(saturation) = settings.saturation() {
            let was = old.is_saturated(saturation);
            let is = new.is_saturated(saturation);
            // Leaving it waits for its window: only entering it is urgent.
            if is && !was && rested.for_other {
                return Self::Urgent;
            }
            significant |= was != is;
        }
        if rises && rested.for_rise {
            return Self::Rise;
        }
        let drift = old.kv_active_blocks.abs_diff(new.kv_active_blocks);
        let least = settings.significance() * new.kv_total_blocks as f64;
        significant |=
            old.kv_total_blocks != new.kv_total_blocks || (drift > 0 && drift as f64 >= least);
        if significant {
            Self::Significant
        } else {
            Self::Minor
        }
    }
}
