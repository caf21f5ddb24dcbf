//! The component's tests, in one program: `tests/README.md` says where to begin.

#![allow(missing_docs, unreachable_pub)]

mod api;
mod attack;
mod cases;
mod coalescer;
mod faults;
mod fuzz;
mod link;
mod observe;
mod publisher;
mod questions;
mod router;
#[deny(dead_code)]
mod support;
mod system;
mod test_util;
mod wire;
