//! Addresses that no webhook may reach: those of this host, of private networks and of no host at all.
//!
//! Resolves no names: every address that a name resolves to is judged before a connection goes to it. Ranges follow
//! the registries of special-purpose addresses, <https://www.iana.org/assignments/iana-ipv4-special-registry> and
//! <https://www.iana.org/assignments/iana-ipv6-special-registry>. Called at each attempt. O(rules).

// Addresses without sockets: the standard library's `core` has no network.
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::network::{Network, have_prefix_v4, have_prefix_v6};

/// Ports of receivers unless configured otherwise.
pub const RECEIVER_PORTS: [u16; 4] = [80, 443, 8080, 8443];

/// Reason why an address is no receiver; its text names no address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ForbiddenAddress {
    /// A listener of this gateway.
    #[error("the address is a listener of this gateway")]
    Own,
    /// `0.0.0.0/8` and `::`.
    #[error("the address is unspecified")]
    Unspecified,
    /// `127.0.0.0/8` and `::1`.
    #[error("the address is a loopback address")]
    Loopback,
    /// RFC 1918 and RFC 4193.
    #[error("the address is private")]
    Private,
    /// RFC 3927 and RFC 4291.
    #[error("the address is link-local")]
    LinkLocal,
    /// `fec0::/10`, RFC 3879.
    #[error("the address is site-local")]
    SiteLocal,
    /// `100.64.0.0/10`, RFC 6598.
    #[error("the address is of a carrier's shared range")]
    Shared,
    /// Metadata service of a cloud.
    #[error("the address is of a metadata service")]
    Metadata,
    /// RFC 5771 and RFC 4291.
    #[error("the address is a multicast address")]
    Multicast,
    /// `255.255.255.255`.
    #[error("the address is the broadcast address")]
    Broadcast,
    /// RFC 2544 and RFC 5180.
    #[error("the address is of a benchmarking range")]
    Benchmarking,
    /// RFC 5737, RFC 3849 and RFC 9637.
    #[error("the address is of a documentation range")]
    Documentation,
    /// `192.0.0.0/24` and `2001::/23`.
    #[error("the address is of a range for protocols")]
    Protocol,
    /// `240.0.0.0/4`, and IPv6 outside of `2000::/3`.
    #[error("the address is reserved")]
    Reserved,
    /// `192.88.99.0/24`, RFC 7526.
    #[error("the address is of the 6to4 relays")]
    Relay,
    /// `100::/64`, RFC 6666.
    #[error("the address is of the discard range")]
    Discard,
    /// RFC 4843 and RFC 7343.
    #[error("the address is an ORCHID")]
    Orchid,
    /// `2001::/32`, RFC 4380.
    #[error("the address is a Teredo address")]
    Teredo,
    /// `2002::/16`, RFC 3056.
    #[error("the address is a 6to4 address")]
    SixToFour,
    /// RFC 6052 and RFC 8215.
    #[error("the address is a NAT64 address")]
    Nat64,
    /// `::/96`, RFC 4291.
    #[error("the address is an IPv4-compatible IPv6 address")]
    Compatible,
}

impl ForbiddenAddress {
    /// Returns the reason in a word or two, for dead letters.
    pub const fn word(self) -> &'static str {
        match self {
            ForbiddenAddress::Own => "own listener",
            ForbiddenAddress::Unspecified => "unspecified",
            ForbiddenAddress::Loopback => "loopback",
            ForbiddenAddress::Private => "private",
            ForbiddenAddress::LinkLocal => "link-local",
            ForbiddenAddress::SiteLocal => "site-local",
            ForbiddenAddress::Shared => "shared",
            ForbiddenAddress::Metadata => "metadata",
            ForbiddenAddress::Multicast => "multicast",
            ForbiddenAddress::Broadcast => "broadcast",
            ForbiddenAddress::Benchmarking => "benchmarking",
            ForbiddenAddress::Documentation => "documentation",
            ForbiddenAddress::Protocol => "protocol",
            ForbiddenAddress::Reserved => "reserved",
            ForbiddenAddress::Relay => "relay",
            ForbiddenAddress::Discard => "discard",
            ForbiddenAddress::Orchid => "orchid",
            ForbiddenAddress::Teredo => "teredo",
            ForbiddenAddress::SixToFour => "6to4",
            ForbiddenAddress::Nat64 => "nat64",
            ForbiddenAddress::Compatible => "compatible",
        }
    }
}

