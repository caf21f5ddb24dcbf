//! `--calibrate`: the simulated engine on the workload of a recorded run, and how far it is off.
//!
//! The folder holds `workload.csv` (arrivals and tokens), `requests.jsonl` (when each request was queued, scheduled and
//! answered) and `timeseries.csv` (running, waiting and KV use once a second).

use std::{fmt, fs, io, path::Path, sync::Arc, time::Duration};

use actix_kv_metrics::Ticket;
use kv_engine_sim::{Engine, EngineConfig, Job, Load, Preempts, Timing};
use serde::{Deserialize, Serialize};

use crate::{
    distribution::{Distribution, Summary},
    journal::Journal,
    recorded::{Series, SeriesError},
    report::table,
    trace::Request,
};

/// The recorded run and two simulated ones, side by side.
#[derive(Debug, Serialize)]
pub(crate) struct Calibration {
    requests: usize,
    /// With the timing of Dynamo's simulated engine, which is that of another GPU.
    as_it_is: Side,
    /// With a timing of this GPU.
    fitted: Side,
}

#[derive(Debug, Serialize)]
struct Side {
    preemptions: u64,
    times: Vec<Times>,
    curves: Vec<Curve>,
}

#[derive(Debug, Serialize)]
struct Times {
    name: &'static str,
    recorded: Summary,
    simulated: Summary,
}

