//! The engines of a fleet: what they are like, and what they report when.

use clap::ValueEnum;

use kv_engine_sim::EngineConfig;

/// What the engines of a fleet are like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FleetPlan {
    pub(crate) fleet: Fleet,
    pub(crate) backlog: Backlog,
    pub(crate) report_on: ReportOn,
}

/// Whether engines differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Fleet {
    /// All alike
    Even,
    /// The first half has half the blocks; the first and the last take twice the time
    Mixed,
}

/// Which engines report the blocks of prompts that they still have to compute.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Backlog {
    None,
    /// Every other one
    Half,
    All,
}

/// When an engine reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ReportOn {
    /// After each pass
    Pass,
    /// After each pass, and when a request arrives
    Arrival,
}

impl FleetPlan {
    pub(crate) fn engines(self, workers: usize) -> Vec<EngineConfig> {
        let engine = |number: usize| {
            let mut engine = EngineConfig {
                reports_backlog: match self.backlog {
                    Backlog::None => false,
                    Backlog::Half => number % 2 == 1,
                    Backlog::All => true,
                },
                reports_arrivals: self.report_on == ReportOn::Arrival,
                ..EngineConfig::default()
            };
            if self.fleet == Fleet::Mixed {
                if number < workers / 2 {
                    engine.total_blocks /= 2;
                }
                // One that has few blocks, and one that has many.
                if number == 0 || number + 1 == workers {
                    engine.timing = engine.timing.slower(SLOW);
                }
            }
            engine
        };
        (0..workers).map(engine).collect()
    }
}

/// How many times as long a slow engine takes.
const SLOW: f64 = 2.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mixed_fleet_differs_in_blocks_and_in_speed_and_half_of_each_reports_backlog() {
        let plan = FleetPlan {
            fleet: Fleet::Mixed,
            backlog: Backlog::Half,
            report_on: ReportOn::Arrival,
        };
        let engines = plan.engines(8);
        let default = EngineConfig::default();
        let blocks: Vec<_> = engines.iter().map(|engine| engine.total_blocks).collect();
        assert_eq!(blocks, [[8_192; 4], [16_384; 4]].concat());
        let slow = |engine: &EngineConfig| engine.timing == default.timing.slower(2.0);
        let slow: Vec<_> = (0..8).filter(|number| slow(&engines[*number])).collect();
        assert_eq!(slow, [0, 7]);
        let backlog = engines.iter().map(|engine| engine.reports_backlog);
        assert_eq!(backlog.collect::<Vec<_>>(), [false, true].repeat(4));
        assert!(engines.iter().all(|engine| engine.reports_arrivals));
    }

    #[test]
    fn an_even_fleet_is_of_default_engines() {
        let plan = FleetPlan {
            fleet: Fleet::Even,
            backlog: Backlog::None,
            report_on: ReportOn::Pass,
        };
        assert_eq!(plan.engines(2), [(); 2].map(|()| EngineConfig::default()));
    }
}
