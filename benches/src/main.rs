//! Runs every pair and prints one table.

use std::{error::Error, fs, path::PathBuf};

use clap::Parser;
use kv_metrics_bench::{
    bytes::{self, CountingAllocator},
    outcome::{Outcome, Row},
    plots::{self, Plot, Series},
    rows::{Effort, SUBJECTS},
};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// actix-kv-metrics side by side with what people would use instead.
#[derive(Debug, Parser)]
struct Options {
    /// Short runs: to see that everything works, not for publishing.
    #[arg(long)]
    quick: bool,
    /// Only subjects whose name contains this; may be given several times.
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Writes the rows and the plots' series there.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Writes the plots (SVG) there.
    #[arg(long, value_name = "DIR")]
    plots: Option<PathBuf>,
}

fn main() -> Result<(), Box<dyn Error>> {
    bytes::keep_the_heap();
    let options = Options::parse();
    let effort = if options.quick {
        Effort::Quick
    } else {
        Effort::Full
    };
    let wanted = |name: &str| {
        options.only.is_empty() || options.only.iter().any(|only| name.contains(only.as_str()))
    };
    let (mut rows, mut series) = (Vec::<Row>::new(), Vec::<Series>::new());
    for subject in SUBJECTS.iter().filter(|subject| wanted(subject.name)) {
        eprintln!("measuring: {}", subject.name);
        let findings = (subject.run)(effort);
        rows.extend(findings.rows);
        series.extend(findings.series);
    }
    println!("{}", Outcome(&rows));
    if let Some(file) = options.json {
        let findings = serde_json::json!({ "rows": rows, "series": series });
        fs::write(file, serde_json::to_string_pretty(&findings)?)?;
    }
    if let Some(folder) = options.plots {
        for plot in Plot::ALL {
            plots::draw(plot, &series, &folder)?;
        }
    }
    Ok(())
}