/// Mean over the samples of the recording.
#[derive(Debug, Serialize)]
struct Curve {
    name: &'static str,
    recorded: f64,
    simulated: f64,
    /// Of the simulation from the recording, sample by sample.
    off_by: f64,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum CalibrationError {
    #[error("{file}: {reason}")]
    Io {
        file: &'static str,
        reason: io::Error,
    },
    #[error("{WORKLOAD}: {0}")]
    Csv(#[from] csv::Error),
    #[error("{REQUESTS}: {0}")]
    Json(#[from] serde_json::Error),
    #[error(transparent)]
    Series(#[from] SeriesError),
    #[error("{WORKLOAD}: request {0} can never be served")]
    TooLong(usize),
}

#[derive(Debug, Deserialize)]
struct Row {
    arrival_time_ns: u64,
    input_toks: u32,
    output_toks: u32,
}

/// Seconds on one clock.
#[derive(Debug, Deserialize)]
struct Stamps {
    queued_ts: f64,
    scheduled_ts: f64,
    first_token_ts: f64,
    last_token_ts: f64,
}

/// The engine of the recording: vLLM 0.19 on one RTX 4090.
fn engine(timing: Timing) -> EngineConfig {
    EngineConfig {
        block_tokens: 16,
        total_blocks: 2_588,
        max_sequences: 256,
        max_batched_tokens: 2_048,
        preempts: Preempts::Newest,
        timing,
        ..EngineConfig::default()
    }
}

impl Calibration {
    /// # Errors
    ///
    /// If a file is missing or bad.
    pub(crate) fn new(folder: &Path) -> Result<Self, CalibrationError> {
        let workload = read(folder, WORKLOAD)?;
        let rows = csv::Reader::from_reader(workload.as_bytes());
        let rows = rows.into_deserialize().collect::<Result<Vec<Row>, _>>()?;
        let stamps = read(folder, REQUESTS)?;
        let stamps = stamps.lines().filter(|line| !line.trim().is_empty());
        let stamps = stamps.map(serde_json::from_str);
        let stamps = stamps.collect::<Result<Vec<Stamps>, _>>()?;
        let series = Series::read(&folder.join(SERIES))?;
        let requests: Vec<_> = rows.into_iter().map(Row::request).collect();
        let side = |timing| {
            let run = Run::simulate(engine(timing), &requests, &series)?;
            Ok::<_, CalibrationError>(Side {
                preemptions: run.preemptions,
                times: times(&stamps, &run.journal),
                curves: curves(&series, &run.loads),
            })
        };
        Ok(Self {
            requests: requests.len(),
            as_it_is: side(Timing::default())?,
            fitted: side(FITTED)?,
        })
    }
}

impl Row {
    fn request(self) -> Arc<Request> {
        Arc::new(Request {
            arrival: Duration::from_nanos(self.arrival_time_ns),
            input_tokens: self.input_toks,
            output_tokens: self.output_toks,
            hash_ids: Vec::new(),
        })
    }
}

/// What the simulated engine made of the workload.
struct Run {
    journal: Journal,
    /// At the times of the recording's samples.
    loads: Vec<Load>,
    preemptions: u64,
}

impl Run {
    fn simulate(
        config: EngineConfig,
        requests: &[Arc<Request>],
        series: &Series,
    ) -> Result<Self, CalibrationError> {
        let mut engine = Engine::new(config);
        let mut journal = Journal::new(requests);
        let mut arrivals = requests.iter().enumerate().peekable();
        let samples = series.samples.iter();
        let mut samples = samples.map(|(at, _)| *at + FIRST_SAMPLE).peekable();
        let mut loads = Vec::new();
        let mut now = Duration::ZERO;
        loop {
            while let Some((number, request)) = arrivals.next_if(|(_, next)| next.arrival <= now) {
                let enqueued = engine.enqueue(job(number, request), request.arrival);
                enqueued.map_err(|_| CalibrationError::TooLong(number))?;
            }
            let until = match (engine.start_pass(now), arrivals.peek()) {
                (Some(pass), _) => pass.ends_at,
                (None, Some((_, next))) => next.arrival,
                (None, None) => break,
            };
            while samples.next_if(|at| *at <= until).is_some() {
                loads.push(engine.load());
            }
            if !engine.is_between_passes() {
                engine
                    .finish_pass()
                    .into_iter()
                    .for_each(|event| journal.record(event));
            }
            now = until;
        }
        loads.extend(samples.map(|_| engine.load()));
        let preemptions = engine.totals().preemptions;
        Ok(Self {
            journal,
            loads,
            preemptions,
        })
    }
}

fn job(number: usize, request: &Arc<Request>) -> Job {
    Job {
        number,
        request: Arc::clone(request),
        ticket: Ticket {
            router: 1,
            number: number as u64,
        },
    }
}

fn times(stamps: &[Stamps], journal: &Journal) -> Vec<Times> {
    let since_queued = |stamp: fn(&Stamps) -> f64| {
        let times = stamps.iter().map(|stamps| stamp(stamps) - stamps.queued_ts);
        let times: Distribution = times
            .map(|time| Duration::from_secs_f64(time.max(0.0)))
            .collect();
        times.summary()
    };
    vec![
        Times {
            name: "queueing",
            recorded: since_queued(|stamps| stamps.scheduled_ts),
            simulated: journal.queueing().summary(),
        },
        Times {
            name: "time to first token",
            recorded: since_queued(|stamps| stamps.first_token_ts),
            simulated: journal.time_to_first_token().summary(),
        },
        Times {
            name: "end to end",
            recorded: since_queued(|stamps| stamps.last_token_ts),
            simulated: journal.end_to_end().summary(),
        },
    ]
}

fn curves(series: &Series, loads: &[Load]) -> Vec<Curve> {
    let curve = |name, of: fn(&Load) -> f64| {
        let recorded = || series.samples.iter().map(|(_, load)| of(load));
        let simulated = || loads.iter().map(of);
        let count = series.samples.len() as f64;
        let off = recorded().zip(simulated()).map(|(a, b)| (a - b).abs());
        Curve {
            name,
            recorded: recorded().sum::<f64>() / count,
            simulated: simulated().sum::<f64>() / count,
            off_by: off.sum::<f64>() / count,
        }
    };
    vec![
        curve("running", |load| load.running as f64),
        curve("waiting", |load| load.waiting as f64),
        curve("KV use, %", |load| {
            f64::from(load.active_blocks) / f64::from(load.total_blocks) * 100.0
        }),
    ]
}

fn read(folder: &Path, file: &'static str) -> Result<String, CalibrationError> {
    let read = fs::read_to_string(folder.join(file));
    read.map_err(|reason| CalibrationError::Io { file, reason })
}

impl fmt::Display for Calibration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} requests", self.requests)?;
        let mut times = table(&["seconds", "mean", "p50", "p90", "p99"]);
        let mut add = |name: &str, whose: &str, summary: Summary| {
            let seconds = [summary.mean, summary.p50, summary.p90, summary.p99];
            let seconds = seconds.map(|milliseconds| format!("{:.1}", milliseconds / 1e3));
            times.add_row([format!("{name}, {whose}")].into_iter().chain(seconds));
        };
        for (as_it_is, fitted) in self.as_it_is.times.iter().zip(&self.fitted.times) {
            add(as_it_is.name, "recorded", as_it_is.recorded);
            add(as_it_is.name, "simulated", as_it_is.simulated);
            add(as_it_is.name, "fitted", fitted.simulated);
        }
        let mut curves = table(&[
            "mean over time",
            "recorded",
            "simulated",
            "off by",
            "fitted",
            "off by",
        ]);
        for (as_it_is, fitted) in self.as_it_is.curves.iter().zip(&self.fitted.curves) {
            let means = [
                as_it_is.recorded,
                as_it_is.simulated,
                as_it_is.off_by,
                fitted.simulated,
                fitted.off_by,
            ];
            let means = means.map(|mean| format!("{mean:.1}"));
            curves.add_row([as_it_is.name.to_owned()].into_iter().chain(means));
        }
        let preemptions = [self.as_it_is.preemptions, self.fitted.preemptions];
        let [as_it_is, fitted] = preemptions;
        write!(
            f,
            "{times}\n{curves}\n{as_it_is} preemptions simulated, {fitted} fitted"
        )
    }
}

/// Read off the recording: its decode passes take 16.5 ms at 36 % KV use and 25 ms at 97 %; it prefills up to 11,700
/// tokens a second.
const FITTED: Timing = Timing {
    prefill: [0.0, 0.085, 0.0],
    decode: [0.0, 13.0, 12.0],
};
const WORKLOAD: &str = "workload.csv";
const REQUESTS: &str = "requests.jsonl";
const SERIES: &str = "timeseries.csv";
/// The series counts from the start of the run, and begins a second after it.
const FIRST_SAMPLE: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recording_is_compared_request_by_request_and_second_by_second() {
        let folder =
            std::env::temp_dir().join(format!("replay-calibration-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let write = |file, text: &str| fs::write(folder.join(file), text).unwrap();
        write(
            WORKLOAD,
            "arrival_time_ns,input_toks,output_toks\n500000000,1000,1\n",
        );
        let stamps = r#"{"queued_ts": 5.0, "scheduled_ts": 5.1, "first_token_ts": 5.2, "last_token_ts": 5.4}"#;
        write(REQUESTS, stamps);
        write(
            SERIES,
            "t,running,waiting,kv_cache_pct\n1.0,0,0,0.0\n2.0,1,0,50.0\n",
        );
        let calibration = Calibration::new(&folder).unwrap();
        fs::remove_dir_all(&folder).unwrap();
        let mean = |place: usize| {
            let time = &calibration.fitted.times[place];
            (time.recorded.mean.round(), time.simulated.mean)
        };
        assert_eq!(
            [mean(0), mean(1), mean(2)],
            [(100.0, 0.0), (200.0, 85.0), (400.0, 85.0)]
        );
        let kv = &calibration.fitted.curves[2];
        assert_eq!((kv.recorded, kv.simulated, kv.off_by), (25.0, 0.0, 25.0));
    }
}
