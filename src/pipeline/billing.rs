//! Billing of one request: metrics gathered, priced once, and the account's day settled.
//!
//! Not the counting (the response) and not a formula (the model's billing). Work is paid once, and a
//! complete response as it is. Cut by its client or the deadline, a request that was sent costs its input
//! and the output so far. Failed by its server or a plugin, it costs the same if the client had bytes of the
//! response, else nothing. A try that is repeated is never charged. Neurons held for a request that is not
//! billed go back by drop.

use std::sync::Arc;

use bytes::Bytes;
use infergate_core::api::Call;
use infergate_core::billing::{
    BillingOutcome, Charge, Metric, MetricSource, Metrics, QuotaExhaustion, Settlement, Usage,
    UsageReport, add_parts_of_input, estimate, reserve_estimate, settle,
};
use infergate_core::model::{
    AccountSpec, BackendKind, ChargeCut, ModelSpec, Tariff, Trust, read_tariff_text,
};
use infergate_core::{Millis, Refusal};

use crate::plugin::Caller;
use crate::state::{QuotaGuard, QuotaStore};
use crate::telemetry::event::{BUILTIN, Comparison};
use crate::telemetry::{InferenceEvent, MetricsSource, RequestOutcome, TokenUsage};
use crate::trace::QuotaHold;
use crate::upstream::{ModelRuntime, ReportedMetrics, ResponseTransformer};

/// [`InferenceEvent::priced_by`] where the model server named its own price.
const REPORTED: &str = "reported";

const INPUT_TOKENS: &str = "input_tokens";
const OUTPUT_TOKENS: &str = "output_tokens";

/// The server's own price, as a metric that a tariff may have a coefficient for.
const NEURONS: &str = "neurons";

/// Bodies over this many bytes are estimated by their size and files, without a look at their members:
/// a longer look would keep a worker from its other requests.
const ESTIMATE_BYTES_MAX: usize = 1 << 20;

/// The least that a caller is told to wait for what its own requests hold: the shortest answer of a
/// language model takes about as long.
const RESERVATION_WAIT_MIN: Millis = Millis::from_secs(1);

/// Rules that a response is counted and priced by.
#[derive(Clone, Copy)]
struct PricingRules<'a> {
    spec: &'a ModelSpec,
    /// Tariff of the node that the client asked.
    tariff: Option<&'a Tariff>,
}

impl<'a> PricingRules<'a> {
    /// `asked` is the tariff of another node, where that counts.
    fn of(lane: &'a ModelRuntime, asked: &'a Option<Box<Option<Tariff>>>) -> PricingRules<'a> {
        let spec = &*lane.spec;
        let tariff = match asked {
            Some(asked) => (**asked).as_ref(),
            None => spec.tariff.as_ref(),
        };
        PricingRules { spec, tariff }
    }
}

/// Usage that a response has reported so far.
struct ReportedUsage {
    /// By the model server.
    reported: ReportedMetrics,
    /// By the model's task.
    task: Metrics,
    /// Tokens of the text of a stream, by the gateway's own count.
    generated: u64,
    /// Generated tokens after the server's latest report of its output.
    unreported: u64,
    /// The answer is whole.
    complete: bool,
    /// Tokens are what the model is about.
    of_tokens: bool,
}

impl ReportedUsage {
    fn from_answer(answer: &ResponseTransformer) -> ReportedUsage {
        ReportedUsage {
            reported: answer.reported_metrics(),
            task: answer.task_metrics().cloned().unwrap_or_default(),
            generated: answer.generated_tokens(),
            unreported: answer.unreported_tokens(),
            complete: answer.is_done(),
            of_tokens: answer.is_token_based() || answer.is_stream(),
        }
    }

    /// A request whose answer has not begun.
    fn nothing(lane: &ModelRuntime) -> ReportedUsage {
        ReportedUsage {
            reported: ReportedMetrics::default(),
            task: Metrics::default(),
            generated: 0,
            unreported: 0,
            complete: false,
            of_tokens: lane.spec.backend != BackendKind::Http,
        }
    }

