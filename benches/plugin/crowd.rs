//! A long mix of good and trapping calls: memory stays, and guests alive are those that wait.
//!
//! Every fiftieth call traps; its plugin is loaded anew before its breaker opens, as reloads would.

use infergate::parts::{PluginSnapshot, World};
use infergate_core::AccountId;
use infergate_core::billing::{BillingOutcome, UsageReport};
use infergate_core::model::{ModelSpec, Tariff, Trust};

use crate::guests::Wat;
use crate::kit::{calling, loaded, spec, user};
use crate::{Fallible, procfs};

const ACCOUNTS: usize = 8;
/// Growth allowed, as a share of the resident memory after a fifth of the calls.
const GROWTH_MAX: f64 = 0.05;

/// Prints the figures; true when memory is flat and the gauge equals the places taken in the engine's pool.
pub fn run(calls: usize) -> Fallible<bool> {
    let folder = tempfile::tempdir()?;
    let world = World::BillingFormula;
    let good = Wat::of(world)
        .realloc("(i32.const 8192)")
        .file(folder.path(), "good");
    let evil = Wat::of(world)
        .price("unreachable")
        .file(folder.path(), "evil");
    let model = user("billing", "text-generation");
    let (host, goods) = loaded(&spec(&good, world.name(), "auto"), &model);
    let evil = spec(&evil, world.name(), "auto");
    let load = || {
        host.load(
            &PluginSnapshot::default(),
            std::slice::from_ref(&evil),
            std::slice::from_ref(&model),
        )
    };
    let mut evils = load().map_err(|problems| format!("{problems:?}"))?;
    let accounts: Vec<AccountId> = (0..ACCOUNTS)
        .map(|n| AccountId::from(format!("a{n}").as_str()))
        .collect();
    let mut warm_kib = 0;
    for n in 0..calls {
        let account = &accounts[n % ACCOUNTS];
        let traps = n % 50 == 0;
        if n % 250 == 0 {
            evils = load().map_err(|problems| format!("{problems:?}"))?;
        }
        let fell_back = price(if traps { &evils } else { &goods }, &model, account);
        if fell_back != traps {
            return Err(format!("call {n} fell back: {fell_back}").into());
        }
        if n == calls / 5 {
            warm_kib = procfs::rss_kib(std::process::id())?;
        }
    }
    let end_kib = procfs::rss_kib(std::process::id())?;
    let grown = (end_kib as f64 - warm_kib as f64) / warm_kib as f64;
    let counts = host.counts();
    println!(
        "\n{calls} good and trapping calls: {warm_kib} KiB after a fifth, {end_kib} KiB at the end ({:+.1} %)",
        grown * 100.0
    );
    println!(
        "guests alive: {}, by the pool's own count: {}, accounts: {ACCOUNTS}",
        counts.instances_live, counts.pool_used
    );
    // A guest that has answered ten thousand times is replaced at the next call: not all are there.
    let live = u64::from(counts.instances_live);
    Ok(grown <= GROWTH_MAX && live == counts.pool_used && live <= ACCOUNTS as u64)
}

fn price(plugins: &PluginSnapshot, model: &ModelSpec, account: &AccountId) -> bool {
    let report = UsageReport {
        model: "m",
        trust: Trust::Trust,
        ending: BillingOutcome::Completed,
        streamed: false,
        metrics: &[],
        queue_ms: 0,
        infer_ms: 0,
    };
    let slot = plugins.billing(model);
    calling(account, |caller| {
        slot.price(caller, &Tariff::default(), &report)
    })
    .fell_back
}
