//! Metrics, settlement and the check of a charge.

use std::sync::Arc;

use proptest::prelude::*;

use crate::billing::*;
use crate::model::{MetricMode, Tariff, Trust};

fn modes(name: &str, mode: MetricMode) -> MetricModes {
    MetricModes::from([(Arc::from(name), mode)])
}

fn reported(reports: &[(&str, f64)], modes: &MetricModes) -> Metrics {
    let mut metrics = Metrics::default();
    for (name, value) in reports {
        metrics.report(name, *value, MetricSource::Reported, modes);
    }
    metrics
}

fn estimates(all: &[(&str, f64)]) -> Vec<(String, f64)> {
    all.iter()
        .map(|(name, value)| ((*name).to_owned(), *value))
        .collect()
}

fn figures(settled: &Settlement) -> Vec<(&str, f64, MetricSource)> {
    let all = settled.metrics.iter();
    all.map(|metric| (&*metric.name, metric.value, metric.source))
        .collect()
}

fn report(metrics: &[Metric]) -> UsageReport<'_> {
    UsageReport {
        model: "m",
        trust: Trust::Trust,
        ending: BillingOutcome::Completed,
        streamed: false,
        metrics,
        queue_ms: 0,
        infer_ms: 1,
    }
}

#[test]
fn cumulative_reports_keep_the_largest_and_incremental_ones_add_up() {
    let reports = [("t", 3.0), ("t", 9.0), ("t", 5.0)];
    let usual = reported(&reports, &MetricModes::new());
    assert_eq!(usual.value("t", MetricSource::Reported), Some(9.0));
    let summed = reported(&reports, &modes("t", MetricMode::Incremental));
    assert_eq!(summed.value("t", MetricSource::Reported), Some(17.0));
    let declared = reported(&reports, &modes("t", MetricMode::Cumulative));
    assert_eq!(declared.value("t", MetricSource::Reported), Some(9.0));
}

#[test]
fn what_is_no_quantity_is_left_out_and_counted() {
    let long = "x".repeat(METRIC_NAME_MAX_BYTES + 1);
    let bad = [
        ("t", f64::NAN),
        ("t", f64::INFINITY),
        ("t", -1.0),
        ("t", QUANTITY_MAX * 2.0),
        ("", 1.0),
        (&*long, 1.0),
    ];
    let metrics = reported(&bad, &MetricModes::new());
    assert_eq!(metrics.iter_source(MetricSource::Reported).count(), 0);
    assert_eq!(metrics.dropped(), 6);
}

#[test]
fn usage_is_taken_as_four_metrics_and_a_zero_as_not_said() {
    let mut metrics = Metrics::default();
    let usage = Usage {
        input_tokens: 7,
        output_tokens: 0,
        cached_tokens: Some(4),
        reasoning_tokens: None,
    };
    metrics.report_usage(usage, &MetricModes::new());
    let names: Vec<&str> = metrics
        .iter_source(MetricSource::Reported)
        .map(|metric| &*metric.name)
        .collect();
    assert_eq!(names, ["input_tokens", "cached_tokens"]);
}

#[test]
fn costs_in_the_head_are_paired_by_their_numbers() {
    let headers: [(&str, &[u8]); 8] = [
        ("CF-AI-Neurons", b"1.5"),
        ("cf-ai-cost-metric-value-2", b"20"),
        ("cf-ai-cost-metric-name-1", b"input_tokens"),
        ("cf-ai-cost-metric-name-2", b"output_tokens"),
        ("cf-ai-cost-metric-value-1", b" 7 "),
        ("cf-ai-cost-metric-name-3", b"alone"),
        ("cf-ai-cost-metric-value-x", b"1"),
        ("content-type", b"application/json"),
    ];
    assert_eq!(
        cost_headers(headers.into_iter()),
        estimates(&[
            ("neurons", 1.5),
            ("input_tokens", 7.0),
            ("output_tokens", 20.0)
        ])
    );
    let bad: [(&str, &[u8]); 2] = [
        ("cf-ai-neurons", b"many"),
        ("cf-ai-cost-metric-name-1", b"\xff"),
    ];
    assert_eq!(cost_headers(bad.into_iter()), []);
}

