//! Requests that a web page in an operator's browser makes, and the operator does not.
//!
//! Callers are not authenticated: the listener has no keys. A page of another site can make a browser on the
//! operator's machine post here (CSRF), and read the responses once its own name resolves to this address (DNS
//! rebinding). Tools such as curl and Prometheus send neither `Origin` nor `Sec-Fetch-Site`.

use std::net::IpAddr;

use http::HeaderMap;

const CROSS_SITE_PAGE: &str =
    "this request comes from a web page of another site, which may not ask here";
const FOREIGN_HOST: &str =
    "the name in `Host` is not one of this machine's: ask by address or as localhost";

/// Reason to reject a request; none when it is allowed. `is_local`: its client is on this machine.
pub fn rejection_reason(headers: &HeaderMap, method: &str, is_local: bool) -> Option<&'static str> {
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    let host = text("host").unwrap_or_default();
    let is_page = match (text("origin"), text("sec-fetch-site")) {
        (Some(origin), _) => {
            method != "GET" || origin.split_once("://").is_none_or(|at| at.1 != host)
        }
        (None, Some(site)) => !matches!(site, "none" | "same-origin"),
        (None, None) => false,
    };
    if is_page {
        return Some(CROSS_SITE_PAGE);
    }
    // Somebody's domain has a dot in it; `localhost` and the name of a container have none.
    (is_local && is_domain(host)).then_some(FOREIGN_HOST)
}

fn is_domain(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let name = name.trim_end_matches('.');
    let is_address = name.trim_matches(['[', ']']).parse::<IpAddr>().is_ok();
    name.contains('.') && !is_address && !name.to_ascii_lowercase().ends_with(".localhost")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(method: &str, headers: &[(&'static str, &str)], is_local: bool) -> bool {
        let headers: HeaderMap = headers
            .iter()
            .map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()))
            .collect();
        rejection_reason(&headers, method, is_local).is_none()
    }

    #[test]
    fn a_page_of_another_site_is_not_answered_and_tools_are() {
        let here = ("host", "127.0.0.1:9090");
        assert!(asked("POST", &[here], true));
        assert!(asked("GET", &[here], true));
        assert!(!asked(
            "POST",
            &[here, ("origin", "https://evil.example")],
            true
        ));
        assert!(!asked("POST", &[here, ("origin", "null")], true));
        assert!(!asked(
            "GET",
            &[here, ("origin", "https://evil.example")],
            true
        ));
        assert!(!asked(
            "POST",
            &[here, ("sec-fetch-site", "cross-site")],
            true
        ));
        // An operator's own browser, at the address bar.
        assert!(asked("GET", &[here, ("sec-fetch-site", "none")], true));
    }

    #[test]
    fn a_name_that_resolves_here_for_a_while_is_not_answered() {
        for host in [
            "evil.example",
            "evil.example:9090",
            "127.0.0.1.evil.example.",
        ] {
            assert!(!asked("GET", &[("host", host)], true), "{host}");
        }
        for host in [
            "localhost:9090",
            "[::1]:9090",
            "127.0.0.1",
            "gateway:9090",
            "a.localhost",
        ] {
            assert!(asked("GET", &[("host", host)], true), "{host}");
        }
        // From another machine it is asked by whatever name it has there.
        assert!(asked("GET", &[("host", "gateway.internal:9090")], false));
        assert!(!asked(
            "POST",
            &[("host", "evil.example"), ("origin", "http://evil.example")],
            false
        ));
    }
}
