//! Failures that users of similar systems reported; `tests/CASES.md` lists them by number.

mod blocks;
mod costs;
mod end_of_time;
mod ends;
mod files;
mod limits;
mod load;
mod meddlers;
mod order;
mod refusals;
mod settings;
mod start;
mod starvation;
mod timer;
mod told;
mod trust;
mod turns;
mod values;
mod warnings;
mod workers;