#[test]
fn trust_bills_the_report_and_the_estimate_only_of_what_was_not_reported() {
    let counted = estimates(&[("input_tokens", 5.0), ("output_tokens", 6.0)]);
    let mut metrics = reported(&[("output_tokens", 9.0)], &MetricModes::new());
    metrics.report(
        "image_steps",
        20.0,
        MetricSource::Derived,
        &MetricModes::new(),
    );
    metrics.report(
        "output_tokens",
        8.0,
        MetricSource::Derived,
        &MetricModes::new(),
    );
    let settled = settle(Trust::Trust, &metrics, &counted);
    let expected = [
        ("image_steps", 20.0, MetricSource::Derived),
        ("input_tokens", 5.0, MetricSource::Estimated),
        ("output_tokens", 9.0, MetricSource::Reported),
    ];
    assert_eq!(figures(&settled), expected);
    assert_eq!(settled.source, MetricSource::Estimated);
    assert_eq!(settled.comparison, []);
    let reported = settle(Trust::Trust, &metrics, &[]);
    assert_eq!(reported.source, MetricSource::Reported);

    let silent = settle(Trust::Trust, &Metrics::default(), &counted);
    assert_eq!(silent.source, MetricSource::Estimated);
    assert!(
        silent
            .metrics
            .iter()
            .all(|metric| metric.source == MetricSource::Estimated)
    );
    assert_eq!(silent.metrics.len(), 2);
    assert_eq!(
        settle(Trust::Trust, &Metrics::default(), &[]).source,
        MetricSource::Derived
    );
}

#[test]
fn estimate_does_not_look_at_the_report() {
    let mut metrics = reported(
        &[("output_tokens", 9000.0), ("neurons", 1.0)],
        &MetricModes::new(),
    );
    metrics.report(
        "output_tokens",
        9000.0,
        MetricSource::Derived,
        &MetricModes::new(),
    );
    metrics.report(
        "image_steps",
        20.0,
        MetricSource::Derived,
        &MetricModes::new(),
    );
    let settled = settle(
        Trust::Estimate,
        &metrics,
        &estimates(&[("output_tokens", 6.0)]),
    );
    let expected = [
        ("image_steps", 20.0, MetricSource::Derived),
        ("output_tokens", 6.0, MetricSource::Estimated),
    ];
    assert_eq!(figures(&settled), expected);
    assert_eq!(settled.source, MetricSource::Estimated);
}

#[test]
fn what_a_task_reads_in_the_answer_is_believed_as_far_as_the_server_is() {
    let mut metrics = Metrics::default();
    let none = MetricModes::new();
    metrics.report("image_steps", 20.0, MetricSource::Derived, &none);
    metrics.report("output_tokens", 5.0, MetricSource::Derived, &none);
    metrics.report("output_tokens", 9000.0, MetricSource::Answered, &none);
    metrics.report("audio_seconds", 60.0, MetricSource::Answered, &none);
    let tokens = |settled: &Settlement| {
        let all = settled.metrics.iter();
        all.map(|metric| (metric.name.to_string(), metric.value))
            .collect::<Vec<_>>()
    };
    let named = |all: &[(&str, f64)]| estimates(all);
    let counted = named(&[("output_tokens", 6.0)]);
    // (trust, the gateway's count, what is billed)
    let table = [
        (
            Trust::Trust,
            &[][..],
            named(&[
                ("audio_seconds", 60.0),
                ("image_steps", 20.0),
                ("output_tokens", 9000.0),
            ]),
        ),
        (
            Trust::Trust,
            &counted,
            named(&[
                ("audio_seconds", 60.0),
                ("image_steps", 20.0),
                ("output_tokens", 9000.0),
            ]),
        ),
        (
            Trust::Compare,
            &counted,
            named(&[
                ("audio_seconds", 60.0),
                ("image_steps", 20.0),
                ("output_tokens", 9000.0),
            ]),
        ),
        (
            Trust::Estimate,
            &counted,
            named(&[("image_steps", 20.0), ("output_tokens", 6.0)]),
        ),
        (
            Trust::Estimate,
            &[],
            named(&[("image_steps", 20.0), ("output_tokens", 5.0)]),
        ),
    ];
    for (trust, counted, billed) in table {
        let settled = settle(trust, &metrics, counted);
        assert_eq!(tokens(&settled), billed, "{trust:?} {counted:?}");
    }
    let compared = settle(Trust::Compare, &metrics, &counted).comparison;
    let all: Vec<_> = compared
        .iter()
        .map(|one| (&*one.metric, one.reported, one.estimated, one.matches))
        .collect();
    assert_eq!(
        all,
        [
            ("audio_seconds", Some(60.0), None, None),
            ("output_tokens", Some(9000.0), Some(6.0), Some(false)),
        ]
    );
}

