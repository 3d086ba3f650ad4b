//! The musts of a request's cost, and the verdict on each.
//! Not the measuring: it reads what `contest.rs` found.
//!
//! The figure that is judged is the lower decile, and for a ratio that of two lower deciles. A must that only
//! the smallest figures reach is called so. Called by the driver at the end.

use crate::contest::{Measurements, Unit};
use crate::kit::figures::Spread;
use crate::load::Report;

/// Names of the scenarios, as tables and targets share them.
pub mod scenario {
    pub const SMALL: &str = "small JSON, 2 KB in, 612 B out, 32 connections";
    pub const FOUR_CONNECTIONS: &str = "small JSON, 4 connections";
    pub const ONE_CONNECTION: &str = "small JSON, 1 connection";
    pub const OPEN: &str = "open loop, half the rate of bare in a closed one";
    pub const OPEN_SLOW: &str = "open loop, 1,000 requests/s";
    pub const PACED: &str = "SSE paced, 64 streams, 5 ms between events";
    pub const BURST: &str = "SSE burst, 16 streams, no pause";
    pub const BODY_32K: &str = "32 KB bodies, 16 connections";
    pub const BODY_100K: &str = "100 KB bodies, 16 connections";
    pub const BODY_256K: &str = "256 KB bodies, 16 connections";
    pub const BODY_1M: &str = "1 MB bodies, 8 connections";
    pub const REFUSALS: &str = "refusals, 32 connections";
    pub const FORWARD: &str = "forwarded to another node, 32 connections, CPU of both";
    pub const SIZES: &str = "threads and configuration sizes, 32 connections";
}

/// Names of the figures that are measured once.
pub mod single {
    pub const RATE: &str = "requests/s of the open loop";
    pub const CALLS: &str = "system calls a request";
    pub const WAKE_UPS: &str = "wake-ups a second";
    pub const IDLE_MIB: &str = "MB resident when idle";
    pub const STREAM_KIB: &str = "KiB for an open stream";
    pub const CONNECTION_KIB: &str = "KiB for an idle connection";
    pub const GROWTH_MIB: &str = "MB grown over 10^6 requests";
}

/// Labels of what is measured.
pub mod label {
    pub const DIRECT: &str = "direct";
    pub const INFERGATE: &str = "infergate";
    pub const WITH_PLUGINS: &str = "infergate, plugins";
    pub const BARE: &str = "bare";
    pub const HYPER: &str = "hyper";
    pub const HAPROXY: &str = "haproxy";
    pub const NGINX: &str = "nginx";
    pub const ENVOY: &str = "envoy";
    pub const ENVOY_WASM: &str = "envoy, Wasm filter";
    pub const VLLM_ROUTER: &str = "vllm-router";
    pub const VLLM_ROUTER_WASM: &str = "vllm-router, Wasm middleware";
    pub const SGLANG_ROUTER: &str = "sglang-router";
    pub const PROXIED: &str = "infergate, proxied";
    pub const FULL_429: &str = "infergate, 429";
    pub const UNKNOWN_401: &str = "infergate, 401";
    pub const LOCAL: &str = "infergate, served locally";
    pub const FORWARDED: &str = "infergate, forwarded";
    pub const TWO_THREADS: &str = "infergate, 2 threads";
    pub const MANY_ACCOUNTS: &str = "infergate, 10,000 accounts";
    pub const MANY_MODELS: &str = "infergate, 1,000 models";
    pub const MANY_ENDPOINTS: &str = "infergate, 256 endpoints";
}

#[derive(Clone, Copy, PartialEq)]
pub enum Verdict {
    Met,
    /// Lower decile beyond the must, smallest figures within.
    MetBySmallest,
    NotMet,
    /// A figure without a must.
    Reported,
    NotMeasured,
}

pub struct Row {
    pub what: &'static str,
    pub must: String,
    pub measured: String,
    pub verdict: Verdict,
}

