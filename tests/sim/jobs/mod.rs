//! Durable jobs under a seeded clock: a real table, leases and sweepers, with a store, a network and workers that
//! are simulated.
//!
//! Not the shell's stores, which have tests of their own. No clock is read: a seed is one run. After each
//! step the ledger compares what was kept with what was promised; a broken promise is a sentence, not a panic.
//!
//! ```text
//! INFERGATE_SIM_SEED=7 cargo test -p infergate-core --test sim jobs            # one run again
//! INFERGATE_SIM_JOBS_SEEDS=10000 cargo test -p infergate-core --test sim jobs  # more runs
//! ```

mod chaos;
mod duties;
mod kept;
mod ledger;
mod network;
mod reconciliation;
mod scenarios;
mod schedule;
mod shares;
mod store;
mod worker;
mod world;
