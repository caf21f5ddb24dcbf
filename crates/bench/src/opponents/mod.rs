//! What people would use instead, one a file. The letters are those of BENCHMARKS.md.

pub mod cancel_and_rearm;
pub mod debounce_task;
pub mod forward_all;
pub mod interval;
pub mod plain_handler;
pub mod scan;
