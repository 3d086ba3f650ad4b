//! Answers of the admin listener about jobs, as tables for people.
//!
//! Rendering only. Texts of clients and servers are cleaned of what could make a line or move a cursor.

use std::fmt::Write;

use serde_json::Value;

use crate::telemetry::printable;

/// Columns of the list: name, width; the last one is as wide as its text.
const LIST: &[(&str, usize)] = &[
    ("id", 26),
    ("state", 9),
    ("created at", 27),
    ("tries", 5),
    ("account, model, reason", 0),
];
const QUEUES: &[(&str, usize)] = &[
    ("deployable", 24),
    ("queued", 7),
    ("ready", 7),
    ("running", 7),
    ("oldest s", 9),
    ("hold s", 8),
    ("work s", 9),
    ("permits", 7),
    ("", 6),
    ("model", 0),
];
const WORKERS: &[(&str, usize)] = &[
    ("running", 7),
    ("at most", 7),
    ("takes jobs", 10),
    ("worker", 0),
];

/// Jobs, a line each.
pub fn list(body: &Value) -> String {
    let mut out = header(LIST);
    for job in members(&body["jobs"]) {
        let mut about = format!("{}, {}", word(&job["account"]), word(&job["model"]));
        if !job["reason"].is_null() {
            about = format!("{about}, {}", word(&job["reason"]));
        }
        let cells = [
            word(&job["id"]),
            word(&job["state"]),
            word(&job["created_at"]),
            word(&job["attempts"]),
            about,
        ];
        out.push_str(&row(LIST, &cells));
    }
    if let Some(next) = body["next"].as_str() {
        let _ = writeln!(out, "there are more: --cursor {}", printable(next));
    }
    out
}

/// Record of a job.
pub fn record(job: &Value) -> String {
    let mut lines = vec![
        line(
            "job",
            format!("{}, {}", word(&job["id"]), word(&job["kind"])),
        ),
        line("state", state(job)),
        line(
            "for",
            format!(
                "account {}, model {}, {} API",
                word(&job["account"]),
                word(&job["model"]),
                word(&job["api"])
            ),
        ),
        line(
            "queue",
            format!(
                "{}, class {}",
                word(&job["deployable"]),
                word(&job["class"])
            ),
        ),
        line("created", word(&job["created_at"])),
    ];
    for (name, key) in [
        ("started", "started_at"),
        ("taken", "taken_at"),
        ("due", "due_at"),
        ("cancel", "cancel_requested_at"),
        ("ended", "ended_at"),
        ("deadline", "deadline"),
        ("worker", "worker"),
        ("trace", "trace_id"),
        ("retry of", "retry_of"),
        ("webhook", "webhook"),
        ("upstream", "upstream"),
        ("error", "error"),
    ] {
        if !job[key].is_null() {
            lines.push(line(name, word(&job[key])));
        }
    }
    lines.extend(result(job));
    lines.extend(members(&job["transitions"]).map(transition));
    lines.extend(members(&job["runs"]).map(attempt));
    lines.concat()
}

fn transition(transition: &Value) -> String {
    let mut text = format!("{} {}", word(&transition["at"]), word(&transition["state"]));
    for key in ["attempt", "reason"] {
        if !transition[key].is_null() {
            let _ = write!(text, ", {key} {}", word(&transition[key]));
        }
    }
    line("state at", text)
}

fn attempt(attempt: &Value) -> String {
    let result = match &attempt["result"] {
        Value::Null => "goes on".to_owned(),
        result => word(result),
    };
    let (number, endpoint) = (word(&attempt["attempt"]), word(&attempt["endpoint"]));
    line("attempt", format!("{number} at {endpoint}: {result}"))
}

/// Attempts of a job, and what came of it.
fn result(job: &Value) -> Vec<String> {
    let attempts = &job["attempt_counts"];
    let mut lines = Vec::new();
    lines.push(line(
        "attempts",
        format!(
            "taken {} times, {} of {} attempts lost, {} times no server took it",
            word(&attempts["taken"]),
            word(&attempts["counted"]),
            word(&attempts["max"]),
            word(&attempts["refused"])
        ),
    ));
    if let Some(neurons) = job["neurons"].as_f64() {
        lines.push(line("bill", format!("{neurons} neurons")));
    }
    for (name, value) in job["metrics"].as_object().into_iter().flatten() {
        lines.push(line(
            "metric",
            format!("{} {}", printable(name), word(value)),
        ));
    }
    lines.push(line(
        "input",
        shown_body(&job["input"], &job["input_bytes"]),
    ));
    if job["output_bytes"].as_u64().is_some_and(|bytes| bytes > 0) {
        lines.push(line(
            "output",
            shown_body(&job["output"], &job["output_bytes"]),
        ));
    }
    lines
}

