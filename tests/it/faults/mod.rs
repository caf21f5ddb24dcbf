//! Faults injected between the actors.

mod chaos;
mod publisher;
mod random;
mod replaced;
mod router;
mod threads;
mod worker;
