//! Billing of one request: metrics gathered, priced once, and the account's day settled.
//!
//! Not the counting (the response) and not a formula (the model's billing). Work is paid once, and a
//! complete response as it is. Cut by its client or the deadline, a request that was sent costs its input
//! and the output so far. Failed by its server or a plugin, it costs the same if the client had bytes of the
//! response, else nothing. An attempt that is repeated is never charged. Neurons held for a request that is not
//! billed go back by drop.

mod bill;
mod usage;

use std::sync::Arc;

use infergate_core::api::Call;
use infergate_core::billing::{
    BillingOutcome, Charge, Metric, Metrics, QuotaExhaustion, UsageReport, add_parts_of_input,
    add_seconds_of_job, price, reserve_estimate, settle,
};
use infergate_core::model::{AccountSpec, ChargeCut, Tariff, Trust, read_tariff_text};
use infergate_core::{Millis, Refusal};

use crate::plugin::Caller;
use crate::state::{QuotaGuard, QuotaStore};
use crate::telemetry::event::{BUILTIN, PluginUse};
use crate::telemetry::{Clock, RequestOutcome};
use crate::trace::{QuotaHold, RequestTimes};
use crate::upstream::{ModelRuntime, ResponseTransformer};
use bill::Bill;
use usage::{
    BillableUsage, EstimateInput, INPUT_TOKENS, OUTPUT_TOKENS, PricingRules, ReportedUsage,
};

/// [`Bill::priced_by`] where the model server named its own price.
const REPORTED: &str = "reported";

/// The least that a caller is told to wait for what its own requests hold: the shortest answer of a
/// language model takes about as long.
const RESERVATION_WAIT_MIN: Millis = Millis::from_secs(1);

/// Up to what an account's day goes.
#[derive(Clone, Copy)]
pub enum QuotaLimit {
    /// So many neurons.
    PerDay(u64),
    /// Another node has looked at it: what is used is counted here and never refused.
    CheckedByPeer,
}

/// Facts of a request that its price depends on.
pub struct PriceInput<'a> {
    /// Account and id, once the account is known.
    pub caller: Option<Caller<'a>>,
    /// Outcome so far.
    pub outcome: RequestOutcome,
    /// The response is a stream of events.
    pub is_streaming: bool,
    /// Waits for permits, and the moment of the permit.
    pub times: &'a RequestTimes,
    /// Clock of the times, read only for a price.
    pub clock: Clock,
    /// Times of the job that it is a run of.
    pub job: Option<JobTimes>,
}

/// Times of a job from which its tariff may count seconds.
#[derive(Clone, Copy, Debug)]
pub struct JobTimes {
    /// Begin of the run, microseconds on the process's clock.
    pub run_from_us: u64,
    /// Time from its create to the begin of the run.
    pub age: Millis,
}

/// Billing of one request.
#[derive(Default)]
pub struct RequestBilling {
    reservation: Option<QuotaGuard>,
    /// Charge that the account owes once the request is over.
    owed: Option<OwedCharge>,
    /// Reservation that was requested.
    quota: Option<QuotaHold>,
    /// Usage of a stream in flight.
    progress: Option<ReportedUsage>,
    input: EstimateInput,
    /// A server was sent the request, and no attempt follows.
    is_sent: bool,
    /// The client has bytes of the answer.
    is_received: bool,
    /// The client has an open connection, which costs what it has used however it ends.
    is_connected: bool,
    is_unmetered: bool,
    /// The usage of a response is recorded, which may be nothing that is priced.
    is_recorded: bool,
    /// The response is complete and was recorded as such: another look would find the same.
    is_final: bool,
    usage: Option<BillableUsage>,
    /// The bill has the metrics that are charged: later reports change nothing.
    is_settled: bool,
    /// Nothing is charged, by the decision of the caller.
    is_waived: bool,
    bill: Bill,
    charge: Option<Charge>,
    /// Tariff of the node that the client asked, which may be none, where it is another than here.
    asked_tariff: Option<Box<Option<Tariff>>>,
}

/// Neurons that a request may come to at a model: what its tokens may cost, at least what answers of
/// the model have cost lately.
fn reserve_amount(rules: PricingRules<'_>, model: &ModelRuntime, call: &Call) -> f64 {
    let prompt = call.prompt_tokens();
    let tokens = |tariff| reserve_estimate(tariff, prompt, call.max_tokens, call.outputs);
    let amount = rules.tariff.map_or(0.0, tokens);
    amount.max(model.mean_charge())
}

