//! Failures that users of similar systems reported; `tests/CASES.md` lists them by number.

mod costs;
mod ends;
mod limits;
mod load;
mod meddlers;
mod order;
mod settings;
mod start;
mod starvation;
mod timer;
mod told;
mod trust;
mod values;
mod warnings;
mod workers;
