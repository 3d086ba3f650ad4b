//! Item 4: more is asked than the backend can do, up to ten times as much.
//! Not a latency bench: it counts what was finished, and what was refused in time.
//!
//! Eight permits of 100 ms each; capacity C is measured at the backend itself by eight closed loops.

use std::time::Duration;

use tokio::runtime::Runtime;

use crate::client::ChatRequest;
use crate::crowd::{self, Backlog, Sample, goodput, quantile_ms};
use crate::kit::Fallible;
use crate::kit::gateway::Account;
use crate::stand::{MODEL, PERMITS, SERVICE_MS, Scale, TestBed};
use crate::table::Table;

const ACCOUNT: &str = "acme";
const STEPS: [f64; 5] = [1.0, 2.0, 3.0, 5.0, 10.0];
const DEADLINE_MS: u64 = 2_000;
/// Two runs on two days offer the same arrivals.
const SEED: u64 = 4;
/// The beginning of a step that is not counted: permits and queue fill.
const FILLING: Duration = Duration::from_secs(1);
/// Times the sum of permits: a line of 1,000.
const LINE_OF_1000: u32 = 125;

pub fn run(runtime: &Runtime, scale: Scale, table: &mut Table) -> Fallible<()> {
    let capacity = steps(runtime, scale, table)?;
    long_line(runtime, scale, capacity, table)
}

fn ask() -> ChatRequest {
    ChatRequest {
        deadline_ms: Some(DEADLINE_MS),
        ..ChatRequest::plain(ACCOUNT, MODEL, SERVICE_MS)
    }
}

/// The five steps and the fall to 0.8; gives back C.
fn steps(runtime: &Runtime, scale: Scale, table: &mut Table) -> Fallible<f64> {
    let stand = TestBed::open(
        "overload",
        runtime,
        vec![Account::new(ACCOUNT)],
        PERMITS,
        "fair",
        2,
    )?;
    let capacity = measure_capacity(runtime, &stand, scale);
    println!("C = {capacity:.2} requests/s");

    let mut goodputs: Vec<f64> = Vec::new();
    let mut slowest_refusal_ms: f64 = 0.0;
    for times in STEPS {
        let offered = times * capacity;
        let samples = runtime.block_on(crowd::arrivals(
            &stand.client,
            &ask(),
            offered,
            scale.step,
            SEED,
        ));
        let good = goodput(&samples, FILLING, scale.step);
        let (arrived, goal) = match times {
            1.0 => (arrival_rate(&samples, scale.step), 0.94),
            _ => (capacity, 0.97),
        };
        let possible = arrived.min(capacity);
        table.add(
            "4",
            format!("goodput at {times} × C ({})", counts(&samples)),
            format!("≥ {:.0} % of {possible:.1}/s", goal * 100.0),
            format!("{:.1} % ({good:.1}/s)", good / possible * 100.0),
            good >= goal * possible,
        );
        if let Some(before) = goodputs.last() {
            table.add(
                "4",
                format!("goodput at {times} × C against the step before"),
                "≥ 98 %",
                format!("{:.1} %", good / before * 100.0),
                good >= 0.98 * before,
            );
        }
        let refusal_ms = quantile_ms(samples.iter().filter(|sample| sample.status == 429), 0.99);
        slowest_refusal_ms = slowest_refusal_ms.max(refusal_ms);
        goodputs.push(good);
    }
    let after = runtime.block_on(crowd::arrivals(
        &stand.client,
        &ask(),
        0.8 * capacity,
        scale.step.min(Duration::from_secs(10)),
        SEED,
    ));
    let last_refusal = after
        .iter()
        .filter(|sample| sample.status != 200)
        .map(|sample| sample.sent)
        .max()
        .unwrap_or_default();
    table.add(
        "4",
        "last refusal after the fall to 0.8 × C",
        "≤ 2 s",
        format!("{:.2} s", last_refusal.as_secs_f64()),
        last_refusal <= Duration::from_secs(2),
    );
    table.add(
        "4",
        "p99 of a 429, worst step",
        "≤ 5 ms",
        format!("{slowest_refusal_ms:.2} ms"),
        slowest_refusal_ms <= 5.0,
    );
    judge_backend(&stand, "steps", table);
    table.keep(stand.close()?);
    Ok(capacity)
}

/// A line of 1,000 whose end could never be served within the deadline.
fn long_line(runtime: &Runtime, scale: Scale, capacity: f64, table: &mut Table) -> Fallible<()> {
    let accounts = vec![Account::new(ACCOUNT)];
    let stand = TestBed::open(
        "long-line",
        runtime,
        accounts,
        PERMITS,
        "fifo",
        LINE_OF_1000,
    )?;
    let offered = 5.0 * capacity;
    let samples = runtime.block_on(crowd::arrivals(
        &stand.client,
        &ask(),
        offered,
        scale.step,
        SEED,
    ));
    let good = goodput(&samples, FILLING, scale.step);
    table.add(
        "4",
        format!("line of 1,000, 2 s deadline, 5 × C ({})", counts(&samples)),
        "goodput ≥ 90 % of C",
        format!("{:.1} % ({good:.1}/s)", good / capacity * 100.0),
        good >= 0.9 * capacity,
    );
    judge_backend(&stand, "line of 1,000", table);
    table.keep(stand.close()?);
    Ok(())
}

/// Goodput of eight closed loops directly at the backend.
fn measure_capacity(runtime: &Runtime, stand: &TestBed, scale: Scale) -> f64 {
    let length = scale.step.min(Duration::from_secs(10));
    let loops = [Backlog {
        ask: ChatRequest::plain(ACCOUNT, MODEL, SERVICE_MS),
        open: PERMITS as usize,
    }];
    let samples = runtime.block_on(crowd::mixed(&stand.direct, &loops, &[], length));
    goodput(&samples, FILLING, length)
}

fn judge_backend(stand: &TestBed, what: &str, table: &mut Table) {
    let high_water = stand.book.high_water();
    table.add(
        "4",
        format!("{what}: high-water mark at the backend"),
        format!("≤ {PERMITS}"),
        high_water.to_string(),
        high_water <= u64::from(PERMITS),
    );
    let late = stand.book.started_late();
    table.add(
        "4",
        format!("{what}: started after the deadline"),
        "0",
        late.to_string(),
        late == 0,
    );
}

fn arrival_rate(samples: &[Sample], length: Duration) -> f64 {
    let arrived = samples
        .iter()
        .filter(|sample| sample.sent >= FILLING)
        .count();
    arrived as f64 / (length - FILLING).as_secs_f64()
}

/// `2388 × 200, 4011 × 429`.
pub fn counts(samples: &[Sample]) -> String {
    let mut by_status: std::collections::BTreeMap<u16, usize> = Default::default();
    for sample in samples {
        *by_status.entry(sample.status).or_default() += 1;
    }
    let parts: Vec<String> = by_status
        .into_iter()
        .map(|(status, count)| format!("{count} × {status}"))
        .collect();
    parts.join(", ")
}
