//! Workers in the order of their cost.
//!
//! Costs are numbered here: see [`Ties`](super::ties::Ties).

use super::{
    freed::Freed,
    slots::{BySlot, RowSlot, room_for},
    tournament::{Near, Tournament},
};

/// What a cost is made of: costs of one order are compared with each other only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// The worker's load and backlog are known: both, and reservations.
    Known,
    /// Its load is known, but not its backlog: load and reservations.
    NoBacklog,
    /// It is not: reservations alone.
    Unknown,
    /// It is not, and it was full when it was known last: reservations alone.
    Last,
    /// It is at or over the threshold, its reservations included: it costs nothing, and is not chosen.
    Full,
}

/// Whether a worker takes requests that do not name it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Gate {
    #[default]
    Open,
    /// Only if nobody else can be waited for.
    Cooling,
    /// None.
    Draining,
}

/// Workers of one order behind one gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Class(u8);

/// Some classes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Classes(u32);

impl Classes {
    pub(super) const ALL: Self = Self(u32::MAX);
    /// Workers that take any request they hold.
    pub(super) const FREE: Self = Self::new(
        &[Order::Known, Order::NoBacklog, Order::Unknown],
        &[Gate::Open],
    );
    /// Workers for which all others wait.
    pub(super) const FULL: Self = Self::new(&[Order::Full], &[Gate::Open]);

    /// These orders behind these gates.
    pub(super) const fn new(orders: &[Order], gates: &[Gate]) -> Self {
        let (mut bits, mut at) = (0, 0);
        while at < orders.len() * gates.len() {
            bits |= Class::new(orders[at / gates.len()], gates[at % gates.len()]).bit();
            at += 1;
        }
        Self(bits)
    }

    #[inline]
    pub(super) const fn contain(self, class: Class) -> bool {
        self.0 & class.bit() != 0
    }
}

impl Class {
    #[inline]
    pub(super) const fn new(order: Order, gate: Gate) -> Self {
        Self(order as u8 | (gate as u8) << 3)
    }

    #[inline]
    pub(super) const fn order(self) -> Order {
        match self.0 & 7 {
            0 => Order::Known,
            1 => Order::NoBacklog,
            2 => Order::Unknown,
            3 => Order::Last,
            _ => Order::Full,
        }
    }

    #[inline]
    const fn bit(self) -> u32 {
        1 << self.0
    }
}

/// Most blocks of one request that a worker holds; [`ANY_REQUEST`](Self::ANY_REQUEST): whatever is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Holds(pub(super) u32);

impl Holds {
    pub(super) const ANY_REQUEST: Self = Self(u32::MAX);

    /// Those of one size differ by an eighth at most. Engines of one kind rarely have exactly the same number of blocks.
    #[inline]
    fn size(self) -> u8 {
        let bits = u32::BITS - self.0.leading_zeros();
        let more = bits.saturating_sub(4);
        (8 * more + (self.0 >> more)) as u8
    }
}

/// Rows by place: the first of an order at once, however many there are.
#[derive(Debug)]
pub(super) struct CostIndex {
    orders: Vec<Ordered>,
    seats: BySlot<RowSlot, Seat>,
    /// Who came to be free.
    freed: Freed,
}

/// Rows of one class and one size, with their places. Few or many, they are kept alike: a tournament of few is a scan.
#[derive(Debug)]
pub(super) struct Ordered {
    class: Class,
    size: u8,
    /// What each of them holds is within these.
    least: Holds,
    most: Holds,
    rows: Vec<RowSlot>,
    places: Tournament,
}

/// Where a row stands: in which order, and where in it.
#[derive(Debug, Clone, Copy)]
struct Seat {
    position: u32,
    order: u32,
}

impl Seat {
    const NONE: Self = Self {
        position: 0,
        order: u32::MAX,
    };
}

impl Default for CostIndex {
    fn default() -> Self {
        Self {
            orders: Vec::new(),
            seats: BySlot::new(Seat::NONE),
            freed: Freed::default(),
        }
    }
}