fn state(job: &Value) -> String {
    let reason = match job["reason"].as_str() {
        Some(reason) => format!(" ({})", printable(reason)),
        None => String::new(),
    };
    let (state, status) = (word(&job["state"]), word(&job["status"]));
    format!("{state}{reason}, `{status}` to its user")
}

/// A body, or its length where it was too long to be shown.
fn shown_body(value: &Value, bytes: &Value) -> String {
    match value {
        Value::Null => format!("{} bytes", word(bytes)),
        value => printable(&value.to_string()).into_owned(),
    }
}

/// Queues, a line each.
pub fn queues(body: &Value) -> String {
    let mut out = header(QUEUES);
    for queue in members(&body["queues"]) {
        let ready = queue["ready"].as_object().into_iter().flatten();
        let ready: u64 = ready.filter_map(|(_, count)| count.as_u64()).sum();
        let is_paused = queue["paused"] == true;
        let cells = [
            word(&queue["deployable"]),
            word(&queue["queued"]),
            ready.to_string(),
            word(&queue["running"]),
            seconds(&queue["oldest_ms"]),
            seconds(&queue["expected_hold_ms"]),
            one_decimal(queue["expected_work_secs"].as_f64()),
            word(&queue["permits"]),
            if is_paused { "paused" } else { "" }.to_owned(),
            match &queue["deployment"] {
                Value::String(deployment) => format!("{deployment} of {}", word(&queue["model"])),
                _ => word(&queue["model"]),
            },
        ];
        out.push_str(&row(QUEUES, &cells));
    }
    out
}

/// Workers, a line each.
pub fn workers(body: &Value) -> String {
    let mut out = header(WORKERS);
    for worker in members(&body["workers"]) {
        let takes = worker["enabled"] == true && worker["draining"] == false;
        let here = if worker["here"] == true {
            " (asked)"
        } else {
            ""
        };
        let cells = [
            word(&worker["running"]),
            word(&worker["concurrency_max"]),
            if takes { "yes" } else { "no" }.to_owned(),
            format!("{}{here}", word(&worker["id"])),
        ];
        out.push_str(&row(WORKERS, &cells));
    }
    out
}

/// Stores, some lines each.
pub fn stores(body: &Value) -> String {
    let one = |store: &Value| {
        let accepting = match store["accepting"].as_bool() {
            Some(true) => "accepts jobs".to_owned(),
            _ => format!("accepts no jobs: {}", word(&store["problem"])),
        };
        [
            line("store", format!("{}, {accepting}", word(&store["kind"]))),
            line("path", word(&store["path"])),
            line(
                "jobs",
                format!(
                    "{} have not ended, {} of {} MiB",
                    word(&store["live"]),
                    mib(&store["live_bytes"]),
                    mib(&store["live_bytes_max"])
                ),
            ),
            line(
                "file",
                format!(
                    "{} MiB, {} MiB free on its disk",
                    mib(&store["file_bytes"]),
                    mib(&store["free_disk_bytes"])
                ),
            ),
        ]
        .concat()
    };
    members(&body["stores"]).map(one).collect()
}

/// Result of a cancel.
pub fn canceled(body: &Value) -> String {
    let id = word(&body["id"]);
    match body["result"].as_str().unwrap_or_default() {
        "ended" => format!("{id} was queued and is {}\n", word(&body["state"])),
        "requested" => format!("{id} runs and is asked to end\n"),
        _ => format!("{id} had ended before: {}\n", word(&body["state"])),
    }
}

/// Webhooks that are not delivered.
pub fn webhooks(body: &Value) -> String {
    let lines = members(&body["webhooks"]).map(|webhook| {
        let next = match (webhook["is_dead"] == true, webhook["has_job"] == false) {
            (true, false) => "given up".to_owned(),
            (true, true) => "given up and not kept".to_owned(),
            (false, _) => format!("due {}", word(&webhook["due_at"])),
        };
        let (id, last) = (word(&webhook["id"]), word(&webhook["last_result"]));
        let attempts = word(&webhook["attempts"]);
        format!("{id}  {attempts} attempts, {next}, last: {last}\n")
    });
    let lines: String = lines.collect();
    match lines.is_empty() {
        true => "none\n".to_owned(),
        false => lines,
    }
}

