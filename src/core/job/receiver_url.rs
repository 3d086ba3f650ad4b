//! URL of a webhook's receiver: parsed at submit, more strictly than browsers do.
//!
//! Not a general URL parser, and no resolver: what two parsers may read differently is refused, and a name is judged
//! when it is resolved. Addresses are taken in every notation of <https://url.spec.whatwg.org/#concept-ipv4-parser>
//! and judged at once. O(length), at most [`URL_BYTES_MAX`].

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::fmt;
use std::sync::Arc;

use super::forbidden_address::{ForbiddenAddress, ReceiverRules};

/// Longest URL, bytes.
pub const URL_BYTES_MAX: usize = 2048;

/// Longest name of a host, bytes, and its longest label: RFC 1035, section 2.3.4.
const NAME_BYTES_MAX: usize = 253;
const LABEL_BYTES_MAX: usize = 63;

/// Reason why a URL is refused; its text is meant for the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReceiverUrlError {
    /// Longer than [`URL_BYTES_MAX`].
    #[error("the webhook must have at most 2048 bytes")]
    TooLong,
    /// Blanks, control characters, backslashes, or characters outside of ASCII.
    #[error("the webhook must be ASCII without blanks, control characters and backslashes")]
    Character,
    /// Neither `https://` nor, where it is allowed, `http://`.
    #[error("the webhook must begin with https://")]
    Scheme,
    /// User or password before the host.
    #[error("the webhook must not name a user or password")]
    UserInfo,
    /// No host, or none that is a name or an address.
    #[error("the host of the webhook is not valid")]
    Host,
    /// Not a number, or a port that no receiver may have.
    #[error("the port of the webhook is not allowed")]
    Port,
    /// An address that no receiver may have.
    #[error("the webhook is not allowed: {0}")]
    Address(#[from] ForbiddenAddress),
}

/// Scheme of a receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReceiverScheme {
    /// Without TLS, port 80.
    Http,
    /// With TLS, port 443.
    Https,
}

impl ReceiverScheme {
    /// Name in lower case.
    pub const fn as_str(self) -> &'static str {
        match self {
            ReceiverScheme::Http => "http",
            ReceiverScheme::Https => "https",
        }
    }

    const fn default_port(self) -> u16 {
        match self {
            ReceiverScheme::Http => 80,
            ReceiverScheme::Https => 443,
        }
    }
}

impl fmt::Display for ReceiverScheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Parsed URL of a receiver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceiverUrl {
    scheme: ReceiverScheme,
    host: String,
    port: u16,
    path_and_query: String,
    literal: Option<IpAddr>,
    receiver_key: Arc<str>,
}

impl ReceiverUrl {
    /// Parses `text`. A fragment is dropped: no client sends it.
    ///
    /// # Errors
    /// [`ReceiverUrlError`], also for a literal address that `rules` forbid.
    pub fn parse(text: &str, rules: &ReceiverRules) -> Result<ReceiverUrl, ReceiverUrlError> {
        if text.len() > URL_BYTES_MAX {
            return Err(ReceiverUrlError::TooLong);
        }
        let is_taken = |byte: u8| byte.is_ascii_graphic() && byte != b'\\';
        if !text.bytes().all(is_taken) {
            return Err(ReceiverUrlError::Character);
        }
        let (scheme, rest) = split_scheme(text, rules).ok_or(ReceiverUrlError::Scheme)?;
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        if authority.contains('@') {
            return Err(ReceiverUrlError::UserInfo);
        }
        let (host, port) = split_port(authority)?;
        let port = port.unwrap_or(scheme.default_port());
        let host = Host::parse(host).ok_or(ReceiverUrlError::Host)?;
        if !rules.ports.contains(&port) {
            return Err(ReceiverUrlError::Port);
        }
        let literal = host.literal();
        if let Some(address) = literal {
            rules.judge(address, port)?;
        }
        let host = host.to_string();
        Ok(ReceiverUrl {
            scheme,
            receiver_key: format!("{scheme}://{host}:{port}").into(),
            host,
            port,
            path_and_query: encode_path(path),
            literal,
        })
    }

    /// Scheme of the connection.
    pub fn scheme(&self) -> ReceiverScheme {
        self.scheme
    }

    /// Host as in the header `Host`: a name in lower case without a final dot, IPv4 as four decimal numbers, IPv6 in
    /// brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Port of the connection, named or the scheme's.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Target of the request, beginning with a slash.
    pub fn path_and_query(&self) -> &str {
        &self.path_and_query
    }

    /// Receiver for isolation: `scheme://host:port`. All notations of one host have one key.
    pub fn receiver_key(&self) -> &Arc<str> {
        &self.receiver_key
    }

    /// Address, where the host is one instead of a name.
    pub fn literal(&self) -> Option<IpAddr> {
        self.literal
    }
}

fn split_scheme<'a>(text: &'a str, rules: &ReceiverRules) -> Option<(ReceiverScheme, &'a str)> {
    let (scheme, rest) = text.split_once("://")?;
    if scheme.eq_ignore_ascii_case("https") {
        return Some((ReceiverScheme::Https, rest));
    }
    let is_http = scheme.eq_ignore_ascii_case("http") && rules.allow_http;
    is_http.then_some((ReceiverScheme::Http, rest))
}

