//! The worlds `billing-formula` and `billing-estimator`: calls of the interfaces `pricing`, `billing`, `estimator`.
//!
//! A formula sees numbers and names of a request, and no account.

use std::sync::Arc;

use infergate_core::billing::{BillingOutcome, Charge, ChargeLine, MetricSource, UsageReport};
use infergate_core::model::{Tariff, Trust};
use wasmtime::Store;

use crate::plugin::failure::Failure;
use crate::plugin::roles::billing::pricing;
use crate::plugin::roles::captured_args;
use crate::plugin::roles::guest::{ABSENT, broken, validated};
use crate::plugin::roles::traits::BillingFormula;
use crate::plugin::roles::validate_output;
use crate::plugin::runtime::bindings::billing as wit;
use crate::plugin::runtime::call::Caller;
use crate::plugin::runtime::call::HookCall;
use crate::plugin::runtime::revision::Revision;
use crate::plugin::runtime::store::{Exports, GuestState};
use crate::telemetry::event::PluginIdentity;

impl BillingFormula for Revision {
    fn identity(&self) -> Option<&Arc<PluginIdentity>> {
        Some(&self.parts.identity)
    }

    fn price(
        &self,
        caller: Caller<'_>,
        tariff: &Tariff,
        report: &UsageReport<'_>,
    ) -> Result<Charge, Failure> {
        let hook = self.billing_hook("price");
        let ended = self.call(hook, Some(caller), |store, exports| {
            self.call_price(store, exports, tariff, report)
        });
        if let Ok(charge) = &ended {
            self.repeat(caller, tariff, report, charge);
        }
        let bytes = captured_args::SMALL * (1 + report.metrics.len());
        self.capture(hook, Some(caller), (&ended, bytes), || {
            captured_args::price(tariff, report)
        });
        ended
    }

    fn estimate(
        &self,
        caller: Caller<'_>,
        input: &[u8],
        output: &[u8],
    ) -> Result<Vec<(String, f64)>, Failure> {
        if self.parts.code.indices.estimator.is_none() {
            return Err(ABSENT);
        }
        let hook = self.billing_hook("estimate");
        self.check_input_size(hook, input.len() + output.len())?;
        let ended = self.call(hook, Some(caller), |store, exports| {
            let Some(estimator) = &exports.estimator else {
                return Ok(Err(ABSENT));
            };
            let estimator = estimator.infergate_plugin_estimator();
            let returned = estimator.call_estimate(store, input, output, &[])?;
            Ok(returned.map_err(broken).and_then(|metrics| {
                let verdict = validate_output::metrics(&metrics);
                validated(metrics, verdict)
            }))
        });
        let bytes = input.len() + output.len();
        self.capture(hook, Some(caller), (&ended, bytes), || {
            captured_args::estimate(input, output)
        });
        ended
    }
}

impl Revision {
    /// The charge as this guest works it out, checked.
    pub fn call_price(
        &self,
        store: &mut Store<GuestState>,
        exports: &Exports,
        tariff: &Tariff,
        report: &UsageReport<'_>,
    ) -> wasmtime::Result<Result<Charge, Failure>> {
        let priced = match (&exports.pricing, &exports.billing) {
            (Some(guest), _) => {
                pricing::price(store, guest.infergate_plugin_pricing(), tariff, report)
            }
            (None, Some(guest)) => {
                price_by_texts(store, guest.infergate_plugin_billing(), tariff, report)
            }
            (None, None) => Ok(Err(ABSENT)),
        };
        Ok(priced?.and_then(|charge| {
            let verdict = charge.validate(report, self.parts.bounds.charge_max as f64);
            validated(charge, verdict)
        }))
    }

    /// A hook of this world, under its deadline.
    pub fn billing_hook(&self, name: &'static str) -> HookCall {
        HookCall {
            name,
            deadline_ms: self.parts.bounds.deadline_ms,
            input_bytes: 0,
        }
    }
}

/// The charge of a component that has no interface but `billing`, not yet validated.
fn price_by_texts(
    store: &mut Store<GuestState>,
    guest: &wit::Guest,
    tariff: &Tariff,
    report: &UsageReport<'_>,
) -> wasmtime::Result<Result<Charge, Failure>> {
    let coefficients: Vec<wit::Coefficient<'_>> = tariff
        .coefficients
        .iter()
        .map(|(metric, neurons)| wit::Coefficient {
            metric,
            neurons: *neurons,
        })
        .collect();
    let criteria: Vec<(&str, &str)> = tariff
        .criteria
        .iter()
        .map(|(name, value)| (&**name, &**value))
        .collect();
    let metrics: Vec<wit::Metric<'_>> = report
        .metrics
        .iter()
        .map(|metric| wit::Metric {
            name: &metric.name,
            value: metric.value,
            source: source(metric.source),
        })
        .collect();
    let rates = wit::Tariff {
        cost_per_infer: tariff.cost_per_infer,
        coefficients: &coefficients,
        criteria: &criteria,
    };
    let usage = wit::Usage {
        model: report.model,
        trust: trust(report.trust),
        outcome: outcome(report.ending),
        streamed: report.streamed,
        metrics: &metrics,
        queue_ms: report.queue_ms,
        infer_ms: report.infer_ms,
    };
    let returned = guest.call_price(store, rates, usage)?;
    Ok(returned.map_err(billing_failure).map(charge_out))
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

fn billing_failure(error: wit::BillingError) -> Failure {
    match error {
        wit::BillingError::UnknownMetric(name) => broken(format!("unknown metric `{name}`")),
        wit::BillingError::BadValue(what) => broken(format!("bad value: {what}")),
        wit::BillingError::Broken(what) => broken(what),
    }
}

/// A zero added makes a zero of minus zero, which no price is.
fn charge_out(returned: wit::Charge) -> Charge {
    Charge {
        total: returned.total + 0.0,
        base: returned.base + 0.0,
        lines: returned
            .lines
            .into_iter()
            .map(|line| ChargeLine {
                metric: Arc::from(line.metric),
                quantity: line.quantity,
                neurons: line.neurons + 0.0,
            })
            .collect(),
        visible: returned.visible.into_iter().map(Arc::from).collect(),
    }
}