#[test]
fn metrics_that_are_joined_keep_their_sources_and_the_larger_value() {
    let none = MetricModes::new();
    let mut metrics = reported(&[("a", 3.0)], &none);
    let mut other = reported(&[("a", 2.0), ("b", 1.0)], &none);
    other.report("a", 9.0, MetricSource::Derived, &none);
    metrics.merge(&other);
    assert_eq!(metrics.value("a", MetricSource::Reported), Some(3.0));
    assert_eq!(metrics.value("a", MetricSource::Derived), Some(9.0));
    assert_eq!(metrics.value("b", MetricSource::Reported), Some(1.0));
    metrics.clear();
    assert!(metrics.is_empty());
}

#[test]
fn compare_bills_the_report_and_says_whether_the_estimate_agrees() {
    let cases = [
        (100.0, 110.0, true),
        (100.0, 90.0, true),
        (100.0, 110.5, false),
        (5.0, 7.0, true),
        (5.0, 7.5, false),
        (0.0, 2.0, true),
    ];
    for (said, counted, matches) in cases {
        let metrics = reported(
            &[("output_tokens", said), ("other", 1.0)],
            &MetricModes::new(),
        );
        let settled = settle(
            Trust::Compare,
            &metrics,
            &estimates(&[("output_tokens", counted)]),
        );
        let [other, found] = &settled.comparison[..] else {
            panic!("two metrics: {:?}", settled.comparison);
        };
        assert_eq!((&*other.metric, other.matches), ("other", None));
        assert_eq!(
            (found.reported, found.estimated, found.matches),
            (Some(said), Some(counted), Some(matches))
        );
        assert_eq!(settled.source, MetricSource::Reported);
    }
    let metrics = reported(&[("a", 5.0), ("b", 5.0)], &MetricModes::new());
    let settled = settle(
        Trust::Compare,
        &metrics,
        &estimates(&[("a", 5.0), ("b", 50.0), ("c", 1.0)]),
    );
    let names = settled.comparison.iter();
    let names: Vec<_> = names.map(|one| (&*one.metric, one.matches)).collect();
    assert_eq!(names, [("a", Some(true)), ("b", Some(false)), ("c", None)]);
}

#[test]
fn a_tariff_may_price_the_cached_and_the_fresh_part_of_a_prompt() {
    let parts = |figures: &[(&str, f64)]| {
        let metrics = reported(figures, &MetricModes::new());
        let mut settled = settle(Trust::Trust, &metrics, &[]).metrics;
        add_parts_of_input(&mut settled, |name| name == "uncached_input_tokens");
        let all = settled.into_iter();
        all.map(|metric| (metric.name.to_string(), metric.value))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        parts(&[("input_tokens", 9.0), ("cached_tokens", 8.0)]),
        estimates(&[
            ("cached_input_tokens", 8.0),
            ("cached_tokens", 8.0),
            ("input_tokens", 9.0),
            ("uncached_input_tokens", 1.0),
        ])
    );
    // More cached than read is a broken report; a server without a cache reports none.
    let uncached = |figures| parts(figures).pop().map(|(_, value)| value);
    assert_eq!(
        uncached(&[("input_tokens", 9.0), ("cached_tokens", 12.0)]),
        Some(0.0)
    );
    assert_eq!(uncached(&[("input_tokens", 9.0)]), Some(9.0));
    assert_eq!(
        parts(&[("output_tokens", 9.0)]),
        estimates(&[("output_tokens", 9.0)])
    );
    let mut unpriced = settle(
        Trust::Trust,
        &reported(&[("input_tokens", 9.0)], &MetricModes::new()),
        &[],
    )
    .metrics;
    add_parts_of_input(&mut unpriced, |_| false);
    assert_eq!(unpriced.len(), 1);
}