/// Webhook that is tried again.
pub fn retried(body: &Value) -> String {
    format!("{} is delivered again\n", word(&body["id"]))
}

/// Result of a second submit.
pub fn requeued(body: &Value) -> String {
    let (id, before) = (word(&body["id"]), word(&body["retry_of"]));
    format!("{id} is queued with the request of {before}\n")
}

/// Result of a pause or its end.
pub fn paused(body: &Value) -> String {
    let queue = word(&body["deployable"]);
    match body["paused"] == true {
        true => format!("{queue} is paused: none of its jobs is taken until `jobs resume`\n"),
        false => format!("{queue} is not paused\n"),
    }
}

/// Result of a purge.
pub fn purged(body: &Value) -> String {
    let queue = word(&body["deployable"]);
    format!(
        "{} queued job(s) of {queue} are canceled\n",
        word(&body["canceled"])
    )
}

fn header(columns: &[(&str, usize)]) -> String {
    let names: Vec<String> = columns.iter().map(|(name, _)| (*name).to_owned()).collect();
    row(columns, &names)
}

/// A line of a table: numbers to the right would need their column's kind, so all stand to the left.
fn row(columns: &[(&str, usize)], cells: &[String]) -> String {
    let cells = columns.iter().zip(cells);
    let cells: Vec<String> = cells
        .map(|((_, width), cell)| format!("{cell:<width$}"))
        .collect();
    format!("{}\n", cells.join("  ").trim_end())
}

fn line(name: &str, text: String) -> String {
    format!("{name:<10}{text}\n")
}

fn members(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// Value as a word of a line.
fn word(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => printable(text).into_owned(),
        value => value.to_string(),
    }
}

fn seconds(ms: &Value) -> String {
    one_decimal(ms.as_f64().map(|ms| ms / 1e3))
}

fn mib(bytes: &Value) -> String {
    one_decimal(bytes.as_f64().map(|bytes| bytes / f64::from(1 << 20)))
}

fn one_decimal(number: Option<f64>) -> String {
    number.map_or_else(|| "-".to_owned(), |number| format!("{number:.1}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_list_has_a_line_for_each_job_and_says_how_it_goes_on() {
        let body = json!({
            "jobs": [{
                "id": "k".repeat(26), "state": "failed", "reason": "timeout", "account": "a\n",
                "model": "m", "created_at": "2026-11-21T10:00:00.000000Z", "attempts": 2,
            }],
            "next": "7",
        });
        let text = list(&body);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3, "{text}");
        assert!(
            lines[1].contains("failed") && lines[1].ends_with(", m, timeout"),
            "{text}"
        );
        assert_eq!(lines[2], "there are more: --cursor 7");
    }

    #[test]
    fn a_queue_is_one_line_with_its_sums() {
        let body = json!({ "queues": [{
            "deployable": "vp-1", "model": "acme/m", "queued": 5, "ready": { "again": 1, "normal": 2 },
            "running": 1, "oldest_ms": 2500, "expected_hold_ms": 1000, "expected_work_secs": 5.0,
            "permits": 2, "paused": true,
        }] });
        let text = queues(&body);
        let cells: Vec<&str> = text.lines().nth(1).unwrap().split_whitespace().collect();
        let expected = [
            "vp-1", "5", "3", "1", "2.5", "1.0", "5.0", "2", "paused", "acme/m",
        ];
        assert_eq!(cells, expected);
        let body = json!({ "queues": [{ "model": "acme/m", "deployment": "acme/fast" }] });
        let line = queues(&body);
        assert!(line.trim_end().ends_with("acme/fast of acme/m"), "{line}");
    }

    #[test]
    fn changes_are_sentences() {
        let text = canceled(&json!({ "id": "x", "result": "requested", "state": "running" }));
        assert_eq!(text, "x runs and is asked to end\n");
        let text = purged(&json!({ "deployable": "vp-1", "canceled": 3 }));
        assert_eq!(text, "3 queued job(s) of vp-1 are canceled\n");
        let text = stores(&json!({ "stores": [{
            "kind": "embedded", "path": "/s/jobs.sqlite", "accepting": false, "problem": "no disk",
            "live": 2, "live_bytes": 1 << 20, "live_bytes_max": 1 << 30, "file_bytes": 0,
            "free_disk_bytes": null,
        }] }));
        assert!(text.contains("accepts no jobs: no disk"), "{text}");
        assert!(
            text.contains("2 have not ended, 1.0 of 1024.0 MiB"),
            "{text}"
        );
        assert!(text.contains("0.0 MiB, - MiB free"), "{text}");
    }
}
