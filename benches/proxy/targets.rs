//! The goals of `design/performance.md` as far as this bench measures them, and the verdict on each.
//! Not the measuring: it reads what `contest.rs` and `memory.rs` found.
//!
//! A figure that misses its goal while its best round reaches it is called so: on a noisy machine that
//! difference is the machine's. Called by the driver at the end.

use crate::contest::Measurements;
use crate::kit::figures::Spread;
use crate::load::Report;
use crate::memory::Memory;

/// Names of the scenarios, as tables and targets share them.
pub mod scenario {
    pub const SMALL: &str = "small JSON, 2 KB in, 612 B out, 32 connections, closed loop";
    pub const ONE_CONNECTION: &str = "small JSON, 1 connection, closed loop";
    pub const OPEN: &str = "small JSON, open loop, 1,000 requests/s";
    pub const PACED: &str = "SSE paced, 64 streams, 5 ms between events";
    pub const BURST: &str = "SSE burst, 16 streams, no pause";
    pub const BODY_32K: &str = "32 KB bodies, 16 connections";
    pub const BODY_100K: &str = "100 KB bodies, 16 connections";
    pub const BODY_256K: &str = "256 KB bodies, 16 connections";
    pub const BODY_1M: &str = "1 MB bodies, 8 connections";
    pub const REFUSALS: &str = "refusals, 32 connections";
    pub const SIZES: &str = "threads and configuration sizes, 32 connections";
}

/// Labels of what is measured.
pub mod label {
    pub const DIRECT: &str = "direct";
    pub const INFERGATE: &str = "infergate";
    pub const WITH_PLUGINS: &str = "infergate, plugins";
    pub const VLLM_ROUTER: &str = "vllm-router";
    pub const SGLANG_ROUTER: &str = "sglang-router";
    pub const BARE: &str = "bare";
    pub const HYPER: &str = "hyper";
    pub const PROXIED: &str = "infergate, proxied";
    pub const FULL_429: &str = "infergate, 429";
    pub const UNKNOWN_401: &str = "infergate, 401";
    pub const TWO_THREADS: &str = "infergate, 2 threads";
    pub const MANY_ACCOUNTS: &str = "infergate, 10,000 accounts";
    pub const MANY_MODELS: &str = "infergate, 1,000 models";
    pub const MANY_ENDPOINTS: &str = "infergate, 256 endpoints";
}

