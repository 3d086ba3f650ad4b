//! `infergate explain`: the trace of a request for people, or the list of the last ones.
//!
//! Rendering only: everything shown is in the response of `/explain`. Texts of callers and servers
//! are cleaned of what could make a line or move a cursor.

use std::fmt::Write;
use std::path::Path;
use std::process::ExitCode;

use serde_json::Value;

use super::admin::{self, AdminArgs, AdminTarget};
use super::output::{print, problem};
use crate::telemetry::printable;

const UNKNOWN: u8 = 1;
const FAILED: u8 = 2;

/// Stands for the id of the newest request.
const NEWEST: &str = "last";

/// Columns before the words of a step: when, how long, which.
const INDENT: &str = "                                 ";

/// Prints the trace of a request, or the last requests without an id.
pub fn run(id: Option<&str>, admin: &AdminArgs, config: Option<&Path>, is_json: bool) -> ExitCode {
    let target = admin.target_of(config);
    let asked = target.and_then(|target| fetch(&target, id));
    match asked {
        Ok((200, body)) => print(&match id {
            _ if is_json => format!("{body:#}\n"),
            None => list(&body),
            Some(_) => trace(&body),
        }),
        Ok((_, body)) => {
            let why = body["error"].as_str().unwrap_or("no such request");
            problem(&format!("error: {why}"));
            ExitCode::from(UNKNOWN)
        }
        Err(why) => {
            problem(&format!("error: {why}"));
            ExitCode::from(FAILED)
        }
    }
}

fn fetch(target: &AdminTarget, id: Option<&str>) -> Result<(u16, Value), String> {
    let get = |path: &str| admin::get(target, path).map(|answer| (answer.status, answer.body));
    let id = match id {
        None => return get("/explain"),
        Some(NEWEST) => {
            let (_, newest) = get("/explain")?;
            match newest["newest"][0]["request_id"].as_str() {
                Some(id) => id.to_owned(),
                None => {
                    let none = serde_json::json!({ "error": "no request has been kept yet" });
                    return Ok((404, none));
                }
            }
        }
        Some(id) => id.to_owned(),
    };
    // The listener refuses a text that is not an id; its path has one segment.
    let is_id = id
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || byte == b':')
        && !id.is_empty();
    get(&format!("/explain/{}", if is_id { &id } else { "-" }))
}

/// A line for each of the last requests.
fn list(body: &Value) -> String {
    let mut out = format!(
        "{:<32}  {:<24}  {:>6}  {:<17}  {:>10}  {}\n",
        "request", "began at", "status", "outcome", "ms", "account, model, cause"
    );
    for one in body["newest"].as_array().into_iter().flatten() {
        let mut about = format!("{}, {}", word(&one["account"]), word(&one["model"]));
        if !one["cause"].is_null() {
            about = format!("{about}, {}", word(&one["cause"]));
        }
        let _ = writeln!(
            out,
            "{:<32}  {:<24}  {:>6}  {:<17}  {:>10}  {about}",
            word(&one["request_id"]),
            word(&one["began_at"]),
            word(&one["status"]),
            word(&one["outcome"]),
            ms(&one["total_ms"]),
        );
    }
    out
}

/// The whole trace.
fn trace(record: &Value) -> String {
    let mut lines = head(record);
    lines.push(String::new());
    lines.push(format!(
        "{:>10} {:>10}  {:<10}what happened",
        "at ms", "took ms", "step"
    ));
    for step in list_of(&record["steps"]) {
        lines.extend(step_lines(step));
    }
    if let Some(more) = record["steps_left_out"].as_u64().filter(|more| *more > 0) {
        lines.push(format!("{INDENT}and {more} more step(s)"));
    }
    for (node, record) in record["nodes"].as_object().into_iter().flatten() {
        lines.push(String::new());
        lines.push(format!("at node {}:", printable(node)));
        match record.is_object() {
            // That node has been asked for its own part, which names no further nodes.
            true => lines.extend(trace(record).lines().map(|line| format!("  {line}"))),
            false => lines.push("  the node is gone or has forgotten the request".to_owned()),
        }
    }
    lines.push(String::new());
    lines.join("\n")
}

