//! Networks of IP addresses, as operators write them: an address and the length of its prefix.
//!
//! Values only; no name is resolved. Called for receivers of webhooks and for proxies that are trusted.

// Addresses without sockets: the standard library's `core` has no network.
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Network of addresses, such as `10.0.0.0/8`; IPv4 mapped into IPv6 counts as IPv4.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Network {
    base: IpAddr,
    prefix: u32,
}

/// Text that is no network; meant for operators.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NetworkError {
    /// Not of the form `address/prefix`.
    #[error("must be a network such as 10.0.0.0/8 or fd00::/8")]
    Malformed,
    /// Bits beyond the prefix are set, as in `10.0.0.1/8`.
    #[error("has bits set beyond its prefix")]
    HostBits,
}

impl Network {
    /// Returns the network that `text` names; an address without a prefix is a network of its own.
    ///
    /// # Errors
    /// [`NetworkError`] for any other text, and for one that names bits beyond the prefix.
    pub fn parse(text: &str) -> Result<Network, NetworkError> {
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| NetworkError::Malformed)?;
        let bits = if address.is_ipv4() { 32 } else { 128 };
        let prefix = match prefix {
            Some(prefix) => parse_prefix(prefix, bits).ok_or(NetworkError::Malformed)?,
            None => bits,
        };
        let rest = match address {
            IpAddr::V4(address) => address.to_bits().checked_shl(prefix).unwrap_or(0).into(),
            IpAddr::V6(address) => address.to_bits().checked_shl(prefix).unwrap_or(0),
        };
        if rest != 0 {
            return Err(NetworkError::HostBits);
        }
        let base = address.to_canonical();
        Ok(match (address, base) {
            (IpAddr::V6(_), IpAddr::V4(_)) if prefix >= 96 => Network {
                base,
                prefix: prefix - 96,
            },
            _ => Network {
                base: address,
                prefix,
            },
        })
    }

    /// Returns whether `address` is of this network.
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.base, address.to_canonical()) {
            (IpAddr::V4(base), IpAddr::V4(address)) => have_prefix_v4(base, address, self.prefix),
            (IpAddr::V6(base), IpAddr::V6(address)) => have_prefix_v6(base, address, self.prefix),
            _ => false,
        }
    }
}

/// Returns whether two addresses have the same first `prefix` bits.
pub(crate) fn have_prefix_v4(one: Ipv4Addr, other: Ipv4Addr, prefix: u32) -> bool {
    (one.to_bits() ^ other.to_bits()).leading_zeros() >= prefix
}

/// The same of IPv6.
pub(crate) fn have_prefix_v6(one: Ipv6Addr, other: Ipv6Addr, prefix: u32) -> bool {
    (one.to_bits() ^ other.to_bits()).leading_zeros() >= prefix
}

/// Returns a prefix of at most `bits`, without a sign or a leading zero.
fn parse_prefix(text: &str, bits: u32) -> Option<u32> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit());
    let is_short = text == "0" || !text.starts_with('0');
    let prefix = text.parse().ok().filter(|_| is_plain && is_short)?;
    (prefix <= bits).then_some(prefix)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_an_address_and_a_prefix() {
        for (text, inside, outside) in [
            ("10.0.0.0/8", "10.255.0.1", "11.0.0.1"),
            ("10.0.0.5", "10.0.0.5", "10.0.0.4"),
            ("10.0.0.4/31", "::ffff:10.0.0.5", "10.0.0.6"),
            ("0.0.0.0/0", "255.1.2.3", "::"),
            ("::/0", "ff02::1", "1.2.3.4"),
            ("fd00::/8", "fdff::1", "fc00::1"),
            ("::1", "::1", "::2"),
            ("::ffff:10.0.0.0/104", "10.9.9.9", "11.0.0.0"),
        ] {
            let network = Network::parse(text).unwrap();
            assert!(network.contains(inside.parse().unwrap()), "{text}");
            assert!(!network.contains(outside.parse().unwrap()), "{text}");
        }
        for text in [
            "",
            "/",
            "10.0.0.0/",
            "/8",
            "10.0.0.0/33",
            "::/129",
            "10.0.0.0/-1",
            "10.0.0.0/+8",
            "10.0.0.0/08",
            "10.0.0.0/8/8",
            "10.0.0/8",
            "10.0.0.0/8 ",
            "a/8",
            "010.0.0.0/8",
            "10.0.0.0/255.0.0.0",
            "[::1]",
            "fe80::1%eth0",
            "10.0.0.0/99999999999",
        ] {
            assert_eq!(
                Network::parse(text),
                Err(NetworkError::Malformed),
                "{text:?}"
            );
        }
        for text in [
            "10.0.0.1/8",
            "10.0.0.1/0",
            "fd00::1/8",
            "1::/0",
            "10.0.0.1/31",
        ] {
            assert_eq!(
                Network::parse(text),
                Err(NetworkError::HostBits),
                "{text:?}"
            );
        }
    }
}
