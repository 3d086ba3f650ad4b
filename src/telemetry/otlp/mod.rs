//! OpenTelemetry: messages of OTLP, the queue of recorded requests, and the GenAI histograms.
//!
//! Not an SDK: requests record plain values, which `trace` renders as spans; `app` runs the exporter,
//! which posts the messages. Units: nanoseconds of Unix time in messages, microseconds elsewhere. Bounds:
//! [`QUEUE_MAX`](queue::QUEUE_MAX) requests wait, [`BATCH_MAX`](queue::BATCH_MAX) go in one export.
//!
//! ```text
//! semconv, proto  ←  durations, encode     queue     config
//! ```

mod config;
mod durations;
mod encode;
pub mod proto;
mod queue;
pub mod semconv;

pub use config::{OtlpConfig, TracingConfig};
pub use durations::{GenAiMetrics, GenAiSample};
pub use encode::{ExportSource, encode_metrics, encode_traces};
pub use queue::{ExportCounts, ExportQueue};