#[test]
fn every_lie_of_a_charge_has_its_rule() {
    let metrics = [Metric {
        name: "t".into(),
        value: 10.0,
        source: MetricSource::Reported,
    }];
    let honest = Charge {
        total: 3.0,
        base: 1.0,
        lines: vec![ChargeLine {
            metric: "t".into(),
            quantity: 10.0,
            neurons: 2.0,
        }],
        visible: vec!["t".into()],
    };
    assert_eq!(
        honest.validate(&report(&metrics), CHARGE_MAX_NEURONS),
        Ok(())
    );
    let rebate = ChargeLine {
        metric: "t".into(),
        quantity: 10.0,
        neurons: -0.5,
    };
    let mut rebated = honest.clone();
    rebated.lines.push(rebate);
    rebated.total = 2.5;
    assert_eq!(
        rebated.validate(&report(&metrics), CHARGE_MAX_NEURONS),
        Ok(())
    );

    let lie = |change: fn(&mut Charge)| {
        let mut charge = honest.clone();
        change(&mut charge);
        charge
            .validate(&report(&metrics), CHARGE_MAX_NEURONS)
            .unwrap_err()
    };
    assert_eq!(lie(|c| c.total = f64::NAN), "total-range");
    assert_eq!(lie(|c| c.total = -1.0), "total-range");
    assert_eq!(lie(|c| c.total = CHARGE_MAX_NEURONS * 2.0), "total-range");
    assert_eq!(lie(|c| c.base = f64::INFINITY), "base-range");
    assert_eq!(lie(|c| c.total = 3.000_001), "total-is-not-the-sum");
    // Lines that cancel each other out are no margin for the total.
    assert_eq!(
        lie(|c| {
            let line = |neurons| ChargeLine {
                neurons,
                ..c.lines[0].clone()
            };
            c.lines = [line(1e12), line(-1e12), line(2.0)].into();
            c.total = 1999.0;
        }),
        "total-is-not-the-sum"
    );
    let capped = |total, line| {
        let mut charge = honest.clone();
        (charge.total, charge.base) = (total, total - line);
        charge.lines[0].neurons = line;
        charge.validate(&report(&metrics), 1e6)
    };
    assert_eq!(capped(1e6, 1e6 - 1.0), Ok(()));
    assert_eq!(capped(1e6 + 1.0, 2.0), Err("total-range"));
    assert_eq!(lie(|c| c.lines[0].neurons = f64::NAN), "line-range");
    assert_eq!(lie(|c| c.lines[0].quantity = -1.0), "line-quantity-range");
    assert_eq!(
        lie(|c| c.lines[0].metric = "u".into()),
        "line-unknown-metric"
    );
    assert_eq!(
        lie(|c| c.visible = vec!["u".into()]),
        "visible-unknown-metric"
    );
    assert_eq!(
        lie(|c| c.lines = vec![c.lines[0].clone(); LINES_MAX + 1]),
        "too-many-lines"
    );
}

/// Few enough names to repeat, enough to pass the bound, and one that is too long.
fn reports() -> impl Strategy<Value = Vec<(String, f64)>> {
    let value = prop_oneof![4 => 0.0..1e6f64, 1 => any::<f64>()];
    let name = (0..100usize).prop_map(|at| match at {
        0 => "x".repeat(METRIC_NAME_MAX_BYTES + 1),
        1..30 => char::from(b'a' + (at % 8) as u8).to_string(),
        at => format!("m{at}"),
    });
    proptest::collection::vec((name, value), 0..100)
}

fn trust() -> impl Strategy<Value = Trust> {
    proptest::sample::select(vec![Trust::Trust, Trust::Estimate, Trust::Compare])
}

