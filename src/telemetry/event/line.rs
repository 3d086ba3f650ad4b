//! Text of an inference event: one line of JSON, written member by member.
//!
//! Not a serializer: the members of `docs/events.md` are few and fixed, and their names are constants here. So
//! are the names of dialects, outcomes and hooks, which hold nothing to escape.
//! Strings without a character to escape are copied, which nearly all are; fractions and the other strings are
//! left to `serde_json`. A test holds the text to what serde writes. The writer thread calls it for each event.

use std::io::Write;
use std::net::IpAddr;
use std::sync::Arc;

use infergate_core::api::json_text::{push_text, push_whole};

use super::{
    Comparison, EventFlags, InferenceEvent, JobFacts, PluginIdentity, PluginUse, TokenUsage,
};

/// Bytes of a usual line with two plugins: reserved once, so that few lines move the buffer.
const LINE_BYTES_USUAL: usize = 1400;

impl InferenceEvent {
    /// Appends the event to `out` as one line of JSON, newline included. `time` is `ended_us` on
    /// the wall, in RFC 3339.
    pub fn write_line(&self, time: &str, out: &mut Vec<u8>) {
        out.reserve(LINE_BYTES_USUAL);
        self.write_names(time, out);
        self.write_result(out);
        self.write_usage(out);
        self.write_way(out);
        if let Some(job) = &self.job {
            job.write_members(out);
        }
        out.extend_from_slice(b"}\n");
    }

    /// Writes the members from `time` to `site`.
    fn write_names(&self, time: &str, out: &mut Vec<u8>) {
        out.extend_from_slice(b"{\"time\":");
        push_text(out, time);
        out.extend_from_slice(b",\"request_id\":");
        push_text(out, &self.request_id);
        out.extend_from_slice(b",\"account_id\":");
        write_string_or_null(self.account_id.as_ref().map(|id| id.as_str()), out);
        write_address(self.client_address, out);
        // Most requests name no client, and those that are refused early no model.
        if self.client_id.is_none() && self.client_request_id.is_none() {
            out.extend_from_slice(b",\"client_id\":null,\"client_request_id\":null");
        } else {
            out.extend_from_slice(b",\"client_id\":");
            write_string_or_null(self.client_id.as_deref(), out);
            out.extend_from_slice(b",\"client_request_id\":");
            write_string_or_null(self.client_request_id.as_deref(), out);
        }
        if self.model_id.is_none() && self.asked_model_id.is_none() {
            out.extend_from_slice(b",\"model_id\":null,\"asked_model_id\":null");
        } else {
            out.extend_from_slice(b",\"model_id\":");
            write_string_or_null(self.model_id.as_ref().map(|id| id.as_str()), out);
            out.extend_from_slice(b",\"asked_model_id\":");
            write_string_or_null(self.asked_model_id.as_ref().map(|id| id.as_str()), out);
        }
        out.extend_from_slice(b",\"face\":\"");
        out.extend_from_slice(self.dialect.name().as_bytes());
        out.extend_from_slice(b"\",\"node\":");
        push_text(out, &self.node);
        out.extend_from_slice(b",\"site\":");
        push_text(out, &self.site);
    }

