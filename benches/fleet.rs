//! A large cluster under the simulator of `tests/sim`: balance of load, hops of requests, share of
//! rejected forwards, and size of a node's view.
//!
//! Measures decisions, not this machine: all columns but the last are the same everywhere. Costs of a
//! decision are in `benches/core.rs`.
//!
//! `cargo bench -p infergate-core --bench fleet -- [--requests N]`, 10^6 by default.

#[path = "../tests/sim/cluster/crowd.rs"]
mod crowd;
#[path = "../tests/sim/cluster/net.rs"]
mod net;
// The tests do more to a fleet than this program.
#[allow(dead_code)]
#[path = "../tests/sim/cluster/request_path.rs"]
mod request_path;
#[allow(dead_code)]
#[path = "../tests/sim/cluster/shape.rs"]
mod shape;
#[allow(dead_code)]
#[path = "../tests/sim/cluster/world.rs"]
mod world;

use crowd::{Entry, Figures, play};
use fastrand::Rng;

const NODES: usize = 50;
const MODELS: usize = 200;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let given = arguments.windows(2).find(|pair| pair[0] == "--requests");
    let requests = given.map_or(1_000_000, |pair| pair[1].parse().expect("--requests N"));
    println!("{NODES} nodes, {MODELS} models, {requests} requests");
    println!(
        "| load | entry | mean load | max/mean | 0 hops | 1 hop | 2 hops | refused forwards | \
         attempts | completed | refused | p99 ms | decisions | bytes/node |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|---|---|---|");
    for (load, entry) in [
        (0.8, Entry::Everywhere),
        (0.8, Entry::AtFew),
        (10.0, Entry::Everywhere),
    ] {
        let figures = play(NODES, MODELS, load, entry, requests, Rng::with_seed(50));
        line(load, entry, &figures);
    }
}

fn line(load: f64, entry: Entry, figures: &Figures) {
    let percent = |share: f64| format!("{:.1} %", 100.0 * share);
    let [here, one, two] = figures.hops.map(percent);
    println!(
        "| {load} | {entry:?} | {:.3} | {:.3} | {here} | {one} | {two} | {:.4} | {:.3} | {} | {} | {} | {} | {} |",
        figures.mean_load,
        figures.most_over_mean,
        figures.forwards_refused,
        figures.attempts,
        percent(figures.completed as f64 / figures.requests as f64),
        percent(figures.refused as f64 / figures.requests as f64),
        figures.p99_ms,
        figures.decisions,
        figures.bytes_per_node,
    );
}
