//! The router: table, choice, reservations.

mod claims;
mod cost;
mod gates;
mod held;
mod model;
mod reservations;
mod selection;
mod table;
mod waiting;
