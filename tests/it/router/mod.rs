//! The router: table, choice, reservations.

mod claims;
mod gates;
mod model;
mod reservations;
mod selection;
mod table;
