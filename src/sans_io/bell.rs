//! The bell that reporters share with their publisher: who has something for it, and whether it has to be woken.
//!
//! A reporter that fills its empty place enters itself, once, however much it reports until the publisher comes. It wakes the
//! publisher only if the publisher is not *calm* and nobody has *rung* since it came last. Calm means that the publisher
//! wakes up anyway before it could send what is reported now: so it says that only while something will wake it. Everything
//! is under one lock, so no order of writes has to be argued about: who enters before the publisher takes is taken then, and
//! who enters after it sees whether the publisher is calm.

// `sync` is std's here, and that of the model checker in `tests/slot_loom.rs`, which includes this file.
use super::sync::{Mutex, MutexGuard, PoisonError};

/// Who has something for the taker.
#[derive(Debug)]
pub(crate) struct Bell<T>(Mutex<State<T>>);

#[derive(Debug)]
struct State<T> {
    entered: Vec<T>,
    calm: bool,
    rung: bool,
    gone: bool,
}

/// What is to be done after entering.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Entered {
    /// The taker must be woken.
    Wake,
    /// It will come.
    Quiet,
    /// It is gone, and nothing was entered.
    Gone,
}

impl<T> Bell<T> {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(State {
            entered: Vec::new(),
            calm: false,
            rung: false,
            gone: false,
        }))
    }

    /// Enters one who has something. Whoever is told to wake the taker must do so.
    #[inline]
    pub(crate) fn enter(&self, who: T) -> Entered {
        let mut state = self.state();
        if state.gone {
            return Entered::Gone;
        }
        state.entered.push(who);
        if state.calm || state.rung {
            return Entered::Quiet;
        }
        state.rung = true;
        Entered::Wake
    }

    /// Takes all who entered into `taken`, which must be empty; its memory is used for the next.
    #[inline]
    pub(crate) fn take(&self, taken: &mut Vec<T>) {
        std::mem::swap(&mut self.state().entered, taken);
    }

    /// The wake-up came: the next one who enters rings again. Only then: one that is still on its way is enough.
    pub(crate) fn handle_wake(&self) {
        self.state().rung = false;
    }

    /// The taker itself has more to do. `true`: it must be woken; else a wake-up is on its way already.
    #[must_use = "the taker must be woken"]
    pub(crate) fn ring(&self) -> bool {
        !std::mem::replace(&mut self.state().rung, true)
    }

    /// The taker comes to rest. `calm`: something else than a wake-up will make it come. `false`: somebody has entered
    /// quietly meanwhile whom nothing else would have taken, so it must take once more before it rests.
    #[inline]
    #[must_use = "somebody may have entered meanwhile"]
    pub(crate) fn rest(&self, calm: bool) -> bool {
        let mut state = self.state();
        state.calm = calm;
        calm || state.rung || state.entered.is_empty()
    }

    /// Nobody takes any more. Who entered is let go of; so is who would.
    pub(crate) fn close(&self) {
        let entered = {
            let mut state = self.state();
            state.gone = true;
            std::mem::take(&mut state.entered)
        };
        // Not under the lock: who is let go of may hold the bell.
        drop(entered);
    }

    #[inline]
    fn state(&self) -> MutexGuard<'_, State<T>> {
        // Nothing in here panics but for want of memory, and then nothing was entered.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
