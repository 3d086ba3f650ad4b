//! Opening handshake (RFC 6455 section 4): checks of both heads.
//!
//! Framing, method and HTTP version are checked elsewhere. Header values come by a look-up of their lower-case names.

use super::sha1::sha1;

/// Appended to a client's key before it is hashed (section 1.3).
const ACCEPT_GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
/// Length of 16 bytes in base64.
const KEY_LENGTH: usize = 24;
/// Subprotocols that a client may offer: more are no choice.
const PROTOCOLS_MAX: usize = 32;
/// Subprotocol by which browsers hand over a key of the gateway: no server may see it.
const KEY_PROTOCOL: &[u8] = b"openai-insecure-api-key.";

/// Fault of a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandshakeFault {
    /// No WebSocket is asked for, or another version: 426 with the version that is spoken.
    NotOffered(&'static str),
    /// The handshake is broken: 400.
    Malformed(&'static str),
}

/// Values of one header of a head, in order.
pub type HeaderValues<'a> = Vec<&'a [u8]>;

/// Checks the head of a client's handshake.
///
/// # Errors
/// The first rule that it breaks.
pub fn check_request<'a>(
    values: impl Fn(&'static str) -> HeaderValues<'a>,
) -> Result<(), HandshakeFault> {
    if !has_token(&values("upgrade"), b"websocket") {
        let what = "a WebSocket is opened here: send `Upgrade: websocket`, or use POST";
        return Err(HandshakeFault::NotOffered(what));
    }
    if !has_token(&values("connection"), b"upgrade") {
        let what = "`Connection` does not name `Upgrade`";
        return Err(HandshakeFault::Malformed(what));
    }
    match values("sec-websocket-version")[..] {
        [b"13"] => {}
        [_] | [] => {
            let what = "`Sec-WebSocket-Version` is not 13";
            return Err(HandshakeFault::NotOffered(what));
        }
        _ => {
            let what = "more than one `Sec-WebSocket-Version`";
            return Err(HandshakeFault::Malformed(what));
        }
    }
    match values("sec-websocket-key")[..] {
        [key] if is_key(key) => {}
        _ => {
            let what = "`Sec-WebSocket-Key` is not 16 bytes in base64";
            return Err(HandshakeFault::Malformed(what));
        }
    }
    let protocols = values("sec-websocket-protocol");
    let all = tokens(&protocols).collect::<Vec<_>>();
    let is_list = all.len() <= PROTOCOLS_MAX && all.iter().all(|token| is_token(token));
    let is_unique = (1..all.len()).all(|at| !all[..at].contains(&all[at]));
    if !is_list || !is_unique {
        let what = "`Sec-WebSocket-Protocol` is no list of different tokens";
        return Err(HandshakeFault::Malformed(what));
    }
    Ok(())
}

/// Subprotocols that a server is offered: those of the client, without its key.
pub fn offered_protocols<'a>(values: &[&'a [u8]]) -> Vec<&'a [u8]> {
    let mut offered = tokens(values).collect::<Vec<_>>();
    offered.retain(|token| !is_key_protocol(token));
    offered
}

fn is_key_protocol(token: &[u8]) -> bool {
    let start = token.get(..KEY_PROTOCOL.len());
    start.is_some_and(|start| start.eq_ignore_ascii_case(KEY_PROTOCOL))
}

/// Checks the head of a server's 101 to a request with this key and these subprotocols.
///
/// # Errors
/// The rule that it breaks, for operators.
pub fn check_answer<'a>(
    values: impl Fn(&'static str) -> HeaderValues<'a>,
    key: &[u8],
    offered: &[&[u8]],
) -> Result<(), &'static str> {
    if !has_token(&values("upgrade"), b"websocket") {
        return Err("its 101 does not say `Upgrade: websocket`");
    }
    if !has_token(&values("connection"), b"upgrade") {
        return Err("its 101 does not say `Connection: Upgrade`");
    }
    match values("sec-websocket-accept")[..] {
        [accept] if accept == accept_for(key).as_bytes() => {}
        _ => return Err("its `Sec-WebSocket-Accept` does not fit the key"),
    }
    if values("sec-websocket-extensions")
        .iter()
        .any(|it| !it.is_empty())
    {
        return Err("its 101 has an extension that nobody offered");
    }
    match values("sec-websocket-protocol")[..] {
        [] => Ok(()),
        [chosen] if offered.contains(&chosen) => Ok(()),
        _ => Err("its 101 has a subprotocol that nobody offered"),
    }
}

/// Returns the accept value for a key.
pub fn accept_for(key: &[u8]) -> String {
    base64(&sha1(&[key, ACCEPT_GUID].concat()))
}

/// Returns whether it is base64 of 16 bytes, in its only form.
fn is_key(key: &[u8]) -> bool {
    let is_digit = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/');
    // The last digit stands for two bits of the key and four zeros.
    let last = key.get(KEY_LENGTH - 3);
    key.len() == KEY_LENGTH
        && key.ends_with(b"==")
        && key[..KEY_LENGTH - 2].iter().all(is_digit)
        && matches!(last, Some(b'A' | b'Q' | b'g' | b'w'))
}

fn has_token(values: &[&[u8]], wanted: &[u8]) -> bool {
    tokens(values).any(|token| token.eq_ignore_ascii_case(wanted))
}

/// Elements of a list in one or several lines; empty ones, which RFC 9110 has recipients ignore, are left out.
fn tokens<'a>(values: &[&'a [u8]]) -> impl Iterator<Item = &'a [u8]> {
    let lines = values
        .iter()
        .flat_map(|line| line.split(|byte| *byte == b','));
    lines
        .map(<[u8]>::trim_ascii)
        .filter(|token| !token.is_empty())
}

fn is_token(text: &[u8]) -> bool {
    let is_mark = |byte: &u8| b"!#$%&'*+-.^_`|~".contains(byte);
    text.iter()
        .all(|byte| byte.is_ascii_alphanumeric() || is_mark(byte))
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for group in bytes.chunks(3) {
        let at = |at: usize| u32::from(group.get(at).copied().unwrap_or(0));
        let bits = at(0) << 16 | at(1) << 8 | at(2);
        for digit in 0..4 {
            let character = DIGITS[(bits >> (18 - 6 * digit)) as usize & 63];
            text.push(match digit <= group.len() {
                true => char::from(character),
                false => '=',
            });
        }
    }
    text
}
