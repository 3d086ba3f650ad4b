//! Reports of a model server about work that has ended, on a stream of server-sent events.
//!
//! Not the permits that are held for the work. Known in the source system as loopback events. Four kinds of event end a
//! work, each with the id of its request and, of a WebSocket, with metrics of its bill:
//! `data: {"request_id": "…", "metrics": {"audio_seconds": 2.5}}`. Others, and data of another form, are ignored.

use infergate_tasks::json::{parse_number, scan_members};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::sse;

/// Metrics of one report; a bill has as many.
const METRICS_MAX: usize = 64;

/// Kinds of events that end a work: it went well, it failed, its connection is closed, or the device is free although
/// the work goes on elsewhere.
const WORK_ENDS: [&str; 4] = [
    "InferenceSuccess",
    "InferenceError",
    "WebsocketFinished",
    "GpuFree",
];

/// Kind of event behind which the final one is still to come.
const DEVICE_FREE: &str = "GpuFree";

/// Report that a work has ended.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkReport {
    /// Id of its request.
    pub request: String,
    /// The last report about this work.
    pub is_final: bool,
    /// Metrics of its bill, at most 64.
    pub metrics: Vec<(String, f64)>,
}

#[derive(Deserialize)]
struct ReportData<'a> {
    request_id: String,
    #[serde(borrow)]
    metrics: Option<&'a RawValue>,
}

impl WorkReport {
    /// Reads an event; none of other events.
    pub fn read(event: &[u8]) -> Option<WorkReport> {
        let name = sse::name(event)?.trim_end();
        if !WORK_ENDS.contains(&name) {
            return None;
        }
        let data = sse::data(event)?;
        let data: ReportData<'_> = serde_json::from_slice(&data).ok()?;
        Some(WorkReport {
            request: data.request_id,
            is_final: name != DEVICE_FREE,
            metrics: data.metrics.map(read_metrics).unwrap_or_default(),
        })
    }
}

/// Numbers among the members of an object. Other members are left out: the work has ended all the same.
fn read_metrics(json: &RawValue) -> Vec<(String, f64)> {
    let mut metrics = Vec::new();
    // Of an object that breaks off, the members before count.
    let _ = scan_members(json.get(), |name, value| {
        if let Some(value) = parse_number(value.get())
            && metrics.len() < METRICS_MAX
        {
            metrics.push((name.into_owned(), value));
        }
        Ok(())
    });
    metrics
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended_request(event: &[u8]) -> Option<String> {
        Some(WorkReport::read(event)?.request)
    }

    #[test]
    fn numbers_of_a_report_are_metrics_and_the_free_device_is_not_the_last_word() {
        let event = |name: &str, metrics: &str| {
            let text =
                format!("event: {name}\ndata: {{\"request_id\":\"r\",\"metrics\":{metrics}}}\n\n");
            WorkReport::read(text.as_bytes()).unwrap()
        };
        let finished = event("WebsocketFinished", r#"{"a":2.5,"b":"x","c":[1],"d":3}"#);
        assert!(finished.is_final);
        assert_eq!(
            finished.metrics,
            [("a".to_owned(), 2.5), ("d".to_owned(), 3.0)]
        );
        assert!(!event("GpuFree", "null").is_final);
        for other in ["[1]", "7", "{}"] {
            assert_eq!(event("InferenceError", other).metrics, [], "{other}");
        }
        let many: Vec<String> = (0..2 * METRICS_MAX)
            .map(|n| format!("\"m{n}\":1"))
            .collect();
        let many = event("InferenceSuccess", &format!("{{{}}}", many.join(",")));
        assert_eq!(many.metrics.len(), METRICS_MAX);
    }

    #[test]
    fn each_of_the_four_events_ends_the_work_of_its_request() {
        for name in WORK_ENDS {
            let event = format!("event: {name}\ndata: {{\"request_id\":\"r1\",\"more\":[1]}}\n\n");
            assert_eq!(
                ended_request(event.as_bytes()).as_deref(),
                Some("r1"),
                "{name}"
            );
        }
        let split = b"id: 7\r\nevent:GpuFree\r\ndata: {\"request_id\":\r\ndata: \"r2\"}\r\n\r\n";
        assert_eq!(ended_request(split).as_deref(), Some("r2"));
    }

    #[test]
    fn other_events_end_nothing() {
        for event in [
            "data: {\"request_id\":\"r1\"}\n\n",
            "event: InferenceStarted\ndata: {\"request_id\":\"r1\"}\n\n",
            "event: GpuFree\n\n",
            "event: GpuFree\ndata: r1\n\n",
            "event: GpuFree\ndata: {\"request_id\":1}\n\n",
            ": alive\n\n",
            "event: \u{0}\ndata: {}\n\n",
        ] {
            assert_eq!(ended_request(event.as_bytes()), None, "{event:?}");
        }
        assert_eq!(ended_request(b"event: \xff\ndata: {}\n\n"), None);
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_break_the_reader(bytes: Vec<u8>) {
            let _ = ended_request(&bytes);
        }
    }
}