fn head(record: &Value) -> Vec<String> {
    let mut lines = vec![
        format!(
            "request   {}, began {}",
            word(&record["request_id"]),
            word(&record["began_at"])
        ),
        format!("for       {}", caller(record)),
        format!("at        {}", place(record)),
        format!("ended     {}", ending(record)),
    ];
    let refusal = &record["refusal"];
    if refusal.is_object() {
        lines.push(format!(
            "because   {}: {}",
            word(&refusal["cause"]),
            word(&refusal["message"])
        ));
    }
    if record["deadline"].is_object() {
        lines.push(format!("deadline  {}", deadline(&record["deadline"])));
    }
    lines.push(format!("bill      {}", bill(record)));
    let plugins: Vec<String> = list_of(&record["plugins"])
        .map(|plugin| format!("{} ({})", word(&plugin["name"]), word(&plugin["hook"])))
        .collect();
    if !plugins.is_empty() {
        lines.push(format!("plugins   {}", plugins.join(", ")));
    }
    lines
}

fn caller(record: &Value) -> String {
    let (model, asked) = (word(&record["model"]), word(&record["requested_model"]));
    let model = match model == asked {
        true => format!("model {model}"),
        false => format!("model {model}, requested as {asked}"),
    };
    let profile = match record["client_profile"].is_string() {
        true => format!(", client profile {}", word(&record["client_profile"])),
        false => String::new(),
    };
    format!(
        "account {}, {model}, {} API{profile}",
        word(&record["account"]),
        word(&record["face"])
    )
}

fn place(record: &Value) -> String {
    let from = match record["forwarded_by"].as_str() {
        Some(node) => format!(
            ", forwarded by node {} after {} ms",
            printable(node),
            ms(&record["forwarded_after_ms"])
        ),
        None => String::new(),
    };
    format!(
        "node {} at site {}, configuration {}{from}",
        word(&record["node"]),
        word(&record["site"]),
        word(&record["config_generation"])
    )
}

fn ending(record: &Value) -> String {
    let mut text = format!(
        "{}, HTTP {} after {} ms",
        word(&record["outcome"]),
        word(&record["status"]),
        ms(&record["total_ms"])
    );
    if let Some(queued) = record["queued_ms"].as_f64().filter(|queued| *queued > 0.0) {
        let _ = write!(text, ", of which {queued:.1} ms in the queue");
    }
    if record["first_byte_at_ms"].is_number() {
        let _ = write!(
            text,
            ", first byte at {} ms",
            ms(&record["first_byte_at_ms"])
        );
    }
    if record["error_code"].is_string() {
        let _ = write!(text, ", code {}", word(&record["error_code"]));
    }
    text
}

fn deadline(deadline: &Value) -> String {
    let from = match deadline["from"].as_str().unwrap_or_default() {
        "caller" => "as its caller requested",
        "model" => "as its model has it",
        "floor" => "the least that a request gets",
        "ceiling" => "the most that a request gets",
        "profile" => "the most that its client's profile allows",
        _ => "by the configuration",
    };
    format!("{} ms after it came, {from}", word(&deadline["after_ms"]))
}

fn bill(record: &Value) -> String {
    let quota = &record["quota"];
    let held = match quota.is_object() {
        true => format!(
            "; {} of the day's {} reserved for it: {}",
            word(&quota["neurons"]),
            word(&quota["per_day"]),
            word(&quota["settlement"])
        ),
        false => String::new(),
    };
    match record["neurons"].as_f64() {
        Some(neurons) => format!("{neurons} neurons{held}"),
        None => format!("nothing is priced here{held}"),
    }
}

/// A step: what happened on the first line, what was looked at below it.
fn step_lines(step: &Value) -> Vec<String> {
    let (what, details) = match step["step"].as_str().unwrap_or_default() {
        "routing" => (routing(step), Vec::new()),
        "admission" => (admission(step), endpoint_lines(step)),
        "permit" => (permit(step), Vec::new()),
        "weights" => (
            "others than those of the job that ran there before".into(),
            Vec::new(),
        ),
        "attempt" => (attempt(step), retry_lines(&step["retry"])),
        "peer_selection" => (peer_selection(step), node_lines(step)),
        "forward" => (forward(step), retry_lines(&step["retry"])),
        "fallback" => (
            format!(
                "model {} takes its place ({})",
                word(&step["to"]),
                word(&step["cause"])
            ),
            Vec::new(),
        ),
        // A gateway that is newer than this command.
        _ => (printable(&step.to_string()).into_owned(), Vec::new()),
    };
    let first = format!(
        "{:>10} {:>10}  {:<9} {what}",
        ms(&step["at_ms"]),
        duration(step),
        word(&step["step"])
    );
    let details = details
        .into_iter()
        .map(|detail| format!("{INDENT}{detail}"));
    std::iter::once(first).chain(details).collect()
}

