//! Rules that decide which model gets the card, on seeded traces in virtual time: loads and latencies of the core's rule
//! beside those of two other gateways. And what one decision costs.
//!
//! Measures decisions, not a card: all figures but those of the last table are the same everywhere. Ratios are geometric
//! means over three seeds for each trace. Targets:
//!
//! | figure | target |
//! |---|---|
//! | loads, p99 and mean latency against collating | ≥ 1.20 × fewer, ≤ 1.10 ×, ≤ 0.90 × |
//! | loads and p99 of B and of C | ≥ 1.20 × fewer, ≤ 0.95 × |
//! | loads and p99 against FIFO-LRU | ≥ 2.5 × fewer, ≤ 0.1 × |
//! | p99 of the model that is asked rarely | ≤ 175 s |
//! | decision, of the rule alone and through the pool | ≤ 10 µs mean, ≤ 50 µs p99 |
//!
//! `cargo bench -p infergate-core --bench swap -- [--check] [--detail]`; with `--check` a missed target is an error. With
//! `--print TRACE SEED MINUTES` it prints the beginning of a trace for `tests/gpu/trace.py`, and nothing else.

#[path = "swap/baselines.rs"]
mod baselines;
#[path = "swap/card.rs"]
mod card;
#[path = "swap/cost.rs"]
mod cost;
#[path = "swap/pool.rs"]
mod pool;
#[path = "swap/report.rs"]
mod report;
#[path = "swap/rule.rs"]
mod rule;
#[path = "swap/trace.rs"]
mod trace;

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    if let Some(at) = arguments.iter().position(|it| it == "--print") {
        return match report::print(&arguments[at + 1..]) {
            Some(()) => ExitCode::SUCCESS,
            None => ExitCode::FAILURE,
        };
    }
    let has = |name: &str| arguments.iter().any(|argument| argument == name);
    let mut missed = report::traces(has("--detail"));
    missed.extend(report::starvation());
    missed.extend(cost::decisions());
    missed.extend(pool::decisions());
    for target in &missed {
        println!("missed: {target}");
    }
    if missed.is_empty() || !has("--check") {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