impl RequestBilling {
    /// Prices by the tariff of the node that the client asked, `text`, where it is another than here.
    ///
    /// # Errors
    /// [`Refusal::Internal`]: no node of this version has written the text.
    pub fn set_tariff(
        &mut self,
        text: Option<&Arc<str>>,
        model: &ModelRuntime,
    ) -> Result<(), Refusal> {
        self.asked_tariff = match text {
            Some(text) if model.tariff_text.as_ref() != Some(text) => {
                let tariff = read_tariff_text(text).map_err(|_| Refusal::Internal)?;
                Some(Box::new(tariff))
            }
            _ => None,
        };
        Ok(())
    }

    /// Holds what the request may come to, where the account's day has a limit (neurons): what its
    /// tokens may cost, at least what answers of the model have cost lately.
    ///
    /// # Errors
    /// [`Refusal::QuotaUsed`], and [`Refusal::QuotaHeld`] where requests under way may leave some.
    pub fn reserve(
        &mut self,
        store: &Arc<QuotaStore>,
        account: &AccountSpec,
        limit: Option<QuotaLimit>,
        model: &ModelRuntime,
        call: &Call,
    ) -> Result<(), Refusal> {
        self.input = EstimateInput::of(call);
        let (per_day, most) = match limit {
            Some(QuotaLimit::PerDay(neurons)) => (Some(neurons), neurons),
            Some(QuotaLimit::CheckedByPeer) => (None, u64::MAX),
            None => return Ok(()),
        };
        let amount = reserve_amount(PricingRules::of(model, &self.asked_tariff), model, call);
        let held = store.reserve(&account.id, amount, most);
        self.quota = per_day.map(|per_day| QuotaHold {
            neurons: amount,
            per_day,
            granted: held.is_ok(),
        });
        self.reservation = Some(held.map_err(|exhausted| match exhausted {
            QuotaExhaustion::Used => Refusal::QuotaUsed,
            QuotaExhaustion::Held => Refusal::QuotaHeld {
                retry_after: model.gate.expected_wait().max(RESERVATION_WAIT_MIN),
            },
        })?);
        Ok(())
    }

    /// Holds what it may come to at another model instead: who was admitted is not refused for it.
    pub fn exchange(&mut self, account: &AccountSpec, model: &ModelRuntime, call: &Call) {
        if let (Some(held), Some(per_day)) = (&mut self.reservation, account.neurons_per_day) {
            let neurons = reserve_amount(PricingRules::of(model, &self.asked_tariff), model, call);
            held.exchange(neurons);
            self.quota = Some(QuotaHold {
                neurons,
                per_day,
                granted: true,
            });
        }
    }

    /// Something of the account's day is held.
    pub fn has_reservation(&self) -> bool {
        self.reservation.is_some()
    }

    /// Returns the reservation that was requested; none where the day has no limit.
    pub fn quota(&self) -> Option<QuotaHold> {
        self.quota
    }

    /// A server was sent the request, and no other will be: from now on it has worked.
    pub fn mark_sent(&mut self) {
        self.is_sent = true;
    }

    /// The client has got bytes of the answer.
    pub fn mark_received(&mut self) {
        self.is_received = true;
    }

    /// The client has an open connection that has left HTTP.
    pub fn mark_connected(&mut self) {
        self.is_received = true;
        self.is_connected = true;
    }

    /// The answer is whole, and its server has not said what it used.
    pub fn is_unmetered(&self) -> bool {
        self.is_unmetered
    }

    /// Records the progress of a stream; counts only when nothing more is reported.
    pub fn record_progress(&mut self, transformer: &ResponseTransformer) {
        self.report(transformer);
        self.progress = Some(ReportedUsage::from_answer(transformer));
    }

    /// Shows the tokens that the model server has reported so far.
    fn report(&mut self, transformer: &ResponseTransformer) {
        if let Some(usage) = transformer.usage()
            && !self.is_settled
        {
            self.bill.report(usage);
        }
    }

    /// Records the usage of the response so far; the last record before the price counts. A complete response
    /// is counted once.
    pub fn record_usage(
        &mut self,
        transformer: &ResponseTransformer,
        model: &ModelRuntime,
        caller: Caller<'_>,
    ) {
        if self.is_settled || self.is_final {
            return;
        }
        self.is_final = transformer.is_settled();
        self.report(transformer);
        self.is_unmetered =
            transformer.is_unmetered() && model.spec.metrics_trust != Trust::Estimate;
        self.is_recorded = true;
        let rules = PricingRules::of(model, &self.asked_tariff);
        self.usage = BillableUsage::of(transformer, (model, rules), caller, &self.input);
    }

