//! Scenarios, run in interleaved rounds, and the ratios taken inside each round.
//! Not a judge: `targets.rs` compares what is found here with the goals.
//!
//! On a shared machine absolute figures drift by half within minutes; two programs measured seconds apart
//! drift together, so only same-round ratios are compared. Called by the driver.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::kit::figures::Spread;
use crate::kit::process::pinned;
use crate::kit::{Fallible, procfs};
use crate::load::{Plan, Report};

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
    pub scenario: &'static str,
    pub label: &'static str,
    pub round: usize,
    pub report: Report,
}

/// Measurements so far.
pub struct Measurements {
    rounds: usize,
    load_core: String,
    runs: Vec<Run>,
    journal: File,
}

impl Measurements {
    /// `journal` gets one JSON line for each run.
    pub fn new(rounds: usize, load_core: &str, journal: &Path) -> Fallible<Self> {
        Ok(Self {
            rounds,
            load_core: load_core.to_owned(),
            runs: Vec::new(),
            journal: File::create(journal)?,
        })
    }

    pub fn note(&mut self, line: &serde_json::Value) -> Fallible<()> {
        Ok(writeln!(self.journal, "{line}")?)
    }

    /// Runs a scenario A B C … A B C … and prints its table.
    pub fn measure(&mut self, scenario: &Scenario) -> Fallible<()> {
        println!("\n## {} ({} rounds)", scenario.name, self.rounds);
        for round in 0..self.rounds {
            for entry in &scenario.entries {
                let report = self.load(&entry.plan)?;
                self.note(&serde_json::json!({
                    "scenario": scenario.name,
                    "label": entry.label,
                    "round": round,
                    "load_average": procfs::load_average(),
                    "report": report,
                }))?;
                if is_sound(&report) {
                    self.runs.push(Run {
                        scenario: scenario.name,
                        label: entry.label,
                        round,
                        report,
                    });
                } else {
                    println!(
                        "{} round {round} left out: {} answers, {} unexpected (such as {}), {} errors",
                        entry.label,
                        report.answers,
                        report.unexpected,
                        report.unexpected_status,
                        report.errors
                    );
                }
            }
        }
        self.print(scenario);
        Ok(())
    }

    /// Runs the load generator in a process of its own.
    pub fn load(&self, plan: &Plan) -> Fallible<Report> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("load").arg(serde_json::to_string(plan)?);
        let output = pinned(command, Some(&self.load_core))
            .stderr(Stdio::inherit())
            .output()?;
        if !output.status.success() {
            return Err(format!("the load generator ended with {}", output.status).into());
        }
        Ok(serde_json::from_slice(&output.stdout)?)
    }

    fn of<'c>(&'c self, scenario: &'c str, label: &'c str) -> impl Iterator<Item = &'c Run> {
        self.runs
            .iter()
            .filter(move |run| run.scenario == scenario && run.label == label)
    }

    /// Spread of a figure over all rounds.
    pub fn spread(
        &self,
        scenario: &str,
        label: &str,
        figure: impl Fn(&Report) -> f64,
    ) -> Option<Spread> {
        let values: Vec<f64> = self
            .of(scenario, label)
            .map(|run| figure(&run.report))
            .collect();
        Spread::of(&values)
    }

    /// Combines a figure of two labels of the same round; rounds in which either is missing are left out.
    pub fn paired(
        &self,
        scenario: &str,
        label: &str,
        base: &str,
        figure: impl Fn(&Report, &Report) -> f64,
    ) -> Option<Spread> {
        let mut values = Vec::new();
        for run in self.of(scenario, label) {
            for other in self
                .of(scenario, base)
                .filter(|other| other.round == run.round)
            {
                values.push(figure(&run.report, &other.report));
            }
        }
        Spread::of(&values)
    }

    fn print(&self, scenario: &Scenario) {
        let cost = match scenario.unit {
            Unit::Request => Report::cpu_us_per_answer,
            Unit::Event => Report::cpu_us_per_event,
        };
        let per = match scenario.unit {
            Unit::Request => "request",
            Unit::Event => "event",
        };
        println!(
            "| proxy | CPU µs/{per} | ÷ bare | requests/s | p50 µs | p99 µs | first event p50 / p99 µs | gap p99 µs | peak RSS MB |"
        );
        println!("|---|---|---|---|---|---|---|---|---|");
        for entry in &scenario.entries {
            let label = entry.label;
            let show = |decimals: usize, figure: &dyn Fn(&Report) -> f64| {
                self.spread(scenario.name, label, figure)
                    .map_or("–".to_owned(), |spread| {
                        format!("{:.decimals$}", spread.median)
                    })
            };
            let show_spread = |spread: Option<Spread>, decimals| {
                spread.map_or("–".to_owned(), |spread| spread.show(decimals))
            };
            let streams = entry.plan.stream_pause_us.is_some();
            let first_event = match streams {
                true => format!(
                    "{} / {}",
                    show(0, &|report| report.first_event.p50_us as f64),
                    show(0, &|report| report.first_event.p99_us as f64)
                ),
                false => "–".to_owned(),
            };
            let gap = match streams {
                true => show(0, &|report| report.gap.p99_us as f64),
                false => "–".to_owned(),
            };
            println!(
                "| {label} | {} | {} | {} | {} | {} | {first_event} | {gap} | {} |",
                show_spread(self.spread(scenario.name, label, cost), 1),
                show_spread(
                    self.paired(scenario.name, label, "bare", |mine, bare| cost(mine)
                        / cost(bare)),
                    2
                ),
                show(0, &Report::answers_per_s),
                show(0, &|report| report.latency.p50_us as f64),
                show(0, &|report| report.latency.p99_us as f64),
                show(1, &|report| report.peak_rss_kib as f64 / 1024.0),
            );
        }
    }
}
