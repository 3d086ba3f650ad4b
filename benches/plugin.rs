//! Cost of plugins, and the most that a hostile one can cost, against targets T2 and T10.
//!
//! Not a test of behaviour: `src/plugin/tests` and `tests/it/plugins` are. CPU is the thread's own, in
//! microseconds, median of nine batches; the table of evil guests is on the wall of an idle machine.
//! The guests are the shipped ones: `scripts/plugins` builds them first. Usage:
//! `cargo bench --bench plugin -- [--quick | --price CALLS]`.
//!
//! | group | figure | target |
//! |---|---|---|
//! | calls | a fresh guest and a warm one, each world, 2 KB and 64 KB | all of a request ≤ 6 µs |
//! | schema | native validation of 2 KB and 64 KB | none |
//! | routing | reading a cached ranking | none |
//! | loading | from bytes, and from the cache | ≤ 100 ms per 100 KB, ≤ 1 ms |
//! | evil | elapsed of each evil guest | ≤ 2 × deadline + 5 ms |
//! | crowd | 10^6 good and trapping calls | memory flat within 5 %, gauge equals slots in use |

// A bench lives on the clock; the product's rules about it are for requests.
#![allow(clippy::disallowed_methods)]
#![allow(clippy::unwrap_used, reason = "a bench that cannot go on stops")]

#[path = "kit/procfs.rs"]
#[allow(dead_code, reason = "the proxy benches use the rest")]
mod procfs;

#[path = "plugin/calls.rs"]
mod calls;
#[path = "plugin/crowd.rs"]
mod crowd;
#[path = "plugin/evil.rs"]
mod evil;
#[path = "../src/plugin/tests/guests.rs"]
#[allow(dead_code, reason = "the tests use the rest")]
mod guests;
#[path = "plugin/kit.rs"]
mod kit;
#[path = "plugin/loading.rs"]
mod loading;
#[path = "../src/plugin/tests/rows.rs"]
mod rows;

/// WIT worlds and bindings of the guests.
mod room {
    pub use infergate::parts::{World, wit};
}

/// Errors end a bench with one line; nobody matches on them.
pub type Fallible<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

fn main() -> Fallible<()> {
    if let Some(calls) = std::env::args().skip_while(|word| word != "--price").nth(1) {
        calls::price_only(calls.parse()?);
        return Ok(());
    }
    let quick = std::env::args().any(|argument| argument == "--quick");
    println!("{}", procfs::machine());
    calls::run(quick);
    loading::run();
    let evil_fits = evil::run();
    let crowd_fits = crowd::run(if quick { 100_000 } else { 1_000_000 })?;
    match evil_fits && crowd_fits {
        true => Ok(()),
        false => Err("a bound was passed".into()),
    }
}