    /// Records the usage of a connection that has left HTTP: metrics of the server's head, and those that the gateway has
    /// `measured`. The latter count in each mode of trust.
    pub fn record_connection(
        &mut self,
        transformer: &ResponseTransformer,
        model: &ModelRuntime,
        measured: &Metrics,
    ) {
        if self.is_settled {
            return;
        }
        let rules = PricingRules::of(model, &self.asked_tariff);
        let usage = ReportedUsage {
            task: measured.clone(),
            complete: true,
            ..ReportedUsage::from_answer(transformer)
        };
        self.is_recorded = true;
        self.usage = Some(usage.to_billable(rules, &self.input, Vec::new()));
    }

    /// Holds what the recorded usage costs by the built-in formula; returns it, neurons.
    pub fn hold_running_cost(&mut self, model: &ModelRuntime) -> f64 {
        let rules = PricingRules::of(model, &self.asked_tariff);
        let (Some(usage), Some(tariff)) = (&self.usage, rules.tariff) else {
            return 0.0;
        };
        let settled = settle(model.spec.metrics_trust, &usage.metrics, &usage.estimated);
        let report = UsageReport {
            model: model.spec.id.as_str(),
            trust: model.spec.metrics_trust,
            ending: BillingOutcome::Completed,
            streamed: true,
            metrics: &settled.metrics,
            queue_ms: 0,
            infer_ms: 0,
        };
        let cost = price(tariff, &report).total;
        if let Some(held) = &mut self.reservation {
            held.exchange(cost);
        }
        cost
    }

    /// Prices the usage, once; adds the plugins that have priced it to `plugins`.
    pub fn price(
        &mut self,
        model: &ModelRuntime,
        input: &PriceInput<'_>,
        plugins: &mut Vec<PluginUse>,
    ) {
        if self.is_settled {
            return;
        }
        let rules = PricingRules::of(model, &self.asked_tariff);
        if !self.is_recorded && self.is_sent {
            let nothing = ReportedUsage::nothing(model);
            let progress = self.progress.as_ref().unwrap_or(&nothing);
            self.usage = BillableUsage::of_progress(progress, rules, &self.input);
        }
        let Some(usage) = &self.usage else { return };
        self.is_settled = true;
        let mut settled = settle(model.spec.metrics_trust, &usage.metrics, &usage.estimated);
        if let Some(tariff) = rules.tariff {
            let is_priced = |name: &str| tariff.coefficients.contains_key(name);
            add_parts_of_input(&mut settled.metrics, is_priced);
            if let Some(job) = input.job {
                let run_us = input.clock.micros().saturating_sub(job.run_from_us);
                let run_secs = run_us as f64 / 1e6;
                let total_secs = run_secs + job.age.0 as f64 / 1e3;
                add_seconds_of_job(&mut settled.metrics, (run_secs, total_secs), is_priced);
            }
        }
        self.bill.settle(&settled);
        if !self.is_waived && self.is_due(rules.tariff, input.outcome) {
            let metrics = &settled.metrics;
            let priced = (usage, &metrics[..]);
            self.charge = charge(
                (model, rules.tariff),
                input,
                priced,
                &mut self.bill,
                plugins,
            );
        }
        self.bill.neurons = self.charge.as_ref().map(|charge| charge.total);
    }

    /// Returns whether a request that a server was sent is charged, by its outcome.
    fn is_due(&self, tariff: Option<&Tariff>, outcome: RequestOutcome) -> bool {
        if self.is_connected {
            return true;
        }
        let cut = tariff.map_or(ChargeCut::Seen, |tariff| tariff.charge_cut);
        match outcome {
            RequestOutcome::Completed => true,
            RequestOutcome::CutByClient | RequestOutcome::CutByDeadline => cut == ChargeCut::Seen,
            RequestOutcome::CutByBackend | RequestOutcome::Failed | RequestOutcome::Refused => {
                let is_cut = self.is_received && cut == ChargeCut::Seen;
                is_cut || tariff.is_some_and(|tariff| tariff.charge_failed)
            }
        }
    }

