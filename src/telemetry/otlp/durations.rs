//! Durations and token counts by the names of the GenAI semantic conventions, as histograms.
//!
//! Not the Prometheus metrics, whose names are the gateway's own: these are what dashboards for OTLP
//! expect (<https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-metrics/>). Counts since the start
//! of the process. Recorded once a request, only while an OTLP endpoint is configured: one short lock.
//!
//! Bounds: [`SERIES_MAX`] series of each histogram; what would be one more goes to a common series, as the
//! OpenTelemetry specification wants it.

use std::collections::HashMap;

use infergate_core::ModelId;
use parking_lot::Mutex;

use super::proto::{CUMULATIVE, Histogram, HistogramPoint, KeyValue, Metric, Value};
use super::semconv;

/// Combinations of operation, models and error that have series of their own: the largest catalogue with
/// its usual errors.
const SERIES_MAX: usize = 2048;

/// Seconds of a whole request (semantic conventions).
const DURATION_BOUNDS: &[f64] = &[
    0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92,
];
/// Seconds to the first token (semantic conventions).
const FIRST_TOKEN_BOUNDS: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
];
/// Seconds between two tokens (semantic conventions).
const TOKEN_INTERVAL_BOUNDS: &[f64] = &[
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5,
];
/// Tokens of a request (semantic conventions).
const TOKEN_BOUNDS: &[f64] = &[
    1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0, 16384.0, 65536.0, 262144.0, 1048576.0, 4194304.0,
    16777216.0, 67108864.0,
];

/// Sample of a finished request.
#[derive(Clone, Debug)]
pub struct GenAiSample {
    /// `gen_ai.operation.name`.
    pub operation: &'static str,
    /// The model that the client named.
    pub requested_model: ModelId,
    /// The model that served it.
    pub model: ModelId,
    /// `error.type`; none of a request that succeeded.
    pub error: Option<&'static str>,
    /// Whole request, microseconds.
    pub duration_us: u64,
    /// To the first byte of the response's body, microseconds; only of streams.
    pub first_token_us: Option<u64>,
    /// Input tokens, where known.
    pub input_tokens: Option<u64>,
    /// Output tokens, where known.
    pub output_tokens: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct SeriesKey {
    operation: &'static str,
    /// Model requested and model that served; none of the common series.
    models: Option<(ModelId, ModelId)>,
    error: Option<&'static str>,
}

/// Histograms of one combination.
struct Series {
    duration: Distribution,
    first_token: Distribution,
    token_interval: Distribution,
    input_tokens: Distribution,
    output_tokens: Distribution,
}

/// Counts of one histogram.
struct Distribution {
    bounds: &'static [f64],
    counts: Vec<u64>,
    sum: f64,
}

/// The histograms of a process.
#[derive(Default)]
pub struct GenAiMetrics {
    /// Held for one request, and by an export while it copies.
    series: Mutex<HashMap<SeriesKey, Series>>,
}

impl GenAiMetrics {
    /// Records a finished request.
    pub fn record(&self, sample: &GenAiSample) {
        let key = SeriesKey {
            operation: sample.operation,
            models: Some((sample.requested_model.clone(), sample.model.clone())),
            error: sample.error,
        };
        let mut all = self.series.lock();
        let key = match all.len() >= SERIES_MAX && !all.contains_key(&key) {
            true => SeriesKey {
                models: None,
                ..key
            },
            false => key,
        };
        all.entry(key).or_insert_with(Series::new).record(sample);
    }

    /// Renders all series; times are nanoseconds of Unix time.
    pub fn render(&self, start_unix_nano: u64, now_unix_nano: u64) -> Vec<Metric> {
        type Part = fn(&Series) -> &Distribution;
        let parts: [(&str, &str, &str, Option<&str>, Part); 5] = [
            (semconv::DURATION, "Duration of requests", "s", None, |of| {
                &of.duration
            }),
            (
                semconv::FIRST_TOKEN,
                "Time to the first token of streams",
                "s",
                None,
                |of| &of.first_token,
            ),
            (
                semconv::TOKEN_INTERVAL,
                "Time per output token after the first",
                "s",
                None,
                |of| &of.token_interval,
            ),
            (
                semconv::TOKENS,
                "Tokens of requests",
                "{token}",
                Some("input"),
                |of| &of.input_tokens,
            ),
            (
                semconv::TOKENS,
                "Tokens of requests",
                "{token}",
                Some("output"),
                |of| &of.output_tokens,
            ),
        ];
        let all = self.series.lock();
        let mut metrics: Vec<Metric> = Vec::new();
        for (name, description, unit, token_type, part) in parts {
            let points = all.iter().filter_map(|(key, series)| {
                let distribution = part(series);
                let point = distribution.point(start_unix_nano, now_unix_nano)?;
                let attributes = key.attributes(token_type);
                Some(HistogramPoint {
                    attributes,
                    ..point
                })
            });
            let points: Vec<HistogramPoint> = points.collect();
            match metrics.last_mut().filter(|metric| metric.name == name) {
                Some(Metric {
                    histogram: Some(histogram),
                    ..
                }) => histogram.data_points.extend(points),
                _ if points.is_empty() => {}
                _ => metrics.push(Metric {
                    name: name.to_owned(),
                    description: description.to_owned(),
                    unit: unit.to_owned(),
                    histogram: Some(Histogram {
                        data_points: points,
                        aggregation_temporality: CUMULATIVE,
                    }),
                }),
            }
        }
        metrics
    }
}

impl SeriesKey {
    fn attributes(&self, token_type: Option<&str>) -> Vec<KeyValue> {
        let mut attributes = vec![
            KeyValue::text(semconv::OPERATION, self.operation),
            KeyValue::text(semconv::PROVIDER, semconv::PROVIDER_NAME),
        ];
        match &self.models {
            Some((requested, model)) => attributes.extend([
                KeyValue::text(semconv::REQUEST_MODEL, requested.as_str()),
                KeyValue::text(semconv::RESPONSE_MODEL, model.as_str()),
            ]),
            None => attributes.push(KeyValue::new("otel.metric.overflow", Value::Bool(true))),
        }
        let error = self
            .error
            .map(|error| KeyValue::text(semconv::ERROR_TYPE, error));
        let token_type = token_type.map(|kind| KeyValue::text(semconv::TOKEN_TYPE, kind));
        attributes.extend(error);
        attributes.extend(token_type);
        attributes
    }
}

impl Series {
    fn new() -> Series {
        Series {
            duration: Distribution::new(DURATION_BOUNDS),
            first_token: Distribution::new(FIRST_TOKEN_BOUNDS),
            token_interval: Distribution::new(TOKEN_INTERVAL_BOUNDS),
            input_tokens: Distribution::new(TOKEN_BOUNDS),
            output_tokens: Distribution::new(TOKEN_BOUNDS),
        }
    }

