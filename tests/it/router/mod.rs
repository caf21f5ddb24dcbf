//! The router: table, choice, reservations.

mod model;
mod reservations;
mod selection;
mod table;
