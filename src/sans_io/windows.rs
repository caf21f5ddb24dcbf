//! The open windows of one link: which are due, and when the next one will be.
//!
//! All windows of a kind last equally long, so the lists they stand in are ordered by deadline as they are: opening,
//! moving and closing a window costs constant time, and nothing is left behind.

use super::{
    nanos::{Nanos, earliest, has_come, span},
    reports::WorkerSlot,
    slots::{BySlot, Chain, Links, Renumbering},
};
use crate::config::Coalescing;

/// Windows by worker slot.
#[derive(Debug)]
pub(super) struct Windows {
    debounce: u64,
    max_delay: u64,
    minor_delay: u64,
    each: BySlot<WorkerSlot, Window>,
    open: usize,
    /// A window stands in one of the first three, and in one of the caps unless it is due at once.
    places: Links<WorkerSlot>,
    quiet: Chain<WorkerSlot>,
    due: Chain<WorkerSlot>,
    urgent: Chain<WorkerSlot>,
    caps: Links<WorkerSlot>,
    ordinary_caps: Chain<WorkerSlot>,
    minor_caps: Chain<WorkerSlot>,
}

/// Where a window is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// There is none.
    Closed,
    /// Waits for `minor_delay`, or `max_delay` if its worker flaps, whatever happens.
    Minor,
    /// Waits for quiet, at the latest for its cap.
    Ordinary,
    /// Is due at once.
    Due,
    /// Is due at once, and no pacing may hold it back.
    Urgent,
}

#[derive(Debug, Clone, Copy)]
struct Window {
    phase: Phase,
    /// The cap stands among the minor ones, also after the window became an ordinary one.
    minor_cap: bool,
    /// When the present quiet time of an ordinary window began.
    quiet_from: Option<Nanos>,
    /// Latest end of an ordinary or minor window.
    cap: Option<Nanos>,
}

impl Window {
    const CLOSED: Self = Self {
        phase: Phase::Closed,
        minor_cap: false,
        quiet_from: None,
        cap: None,
    };
}

impl Windows {
    pub(super) fn new(settings: Coalescing) -> Self {
        Self {
            debounce: span(settings.debounce()),
            max_delay: span(settings.max_delay()),
            minor_delay: span(settings.minor_delay()),
            each: BySlot::new(Window::CLOSED),
            open: 0,
            places: Links::default(),
            quiet: Chain::EMPTY,
            due: Chain::EMPTY,
            urgent: Chain::EMPTY,
            caps: Links::default(),
            ordinary_caps: Chain::EMPTY,
            minor_caps: Chain::EMPTY,
        }
    }

    /// Windows that are open.
    pub(super) fn open(&self) -> usize {
        self.open
    }

    /// Whether a window is due that no pacing may hold back.
    #[inline]
    pub(super) fn is_urgent(&self) -> bool {
        !self.urgent.is_empty()
    }

    /// Whether a window is due whatever the time, but for urgent ones.
    #[inline]
    pub(super) fn is_due_for_no_urgency(&self) -> bool {
        !self.due.is_empty()
    }

    /// Whether a window is due whatever the time.
    #[inline]
    pub(super) fn is_due_at_once(&self) -> bool {
        !self.urgent.is_empty() || !self.due.is_empty()
    }

    #[inline]
    pub(super) fn phase(&self, slot: WorkerSlot) -> Phase {
        self.each[slot].phase
    }

    /// When the first window that waits falls due.
    #[inline]
    pub(super) fn first_deadline(&self) -> Option<Nanos> {
        let quiet = (self.quiet.front()).and_then(|slot| self.quiet_until(slot));
        let cap = |chain: Chain<WorkerSlot>| chain.front().and_then(|slot| self.window(slot).cap);
        let caps = earliest(cap(self.ordinary_caps), cap(self.minor_caps));
        earliest(quiet, caps)
    }

    /// The first window that is due: urgent ones before others.
    pub(super) fn first_due(&self, now: Nanos) -> Option<WorkerSlot> {
        let quiet_long_enough = |slot: &WorkerSlot| has_come(self.quiet_until(*slot), now);
        let capped = |slot: &WorkerSlot| has_come(self.window(*slot).cap, now);
        (self.urgent.front())
            .or_else(|| self.due.front())
            .or_else(|| self.quiet.front().filter(quiet_long_enough))
            .or_else(|| self.ordinary_caps.front().filter(capped))
            .or_else(|| self.minor_caps.front().filter(capped))
    }

    /// Opens a window that waits for quiet.
    pub(super) fn open_ordinary(&mut self, slot: WorkerSlot, now: Nanos) {
        if self.debounce == 0 {
            return self.open_at_once(slot, Phase::Due);
        }
        let cap = now.after(self.max_delay);
        self.open_until(slot, Phase::Ordinary, Some(now), cap);
        self.places.push_back(&mut self.quiet, slot);
        self.caps.push_back(&mut self.ordinary_caps, slot);
    }

    /// Opens a window that waits for `max_delay`, however quiet the worker is.
    pub(super) fn open_flapping(&mut self, slot: WorkerSlot, now: Nanos) {
        let cap = now.after(self.max_delay);
        self.open_until(slot, Phase::Minor, Some(now), cap);
        self.caps.push_back(&mut self.ordinary_caps, slot);
    }