/// IPv4 ranges that are forbidden; the first that contains an address names the reason.
const FORBIDDEN_V4: &[([u8; 4], u32, ForbiddenAddress)] = &[
    ([0, 0, 0, 0], 8, ForbiddenAddress::Unspecified),
    ([10, 0, 0, 0], 8, ForbiddenAddress::Private),
    ([100, 100, 100, 200], 32, ForbiddenAddress::Metadata),
    ([100, 64, 0, 0], 10, ForbiddenAddress::Shared),
    ([127, 0, 0, 0], 8, ForbiddenAddress::Loopback),
    // Azure's host has a public address:
    // <https://learn.microsoft.com/azure/virtual-network/what-is-ip-address-168-63-129-16>.
    ([168, 63, 129, 16], 32, ForbiddenAddress::Metadata),
    ([169, 254, 169, 254], 32, ForbiddenAddress::Metadata),
    ([169, 254, 169, 253], 32, ForbiddenAddress::Metadata),
    ([169, 254, 169, 123], 32, ForbiddenAddress::Metadata),
    ([169, 254, 170, 2], 32, ForbiddenAddress::Metadata),
    ([169, 254, 170, 23], 32, ForbiddenAddress::Metadata),
    ([169, 254, 0, 0], 16, ForbiddenAddress::LinkLocal),
    ([172, 16, 0, 0], 12, ForbiddenAddress::Private),
    ([192, 0, 0, 192], 32, ForbiddenAddress::Metadata),
    ([192, 0, 0, 0], 24, ForbiddenAddress::Protocol),
    ([192, 0, 2, 0], 24, ForbiddenAddress::Documentation),
    ([192, 88, 99, 0], 24, ForbiddenAddress::Relay),
    ([192, 168, 0, 0], 16, ForbiddenAddress::Private),
    ([198, 18, 0, 0], 15, ForbiddenAddress::Benchmarking),
    ([198, 51, 100, 0], 24, ForbiddenAddress::Documentation),
    ([203, 0, 113, 0], 24, ForbiddenAddress::Documentation),
    ([224, 0, 0, 0], 4, ForbiddenAddress::Multicast),
    ([255, 255, 255, 255], 32, ForbiddenAddress::Broadcast),
    ([240, 0, 0, 0], 4, ForbiddenAddress::Reserved),
];

/// IPv6 ranges that are forbidden; the first that contains an address names the reason.
const FORBIDDEN_V6: &[(Ipv6Addr, u32, ForbiddenAddress)] = &[
    (v6([0; 8]), 128, ForbiddenAddress::Unspecified),
    (
        v6([0, 0, 0, 0, 0, 0, 0, 1]),
        128,
        ForbiddenAddress::Loopback,
    ),
    (v6([0; 8]), 96, ForbiddenAddress::Compatible),
    (
        v6([0x64, 0xff9b, 0, 0, 0, 0, 0, 0]),
        96,
        ForbiddenAddress::Nat64,
    ),
    (
        v6([0x64, 0xff9b, 1, 0, 0, 0, 0, 0]),
        48,
        ForbiddenAddress::Nat64,
    ),
    (
        v6([0x100, 0, 0, 0, 0, 0, 0, 0]),
        64,
        ForbiddenAddress::Discard,
    ),
    (
        v6([0x2001, 0, 0, 0, 0, 0, 0, 0]),
        32,
        ForbiddenAddress::Teredo,
    ),
    (
        v6([0x2001, 2, 0, 0, 0, 0, 0, 0]),
        48,
        ForbiddenAddress::Benchmarking,
    ),
    (
        v6([0x2001, 0x10, 0, 0, 0, 0, 0, 0]),
        28,
        ForbiddenAddress::Orchid,
    ),
    (
        v6([0x2001, 0x20, 0, 0, 0, 0, 0, 0]),
        28,
        ForbiddenAddress::Orchid,
    ),
    (
        v6([0x2001, 0, 0, 0, 0, 0, 0, 0]),
        23,
        ForbiddenAddress::Protocol,
    ),
    (
        v6([0x2001, 0xdb8, 0, 0, 0, 0, 0, 0]),
        32,
        ForbiddenAddress::Documentation,
    ),
    (
        v6([0x2002, 0, 0, 0, 0, 0, 0, 0]),
        16,
        ForbiddenAddress::SixToFour,
    ),
    (
        v6([0x3fff, 0, 0, 0, 0, 0, 0, 0]),
        20,
        ForbiddenAddress::Documentation,
    ),
    (
        v6([0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254]),
        128,
        ForbiddenAddress::Metadata,
    ),
    (
        v6([0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x253]),
        128,
        ForbiddenAddress::Metadata,
    ),
    (
        v6([0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x23]),
        128,
        ForbiddenAddress::Metadata,
    ),
    (
        v6([0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254]),
        128,
        ForbiddenAddress::Metadata,
    ),
    (
        v6([0xfc00, 0, 0, 0, 0, 0, 0, 0]),
        7,
        ForbiddenAddress::Private,
    ),
    (
        v6([0xfe80, 0, 0, 0, 0, 0, 0, 0]),
        10,
        ForbiddenAddress::LinkLocal,
    ),
    (
        v6([0xfec0, 0, 0, 0, 0, 0, 0, 0]),
        10,
        ForbiddenAddress::SiteLocal,
    ),
    (
        v6([0xff00, 0, 0, 0, 0, 0, 0, 0]),
        8,
        ForbiddenAddress::Multicast,
    ),
    // Global unicast addresses are `2000::/3`; nothing else is assigned.
    (v6([0; 8]), 3, ForbiddenAddress::Reserved),
    (
        v6([0x4000, 0, 0, 0, 0, 0, 0, 0]),
        2,
        ForbiddenAddress::Reserved,
    ),
    (
        v6([0x8000, 0, 0, 0, 0, 0, 0, 0]),
        1,
        ForbiddenAddress::Reserved,
    ),
];

