//! Reports of a model server about work that has ended, on a stream of server-sent events.
//!
//! Not the permits that are held for the work. Known in the source system as loopback events. Four kinds of event end a
//! work, each with the id of its request: `data: {"request_id": "…"}`. Others, and data of another form, are ignored.

use serde::Deserialize;

use super::sse;

/// Kinds of events that end a work: it went well, it failed, its connection is closed, or the device is free although
/// the work goes on elsewhere.
const WORK_ENDS: [&str; 4] = [
    "InferenceSuccess",
    "InferenceError",
    "WebsocketFinished",
    "GpuFree",
];

#[derive(Deserialize)]
struct ReportData {
    request_id: String,
}

/// Returns the id of the request whose work has ended by the word of this event; none of other events.
pub fn ended_request(event: &[u8]) -> Option<String> {
    let name = sse::name(event)?;
    if !WORK_ENDS.contains(&name.trim_end()) {
        return None;
    }
    let data: ReportData = serde_json::from_slice(&sse::data(event)?).ok()?;
    Some(data.request_id)
}

#[cfg(test)]
mod tests {
    use super::*;

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
