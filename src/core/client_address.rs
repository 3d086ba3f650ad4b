//! Address of a client behind proxies: the one that trusted proxies tell in `x-forwarded-for`.
//!
//! Each proxy appends the address that it was reached from, so the field is read from its end. The first address that
//! is no trusted proxy's is the client's; anybody may have written what stands before it. Called for requests of
//! trusted proxies alone. O(hops × networks), of at most [`HOPS_MAX`] hops.

use core::net::{IpAddr, SocketAddr};

use crate::network::Network;

/// Entry of `trusted_proxies` for whoever connects over a socket in the file system.
pub const UNIX_SOCKETS: &str = "unix";

/// Proxies between a client and this node. Nobody has so many; more are a loop, or a forgery.
pub const HOPS_MAX: usize = 32;

/// Address of a client, as far as it is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientAddress {
    /// IP address; none over a socket in the file system, unless somebody who is trusted tells it.
    pub ip: Option<IpAddr>,
    /// The connection came over a socket in the file system.
    pub over_unix_socket: bool,
}

impl ClientAddress {
    /// A client of the network.
    pub fn of_network(ip: IpAddr) -> ClientAddress {
        ClientAddress {
            // Listeners of IPv6 show clients of IPv4 in the mapped form.
            ip: Some(ip.to_canonical()),
            over_unix_socket: false,
        }
    }

    /// A client over a socket in the file system.
    pub const UNIX_SOCKET: ClientAddress = ClientAddress {
        ip: None,
        over_unix_socket: true,
    };

    /// The same connection, with the address that somebody tells of its client.
    #[must_use]
    pub fn named(self, ip: IpAddr) -> ClientAddress {
        ClientAddress {
            ip: Some(ip.to_canonical()),
            ..self
        }
    }
}

/// Proxies that are believed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrustedProxies {
    networks: Vec<Network>,
    over_unix_sockets: bool,
}

/// Client of a request, by the word of a trusted proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForwardedFor {
    /// No word: the request is the proxy's own.
    Absent,
    /// The address nearest to this node that is no trusted proxy's; the farthest where all are.
    Client(IpAddr),
    /// An entry that had to be read is no address, or there are more than [`HOPS_MAX`].
    Malformed,
}

impl TrustedProxies {
    /// Reads `trusted_proxies`; none where it is empty. Entries that are no network are left out: the configuration was checked.
    pub fn parse<T: AsRef<str>>(entries: &[T]) -> Option<TrustedProxies> {
        if entries.is_empty() {
            return None;
        }
        let texts = || entries.iter().map(AsRef::as_ref);
        Some(TrustedProxies {
            networks: texts()
                .filter_map(|text| Network::parse(text).ok())
                .collect(),
            over_unix_sockets: texts().any(|text| text == UNIX_SOCKETS),
        })
    }

    /// Returns whether the other side of a connection is a trusted proxy.
    pub fn trusts(&self, other: ClientAddress) -> bool {
        match other.ip {
            Some(ip) => self.contains(ip),
            None => other.over_unix_socket && self.over_unix_sockets,
        }
    }

    /// Reads the lines of `x-forwarded-for`, in the order of the head.
    pub fn client_of<'a>(&self, lines: impl DoubleEndedIterator<Item = &'a [u8]>) -> ForwardedFor {
        let entries = lines
            .rev()
            .flat_map(|line| line.rsplit(|&byte| byte == b','));
        let mut farthest = ForwardedFor::Absent;
        for (hop, entry) in entries.enumerate() {
            let Some(address) = parse_entry(entry).filter(|_| hop < HOPS_MAX) else {
                return ForwardedFor::Malformed;
            };
            farthest = ForwardedFor::Client(address);
            if !self.contains(address) {
                break;
            }
        }
        farthest
    }

    fn contains(&self, address: IpAddr) -> bool {
        self.networks
            .iter()
            .any(|network| network.contains(address))
    }
}

