//! Tables of the traces, and the targets that they miss.
//!
//! Not the traces, nor the rules that play them.

use std::ops::RangeInclusive;

use infergate_core::Millis;
use infergate_core::vram::{SwapPolicy, SwapRule};

use crate::baselines::{Collating, FifoLru};
use crate::card::{Card, Policy, play};
use crate::rule::CoreRule;
use crate::trace::{NAMES, PERMITS, Random, STOP_MS, Trace, starvation as starvation_trace, trace};

/// Seeds of the targets.
const SEEDS: RangeInclusive<u64> = 1..=3;
/// Seeds on which nothing was chosen: a rule that fits the others by chance shows here.
const OTHER_SEEDS: RangeInclusive<u64> = 201..=230;

/// A rule of the tables.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rule {
    Collating,
    FifoLru,
    Turns,
    /// The rule with more patience.
    Patient,
    /// The rule with load times that are half of the true ones, or half as much again.
    WrongLoads,
    /// The other policy of the core.
    Lru,
}

const COMPARED: [(Rule, &str); 5] = [
    (Rule::FifoLru, "FIFO-LRU"),
    (Rule::Turns, "turns"),
    (Rule::Patient, "turns, patience 32"),
    (Rule::WrongLoads, "turns, load times ± 50 %"),
    (Rule::Lru, "lru of the core"),
];

impl Rule {
    fn play(self, trace: &Trace, seed: u64) -> Card {
        let mut policy = self.policy(trace, seed);
        play(trace, &mut *policy)
    }

    fn policy(self, trace: &Trace, seed: u64) -> Box<dyn Policy> {
        let rule = SwapRule::default();
        let rule = match self {
            Rule::Collating => return Box::new(Collating::default()),
            Rule::FifoLru => return Box::new(FifoLru::default()),
            Rule::Turns | Rule::WrongLoads => rule,
            Rule::Patient => SwapRule {
                patience: 32,
                ..rule
            },
            Rule::Lru => SwapRule {
                policy: SwapPolicy::Lru,
                ..rule
            },
        };
        let mut random = Random(seed);
        let loads = trace.models.iter().map(|model| {
            let halves = match (self, random.unit() < 0.5) {
                (Rule::WrongLoads, true) => 1,
                (Rule::WrongLoads, false) => 3,
                _ => 2,
            };
            Millis(model.load_ms * halves / 2)
        });
        Box::new(CoreRule::new(rule, trace, loads.collect()))
    }
}

/// Figures of one run, times in seconds.
#[derive(Clone, Copy)]
struct Run {
    loads: f64,
    p99: f64,
    mean: f64,
}

impl Run {
    fn of(card: &Card) -> Run {
        let latencies: Vec<u64> = card.latencies.iter().map(|(_, ms)| *ms).collect();
        let sum: u64 = latencies.iter().sum();
        Run {
            loads: card.loads as f64,
            mean: sum as f64 / latencies.len() as f64 / 1000.0,
            p99: p99_secs(latencies),
        }
    }
}

fn p99_secs(mut latencies: Vec<u64>) -> f64 {
    latencies.sort_unstable();
    latencies[(latencies.len() * 99).div_ceil(100) - 1] as f64 / 1000.0
}

/// Ratios of one rule to another, as sums of logarithms.
#[derive(Clone, Copy, Default)]
struct Ratios {
    sums: [f64; 3],
    count: f64,
}

impl Ratios {
    fn add(&mut self, run: &Run, base: &Run) {
        let ratios = [
            base.loads / run.loads,
            run.p99 / base.p99,
            run.mean / base.mean,
        ];
        for (sum, ratio) in self.sums.iter_mut().zip(ratios) {
            *sum += ratio.ln();
        }
        self.count += 1.0;
    }

    /// Returns the geometric means: fewer loads by this factor, p99 and mean latency times this factor.
    fn means(&self) -> [f64; 3] {
        self.sums.map(|sum| (sum / self.count).exp())
    }

    fn text(&self) -> String {
        let [loads, p99, mean] = self.means();
        format!("{loads:.2} / {p99:.2} / {mean:.2}")
    }
}

/// Ratios of a rule to another: all runs together, and those of each trace.
fn compare(rule: Rule, base: Rule, seeds: RangeInclusive<u64>) -> (Ratios, Vec<Ratios>) {
    let mut all = Ratios::default();
    let mut of_traces = Vec::new();
    for name in NAMES {
        let mut of_trace = Ratios::default();
        for seed in seeds.clone() {
            let trace = trace(name, seed);
            let run = Run::of(&rule.play(&trace, seed));
            let base = Run::of(&base.play(&trace, seed));
            of_trace.add(&run, &base);
            all.add(&run, &base);
        }
        of_traces.push(of_trace);
    }
    (all, of_traces)
}

