//! `limits`, `timeouts`, `headers` and `cors`: values that cannot hold together or cannot be meant.
//!
//! Each value's own bounds are in the schema.

use infergate_core::api::origin;

use crate::config::document::Cursor;
use crate::config::problem::Problems;
use crate::state::{Limits, Timeouts, header_name_error};

pub fn check(root: &Cursor<'_>, problems: &mut Problems) {
    if let Some(limits) = root.key("limits") {
        let default = Limits::default();
        let body = limits
            .number_of("request_body_mib")
            .unwrap_or(default.request_body_mib);
        let all = limits
            .number_of("buffered_bodies_mib")
            .unwrap_or(default.buffered_bodies_mib);
        let key = limits
            .key("buffered_bodies_mib")
            .or_else(|| limits.key("request_body_mib"));
        if let (true, Some(key)) = (all < body, key) {
            problems.add(key.problem(format!(
                "buffered_bodies_mib ({all}) is below request_body_mib ({body}): the largest request could never be read, raise it to at least {body}"
            )));
        }
    }
    if let Some(timeouts) = root.key("timeouts") {
        let default = Timeouts::default();
        let floor = timeouts
            .number_of("model_floor_secs")
            .unwrap_or(default.model_floor_secs);
        let ceiling = timeouts
            .number_of("ceiling_secs")
            .unwrap_or(default.ceiling_secs);
        let key = timeouts
            .key("ceiling_secs")
            .or_else(|| timeouts.key("model_floor_secs"));
        if let (true, Some(key)) = (ceiling < floor, key) {
            problems.add(key.problem(format!(
                "ceiling_secs ({ceiling}) is below model_floor_secs ({floor}): raise the ceiling or lower the floor"
            )));
        }
    }
    if let Some(headers) = root.key("headers") {
        for name in headers.list("pass") {
            if let Some(fault) = name.text().and_then(header_name_error) {
                problems.add(name.problem(fault));
            }
        }
    }
    if let Some(cors) = root.key("cors") {
        for entry in cors.list("origins") {
            if let Some(fault) = entry.text().and_then(origin::fault) {
                problems.add(entry.problem(fault));
            }
        }
    }
}