/// Duration of a step; empty where it took no time that is known.
fn duration(step: &Value) -> String {
    if step["waited_ms"].is_number() {
        return ms(&step["waited_ms"]);
    }
    let ends = ["ended_at_ms", "failed_at_ms", "head_at_ms"];
    let end = ends.iter().find_map(|end| step[*end].as_f64());
    match (end, step["at_ms"].as_f64()) {
        (Some(end), Some(at)) => format!("{:.2}", end - at),
        _ => String::new(),
    }
}

fn routing(step: &Value) -> String {
    let by = &step["by"];
    let by = match by["plugin"].as_str() {
        Some(plugin) => format!("by plugin {}", printable(plugin)),
        None if by.is_null() => "no ranking yet: tier and load decide".to_owned(),
        None => "built in".to_owned(),
    };
    let order: Vec<String> = list_of(&step["candidates"])
        .map(|one| word(&one["endpoint"]))
        .collect();
    format!(
        "policy {} ({by}): {}",
        word(&step["policy"]),
        order.join(", ")
    )
}

fn admission(step: &Value) -> String {
    let result = match step["result"].as_str().unwrap_or_default() {
        "leased" => "a permit was free".to_owned(),
        "queued" => format!(
            "queued at position {}, {} ms expected: {}{}",
            word(&step["position"]),
            word(&step["expected_wait_ms"]),
            word(&step["ended"]),
            turn(step)
        ),
        _ => format!("full ({}){}", word(&step["cause"]), retry_after(step)),
    };
    result + &load(&step["load"])
}

/// State of a model that was not ready; empty of any other.
fn load(found: &Value) -> String {
    let Some(slot) = found["slot"].as_str() else {
        return String::new();
    };
    let ready = match found["expected_in_ms"].as_u64() {
        Some(wait) => format!("ready expected in {wait} ms"),
        None => "no load can serve it".to_owned(),
    };
    let reason = match found["reason"].as_str() {
        Some(reason) if reason != slot => format!(" ({})", printable(reason)),
        _ => String::new(),
    };
    let place = match found["place"].as_u64() {
        Some(place) => format!(", place {place} of those that wait{}", behind(found)),
        None => String::new(),
    };
    format!(
        "; the model was {}{reason}{place}, {ready}",
        printable(slot)
    )
}

/// Names what comes before a model; empty where it is the first.
fn behind(found: &Value) -> String {
    let ahead = found["ahead"].as_array().into_iter().flatten();
    let names: Vec<_> = ahead.filter_map(Value::as_str).map(printable).collect();
    match names.is_empty() {
        true => String::new(),
        false => format!(" behind {}", names.join(", ")),
    }
}

/// Permit that the request came with.
fn permit(step: &Value) -> String {
    let waited = &step["waited_before_ms"];
    let before = match waited.as_f64().is_some_and(|waited| waited > 0.0) {
        true => format!("waited for before, {} ms: granted", ms(waited)),
        false => "free before the request began: granted".to_owned(),
    };
    format!("{before}{}", turn(step))
}

/// Class that was served, and why; empty without a permit.
fn turn(step: &Value) -> String {
    let why = match step["turn"].as_str() {
        None => return String::new(),
        Some("only-waiting") => "no other class waited",
        Some("less-service") => "both classes waited, and it had been served less",
        Some("starvation-bound") => "the other class had its bound while it waited",
        Some("cap-reached") => "durable requests held as many permits as they may",
        // A gateway that is newer than this command.
        Some(_) => "for another reason",
    };
    format!(" as {} ({why})", word(&step["class"]))
}

fn retry_after(step: &Value) -> String {
    match step["retry_after_ms"].as_u64() {
        Some(after) => format!(", retry after {after} ms"),
        None => String::new(),
    }
}

