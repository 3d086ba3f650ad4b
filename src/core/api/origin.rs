//! Web origins: which pages of browsers may call, by the `Origin` that a browser puts on their requests.
//!
//! Headers are written by the shell. Comparison is by bytes, in lower case, as browsers serialize
//! origins. Specifications: <https://www.rfc-editor.org/rfc/rfc6454>, <https://fetch.spec.whatwg.org/#http-cors-protocol>.

/// Every origin.
const ANY: &str = "*";
/// Ports that an origin of that scheme does not name.
const DEFAULT_PORTS: [(&str, &str); 2] = [("http", "80"), ("https", "443")];

/// Relation of a request to the page that makes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OriginRelation {
    /// The page comes from the host that the request goes to.
    Same,
    /// The operator lists the page's origin.
    Listed,
    /// Any other page, and one that keeps its origin back (`null`).
    Foreign,
}

/// Returns how a request with these `Origin` and `Host` headers stands to the origins in `listed`.
pub fn relation(origin: &[u8], host: &[u8], listed: &[String]) -> OriginRelation {
    let is_listed = |entry: &String| entry == ANY || entry.as_bytes() == origin;
    match listed.iter().any(is_listed) {
        true => OriginRelation::Listed,
        false if is_same_host(origin, host) => OriginRelation::Same,
        false => OriginRelation::Foreign,
    }
}

/// Returns whether `listed` has the wildcard for every origin.
pub fn is_any_listed(listed: &[String]) -> bool {
    listed.iter().any(|entry| entry == ANY)
}

/// Returns whether `origin` is of the host and port in `host`. The scheme is not compared: TLS may end
/// before this gateway.
fn is_same_host(origin: &[u8], host: &[u8]) -> bool {
    let parts = std::str::from_utf8(origin)
        .ok()
        .and_then(|origin| origin.split_once("://"));
    let (Some((scheme, authority)), Ok(host)) = (parts, std::str::from_utf8(host)) else {
        return false;
    };
    let known = DEFAULT_PORTS.iter().find(|(known, _)| *known == scheme);
    let without_port = |authority: &str| {
        let default = known.and_then(|(_, port)| authority.strip_suffix(port)?.strip_suffix(':'));
        default.unwrap_or(authority).to_ascii_lowercase()
    };
    without_port(authority) == without_port(host)
}

/// Reason for which `entry` cannot be listed: it is neither `*` nor `scheme://host[:port]` as browsers
/// write it. None when it can.
pub fn fault(entry: &str) -> Option<String> {
    if entry == ANY {
        return None;
    }
    let Some((scheme, authority)) = entry.split_once("://") else {
        return Some(format!(
            "{entry:?} is not an origin: write scheme://host[:port], or \"*\" for every one"
        ));
    };
    if let Some(at) = authority.find(['/', '?', '#', '@']) {
        return Some(match &authority[at..] {
            "/" => format!("{entry:?} ends in a slash, which no `Origin` header does: remove it"),
            _ => format!(
                "{entry:?} has more than scheme://host[:port]: an origin has no path and no user"
            ),
        });
    }
    let lower = entry.to_ascii_lowercase();
    if entry != lower {
        return Some(format!(
            "{entry:?} has capitals, which no `Origin` header has: write {lower:?}"
        ));
    }
    let is_scheme = scheme.starts_with(|first: char| first.is_ascii_lowercase())
        && scheme
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte));
    let (name, port) = match authority.rsplit_once(':') {
        Some((name, port)) if !port.ends_with(']') => (name, Some(port)),
        _ => (authority, None),
    };
    let is_port = |text: &str| text.parse().is_ok_and(|port: u16| port.to_string() == text);
    let is_name = match name.strip_prefix('[') {
        Some(literal) => literal.strip_suffix(']').is_some_and(|inner| {
            inner
                .bytes()
                .all(|b| b.is_ascii_hexdigit() || b":.".contains(&b))
        }),
        None => {
            !name.is_empty()
                && name
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || b"-._~%".contains(&byte))
        }
    };
    if !is_scheme || !is_name || !port.is_none_or(is_port) {
        return Some(format!("{entry:?} is not scheme://host[:port]"));
    }
    let default = DEFAULT_PORTS.iter().find(|(known, _)| *known == scheme);
    if let (Some(port), Some((_, usual))) = (port, default)
        && port == *usual
    {
        return Some(format!(
            "browsers leave out the port {port} of {scheme}: write \"{scheme}://{name}\""
        ));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_of_the_same_host_is_not_foreign_and_one_without_an_origin_is() {
        let relation = |origin: &str, host: &str| relation(origin.as_bytes(), host.as_bytes(), &[]);
        for (origin, host) in [
            ("http://localhost:8080", "localhost:8080"),
            ("http://Example.com", "example.com:80"),
            ("https://example.com", "example.com"),
            ("https://example.com:443", "example.com"),
            ("http://[::1]:8080", "[::1]:8080"),
        ] {
            assert_eq!(
                relation(origin, host),
                OriginRelation::Same,
                "{origin} {host}"
            );
        }
        for (origin, host) in [
            ("http://evil.example", "localhost:8080"),
            ("http://localhost:3000", "localhost:8080"),
            ("http://localhost", "localhost:8080"),
            ("https://example.com", "example.com:80"),
            ("http://localhost:8080.evil.example", "localhost:8080"),
            ("null", "null"),
            ("", ""),
        ] {
            assert_eq!(
                relation(origin, host),
                OriginRelation::Foreign,
                "{origin} {host}"
            );
        }
    }

    #[test]
    fn listed_origins_are_compared_whole() {
        let listed = ["https://app.example.com".to_owned()];
        let relation = |origin: &str, listed: &[String]| relation(origin.as_bytes(), b"h", listed);
        assert_eq!(
            relation("https://app.example.com", &listed),
            OriginRelation::Listed
        );
        for other in [
            "http://app.example.com",
            "https://app.example.com:8443",
            "https://app.example.com.evil.example",
            "https://evil.example",
            "null",
        ] {
            assert_eq!(relation(other, &listed), OriginRelation::Foreign, "{other}");
            assert_eq!(relation(other, &["*".to_owned()]), OriginRelation::Listed);
        }
    }

    #[test]
    fn what_no_browser_sends_cannot_be_listed() {
        for good in [
            "*",
            "https://app.example.com",
            "http://localhost:3000",
            "http://[::1]:3000",
            "chrome-extension://abcdef",
        ] {
            assert_eq!(fault(good), None, "{good}");
        }
        for bad in [
            "",
            "null",
            "app.example.com",
            "https://",
            "https://app.example.com/",
            "https://app.example.com/x",
            "https://user@app.example.com",
            "https://App.example.com",
            "https://app.example.com:443",
            "http://a:80",
            "http://a:0080",
            "http://a:b",
            "http://a:",
            "http://*.example.com",
            "http://a b",
            "://a",
        ] {
            assert!(fault(bad).is_some(), "{bad}");
        }
    }
}