impl Ordered {
    fn new(class: Class, size: u8) -> Self {
        Self {
            class,
            size,
            least: Holds::ANY_REQUEST,
            most: Holds(0),
            rows: Vec::new(),
            places: Tournament::default(),
        }
    }

    #[inline]
    pub(super) fn class(&self) -> Class {
        self.class
    }

    /// Its rows, in no order.
    #[inline]
    pub(super) fn rows(&self) -> &[RowSlot] {
        &self.rows
    }

    /// Whether one of its rows may hold so many blocks.
    #[inline]
    pub(super) fn may_hold(&self, blocks: u32) -> bool {
        !self.rows.is_empty() && blocks <= self.most.0
    }

    /// Whether all of its rows hold so many blocks.
    #[inline]
    pub(super) fn all_hold(&self, blocks: u32) -> bool {
        blocks <= self.least.0
    }

    /// The lowest place of all.
    #[inline]
    pub(super) fn lowest(&self) -> Option<u64> {
        self.places.lowest()
    }

    /// Those in so many places, from the lowest one on, which is `first`.
    #[inline]
    pub(super) fn near(&self, first: u64, places: usize) -> Near {
        self.places.near(first, places)
    }

    /// The `n`-th row of those near the lowest, from 0.
    #[inline]
    pub(super) fn nth(&self, near: &Near, n: u32) -> Option<RowSlot> {
        self.rows.get(self.places.nth(near, n)).copied()
    }
}

impl CostIndex {
    /// Puts `row` at `place` among those of the class that hold as much, wherever it was before. What it holds may have
    /// changed only if it was taken out.
    #[inline]
    pub(super) fn insert(&mut self, row: RowSlot, class: Class, holds: Holds, place: u64) {
        let mut seat = self.seats[row];
        let ordered = self.orders.get(seat.order as usize);
        if ordered.is_none_or(|ordered| ordered.class != class) {
            self.remove(row);
            seat = self.join(row, class, holds);
        }
        let places = &mut self.orders[seat.order as usize].places;
        places.set(seat.position as usize, place);
    }

    // Called: in line, it would be in the way of those that stay in their class.
    #[inline(never)]
    fn join(&mut self, row: RowSlot, class: Class, holds: Holds) -> Seat {
        let order = self.order_of(class, holds.size());
        let ordered = &mut self.orders[order];
        ordered.least = ordered.least.min(holds);
        ordered.most = ordered.most.max(holds);
        let seat = Seat {
            position: ordered.rows.len() as u32,
            order: order as u32,
        };
        room_for(&mut ordered.rows, 1);
        ordered.rows.push(row);
        self.seats[row] = seat;
        self.freed.note(row, class);
        seat
    }

    /// The order of this class and size, or else an empty one that becomes it: there are never more than were needed at once.
    fn order_of(&mut self, class: Class, size: u8) -> usize {
        let mut orders = self.orders.iter();
        if let Some(known) = orders.position(|of| of.class == class && of.size == size) {
            return known;
        }
        if let Some(empty) = self.orders.iter().position(|of| of.rows.is_empty()) {
            self.orders[empty] = Ordered::new(class, size);
            return empty;
        }
        self.orders.push(Ordered::new(class, size));
        self.orders.len() - 1
    }

    /// Takes `row` out, because it is no more what it was.
    pub(super) fn expel(&mut self, row: RowSlot) {
        if self.class(row).is_some() {
            self.remove(row);
            self.freed.note_all();
        }
    }

    /// Takes `row` out, if it is in.
    pub(super) fn remove(&mut self, row: RowSlot) {
        let seat = self.seats[row];
        let Some(ordered) = self.orders.get_mut(seat.order as usize) else {
            return;
        };
        self.seats[row] = Seat::NONE;
        let (position, last) = (seat.position as usize, ordered.rows.len() - 1);
        ordered.rows.swap_remove(position);
        let place_of_last = ordered.places.place(last);
        ordered.places.remove(last);
        if let (Some(moved), Some(place)) = (ordered.rows.get(position), place_of_last) {
            ordered.places.set(position, place);
            self.seats[*moved] = seat;
        }
        if ordered.rows.is_empty() {
            (ordered.least, ordered.most) = (Holds::ANY_REQUEST, Holds(0));
        }
    }