#[derive(Clone, Copy, PartialEq)]
pub enum Verdict {
    Met,
    /// Median beyond the goal, best round within.
    NotMetByMedian,
    NotMet,
    NotMeasured(&'static str),
}

pub struct Row {
    target: &'static str,
    what: &'static str,
    goal: String,
    measured: String,
    pub verdict: Verdict,
}

const NOT_RUN: &str = "its scenario was not run";

impl Row {
    /// A figure that must not exceed `goal`.
    fn at_most(
        target: &'static str,
        what: &'static str,
        goal: f64,
        unit: &str,
        found: Option<Spread>,
    ) -> Self {
        Self {
            target,
            what,
            goal: format!("≤ {goal}{unit}"),
            measured: found.map_or("–".into(), |spread| format!("{}{unit}", spread.show(2))),
            verdict: match found {
                None => Verdict::NotMeasured(NOT_RUN),
                Some(spread) if spread.median <= goal => Verdict::Met,
                Some(spread) if spread.min <= goal => Verdict::NotMetByMedian,
                Some(_) => Verdict::NotMet,
            },
        }
    }
}

/// Returns a row for every goal, in the order of the targets.
pub fn judge(contest: &Measurements, memory: &Memory) -> Vec<Row> {
    use label::{BARE, DIRECT, INFERGATE};
    use scenario::{BODY_1M, BODY_100K, BODY_256K, BURST, OPEN, PACED, REFUSALS, SIZES, SMALL};

    let cpu = |scenario, mine, base| {
        contest.paired(scenario, mine, base, |mine: &Report, base: &Report| {
            mine.cpu_us_per_answer() / base.cpu_us_per_answer()
        })
    };
    let cpu_per_event = |scenario| {
        contest.paired(scenario, INFERGATE, BARE, |mine, base| {
            mine.cpu_us_per_event() / base.cpu_us_per_event()
        })
    };
    let added_first_event_ms = contest.paired(PACED, INFERGATE, DIRECT, |mine, direct| {
        (mine.first_event.p50_us as f64 - direct.first_event.p50_us as f64) / 1_000.0
    });
    let latest_first_event_ms = contest.spread(PACED, INFERGATE, |report| {
        report.first_event.p99_us as f64 / 1_000.0
    });
    let gap = contest.paired(PACED, INFERGATE, DIRECT, |mine, direct| {
        mine.gap.p99_us as f64 / direct.gap.p99_us as f64
    });
    let added_p50_us = |label| {
        contest.paired(OPEN, label, DIRECT, |proxied, direct| {
            proxied.latency.p50_us as f64 - direct.latency.p50_us as f64
        })
    };
    let added_p50 = match (added_p50_us(INFERGATE), added_p50_us(BARE)) {
        (Some(mine), Some(bare)) => Some(Spread {
            median: mine.median / bare.median,
            min: mine.min / bare.max,
            max: mine.max / bare.min,
        }),
        _ => None,
    };
    let size = |label| cpu(SIZES, label, INFERGATE);

    vec![
        Row::at_most(
            "T1",
            "small JSON: CPU ÷ bare",
            0.95,
            "",
            cpu(SMALL, INFERGATE, BARE),
        ),
        Row::at_most(
            "T2",
            "small JSON with three plugins: CPU ÷ bare",
            1.10,
            "",
            cpu(SMALL, label::WITH_PLUGINS, BARE),
        ),
        Row::at_most(
            "T3",
            "with plugins: CPU ÷ vllm-router",
            0.60,
            "",
            cpu(SMALL, label::WITH_PLUGINS, label::VLLM_ROUTER),
        ),
        Row::at_most(
            "T3",
            "with plugins: CPU ÷ sglang-router",
            0.60,
            "",
            cpu(SMALL, label::WITH_PLUGINS, label::SGLANG_ROUTER),
        ),
        Row::at_most(
            "T4",
            "paced SSE: CPU per event ÷ bare",
            1.0,
            "",
            cpu_per_event(PACED),
        ),
        Row::at_most(
            "T4",
            "burst SSE: CPU per event ÷ bare",
            1.0,
            "",
            cpu_per_event(BURST),
        ),
        Row::at_most(
            "T4",
            "first event, added p50",
            0.3,
            " ms",
            added_first_event_ms,
        ),
        Row::at_most(
            "T4",
            "first event p99 (no 40 ms step)",
            35.0,
            " ms",
            latest_first_event_ms,
        ),
        Row::at_most("T4", "gap p99 ÷ direct", 1.15, "", gap),
        Row::at_most("T5", "open loop: added p50 ÷ bare's", 1.0, "", added_p50),
        Row::at_most(
            "T6",
            "100 KB bodies: CPU ÷ bare",
            1.15,
            "",
            cpu(BODY_100K, INFERGATE, BARE),
        ),
        Row::at_most(
            "T6",
            "256 KB bodies: CPU ÷ bare",
            1.15,
            "",
            cpu(BODY_256K, INFERGATE, BARE),
        ),
        Row::at_most(
            "T6",
            "1 MB bodies: CPU ÷ bare",
            1.15,
            "",
            cpu(BODY_1M, INFERGATE, BARE),
        ),
        Row::at_most(
            "T7",
            "429: CPU ÷ proxied request",
            0.5,
            "",
            cpu(REFUSALS, label::FULL_429, label::PROXIED),
        ),
        Row::at_most(
            "T7",
            "401: CPU ÷ proxied request",
            0.35,
            "",
            cpu(REFUSALS, label::UNKNOWN_401, label::PROXIED),
        ),
        Row::at_most("T9", "RSS idle, no plugins", 40.0, " MB", memory.idle_mib),
        Row::at_most(
            "T9",
            "RSS per open SSE stream",
            48.0,
            " KiB",
            memory.per_stream_kib,
        ),
        Row::at_most(
            "T9",
            "RSS growth over 10^6 requests (5 MB is noise)",
            5.0,
            " MB",
            memory.growth_mib,
        ),
        Row::at_most("T12", "2 threads ÷ 1", 1.10, "", size(label::TWO_THREADS)),
        Row::at_most(
            "T12",
            "10,000 accounts ÷ 1",
            1.10,
            "",
            size(label::MANY_ACCOUNTS),
        ),
        Row::at_most(
            "T12",
            "1,000 models ÷ 2",
            1.10,
            "",
            size(label::MANY_MODELS),
        ),
        Row::at_most(
            "T12",
            "256 endpoints ÷ 1",
            1.10,
            "",
            size(label::MANY_ENDPOINTS),
        ),
        Row {
            target: "T12",
            what: "throughput with 2 threads",
            goal: "–".into(),
            measured: "–".into(),
            verdict: Verdict::NotMeasured("it needs four free cores"),
        },
        Row {
            target: "T8",
            what: "core operations, finding `model` (T6)",
            goal: "–".into(),
            measured: "–".into(),
            verdict: Verdict::NotMeasured("benches/core.rs measures it"),
        },
    ]
}

pub fn print(rows: &[Row]) {
    println!("\n## Targets (median [best–worst round])\n");
    println!("| target | what | goal | measured | verdict |\n|---|---|---|---|---|");
    for row in rows {
        let verdict = match row.verdict {
            Verdict::Met => "met".to_owned(),
            Verdict::NotMetByMedian => "not met by the median, met by the best round".to_owned(),
            Verdict::NotMet => "not met".to_owned(),
            Verdict::NotMeasured(why) => format!("not measured: {why}"),
        };
        println!(
            "| {} | {} | {} | {} | {verdict} |",
            row.target, row.what, row.goal, row.measured
        );
    }
}
