//! Telemetry: inference events, Prometheus metrics, logs, and the clock they are measured with.
//!
//! Decides nothing about requests and imports no other module of the shell. Rooms report what
//! happened as plain values; here it becomes a line in a file, a counter or a log record. Account
//! and request ids stand in events only, never on metric labels.

mod admissions;
pub mod clock;
pub mod event;
mod fleet_metrics;
pub mod log;
pub mod metrics;
mod model_metrics;
pub mod plugin_metrics;
mod printable;
mod process;
mod rotate;
pub mod sink;
pub mod window;
mod worker;

pub use admissions::Admission;
pub use clock::Clock;
pub use event::{InferenceEvent, MetricsSource, Outcome, TokenUsage};
pub use metrics::{AttemptResult, ForwardResult, Levels, Metrics, ModelLevels, ModelMetrics};
pub use plugin_metrics::{PluginMetrics, PluginsMetrics};
pub use printable::{printable, printable_lines};
pub use process::resident_bytes;
pub use sink::{EventCounts, EventSink, EventsConfig};
pub use worker::{off_the_worker, watched};
