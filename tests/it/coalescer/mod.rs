//! The windows of one link.

mod model;
mod windows;