impl Row {
    /// A figure that must not exceed `must`.
    fn at_most(what: &'static str, must: f64, unit: &str, found: Option<Spread>) -> Self {
        Self {
            must: format!("≤ {must}{unit}"),
            verdict: match found {
                None => Verdict::NotMeasured,
                Some(spread) if spread.low <= must => Verdict::Met,
                Some(spread) if spread.min <= must => Verdict::MetBySmallest,
                Some(_) => Verdict::NotMet,
            },
            ..Self::reported(what, unit, found)
        }
    }

    fn reported(what: &'static str, unit: &str, found: Option<Spread>) -> Self {
        Self {
            what,
            must: "–".into(),
            measured: found.map_or("–".into(), |spread| match spread.low == spread.median {
                true => format!("{:.2}{unit}", spread.low),
                false => format!("{}{unit}", spread.show(2)),
            }),
            verdict: match found {
                None => Verdict::NotMeasured,
                Some(_) => Verdict::Reported,
            },
        }
    }
}

/// Returns a row for every must, in the order of the table.
pub fn judge(contest: &Measurements) -> Vec<Row> {
    let mut rows = requests(contest);
    rows.extend(streams_and_latency(contest));
    rows.extend(beside_requests(contest));
    rows
}

fn requests(contest: &Measurements) -> Vec<Row> {
    use label::{BARE, INFERGATE, VLLM_ROUTER, VLLM_ROUTER_WASM, WITH_PLUGINS};
    use scenario::{BODY_1M, BODY_32K, BODY_100K, BODY_256K, FOUR_CONNECTIONS, REFUSALS, SMALL};

    let cpu = |scenario, mine, base| contest.ratio(scenario, Unit::Request, mine, base);
    let mut rows = vec![
        Row::at_most("small ÷ bare", 0.60, "", cpu(SMALL, INFERGATE, BARE)),
        Row::at_most(
            "small, three plugins ÷ bare",
            0.75,
            "",
            cpu(SMALL, WITH_PLUGINS, BARE),
        ),
        Row::at_most(
            "small, three plugins ÷ vllm-router without any, 4 connections",
            0.45,
            "",
            cpu(FOUR_CONNECTIONS, WITH_PLUGINS, VLLM_ROUTER),
        ),
        Row::at_most(
            "small, three plugins ÷ vllm-router with its Wasm middleware, 4 connections",
            0.19,
            "",
            cpu(FOUR_CONNECTIONS, WITH_PLUGINS, VLLM_ROUTER_WASM),
        ),
    ];
    for (scenario, [plain, plugins]) in [
        (BODY_32K, ["32 KB ÷ bare", "32 KB, three plugins ÷ bare"]),
        (BODY_100K, ["100 KB ÷ bare", "100 KB, three plugins ÷ bare"]),
        (BODY_256K, ["256 KB ÷ bare", "256 KB, three plugins ÷ bare"]),
        (BODY_1M, ["1 MB ÷ bare", "1 MB, three plugins ÷ bare"]),
    ] {
        rows.push(Row::at_most(
            plain,
            0.80,
            "",
            cpu(scenario, INFERGATE, BARE),
        ));
        rows.push(Row::at_most(
            plugins,
            1.00,
            "",
            cpu(scenario, WITH_PLUGINS, BARE),
        ));
    }
    for (what, label) in [
        ("429 ÷ proxied request", label::FULL_429),
        ("401 ÷ proxied request", label::UNKNOWN_401),
    ] {
        rows.push(Row::reported(
            what,
            "",
            cpu(REFUSALS, label, label::PROXIED),
        ));
    }
    rows.push(Row::at_most(
        "forwarded, both nodes ÷ served locally",
        2.0,
        "",
        cpu(scenario::FORWARD, label::FORWARDED, label::LOCAL),
    ));
    rows
}

