//! Ownership of a port: whether all that listens there belongs to one instance.
//!
//! A probe that succeeds proves nothing: a stranger may have the port. The kernel lists sockets with their inodes
//! (`/proc/net/tcp`, `/proc/net/tcp6`) and descriptors of processes (`/proc/<pid>/fd`). Descendants of a keeper are its
//! instance's: the keeper is the parent of every orphan among them.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::gpu::processes::{ProcessId, all_pids, nearest};

/// State of a socket that listens, in `/proc/net/tcp`.
const LISTEN: &str = "0A";

/// Addresses at which a server of an instance may listen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListenScope {
    /// Addresses that only this host reaches.
    Loopback,
    /// All addresses.
    Any,
}

/// Result of a look at a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortOwnership {
    /// No socket listens that a connection to loopback would reach.
    NotListening,
    /// Only the instance listens.
    Owned,
    /// A process outside the instance listens.
    Foreign,
    /// The instance listens where others than this host reach it.
    Exposed,
}

/// Looks at who listens at `port`, for an instance whose keeper is given.
pub fn port_ownership(port: u16, keeper: ProcessId, scope: ListenScope) -> PortOwnership {
    let mut sockets = Vec::new();
    for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
        let text = std::fs::read_to_string(table).unwrap_or_default();
        sockets.extend(text.lines().filter_map(|line| read_listener(line, port)));
    }
    if sockets.is_empty() {
        return PortOwnership::NotListening;
    }
    judge(&sockets, &inodes_of(keeper), scope)
}

/// A socket that listens.
#[derive(Debug, PartialEq, Eq)]
struct ListeningSocket {
    address: IpAddr,
    inode: u64,
}

fn judge(sockets: &[ListeningSocket], own: &BTreeSet<u64>, scope: ListenScope) -> PortOwnership {
    let mut found = PortOwnership::NotListening;
    for socket in sockets {
        let is_own = own.contains(&socket.inode);
        let is_loopback = socket.address.to_canonical().is_loopback();
        let is_reached = is_loopback || socket.address.to_canonical().is_unspecified();
        match (is_own, is_reached) {
            (false, true) => return PortOwnership::Foreign,
            // Another address of this host: no connection of the gateway goes there.
            (false, false) => {}
            (true, _) if scope == ListenScope::Loopback && !is_loopback => {
                found = PortOwnership::Exposed;
            }
            (true, true) if found == PortOwnership::NotListening => found = PortOwnership::Owned,
            (true, _) => {}
        }
    }
    found
}

/// Inodes of the sockets that descendants of the keeper have open.
fn inodes_of(keeper: ProcessId) -> BTreeSet<u64> {
    let mut inodes = BTreeSet::new();
    if !keeper.is_alive() {
        return inodes;
    }
    for pid in all_pids() {
        if nearest(pid, |pid| pid == keeper.pid).is_none() {
            continue;
        }
        let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd"));
        for descriptor in descriptors.into_iter().flatten().flatten() {
            let link = std::fs::read_link(descriptor.path()).unwrap_or_default();
            let inode = link
                .to_str()
                .and_then(|link| link.strip_prefix("socket:[")?.strip_suffix(']'));
            inodes.extend(inode.and_then(|inode| inode.parse::<u64>().ok()));
        }
    }
    inodes
}

/// Reads a line such as `0: 0100007F:4E21 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 31337 …`.
fn read_listener(line: &str, port: u16) -> Option<ListeningSocket> {
    let mut words = line.split_whitespace().skip(1);
    let (address, local_port) = words.next()?.split_once(':')?;
    if u16::from_str_radix(local_port, 16).ok()? != port || words.nth(1)? != LISTEN {
        return None;
    }
    let inode = words.nth(5)?.parse().ok()?;
    Some(ListeningSocket {
        address: read_address(address)?,
        inode,
    })
}

/// Words of 32 bits, each in the order of the host.
fn read_address(text: &str) -> Option<IpAddr> {
    let word = |at: usize| u32::from_str_radix(text.get(at * 8..at * 8 + 8)?, 16).ok();
    match text.len() {
        8 => Some(Ipv4Addr::from(word(0)?.to_ne_bytes()).into()),
        32 => {
            let mut bytes = [0; 16];
            for at in 0..4 {
                bytes[at * 4..at * 4 + 4].copy_from_slice(&word(at)?.to_ne_bytes());
            }
            Some(Ipv6Addr::from(bytes).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// Looks at a socket that is about to close.
    const LOOKS_MAX: usize = 10_000;

    #[test]
    fn a_port_of_this_process_is_its_own_and_foreign_to_another() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let own = ProcessId::of(std::process::id()).unwrap();
        let look = |keeper| port_ownership(port, keeper, ListenScope::Loopback);
        assert_eq!(look(own), PortOwnership::Owned);
        let former = ProcessId {
            start: own.start - 1,
            ..own
        };
        assert_eq!(look(former), PortOwnership::Foreign);
        drop(listener);
        // A process that another test is starting has a copy of the socket until it is another program.
        let mut looks = std::iter::repeat_with(|| {
            std::thread::yield_now();
            look(own)
        });
        let is_closed = looks
            .by_ref()
            .take(LOOKS_MAX)
            .any(|found| found == PortOwnership::NotListening);
        assert!(is_closed, "{:?}", looks.next());
    }

    #[test]
    fn a_wildcard_is_exposed_unless_any_address_is_meant() {
        let listener = TcpListener::bind("0.0.0.0:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let own = ProcessId::of(std::process::id()).unwrap();
        let look = |scope| port_ownership(port, own, scope);
        assert_eq!(look(ListenScope::Loopback), PortOwnership::Exposed);
        assert_eq!(look(ListenScope::Any), PortOwnership::Owned);
    }

    #[test]
    fn one_socket_of_a_stranger_that_shares_the_port_is_enough() {
        let socket = |address: &str, inode| ListeningSocket {
            address: address.parse().unwrap(),
            inode,
        };
        let own = BTreeSet::from([1]);
        let judged = |other: &str| {
            let sockets = [socket("127.0.0.1", 1), socket(other, 2)];
            judge(&sockets, &own, ListenScope::Loopback)
        };
        for reached in ["127.0.0.1", "::1", "::", "0.0.0.0", "::ffff:127.0.0.1"] {
            assert_eq!(judged(reached), PortOwnership::Foreign, "{reached}");
        }
        assert_eq!(judged("10.0.0.5"), PortOwnership::Owned);
        let elsewhere = [socket("10.0.0.5", 2)];
        let judged = judge(&elsewhere, &own, ListenScope::Any);
        assert_eq!(judged, PortOwnership::NotListening);
    }

    #[test]
    fn lines_of_the_kernel_are_read() {
        let v4 =
            "0: 0100007F:4E21 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 31337 1";
        let found = read_listener(v4, 0x4E21).unwrap();
        assert_eq!(found.inode, 31_337);
        if cfg!(target_endian = "little") {
            assert_eq!(found.address, IpAddr::from([127, 0, 0, 1]));
        }
        assert_eq!(read_listener(v4, 80), None);
        assert_eq!(read_listener(&v4.replace(" 0A ", " 01 "), 0x4E21), None);
        let v6 = "0: 00000000000000000000000001000000:4E21 0:0 0A 0:0 00:0 0 0 0 5 1";
        let found = read_listener(v6, 0x4E21).unwrap();
        if cfg!(target_endian = "little") {
            assert!(found.address.is_loopback(), "{found:?}");
        }
        assert_eq!(read_listener("sl local_address", 1), None);
    }
}
