//! Checks of an endpoint's address beside its URL: the form of its key, its headers, its health path.
//!
//! Endpoints are not contacted, and no message repeats a value: it may be a secret.

use std::collections::HashSet;

use http::header::HeaderName;

use crate::config::document::Cursor;
use crate::config::problem::Problems;
use crate::upstream::API_KEY_HEADER;

/// Headers of an endpoint; more is a mistake, and each request carries all of them.
const HEADERS_MAX: usize = 32;

/// Headers that the gateway writes itself, or that give the length of a request.
const WRITTEN: [&str; 12] = [
    "accept-encoding",
    "connection",
    "content-length",
    "content-type",
    "expect",
    "host",
    "keep-alive",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "x-request-id",
];

pub fn check(endpoint: &Cursor<'_>, problems: &mut Problems) {
    check_form(endpoint, problems);
    check_headers(endpoint, problems);
    check_path(endpoint, ("health", "/health"), problems);
    check_path(endpoint, ("loopback", "/loopback"), problems);
}

fn check_path(endpoint: &Cursor<'_>, (owner, example): (&str, &str), problems: &mut Problems) {
    let owner = endpoint.key(owner);
    if let Some(path) = owner.and_then(|owner| owner.key("path"))
        && let Some(text) = path.text()
        && (!text.starts_with('/')
            || !text.bytes().all(|byte| byte.is_ascii_graphic())
            || text.contains('#'))
    {
        problems.add(path.problem(format!(
            "expected a path below the base URL, such as {example}"
        )));
    }
}

fn check_form(endpoint: &Cursor<'_>, problems: &mut Problems) {
    if let Some(auth) = endpoint.key("auth")
        && endpoint.key("api_key").is_none()
    {
        problems.add(auth.problem("there is no key to send in this form: add `api_key`"));
    }
    let form = endpoint.text_of("auth").unwrap_or("bearer");
    let has_name = matches!(form, "header" | "query");
    match endpoint.key("auth_name") {
        None if has_name => {
            if let Some(auth) = endpoint.key("auth") {
                problems.add(auth.problem(format!(
                    "a name is missing: add `auth_name` with the name of the {}",
                    if form == "header" {
                        "header"
                    } else {
                        "query parameter"
                    }
                )));
            }
        }
        Some(name) if !has_name => {
            problems.add(name.problem(
                "only `auth: header` and `auth: query` have a name: remove the key, or correct `auth`",
            ));
        }
        Some(name) => {
            let fault = name.text().and_then(|text| match form {
                "header" => name_fault(text),
                _ => parameter_fault(text),
            });
            if let Some(fault) = fault {
                problems.add(name.problem(fault));
            }
        }
        None => {}
    }
}

fn check_headers(endpoint: &Cursor<'_>, problems: &mut Problems) {
    let headers = endpoint.entries("headers");
    if headers.len() > HEADERS_MAX
        && let Some(key) = endpoint.key("headers")
    {
        problems.add(key.problem(format!("at most {HEADERS_MAX} headers")));
        return;
    }
    let key_header = match endpoint.text_of("auth") {
        None | Some("bearer") => "authorization".to_owned(),
        Some("api-key") => API_KEY_HEADER.to_owned(),
        Some("header") => endpoint
            .text_of("auth_name")
            .unwrap_or_default()
            .to_ascii_lowercase(),
        Some(_) => String::new(),
    };
    let mut seen = HashSet::new();
    for (name, value) in headers {
        let lower = name.to_ascii_lowercase();
        let fault = if lower == "authorization" || lower == key_header {
            Some(
                "a key goes into `api_key`, with `auth: header` and `auth_name` where it has a form of its own",
            )
        } else if !seen.insert(lower) {
            Some("this header stands here already, in other letters")
        } else {
            name_fault(name).or_else(|| value.text().and_then(value_fault))
        };
        if let Some(fault) = fault {
            problems.add(value.problem(fault));
        }
    }
}

/// Checks headers that are sent to a collector; `authorization` may be one of them.
pub(super) fn check_collector_headers(otlp: &Cursor<'_>, problems: &mut Problems) {
    for (name, value) in otlp.entries("headers") {
        let fault = name_fault(name).or_else(|| value.text().and_then(value_fault));
        if let Some(fault) = fault {
            problems.add(value.problem(fault));
        }
    }
}

/// Checks the key that is sent to an endpoint, or to discovered ones, and its model's name there.
pub(super) fn check_sent(map: &Cursor<'_>, problems: &mut Problems) {
    if let Some(key) = map.key("api_key")
        && let Some(fault) = key.text().and_then(|text| form_fault(map, text))
    {
        problems.add(key.problem(fault));
    }
    if let Some(key) = map.key("backend_model")
        && key.text() == Some("")
    {
        problems.add(key.problem("must not be empty: remove the key to send the model's id"));
    }
}

/// Fault of a key in the form that its endpoint expects, if any.
pub fn form_fault(endpoint: &Cursor<'_>, key: &str) -> Option<&'static str> {
    match endpoint.text_of("auth") {
        Some("header") => value_fault(key),
        _ => key_fault(key),
    }
}

/// The key is sent as a header value; the message must not repeat it.
pub(super) fn key_fault(key: &str) -> Option<&'static str> {
    if key.is_empty() {
        return Some("must not be empty: remove the key to send none");
    }
    let fit = key.bytes().all(|byte| byte.is_ascii_graphic());
    (!fit).then_some("has a space, a line break or a character outside ASCII: it is sent as a header value, check the variable")
}

fn name_fault(name: &str) -> Option<&'static str> {
    if HeaderName::from_bytes(name.as_bytes()).is_err() {
        return Some("expected the name of a header, such as x-tenant");
    }
    let is_written = WRITTEN
        .iter()
        .any(|written| name.eq_ignore_ascii_case(written));
    is_written.then_some("this header is written by the gateway")
}

fn parameter_fault(name: &str) -> Option<&'static str> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    let is_name = !name.is_empty() && name.bytes().all(fits);
    (!is_name)
        .then_some("expected the name of a query parameter: letters, digits, `-`, `.`, `_`, `~`")
}

/// The value is sent as it is; the message must not repeat it.
fn value_fault(value: &str) -> Option<&'static str> {
    if value.is_empty() || value != value.trim() {
        return Some("must not be empty nor begin or end with a space: check the variable");
    }
    let fits = value
        .bytes()
        .all(|byte| byte == b' ' || byte.is_ascii_graphic());
    (!fits).then_some("has a line break or a character outside ASCII: it is sent as a header value, check the variable")
}
