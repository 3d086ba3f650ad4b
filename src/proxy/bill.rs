//! What a request is billed: metrics gathered, priced once, and the account's day settled.
//!
//! It neither counts (the answer does) nor knows a formula (the model's billing does). A request is
//! billed when a model server has begun to answer it with a 2xx; whatever ended the answer then,
//! what was made until that moment is charged. Neurons held for a request that is not billed go
//! back by drop.

use std::sync::Arc;

use bytes::Bytes;
use infergate_core::Refusal;
use infergate_core::api::Call;
use infergate_core::billing::{
    Charge, Ending, Metric, Metrics, Report, Settled, Source, estimate, reserve_estimate, settle,
};
use infergate_core::model::{AccountSpec, ModelSpec, Trust};

use super::explain::QuotaHold;
use super::ledger::{Held, Ledger};
use crate::plugin::Caller;
use crate::telemetry::event::{BUILTIN, Comparison};
use crate::telemetry::{InferenceEvent, MetricsSource, Outcome, TokenUsage};
use crate::upstream::{Answer, Lane, ReportedMetrics};

/// [`InferenceEvent::priced_by`] where the model server named its own price.
const REPORTED: &str = "reported";

/// The server's own price, as a metric that a tariff may have a coefficient for.
const NEURONS: &str = "neurons";

/// What an answer has told, as far as it has come.
struct Told {
    /// By the model server.
    reported: ReportedMetrics,
    /// By the model's task.
    task: Metrics,
    /// Events of a stream with generated text.
    token_events: u64,
}

impl Told {
    fn by(answer: &Answer) -> Told {
        Told {
            reported: answer.reported(),
            task: answer.task_metrics().cloned().unwrap_or_default(),
            token_events: answer.token_events(),
        }
    }

    /// Tokens are all there is, and nobody prices them.
    fn is_plain(&self, spec: &ModelSpec) -> bool {
        spec.tariff.is_none()
            && spec.metrics_trust == Trust::Trust
            && self.reported.neurons.is_none()
            && self.reported.metrics.is_empty()
            && self.task.is_empty()
    }

    /// All of it, each figure with its source.
    fn metrics(&self, spec: &ModelSpec) -> Metrics {
        let mut metrics = Metrics::default();
        if let (Some(neurons), Some(_)) = (self.reported.neurons, &spec.tariff) {
            metrics.report(NEURONS, neurons, Source::Reported, &spec.metrics);
        }
        if let Some(usage) = self.reported.usage {
            metrics.report_usage(usage, &spec.metrics);
        }
        metrics.report_all(&self.reported.metrics, Source::Reported, &spec.metrics);
        metrics.join(&self.task);
        metrics
    }

    /// The gateway's own count where no texts were kept to estimate from: an event is a token. A
    /// server that is trusted and has reported needs none.
    fn counted(&self, trust: Trust, metrics: &Metrics, input: &[u8]) -> Vec<(String, f64)> {
        let is_silent = metrics.of(Source::Reported).next().is_none();
        if trust == Trust::Trust && !(is_silent && self.token_events > 0) {
            return Vec::new();
        }
        let mut counted = estimate(input, b"");
        if self.token_events > 0 {
            counted.push(("output_tokens".into(), self.token_events as f64));
        }
        counted
    }
}

/// What an answer has used, by whoever counted.
struct Spent {
    /// By the server and the task.
    metrics: Metrics,
    /// The gateway's own count.
    estimated: Vec<(String, f64)>,
    /// The server's own price.
    neurons: Option<f64>,
}

impl Spent {
    /// Everything an answer tells; none where tokens are all there is and nobody prices them.
    /// `input` is the body the answer is to.
    fn of(answer: &Answer, lane: &Lane, caller: Caller<'_>, input: &[u8]) -> Option<Spent> {
        let told = Told::by(answer);
        if told.is_plain(&lane.spec) {
            return None;
        }
        let metrics = told.metrics(&lane.spec);
        let estimated = match answer.output() {
            Some(output) => lane.billing.estimate(caller, input, &output),
            // A server that reports at the end may have been cut off before.
            None => told.counted(lane.spec.metrics_trust, &metrics, input),
        };
        Some(Spent {
            metrics,
            estimated,
            neurons: told.reported.neurons,
        })
    }

    /// The same of a stream whose relay was dropped under way: its texts are gone, the count of its
    /// events is left.
    fn of_progress(told: &Told, spec: &ModelSpec, input: &[u8]) -> Option<Spent> {
        if told.is_plain(spec) {
            return None;
        }
        let metrics = told.metrics(spec);
        let estimated = told.counted(spec.metrics_trust, &metrics, input);
        Some(Spent {
            metrics,
            estimated,
            neurons: told.reported.neurons,
        })
    }
}

/// Up to what an account's day goes.
#[derive(Clone, Copy)]
pub enum Limit {
    /// So many neurons.
    PerDay(u64),
    /// Another node has looked at it: what is used is counted here and never refused.
    OfAnotherNode,
}

/// The bill of one request.
#[derive(Default)]
pub struct Bill {
    held: Option<Held>,
    /// What was to be held.
    quota: Option<QuotaHold>,
    /// Of a stream that is under way.
    progress: Option<Told>,
    /// The client's body, for estimates.
    input: Bytes,
    spent: Option<Spent>,
    /// The event has the metrics that are billed: what is told later changes nothing.
    settled: bool,
    charge: Option<Charge>,
}