    /// Writes the members from `status` to `time_to_first_token_ms`.
    fn write_result(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b",\"status\":");
        push_whole(out, self.status.into());
        out.extend_from_slice(b",\"error_code\":");
        match self.error_code {
            Some(code) => {
                out.push(b'"');
                push_whole(out, code.into());
                out.push(b'"');
            }
            None => out.extend_from_slice(b"null"),
        }
        out.extend_from_slice(b",\"reason\":");
        write_string_or_null(self.reason, out);
        out.extend_from_slice(b",\"outcome\":\"");
        out.extend_from_slice(self.outcome.name().as_bytes());
        out.extend_from_slice(b"\",\"streamed\":");
        write_bool(self.flags.streamed, out);
        out.extend_from_slice(b",\"queued\":");
        write_bool(self.queued, out);
        out.extend_from_slice(b",\"request_time_ms\":");
        push_whole(out, self.request_time_us / 1000);
        out.extend_from_slice(b",\"queuing_time_ms\":");
        push_whole(out, self.queuing_time_us / 1000);
        out.extend_from_slice(b",\"inference_time_ms\":");
        push_whole(out, self.inference_time_us / 1000);
        out.extend_from_slice(b",\"time_to_first_token_ms\":");
        match self.time_to_first_token_us {
            Some(us) => push_whole(out, us / 1000),
            None => out.extend_from_slice(b"null"),
        }
    }

    /// Writes the members from `metrics` to `priced_by`.
    fn write_usage(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b",\"metrics\":");
        write_metrics(self.metrics, &self.extra_metrics, out);
        out.extend_from_slice(b",\"metrics_source\":\"");
        out.extend_from_slice(self.metrics_source.name().as_bytes());
        out.extend_from_slice(b"\",\"comparison\":");
        write_comparison(&self.comparison, out);
        out.extend_from_slice(b",\"neurons\":");
        match self.neurons {
            Some(neurons) => write_float(neurons, out),
            None => out.extend_from_slice(b"null"),
        }
        out.extend_from_slice(b",\"priced_by\":");
        write_string_or_null(self.priced_by.as_deref(), out);
    }

    /// Writes the members from `attempts` on.
    fn write_way(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b",\"attempts\":");
        push_whole(out, self.attempts.into());
        out.extend_from_slice(b",\"upstream\":");
        write_string_or_null(self.upstream.as_deref(), out);
        out.extend_from_slice(b",\"path\":");
        write_list(&self.path, out, |place: &Arc<str>, out| {
            push_text(out, place)
        });
        out.extend_from_slice(b",\"local_queue_size\":");
        push_whole(out, self.local_queue_size.into());
        out.extend_from_slice(b",\"source_site\":");
        push_text(out, &self.source_site);
        self.write_load(out);
        out.extend_from_slice(b",\"flags\":");
        write_flags(self.flags, out);
        out.extend_from_slice(b",\"request_source\":\"");
        out.extend_from_slice(self.request_source.as_bytes());
        out.extend_from_slice(b"\",\"plugins\":");
        write_list(&self.plugins, out, |used: &PluginUse, out| {
            out.extend_from_slice(used.plugin.members.as_bytes());
            out.extend_from_slice(used.hook.as_bytes());
            out.extend_from_slice(b"\"}");
        });
        out.extend_from_slice(b",\"trace_id\":");
        match self.trace_id {
            // Digits alone; memory takes every byte.
            Some(id) => drop(write!(out, "\"{id}\"")),
            None => out.extend_from_slice(b"null"),
        }
    }
}

impl InferenceEvent {
    /// Writes the members from `container_id` to `load_wait_ms`.
    fn write_load(&self, out: &mut Vec<u8>) {
        if self.container_id.is_none() && self.load_wait_us.is_none() {
            out.extend_from_slice(
                b",\"container_id\":null,\"cold_start\":false,\"load_wait_ms\":0",
            );
            return;
        }
        out.extend_from_slice(b",\"container_id\":");
        write_string_or_null(self.container_id.as_deref(), out);
        out.extend_from_slice(b",\"cold_start\":");
        write_bool(self.load_wait_us.is_some(), out);
        out.extend_from_slice(b",\"load_wait_ms\":");
        push_whole(out, self.load_wait_us.unwrap_or(0) / 1000);
    }
}

impl JobFacts {
    /// Writes the members of a job's event. Names of kinds, states and classes have nothing to escape.
    fn write_members(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b",\"event_id\":\"");
        out.extend_from_slice(self.job_id.as_bytes());
        out.push(b':');
        push_whole(out, self.epoch.into());
        out.extend_from_slice(b"\",\"job_id\":\"");
        out.extend_from_slice(self.job_id.as_bytes());
        let names = [
            ("job_kind", self.job_kind),
            ("job_status", self.job_status),
            ("class", self.class),
            ("deployable", &*self.deployable),
            ("created_at", &*self.created_at),
        ];
        out.push(b'"');
        for (name, value) in names {
            write_key(&mut b',', name, out);
            push_text(out, value);
        }
        for (name, count) in [
            ("epoch", self.epoch),
            ("attempts_counted", self.attempts_counted),
        ] {
            write_key(&mut b',', name, out);
            push_whole(out, count.into());
        }
    }
}

impl PluginIdentity {
    /// Renders the object of `plugins` up to the text of `hook`.
    pub(super) fn render_members(name: &str, sha256: &str, config: &str) -> Box<str> {
        let mut out = b"{\"name\":".to_vec();
        push_text(&mut out, name);
        out.extend_from_slice(b",\"sha256\":");
        push_text(&mut out, sha256);
        out.extend_from_slice(b",\"config\":");
        push_text(&mut out, config);
        out.extend_from_slice(b",\"hook\":\"");
        String::from_utf8(out)
            .expect("strings and names are UTF-8")
            .into()
    }
}

/// Writes the tokens, then all else. A name of the tokens in `extra` is left out: two members of one name are a
/// line that readers disagree about.
fn write_metrics(tokens: TokenUsage, extra: &[(Arc<str>, f64)], out: &mut Vec<u8>) {
    let mut separator = b'{';
    let tokens = [
        ("input_tokens", tokens.input_tokens),
        ("output_tokens", tokens.output_tokens),
        ("cached_tokens", tokens.cached_tokens),
    ];
    for (name, count) in tokens {
        if let Some(count) = count {
            write_key(&mut separator, name, out);
            push_whole(out, count);
        }
    }
    for (name, value) in extra {
        if !tokens.iter().any(|(known, _)| *known == &**name) {
            write_key(&mut separator, name, out);
            write_quantity(*value, out);
        }
    }
    if separator == b'{' {
        out.push(b'{');
    }
    out.push(b'}');
}