    /// Tokens of prompt and response together: as the model server reports them, else as counted here of a
    /// response that was cut or reports nothing. None where no response has begun.
    pub fn tokens_used(&self, model: Option<&ModelRuntime>) -> Option<u64> {
        if let Some(input) = self.bill.tokens.input_tokens {
            return Some(input.saturating_add(self.bill.tokens.output_tokens.unwrap_or(0)));
        }
        let usage = self.usage.as_ref()?;
        let settled = settle(model?.spec.metrics_trust, &usage.metrics, &usage.estimated);
        let of = |name: &str| {
            let metric = settled
                .metrics
                .iter()
                .find(|metric| &*metric.name == name)?;
            Some(metric.value as u64)
        };
        Some(of(INPUT_TOKENS)?.saturating_add(of(OUTPUT_TOKENS).unwrap_or(0)))
    }

    /// Charges nothing, whatever was used, also where that is priced already.
    pub fn waive(&mut self) {
        self.is_waived = true;
        self.charge = None;
        self.bill.neurons = None;
    }

    /// Returns whether the bill has the metrics that are charged.
    pub fn is_settled(&self) -> bool {
        self.is_settled
    }

    /// Returns the bill for the event, once.
    pub fn take_bill(&mut self) -> Bill {
        self.bill.take()
    }

    /// Returns the charge, once priced.
    pub fn charge(&self) -> Option<&Charge> {
        self.charge.as_ref()
    }

    /// The request is over: what was held goes back, or is owed with what the request cost.
    pub fn close(&mut self, model: Option<&ModelRuntime>) {
        let held = self.reservation.take();
        let Some(charge) = &self.charge else { return };
        if let Some(model) = model {
            model.record_charge(charge.total);
        }
        if let Some(held) = held {
            self.owed = Some(OwedCharge {
                held,
                neurons: charge.total,
            });
        }
    }

    /// Returns what the account owes for the request that is over, for the writer of its event to settle.
    pub fn take_owed(&mut self) -> Option<OwedCharge> {
        self.owed.take()
    }
}

/// Charge of a request that is over, held of its account's day; given back by drop, unless settled.
pub struct OwedCharge {
    held: QuotaGuard,
    neurons: f64,
}

impl OwedCharge {
    /// Counts the charge against the account's limit while the end is stored: a client may see the end before
    /// the writer settles it.
    pub fn announce(&mut self) {
        self.held.owe(self.neurons);
    }

    /// Takes the charge from the account's day.
    pub fn settle(self) {
        self.held.settle(self.neurons);
    }
}

/// The charge for the usage: the server's own figure where it names one and is trusted, the model's billing
/// where it has a tariff, else none.
fn charge(
    (model, tariff): (&ModelRuntime, Option<&Tariff>),
    input: &PriceInput<'_>,
    (usage, metrics): (&BillableUsage, &[Metric]),
    bill: &mut Bill,
    plugins: &mut Vec<PluginUse>,
) -> Option<Charge> {
    let Some(tariff) = tariff else {
        let is_trusted = model.spec.metrics_trust != Trust::Estimate;
        let total = usage.neurons.filter(|_| is_trusted)?;
        bill.priced_by = Some(REPORTED.into());
        return Some(Charge {
            total,
            base: total,
            ..Charge::default()
        });
    };
    let report = UsageReport {
        model: model.spec.id.as_str(),
        trust: model.spec.metrics_trust,
        ending: ending(input.outcome),
        streamed: input.is_streaming,
        metrics,
        queue_ms: input.times.queued_us() / 1000,
        infer_ms: input.times.inference_us(input.clock.recent_micros()) / 1000,
    };
    let priced = model.billing.price(input.caller?, tariff, &report);
    bill.priced_by = match priced.uses.last() {
        Some(by) if !priced.fell_back => Some(Arc::clone(&by.plugin.name)),
        _ => Some(BUILTIN.into()),
    };
    bill.fell_back = priced.fell_back;
    plugins.extend(priced.uses);
    Some(priced.charge)
}

fn ending(outcome: RequestOutcome) -> BillingOutcome {
    match outcome {
        RequestOutcome::Completed => BillingOutcome::Completed,
        RequestOutcome::CutByClient => BillingOutcome::CutByClient,
        RequestOutcome::CutByBackend => BillingOutcome::CutByBackend,
        RequestOutcome::CutByDeadline => BillingOutcome::CutByDeadline,
        RequestOutcome::Refused | RequestOutcome::Failed => BillingOutcome::Failed,
    }
}