    /// The worker moved to another row.
    pub(super) fn move_row(&mut self, from: RowSlot, to: RowSlot) {
        let seat = self.seats[from];
        if let Some(ordered) = self.orders.get_mut(seat.order as usize) {
            ordered.rows[seat.position as usize] = to;
            self.seats.move_value(from, to);
            self.freed.note_all();
        }
    }

    /// There are no rows from this number on.
    pub(super) fn shrink(&mut self, rows: u32) {
        self.seats.truncate(rows);
        while self.orders.pop_if(|last| last.rows.is_empty()).is_some() {}
        for ordered in &mut self.orders {
            ordered.rows.shrink_to_fit();
            ordered.places.shrink(ordered.rows.len());
        }
    }

    /// Who came to be free while somebody waited.
    pub(super) fn freed(&self) -> &Freed {
        &self.freed
    }

    pub(super) fn freed_mut(&mut self) -> &mut Freed {
        &mut self.freed
    }

    /// Those of them that still are.
    pub(super) fn retain_free(&mut self) {
        let mut freed = std::mem::take(&mut self.freed);
        freed.retain(|row| self.class(row));
        self.freed = freed;
    }

    /// All orders; their numbers are their positions.
    #[inline]
    pub(super) fn orders(&self) -> &[Ordered] {
        &self.orders
    }

    /// The order in which `row` is, its number, and the place of the row in it.
    #[inline]
    pub(super) fn place(&self, row: RowSlot) -> Option<(&Ordered, usize, u64)> {
        let seat = self.seats.at(row);
        let order = seat.order as usize;
        let ordered = self.orders.get(order)?;
        Some((
            ordered,
            order,
            ordered.places.place(seat.position as usize)?,
        ))
    }

