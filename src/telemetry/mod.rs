//! Telemetry: inference events, Prometheus metrics, logs, and the clock they are measured with.
//!
//! Decides nothing about requests and imports no other module of the shell. Modules report what
//! happened as plain values; here it becomes a line in a file, a counter or a log record. Account
//! and request ids stand in events only, never on metric labels.

mod admission_metrics;
mod class_metrics;
pub mod clock;
mod cluster_metrics;
mod connection_metrics;
pub mod duty_metrics;
pub mod event;
pub mod event_sink;
mod export_metrics;
pub mod gpu_metrics;
pub mod job_metrics;
pub mod log;
pub mod metrics;
mod model_metrics;
pub mod otlp;
pub mod permit_window;
pub mod plugin_metrics;
mod printable;
mod process;
mod refusal_metrics;
mod rotating_file;
mod warning_limit;
mod webhook_metrics;
mod websocket_metrics;
pub mod work_metrics;
mod worker;

pub use admission_metrics::AdmissionResult;
pub use clock::{Clock, host_time};
pub use event::{InferenceEvent, MetricsSource, RequestOutcome, TokenUsage};
pub use event_sink::{EventCounts, EventSink, EventsConfig};
pub use metrics::{AttemptResult, ForwardResult, Levels, Metrics, ModelLevels, ModelMetrics};
pub use plugin_metrics::{PluginMetrics, PluginMetricsRegistry};
pub use printable::{printable, printable_lines};
pub use process::resident_bytes;
pub use warning_limit::WarningLimit;
pub use websocket_metrics::ConnectionEnd;
pub use worker::{off_the_worker, watched};