const fn v6(segments: [u16; 8]) -> Ipv6Addr {
    let [a, b, c, d, e, f, g, h] = segments;
    Ipv6Addr::new(a, b, c, d, e, f, g, h)
}

/// Rules about receivers, from the configuration and from the gateway's listeners.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceiverRules {
    /// Takes `http` beside `https`.
    pub allow_http: bool,
    /// Ports that a receiver may have.
    pub ports: Vec<u16>,
    /// Networks that are allowed although a range forbids them.
    pub allow_networks: Vec<Network>,
    /// Listeners of this gateway; an unspecified address stands for every address of this host.
    pub own: Vec<SocketAddr>,
    /// Addresses of this host's interfaces, for listeners with an unspecified address. Loopback is known.
    pub own_addresses: Vec<IpAddr>,
}

impl ReceiverRules {
    /// Judges whether a webhook may go to `address`.
    ///
    /// IPv6 that maps IPv4 is judged as IPv4. Other forms that carry an IPv4 address are forbidden themselves; if
    /// a network allows one, the address within is judged as well.
    ///
    /// # Errors
    /// The reason why not. Nothing allows listeners of this gateway.
    pub fn judge(&self, address: IpAddr, port: u16) -> Result<(), ForbiddenAddress> {
        let address = address.to_canonical();
        let carried = match address {
            IpAddr::V4(_) => None,
            IpAddr::V6(address) => carried_v4(address).map(IpAddr::V4),
        };
        let forms = || [Some(address), carried].into_iter().flatten();
        if forms().any(|address| self.is_own(address, port)) {
            return Err(ForbiddenAddress::Own);
        }
        for address in forms() {
            let is_allowed = |network: &Network| network.contains(address);
            match reason(address) {
                Some(reason) if !self.allow_networks.iter().any(is_allowed) => return Err(reason),
                _ => {}
            }
        }
        Ok(())
    }

    /// Returns whether a connection to `address` would reach a listener of this gateway.
    fn is_own(&self, address: IpAddr, port: u16) -> bool {
        // Connections to an unspecified address reach this host.
        let is_any = address.is_unspecified();
        let canonical = |own: &IpAddr| own.to_canonical() == address;
        let is_host = is_any || address.is_loopback() || self.own_addresses.iter().any(canonical);
        self.own.iter().any(|listener| {
            let own = listener.ip().to_canonical();
            let is_same = own == address
                || (own.is_unspecified() && is_host)
                || (is_any && own.is_loopback());
            listener.port() == port && is_same
        })
    }
}

impl Default for ReceiverRules {
    fn default() -> ReceiverRules {
        ReceiverRules {
            allow_http: false,
            ports: RECEIVER_PORTS.to_vec(),
            allow_networks: Vec::new(),
            own: Vec::new(),
            own_addresses: Vec::new(),
        }
    }
}

/// Returns the reason why `address`, in canonical form, is forbidden by its range.
fn reason(address: IpAddr) -> Option<ForbiddenAddress> {
    match address {
        IpAddr::V4(address) => FORBIDDEN_V4
            .iter()
            .find(|(base, prefix, _)| have_prefix_v4((*base).into(), address, *prefix))
            .map(|(_, _, reason)| *reason),
        IpAddr::V6(address) => FORBIDDEN_V6
            .iter()
            .find(|(base, prefix, _)| have_prefix_v6(*base, address, *prefix))
            .map(|(_, _, reason)| *reason),
    }
}

/// Returns the IPv4 address that a form of transition carries. Within `64:ff9b:1::/48` operators choose the place;
/// the last 32 bits, as in `64:ff9b::/96`, are the usual one.
fn carried_v4(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let [.., e, f, g, h] = address.octets();
    let last = Ipv4Addr::new(e, f, g, h);
    match address.segments() {
        [0, 0, 0, 0, 0, 0, 0, 0 | 1] => None,
        [0, 0, 0, 0, 0, 0, ..] | [0, 0, 0, 0, 0xffff, 0, ..] => Some(last),
        [0x64, 0xff9b, 0, 0, 0, 0, ..] | [0x64, 0xff9b, 1, ..] => Some(last),
        [0x2002, high, low, ..] => {
            Some(Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low)))
        }
        // Teredo inverts the client's address: RFC 4380, section 4.
        [0x2001, 0, ..] => Some(Ipv4Addr::from_bits(!last.to_bits())),
        _ => None,
    }
}

#[cfg(test)]
#[path = "tests/forbidden_address.rs"]
mod tests;
