//! The interface `pricing`: what is handed over once, what a call passes, and what its indices may mean.

use std::sync::Arc;

use infergate_core::billing::{BillingOutcome, Metric, MetricSource, UsageReport};
use infergate_core::model::{Tariff, Trust};
use serde_json::json;

use super::guests::Wat;
use super::stand::{BUILTIN_PRICE, TestHost, calling, failures, price, spec, user_of};
use crate::plugin::runtime::tariff_table::TARIFFS_MAX;
use crate::plugin::{PluginSnapshot, PriceResult, World};

/// A charge whose base is a global: total, base, no line, nothing visible.
const HANDED: &str = "(call $clear)
  (f64.store (i32.const 1032) (global.get $handed)) (f64.store (i32.const 1040) (global.get $handed))
  (i32.const 1024)";
/// Counts the tariffs that were handed over.
const COUNT: &str = "(global.set $handed (f64.add (global.get $handed) (f64.const 1)))
  (call $clear) (i32.const 1024)";

fn counting() -> Wat {
    Wat::in_numbers()
        .more("(global $handed (mut f64) (f64.const 0))")
        .set_tariff(COUNT)
        .price(HANDED)
}

/// A charge of 1 with one line of nothing: its metric, and the bits of what is visible.
fn charge(metric: u32, visible: u64) -> String {
    format!(
        "(call $clear) (f64.store (i32.const 1032) (f64.const 1)) (f64.store (i32.const 1040) (f64.const 1))
         (i32.store (i32.const 1048) (i32.const 2000)) (i32.store (i32.const 1052) (i32.const 1))
         (i64.store (i32.const 1056) (i64.const {visible}))
         (i32.store (i32.const 2000) (i32.const {metric})) (i32.const 1024)"
    )
}

/// Prices `values` under a tariff of its own cost.
fn price_under(plugins: &PluginSnapshot, cost: f64, values: &[f64]) -> PriceResult {
    let tariff = Tariff {
        cost_per_infer: cost,
        coefficients: [("metric_0", 0.25), ("metric_11", 3.0), ("other", 9.0)]
            .map(|(metric, neurons)| (Arc::from(metric), neurons))
            .into(),
        ..Tariff::default()
    };
    let named = values.iter().enumerate().map(|(at, value)| Metric {
        name: format!("metric_{at}").into(),
        value: *value,
        source: MetricSource::Reported,
    });
    let metrics: Vec<Metric> = named.collect();
    let report = UsageReport {
        model: "m",
        trust: Trust::Trust,
        ending: BillingOutcome::Completed,
        streamed: false,
        metrics: &metrics,
        queue_ms: 1,
        infer_ms: 2,
    };
    let model = user_of(&spec(
        json!({ "name": "p", "world": "billing-formula", "file": "" }),
    ));
    calling("acme", |caller| {
        plugins.billing(&model).price(caller, &tariff, &report)
    })
}

fn loaded(stand: &TestHost, guest: &Wat) -> PluginSnapshot {
    let spec = stand.spec("p", World::BillingFormula, guest);
    stand.load(&spec).unwrap()
}

#[test]
fn a_warm_guest_is_handed_a_tariff_once_and_again_only_when_it_differs() {
    let stand = TestHost::new();
    let plugins = loaded(&stand, &counting());
    let total = |cost, values: &[f64]| price_under(&plugins, cost, values).charge.total;
    let handed = [
        total(1.0, &[7.0]),
        total(1.0, &[8.0]),
        total(2.0, &[8.0]),
        total(2.0, &[8.0, 9.0]),
        total(1.0, &[9.0]),
        total(2.0, &[1.0]),
    ];
    assert_eq!(handed, [1.0, 1.0, 2.0, 3.0, 3.0, 3.0]);
}

#[test]
fn tariffs_beyond_the_bound_take_the_numbers_of_the_first_ones() {
    let stand = TestHost::new();
    let guest = counting().set_tariff(&format!(
        "(if (i32.ge_u (local.get $number) (i32.const {TARIFFS_MAX})) (then unreachable)) {COUNT}"
    ));
    let plugins = loaded(&stand, &guest);
    let total = |cost: usize| price_under(&plugins, cost as f64, &[]).charge.total;
    for cost in 0..=TARIFFS_MAX {
        assert_eq!(total(cost), cost as f64 + 1.0);
    }
    let all = TARIFFS_MAX as f64 + 1.0;
    assert_eq!(
        [total(TARIFFS_MAX), total(1), total(0)],
        [all, all, all + 1.0]
    );
}