fn streams_and_latency(contest: &Measurements) -> Vec<Row> {
    use label::{BARE, DIRECT, HAPROXY, INFERGATE};
    use scenario::{BURST, OPEN, OPEN_SLOW, PACED};

    let event = |scenario| contest.ratio(scenario, Unit::Event, INFERGATE, BARE);
    let first_event = |label, quantile: fn(&Report) -> u64| {
        contest.spread(PACED, label, |report| quantile(report) as f64 / 1_000.0)
    };
    let added_first_event = first_event(INFERGATE, |report| report.first_event.p50_us)
        .zip(first_event(DIRECT, |report| report.first_event.p50_us))
        .map(|(mine, direct)| mine.with(direct, |mine, direct| mine - direct));
    let latency = |scenario, label, quantile: fn(&Report) -> u64| {
        contest.spread(scenario, label, |report| quantile(report) as f64)
    };
    let p99 = |label| latency(OPEN, label, |report| report.latency.p99_us);
    let p99_ratio = p99(INFERGATE)
        .zip(p99(HAPROXY))
        .map(|(mine, other)| mine.with(other, |mine, other| mine / other));
    let added_p50 = |label| {
        let p50 = |label| latency(OPEN_SLOW, label, |report| report.latency.p50_us);
        Some(p50(label)?.with(p50(DIRECT)?, |mine, direct| mine - direct))
    };
    let added_ratio = added_p50(INFERGATE)
        .zip(added_p50(BARE))
        .map(|(mine, bare)| mine.with(bare, |mine, bare| mine / bare));
    vec![
        Row::at_most("event of a paced stream ÷ bare", 0.75, "", event(PACED)),
        Row::reported("event of a burst ÷ bare", "", event(BURST)),
        Row::at_most("first event, added p50", 0.25, " ms", added_first_event),
        Row::at_most(
            "first event, p99: no step of a delayed acknowledgement",
            35.0,
            " ms",
            first_event(INFERGATE, |report| report.first_event.p99_us),
        ),
        Row::at_most("open loop, p99 ÷ HAProxy", 1.3, "", p99_ratio),
        Row::at_most(
            "open loop at 1,000/s, added p50 ÷ bare's",
            1.0,
            "",
            added_ratio,
        ),
    ]
}

fn beside_requests(contest: &Measurements) -> Vec<Row> {
    use label::{INFERGATE, WITH_PLUGINS};
    let single = |name, label| contest.single(name, label);
    let mut rows = vec![
        Row::at_most(
            "system calls, small, 32 connections",
            4.4,
            "",
            single(single::CALLS, INFERGATE),
        ),
        Row::at_most(
            "memory of an open stream",
            20.0,
            " KiB",
            single(single::STREAM_KIB, INFERGATE),
        ),
        Row::at_most(
            "memory of an idle connection that was used",
            5.0,
            " KiB",
            single(single::CONNECTION_KIB, INFERGATE),
        ),
        Row::at_most(
            "memory when idle",
            40.0,
            " MB",
            single(single::IDLE_MIB, INFERGATE),
        ),
        Row::at_most(
            "memory grown over 10^6 requests (5 MB is noise)",
            5.0,
            " MB",
            single(single::GROWTH_MIB, INFERGATE),
        ),
        Row::at_most(
            "wake-ups a second when idle",
            5.0,
            "",
            single(single::WAKE_UPS, INFERGATE),
        ),
        Row::at_most(
            "wake-ups a second, plugins just used",
            5.0,
            "",
            single(single::WAKE_UPS, WITH_PLUGINS),
        ),
    ];
    for (what, label) in [
        ("two threads ÷ one", label::TWO_THREADS),
        ("10,000 accounts ÷ one", label::MANY_ACCOUNTS),
        ("1,000 models ÷ two", label::MANY_MODELS),
        ("256 endpoints ÷ one", label::MANY_ENDPOINTS),
    ] {
        let ratio = contest.ratio(scenario::SIZES, Unit::Request, label, INFERGATE);
        rows.push(Row::at_most(what, 1.10, "", ratio));
    }
    rows
}
