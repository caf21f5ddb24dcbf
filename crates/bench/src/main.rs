//! Runs every pair and prints one table.

use std::{
    error::Error,
    fs, io,
    path::PathBuf,
    process::{Command, Stdio},
};

use clap::Parser;
use kv_metrics_bench::{
    bytes::{self, CountingAllocator},
    outcome::Outcome,
    plots::{self, Plot},
    rows::{Effort, Findings, SUBJECTS},
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
    /// Measures this subject in this process and prints its findings as JSON.
    #[arg(long, hide = true, value_name = "NAME")]
    subject: Option<String>,
    /// Leaves the selector of dynamo-kv-router out, which some 150 crates must be built for.
    #[arg(long)]
    without_dynamo: bool,
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
    if let Some(name) = options.subject {
        let subject = SUBJECTS.iter().find(|subject| subject.name == name);
        let findings = (subject.ok_or("no such subject")?.run)(effort);
        return Ok(serde_json::to_writer(io::stdout(), &findings)?);
    }
    let wanted = |name: &str| {
        options.only.is_empty() || options.only.iter().any(|only| name.contains(only.as_str()))
    };
    let mut found = Findings::default();
    for subject in SUBJECTS.iter().filter(|subject| wanted(subject.name)) {
        eprintln!("measuring: {}", subject.name);
        let processes = effort.pick(1, subject.processes);
        found.extend(in_processes(subject.name, processes, effort)?);
    }
    if wanted("dynamo-selector") && !options.without_dynamo {
        eprintln!("measuring: dynamo-selector (builds it first)");
        found.extend(beside_dynamo(effort)?);
    }
    println!("{}", Outcome(&found.rows));
    if let Some(file) = options.json {
        fs::write(file, serde_json::to_string_pretty(&found)?)?;
    }
    if let Some(folder) = options.plots {
        for plot in Plot::ALL {
            plots::draw(plot, &found.series, &folder)?;
        }
    }
    Ok(())
}

/// Measures a subject in processes of its own: the heap that another one leaves would change its figures. What takes some
/// nanoseconds also depends on where a process happens to have its stack, so it is measured in several.
fn in_processes(
    subject: &str,
    processes: usize,
    effort: Effort,
) -> Result<Findings, Box<dyn Error>> {
    let each = (0..processes).map(|_| {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["--subject", subject]);
        findings_of(command, effort)
    });
    Ok(Findings::of_processes(each.collect::<Result<_, _>>()?))
}

/// Runs the package that links Dynamo's selector: it is no member of this workspace, because it pins tokio.
fn beside_dynamo(effort: Effort) -> Result<Findings, Box<dyn Error>> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["run", "--release", "--quiet", "--manifest-path"]);
    command.arg(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../bench-dynamo/Cargo.toml"
    ));
    command.arg("--");
    findings_of(command, effort)
}

fn findings_of(mut command: Command, effort: Effort) -> Result<Findings, Box<dyn Error>> {
    command.args(effort.pick(Some("--quick"), None));
    let output = command.stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        return Err(format!("{command:?}: {}", output.status).into());
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}