    fn record(&mut self, sample: &GenAiSample) {
        self.duration.record(seconds(sample.duration_us));
        if let Some(first_us) = sample.first_token_us {
            self.first_token.record(seconds(first_us));
            if let Some(further) = sample
                .output_tokens
                .and_then(|tokens| tokens.checked_sub(1))
                && further > 0
            {
                let rest_us = sample.duration_us.saturating_sub(first_us);
                self.token_interval
                    .record(seconds(rest_us) / further as f64);
            }
        }
        if let Some(tokens) = sample.input_tokens {
            self.input_tokens.record(tokens as f64);
        }
        if let Some(tokens) = sample.output_tokens {
            self.output_tokens.record(tokens as f64);
        }
    }
}

impl Distribution {
    fn new(bounds: &'static [f64]) -> Distribution {
        Distribution {
            bounds,
            counts: vec![0; bounds.len() + 1],
            sum: 0.0,
        }
    }

    fn record(&mut self, value: f64) {
        // A bound belongs to the bucket below it.
        let bucket = self.bounds.partition_point(|bound| *bound < value);
        self.counts[bucket] += 1;
        self.sum += value;
    }

    /// The point without its attributes; none when nothing was recorded.
    fn point(&self, start_unix_nano: u64, now_unix_nano: u64) -> Option<HistogramPoint> {
        let count = self.counts.iter().sum();
        (count > 0).then(|| HistogramPoint {
            start_time_unix_nano: start_unix_nano,
            time_unix_nano: now_unix_nano,
            count,
            sum: Some(self.sum),
            bucket_counts: self.counts.clone(),
            explicit_bounds: self.bounds.to_vec(),
            attributes: Vec::new(),
        })
    }
}

fn seconds(micros: u64) -> f64 {
    micros as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(model: &str) -> GenAiSample {
        GenAiSample {
            operation: "chat",
            requested_model: model.into(),
            model: model.into(),
            error: None,
            duration_us: 1_280_000,
            first_token_us: Some(80_000),
            input_tokens: Some(20),
            output_tokens: Some(13),
        }
    }

    fn points<'a>(metrics: &'a [Metric], name: &str) -> &'a [HistogramPoint] {
        let metric = metrics.iter().find(|metric| metric.name == name).unwrap();
        &metric.histogram.as_ref().unwrap().data_points
    }

    #[test]
    fn a_request_is_counted_in_each_of_its_histograms() {
        let metrics = GenAiMetrics::default();
        metrics.record(&sample("m"));
        let rendered = metrics.render(1, 2);
        let [duration] = points(&rendered, semconv::DURATION) else {
            panic!("one series")
        };
        assert_eq!((duration.count, duration.sum), (1, Some(1.28)));
        // The bound 1.28 is the eighth, and belongs to the bucket below it.
        assert_eq!(duration.bucket_counts[7], 1);
        assert_eq!(
            duration.bucket_counts.len(),
            duration.explicit_bounds.len() + 1
        );
        let interval = &points(&rendered, semconv::TOKEN_INTERVAL)[0];
        assert!((interval.sum.unwrap() - 0.1).abs() < 1e-9);
        assert_eq!(points(&rendered, semconv::TOKENS).len(), 2);
        assert_eq!(rendered.len(), 4);
    }

    #[test]
    fn an_answer_that_is_no_stream_has_no_times_of_tokens() {
        let metrics = GenAiMetrics::default();
        let plain = GenAiSample {
            first_token_us: None,
            ..sample("m")
        };
        metrics.record(&plain);
        assert_eq!(metrics.render(1, 2).len(), 2);
    }

    #[test]
    fn series_beyond_the_bound_share_one() {
        let metrics = GenAiMetrics::default();
        for at in 0..SERIES_MAX + 5 {
            metrics.record(&sample(&format!("m{at}")));
        }
        let rendered = metrics.render(1, 2);
        let points = points(&rendered, semconv::DURATION);
        assert_eq!(points.len(), SERIES_MAX + 1);
        assert!(points.iter().any(|point| point.count == 5));
    }
}
