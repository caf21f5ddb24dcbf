//! Workers that came to take requests while some waited for that.

use super::{
    index::{Class, Classes},
    slots::RowSlot,
};

/// Notes nothing while nobody waits.
#[derive(Debug, Default)]
pub(super) struct Freed {
    noting: bool,
    /// Those that take any request they hold. While `all`, they do not matter.
    rows: Vec<RowSlot>,
    /// What changed may concern anybody who waits.
    all: bool,
    /// Who waits up to this number has been looked at since.
    looked_up_to: Option<u64>,
}

impl Freed {
    /// Somebody waits, whom everything that is not noted yet does not help.
    pub(super) fn begin(&mut self) {
        self.noting = true;
    }

    /// Nobody waits.
    pub(super) fn end(&mut self) {
        *self = Self::default();
    }

    /// The worker came to another class, or holds more or less than before.
    #[inline]
    pub(super) fn note(&mut self, row: RowSlot, class: Class) {
        if self.noting {
            self.note_class(row, class);
        }
    }

    #[cold]
    fn note_class(&mut self, row: RowSlot, class: Class) {
        if Classes::FULL.contain(class) {
            // That helps nobody.
        } else if Classes::FREE.contain(class) && self.rows.len() < MANY {
            self.rows.push(row);
            self.looked_up_to = None;
        } else {
            // It may be the last of those for whom others had to wait, and takes those that name it.
            self.note_all();
        }
    }

    /// A worker is gone, or holds less, or rows have other numbers, or no request is placed any more.
    #[inline]
    pub(super) fn note_all(&mut self) {
        if self.noting {
            self.all = true;
            self.looked_up_to = None;
        }
    }

    /// Whether nobody who waits can be helped.
    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty() && !self.all
    }

    pub(super) fn is_all(&self) -> bool {
        self.all
    }

    pub(super) fn rows(&self) -> &[RowSlot] {
        &self.rows
    }

    pub(super) fn looked_up_to(&self) -> Option<u64> {
        self.looked_up_to
    }

    /// Who waits under this number is looked at.
    pub(super) fn look_at(&mut self, number: u64) {
        self.looked_up_to = Some(number);
    }

    /// A request was placed on one of them: those that take no more are out.
    pub(super) fn retain(&mut self, class_of: impl Fn(RowSlot) -> Option<Class>) {
        let is_free =
            |row: &RowSlot| class_of(*row).is_some_and(|class| Classes::FREE.contain(class));
        self.rows.retain(is_free);
    }

    /// Everybody was looked at.
    pub(super) fn clear(&mut self) {
        self.rows.clear();
        self.all = false;
        self.looked_up_to = None;
    }

    /// Does what only seems to change the classes of workers.
    #[inline]
    pub(super) fn pause(&mut self) -> bool {
        std::mem::replace(&mut self.noting, false)
    }

    #[inline]
    pub(super) fn resume(&mut self, noting: bool) {
        self.noting = noting;
    }
}

/// Rows of which a list is kept: beyond, trying all who wait costs less than comparing names.
const MANY: usize = 64;