proptest! {
    #[test]
    fn metrics_keep_their_bounds_whatever_is_reported(all in reports(), names in 0..3u8) {
        let modes = if names == 0 { modes("a", MetricMode::Incremental) } else { MetricModes::new() };
        let mut metrics = Metrics::default();
        metrics.report_all(&all, MetricSource::Reported, &modes);
        metrics.report_all(&all, MetricSource::Derived, &modes);
        let taken: Vec<&Metric> = metrics.iter_source(MetricSource::Reported).collect();
        prop_assert!(taken.len() <= METRICS_MAX);
        for (at, metric) in taken.iter().enumerate() {
            prop_assert!((0.0..=QUANTITY_MAX).contains(&metric.value));
            prop_assert!(metric.name.len() <= METRIC_NAME_MAX_BYTES);
            prop_assert!(taken[..at].iter().all(|other| other.name != metric.name));
        }
    }

    #[test]
    fn the_order_of_cumulative_reports_does_not_matter(mut all in reports()) {
        all.truncate(METRICS_MAX);
        let settled = |all: &[(String, f64)]| {
            let mut metrics = Metrics::default();
            metrics.report_all(all, MetricSource::Reported, &MetricModes::new());
            settle(Trust::Trust, &metrics, &[])
        };
        let forward = settled(&all);
        all.reverse();
        prop_assert_eq!(settled(&all), forward);
    }

    #[test]
    fn under_estimate_no_word_of_the_server_changes_the_bill(
        said in reports(), read in reports(), derived in reports(), counted in reports(),
    ) {
        let mut own = Metrics::default();
        own.report_all(&derived, MetricSource::Derived, &MetricModes::new());
        let silent = settle(Trust::Estimate, &own, &counted);
        let mut reported = Metrics::default();
        reported.report_all(&said, MetricSource::Reported, &MetricModes::new());
        reported.report_all(&read, MetricSource::Answered, &MetricModes::new());
        reported.report_all(&derived, MetricSource::Derived, &MetricModes::new());
        let settled = settle(Trust::Estimate, &reported, &counted);
        prop_assert_eq!(&settled.metrics, &silent.metrics);
        prop_assert_eq!(settled.source, silent.source);
    }

    #[test]
    fn what_is_settled_has_each_name_once_and_prices_into_a_charge_that_passes(
        trust in trust(), said in reports(), derived in reports(), counted in reports(),
        base in 0.0..100f64, coefficients in proptest::collection::btree_map("[a-h]", 0.0..10f64, 0..8),
    ) {
        let mut metrics = Metrics::default();
        metrics.report_all(&said, MetricSource::Reported, &MetricModes::new());
        metrics.report_all(&derived, MetricSource::Derived, &MetricModes::new());
        metrics.report_all(&derived, MetricSource::Answered, &MetricModes::new());
        let settled = settle(trust, &metrics, &counted);
        prop_assert!(settled.metrics.windows(2).all(|pair| pair[0].name < pair[1].name));
        prop_assert!(settled.metrics.len() <= METRICS_MAX);
        let has = |source| settled.metrics.iter().any(|metric| metric.source == source);
        for metric in settled.metrics.iter().filter(|metric| metric.source == MetricSource::Estimated) {
            let is_reported = metrics.value(&metric.name, MetricSource::Reported).is_some();
            prop_assert!(trust == Trust::Estimate || !is_reported, "an estimate of what was reported");
        }
        let of_server = has(MetricSource::Reported) || has(MetricSource::Answered);
        prop_assert!(!(trust == Trust::Estimate && of_server));
        prop_assert_eq!(!settled.comparison.is_empty() && trust != Trust::Compare, false);
        let tariff = Tariff {
            cost_per_infer: base,
            coefficients: coefficients.into_iter().map(|(name, value)| (name.into(), value)).collect(),
            ..Tariff::default()
        };
        let report = report(&settled.metrics);
        let charge = price(&tariff, &report);
        let small = settled.metrics.iter().all(|metric| metric.value <= 1e9);
        prop_assert_eq!(charge.validate(&report, CHARGE_MAX_NEURONS).is_ok() || !small, true);
    }

    #[test]
    fn any_charge_is_judged_without_a_panic(total in any::<f64>(), base in any::<f64>(), lines in proptest::collection::vec(any::<f64>(), 0..5)) {
        let metrics = [Metric { name: "t".into(), value: 1.0, source: MetricSource::Derived }];
        let lines: Vec<ChargeLine> = lines.into_iter().map(|neurons| ChargeLine { metric: "t".into(), quantity: 1.0, neurons }).collect();
        let charge = Charge { total, base, lines, visible: Vec::new() };
        if charge.validate(&report(&metrics), CHARGE_MAX_NEURONS).is_ok() {
            prop_assert!((0.0..=CHARGE_MAX_NEURONS).contains(&total));
        }
    }
}
