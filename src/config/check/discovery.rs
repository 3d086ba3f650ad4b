//! `models[].discovery`: one place to look at, and texts that can be asked for there.
//!
//! Sources are not read; one that cannot be read shows while running.

use crate::config::document::Cursor;
use crate::config::problem::Problems;
use crate::upstream::{check_host_and_port, check_url};

use super::endpoints::{check_sent, key_fault};

const SOURCES: [&str; 4] = ["file", "dns", "consul", "kubernetes"];
/// Names in Kubernetes are labels of a DNS name at most.
const LABEL_BYTES_MAX: usize = 63;

pub fn check(model: &Cursor<'_>, problems: &mut Problems) {
    let Some(discovery) = model.key("discovery") else {
        return;
    };
    // Something else than a mapping has been named already.
    if !discovery.is_map() {
        return;
    }
    let named = SOURCES.iter().filter_map(|key| discovery.key(key));
    match &named.collect::<Vec<_>>()[..] {
        [] => problems.add(discovery.problem(format!(
            "where to look is missing: add one of {}",
            SOURCES.join(", ")
        ))),
        [_] => {}
        [_, others @ ..] => {
            for other in others {
                problems.add(other.problem(format!(
                    "endpoints are found in one place: keep one of {}",
                    SOURCES.join(", ")
                )));
            }
        }
    }
    check_sent(&discovery, problems);
    if let Some(file) = discovery.key("file")
        && file.text() == Some("")
    {
        problems.add(file.problem("must not be empty: name a JSON file"));
    }
    if let Some(dns) = discovery.key("dns")
        && let Some(text) = dns.text()
        && let Err(fault) = check_host_and_port(text)
    {
        problems.add(dns.problem(format!("{fault}, found {}", dns.shown())));
    }
    if let Some(consul) = discovery.key("consul") {
        check_consul(&consul, problems);
    }
    if let Some(kubernetes) = discovery.key("kubernetes") {
        check_kubernetes(&kubernetes, problems);
    }
}

fn check_kubernetes(kubernetes: &Cursor<'_>, problems: &mut Problems) {
    check_base_url(kubernetes, "api", problems);
    for key in ["namespace", "service", "port"] {
        // They stand in the path and the query of a request as they are.
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        if let Some(found) = kubernetes.key(key)
            && let Some(text) = found.text()
            && !((1..=LABEL_BYTES_MAX).contains(&text.len()) && text.bytes().all(plain))
        {
            problems.add(found.problem(format!(
                "expected at most {LABEL_BYTES_MAX} of a-z, 0-9 and -, found {}",
                found.shown()
            )));
        }
    }
    for key in ["token_file", "ca_file"] {
        if let Some(file) = kubernetes.key(key)
            && file.text() == Some("")
        {
            problems.add(
                file.problem(
                    "must not be empty: remove the key to use that of the service account",
                ),
            );
        }
    }
    let api = kubernetes.text_of("api");
    if let Some(file) = kubernetes.key("ca_file")
        && api.is_some_and(|api| api.starts_with("http://"))
    {
        problems.add(file.problem(
            "only an https API has a certificate to check: remove the key, or correct `api`",
        ));
    }
}

fn check_base_url(map: &Cursor<'_>, key: &str, problems: &mut Problems) {
    if let Some(url) = map.key(key)
        && let Some(text) = url.text()
        && let Err(fault) = check_url(text)
    {
        problems.add(url.problem(format!("{fault}, found {}", url.shown())));
    }
}

pub(super) fn check_consul(consul: &Cursor<'_>, problems: &mut Problems) {
    check_base_url(consul, "url", problems);
    for key in ["service", "tag", "datacenter"] {
        // They stand in the path and the query of a request as they are.
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
        if let Some(found) = consul.key(key)
            && let Some(text) = found.text()
            && (text.is_empty() || !text.bytes().all(plain))
        {
            problems.add(found.problem(format!(
                "expected letters, digits and -._~, found {}",
                found.shown()
            )));
        }
    }
    if let Some(token) = consul.key("token")
        && let Some(fault) = token.text().and_then(key_fault)
    {
        problems.add(token.problem(fault));
    }
}
