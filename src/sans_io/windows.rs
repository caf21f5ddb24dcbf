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
    stages: BySlot<WorkerSlot, Stage>,
    /// Of windows that wait.
    times: BySlot<WorkerSlot, Times>,
    count: usize,
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
struct Stage {
    phase: Phase,
    /// The cap stands among the minor ones, also after the window became an ordinary one.
    minor_cap: bool,
}

#[derive(Debug, Clone, Copy)]
struct Times {
    /// When the present quiet time of an ordinary window began.
    quiet_from: Option<Nanos>,
    /// Latest end of an ordinary or minor window.
    cap: Option<Nanos>,
}

impl Stage {
    const CLOSED: Self = Self {
        phase: Phase::Closed,
        minor_cap: false,
    };
}

impl Times {
    const NONE: Self = Self {
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
            stages: BySlot::new(Stage::CLOSED),
            times: BySlot::new(Times::NONE),
            count: 0,
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
    pub(super) fn count(&self) -> usize {
        self.count
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
        self.stages[slot].phase
    }

    /// When the first window that waits falls due.
    #[inline]
    pub(super) fn first_deadline(&self) -> Option<Nanos> {
        let quiet = (self.quiet.front()).and_then(|slot| self.quiet_until(slot));
        let cap = |chain: Chain<WorkerSlot>| chain.front().and_then(|slot| self.times[slot].cap);
        let caps = earliest(cap(self.ordinary_caps), cap(self.minor_caps));
        earliest(quiet, caps)
    }

    /// The first window that is due: urgent ones before others.
    pub(super) fn first_due(&self, now: Nanos) -> Option<WorkerSlot> {
        let quiet_long_enough = |slot: &WorkerSlot| has_come(self.quiet_until(*slot), now);
        let capped = |slot: &WorkerSlot| has_come(self.times[*slot].cap, now);
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
        self.stages[slot].minor_cap = true;
        self.caps.push_back(&mut self.minor_caps, slot);
    }

    /// Makes the worker due at once, whatever its window was.
    pub(super) fn open_at_once(&mut self, slot: WorkerSlot, phase: Phase) {
        self.close(slot);
        self.open(slot, phase);
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
        let cap = self.times[slot].cap;
        match self.phase(slot) {
            Phase::Minor if significant && !has_come(cap, now) => self.make_ordinary(slot, now),
            Phase::Ordinary if !has_come(earliest(self.quiet_until(slot), cap), now) => {
                self.times[slot].quiet_from = Some(now);
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
        let Stage { phase, minor_cap } = self.stages[slot];
        if phase == Phase::Closed {
            return;
        }
        self.stages[slot] = Stage::CLOSED;
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
        self.count -= 1;
    }

    /// The slots have new numbers.
    pub(super) fn renumber(&mut self, renumbering: &Renumbering<WorkerSlot>) {
        self.stages.renumber(renumbering);
        self.times.renumber(renumbering);
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
        self.stages.clear();
        self.times.clear();
        self.count = 0;
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
        let (stage, times) = (&mut self.stages[slot], &mut self.times[slot]);
        stage.phase = Phase::Ordinary;
        times.quiet_from = Some(now);
        let sooner = cap.is_some() && earliest(cap, times.cap) != times.cap;
        if sooner {
            times.cap = cap;
            stage.minor_cap = false;
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
        self.open(slot, phase);
        self.times[slot] = Times { quiet_from, cap };
    }

    fn open(&mut self, slot: WorkerSlot, phase: Phase) {
        self.count += 1;
        self.stages[slot] = Stage {
            phase,
            minor_cap: false,
        };
    }

    #[inline]
    fn quiet_until(&self, slot: WorkerSlot) -> Option<Nanos> {
        self.times[slot].quiet_from?.after(self.debounce)
    }
}
