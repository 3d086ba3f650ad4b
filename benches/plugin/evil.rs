//! Wall time of each hostile guest: at most twice its deadline and 5 ms.
//!
//! The rows are those of the tests; the machine is supposed to be idle.

use std::time::Instant;

use infergate::parts::World;
use infergate_core::AccountId;
use infergate_core::billing::{BillingOutcome, Metric, MetricSource, UsageReport};
use infergate_core::model::{Tariff, Trust};

use crate::kit::{calling, loaded, spec, user};
use crate::procfs;
use crate::rows::rows;

/// Billing's.
const DEADLINE_MS: f64 = 5.0;
/// Growth of resident memory allowed to any one row.
const GROWTH_MAX_KIB: u64 = 32 << 10;

/// Prints the table; true when every row keeps its bounds.
pub fn run() -> bool {
    let bound_ms = 2.0 * DEADLINE_MS + 5.0;
    println!(
        "\n{:<44} {:<10} {:>9} {:>10}",
        "evil guests", "class", "ms", "grown KiB"
    );
    let folder = tempfile::tempdir().unwrap();
    let mut fits = true;
    for row in rows() {
        let file = row.wat.file(folder.path(), "p");
        let model = user("billing", "text-generation");
        let (host, plugins) = loaded(&spec(&file, World::BillingFormula.name(), "auto"), &model);
        let before = procfs::rss_kib(std::process::id()).unwrap_or(0);
        let metrics = [Metric {
            name: "output_tokens".into(),
            value: 7.0,
            source: MetricSource::Reported,
        }];
        let report = UsageReport {
            model: "m",
            trust: Trust::Trust,
            ending: BillingOutcome::Completed,
            streamed: false,
            metrics: &metrics,
            queue_ms: 0,
            infer_ms: 0,
        };
        let account = AccountId::from("acme");
        let slot = plugins.billing(&model);
        let began = Instant::now();
        let priced = calling(&account, |caller| {
            slot.price(caller, &Tariff::default(), &report)
        });
        let took_ms = began.elapsed().as_secs_f64() * 1000.0;
        let grown = procfs::rss_kib(std::process::id())
            .unwrap_or(0)
            .saturating_sub(before);
        let state = plugins.state();
        let class = state[0]
            .failures
            .iter()
            .find(|(_, count)| **count > 0)
            .map_or("none", |(class, _)| class);
        let good = took_ms <= bound_ms
            && grown <= GROWTH_MAX_KIB
            && priced.fell_back
            && host.counts().instances_live == 0;
        fits &= good;
        let mark = if good { "" } else { "  PASSES ITS BOUND" };
        println!(
            "{:<44} {class:<10} {took_ms:>9.2} {grown:>10}{mark}",
            row.name
        );
        // Writing 16 MiB may take longer than the deadline.
        if class != row.class && row.name != "memory bomb that writes" {
            println!("{:<44} expected {}", "", row.class);
            fits = false;
        }
    }
    println!("bound: {bound_ms} ms and {GROWTH_MAX_KIB} KiB");
    fits
}