    fn usage(&self) -> Usage {
        self.reported.usage.unwrap_or_default()
    }

    /// The server has reported what there is of tokens.
    fn is_metered(&self) -> bool {
        let usage = self.usage();
        match self.complete {
            true => usage.output_tokens > 0 || usage.input_tokens > 0 && self.generated == 0,
            false => usage.input_tokens > 0 && self.unreported == 0,
        }
    }

    /// Tokens are all there is, the server has reported them, and nobody prices them.
    fn is_plain(&self, PricingRules { spec, tariff }: PricingRules<'_>) -> bool {
        tariff.is_none()
            && spec.metrics_trust == Trust::Trust
            && self.is_metered()
            && self.reported.neurons.is_none()
            && self.reported.metrics.is_empty()
            && self.task.is_empty()
    }

    /// All that was told, each figure with its source.
    fn metrics(&self, PricingRules { spec, tariff }: PricingRules<'_>) -> Metrics {
        let mut metrics = Metrics::default();
        if let (Some(neurons), Some(_)) = (self.reported.neurons, tariff) {
            metrics.report(NEURONS, neurons, MetricSource::Reported, &spec.metrics);
        }
        if let Some(mut usage) = self.reported.usage {
            if !self.complete && self.unreported > 0 {
                // A part of the output only; the gateway's count has all of it.
                usage.output_tokens = 0;
            }
            metrics.report_usage(usage, &spec.metrics);
        }
        metrics.report_all(
            &self.reported.metrics,
            MetricSource::Reported,
            &spec.metrics,
        );
        metrics.merge(&self.task);
        metrics
    }

    /// The gateway's own count of what a trusted server has not reported; `output` is a whole answer.
    fn counted(
        &self,
        rules: PricingRules<'_>,
        input: &EstimateInput,
        output: Option<&[u8]>,
    ) -> Vec<(String, f64)> {
        let usage = self.usage();
        let mut counted = Vec::new();
        if usage.input_tokens == 0 {
            counted.extend(input.estimate());
        }
        let streamed = match self.complete {
            true if usage.output_tokens > 0 => 0,
            true => self.generated,
            false => usage.output_tokens + self.unreported,
        };
        if streamed > 0 {
            counted.push((OUTPUT_TOKENS.into(), streamed as f64));
        } else if let Some(output) = output
            && usage.output_tokens == 0
        {
            counted.extend(estimate(b"", output));
        }
        let priced = |name: &str| {
            let tariff = rules.tariff;
            tariff.is_some_and(|tariff| tariff.coefficients.contains_key(name))
        };
        counted.retain(|(name, _)| self.of_tokens || priced(name));
        counted
    }
}

/// Input of the client, for estimates.
#[derive(Default)]
struct EstimateInput {
    body: Bytes,
    /// Tokens by its size, of a body that is too large for more.
    tokens: Option<u64>,
}

impl EstimateInput {
    fn of(call: &Call) -> EstimateInput {
        let is_large = call.body.len() > ESTIMATE_BYTES_MAX;
        EstimateInput {
            body: call.body.clone(),
            tokens: is_large.then(|| call.prompt_tokens()),
        }
    }

    fn estimate(&self) -> Vec<(String, f64)> {
        match self.tokens {
            Some(tokens) => vec![("input_tokens".into(), tokens as f64)],
            None => estimate(&self.body, b""),
        }
    }
}

/// Usage of a response, by whoever counted.
struct BillableUsage {
    /// By the server and the task.
    metrics: Metrics,
    /// The gateway's own count.
    estimated: Vec<(String, f64)>,
    /// The server's own price.
    neurons: Option<f64>,
}

