//! The windows of one link.

mod draining;
mod model;
mod windows;
