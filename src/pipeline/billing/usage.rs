//! Usage of one response: what its server, its task and the gateway's own count say.
//!
//! Not the price, which the model's billing makes of it.

use bytes::Bytes;
use infergate_core::api::Call;
use infergate_core::api::passed::{PassedApi, PassedMetrics, response_texts};
use infergate_core::billing::{MetricSource, Metrics, Usage, estimate};
use infergate_core::model::{ModelSpec, Payload, Tariff, Trust};

use crate::plugin::Caller;
use crate::upstream::{ModelRuntime, ReportedMetrics, ResponseTransformer};

pub(super) const INPUT_TOKENS: &str = "input_tokens";
pub(super) const OUTPUT_TOKENS: &str = "output_tokens";

/// The server's own price, as a metric that a tariff may have a coefficient for.
const NEURONS: &str = "neurons";

/// Bodies over this many bytes are estimated by their size and files, without a look at their members:
/// a longer look would keep a worker from its other requests.
const ESTIMATE_BYTES_MAX: usize = 1 << 20;

/// Rules that a response is counted and priced by.
#[derive(Clone, Copy)]
pub(super) struct PricingRules<'a> {
    pub(super) spec: &'a ModelSpec,
    /// Tariff of the node that the client asked.
    pub(super) tariff: Option<&'a Tariff>,
}

impl<'a> PricingRules<'a> {
    /// `forwarded` is the tariff of another node, where that counts.
    pub(super) fn of(
        model: &'a ModelRuntime,
        forwarded: &'a Option<Box<Option<Tariff>>>,
    ) -> PricingRules<'a> {
        let spec = &*model.spec;
        let tariff = match forwarded {
            Some(forwarded) => (**forwarded).as_ref(),
            None => spec.tariff.as_ref(),
        };
        PricingRules { spec, tariff }
    }

    /// Whether the tariff has a coefficient for a metric.
    fn has_price(self, name: &str) -> bool {
        let tariff = self.tariff;
        tariff.is_some_and(|tariff| tariff.coefficients.contains_key(name))
    }
}

/// Usage that a response has reported so far.
pub(super) struct ReportedUsage {
    /// By the model server.
    pub(super) reported: ReportedMetrics,
    /// By the model's task.
    pub(super) task: Metrics,
    /// Tokens of the text of a stream, by the gateway's own count.
    pub(super) generated: u64,
    /// Generated tokens after the server's latest report of its output.
    pub(super) unreported: u64,
    /// The answer is whole.
    pub(super) complete: bool,
    /// Tokens are what the model is about.
    pub(super) of_tokens: bool,
}

impl ReportedUsage {
    pub(super) fn from_answer(transformer: &ResponseTransformer) -> ReportedUsage {
        ReportedUsage {
            reported: transformer.reported_metrics(),
            task: transformer.task_metrics().cloned().unwrap_or_default(),
            generated: transformer.generated_tokens(),
            unreported: transformer.unreported_tokens(),
            complete: transformer.is_done(),
            of_tokens: transformer.is_token_based() || transformer.is_stream(),
        }
    }

    /// A request whose answer has not begun.
    pub(super) fn nothing(model: &ModelRuntime) -> ReportedUsage {
        ReportedUsage {
            reported: ReportedMetrics::default(),
            task: Metrics::default(),
            generated: 0,
            unreported: 0,
            complete: false,
            of_tokens: model.spec.backend.payload() == Payload::Protocol,
        }
    }

    pub(super) fn usage(&self) -> Usage {
        self.reported.usage.unwrap_or_default()
    }

    /// The server has reported what there is of tokens.
    pub(super) fn is_metered(&self) -> bool {
        let usage = self.usage();
        match self.complete {
            true => usage.output_tokens > 0 || usage.input_tokens > 0 && self.generated == 0,
            false => usage.input_tokens > 0 && self.unreported == 0,
        }
    }

    /// Tokens are all there is, the server has reported them, and no tariff prices them.
    pub(super) fn is_plain(
        &self,
        PricingRules { spec, tariff }: PricingRules<'_>,
        input: &EstimateInput,
    ) -> bool {
        tariff.is_none()
            && input.is_of_tokens()
            && spec.metrics_trust == Trust::Trust
            && self.is_metered()
            && self.reported.neurons.is_none()
            && self.reported.metrics.is_empty()
            && self.task.is_empty()
    }

    /// All reported figures, each with its source.
    pub(super) fn metrics(
        &self,
        PricingRules { spec, tariff }: PricingRules<'_>,
        input: &EstimateInput,
    ) -> Metrics {
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
        for (name, value) in input.known() {
            metrics.report(name, *value, MetricSource::Derived, &spec.metrics);
        }
        metrics
    }

    /// The gateway's own count of what a trusted server has not reported; `output` is a whole answer.
    pub(super) fn counted(
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
            let texts = input
                .is_response()
                .then(|| response_texts(output))
                .flatten();
            counted.extend(estimate(b"", texts.as_deref().unwrap_or(output)));
        }
        let of_tokens = self.of_tokens && input.is_of_tokens();
        counted.retain(|(name, _)| of_tokens || rules.has_price(name));
        counted.extend(input.guessed(rules, self.complete));
        counted
    }
}