/// Writes `{ metric: { reported, estimated, match } }`; null where nothing is compared.
fn write_comparison(comparison: &[Comparison], out: &mut Vec<u8>) {
    if comparison.is_empty() {
        out.extend_from_slice(b"null");
        return;
    }
    let mut separator = b'{';
    for one in comparison {
        write_key(&mut separator, &one.metric, out);
        out.extend_from_slice(b"{\"reported\":");
        write_quantity_or_null(one.reported, out);
        out.extend_from_slice(b",\"estimated\":");
        write_quantity_or_null(one.estimated, out);
        out.extend_from_slice(b",\"match\":");
        match one.matches {
            Some(matches) => write_bool(matches, out),
            None => out.extend_from_slice(b"null"),
        }
        out.push(b'}');
    }
    out.push(b'}');
}

/// Writes the member of an address, which has nothing to escape.
fn write_address(address: Option<IpAddr>, out: &mut Vec<u8>) {
    match address {
        Some(IpAddr::V4(address)) => {
            out.extend_from_slice(b",\"client_address\":\"");
            let [first, rest @ ..] = address.octets();
            push_whole(out, first.into());
            for octet in rest {
                out.push(b'.');
                push_whole(out, octet.into());
            }
            out.push(b'"');
        }
        // Memory takes every byte.
        Some(address) => drop(write!(out, ",\"client_address\":\"{address}\"")),
        None => out.extend_from_slice(b",\"client_address\":null"),
    }
}

fn write_flags(flags: EventFlags, out: &mut Vec<u8>) {
    /// Text of [`EventFlags::default`], which most requests have.
    const UNSET: &str = concat!(
        r#"{"streamed":false,"beta":false,"external_endpoint":false,"#,
        r#""queued_in_site":false,"unix_socket":false,"billing_fallback":false}"#
    );
    if flags == EventFlags::default() {
        out.extend_from_slice(UNSET.as_bytes());
        return;
    }
    out.extend_from_slice(b"{\"streamed\":");
    write_bool(flags.streamed, out);
    out.extend_from_slice(b",\"beta\":");
    write_bool(flags.beta, out);
    out.extend_from_slice(b",\"external_endpoint\":");
    write_bool(flags.external_endpoint, out);
    out.extend_from_slice(b",\"queued_in_site\":");
    write_bool(flags.queued_in_site, out);
    out.extend_from_slice(b",\"unix_socket\":");
    write_bool(flags.unix_socket, out);
    out.extend_from_slice(b",\"billing_fallback\":");
    write_bool(flags.billing_fallback, out);
    out.push(b'}');
}

fn write_list<T>(list: &[T], out: &mut Vec<u8>, write: impl Fn(&T, &mut Vec<u8>)) {
    out.push(b'[');
    for (at, one) in list.iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        write(one, out);
    }
    out.push(b']');
}

/// Writes the name of a member and what stands before it: `{` before the first, a comma before the others.
fn write_key(separator: &mut u8, name: &str, out: &mut Vec<u8>) {
    out.push(*separator);
    *separator = b',';
    push_text(out, name);
    out.push(b':');
}

fn write_bool(value: bool, out: &mut Vec<u8>) {
    let text: &[u8] = match value {
        true => b"true",
        false => b"false",
    };
    out.extend_from_slice(text);
}

/// Writes a number that is whole as one: `20`, not `20.0`.
fn write_quantity(value: f64, out: &mut Vec<u8>) {
    /// 2^53: beyond it a float does not hold every whole number.
    const WHOLE_MAX: f64 = 9_007_199_254_740_992.0;
    match value.fract() == 0.0 && (0.0..=WHOLE_MAX).contains(&value) {
        true => push_whole(out, value as u64),
        false => write_float(value, out),
    }
}

fn write_quantity_or_null(value: Option<f64>, out: &mut Vec<u8>) {
    match value {
        Some(value) => write_quantity(value, out),
        None => out.extend_from_slice(b"null"),
    }
}

/// Writes the shortest text that reads back as `value`; null for what is no number.
fn write_float(value: f64, out: &mut Vec<u8>) {
    serde_json::to_writer(out, &value).expect("a float is written to memory");
}

fn write_string_or_null(text: Option<&str>, out: &mut Vec<u8>) {
    match text {
        Some(text) => push_text(out, text),
        None => out.extend_from_slice(b"null"),
    }
}
