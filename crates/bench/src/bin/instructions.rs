//! Counts the instructions of the hot paths with valgrind and compares them with those kept in the repository.
//!
//! A count is the difference of two runs with the same setup, over the difference of their calls.

use std::{
    collections::BTreeMap,
    error::Error,
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use clap::{Parser, Subcommand};
use kv_metrics_bench::hot_paths::{HOT_PATHS, HotPath};

/// Counts instructions of the hot paths.
#[derive(Debug, Parser)]
struct Options {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Fails if a path takes over 5 % more instructions than are kept in FILE.
    Compare { file: PathBuf },
    /// Writes the counts to FILE.
    Keep { file: PathBuf },
    /// Runs one path: this is what valgrind watches.
    Run { path: String, calls: u64 },
}

fn main() -> Result<ExitCode, Box<dyn Error>> {
    match Options::parse().task {
        Task::Run { path, calls } => {
            let path = HOT_PATHS.iter().find(|known| known.name == path);
            (path.ok_or("no such path")?.run)(calls);
            Ok(ExitCode::SUCCESS)
        }
        Task::Keep { file } => {
            let compiler = Command::new("rustc").arg("--version").output()?.stdout;
            let mut kept = format!("{HEADER}{}", String::from_utf8(compiler)?);
            for path in &HOT_PATHS {
                kept += &format!("{:<28}{:>8.0}\n", path.name, count(path)?);
            }
            print!("{kept}");
            fs::write(file, kept)?;
            Ok(ExitCode::SUCCESS)
        }
        Task::Compare { file } => compare(&read(&file)?),
    }
}

fn compare(kept: &BTreeMap<String, f64>) -> Result<ExitCode, Box<dyn Error>> {
    let mut grown = false;
    for path in &HOT_PATHS {
        let now = count(path)?;
        let before = *kept.get(path.name).ok_or("a path is missing in the file")?;
        let growth = now / before - 1.0;
        grown |= growth > ALLOWED_GROWTH;
        let verdict = match growth {
            growth if growth > ALLOWED_GROWTH => "GROWN",
            growth if growth < -ALLOWED_GROWTH => "fallen: keep the new count",
            _ => "",
        };
        let percent = growth * 100.0;
        println!(
            "{:<28}{before:>8.0}{now:>8.0} {percent:>+6.1} %  {verdict}",
            path.name
        );
    }
    Ok(if grown {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

fn read(file: &Path) -> Result<BTreeMap<String, f64>, Box<dyn Error>> {
    let text = fs::read_to_string(file)?;
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let count = |line: &str| {
        let (name, count) = line.split_once(' ').ok_or("a line has no count")?;
        Ok((name.into(), count.trim().parse()?))
    };
    lines.map(count).collect()
}

/// Instructions of one call.
fn count(path: &HotPath) -> Result<f64, Box<dyn Error>> {
    let (few, many) = (path.calls / 2, path.calls);
    let more = total(path.name, many)? - total(path.name, few)?;
    Ok(more / (many - few) as f64)
}

/// Instructions of a whole run.
fn total(path: &str, calls: u64) -> Result<f64, Box<dyn Error>> {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(std::env::current_exe()?)
        .args(["run", path, &calls.to_string()])
        .output()?;
    let told = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        return Err(format!("valgrind failed: {told}").into());
    }
    let collected = told
        .lines()
        .find_map(|line| line.split_once("Collected : "));
    Ok(collected
        .ok_or("valgrind told no count")?
        .1
        .trim()
        .parse()?)
}

const ALLOWED_GROWTH: f64 = 0.05;
const HEADER: &str = "\
# Instructions a call on x86-64, counted by `crates/bench/instructions.sh keep`. Another compiler gives others: then keep them
# anew, from a commit that is known to be good. Counted with ";