/// Prints the beginning of a trace as JSON, a line each: its card with its models, then its requests. The first line has also
/// what both policies of the core make of it in virtual time.
///
/// Returns `None` unless the arguments are a trace, a seed and minutes.
pub fn print(arguments: &[String]) -> Option<()> {
    let [name, seed, minutes] = arguments else {
        return None;
    };
    let (seed, minutes): (u64, u64) = (seed.parse().ok()?, minutes.parse().ok()?);
    let name = NAMES.iter().find(|known| *known == name)?;
    let mut trace = trace(name, seed);
    trace.requests.retain(|it| it.at_ms < minutes * 60_000);
    let played = [("turns", Rule::Turns), ("lru", Rule::Lru)].map(|(policy, rule)| {
        let run = Run::of(&rule.play(&trace, seed));
        let (loads, mean, p99) = (run.loads, run.mean, run.p99);
        format!(r#""{policy}":{{"loads":{loads},"mean_secs":{mean:.1},"p99_secs":{p99:.1}}}"#)
    });
    let models = trace.models.iter().map(|model| {
        let (mib, load_ms) = (model.mib, model.load_ms);
        format!(r#"{{"mib":{mib},"load_ms":{load_ms}}}"#)
    });
    let (card_mib, models) = (trace.card_mib, models.collect::<Vec<_>>().join(","));
    let played = played.join(",");
    println!(
        r#"{{"card_mib":{card_mib},"permits":{PERMITS},"stop_ms":{STOP_MS},"models":[{models}],{played}}}"#
    );
    for request in &trace.requests {
        let (at_ms, model, account) = (request.at_ms, request.model, request.account);
        let service_ms = request.service_ms;
        println!(
            r#"{{"at_ms":{at_ms},"model":{model},"account":{account},"service_ms":{service_ms}}}"#
        );
    }
    Some(())
}

/// Prints the tables of traces A to E; returns the targets that are missed.
pub fn traces(has_detail: bool) -> Vec<String> {
    let mut missed = Vec::new();
    println!("Against collating: fewer loads / p99 / mean");
    println!("| rule | all | {} |", NAMES.join(" | "));
    println!("|---|---|{}", "---|".repeat(NAMES.len()));
    for (rule, name) in COMPARED {
        let (all, of_traces) = compare(rule, Rule::Collating, SEEDS);
        row(name, &all, &of_traces);
        match rule {
            Rule::Turns => check_turns(&all, &of_traces, &mut missed),
            Rule::FifoLru => check_baselines(&all, &mut missed),
            Rule::Collating | Rule::Patient | Rule::WrongLoads | Rule::Lru => {}
        }
    }
    let (all, of_traces) = compare(Rule::Turns, Rule::Collating, OTHER_SEEDS);
    row("turns, 30 other seeds", &all, &of_traces);
    let (all, _) = compare(Rule::Turns, Rule::FifoLru, SEEDS);
    println!("\nTurns against FIFO-LRU: {}", all.text());
    let [loads, p99, _] = all.means();
    expect(loads >= 2.5, "2.5 × fewer loads than FIFO-LRU", &mut missed);
    expect(p99 <= 0.1, "p99 0.1 × that of FIFO-LRU", &mut missed);
    if has_detail {
        runs();
    }
    missed
}

fn row(name: &str, all: &Ratios, of_traces: &[Ratios]) {
    let cells: Vec<String> = of_traces.iter().map(Ratios::text).collect();
    println!("| {name} | {} | {} |", all.text(), cells.join(" | "));
}

/// Prints each run.
fn runs() {
    println!("\n| run | rule | loads | p99 s | mean s |");
    println!("|---|---|---|---|---|");
    for (name, seed) in NAMES
        .iter()
        .flat_map(|name| SEEDS.map(move |seed| (name, seed)))
    {
        let trace = trace(name, seed);
        for (rule, rule_name) in COMPARED.iter().chain(&[(Rule::Collating, "collating")]) {
            let Run { loads, p99, mean } = Run::of(&rule.play(&trace, seed));
            println!("| {name}{seed} | {rule_name} | {loads} | {p99:.1} | {mean:.1} |");
        }
    }
}

fn expect(holds: bool, target: &str, missed: &mut Vec<String>) {
    if !holds {
        missed.push(target.to_owned());
    }
}

fn check_turns(all: &Ratios, of_traces: &[Ratios], missed: &mut Vec<String>) {
    let [loads, p99, mean] = all.means();
    expect(loads >= 1.2, "1.20 × fewer loads than collating", missed);
    expect(p99 <= 1.1, "p99 1.10 × that of collating", missed);
    expect(mean <= 0.9, "mean 0.90 × that of collating", missed);
    for (name, ratios) in NAMES.iter().zip(of_traces) {
        if ["B", "C"].contains(name) {
            let [loads, p99, _] = ratios.means();
            expect(loads >= 1.2, &format!("{name}: 1.20 × fewer loads"), missed);
            expect(p99 <= 0.95, &format!("{name}: p99 0.95 ×"), missed);
        }
    }
}

/// Holds the baselines to their first measurement, 2.6 × loads and 45 × p99, within 25 %.
fn check_baselines(all: &Ratios, missed: &mut Vec<String>) {
    let [fewer, p99, _] = all.means();
    let has_loads = (1.95..=3.25).contains(&(1.0 / fewer));
    expect(has_loads, "FIFO-LRU: 2.6 × loads ± 25 %", missed);
    let has_p99 = (33.75..=56.25).contains(&p99);
    expect(has_p99, "FIFO-LRU: 45 × p99 ± 25 %", missed);
}

/// Prints the waits of a model that is asked rarely beside one that is overloaded.
pub fn starvation() -> Vec<String> {
    let mut missed = Vec::new();
    println!("\nStarvation: p99 of the model that is asked rarely, and loads");
    println!("| seed | turns | collating |");
    println!("|---|---|---|");
    for seed in SEEDS {
        let trace = starvation_trace(seed);
        let figures = |rule: Rule| {
            let card = rule.play(&trace, seed);
            let rare = card.latencies.iter().filter(|(model, _)| *model == 1);
            (p99_secs(rare.map(|(_, ms)| *ms).collect()), card.loads)
        };
        let (turns, collating) = (figures(Rule::Turns), figures(Rule::Collating));
        println!(
            "| {seed} | {:.0} s, {} | {:.0} s, {} |",
            turns.0, turns.1, collating.0, collating.1
        );
        let is_bounded = turns.0 <= 175.0;
        expect(
            is_bounded,
            &format!("starvation {seed}: p99 175 s"),
            &mut missed,
        );
    }
    missed
}
