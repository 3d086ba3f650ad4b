//! Work that goes on after its response, and its reports on `GET /loopback`, for all listeners.
//!
//! A request keeps its slot for `--finish-ms` after its response. Then the slot is free, and the report goes out after
//! that, so that its reader finds the slot free. Work that waits is bounded by the slots. A listener that falls
//! behind by [`REPORTS_MAX`] loses reports, as a real one may.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{self, BoxStream, StreamExt};
use http::request::Parts;
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::json;
use tokio::sync::{Notify, broadcast};
use tokio::time::{Instant, sleep_until};

use super::concurrency::WorkSlot;

/// Path of the reports.
pub(super) const PATH: &str = "/loopback";

/// Reports that are kept for a listener.
const REPORTS_MAX: usize = 1024;

/// Report that work has failed or was left.
const FAILED: &str = "InferenceError";

/// Reports of one simulator.
pub(super) struct Loopback {
    /// Time from a response to the end of its work; none: work ends with its response, unreported.
    finish: Option<Duration>,
    /// Work whose response has ended, the oldest first. Held to add or take one.
    later: Mutex<VecDeque<LaterEnd>>,
    added: Notify,
    reports: broadcast::Sender<Bytes>,
}

/// Work that ends later.
struct LaterEnd {
    due: Instant,
    slot: WorkSlot,
    report: EndReport,
}

/// Report of the work in a slot.
pub(super) struct EndReport {
    loopback: Arc<Loopback>,
    request: String,
    /// Event of work that went well.
    event: &'static str,
}

/// The body of `PUT /sim/report`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ReportText {
    event: String,
    request_id: String,
    #[serde(default)]
    metrics: Option<serde_json::Map<String, serde_json::Value>>,
}

impl Loopback {
    /// Creates the reports of a simulator whose work goes on for `finish_ms` after its responses.
    pub(super) fn new(finish_ms: Option<u64>) -> Arc<Loopback> {
        Arc::new(Loopback {
            finish: finish_ms.map(Duration::from_millis),
            later: Mutex::default(),
            added: Notify::new(),
            reports: broadcast::Sender::new(REPORTS_MAX),
        })
    }

    /// The slot of a request, whose work is reported by `event` where it goes on after the response.
    pub(super) fn attach(
        self: &Arc<Loopback>,
        slot: WorkSlot,
        parts: &Parts,
        event: &'static str,
    ) -> WorkSlot {
        let id = parts.headers.get("x-request-id");
        let id = id.and_then(|id| id.to_str().ok());
        match (self.finish, id) {
            (Some(_), Some(id)) => slot.with_report(EndReport {
                loopback: Arc::clone(self),
                request: id.to_owned(),
                event,
            }),
            _ => slot,
        }
    }

    /// Ends work when it is due, for ever.
    pub(super) async fn run(&self) {
        loop {
            let due = self.later.lock().front().map(|end| end.due);
            let Some(due) = due else {
                self.added.notified().await;
                continue;
            };
            sleep_until(due).await;
            let end = self.later.lock().pop_front();
            if let Some(LaterEnd { slot, report, .. }) = end {
                drop(slot);
                self.send(report.event, &report.request);
            }
        }
    }

    /// Sends a report, as a test or a demo asks for it.
    pub(super) fn send_text(&self, text: &ReportText) {
        let mut data = json!({ "request_id": text.request_id });
        if let Some(metrics) = &text.metrics {
            data["metrics"] = json!(metrics);
        }
        self.send_data(&text.event, &data);
    }

    fn send(&self, event: &str, request: &str) {
        self.send_data(event, &json!({ "request_id": request }));
    }

    fn send_data(&self, event: &str, data: &serde_json::Value) {
        // Without a listener it is lost.
        let _ = self
            .reports
            .send(format!("event: {event}\ndata: {data}\n\n").into());
    }

    /// The reports from now on, with a comment first.
    pub(super) fn stream(&self) -> BoxStream<'static, Bytes> {
        let reports = stream::unfold(self.reports.subscribe(), |mut reports| async move {
            loop {
                match reports.recv().await {
                    Ok(report) => return Some((report, reports)),
                    Err(broadcast::error::RecvError::Lagged(_)) => {}
                    Err(broadcast::error::RecvError::Closed) => return None,
                }
            }
        });
        let opening = stream::iter([Bytes::from_static(b": reports\n\n")]);
        opening.chain(reports).boxed()
    }
}

impl EndReport {
    /// Ends the work in a slot later.
    pub(super) fn finish_later(self, slot: WorkSlot) {
        let loopback = Arc::clone(&self.loopback);
        let finish = loopback.finish.unwrap_or_default();
        loopback.later.lock().push_back(LaterEnd {
            due: Instant::now() + finish,
            slot,
            report: self,
        });
        loopback.added.notify_one();
    }

    /// Reports that the work failed.
    pub(super) fn fail(self) {
        self.loopback.send(FAILED, &self.request);
    }
}