#[test]
fn eight_quantities_travel_one_by_one_and_more_as_a_list() {
    let stand = TestHost::new();
    // The base is the second quantity, wherever it stands.
    let guest = Wat::in_numbers().price(
        "(local $at f64) (call $clear)
         (local.set $at (f64.reinterpret_i64 (local.get $second)))
         (if (local.get $case) (then
           (if (i64.ne (local.get $second) (i64.const 9)) (then unreachable))
           (local.set $at (f64.load offset=8 (i32.wrap_i64 (local.get $first))))))
         (f64.store (i32.const 1032) (local.get $at)) (f64.store (i32.const 1040) (local.get $at))
         (i32.const 1024)",
    );
    let plugins = loaded(&stand, &guest);
    let total = |values: &[f64]| price_under(&plugins, 0.0, values).charge.total;
    assert_eq!(total(&[1.0]), 0.0);
    assert_eq!(total(&[1.0, 2.5]), 2.5);
    assert_eq!(total(&[3.5; 8]), 3.5);
    assert_eq!(total(&[4.5; 9]), 4.5);
    assert_eq!(failures(&plugins, "trapped"), 0);
}

#[test]
fn indices_of_a_charge_name_the_metrics_of_the_request_and_no_others() {
    let stand = TestHost::new();
    let plugins = loaded(&stand, &Wat::in_numbers().price(&charge(1, 0b11)));
    let priced = price_under(&plugins, 0.0, &[1.0, 2.0]);
    assert!(!priced.fell_back);
    assert_eq!(&*priced.charge.lines[0].metric, "metric_1");
    let visible: Vec<&str> = priced.charge.visible.iter().map(Arc::as_ref).collect();
    assert_eq!(visible, ["metric_0", "metric_1"]);
    for (metric, visible) in [(2, 0), (u32::MAX, 0), (0, 0b100), (0, u64::MAX)] {
        let stand = TestHost::new();
        let plugins = loaded(&stand, &Wat::in_numbers().price(&charge(metric, visible)));
        assert!(price_under(&plugins, 0.0, &[1.0, 2.0]).fell_back);
        assert_eq!(failures(&plugins, "invalid"), 1, "{metric} {visible}");
    }
}

#[test]
fn a_tariff_that_a_guest_refuses_is_no_fault_and_one_that_it_fails_over_is() {
    let refusal = "(call $clear) (i32.store8 (i32.const 1024) (i32.const 1))
        (i32.store8 (i32.const 1028) (i32.const 1)) (i32.const 1024)";
    for (body, class) in [
        (refusal, "broken"),
        ("unreachable", "trapped"),
        ("(loop $on (br $on)) unreachable", "deadline"),
        ("(i32.const -16)", "invalid"),
    ] {
        let stand = TestHost::new();
        let guest = Wat::in_numbers().set_tariff(body);
        let spec = stand.spec("p", World::BillingFormula, &guest);
        let plugins = stand.load(&spec).unwrap();
        for _ in 0..2 {
            let priced = price(&plugins, &user_of(&spec), "acme");
            assert!(priced.fell_back, "{class}");
            assert_eq!(priced.charge.total, BUILTIN_PRICE);
        }
        assert_eq!(failures(&plugins, class), 2, "{class}");
    }
}

#[test]
fn a_component_of_the_first_version_prices_as_the_built_in_formula() {
    let stand = TestHost::new();
    let file = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/src/plugin/tests/neurons-1.0.0.wasm"
    );
    let of_file =
        spec(json!({ "name": "p", "world": "billing-formula", "file": file, "dev": true }));
    let plugins = stand.load(&of_file).unwrap();
    for values in [&[1.0, 2.0][..], &[3.0; 12]] {
        let priced = price_under(&plugins, 1.5, values);
        let native = price_under(&PluginSnapshot::default(), 1.5, values);
        assert_eq!(priced.charge, native.charge);
        assert!(!priced.fell_back && native.uses.is_empty());
    }
}

#[test]
fn another_account_has_a_guest_that_knows_no_tariff() {
    let stand = TestHost::new();
    let guest = counting();
    let spec = stand.spec("p", World::BillingFormula, &guest);
    let plugins = stand.load(&spec).unwrap();
    let total = |account| price(&plugins, &user_of(&spec), account).charge.total;
    let totals = ["a", "a", "b", "a"].map(total);
    assert_eq!(totals, [1.0; 4]);
    assert_eq!(stand.host.counts().instances_live, 2);
}
