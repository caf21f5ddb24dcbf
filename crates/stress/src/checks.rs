//! What was found, and whether it is what was wanted.

use std::{fmt::Display, process::ExitCode};

/// Prints figures and checks as they come, and remembers whether a check failed.
#[derive(Debug, Default)]
pub(crate) struct Checks {
    held: u32,
    failed: u32,
}

impl Checks {
    /// Prints a figure that nothing depends on.
    pub(crate) fn figure(&self, name: &str, value: impl Display) {
        println!("       {name:<46} {value}");
    }

    /// Prints a figure, and what it was to be.
    pub(crate) fn check(&mut self, held: bool, name: &str, value: impl Display, wanted: &str) {
        let verdict = if held { "ok" } else { "FAILED" };
        println!("{verdict:>6} {name:<46} {value} (wanted: {wanted})");
        if held {
            self.held += 1;
        } else {
            self.failed += 1;
        }
    }

    /// Checks that two figures are the same.
    pub(crate) fn equal<T: PartialEq + Display>(&mut self, name: &str, value: T, wanted: T) {
        self.check(value == wanted, name, value, &wanted.to_string());
    }

    pub(crate) fn section(&self, title: &str) {
        println!("\n{title}");
    }

    pub(crate) fn end(self) -> ExitCode {
        println!("\n{} checks held, {} failed", self.held, self.failed);
        if self.failed == 0 {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        }
    }
}
