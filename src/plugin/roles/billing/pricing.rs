//! The interface `pricing`: a price by a call of numbers, after the guest was handed the tariff once.
//!
//! Decides nothing about the charge beyond the meaning of its indices; the caller validates it. Called for each
//! price of a component that exports the interface, before `billing`.

use std::sync::Arc;

use infergate_core::billing::{
    BillingOutcome, Charge, ChargeLine, Metric, MetricSource, UsageReport,
};
use infergate_core::model::{Tariff, Trust};
use wasmtime::Store;

use crate::plugin::failure::Failure;
use crate::plugin::roles::guest::broken;
use crate::plugin::runtime::bindings::pricing as wit;
use crate::plugin::runtime::store::GuestState;

/// Quantities that travel without memory of the guest.
const FEW: usize = 8;

/// The charge as a guest works it out, and not yet validated.
pub fn price(
    store: &mut Store<GuestState>,
    guest: &wit::Guest,
    tariff: &Tariff,
    report: &UsageReport<'_>,
) -> wasmtime::Result<Result<Charge, Failure>> {
    let number = match store.data_mut().tariffs.find(tariff, report) {
        Some(number) => number,
        None => match hand_over(store, guest, tariff, report)? {
            Ok(number) => number,
            Err(error) => return Ok(Err(failure(error))),
        },
    };
    let mut few = [0.0; FEW];
    let many: Vec<f64>;
    let values = report.metrics.iter().map(|metric| metric.value);
    let quantities = if report.metrics.len() <= FEW {
        few.iter_mut()
            .zip(values)
            .for_each(|(to, value)| *to = value);
        wit::Quantities::Few(few.into())
    } else {
        many = values.collect();
        wit::Quantities::Many(&many)
    };
    let usage = wit::Usage {
        outcome: outcome(report.ending),
        streamed: report.streamed,
        queue_ms: report.queue_ms,
        infer_ms: report.infer_ms,
        quantities,
    };
    let returned = guest.call_price(store, number, usage)?;
    Ok(returned
        .map_err(failure)
        .and_then(|charge| charge_out(charge, report.metrics)))
}

/// Hands a tariff over; its number, once the guest has taken it.
fn hand_over(
    store: &mut Store<GuestState>,
    guest: &wit::Guest,
    tariff: &Tariff,
    report: &UsageReport<'_>,
) -> wasmtime::Result<Result<u32, wit::BillingError>> {
    let coefficients = tariff.coefficients.iter();
    let coefficients: Vec<wit::Coefficient<'_>> = coefficients
        .map(|(metric, neurons)| wit::Coefficient {
            metric,
            neurons: *neurons,
        })
        .collect();
    let criteria = tariff.criteria.iter();
    let criteria: Vec<(&str, &str)> = criteria.map(|(key, value)| (&**key, &**value)).collect();
    let metrics: Vec<wit::Metric<'_>> = report
        .metrics
        .iter()
        .map(|metric| wit::Metric {
            name: &metric.name,
            source: source(metric.source),
        })
        .collect();
    let terms = wit::Tariff {
        model: report.model,
        trust: trust(report.trust),
        cost_per_infer: tariff.cost_per_infer,
        coefficients: &coefficients,
        criteria: &criteria,
        metrics: &metrics,
    };
    let number = store.data().tariffs.next_number();
    let taken = guest.call_set_tariff(&mut *store, number, terms)?;
    if taken.is_ok() {
        store.data_mut().tariffs.record(tariff, report);
    }
    Ok(taken.map(|()| number))
}

/// A charge with the names that its indices mean. A zero added makes a zero of minus zero, which no price is.
fn charge_out(returned: wit::Charge, metrics: &[Metric]) -> Result<Charge, Failure> {
    let name = |index: u32| {
        let metric = metrics.get(index as usize);
        metric.map(|metric| Arc::clone(&metric.name))
    };
    let mut lines = Vec::with_capacity(returned.lines.len());
    for line in returned.lines {
        lines.push(ChargeLine {
            metric: name(line.metric).ok_or(Failure::Invalid("line-unknown-metric"))?,
            quantity: line.quantity,
            neurons: line.neurons + 0.0,
        });
    }
    let mut left = returned.visible;
    let mut visible = Vec::with_capacity(left.count_ones() as usize);
    while left != 0 {
        let shown = name(left.trailing_zeros());
        visible.push(shown.ok_or(Failure::Invalid("visible-unknown-metric"))?);
        left &= left - 1;
    }
    // As the built-in formula lists them; metrics of a request are in this order already.
    if !visible.is_sorted() {
        visible.sort();
    }
    Ok(Charge {
        total: returned.total + 0.0,
        base: returned.base + 0.0,
        lines,
        visible,
    })
}

fn source(source: MetricSource) -> wit::Source {
    match source {
        MetricSource::Reported => wit::Source::ModelReported,
        MetricSource::Estimated => wit::Source::HostEstimated,
        MetricSource::Derived | MetricSource::Answered => wit::Source::PluginDerived,
    }
}

fn trust(trust: Trust) -> wit::Trust {
    match trust {
        Trust::Trust => wit::Trust::Trust,
        Trust::Estimate => wit::Trust::Estimate,
        Trust::Compare => wit::Trust::Compare,
    }
}

fn outcome(ending: BillingOutcome) -> wit::Outcome {
    match ending {
        BillingOutcome::Completed => wit::Outcome::Completed,
        BillingOutcome::CutByClient => wit::Outcome::CutByClient,
        BillingOutcome::CutByBackend => wit::Outcome::CutByBackend,
        BillingOutcome::CutByDeadline => wit::Outcome::CutByDeadline,
        BillingOutcome::Failed => wit::Outcome::Failed,
    }
}

fn failure(error: wit::BillingError) -> Failure {
    match error {
        wit::BillingError::UnknownMetric(name) => broken(format!("unknown metric `{name}`")),
        wit::BillingError::BadValue(what) => broken(format!("bad value: {what}")),
        wit::BillingError::Broken(what) => broken(what),
    }
}
