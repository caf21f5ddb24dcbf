//! Faults injected between the actors.

mod chaos;
mod publisher;
mod random;
mod replaced;
mod router;
mod silent;
mod threads;
mod waits;
mod worker;
