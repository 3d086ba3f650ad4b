//! The PROXY protocol: a balancer's word on where a connection comes from, before its first byte.
//!
//! Read byte by byte as far as it goes, so that nothing of the client's own bytes is taken. Versions 1 and 2.
//! Specification: <https://www.haproxy.org/download/2.9/doc/proxy-protocol.txt>.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use tokio::io::{AsyncRead, AsyncReadExt};

/// First bytes of version 2.
const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";
/// Longest line of version 1, with its end.
const LINE_BYTES_MAX: usize = 107;
/// Longest rest of a header of version 2: addresses and what balancers add to them.
const REST_BYTES_MAX: usize = 4096;

/// Reads a header; none for a connection of the balancer itself, or of a kind without addresses.
///
/// # Errors
/// No header, or one that is malformed.
pub async fn read(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<IpAddr>> {
    let mut begin = [0; 12];
    stream.read_exact(&mut begin).await?;
    if begin == SIGNATURE {
        return read_binary(stream).await;
    }
    if !begin.starts_with(b"PROXY ") {
        return Err(malformed(
            "the connection does not begin with a header of the PROXY protocol",
        ));
    }
    let mut line = begin.to_vec();
    while !line.ends_with(b"\r\n") {
        if line.len() >= LINE_BYTES_MAX {
            return Err(malformed("the line of the PROXY protocol is too long"));
        }
        line.push(stream.read_u8().await?);
    }
    parse_line(&line).ok_or_else(|| malformed("the line of the PROXY protocol is malformed"))
}

async fn read_binary(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<IpAddr>> {
    let mut head = [0; 4];
    stream.read_exact(&mut head).await?;
    let [version, family, high, low] = head;
    let length = usize::from(u16::from_be_bytes([high, low]));
    if length > REST_BYTES_MAX {
        return Err(malformed("the header of the PROXY protocol is too long"));
    }
    let mut rest = vec![0; length];
    stream.read_exact(&mut rest).await?;
    parse_binary(version, family, &rest)
        .ok_or_else(|| malformed("the header of the PROXY protocol is malformed"))
}

/// Returns the source address of a line of version 1 (section 2.1); none inside where it is not told.
fn parse_line(line: &[u8]) -> Option<Option<IpAddr>> {
    let line = std::str::from_utf8(line).ok()?.strip_suffix("\r\n")?;
    let mut words = line.strip_prefix("PROXY ")?.split(' ');
    let family = words.next()?;
    if family == "UNKNOWN" {
        return Some(None);
    }
    let [source, destination] = [words.next()?, words.next()?];
    let ports = [words.next()?, words.next()?];
    let are_ports = ports.iter().all(|port| port.parse::<u16>().is_ok());
    let parse = |text: &str| match family {
        "TCP4" => text.parse::<Ipv4Addr>().ok().map(IpAddr::V4),
        "TCP6" => text.parse::<Ipv6Addr>().ok().map(IpAddr::V6),
        _ => None,
    };
    parse(destination)?;
    let source = parse(source)?;
    (are_ports && words.next().is_none()).then_some(Some(source))
}

/// Returns the source address of a header of version 2 (section 2.2), likewise.
fn parse_binary(version: u8, family: u8, rest: &[u8]) -> Option<Option<IpAddr>> {
    match version {
        // LOCAL: the balancer's own, such as a health check.
        0x20 => return Some(None),
        0x21 => {}
        _ => return None,
    }
    // Address family and transport. Datagrams are not connections, and other values are invalid.
    match family {
        // Neither is told: as if it were LOCAL.
        0x00 => Some(None),
        // TCP over IPv4.
        0x11 => {
            let source: [u8; 4] = rest.get(..12)?[..4].try_into().ok()?;
            Some(Some(IpAddr::from(source)))
        }
        // TCP over IPv6.
        0x21 => {
            let source: [u8; 16] = rest.get(..36)?[..16].try_into().ok()?;
            Some(Some(IpAddr::from(source)))
        }
        // A stream of AF_UNIX: two paths, nothing that a limit could count by.
        0x31 => rest.get(..216).map(|_| None),
        _ => None,
    }
}

fn malformed(fault: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, fault)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    async fn read_whole(text: &[u8]) -> (io::Result<Option<IpAddr>>, Vec<u8>) {
        let mut stream = text;
        let read = read(&mut stream).await;
        (read, stream.to_vec())
    }

    fn binary(version: u8, family: u8, rest: &[u8]) -> Vec<u8> {
        let mut header = SIGNATURE.to_vec();
        header.extend([version, family]);
        header.extend((rest.len() as u16).to_be_bytes());
        header.extend(rest);
        header
    }

    #[tokio::test]
    async fn both_versions_name_the_client_and_leave_its_bytes() {
        let v4 = [[203, 0, 113, 7], [10, 0, 0, 1], [1, 2, 3, 4]].concat();
        let mut v6 = Ipv6Addr::LOCALHOST.octets().to_vec();
        v6.extend([0; 20]);
        v6.extend(b"tlv");
        let client = "203.0.113.7".parse().ok();
        for (header, expected) in [
            (b"PROXY TCP4 203.0.113.7 10.0.0.1 1 2\r\n".to_vec(), client),
            (
                b"PROXY TCP6 ::1 ::2 65535 2\r\n".to_vec(),
                "::1".parse().ok(),
            ),
            (b"PROXY UNKNOWN\r\n".to_vec(), None),
            (b"PROXY UNKNOWN whatever\r\n".to_vec(), None),
            (binary(0x21, 0x11, &v4), client),
            (binary(0x21, 0x21, &v6), "::1".parse().ok()),
            (binary(0x20, 0x00, b""), None),
            // Whatever LOCAL says of the family.
            (binary(0x20, 0x12, &v4), None),
            (binary(0x21, 0x00, b""), None),
            (binary(0x21, 0x00, &v4), None),
            (binary(0x21, 0x31, &[0; 216]), None),
        ] {
            let mut text = header;
            text.extend(b"GET /");
            let (read, left) = read_whole(&text).await;
            assert_eq!(read.unwrap(), expected);
            assert_eq!(left, b"GET /");
        }
    }

    #[tokio::test]
    async fn what_is_no_header_is_refused() {
        for text in [
            &b"GET / HTTP/1.1\r\n\r\n"[..],
            b"PROXY TCP4 203.0.113.7 10.0.0.1 1 65536\r\n",
            b"PROXY TCP4 ::1 ::1 1 2\r\n",
            b"PROXY TCP4 203.0.113.7 10.0.0.1 1 2 3\r\n",
            b"PROXY UDP4 203.0.113.7 10.0.0.1 1 2\r\n",
            &binary(0x11, 0x11, &[0; 12]),
            &binary(0x21, 0x11, &[0; 11]),
            &binary(0x21, 0x41, &[0; 12]),
            // Datagrams, no transport, an unknown one, and paths that are cut.
            &binary(0x21, 0x12, &[0; 12]),
            &binary(0x21, 0x22, &[0; 36]),
            &binary(0x21, 0x32, &[0; 216]),
            &binary(0x21, 0x10, &[0; 12]),
            &binary(0x21, 0x01, &[0; 12]),
            &binary(0x21, 0x13, &[0; 12]),
            &binary(0x21, 0x31, &[0; 215]),
            &[&b"PROXY TCP4 "[..], &[b'1'; 200]].concat(),
        ] {
            assert!(read_whole(text).await.0.is_err(), "{text:?}");
        }
        let mut long = SIGNATURE.to_vec();
        long.extend([0x21, 0x11, 0xff, 0xff]);
        assert!(read_whole(&long).await.0.is_err());
    }

    proptest! {
        #[test]
        fn no_bytes_do_harm(rest in proptest::collection::vec(any::<u8>(), 0..64), version: u8, family: u8) {
            let _ = parse_binary(version, family, &rest);
            let _ = parse_line(&rest);
        }
    }
}