impl ReportedUsage {
    /// The gateway's own count of an API whose bodies pass, whatever its server has reported.
    fn recounted(
        &self,
        rules: PricingRules<'_>,
        input: &EstimateInput,
        output: Option<&[u8]>,
    ) -> Vec<(String, f64)> {
        let unreported = ReportedUsage {
            reported: ReportedMetrics::default(),
            task: Metrics::default(),
            unreported: self.generated,
            ..*self
        };
        unreported.counted(rules, input, output)
    }
}

/// Input of the client, for estimates: the one owner of its body once a response has started.
#[derive(Default)]
pub(super) struct EstimateInput {
    pub(super) body: Bytes,
    /// Tokens by its size, of a body that is too large for more, or has texts that no estimate knows.
    pub(super) tokens: Option<u64>,
    /// Figures of an API whose bodies pass.
    passed: Option<Box<PassedMetrics>>,
}

impl EstimateInput {
    pub(super) fn of(call: &Call) -> EstimateInput {
        let passed = PassedMetrics::of(call);
        let is_opaque = call.body.len() > ESTIMATE_BYTES_MAX || passed.is_some();
        EstimateInput {
            // A sound is of no more use here, and would stay in memory as long as the response takes.
            body: match &passed {
                Some(_) => Bytes::new(),
                None => call.body.clone(),
            },
            tokens: is_opaque.then(|| call.prompt_tokens()),
            passed,
        }
    }

    /// Tokens are what the request is about, as far as the API says.
    pub(super) fn is_of_tokens(&self) -> bool {
        self.passed
            .as_ref()
            .is_none_or(|passed| passed.api.is_of_tokens())
    }

    fn is_response(&self) -> bool {
        let passed = self.passed.as_ref();
        passed.is_some_and(|passed| passed.api == PassedApi::Responses)
    }

    /// Figures beside tokens that stand in the request.
    fn known(&self) -> &[(&'static str, f64)] {
        self.passed.as_ref().map_or(&[], |passed| &passed.known)
    }

    /// Figures beside tokens that are guessed at; those of the output only of an answer that is whole, and steps that
    /// nobody named only where they have a price.
    fn guessed(&self, rules: PricingRules<'_>, is_complete: bool) -> Vec<(String, f64)> {
        let Some(passed) = &self.passed else {
            return Vec::new();
        };
        let images =
            (is_complete && passed.images > 0).then(|| ("output_images", passed.images.into()));
        let all = passed.estimated.iter().copied().chain(images);
        let counts = |name: &str| name != "image_steps" || rules.has_price(name);
        let all = all.filter(|(name, _)| counts(name));
        all.map(|(name, value)| (name.to_owned(), value)).collect()
    }

    pub(super) fn estimate(&self) -> Vec<(String, f64)> {
        match self.tokens {
            Some(tokens) => vec![("input_tokens".into(), tokens as f64)],
            None => estimate(&self.body, b""),
        }
    }
}

/// Usage of a response, by whoever counted.
pub(super) struct BillableUsage {
    /// By the server and the task.
    pub(super) metrics: Metrics,
    /// The gateway's own count.
    pub(super) estimated: Vec<(String, f64)>,
    /// The server's own price.
    pub(super) neurons: Option<f64>,
}

impl BillableUsage {
    /// Collects everything a response reports; none where tokens are all there is and have no price.
    pub(super) fn of(
        transformer: &ResponseTransformer,
        (model, rules): (&ModelRuntime, PricingRules<'_>),
        caller: Caller<'_>,
        input: &EstimateInput,
    ) -> Option<BillableUsage> {
        let reported = ReportedUsage::from_answer(transformer);
        if reported.is_plain(rules, input) {
            return None;
        }
        let output = transformer.output();
        let estimated = match rules.spec.metrics_trust {
            Trust::Trust if reported.is_metered() => input.guessed(rules, reported.complete),
            Trust::Trust => reported.counted(rules, input, output.as_deref()),
            Trust::Estimate | Trust::Compare if input.passed.is_some() => {
                reported.recounted(rules, input, output.as_deref())
            }
            Trust::Estimate | Trust::Compare => {
                let output = output.as_deref().unwrap_or_default();
                model.billing.estimate(caller, &input.body, output)
            }
        };
        Some(reported.to_billable(rules, input, estimated))
    }

    /// The same without the answer: it has not begun, or its relay was dropped under way and its texts
    /// are gone.
    pub(super) fn of_progress(
        reported: &ReportedUsage,
        rules: PricingRules<'_>,
        input: &EstimateInput,
    ) -> Option<BillableUsage> {
        if reported.is_plain(rules, input) {
            return None;
        }
        let estimated = match rules.spec.metrics_trust {
            Trust::Trust if reported.is_metered() => input.guessed(rules, reported.complete),
            Trust::Trust => reported.counted(rules, input, None),
            Trust::Estimate | Trust::Compare if input.passed.is_some() => {
                reported.recounted(rules, input, None)
            }
            Trust::Estimate | Trust::Compare => {
                let mut counted = input.estimate();
                if reported.generated > 0 {
                    counted.push((OUTPUT_TOKENS.into(), reported.generated as f64));
                }
                counted
            }
        };
        Some(reported.to_billable(rules, input, estimated))
    }
}

impl ReportedUsage {
    pub(super) fn to_billable(
        &self,
        rules: PricingRules<'_>,
        input: &EstimateInput,
        estimated: Vec<(String, f64)>,
    ) -> BillableUsage {
        BillableUsage {
            metrics: self.metrics(rules, input),
            estimated,
            neurons: self.reported.neurons,
        }
    }
}