/// Endpoints of an admission, and why each is not the one.
fn endpoint_lines(step: &Value) -> Vec<String> {
    let mut lines = vec![format!(
        "{} permits of the model in use, {} queued, {} of {} endpoints usable",
        permits(&step["permits"]),
        word(&step["waiting"]),
        word(&step["usable_endpoints"]),
        word(&step["endpoints"])
    )];
    for one in list_of(&step["candidates"]) {
        let (used, limit) = (
            one["permits"]["used"].as_u64(),
            one["permits"]["limit"].as_u64(),
        );
        let mut why = Vec::new();
        if one["health"] != "healthy" {
            why.push(word(&one["health"]));
        }
        if one["tried_before"] == true {
            why.push("has failed this request".to_owned());
        }
        // The request's own permit is counted.
        if step["result"] != "leased" && used >= limit {
            why.push("no permit free".to_owned());
        }
        let why = match why.is_empty() {
            true => "usable".to_owned(),
            false => why.join(", "),
        };
        let permits = permits(&one["permits"]);
        lines.push(format!(
            "{}: {why}; {permits} permits in use",
            word(&one["endpoint"])
        ));
    }
    lines.extend(left_out(&step["candidates_left_out"], "endpoint(s)"));
    lines
}

fn attempt(step: &Value) -> String {
    let mut text = format!(
        "{} as {}: {}",
        word(&step["endpoint"]),
        word(&step["model"]),
        word(&step["result"])
    );
    if step["status"].is_number() {
        let _ = write!(text, ", HTTP {}", word(&step["status"]));
    }
    if step["connection"].is_string() {
        let _ = write!(text, ", {} connection", word(&step["connection"]));
    }
    text
}

/// Lines on the retry decision and its reason.
fn retry_lines(retry: &Value) -> Vec<String> {
    if !retry.is_object() {
        return Vec::new();
    }
    let verdict = match (retry["allowed"] == true, retry["pause_ms"].as_u64()) {
        (true, Some(pause)) => format!("another attempt after {pause} ms"),
        (true, None) => "another attempt".to_owned(),
        (false, _) => "no other attempt".to_owned(),
    };
    vec![format!(
        "{verdict}: {}; {} of its attempts and {} retries of the model left",
        word(&retry["why"]),
        word(&retry["attempts_left"]),
        word(&retry["model_retries_left"])
    )]
}

fn peer_selection(step: &Value) -> String {
    let need = match step["need"].as_str() {
        Some("permit") => "for a free permit",
        _ => "for a queue slot",
    };
    match step["chosen"].as_str() {
        Some(node) => format!("at other nodes {need}: node {}", printable(node)),
        None => format!("at other nodes {need}: none is usable"),
    }
}

fn node_lines(step: &Value) -> Vec<String> {
    let mut lines: Vec<String> = list_of(&step["nodes"])
        .map(|node| {
            format!(
                "node {} at {}: {}; {} of {} permits estimated free, {} queued, reported {} ms ago",
                word(&node["node"]),
                word(&node["site"]),
                node["skip_reason"]
                    .as_str()
                    .map_or("usable".into(), printable),
                word(&node["free"]),
                word(&node["permits"]),
                word(&node["queued"]),
                word(&node["report_age_ms"])
            )
        })
        .collect();
    lines.extend(left_out(&step["nodes_left_out"], "node(s)"));
    lines
}

fn forward(step: &Value) -> String {
    let mut text = format!(
        "to node {} at {}: {}",
        word(&step["node"]),
        word(&step["site"]),
        word(&step["result"])
    );
    if step["status"].is_number() {
        let _ = write!(text, ", HTTP {}", word(&step["status"]));
    }
    if step["rejection"].is_object() {
        let rejection = &step["rejection"];
        let _ = write!(
            text,
            " ({} permits free there, a wait of {} ms)",
            word(&rejection["free"]),
            word(&rejection["wait_ms"])
        );
    }
    text
}

fn left_out(count: &Value, what: &str) -> Option<String> {
    let count = count.as_u64().filter(|count| *count > 0)?;
    Some(format!("and {count} more {what}"))
}

fn permits(permits: &Value) -> String {
    format!("{} of {}", word(&permits["used"]), word(&permits["limit"]))
}

fn list_of(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// A value as a word of a sentence, on one line.
fn word(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => printable(text).into_owned(),
        value => value.to_string(),
    }
}

