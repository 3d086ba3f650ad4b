//! Calls of a plugin, written down as they happen, for `infergate plugin replay`.
//!
//! Off until an operator starts it, and then on for a number of calls and at most [`CAPTURE_MAX_SECS`].
//! Writes no file: lines are fetched by the operator who started the capture. A call is one line of JSON in the form of
//! a fixture: arguments, settings, tables, the failure if any, the account and the request's id. Arguments
//! hold text of clients and servers, but no header: plugins see none. Secret settings are hidden. A call is written down after it was
//! made, by its own thread, at most [`CALL_MAX_BYTES`] of it; what waits to be fetched is bounded by
//! [`WAITING_MAX_BYTES`].

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use infergate_core::Millis;
use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use thiserror::Error;

use crate::plugin::failure::Failure;
use crate::plugin::runtime::call::Caller;
use crate::plugin::runtime::call::HookCall;
use crate::plugin::runtime::grants::LookupTable;
use crate::plugin::spec::is_secret_setting;
use crate::telemetry::event::PluginIdentity;

/// Calls of one capture.
pub const CAPTURE_MAX_CALLS: u32 = 1000;
/// Longest capture: that of a plugin without calls ends by itself.
pub const CAPTURE_MAX_SECS: u64 = 3600;
/// Bytes of all lines of one capture: it ends before it has more.
pub const CAPTURE_MAX_BYTES: usize = 64 << 20;
/// Bytes of the arguments of one call; with more it is left out and counted. A fixture may have four
/// times as much, so that what JSON adds fits.
const CALL_MAX_BYTES: usize = 1 << 20;
/// Bytes of tables that are written with each call; larger ones are left out, and the line says so.
const TABLES_MAX_BYTES: usize = 16 << 10;
/// Value of a secret among the settings.
const HIDDEN: &str = "(hidden)";
/// Bytes of lines that wait to be fetched; calls beyond are left out and counted.
const WAITING_MAX_BYTES: usize = 8 << 20;

/// Reason for which a capture does not begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum CaptureStartError {
    /// No revision of that name is loaded.
    #[error("no plugin of this name is loaded")]
    NoSuchPlugin,
    /// So many calls are not captured.
    #[error("calls must be from 1 to {CAPTURE_MAX_CALLS}")]
    Calls,
    /// Another capture is running.
    #[error("calls of this plugin are being captured already")]
    Running,
}

/// The captures of a process, by plugin.
#[derive(Debug, Default)]
pub struct Captures {
    /// Plugins with a revision that is alive. Locked by loads and at the start of a capture.
    plugins: Mutex<HashMap<Arc<str>, Weak<Capture>>>,
}

/// The capture of one plugin, all its revisions together.
#[derive(Debug, Default)]
pub struct Capture {
    /// Calls still to be written down; 0 while no capture runs, which is all that a call reads.
    left: AtomicU32,
    /// Locked for one line, and for a fetch.
    lines: Mutex<CaptureBuffer>,
}

#[derive(Debug, Default)]
struct CaptureBuffer {
    ends: Millis,
    waiting: Vec<u8>,
    /// Lines so far, and calls that were left out.
    calls: u32,
    omitted: u32,
    bytes: usize,
}

/// Calls written down since the last fetch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CaptureBatch {
    /// Whole lines.
    pub lines: Vec<u8>,
    /// Set when the capture has ended: calls written down, and calls left out for their size.
    pub ended: Option<(u32, u32)>,
}

impl Captures {
    /// The capture of a plugin, whether it runs or not.
    pub(crate) fn of(&self, plugin: &Arc<str>) -> Arc<Capture> {
        let mut plugins = self.plugins.lock();
        if let Some(known) = plugins.get(plugin).and_then(Weak::upgrade) {
            return known;
        }
        plugins.retain(|_, capture| capture.strong_count() > 0);
        let capture = Arc::new(Capture::default());
        plugins.insert(Arc::clone(plugin), Arc::downgrade(&capture));
        capture
    }

