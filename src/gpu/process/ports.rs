//! Ports for servers of instances: one of a range that nothing listens at, remembered until its instance ends.
//!
//! Not a promise that the server gets it: another process may listen there first. Its own check is `ownership.rs`'s.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::ops::RangeInclusive;
use std::sync::Arc;

use parking_lot::Mutex;
use thiserror::Error;

/// Ports of which an instance may find each taken by another process before that counts as a failed start.
pub const PORT_TRIES_MAX: u32 = 5;

/// Words in the output of servers that find their port taken, in lower case.
const ADDRESS_IN_USE: [&str; 4] = [
    "address already in use",
    "address in use",
    "eaddrinuse",
    "couldn't bind http server socket",
];

/// Returns whether the last lines of a server's output tell of a port that another process has.
pub fn is_address_in_use(last_lines: &str) -> bool {
    let lower = last_lines.to_ascii_lowercase();
    ADDRESS_IN_USE.iter().any(|words| lower.contains(words))
}

/// Ports of a range and those that instances have.
#[derive(Clone, Debug)]
pub struct PortPool {
    range: RangeInclusive<u16>,
    /// Ports of instances.
    taken: Arc<Mutex<BTreeSet<u16>>>,
}

/// No port of the range is free.
#[derive(Debug, Error)]
#[error("every port from {} to {} is taken", .0.start(), .0.end())]
pub struct NoFreePort(RangeInclusive<u16>);

/// A port of one instance, free again when it is dropped.
#[derive(Debug)]
pub struct ReservedPort {
    port: u16,
    taken: Arc<Mutex<BTreeSet<u16>>>,
}

impl PortPool {
    /// Returns a pool in which all ports are free.
    pub fn new(range: RangeInclusive<u16>) -> PortPool {
        PortPool {
            range,
            taken: Arc::default(),
        }
    }

    /// Takes a port that nothing listens at, looking from one that `random` draws.
    ///
    /// # Errors
    /// Every port is taken.
    pub fn take(&self, random: u32) -> Result<ReservedPort, NoFreePort> {
        let (first, last) = (u32::from(*self.range.start()), u32::from(*self.range.end()));
        let count = (last + 1).saturating_sub(first);
        for nth in 0..count {
            let port = first + (random % count + nth) % count;
            let port = u16::try_from(port).expect("the range is of ports");
            let Some(reserved) = self.reserve(port) else {
                continue;
            };
            if is_free(port) {
                return Ok(reserved);
            }
        }
        Err(NoFreePort(self.range.clone()))
    }

    /// Remembers a port of an instance that runs already; none when another has it.
    pub fn reserve(&self, port: u16) -> Option<ReservedPort> {
        let is_new = self.taken.lock().insert(port);
        is_new.then(|| ReservedPort {
            port,
            taken: Arc::clone(&self.taken),
        })
    }
}

impl ReservedPort {
    /// The port.
    pub fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for ReservedPort {
    fn drop(&mut self) {
        self.taken.lock().remove(&self.port);
    }
}

/// Returns whether a server could listen at the port. A host without IPv6 has no port taken there.
fn is_free(port: u16) -> bool {
    let addresses = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
    addresses.into_iter().all(|ip| {
        let bound = TcpListener::bind(SocketAddr::new(ip, port));
        !bound.is_err_and(|error| error.kind() == ErrorKind::AddrInUse)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_that_something_listens_at_is_passed_over() {
        let stranger = TcpListener::bind("127.0.0.1:0").unwrap();
        let taken = stranger.local_addr().unwrap().port();
        let pool = PortPool::new(taken..=taken);
        let error = pool.take(0).unwrap_err().to_string();
        assert!(error.contains(&taken.to_string()), "{error}");
        drop(stranger);
        assert_eq!(pool.take(7).unwrap().port(), taken);
    }

    #[test]
    fn a_port_is_an_instances_until_it_is_dropped() {
        let pool = PortPool::new(20_300..=20_400);
        let first = pool.take(50).unwrap();
        let second = pool.take(50).unwrap();
        assert_ne!(first.port(), second.port());
        assert!(pool.reserve(first.port()).is_none());
        let port = first.port();
        drop(first);
        assert_eq!(pool.reserve(port).unwrap().port(), port);
    }

    #[test]
    fn servers_that_find_their_port_taken_are_known_by_their_words() {
        for words in [
            "[Errno 98] error while attempting to bind on address ('127.0.0.1', 1): address already in use",
            "OSError: [Errno 98] Address already in use",
            "srv: couldn't bind HTTP server socket, hostname: 127.0.0.1",
        ] {
            assert!(is_address_in_use(words), "{words}");
        }
        assert!(!is_address_in_use("CUDA error: out of memory"));
    }
}
