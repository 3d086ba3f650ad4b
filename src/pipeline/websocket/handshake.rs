//! Opening handshake: what a client must send, what its server is sent, and what comes back.
//!
//! The rules are the core's. The client's own key goes to the server, so that nothing has to be kept for the answer.

use infergate_core::Refusal;
use infergate_core::websocket::{
    HandshakeFault, check_answer as check_head, check_request as check, offered_protocols,
};

use crate::http1::{Fields, framing};
use crate::pipeline::downstream::RequestHead;
use crate::state::header_filter::PassedHeaders;

const KEY: &str = "sec-websocket-key";
const PROTOCOL: &str = "sec-websocket-protocol";

/// Checks the handshake of a client, whose head is well-framed.
///
/// # Errors
/// [`Refusal::UpgradeRequired`], [`Refusal::BadFraming`].
pub fn check_request(head: RequestHead<'_>) -> Result<(), Refusal> {
    let headers = head.headers;
    check(|name| headers.get_all(name).collect()).map_err(|fault| match fault {
        HandshakeFault::NotOffered(what) => Refusal::UpgradeRequired(what),
        HandshakeFault::Malformed(what) => Refusal::BadFraming(what),
    })?;
    let length = headers.get("content-length").map(framing::digits);
    if headers.contains("transfer-encoding") || length.is_some_and(|length| length != Some(0)) {
        return Err(Refusal::BadFraming("a handshake has no body"));
    }
    Ok(())
}

/// Adds the lines of the handshake to those that pass to the server. Extensions are left out: frames with reserved bits
/// could not be checked.
pub fn server_lines(headers: &Fields, passed: &PassedHeaders) -> PassedHeaders {
    let mut lines = vec![
        ("connection", "Upgrade"),
        ("upgrade", "websocket"),
        ("sec-websocket-version", "13"),
    ];
    if let Some(key) = headers.text_of(KEY) {
        lines.push((KEY, key));
    }
    let values: Vec<_> = headers.get_all(PROTOCOL).collect();
    let offered = offered_protocols(&values).join(&b", "[..]);
    // Tokens are ASCII.
    let offered = String::from_utf8(offered).unwrap_or_default();
    if !offered.is_empty() {
        lines.push((PROTOCOL, offered.as_str()));
    }
    passed.with_lines(&lines)
}

/// Checks a server's 101 to the handshake in `request`.
///
/// # Errors
/// The rule that it breaks, for operators.
pub fn check_answer(request: &Fields, answer: &Fields) -> Result<(), &'static str> {
    let values: Vec<_> = request.get_all(PROTOCOL).collect();
    let offered = offered_protocols(&values);
    let key = request.get(KEY).unwrap_or_default();
    check_head(|name| answer.get_all(name).collect(), key, &offered)
}
