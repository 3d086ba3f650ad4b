//! Credentials that the operator adds to every request to one model server: its key, in the form
//! the server takes, and headers of the endpoint.
//!
//! Built once for each endpoint and copied into each head. Secret: no print and no comparison of it
//! leaves this process.

use std::fmt::Write;

use bytes::BytesMut;
use http::header::HeaderName;
use infergate_core::model::{AuthForm, EndpointSpec};

/// Header of the key under `auth: api-key`.
pub const API_KEY_HEADER: &str = "api-key";

/// Headers and query parameter of one endpoint, in wire form.
#[derive(Default, PartialEq, Eq)]
pub struct EndpointCredentials {
    /// Header lines, each ending in CRLF.
    lines: String,
    /// `name=value`, for behind the path.
    query: Option<String>,
    /// Names of the headers that replace those of the client; the key's is one a client's request
    /// never carries.
    replaced: Vec<HeaderName>,
}

impl EndpointCredentials {
    /// Builds those of an endpoint; invalid header names are left out, since the configuration has
    /// refused them.
    pub fn from_spec(spec: &EndpointSpec) -> EndpointCredentials {
        let mut credentials = EndpointCredentials::default();
        for (name, value) in &spec.headers {
            if let Ok(name) = HeaderName::from_bytes(name.as_bytes()) {
                credentials.add(name.as_str(), value.reveal());
                credentials.replaced.push(name);
            }
        }
        let Some(key) = spec.api_key.as_ref().map(|key| key.reveal()) else {
            return credentials;
        };
        let name = spec.auth_name.as_deref().unwrap_or_default();
        match spec.auth {
            AuthForm::Bearer => credentials.add("authorization", &format!("Bearer {key}")),
            AuthForm::ApiKey => credentials.add(API_KEY_HEADER, key),
            AuthForm::Header => {
                if let Ok(name) = HeaderName::from_bytes(name.as_bytes()) {
                    credentials.add(name.as_str(), key);
                    credentials.replaced.push(name);
                }
            }
            AuthForm::Query => credentials.query = Some(format!("{name}={}", escaped(key))),
        }
        credentials
    }

    /// Writes `path` with the query parameter, where there is one.
    pub fn write_path(&self, path: &str, out: &mut BytesMut) {
        out.extend_from_slice(path.as_bytes());
        if let Some(query) = &self.query {
            out.extend_from_slice(if path.contains('?') { b"&" } else { b"?" });
            out.extend_from_slice(query.as_bytes());
        }
    }

    /// Header lines, each ending in CRLF.
    pub fn lines(&self) -> &[u8] {
        self.lines.as_bytes()
    }

    /// Returns whether a client's header lines have to be looked through.
    pub fn replaces_any(&self) -> bool {
        !self.replaced.is_empty()
    }

    /// Returns whether a header line in wire form gives way to one of the endpoint's own.
    pub fn replaces(&self, line: &[u8]) -> bool {
        let end = line.iter().position(|&byte| byte == b':').unwrap_or(0);
        let is_same =
            |name: &HeaderName| line[..end].eq_ignore_ascii_case(name.as_str().as_bytes());
        self.replaced.iter().any(is_same)
    }

    fn add(&mut self, name: &str, value: &str) {
        for part in [name, ": ", value, "\r\n"] {
            self.lines.push_str(part);
        }
    }
}

/// A key as the value of a query parameter: all but unreserved characters as `%XX`
/// (<https://datatracker.ietf.org/doc/html/rfc3986#section-2.3>).
fn escaped(key: &str) -> String {
    let mut text = String::with_capacity(key.len());
    for byte in key.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                text.push(byte.into());
            }
            byte => write!(text, "%{byte:02X}").expect("writing to a text cannot fail"),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(auth: AuthForm, name: Option<&str>) -> EndpointSpec {
        EndpointSpec {
            api_key: Some("k/1 =".into()),
            auth,
            auth_name: name.map(Into::into),
            ..EndpointSpec::default()
        }
    }

    fn written(spec: &EndpointSpec, path: &str) -> (String, String) {
        let credentials = EndpointCredentials::from_spec(spec);
        let mut bytes = BytesMut::new();
        credentials.write_path(path, &mut bytes);
        let path = String::from_utf8(bytes.to_vec()).unwrap();
        (path, credentials.lines.clone())
    }

    #[test]
    fn a_key_is_sent_in_the_form_that_is_configured() {
        for (auth, name, path, line) in [
            (
                AuthForm::Bearer,
                None,
                "/v1",
                "authorization: Bearer k/1 =\r\n",
            ),
            (AuthForm::ApiKey, None, "/v1", "api-key: k/1 =\r\n"),
            (AuthForm::Header, Some("X-Key"), "/v1", "x-key: k/1 =\r\n"),
            (AuthForm::Query, Some("key"), "/v1?key=k%2F1%20%3D", ""),
        ] {
            let found = written(&spec(auth, name), "/v1");
            assert_eq!(found, (path.to_owned(), line.to_owned()));
        }
        let (path, _) = written(&spec(AuthForm::Query, Some("key")), "/run?a=1");
        assert_eq!(path, "/run?a=1&key=k%2F1%20%3D");
    }

    #[test]
    fn an_endpoints_header_replaces_a_clients_of_that_name() {
        let mut spec = spec(AuthForm::Bearer, None);
        spec.headers = [("User-Agent".into(), "gateway".into())].into();
        let credentials = EndpointCredentials::from_spec(&spec);
        assert!(credentials.replaces(b"USER-AGENT: curl\r\n"));
        assert!(!credentials.replaces(b"accept: */*\r\n"));
        assert_eq!(
            credentials.lines,
            "user-agent: gateway\r\nauthorization: Bearer k/1 =\r\n"
        );
    }
}
