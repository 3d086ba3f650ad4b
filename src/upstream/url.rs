//! Validation of the base URL of a model server, and of a host with a port.
//!
//! No name is resolved, no connection made. The configuration's endpoints come through here, and those
//! that are found.

use std::net::SocketAddr;

use infergate_core::model::{UNIX_PATH_BYTES_MAX, UNIX_SCHEME, unix_socket_of};

use crate::tls::is_server_name;

const HTTPS_PORT: u16 = 443;

/// Checks that `url` is `http://host:port[/prefix]` or `https://host[:port][/prefix]`.
///
/// # Errors
/// Names the fault and the expected form, for the operator.
pub fn check_url(url: &str) -> Result<(), &'static str> {
    const EXPECTED: &str =
        "expected http://host:port or https://host, with a path prefix if need be";
    let over_tls = url.strip_prefix("https://");
    let rest = over_tls.or(url.strip_prefix("http://")).ok_or(EXPECTED)?;
    let (authority, prefix) = match rest.find(['/', '?', '#']) {
        Some(at) => rest.split_at(at),
        None => (rest, ""),
    };
    if prefix.contains(['?', '#']) {
        return Err("an endpoint has no query and no fragment: expected http://host:port[/prefix]");
    }
    if authority.contains('@') {
        return Err(
            "credentials do not belong in the URL: use `api_key`, expected http://host:port",
        );
    }
    let parted = authority.rsplit_once(':');
    let (host, port) = match parted.filter(|(_, port)| !port.ends_with(']')) {
        Some((host, port)) => (host, port.parse::<u16>().unwrap_or(0)),
        None if over_tls.is_some() => (authority, HTTPS_PORT),
        None => return Err("the port is missing: expected http://host:port"),
    };
    if port == 0 {
        return Err("the port must be a number from 1 to 65535: expected http://host:port");
    }
    let bracketed = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    let host_fits = match bracketed {
        Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
        None => is_plain_host(host),
    };
    if !host_fits || !prefix.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(EXPECTED);
    }
    if over_tls.is_some() && !is_server_name(bracketed.unwrap_or(host)) {
        return Err("no certificate can be for this host: expected a DNS name or an IP address");
    }
    Ok(())
}

/// Checks the URL of an endpoint that the operator wrote: as [`check_url`], or `unix:/path[:/prefix]`. Discovery may
/// name no socket of this host.
///
/// # Errors
/// Names the fault and the expected form, for the operator.
pub fn check_endpoint_url(url: &str) -> Result<(), &'static str> {
    let Some((path, prefix)) = unix_socket_of(url) else {
        return check_url(url);
    };
    if !path.starts_with('/') || path.len() > UNIX_PATH_BYTES_MAX || path.contains('\0') {
        return Err(
            "expected `unix:` and the absolute path of a socket, of at most 107 bytes without a colon",
        );
    }
    if path.ends_with('/') {
        return Err("the path of a socket is that of a file: expected unix:/run/model.sock");
    }
    if prefix.contains(['?', '#']) {
        return Err("an endpoint has no query and no fragment: expected unix:/path:/prefix");
    }
    let is_prefix = prefix.starts_with('/') && prefix.bytes().all(|byte| byte.is_ascii_graphic());
    if url.len() > UNIX_SCHEME.len() + path.len() && !is_prefix {
        return Err("behind the path of a socket only a path prefix: expected unix:/path:/prefix");
    }
    Ok(())
}

/// Checks that `text` is `host:port`, the host a name.
///
/// # Errors
/// Names the fault and the expected form, for the operator.
pub fn check_host_and_port(text: &str) -> Result<(), &'static str> {
    const EXPECTED: &str = "expected host:port, such as gpu.internal:9001";
    let (host, port) = text
        .rsplit_once(':')
        .ok_or("the port is missing: expected host:port, such as gpu.internal:9001")?;
    if !is_plain_host(host) {
        return Err(EXPECTED);
    }
    match port.parse::<u16>() {
        Ok(1..) => Ok(()),
        _ => Err("the port must be a number from 1 to 65535: expected host:port"),
    }
}

/// Checks that `text` is `host:port`, the host a name or an IP address.
///
/// # Errors
/// As [`check_host_and_port`].
pub fn check_address(text: &str) -> Result<(), &'static str> {
    match text.parse::<SocketAddr>() {
        Ok(address) if address.port() > 0 => Ok(()),
        _ => check_host_and_port(text),
    }
}

fn is_plain_host(host: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    !host.is_empty() && host.bytes().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_may_be_a_socket_of_this_host_and_what_is_found_may_not() {
        let long = format!("unix:/{}", "x".repeat(UNIX_PATH_BYTES_MAX));
        for good in [
            "unix:/a",
            "unix:/run/m.sock:/v1",
            &long[..long.len() - 1],
            "http://h:1",
        ] {
            assert_eq!(check_endpoint_url(good), Ok(()), "{good}");
        }
        for bad in [
            "unix:a",
            "unix:",
            "unix://a/",
            "unix:/a/",
            "unix:/a:",
            "unix:/a:b",
            "unix:/a:/b c",
            "unix:/a:/b?c",
            &long,
        ] {
            assert!(check_endpoint_url(bad).is_err(), "{bad}");
        }
        assert!(check_url("unix:/a").is_err());
    }

    #[test]
    fn a_name_with_a_port_is_one_and_nothing_else_is() {
        for good in ["gpu.internal:9001", "localhost:1", "a_b-c:65535"] {
            assert_eq!(check_host_and_port(good), Ok(()), "{good}");
        }
        for bad in [
            "gpu",
            "gpu:",
            "gpu:0",
            "gpu:65536",
            ":1",
            "[::1]:1",
            "http://h:1",
            "h:1/x",
        ] {
            assert!(check_host_and_port(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_address_may_be_of_either_family() {
        for good in ["[::1]:1", "10.0.0.1:1", "gpu:1"] {
            assert_eq!(check_address(good), Ok(()), "{good}");
        }
        for bad in ["[::1]:0", "10.0.0.1:0", "::1", "[::1]", "gpu"] {
            assert!(check_address(bad).is_err(), "{bad}");
        }
    }
}
