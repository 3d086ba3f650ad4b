//! Tables of a whole run, in Markdown: the musts, the cost beside others, and the latencies.
//! Not a judge: `targets.rs` gives the rows their verdicts.
//!
//! Called by the driver at the end.

use crate::contest::{Measurements, Unit};
use crate::load::Report;
use crate::targets::{Row, Verdict, label, scenario, single};

/// Columns of the table of costs.
const COLUMNS: &[(&str, &str, Unit)] = &[
    ("2 KB", scenario::SMALL, Unit::Request),
    (
        "2 KB, 4 connections",
        scenario::FOUR_CONNECTIONS,
        Unit::Request,
    ),
    ("32 KB", scenario::BODY_32K, Unit::Request),
    ("100 KB", scenario::BODY_100K, Unit::Request),
    ("256 KB", scenario::BODY_256K, Unit::Request),
    ("1 MB", scenario::BODY_1M, Unit::Request),
    ("paced event", scenario::PACED, Unit::Event),
];

/// Rows of the tables, and how a reader knows them.
const ROWS: &[(&str, &str)] = &[
    (label::INFERGATE, "**infergate**"),
    (
        label::WITH_PLUGINS,
        "**infergate**, three plugins and tariff",
    ),
    (label::BARE, "empty Pingora `ProxyHttp`"),
    (label::HYPER, "smallest hyper proxy"),
    (label::HAPROXY, "HAProxy, routing by `model`"),
    (label::NGINX, "nginx"),
    (label::ENVOY, "Envoy"),
    (label::ENVOY_WASM, "Envoy, one proxy-wasm filter"),
    (label::VLLM_ROUTER, "vllm-router"),
    (label::VLLM_ROUTER_WASM, "vllm-router, its Wasm middleware"),
    (label::SGLANG_ROUTER, "sglang-router"),
];

/// Prints the musts. Musts whose scenarios were not run are left out.
pub fn print_musts(rows: &[Row]) {
    println!("\n| what: lower decile (median) | must | measured | |\n|---|---|---|---|");
    for row in rows {
        let verdict = match row.verdict {
            Verdict::Met => "met",
            Verdict::MetBySmallest => "not met, but by the smallest figures",
            Verdict::NotMet => "**not met**",
            Verdict::Reported => "",
            Verdict::NotMeasured => continue,
        };
        println!(
            "| {} | {} | {} | {verdict} |",
            row.what, row.must, row.measured
        );
    }
}

/// Prints CPU time in microseconds with its ratio to the yardstick, for whoever was measured.
pub fn print_costs(contest: &Measurements, versions: &[(&'static str, String)]) {
    let columns: Vec<_> = COLUMNS
        .iter()
        .filter(|(_, scenario, unit)| contest.cost(scenario, *unit, label::BARE).is_some())
        .collect();
    if columns.is_empty() {
        return;
    }
    let heads: Vec<&str> = columns.iter().map(|(head, _, _)| *head).collect();
    println!(
        "\n| CPU µs of the proxy (÷ empty Pingora) | {} |",
        heads.join(" | ")
    );
    println!("|---|{}", "---|".repeat(columns.len()));
    for (label, name) in ROWS {
        let cells: Vec<String> = columns
            .iter()
            .map(|(_, scenario, unit)| {
                let cost = contest.cost(scenario, *unit, label);
                let ratio = contest.ratio(scenario, *unit, label, label::BARE);
                cost.zip(ratio).map_or("–".to_owned(), |(cost, ratio)| {
                    format!("{:.1} ({:.2})", cost.low, ratio.low)
                })
            })
            .collect();
        if cells.iter().any(|cell| cell != "–") {
            let version = versions.iter().find(|(of, _)| of == label);
            let version = version.map_or(String::new(), |(_, version)| format!(" {version}"));
            println!(
                "| {} | {} |",
                with_version(name, &version),
                cells.join(" | ")
            );
        }
    }
}

/// `nginx 1.22.1`, `Envoy 1.40.0, one proxy-wasm filter`.
fn with_version(name: &str, version: &str) -> String {
    match name.split_once(',') {
        Some((program, rest)) => format!("{program}{version},{rest}"),
        None => format!("{name}{version}"),
    }
}

/// Prints the quantiles of the open loops.
pub fn print_latencies(contest: &Measurements) {
    let rate = contest
        .single(single::RATE, label::BARE)
        .map_or(0.0, |rate| rate.low);
    for (scenario, rate) in [(scenario::OPEN, rate), (scenario::OPEN_SLOW, 1_000.0)] {
        let of = |label: &str, quantile: fn(&Report) -> u64| {
            let spread = contest.spread(scenario, label, |report| quantile(report) as f64)?;
            Some(format!("{:.0} ({:.0})", spread.low, spread.median))
        };
        if of(label::BARE, |report| report.latency.p50_us).is_none() {
            continue;
        }
        println!(
            "\n| open loop, {rate:.0} requests/s | p50 µs | p99 µs | p999 µs |\n|---|---|---|---|"
        );
        for (label, name) in ROWS {
            let p50 = of(label, |report| report.latency.p50_us);
            let p99 = of(label, |report| report.latency.p99_us);
            let p999 = of(label, |report| report.latency.p999_us);
            if let (Some(p50), Some(p99), Some(p999)) = (p50, p99, p999) {
                println!("| {name} | {p50} | {p99} | {p999} |");
            }
        }
    }
}

/// Returns how restless the machine was: median over lower decile of the yardstick's cost; 1.0 is a quiet one.
pub fn restlessness(contest: &Measurements) -> Option<f64> {
    let (_, scenario, unit) = COLUMNS
        .iter()
        .find(|(_, scenario, unit)| contest.cost(scenario, *unit, label::BARE).is_some())?;
    let cost = contest.cost(scenario, *unit, label::BARE)?;
    Some(cost.median / cost.low)
}