/// Splits the port from the host; an empty port is none.
fn split_port(authority: &str) -> Result<(&str, Option<u16>), ReceiverUrlError> {
    let host_end = authority.rfind(']').map_or(0, |bracket| bracket + 1);
    let Some(colon) = authority[host_end..].find(':') else {
        return Ok((authority, None));
    };
    let (host, port) = authority.split_at(host_end + colon);
    let port = &port[1..];
    if port.is_empty() {
        return Ok((host, None));
    }
    let is_plain = port.len() <= 5 && port.bytes().all(|byte| byte.is_ascii_digit());
    let number = port.parse().ok().filter(|port| is_plain && *port != 0);
    let port = number.ok_or(ReceiverUrlError::Port)?;
    Ok((host, Some(port)))
}

/// Returns the target of the request, with the characters encoded that have no place in one:
/// <https://url.spec.whatwg.org/#path-percent-encode-set>.
fn encode_path(path: &str) -> String {
    let path = path.split('#').next().unwrap_or_default();
    let mut target = String::with_capacity(path.len() + 1);
    if !path.starts_with('/') {
        target.push('/');
    }
    for character in path.chars() {
        match character {
            '"' | '<' | '>' | '^' | '`' | '{' | '|' | '}' => {
                target.push_str(&format!("%{:02X}", u32::from(character)));
            }
            _ => target.push(character),
        }
    }
    target
}

/// Host in canonical form.
enum Host {
    Name(String),
    V4(Ipv4Addr),
    V6(Ipv6Addr),
}

impl Host {
    /// Parses a host in ASCII. Percent-encoded names and zones of IPv6 are refused with every other character that
    /// no name has. IPv4 mapped into IPv6 becomes IPv4.
    fn parse(text: &str) -> Option<Host> {
        if let Some(inner) = text.strip_prefix('[') {
            let address: Ipv6Addr = inner.strip_suffix(']')?.parse().ok()?;
            return Some(match address.to_ipv4_mapped() {
                Some(address) => Host::V4(address),
                None => Host::V6(address),
            });
        }
        let name = text.strip_suffix('.').unwrap_or(text);
        if is_numeric(name.rsplit('.').next().unwrap_or_default()) {
            return parse_v4(name).map(Host::V4);
        }
        is_name(name).then(|| Host::Name(name.to_ascii_lowercase()))
    }

    fn literal(&self) -> Option<IpAddr> {
        match *self {
            Host::Name(_) => None,
            Host::V4(address) => Some(address.into()),
            Host::V6(address) => Some(address.into()),
        }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Host::Name(name) => f.write_str(name),
            Host::V4(address) => write!(f, "{address}"),
            Host::V6(address) => write!(f, "[{address}]"),
        }
    }
}

/// Returns whether a host that ends in `label` is an address or nothing:
/// <https://url.spec.whatwg.org/#ends-in-a-number-checker>.
fn is_numeric(label: &str) -> bool {
    let is_decimal = !label.is_empty() && label.bytes().all(|byte| byte.is_ascii_digit());
    is_decimal || parse_part(label).is_some()
}

/// Returns the address of one to four numbers, the last of which fills the bytes that are left.
fn parse_v4(text: &str) -> Option<Ipv4Addr> {
    let mut parts = [0_u64; 4];
    let mut count = 0;
    for part in text.split('.') {
        *parts.get_mut(count)? = parse_part(part)?;
        count += 1;
    }
    let (last, bytes) = parts[..count].split_last()?;
    let mut bits = *last;
    if bits >= 1 << (8 * (4 - bytes.len())) {
        return None;
    }
    for (place, byte) in bytes.iter().enumerate() {
        let byte = u64::from(u8::try_from(*byte).ok()?);
        bits |= byte << (24 - 8 * place);
    }
    u32::try_from(bits).ok().map(Ipv4Addr::from_bits)
}

/// Returns a number in decimal, octal (`0…`) or hexadecimal (`0x…`) notation; beyond 64 bits it saturates, and no
/// address has room for it.
fn parse_part(text: &str) -> Option<u64> {
    let (digits, radix) = match text.as_bytes() {
        [] => return None,
        [b'0', b'x' | b'X', digits @ ..] => (digits, 16),
        [b'0', digits @ ..] => (digits, 8),
        digits => (digits, 10),
    };
    digits.iter().try_fold(0_u64, |number, digit| {
        let digit = char::from(*digit).to_digit(radix)?;
        let number = number.saturating_mul(u64::from(radix));
        Some(number.saturating_add(u64::from(digit)))
    })
}

/// Returns whether `name` is a name of DNS; underscores occur in those of containers.
fn is_name(name: &str) -> bool {
    let is_taken = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    let is_label = |label: &str| {
        (1..=LABEL_BYTES_MAX).contains(&label.len())
            && label.bytes().all(is_taken)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    name.len() <= NAME_BYTES_MAX && name.split('.').all(is_label)
}

#[cfg(test)]
#[path = "tests/receiver_url.rs"]
mod tests;
