//! The router: table, choice, reservations.

mod claims;
mod model;
mod reservations;
mod selection;
mod table;
