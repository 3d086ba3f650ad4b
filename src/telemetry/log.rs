//! Logs: one line a record on standard error, as text or JSON, level and format changeable live.
//! Lines go through a bounded queue: a reader of standard error that stops stops nothing here.
//!
//! Does not decide what is logged: modules use `tracing`'s macros, with a `request_id` field where
//! there is a request, and never log bodies or keys. Spans are not used, to keep their cost from
//! every request. Records of libraries that use the `log` crate come in too, the noisy ones from
//! `warn` on.

mod queue;

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::filter::{EnvFilter, LevelFilter};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, MakeWriter};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Registry, reload};

use self::queue::LineQueue;
use super::clock::{Clock, rfc3339};
use super::printable;

/// Libraries whose records below `warn` say nothing to an operator: a client that hangs up, a poll
/// that returned. Directives in `log.level` bring them back.
const NOISY: [&str; 7] = [
    "pingora_core",
    "pingora_http",
    "pingora_pool",
    "hyper",
    "hyper_util",
    "mio",
    "notify",
];

/// `log` of the configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LogConfig {
    /// Format of a record.
    pub format: LogFormat,
    /// `off`, `error`, `warn`, `info`, `debug` or `trace`; or directives as in
    /// `info,infergate::pipeline=debug`.
    pub level: String,
}

impl Default for LogConfig {
    fn default() -> Self {
        LogConfig {
            format: LogFormat::Text,
            level: "info".into(),
        }
    }
}

/// Format of a record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum LogFormat {
    /// For people: time, level, module, message, `key=value`.
    #[default]
    Text,
    /// For machines: one JSON object a line.
    Json,
}

/// `log.level` is neither a level nor directives.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("log level `{level}` is not understood: {problem}")]
pub struct BadLevel {
    level: String,
    problem: String,
}

/// Reason for which logging could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum LogInitError {
    /// See [`BadLevel`].
    #[error(transparent)]
    BadLevel(#[from] BadLevel),
    /// Something in the process logs already.
    #[error("logging is set up already")]
    AlreadySet,
    /// Standard error or a thread for it could not be had.
    #[error("standard error cannot be written: {0}")]
    NoWriter(#[from] io::Error),
}

/// Changes the logging of the process.
#[derive(Clone, Debug)]
pub struct LogHandle {
    filter: reload::Handle<EnvFilter, Registry>,
    json: Arc<AtomicBool>,
    /// None where lines are written at once, in tests.
    lines: Option<LineQueue>,
}

/// Checks that `level` is valid, for a configuration.
pub fn check_level(level: &str) -> Result<(), BadLevel> {
    filter(level).map(drop)
}

/// Makes this process log to standard error. Call it once, before the first thread is started.
pub fn init(config: &LogConfig, clock: Clock) -> Result<LogHandle, LogInitError> {
    // Of its own descriptor: other writers to standard error do not wait for the lock of this one.
    let stderr = File::from(io::stderr().as_fd().try_clone_to_owned()?);
    let lines = LineQueue::start(stderr)?;
    let (subscriber, mut handle) = subscriber(config, clock, lines.clone())?;
    handle.lines = Some(lines);
    subscriber
        .try_init()
        .map_err(|_| LogInitError::AlreadySet)?;
    follow_level();
    Ok(handle)
}

impl LogHandle {
    /// Lines that were dropped since the start, because standard error did not take them.
    pub fn dropped(&self) -> u64 {
        self.lines.as_ref().map_or(0, LineQueue::dropped)
    }

    /// Writes what is queued; blocks for at most `limit`. Records logged afterwards are lost.
    pub fn close(&self, limit: Duration) {
        if let Some(lines) = &self.lines {
            lines.close(limit);
        }
    }

    /// Takes over level and format of a new configuration; a level that is not understood changes
    /// nothing.
    pub fn apply(&self, config: &LogConfig) -> Result<(), BadLevel> {
        let filter = filter(&config.level)?;
        // Fails only when the subscriber is gone, and then nothing logs any more.
        let _ = self.filter.reload(filter);
        self.json
            .store(config.format == LogFormat::Json, Ordering::Relaxed);
        follow_level();
        Ok(())
    }
}

/// The `log` crate asks its own maximum before it asks us: it follows ours, so that a disabled
/// record of a library costs one comparison.
fn follow_level() {
    ::log::set_max_level(match LevelFilter::current() {
        LevelFilter::OFF => ::log::LevelFilter::Off,
        LevelFilter::ERROR => ::log::LevelFilter::Error,
        LevelFilter::WARN => ::log::LevelFilter::Warn,
        LevelFilter::INFO => ::log::LevelFilter::Info,
        LevelFilter::DEBUG => ::log::LevelFilter::Debug,
        LevelFilter::TRACE => ::log::LevelFilter::Trace,
    });
}

/// Subscriber of log records: filter, format, writer. `W` is standard error, and memory in tests.
fn subscriber<W>(
    config: &LogConfig,
    clock: Clock,
    writer: W,
) -> Result<(impl Subscriber + Send + Sync + 'static, LogHandle), BadLevel>
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let (filter, filter_handle) = reload::Layer::new(filter(&config.level)?);
    let json = Arc::new(AtomicBool::new(config.format == LogFormat::Json));
    let format = LineFormat {
        json: json.clone(),
        clock,
    };
    let lines = tracing_subscriber::fmt::layer()
        .event_format(format)
        .with_writer(writer);
    // One after the other: joined with `and_then`, the pair hides the filter's level (tracing-subscriber
    // 0.3.23), and every library formats the trace records that nobody reads.
    let subscriber = tracing_subscriber::registry().with(filter).with(lines);
    Ok((
        subscriber,
        LogHandle {
            filter: filter_handle,
            json,
            lines: None,
        },
    ))
}

fn filter(level: &str) -> Result<EnvFilter, BadLevel> {
    let bad = |problem: &dyn fmt::Display| BadLevel {
        level: level.to_owned(),
        problem: problem.to_string(),
    };
    // A single word is a level or a slip: as a directive, `inof` would be a module's name.
    if !level.contains(['=', ',']) {
        let level: LevelFilter = level
            .trim()
            .parse()
            .map_err(|_| bad(&"use off, error, warn, info, debug, trace or directives"))?;
        let noisy = level.min(LevelFilter::WARN);
        let mut directives = level.to_string();
        for library in NOISY {
            directives.push_str(&format!(",{library}={noisy}"));
        }
        return EnvFilter::try_new(directives).map_err(|problem| bad(&problem));
    }
    EnvFilter::try_new(level).map_err(|problem| bad(&problem))
}

/// Writes a record in the format of the moment.
struct LineFormat {
    json: Arc<AtomicBool>,
    clock: Clock,
}

impl<S, N> FormatEvent<S, N> for LineFormat
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _ctx: &FmtContext<'_, S, N>,
        writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let metadata = event.metadata();
        let mut record = LogRecord::default();
        event.record(&mut record);
        let head = LineHead {
            time: rfc3339(self.clock.wall()),
            level: metadata.level().as_str(),
            // A record of the `log` crate carries its target as a field.
            target: record
                .log_target
                .take()
                .unwrap_or_else(|| metadata.target().to_owned()),
        };
        if self.json.load(Ordering::Relaxed) {
            write_json(writer, head, record)
        } else {
            write_text(writer, &head, &record)
        }
    }
}