/// Milliseconds with two decimals.
fn ms(value: &Value) -> String {
    value
        .as_f64()
        .map_or_else(|| "-".to_owned(), |ms| format!("{ms:.2}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_trace_says_when_and_why_and_keeps_to_its_lines() {
        let recorded = json!({
            "request_id": "0123", "began_at": "2026-11-21T10:00:00.000Z", "account": "acme",
            "model": "m", "requested_model": "n\nforged line", "face": "openai", "node": "a1",
            "site": "fra", "config_generation": 3, "forwarded_by": null,
            "deadline": { "after_ms": 30000, "from": "floor" },
            "quota": { "neurons": 20.0, "per_day": 1000, "settlement": "settled" },
            "steps": [
                { "step": "admission", "at_ms": 0.21, "result": "queued", "position": 1,
                  "expected_wait_ms": 120, "waited_ms": 97.4, "ended": "granted", "waiting": 1,
                  "class": "live", "turn": "less-service",
                  "permits": { "used": 8, "limit": 8 }, "endpoints": 2, "usable_endpoints": 1,
                  "candidates": [
                    { "endpoint": "http://10.0.0.7:1", "health": "healthy",
                      "permits": { "used": 4, "limit": 4 }, "tried_before": false },
                    { "endpoint": "http://10.0.0.8:1", "health": "ejected",
                      "permits": { "used": 0, "limit": 4 }, "tried_before": true }],
                  "candidates_left_out": 3 },
                { "step": "attempt", "at_ms": 97.65, "endpoint": "http://10.0.0.7:1", "model": "m",
                  "connection": "reused", "failed_at_ms": 99.15, "head_at_ms": 99.1, "status": 503,
                  "result": "rejected", "retry": { "allowed": true, "why": "the server has not begun",
                  "attempts_left": 2, "model_retries_left": 11 } },
                { "step": "a-new-one", "at_ms": 1.0 }],
            "steps_left_out": 0, "plugins": [{ "name": "p", "hook": "price" }],
            "outcome": "completed", "status": 200, "error_code": null, "refusal": null,
            "queued_ms": 97.4, "first_byte_at_ms": 180.2, "total_ms": 181.0, "neurons": 12.5,
            "nodes": { "b": null },
        });
        let text = trace(&recorded);
        for expected in [
            "account acme, model m, requested as n\\nforged line, openai API",
            "completed, HTTP 200 after 181.00 ms, of which 97.4 ms in the queue, first byte at 180.20 ms",
            "12.5 neurons; 20.0 of the day's 1000 reserved for it: settled",
            "      0.21      97.40  admission queued at position 1, 120 ms expected: granted as live (both classes waited, and it had been served less)",
            "8 of 8 permits of the model in use, 1 queued, 1 of 2 endpoints usable",
            "http://10.0.0.7:1: no permit free; 4 of 4 permits in use",
            "http://10.0.0.8:1: ejected, has failed this request; 0 of 4 permits in use",
            "and 3 more endpoint(s)",
            "     97.65       1.50  attempt   http://10.0.0.7:1 as m: rejected, HTTP 503, reused connection",
            "another attempt: the server has not begun; 2 of its attempts and 11 retries of the model left",
            "p (price)",
            "a-new-one",
            "the node is gone or has forgotten the request",
        ] {
            assert!(text.contains(expected), "no {expected:?} in:\n{text}");
        }
        assert!(
            text.lines().all(|line| !line.starts_with("forged")),
            "{text}"
        );
    }

    #[test]
    fn a_forward_is_printed_with_the_nodes_that_were_not_fit_and_the_trace_of_the_one_that_was() {
        let recorded = json!({
            "steps": [
                { "step": "peer_selection", "at_ms": 0.1, "need": "permit", "chosen": "b", "nodes": [
                    { "node": "b", "site": "fra", "skip_reason": null, "free": 1, "permits": 2,
                      "queued": 0, "report_age_ms": 40 },
                    { "node": "c", "site": "ams", "skip_reason": "stale", "free": 0, "permits": 2,
                      "queued": 3, "report_age_ms": 9000 }], "nodes_left_out": 0 },
                { "step": "forward", "at_ms": 0.2, "ended_at_ms": 5.2, "node": "b", "site": "fra",
                  "result": "answered", "status": 200, "rejection": null, "retry": null }],
            "nodes": { "b": { "node": "b", "steps": [{ "step": "admission", "at_ms": 0.0, "result": "leased" }] } },
        });
        let text = trace(&recorded);
        for expected in [
            "at other nodes for a free permit: node b",
            "node c at ams: stale; 0 of 2 permits estimated free, 3 queued, reported 9000 ms ago",
            "5.00  forward   to node b at fra: answered, HTTP 200",
            "at node b:",
            "admission a permit was free",
        ] {
            assert!(text.contains(expected), "no {expected:?} in:\n{text}");
        }
    }
}