/// Parses `203.0.113.7`, `2001:db8::7`, and either with a port, as some balancers write it.
fn parse_entry(entry: &[u8]) -> Option<IpAddr> {
    let text = core::str::from_utf8(entry.trim_ascii()).ok()?;
    let bare = text
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'));
    let address = match bare {
        Some(bare) => IpAddr::V6(bare.parse().ok()?),
        None => text.parse().ok().or_else(|| {
            let with_port: SocketAddr = text.parse().ok()?;
            Some(with_port.ip())
        })?,
    };
    Some(address.to_canonical())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn trusted() -> TrustedProxies {
        TrustedProxies::parse(&["10.0.0.0/8", "2001:db8::/32"]).unwrap()
    }

    fn read(lines: &[&str]) -> ForwardedFor {
        trusted().client_of(lines.iter().map(|line| line.as_bytes()))
    }

    fn client(text: &str) -> ForwardedFor {
        ForwardedFor::Client(text.parse().unwrap())
    }

    #[test]
    fn the_client_is_the_last_address_that_no_trusted_proxy_has() {
        for (lines, expected) in [
            (&["203.0.113.7"][..], "203.0.113.7"),
            (&["203.0.113.7, 10.1.2.3"], "203.0.113.7"),
            // What the client wrote itself changes nothing.
            (&["198.51.100.1, 203.0.113.7, 10.1.2.3"], "203.0.113.7"),
            (&["whatever, 203.0.113.7"], "203.0.113.7"),
            (&["198.51.100.1", "203.0.113.7,10.1.2.3"], "203.0.113.7"),
            (&["203.0.113.7", "10.1.2.3"], "203.0.113.7"),
            // All are trusted: the farthest.
            (&["10.0.0.1,10.0.0.2"], "10.0.0.1"),
            (&[" 203.0.113.7:4711 ,\t2001:db8::1"], "203.0.113.7"),
            (&["[2a00::7]:443, [2001:db8::1]"], "2a00::7"),
            (&["::ffff:203.0.113.7, ::ffff:10.0.0.9"], "203.0.113.7"),
        ] {
            assert_eq!(read(lines), client(expected), "{lines:?}");
        }
        assert_eq!(read(&[]), ForwardedFor::Absent);
    }

    #[test]
    fn an_entry_that_is_no_address_names_nobody() {
        for line in [
            "",
            "unknown",
            "203.0.113.7,",
            "203.0.113.7, unknown",
            "203.0.113.7, 10.0.0.1;proto=http",
            "[203.0.113.7]",
            "203.0.113.999",
            "fe80::1%eth0",
        ] {
            assert_eq!(read(&[line]), ForwardedFor::Malformed, "{line:?}");
        }
        let proxies = ["10.0.0.1"; HOPS_MAX - 1].join(",");
        assert_eq!(
            read(&[&format!("203.0.113.7,{proxies}")]),
            client("203.0.113.7")
        );
        assert_eq!(
            read(&[&format!("203.0.113.7,10.0.0.1,{proxies}")]),
            ForwardedFor::Malformed
        );
    }

    #[test]
    fn trust_is_by_network_or_by_socket() {
        let unix = TrustedProxies::parse(&[UNIX_SOCKETS]).unwrap();
        let near = ClientAddress::of_network("::ffff:10.1.1.1".parse().unwrap());
        let far = ClientAddress::of_network("11.1.1.1".parse().unwrap());
        let socket = ClientAddress::UNIX_SOCKET;
        assert_eq!(
            [near, far, socket].map(|it| trusted().trusts(it)),
            [true, false, false]
        );
        assert_eq!(
            [near, far, socket].map(|it| unix.trusts(it)),
            [false, false, true]
        );
        // A balancer before a socket tells of its clients, who are not trusted for it.
        assert!(!unix.trusts(socket.named("11.1.1.1".parse().unwrap())));
        assert!(!trusted().trusts(ClientAddress::default()));
        assert_eq!(TrustedProxies::parse::<&str>(&[]), None);
    }

    proptest! {
        /// Text before the client's address has no say, and panics nowhere.
        #[test]
        fn what_a_client_writes_moves_nothing(written in prop::collection::vec(any::<u8>(), 0..80)) {
            let behind = [&written[..], b", 203.0.113.7, 10.0.0.1"].concat();
            let both = [&written[..], b"203.0.113.7,10.0.0.1"];
            prop_assert_eq!(trusted().client_of([&behind[..]].into_iter()), client("203.0.113.7"));
            prop_assert_eq!(trusted().client_of(both.into_iter()), client("203.0.113.7"));
            let _ = trusted().client_of([&written[..]].into_iter());
        }
    }
}
