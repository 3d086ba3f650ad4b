//! The simulator's own routes, `/sim/stats`, `/sim/fault` and `/sim/report`: how a test watches and steers it. No
//! route of a real server is here, and no dialect is spoken.

use http::Method;
use serde_json::{Value, json};

use super::fault::{FaultText, Faults};
use super::loopback::{Loopback, ReportText};
use super::stats::Stats;

/// Paths that belong to the simulator itself, in every dialect and under every fault.
pub(super) const PREFIX: &str = "/sim/";

/// The status and JSON for a request to one of the simulator's own routes.
pub(super) fn answer(
    stats: &Stats,
    faults: &Faults,
    loopback: &Loopback,
    method: &Method,
    path: &str,
    body: &[u8],
) -> (u16, Value) {
    match (method.as_str(), path) {
        ("GET", "/sim/stats") => (200, json!(stats.snapshot())),
        ("DELETE", "/sim/stats") => {
            stats.reset();
            (200, json!(stats.snapshot()))
        }
        ("GET", "/sim/fault") => (200, json!(FaultText::of(faults.get()))),
        ("DELETE", "/sim/fault") => {
            faults.set(None);
            (200, json!(FaultText::of(None)))
        }
        ("PUT", "/sim/fault") => {
            let read = serde_json::from_slice::<FaultText>(body)
                .map_err(|error| error.to_string())
                .and_then(|text| text.read());
            match read {
                Ok(fault) => {
                    faults.set(fault);
                    (200, json!(FaultText::of(fault)))
                }
                Err(problem) => (400, json!({ "error": problem })),
            }
        }
        ("PUT", "/sim/report") => match serde_json::from_slice::<ReportText>(body) {
            Ok(report) => {
                loopback.send_text(&report);
                (200, json!({}))
            }
            Err(error) => (400, json!({ "error": error.to_string() })),
        },
        _ => (
            404,
            json!({ "error": "use GET or DELETE /sim/stats; GET, PUT or DELETE /sim/fault; PUT /sim/report" }),
        ),
    }
}
