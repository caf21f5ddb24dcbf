//! Conflation before the mailbox: a place for one value, shared by a reporter and the publisher.
//!
//! Whoever finds the place empty must wake the taker; everybody after that only replaces what waits there. The taker
//! empties the place *before* it reads on, so an update made after the taking wakes it again: no update is ever left
//! behind without a wake-up on its way.

// `sync` is std's here, and that of the model checker in `tests/slot_loom.rs`, which includes this file.
use super::sync::{Mutex, MutexGuard, PoisonError};

/// What became of an update.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Offered {
    /// The place was empty: the taker must be woken.
    Wake,
    /// Something waited there already and a wake-up is on its way: the update joined it.
    Conflated,
    /// The taker wants nothing more from here.
    Closed(Closed),
}

/// Why a place takes nothing more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Closed {
    /// What it belonged to has ended.
    Ended,
    /// The taker is shutting down.
    ShuttingDown,
    /// The taker is gone.
    Gone,
}

/// A place for one value.
#[derive(Debug)]
pub(crate) struct Conflated<T>(Mutex<State<T>>);

#[derive(Debug)]
struct State<T> {
    value: T,
    waiting: bool,
    closed: Option<Closed>,
    conflated: u64,
}

impl<T: Default> Conflated<T> {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(State {
            value: T::default(),
            waiting: false,
            closed: None,
            conflated: 0,
        }))
    }

    /// Lets `update` change the value that waits, or a fresh default.
    #[inline]
    pub(crate) fn offer(&self, update: impl FnOnce(&mut T)) -> Offered {
        let mut state = self.state();
        if let Some(closed) = state.closed {
            return Offered::Closed(closed);
        }
        update(&mut state.value);
        if std::mem::replace(&mut state.waiting, true) {
            state.conflated += 1;
            Offered::Conflated
        } else {
            Offered::Wake
        }
    }

    /// Takes what waits.
    #[inline]
    pub(crate) fn take(&self) -> Option<T> {
        let mut state = self.state();
        std::mem::replace(&mut state.waiting, false).then(|| std::mem::take(&mut state.value))
    }

    /// Refuses everything from now on. What waits stays until it is taken; whether something does.
    pub(crate) fn close(&self, why: Closed) -> bool {
        let mut state = self.state();
        state.closed.get_or_insert(why);
        state.waiting
    }

    /// Whether it takes nothing more.
    pub(crate) fn is_closed(&self) -> bool {
        self.state().closed.is_some()
    }

    /// Updates that joined one that waited.
    pub(crate) fn conflated(&self) -> u64 {
        self.state().conflated
    }

    #[inline]
    fn state(&self) -> MutexGuard<'_, State<T>> {
        // Nothing in here panics, and a replaced value is whole at every moment.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
