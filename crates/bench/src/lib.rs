//! `actix-kv-metrics` side by side with what people would use instead.
//!
//! Each pair is measured alternately in one run, round by round; what is reported is the median of the rounds' ratios
//! with the least and the greatest, because absolute times drift on shared machines and ratios do not.

pub mod bytes;
pub mod choosers;
pub mod cores;
pub mod hot_paths;
pub mod measure;
pub mod opponents;
pub mod outcome;
pub mod pacing;
pub mod plots;
pub mod rows;
pub mod stream;
pub mod systems;
pub mod threads;
