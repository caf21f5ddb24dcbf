//! The publisher, by message.

mod bell;
mod counters;
mod departures;
mod draining;
mod flush;
mod lease;
mod links;
mod messages;
mod reporter;
mod reports;
mod requests;
mod stop;
