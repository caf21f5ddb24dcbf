//! Recorded load series: CSV files in three forms, told apart by their headers.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use csv::StringRecord;

use kv_engine_sim::Load;

/// One worker's recorded load, in the order of time, counted from the first sample.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Series {
    pub(crate) name: String,
    /// Never empty.
    pub(crate) samples: Vec<(Duration, Load)>,
    /// Rows in which the scrape had found nothing.
    pub(crate) missing: usize,
}

#[derive(Debug, thiserror::Error)]
#[error("{}: {reason}", path.display())]
pub(crate) struct SeriesError {
    path: PathBuf,
    reason: Reason,
}

#[derive(Debug, thiserror::Error)]
enum Reason {
    #[error(transparent)]
    Io(#[from] std::io::Error),
    #[error(transparent)]
    Csv(#[from] csv::Error),
    #[error("the header is of no known series")]
    Unknown,
    #[error("line {line}: {column} is {value:?}, not a number in its range")]
    Value {
        line: u64,
        column: &'static str,
        value: String,
    },
    #[error("it has no samples")]
    Empty,
}

/// Names of the columns of a form, and how its KV use counts.
#[derive(Debug, Clone, Copy)]
struct Form {
    time: &'static str,
    kv: &'static str,
    waiting: &'static str,
    running: &'static str,
    /// What a full cache is written as.
    full: f64,
    /// A `0` without decimals stands for a scrape that found nothing.
    bare_zero_is_missing: bool,
}

const FORMS: [Form; 3] = [
    Form {
        time: "time [s]",
        kv: "gpu_cache_usage_perc",
        waiting: "num_requests_waiting",
        running: "num_requests_running",
        full: 1.0,
        bare_zero_is_missing: true,
    },
    Form {
        time: "timestamp",
        kv: "gpu_kvcache_usage",
        waiting: "num_pending",
        running: "num_running",
        full: 100.0,
        bare_zero_is_missing: false,
    },
    Form {
        time: "t",
        kv: "kv_cache_pct",
        waiting: "waiting",
        running: "running",
        full: 100.0,
        bare_zero_is_missing: false,
    },
];

impl Series {
    /// Reads a series. The capacity is that of the metrics page beside it, if there is one
    /// (`cache_config_server_0.txt` beside `metrics_engine_server_0.csv`), else [`BLOCKS`].
    ///
    /// # Errors
    ///
    /// If the file can't be read or is no series.
    pub(crate) fn read(path: &Path) -> Result<Self, SeriesError> {
        let read = || {
            let text = fs::read_to_string(path)?;
            Self::parse(&text, capacity(path).unwrap_or(BLOCKS))
        };
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        match read() {
            Ok(series) => Ok(Self {
                name: name.into_owned(),
                ..series
            }),
            Err(reason) => Err(SeriesError {
                path: path.to_owned(),
                reason,
            }),
        }
    }

    fn parse(text: &str, blocks: u32) -> Result<Self, Reason> {
        let mut reader = csv::ReaderBuilder::new()
            .trim(csv::Trim::All)
            .from_reader(text.as_bytes());
        let columns = Columns::find(reader.headers()?)?;
        let mut samples = Vec::new();
        let mut missing = 0;
        for record in reader.records() {
            match columns.sample(&record?, blocks)? {
                Some(sample) => samples.push(sample),
                None => missing += 1,
            }
        }
        samples.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        let first = samples.first().ok_or(Reason::Empty)?.0;
        let since_first = |(at, load): (f64, Load)| (Duration::from_secs_f64(at - first), load);
        Ok(Self {
            name: String::new(),
            samples: samples.into_iter().map(since_first).collect(),
            missing,
        })
    }
}

/// Where the columns of a form are.
struct Columns {
    form: Form,
    time: usize,
    kv: usize,
    waiting: usize,
    running: usize,
}

impl Columns {
    fn find(header: &StringRecord) -> Result<Self, Reason> {
        let place = |name| header.iter().position(|column| column == name);
        let find = |form: Form| {
            Some(Self {
                form,
                time: place(form.time)?,
                kv: place(form.kv)?,
                waiting: place(form.waiting)?,
                running: place(form.running)?,
            })
        };
        FORMS.into_iter().find_map(find).ok_or(Reason::Unknown)
    }

    /// Seconds and the load; `None` if the scrape had found nothing.
    fn sample(&self, record: &StringRecord, blocks: u32) -> Result<Option<(f64, Load)>, Reason> {
        let form = self.form;
        let number = |place: usize, column: &'static str, most: f64| match record[place].parse() {
            Ok(value) if (0.0..=most).contains(&value) => Ok(value),
            _ => Err(Reason::Value {
                line: record.position().map_or(0, csv::Position::line),
                column,
                value: record[place].to_owned(),
            }),
        };
        let bare_zero = [self.kv, self.waiting]
            .iter()
            .any(|column| &record[*column] == "0");
        if form.bare_zero_is_missing && bare_zero {
            return Ok(None);
        }
        let used: f64 = number(self.kv, form.kv, form.full)? / form.full;
        let waiting: f64 = number(self.waiting, form.waiting, f64::from(u32::MAX))?;
        let running: f64 = number(self.running, form.running, f64::from(u32::MAX))?;
        let load = Load {
            active_blocks: (used * f64::from(blocks)).round() as u32,
            total_blocks: blocks,
            waiting: waiting as usize,
            running: running as usize,
            prefix_hit_rate: 0.0,
            prefill_blocks: None,
        };
        Ok(Some((
            number(self.time, form.time, f64::from(u32::MAX))?,
            load,
        )))
    }
}

/// Of the `cache_config_info` gauge on the metrics page beside the series.
fn capacity(series: &Path) -> Option<u32> {
    let name = series.file_stem()?.to_str()?;
    let page = name.replace("metrics_engine", "cache_config");
    let text = fs::read_to_string(series.with_file_name(page).with_extension("txt")).ok()?;
    let (_, rest) = text.split_once("num_gpu_blocks=\"")?;
    rest.split_once('"')?.0.parse().ok()
}

/// Capacity of an engine that doesn't tell: its series tell shares.
const BLOCKS: u32 = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(text: &str) -> Vec<(f64, u32, usize)> {
        let series = Series::parse(text, 1_000).unwrap();
        let samples = series.samples.iter();
        samples
            .map(|(at, load)| (at.as_secs_f64(), load.active_blocks, load.waiting))
            .collect()
    }