struct LineHead {
    time: String,
    level: &'static str,
    target: String,
}

#[derive(Default)]
struct LogRecord {
    message: String,
    log_target: Option<String>,
    fields: Vec<(&'static str, Value)>,
}

impl LogRecord {
    fn take(&mut self, field: &Field, value: Value) {
        let text = |value: Value| match value {
            Value::String(text) => text,
            other => other.to_string(),
        };
        match field.name() {
            "message" => self.message = text(value),
            "log.target" => self.log_target = Some(text(value)),
            // Where in a library's source: of no use to an operator.
            "log.module_path" | "log.file" | "log.line" => {}
            name => self.fields.push((name, value)),
        }
    }
}

impl Visit for LogRecord {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.take(field, format!("{value:?}").into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.take(field, value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.take(field, value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.take(field, value.into());
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.take(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.take(field, value.into());
    }
}

fn write_json(mut writer: Writer<'_>, head: LineHead, record: LogRecord) -> fmt::Result {
    let mut line = Map::new();
    line.insert("time".into(), head.time.into());
    line.insert("level".into(), head.level.to_ascii_lowercase().into());
    line.insert("target".into(), head.target.into());
    line.insert("message".into(), record.message.into());
    for (name, value) in record.fields {
        line.insert(name.into(), value);
    }
    let line = Value::Object(line).to_string();
    writeln!(writer, "{}", printable(&line))
}

fn write_text(mut writer: Writer<'_>, head: &LineHead, record: &LogRecord) -> fmt::Result {
    write!(writer, "{} {:5} {}: ", head.time, head.level, head.target)?;
    writer.write_str(&printable(&record.message))?;
    for (name, value) in &record.fields {
        write!(writer, " {name}=")?;
        match value {
            Value::String(text) if !text.contains([' ', '=', '"']) && !text.is_empty() => {
                writer.write_str(&printable(text))?;
            }
            // As JSON, which escapes line ends and quotes.
            other => writer.write_str(&printable(&other.to_string()))?,
        }
    }
    writeln!(writer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Mutex;
    use std::io::{self, Write};

    #[derive(Clone, Default)]
    struct LogBuffer(Arc<Mutex<Vec<u8>>>);

    impl Write for LogBuffer {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl LogBuffer {
        fn take(&self) -> String {
            String::from_utf8(std::mem::take(&mut *self.0.lock())).unwrap()
        }
    }

    #[test]
    fn records_below_the_level_are_not_even_formatted() {
        let (subscriber, _handle) =
            subscriber(&LogConfig::default(), Clock::start(), LogBuffer::default).unwrap();
        assert_eq!(subscriber.max_level_hint(), Some(LevelFilter::INFO));
    }

    fn logged(config: &LogConfig, act: impl FnOnce(&LogHandle, &LogBuffer)) {
        let memory = LogBuffer::default();
        let writer = memory.clone();
        let (subscriber, handle) =
            subscriber(config, Clock::start(), move || writer.clone()).unwrap();
        tracing::subscriber::with_default(subscriber, || act(&handle, &memory));
    }

    fn json(level: &str) -> LogConfig {
        LogConfig {
            format: LogFormat::Json,
            level: level.into(),
        }
    }

    #[test]
    fn a_json_record_is_one_object_with_its_fields() {
        logged(&json("info"), |_, memory| {
            tracing::warn!(request_id = "r1", tries = 2, "backend\nfailed");
            let line: Value = serde_json::from_str(memory.take().trim_end()).unwrap();
            assert_eq!(line["level"], "warn");
            assert_eq!(line["message"], "backend\nfailed");
            assert_eq!(line["request_id"], "r1");
            assert_eq!(line["tries"], 2);
            assert_eq!(line["target"], "infergate::telemetry::log::tests");
        });
    }

    #[test]
    fn a_text_record_is_one_line_whatever_its_values_hold() {
        logged(&LogConfig::default(), |_, memory| {
            tracing::info!(path = "a b\nERROR fake", id = "r1", "hello\nworld");
            let text = memory.take();
            assert_eq!(text.lines().count(), 1, "{text}");
            assert!(
                text.contains(r#"hello\nworld path="a b\nERROR fake" id=r1"#),
                "{text}"
            );
        });
    }

    #[test]
    fn a_line_holds_no_mark_that_ends_it_or_turns_its_direction() {
        let evil = "a\u{2028}b \u{202e}gnp.exe\u{1b}[2J";
        for format in [LogFormat::Text, LogFormat::Json] {
            let config = LogConfig {
                format,
                ..LogConfig::default()
            };
            logged(&config, |_, memory| {
                tracing::info!(value = evil, word = "x\u{2066}", "{evil}");
                let text = memory.take();
                let written = text.trim_end_matches('\n');
                assert_eq!(super::printable(written), written);
                assert!(written.contains("gnp.exe"), "{written}");
            });
        }
    }

    #[test]
    fn level_and_format_change_while_running() {
        logged(&LogConfig::default(), |handle, memory| {
            tracing::debug!("unheard");
            assert_eq!(memory.take(), "");
            handle.apply(&json("debug")).unwrap();
            tracing::debug!("heard");
            assert!(memory.take().starts_with('{'));
            handle
                .apply(&LogConfig {
                    level: "off".into(),
                    ..LogConfig::default()
                })
                .unwrap();
            tracing::error!("unheard");
            assert_eq!(memory.take(), "");
        });
    }

    #[test]
    fn noisy_libraries_speak_from_warn_on_unless_a_directive_says_otherwise() {
        logged(
            &LogConfig {
                level: "trace".into(),
                ..LogConfig::default()
            },
            |handle, memory| {
                tracing::info!(target: "pingora_core::server", "unheard");
                assert_eq!(memory.take(), "");
                tracing::warn!(target: "pingora_core::server", "heard");
                assert!(memory.take().contains("heard"));
                let level = "info,pingora_core=info".into();
                handle
                    .apply(&LogConfig {
                        level,
                        ..LogConfig::default()
                    })
                    .unwrap();
                tracing::info!(target: "pingora_core::server", "heard too");
                assert!(memory.take().contains("heard too"));
            },
        );
    }

    #[test]
    fn a_slip_in_the_level_is_an_error_and_changes_nothing() {
        assert!(check_level("debug").is_ok());
        assert!(check_level("info,infergate::pipeline=debug").is_ok());
        assert!(check_level("inof").is_err());
        assert!(check_level("infergate=lots").is_err());
        logged(&json("info"), |handle, memory| {
            assert!(handle.apply(&json("inof")).is_err());
            tracing::info!("still heard");
            assert!(memory.take().contains("still heard"));
        });
    }
}