    /// Begins to write down the next `calls` calls of a plugin. Lines must be fetched until the capture has
    /// ended.
    ///
    /// # Errors
    /// [`CaptureStartError`].
    pub fn start(
        &self,
        plugin: &str,
        calls: u32,
        now: Millis,
    ) -> Result<Arc<Capture>, CaptureStartError> {
        if !(1..=CAPTURE_MAX_CALLS).contains(&calls) {
            return Err(CaptureStartError::Calls);
        }
        let known = self.plugins.lock().get(plugin).and_then(Weak::upgrade);
        let capture = known.ok_or(CaptureStartError::NoSuchPlugin)?;
        let mut lines = capture.lines.lock();
        if lines.ends > Millis::ZERO {
            return Err(CaptureStartError::Running);
        }
        *lines = CaptureBuffer {
            ends: now + Millis::from_secs(CAPTURE_MAX_SECS),
            ..CaptureBuffer::default()
        };
        drop(lines);
        capture.left.store(calls, Ordering::Release);
        Ok(capture)
    }
}

impl Capture {
    /// Calls still to be written down.
    pub fn left(&self) -> u32 {
        self.left.load(Ordering::Relaxed)
    }

    /// Returns the calls written down since the last fetch. Once the capture has ended, another may begin.
    pub fn fetch(&self, now: Millis) -> CaptureBatch {
        let mut lines = self.lines.lock();
        if now >= lines.ends {
            self.left.store(0, Ordering::Relaxed);
        }
        let mut captured = CaptureBatch {
            lines: std::mem::take(&mut lines.waiting),
            ended: None,
        };
        if self.left() == 0 {
            captured.ended = Some((lines.calls, lines.omitted));
            lines.ends = Millis::ZERO;
        }
        captured
    }

    /// Ends it at once; what waits is dropped.
    pub fn abort(&self) {
        let mut lines = self.lines.lock();
        self.left.store(0, Ordering::Relaxed);
        *lines = CaptureBuffer::default();
    }

    /// Takes one call in; `line` is not called when there is no room for it.
    fn take(&self, bytes: usize, line: impl FnOnce() -> Value) {
        // Made outside of the lock: other calls of the plugin go on meanwhile.
        let line = (bytes <= CALL_MAX_BYTES).then(|| {
            let mut line = line().to_string().into_bytes();
            line.push(b'\n');
            line
        });
        let mut lines = self.lines.lock();
        // Another call may have been the last one.
        let left = self.left();
        if left == 0 {
            return;
        }
        match line {
            Some(line) if lines.bytes + line.len() > CAPTURE_MAX_BYTES => {
                self.left.store(0, Ordering::Relaxed);
                lines.omitted += 1;
                return;
            }
            Some(line) if lines.waiting.len() + line.len() <= WAITING_MAX_BYTES => {
                lines.bytes += line.len();
                lines.calls += 1;
                lines.waiting.extend_from_slice(&line);
            }
            _ => lines.omitted += 1,
        }
        self.left.store(left - 1, Ordering::Relaxed);
    }

    /// Writes a call down, where its plugin is being captured. `bytes` is about what its arguments
    /// have.
    pub(crate) fn record<T>(
        &self,
        made: &CallRecord<'_>,
        ended: &Result<T, Failure>,
        bytes: usize,
        args: impl FnOnce() -> Value,
    ) {
        let was_asked = !matches!(
            ended,
            Err(Failure::Unavailable(_) | Failure::TooLarge { .. })
        );
        if self.left() > 0 && was_asked {
            self.take(bytes, || made.line(ended.as_ref().err(), args()));
        }
    }
}