    #[test]
    fn three_forms_are_told_apart_by_their_headers() {
        let shares = "time [s],gpu_cache_usage_perc,num_requests_running,num_requests_waiting\n\
                      0.5,0.25,1.0,2.0\n1.5,0,0,0\n2.5,0.5,1.0,0.0\n";
        assert_eq!(blocks(shares), [(0.0, 250, 2), (2.0, 500, 0)]);
        assert_eq!(Series::parse(shares, 1_000).unwrap().missing, 1);
        let percents =
            "timestamp,num_running,num_pending,gpu_kvcache_usage\n100.0,1,3,50.0\n100.5,1,0,0\n";
        assert_eq!(blocks(percents), [(0.0, 500, 3), (0.5, 0, 0)]);
        assert_eq!(
            blocks("t,running,waiting,kv_cache_pct\n1.0,1,7,1.5\n"),
            [(0.0, 15, 7)]
        );
    }

    #[test]
    fn what_is_no_series_is_refused_with_its_reason() {
        let told = |text| Series::parse(text, 10).unwrap_err().to_string();
        assert_eq!(told("a,b\n1,2\n"), "the header is of no known series");
        assert_eq!(
            told("t,running,waiting,kv_cache_pct\n"),
            "it has no samples"
        );
        assert_eq!(
            told("t,running,waiting,kv_cache_pct\n1,1,1,101\n"),
            "line 2: kv_cache_pct is \"101\", not a number in its range"
        );
    }
}