/// Neurons that a request may come to at a model: what its tokens may cost, at least what answers of
/// the model have cost lately.
fn may_cost(lane: &Lane, call: &Call) -> f64 {
    let tokens = |tariff| reserve_estimate(tariff, call.prompt_tokens(), call.max_tokens);
    let amount = lane.spec.tariff.as_ref().map_or(0.0, tokens);
    amount.max(lane.usual_charge())
}

impl Bill {
    /// Holds what the request may come to, where the account's day has a limit (neurons): what its
    /// tokens may cost, at least what answers of the model have cost lately.
    ///
    /// # Errors
    /// [`Refusal::QuotaUsed`].
    pub fn hold(
        &mut self,
        ledger: &Arc<Ledger>,
        account: &AccountSpec,
        limit: Option<Limit>,
        lane: &Lane,
        call: &Call,
    ) -> Result<(), Refusal> {
        self.input = call.body.clone();
        let (per_day, most) = match limit {
            Some(Limit::PerDay(neurons)) => (Some(neurons), neurons),
            Some(Limit::OfAnotherNode) => (None, u64::MAX),
            None => return Ok(()),
        };
        let amount = may_cost(lane, call);
        let held = ledger.hold(&account.id, amount, most);
        self.quota = per_day.map(|per_day| QuotaHold {
            neurons: amount,
            per_day,
            granted: held.is_ok(),
        });
        self.held = Some(held?);
        Ok(())
    }

    /// Holds what it may come to at another model instead: who was admitted is not refused for it.
    pub fn hold_instead(&mut self, account: &AccountSpec, lane: &Lane, call: &Call) {
        if let (Some(held), Some(per_day)) = (&mut self.held, account.neurons_per_day) {
            let neurons = may_cost(lane, call);
            held.becomes(neurons);
            self.quota = Some(QuotaHold {
                neurons,
                per_day,
                granted: true,
            });
        }
    }

    /// Something of the account's day is held.
    pub fn is_held(&self) -> bool {
        self.held.is_some()
    }

    /// What was to be held of the account's day; none where that has no limit.
    pub fn quota(&self) -> Option<QuotaHold> {
        self.quota
    }

    /// How far a stream has come; counts only when nothing more is told.
    pub fn progress(&mut self, answer: &Answer) {
        self.progress = Some(Told::by(answer));
    }

    /// What the answer has used so far; the last word before the price counts.
    pub fn note(&mut self, answer: &Answer, lane: &Lane, caller: Caller<'_>) {
        if self.settled {
            return;
        }
        if let Some(spent) = Spent::of(answer, lane, caller, &self.input) {
            self.spent = Some(spent);
        }
    }

    /// Prices what was spent, once, and writes it into the event.
    pub fn price(&mut self, lane: &Lane, event: &mut InferenceEvent) -> Option<&Charge> {
        if self.spent.is_none() {
            let told = self.progress.as_ref();
            self.spent = told.and_then(|told| Spent::of_progress(told, &lane.spec, &self.input));
        }
        if !self.settled
            && let Some(spent) = &self.spent
        {
            self.settled = true;
            let settled = settle(lane.spec.metrics_trust, &spent.metrics, &spent.estimated);
            note_metrics(&settled, event);
            self.charge = charge(lane, event, spent, &settled.metrics);
            event.neurons = self.charge.as_ref().map(|charge| charge.total);
        }
        self.charge.as_ref()
    }

    /// Whether the event has the metrics that are billed.
    pub fn is_settled(&self) -> bool {
        self.settled
    }

    /// What it costs, once priced.
    pub fn charge(&self) -> Option<&Charge> {
        self.charge.as_ref()
    }

    /// The request is over: what was held is settled with what it cost, or goes back. Before its
    /// event, so that whoever has seen that finds the day's account as it is.
    pub fn close(&mut self, lane: Option<&Lane>) {
        let held = self.held.take();
        let Some(charge) = &self.charge else { return };
        if let Some(lane) = lane {
            lane.charged(charge.total);
        }
        if let Some(held) = held {
            held.settle(charge.total);
        }
    }
}

/// The charge of what was spent: the server's own figure where it names one and is trusted, the
/// model's billing where it has a tariff, else none.
fn charge(
    lane: &Lane,
    event: &mut InferenceEvent,
    spent: &Spent,
    metrics: &[Metric],
) -> Option<Charge> {
    let Some(tariff) = &lane.spec.tariff else {
        let is_trusted = lane.spec.metrics_trust != Trust::Estimate;
        let total = spent.neurons.filter(|_| is_trusted)?;
        event.priced_by = Some(REPORTED.into());
        return Some(Charge {
            total,
            base: total,
            ..Charge::default()
        });
    };
    let report = Report {
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

fn note_metrics(settled: &Settled, event: &mut InferenceEvent) {
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
        Source::Reported => MetricsSource::Reported,
        Source::Estimated | Source::Derived | Source::Answered => MetricsSource::Estimated,
    };
    event.comparison = settled
        .comparison
        .iter()
        .map(|one| Comparison {
            metric: Arc::clone(&one.metric),
            reported: Some(one.reported),
            estimated: Some(one.estimated),
            matches: Some(one.matches),
        })
        .collect();
}

fn ending(outcome: Outcome) -> Ending {
    match outcome {
        Outcome::Completed => Ending::Completed,
        Outcome::CutByClient => Ending::CutByClient,
        Outcome::CutByBackend => Ending::CutByBackend,
        Outcome::CutByDeadline => Ending::CutByDeadline,
        Outcome::Refused | Outcome::Failed => Ending::Failed,
    }
}
