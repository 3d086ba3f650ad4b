//! The core under a seeded clock: arrivals, service, failures, reloads and cancellations, with the
//! invariants checked after every step.
//!
//! The simulation uses no runtime and no real time: a second of traffic takes about a millisecond.
//! A failing run prints its seed.
//!
//! ```text
//! INFERGATE_SIM_SEED=7 cargo test -p infergate-core --test sim      # that run again
//! INFERGATE_SIM_SEEDS=10000 cargo test -p infergate-core --test sim # more runs
//! ```

mod chaos;
mod cluster;
mod fairness;
mod jobs;
mod overload;
mod traffic;
mod world;

use fastrand::Rng;

/// Runs `simulate` under each of `count` seeds, or as the environment says.
fn for_each_seed(count: u64, simulate: impl Fn(Rng)) {
    let seeds = match number("INFERGATE_SIM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("INFERGATE_SIM_SEEDS").unwrap_or(count),
    };
    for seed in seeds {
        let _on_failure = SeedReporter(seed);
        simulate(Rng::with_seed(seed));
    }
}

/// Returns a number of the environment.
fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().expect(name))
}

/// Names the seed when the run under it panics.
struct SeedReporter(u64);

impl Drop for SeedReporter {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the run with INFERGATE_SIM_SEED={} failed", self.0);
        }
    }
}