impl BillableUsage {
    /// Collects everything a response reports; none where tokens are all there is and have no price.
    fn of(
        answer: &ResponseTransformer,
        (lane, rules): (&ModelRuntime, PricingRules<'_>),
        caller: Caller<'_>,
        input: &EstimateInput,
    ) -> Option<BillableUsage> {
        let told = ReportedUsage::from_answer(answer);
        if told.is_plain(rules) {
            return None;
        }
        let output = answer.output();
        let estimated = match rules.spec.metrics_trust {
            Trust::Trust if told.is_metered() => Vec::new(),
            Trust::Trust => told.counted(rules, input, output.as_deref()),
            Trust::Estimate | Trust::Compare => {
                let output = output.as_deref().unwrap_or_default();
                lane.billing.estimate(caller, &input.body, output)
            }
        };
        Some(told.to_billable(rules, estimated))
    }

    /// The same without the answer: it has not begun, or its relay was dropped under way and its texts
    /// are gone.
    fn of_progress(
        told: &ReportedUsage,
        rules: PricingRules<'_>,
        input: &EstimateInput,
    ) -> Option<BillableUsage> {
        if told.is_plain(rules) {
            return None;
        }
        let estimated = match rules.spec.metrics_trust {
            Trust::Trust if told.is_metered() => Vec::new(),
            Trust::Trust => told.counted(rules, input, None),
            Trust::Estimate | Trust::Compare => {
                let mut counted = input.estimate();
                if told.generated > 0 {
                    counted.push((OUTPUT_TOKENS.into(), told.generated as f64));
                }
                counted
            }
        };
        Some(told.to_billable(rules, estimated))
    }
}

impl ReportedUsage {
    fn to_billable(&self, rules: PricingRules<'_>, estimated: Vec<(String, f64)>) -> BillableUsage {
        BillableUsage {
            metrics: self.metrics(rules),
            estimated,
            neurons: self.reported.neurons,
        }
    }
}

/// Up to what an account's day goes.
#[derive(Clone, Copy)]
pub enum QuotaLimit {
    /// So many neurons.
    PerDay(u64),
    /// Another node has looked at it: what is used is counted here and never refused.
    CheckedByPeer,
}

/// The bill of one request.
#[derive(Default)]
pub struct RequestBilling {
    reservation: Option<QuotaGuard>,
    /// Reservation that was requested.
    quota: Option<QuotaHold>,
    /// Usage of a stream in flight.
    progress: Option<ReportedUsage>,
    input: EstimateInput,
    /// A server was sent the request, and no try follows.
    is_sent: bool,
    /// The client has bytes of the answer.
    is_received: bool,
    is_unmetered: bool,
    /// The answer has told what it used, which may be nothing that is priced.
    is_recorded: bool,
    usage: Option<BillableUsage>,
    /// The event has the metrics that are billed: what is told later changes nothing.
    is_settled: bool,
    charge: Option<Charge>,
    /// Tariff of the node that the client asked, which may be none, where it is another than here.
    asked_tariff: Option<Box<Option<Tariff>>>,
}

/// Neurons that a request may come to at a model: what its tokens may cost, at least what answers of
/// the model have cost lately.
fn reserve_amount(rules: PricingRules<'_>, lane: &ModelRuntime, call: &Call) -> f64 {
    let prompt = call.prompt_tokens();
    let tokens = |tariff| reserve_estimate(tariff, prompt, call.max_tokens, call.outputs);
    let amount = rules.tariff.map_or(0.0, tokens);
    amount.max(lane.mean_charge())
}

impl RequestBilling {
    /// Prices by the tariff of the node that the client asked, `text`, where it is another than here.
    ///
    /// # Errors
    /// [`Refusal::Internal`]: no node of this version has written the text.
    pub fn set_tariff(
        &mut self,
        text: Option<&Arc<str>>,
        lane: &ModelRuntime,
    ) -> Result<(), Refusal> {
        self.asked_tariff = match text {
            Some(text) if lane.tariff_text.as_ref() != Some(text) => {
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
        ledger: &Arc<QuotaStore>,
        account: &AccountSpec,
        limit: Option<QuotaLimit>,
        lane: &ModelRuntime,
        call: &Call,
    ) -> Result<(), Refusal> {
        self.input = EstimateInput::of(call);
        let (per_day, most) = match limit {
            Some(QuotaLimit::PerDay(neurons)) => (Some(neurons), neurons),
            Some(QuotaLimit::CheckedByPeer) => (None, u64::MAX),
            None => return Ok(()),
        };
        let amount = reserve_amount(PricingRules::of(lane, &self.asked_tariff), lane, call);
        let held = ledger.reserve(&account.id, amount, most);
        self.quota = per_day.map(|per_day| QuotaHold {
            neurons: amount,
            per_day,
            granted: held.is_ok(),
        });
        self.reservation = Some(held.map_err(|exhausted| match exhausted {
            QuotaExhaustion::Used => Refusal::QuotaUsed,
            QuotaExhaustion::Held => Refusal::QuotaHeld {
                retry_after: lane.gate.expected_wait().max(RESERVATION_WAIT_MIN),
            },
        })?);
        Ok(())
    }

    /// Holds what it may come to at another model instead: who was admitted is not refused for it.
    pub fn exchange(&mut self, account: &AccountSpec, lane: &ModelRuntime, call: &Call) {
        if let (Some(held), Some(per_day)) = (&mut self.reservation, account.neurons_per_day) {
            let neurons = reserve_amount(PricingRules::of(lane, &self.asked_tariff), lane, call);
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

    /// The answer is whole, and its server has not said what it used.
    pub fn is_unmetered(&self) -> bool {
        self.is_unmetered
    }

    /// How far a stream has come; counts only when nothing more is told.
    pub fn record_progress(&mut self, answer: &ResponseTransformer) {
        self.progress = Some(ReportedUsage::from_answer(answer));
    }

    /// Records the usage of the response so far; the last record before the price counts.
    pub fn record_usage(
        &mut self,
        answer: &ResponseTransformer,
        lane: &ModelRuntime,
        caller: Caller<'_>,
    ) {
        if self.is_settled {
            return;
        }
        self.is_unmetered = answer.is_unmetered() && lane.spec.metrics_trust != Trust::Estimate;
        self.is_recorded = true;
        let rules = PricingRules::of(lane, &self.asked_tariff);
        self.usage = BillableUsage::of(answer, (lane, rules), caller, &self.input);
    }

    /// Prices what was spent, once, and writes it into the event.
    pub fn price(&mut self, lane: &ModelRuntime, event: &mut InferenceEvent) -> Option<&Charge> {
        if self.is_settled {
            return self.charge.as_ref();
        }
        let rules = PricingRules::of(lane, &self.asked_tariff);
        if !self.is_recorded && self.is_sent {
            let nothing = ReportedUsage::nothing(lane);
            let told = self.progress.as_ref().unwrap_or(&nothing);
            self.usage = BillableUsage::of_progress(told, rules, &self.input);
        }
        if let Some(spent) = &self.usage {
            self.is_settled = true;
            let mut settled = settle(lane.spec.metrics_trust, &spent.metrics, &spent.estimated);
            if let Some(tariff) = rules.tariff {
                let is_priced = |name: &str| tariff.coefficients.contains_key(name);
                add_parts_of_input(&mut settled.metrics, is_priced);
            }
            write_metrics(&settled, event);
            if self.is_due(rules.tariff, event.outcome) {
                self.charge = charge((lane, rules.tariff), event, spent, &settled.metrics);
            }
            event.neurons = self.charge.as_ref().map(|charge| charge.total);
        }
        self.charge.as_ref()
    }

    /// Returns whether a request that a server was sent is charged, by its outcome.
    fn is_due(&self, tariff: Option<&Tariff>, outcome: RequestOutcome) -> bool {
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

    /// Tokens of what was spent, prompt and answer together; none where no answer has begun.
    pub fn tokens(&self, lane: &ModelRuntime) -> Option<u64> {
        let spent = self.usage.as_ref()?;
        let settled = settle(lane.spec.metrics_trust, &spent.metrics, &spent.estimated);
        let of = |name: &str| {
            let metric = settled
                .metrics
                .iter()
                .find(|metric| &*metric.name == name)?;
            Some(metric.value as u64)
        };
        Some(of(INPUT_TOKENS)?.saturating_add(of(OUTPUT_TOKENS).unwrap_or(0)))
    }

    /// Returns whether the event has the metrics that are billed.
    pub fn is_settled(&self) -> bool {
        self.is_settled
    }

    /// Returns the charge, once priced.
    pub fn charge(&self) -> Option<&Charge> {
        self.charge.as_ref()
    }

    /// The request is over: what was held is settled with what it cost, or goes back. Before its
    /// event, so that whoever has seen that finds the day's account as it is.
    pub fn close(&mut self, lane: Option<&ModelRuntime>) {
        let held = self.reservation.take();
        let Some(charge) = &self.charge else { return };
        if let Some(lane) = lane {
            lane.record_charge(charge.total);
        }
        if let Some(held) = held {
            held.settle(charge.total);
        }
    }
}

/// The charge of what was spent: the server's own figure where it names one and is trusted, the
/// model's billing where it has a tariff, else none.
fn charge(
    (lane, tariff): (&ModelRuntime, Option<&Tariff>),
    event: &mut InferenceEvent,
    spent: &BillableUsage,
    metrics: &[Metric],
) -> Option<Charge> {
    let Some(tariff) = tariff else {
        let is_trusted = lane.spec.metrics_trust != Trust::Estimate;
        let total = spent.neurons.filter(|_| is_trusted)?;
        event.priced_by = Some(REPORTED.into());
        return Some(Charge {
            total,
            base: total,
            ..Charge::default()
        });
    };
    let report = UsageReport {
        model: lane.spec.id.as_str(),
        trust: lane.spec.metrics_trust,
        ending: ending(event.outcome),
        streamed: event.flags.streamed,
        metrics,
        queue_ms: event.queuing_time_us / 1000,
        infer_ms: event.inference_time_us / 1000,
    };
    let account = event.account_id.clone()?;
    let caller = Caller {
        account: &account,
        request_id: &event.request_id,
    };
    let priced = lane.billing.price(caller, tariff, &report);
    event.priced_by = match priced.uses.last() {
        Some(by) if !priced.fell_back => Some(Arc::clone(&by.name)),
        _ => Some(BUILTIN.into()),
    };
    event.flags.billing_fallback = priced.fell_back;
    event.plugins.extend(priced.uses);
    Some(priced.charge)
}

fn write_metrics(settled: &Settlement, event: &mut InferenceEvent) {
    event.metrics = TokenUsage::default();
    event.extra_metrics.clear();
    for metric in &settled.metrics {
        let tokens = match &*metric.name {
            "input_tokens" => &mut event.metrics.input_tokens,
            "output_tokens" => &mut event.metrics.output_tokens,
            "cached_tokens" => &mut event.metrics.cached_tokens,
            _ => {
                event
                    .extra_metrics
                    .push((Arc::clone(&metric.name), metric.value));
                continue;
            }
        };
        *tokens = Some(metric.value as u64);
    }
    event.metrics_source = match settled.source {
        _ if settled.metrics.is_empty() => MetricsSource::None,
        MetricSource::Reported => MetricsSource::Reported,
        MetricSource::Estimated | MetricSource::Derived | MetricSource::Answered => {
            MetricsSource::Estimated
        }
    };
    event.comparison = settled
        .comparison
        .iter()
        .map(|one| Comparison {
            metric: Arc::clone(&one.metric),
            reported: one.reported,
            estimated: one.estimated,
            matches: one.matches,
        })
        .collect();
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
