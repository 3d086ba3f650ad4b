//! Scenarios, run in interleaved rounds of short windows, and the figures of each label.
//! Not a judge: `targets.rs` compares what is found here with the musts.
//!
//! On a shared machine noise only adds: the figure of a label is the lower decile of its windows. A ratio is
//! that of two lower deciles of the same rounds. Called by the driver.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::kit::figures::Spread;
use crate::kit::process::pinned;
use crate::kit::{Fallible, procfs};
use crate::load::{Plan, Report};
use crate::options::Options;
use crate::targets::label;

/// Things measured beside each other, in the order of a round.
pub struct Scenario {
    pub name: &'static str,
    pub unit: Unit,
    pub entries: Vec<Entry>,
}

/// Unit that CPU time is divided by.
#[derive(Clone, Copy, PartialEq)]
pub enum Unit {
    Request,
    Event,
}

impl Unit {
    pub fn cost(self, report: &Report) -> f64 {
        match self {
            Unit::Request => report.cpu_us_per_answer(),
            Unit::Event => report.cpu_us_per_event(),
        }
    }
}

pub struct Entry {
    pub label: &'static str,
    pub plan: Plan,
}

/// A run with other answers than expected, with errors or without any answer measured something else.
fn is_sound(report: &Report) -> bool {
    report.errors == 0 && report.unexpected == 0 && report.answers + report.events > 0
}

/// Result of a load run.
pub struct Run {
    scenario: &'static str,
    label: &'static str,
    report: Report,
}

/// Measurements so far.
pub struct Measurements {
    rounds: usize,
    /// Print a table for each scenario on standard output.
    details: bool,
    runs: Vec<Run>,
    /// Figures that are measured once, by name and label.
    singles: BTreeMap<(&'static str, &'static str), f64>,
    journal: File,
}

impl Measurements {
    /// `journal` gets one JSON line for each run.
    pub fn new(options: &Options, journal: &Path) -> Fallible<Self> {
        Ok(Self {
            rounds: options.rounds,
            details: !options.markdown,
            runs: Vec::new(),
            singles: BTreeMap::new(),
            journal: File::create(journal)?,
        })
    }

    pub fn note(&mut self, line: &serde_json::Value) -> Fallible<()> {
        Ok(writeln!(self.journal, "{line}")?)
    }

    /// Runs a scenario A B C … C B A …: no label always follows the same one.
    pub fn measure(&mut self, scenario: &Scenario) -> Fallible<()> {
        eprintln!("{} ({} rounds)", scenario.name, self.rounds);
        for round in 0..self.rounds {
            let mut entries: Vec<&Entry> = scenario.entries.iter().collect();
            if round % 2 == 1 {
                entries.reverse();
            }
            for entry in entries {
                let report = load(&entry.plan)?;
                self.note(&serde_json::json!({
                    "scenario": scenario.name,
                    "label": entry.label,
                    "round": round,
                    "load_average": procfs::load_average(),
                    "report": report,
                }))?;
                self.keep(scenario.name, entry.label, round, report);
            }
        }
        if self.details {
            self.print(scenario);
        }
        Ok(())
    }

    /// Keeps a figure that is measured once.
    pub fn record(&mut self, name: &'static str, label: &'static str, value: f64) -> Fallible<()> {
        eprintln!("{name}, {label}: {value:.2}");
        self.singles.insert((name, label), value);
        self.note(&serde_json::json!({ "figure": name, "label": label, "value": value }))
    }

    pub fn single(&self, name: &'static str, label: &'static str) -> Option<Spread> {
        Spread::of(&[*self.singles.get(&(name, label))?])
    }

    fn keep(&mut self, scenario: &'static str, label: &'static str, round: usize, report: Report) {
        if is_sound(&report) {
            self.runs.push(Run {
                scenario,
                label,
                report,
            });
        } else {
            eprintln!(
                "{label} round {round} left out: {} answers, {} unexpected (such as {}), {} errors",
                report.answers, report.unexpected, report.unexpected_status, report.errors
            );
        }
    }

    /// Spread of a figure over the rounds.
    pub fn spread(
        &self,
        scenario: &str,
        label: &str,
        figure: impl Fn(&Report) -> f64,
    ) -> Option<Spread> {
        let values: Vec<f64> = self
            .runs
            .iter()
            .filter(|run| run.scenario == scenario && run.label == label)
            .map(|run| figure(&run.report))
            .collect();
        Spread::of(&values)
    }

    /// Spread of CPU time, in the scenario's unit.
    pub fn cost(&self, scenario: &str, unit: Unit, label: &str) -> Option<Spread> {
        self.spread(scenario, label, |report| unit.cost(report))
    }

    /// CPU time of one label relative to that of another.
    pub fn ratio(&self, scenario: &str, unit: Unit, label: &str, base: &str) -> Option<Spread> {
        let (mine, base) = (
            self.cost(scenario, unit, label)?,
            self.cost(scenario, unit, base)?,
        );
        Some(mine.with(base, |mine, base| mine / base))
    }

    fn print(&self, scenario: &Scenario) {
        let (name, unit) = (scenario.name, scenario.unit);
        let per = match unit {
            Unit::Request => "request",
            Unit::Event => "event",
        };
        println!(
            "\n## {name} ({} rounds): lower decile (median)\n",
            self.rounds
        );
        println!(
            "| proxy | CPU µs/{per} | ÷ bare | requests/s | p50 / p99 / p999 µs | first event p50 / p99 µs | gap p99 µs | peak RSS MB |"
        );
        println!("|---|---|---|---|---|---|---|---|");
        for entry in &scenario.entries {
            let label = entry.label;
            let low = |decimals: usize, figure: &dyn Fn(&Report) -> f64| {
                let spread = self.spread(name, label, figure);
                spread.map_or("–".to_owned(), |spread| {
                    format!("{:.decimals$}", spread.low)
                })
            };
            let both = |spread: Option<Spread>, decimals| {
                spread.map_or("–".to_owned(), |spread| spread.show(decimals))
            };
            let of_stream = |text: String| match entry.plan.stream_pause_us {
                Some(_) => text,
                None => "–".to_owned(),
            };
            println!(
                "| {label} | {} | {} | {} | {} / {} / {} | {} | {} | {} |",
                both(self.cost(name, unit, label), 1),
                both(self.ratio(name, unit, label, label::BARE), 2),
                low(0, &Report::answers_per_s),
                low(0, &|report| report.latency.p50_us as f64),
                low(0, &|report| report.latency.p99_us as f64),
                low(0, &|report| report.latency.p999_us as f64),
                of_stream(format!(
                    "{} / {}",
                    low(0, &|report| report.first_event.p50_us as f64),
                    low(0, &|report| report.first_event.p99_us as f64)
                )),
                of_stream(low(0, &|report| report.gap.p99_us as f64)),
                low(1, &|report| report.peak_rss_kib as f64 / 1024.0),
            );
        }
    }
}

/// Runs the load generator in a process of its own.
pub fn load(plan: &Plan) -> Fallible<Report> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("load").arg(serde_json::to_string(plan)?);
    let output = pinned(command, Some(&plan.core))
        .stderr(Stdio::inherit())
        .output()?;
    if !output.status.success() {
        return Err(format!("the load generator ended with {}", output.status).into());
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}
