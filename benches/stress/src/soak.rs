//! Not written yet.

use crate::checks::Checks;
use clap::Args;
#[derive(Debug, Args)]
pub(crate) struct Options {
    #[arg(long, default_value_t = 5)]
    seconds: u64,
}
pub(crate) fn run(options: &Options) -> Checks {
    let _ = options.seconds;
    Checks::default()
}