/// Takes the place of each secret among the settings.
fn hide_secrets(settings: &mut Value) {
    match settings {
        Value::Object(members) => {
            for (name, value) in members {
                match is_secret_setting(name) {
                    true => *value = HIDDEN.into(),
                    false => hide_secrets(value),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(hide_secrets),
        _ => {}
    }
}

/// A call that was made.
pub(crate) struct CallRecord<'a> {
    pub identity: &'a PluginIdentity,
    /// JSON of `configure`.
    pub settings: &'a str,
    pub tables: &'a [LookupTable],
    pub hook: HookCall,
    pub caller: Option<Caller<'a>>,
    /// RFC 3339.
    pub time: String,
}

impl CallRecord<'_> {
    /// A fixture that calls it again.
    fn line(&self, failure: Option<&Failure>, args: Value) -> Value {
        let identity = self.identity;
        let tables = self.tables();
        let mut line = json!({
            "captured": {
                "time": self.time,
                "plugin": &*identity.name,
                "sha256": &*identity.sha256,
                "config": &*identity.config,
                "account": self.caller.map(|caller| caller.account.as_str()),
                "request_id": self.caller.map(|caller| caller.request_id),
                "tables_left_out": tables.is_none(),
            },
            "hook": self.hook.name,
            "args": args,
            "settings": self.settings(),
            "tables": tables.unwrap_or_default(),
        });
        if let Some(failure) = failure {
            line["expect-error"] = failure.expectation();
        }
        line
    }

    /// Without the values of secrets: captures are passed on.
    fn settings(&self) -> Value {
        let mut settings = serde_json::from_str(self.settings).unwrap_or_default();
        hide_secrets(&mut settings);
        settings
    }

    /// By names that are in the order of their indexes; none where they are too large.
    fn tables(&self) -> Option<Map<String, Value>> {
        let tables = self.tables;
        let rows = tables.iter().flatten();
        let bytes: usize = rows.map(|(key, value)| key.len() + value.len()).sum();
        if bytes > TABLES_MAX_BYTES {
            return None;
        }
        let read = |value: &[u8]| serde_json::from_slice(value).unwrap_or(Value::Null);
        let table = |(at, table): (usize, &LookupTable)| {
            let rows = table.iter().map(|(key, value)| (key.clone(), read(value)));
            (
                format!("table-{at:04}"),
                Value::Object(rows.collect::<Map<_, _>>()),
            )
        };
        Some(tables.iter().enumerate().map(table).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Millis = Millis(5);

    fn running(calls: u32) -> (Captures, Arc<Capture>, Arc<Capture>) {
        let captures = Captures::default();
        let of_revision = captures.of(&"p".into());
        let started = captures.start("p", calls, NOW).unwrap();
        (captures, of_revision, started)
    }

    fn line() -> Value {
        json!({ "hook": "price" })
    }

    #[test]
    fn nothing_is_written_down_until_somebody_asks_and_no_more_than_was_asked_for() {
        let captures = Captures::default();
        let of_revision = captures.of(&"p".into());
        assert_eq!(of_revision.left(), 0);
        let started = captures.start("p", 2, NOW).unwrap();
        assert_eq!(
            captures.start("p", 2, NOW).unwrap_err(),
            CaptureStartError::Running
        );
        of_revision.take(10, line);
        assert_eq!(started.fetch(NOW).ended, None);
        for _ in 0..3 {
            of_revision.take(10, line);
        }
        let rest = started.fetch(NOW);
        assert_eq!(rest.lines, b"{\"hook\":\"price\"}\n");
        assert_eq!(rest.ended, Some((2, 0)));
        assert!(captures.start("p", 1, NOW).is_ok(), "another may begin");
    }

    #[test]
    fn only_a_plugin_that_is_loaded_is_captured_and_only_so_many_calls() {
        let (captures, of_revision, started) = running(1);
        assert_eq!(
            captures.start("q", 1, NOW).unwrap_err(),
            CaptureStartError::NoSuchPlugin
        );
        for calls in [0, CAPTURE_MAX_CALLS + 1] {
            assert_eq!(
                captures.start("p", calls, NOW).unwrap_err(),
                CaptureStartError::Calls
            );
        }
        drop((of_revision, started));
        assert_eq!(
            captures.start("p", 1, NOW).unwrap_err(),
            CaptureStartError::NoSuchPlugin
        );
    }

    #[test]
    fn a_capture_ends_with_its_hour_and_large_calls_are_left_out_and_counted() {
        let (_captures, of_revision, started) = running(10);
        of_revision.take(CALL_MAX_BYTES + 1, || unreachable!("too large to be made"));
        let late = NOW + Millis::from_secs(CAPTURE_MAX_SECS);
        assert_eq!(started.fetch(Millis(late.0 - 1)).ended, None);
        assert_eq!(started.fetch(late).ended, Some((0, 1)));
        of_revision.take(1, line);
        assert_eq!(started.left(), 0);
        assert!(started.fetch(late).lines.is_empty());
    }

    #[test]
    fn what_waits_and_what_a_capture_comes_to_is_bounded() {
        let (_captures, of_revision, started) = running(CAPTURE_MAX_CALLS);
        let large = "x".repeat(CALL_MAX_BYTES / 2);
        let line = || Value::String(large.clone());
        let (mut bytes, mut ended) = (0, None);
        while ended.is_none() {
            for _ in 0..50 {
                of_revision.take(large.len(), line);
            }
            let captured = started.fetch(NOW);
            assert!(captured.lines.len() <= WAITING_MAX_BYTES);
            bytes += captured.lines.len();
            ended = captured.ended;
        }
        assert!(bytes <= CAPTURE_MAX_BYTES);
        assert!(ended.unwrap().1 > 0);
    }
}
