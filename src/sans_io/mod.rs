//! The state machines under the actors: no actix, no tokio, no clock.
//!
//! They are public so that they can be driven by other runtimes, simulations and model tests; `now` is an argument, and
//! deadlines come back.
//!
//! The publisher's side: [`Reports`] is the table of the newest reports, [`Coalescer`] decides what of it is due on one
//! link, [`Link`] delivers it, [`Leases`] finds who has been
//! silent for too long. The router's side: [`LoadTable`] takes snapshots in and chooses workers.

// What `conflate` and `bell` lock is std's here, and the model checker's in `tests/slot_loom.rs`.
use std::sync;

mod admitted;
mod at_router;
mod averages;
pub(crate) mod bell;
mod capacities;
pub(crate) mod choice;
mod claims;
pub(crate) mod coalescer;
pub(crate) mod conflate;
mod cooling;
pub(crate) mod counts;
mod deadlines;
mod freed;
mod index;
pub(crate) mod leases;
pub(crate) mod link;
pub(crate) mod loads;
mod moment;
mod names;
mod nanos;
mod numbers;
pub(crate) mod packed;
mod pricing;
mod ranks;
mod recent_lives;
pub(crate) mod reports;
mod reservations;
mod roster;
mod rows;
pub(crate) mod selection;
mod sequences;
mod slots;
pub(crate) mod table;
mod tidy;
mod ties;
mod tournament;
pub(crate) mod waiting;
mod weights;
mod windows;

pub use self::{
    choice::Placement,
    coalescer::Coalescer,
    leases::Leases,
    link::{Delivery, Link, LinkState},
    reports::{Change, Report, Reported, Reports, WorkerSlot},
    slots::Renumbering,
    table::{LoadTable, PartialSnapshot},
};