    /// Opens a window that waits for `minor_delay`.
    pub(super) fn open_minor(&mut self, slot: WorkerSlot, now: Nanos) {
        let cap = now.after(self.minor_delay);
        self.open_until(slot, Phase::Minor, Some(now), cap);
        self.window_mut(slot).minor_cap = true;
        self.caps.push_back(&mut self.minor_caps, slot);
    }

    /// Makes the worker due at once, whatever its window was.
    pub(super) fn open_at_once(&mut self, slot: WorkerSlot, phase: Phase) {
        self.close(slot);
        self.open_until(slot, phase, None, None);
        let chain = if phase == Phase::Urgent {
            &mut self.urgent
        } else {
            &mut self.due
        };
        self.places.push_back(chain, slot);
    }

    /// The worker of an open window changed: what waits for quiet waits anew, unless it is due already.
    #[inline]
    pub(super) fn handle_activity(&mut self, slot: WorkerSlot, significant: bool, now: Nanos) {
        let window = *self.window(slot);
        match window.phase {
            Phase::Minor if significant && !has_come(window.cap, now) => {
                self.make_ordinary(slot, now)
            }
            Phase::Ordinary if !has_come(earliest(self.quiet_until(slot), window.cap), now) => {
                self.window_mut(slot).quiet_from = Some(now);
                self.places.move_to_back(&mut self.quiet, slot);
            }
            _ => {}
        }
    }

    /// Makes every window due at once.
    pub(super) fn flush(&mut self) {
        while let Some(slot) = self.quiet.front() {
            self.open_at_once(slot, Phase::Due);
        }
        for caps in [
            |windows: &Self| windows.minor_caps,
            |windows: &Self| windows.ordinary_caps,
        ] {
            while let Some(slot) = caps(self).front() {
                self.open_at_once(slot, Phase::Due);
            }
        }
    }

    /// Closes the worker's window, if one is open.
    pub(super) fn close(&mut self, slot: WorkerSlot) {
        let Window {
            phase, minor_cap, ..
        } = self.each[slot];
        if phase == Phase::Closed {
            return;
        }
        self.each[slot] = Window::CLOSED;
        if matches!(phase, Phase::Ordinary | Phase::Minor) {
            let caps = if minor_cap {
                &mut self.minor_caps
            } else {
                &mut self.ordinary_caps
            };
            self.caps.remove(caps, slot);
        }
        match phase {
            Phase::Closed | Phase::Minor => {}
            Phase::Ordinary => self.places.remove(&mut self.quiet, slot),
            Phase::Due => self.places.remove(&mut self.due, slot),
            Phase::Urgent => self.places.remove(&mut self.urgent, slot),
        }
        self.open -= 1;
    }

    /// The slots have new numbers.
    pub(super) fn renumber(&mut self, renumbering: &Renumbering<WorkerSlot>) {
        self.each.renumber(renumbering);
        self.places.renumber(renumbering);
        self.caps.renumber(renumbering);
        for chain in self.chains() {
            chain.renumber(renumbering);
        }
    }

    /// Closes every window.
    pub(super) fn close_all(&mut self) {
        for chain in self.chains() {
            *chain = Chain::EMPTY;
        }
        self.each.clear();
        self.open = 0;
    }

    fn chains(&mut self) -> [&mut Chain<WorkerSlot>; 5] {
        [
            &mut self.quiet,
            &mut self.due,
            &mut self.urgent,
            &mut self.ordinary_caps,
            &mut self.minor_caps,
        ]
    }

    /// The first significant change of a minor window: an ordinary one from now on, at the latest at its old end.
    fn make_ordinary(&mut self, slot: WorkerSlot, now: Nanos) {
        if self.debounce == 0 {
            return self.open_at_once(slot, Phase::Due);
        }
        let cap = now.after(self.max_delay);
        let window = self.window_mut(slot);
        window.phase = Phase::Ordinary;
        window.quiet_from = Some(now);
        let sooner = cap.is_some() && earliest(cap, window.cap) != window.cap;
        if sooner {
            window.cap = cap;
            window.minor_cap = false;
        }
        self.places.push_back(&mut self.quiet, slot);
        if sooner {
            self.caps.remove(&mut self.minor_caps, slot);
            self.caps.push_back(&mut self.ordinary_caps, slot);
        }
    }

    fn open_until(
        &mut self,
        slot: WorkerSlot,
        phase: Phase,
        quiet_from: Option<Nanos>,
        cap: Option<Nanos>,
    ) {
        self.open += 1;
        self.each[slot] = Window {
            phase,
            minor_cap: false,
            quiet_from,
            cap,
        };
    }

    #[inline]
    fn quiet_until(&self, slot: WorkerSlot) -> Option<Nanos> {
        self.window(slot).quiet_from?.after(self.debounce)
    }

    #[inline]
    fn window(&self, slot: WorkerSlot) -> &Window {
        &self.each[slot]
    }

    #[inline]
    fn window_mut(&mut self, slot: WorkerSlot) -> &mut Window {
        &mut self.each[slot]
    }
}