    /// The class of `row`, if it is in.
    #[inline]
    pub(super) fn class(&self, row: RowSlot) -> Option<Class> {
        let ordered = self.orders.get(self.seats.at(row).order as usize);
        ordered.map(|ordered| ordered.class)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sans_io::slots::Key;

    const KNOWN: Class = Class::new(Order::Known, Gate::Open);
    const UNKNOWN: Class = Class::new(Order::Unknown, Gate::Open);
    const COOLING: Class = Class::new(Order::Known, Gate::Cooling);

    fn slot(number: u32) -> RowSlot {
        RowSlot::new(number)
    }

    fn insert(index: &mut CostIndex, row: u32, class: Class, place: u64) {
        index.insert(slot(row), class, Holds::ANY_REQUEST, place);
    }

    fn near(index: &CostIndex, class: Class, places: usize) -> Vec<u32> {
        let mut orders = index.orders().iter();
        let ordered = orders.find(|of| of.class() == class && !of.rows().is_empty());
        let Some(ordered) = ordered else {
            return Vec::new();
        };
        let lowest = ordered.lowest().unwrap();
        let near = ordered.near(lowest, places);
        let nth = |n| ordered.nth(&near, n).unwrap().number();
        let mut rows: Vec<_> = (0..near.count).map(nth).collect();
        rows.sort_unstable();
        rows
    }

    #[test]
    fn a_class_is_its_order_and_its_gate() {
        let orders = [
            Order::Known,
            Order::NoBacklog,
            Order::Unknown,
            Order::Last,
            Order::Full,
        ];
        for order in orders {
            for gate in [Gate::Open, Gate::Cooling, Gate::Draining] {
                let class = Class::new(order, gate);
                assert_eq!(class.order(), order);
                assert!(Classes::new(&[order], &[gate]).contain(class));
                assert!(!Classes::new(&[order], &[]).contain(class));
            }
        }
    }

    #[test]
    fn the_lowest_rows_come_first_through_moves_and_removals() {
        let mut index = CostIndex::default();
        assert_eq!(near(&index, KNOWN, 5), [0; 0]);
        for (row, place) in [(0, 5), (1, 3), (2, 3), (3, 0), (4, 3)] {
            insert(&mut index, row, KNOWN, place);
        }
        assert_eq!(near(&index, KNOWN, 1), [3]);
        assert_eq!(near(&index, KNOWN, 5), [1, 2, 3, 4]);
        insert(&mut index, 3, KNOWN, 9);
        assert_eq!(near(&index, KNOWN, 1), [1, 2, 4]);
        assert_eq!(near(&index, KNOWN, 3), [0, 1, 2, 4]);
        index.remove(slot(1));
        assert_eq!(near(&index, KNOWN, 2), [2, 4]);
        let place = |row| {
            index
                .place(slot(row))
                .map(|(_, order, place)| (order, place))
        };
        assert_eq!([place(2), place(0)], [Some((0, 3)), Some((0, 5))]);
        assert_eq!([place(1), place(77)], [None; 2]);
        insert(&mut index, 4, KNOWN, 4);
        index.remove(slot(2));
        index.remove(slot(2));
        assert_eq!(near(&index, KNOWN, 1), [4]);
    }

    #[test]
    fn the_orders_are_apart_and_those_that_are_empty_are_used_again() {
        let mut index = CostIndex::default();
        insert(&mut index, 0, UNKNOWN, 1);
        assert_eq!(near(&index, KNOWN, 5), [0; 0]);
        insert(&mut index, 1, KNOWN, 2);
        insert(&mut index, 2, KNOWN, 3);
        assert_eq!(near(&index, UNKNOWN, 5), [0]);
        insert(&mut index, 1, UNKNOWN, 1);
        insert(&mut index, 3, COOLING, 0);
        assert_eq!(near(&index, COOLING, 5), [3]);
        index.move_row(slot(1), slot(9));
        index.move_row(slot(1), slot(9));
        assert_eq!(near(&index, UNKNOWN, 1), [0, 9]);
        index.move_row(slot(9), slot(1));
        assert_eq!(near(&index, UNKNOWN, 1), [0, 1]);
        assert_eq!(near(&index, KNOWN, 5), [2]);
        assert_eq!(index.class(slot(1)), Some(UNKNOWN));
        insert(&mut index, 2, UNKNOWN, 4);
        index.insert(slot(4), KNOWN, Holds(5), 4);
        assert_eq!(near(&index, KNOWN, 5), [4]);
        assert_eq!(index.orders().len(), 3);
    }

    #[test]
    fn an_order_holds_workers_of_about_one_size() {
        let sizes = (0..=u32::BITS).flat_map(|bits| {
            let first = 1_u64 << bits;
            [first - 1, first, first + first / 8, first + first / 4]
        });
        let sizes: Vec<_> = sizes.filter_map(|size| u32::try_from(size).ok()).collect();
        for (a, b) in sizes
            .iter()
            .flat_map(|a| sizes.iter().map(move |b| (*a, *b)))
        {
            let apart = Holds(a).size().cmp(&Holds(b).size());
            assert!(
                apart == a.cmp(&b)
                    || apart.is_eq() && f64::from(a.max(b)) < 1.125 * f64::from(a.min(b))
            );
        }

        let mut index = CostIndex::default();
        for (row, holds) in [(0, 1_000), (1, 1_010), (2, 2_000)] {
            index.insert(slot(row), KNOWN, Holds(holds), 0);
        }
        let [small, large] = index.orders() else {
            panic!("{index:?}");
        };
        assert_eq!((small.rows().len(), large.rows().len()), (2, 1));
        assert!(small.all_hold(1_000) && !small.all_hold(1_001));
        assert!(small.may_hold(1_010) && !small.may_hold(1_011));
        index.remove(slot(2));
        assert!(!index.orders()[1].may_hold(0));
    }
}
