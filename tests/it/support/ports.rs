//! Ports for listeners whose addresses a configuration must name before anything listens.
//!
//! Not the ephemeral ports that the kernel hands out for port 0, which are reused as soon as they are
//! released. The next listener of this process or any outgoing connection may get such a port.
//! Two gateways, or the two listeners of one, could get the same number.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU16, Ordering};

/// The range begins above the ports of well-known servers and ends below Linux's ephemeral range
/// (`ip_local_port_range`, 32768 by default).
const FIRST: u16 = 12_000;
const COUNT: u16 = 20_000;

/// Number of ports of the range that this process has taken.
static TAKEN: AtomicU16 = AtomicU16::new(0);

/// An address nobody listens on, never given twice by this process. Another process may still take
/// it before its user listens: the start then fails aloud.
pub fn free_address() -> SocketAddr {
    // Processes that run at once begin at different places.
    let begin = std::process::id().wrapping_mul(101);
    for _ in 0..COUNT {
        let step = TAKEN.fetch_add(1, Ordering::Relaxed);
        let place = (begin + u32::from(step)) % u32::from(COUNT);
        let port = FIRST + u16::try_from(place).expect("below COUNT");
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        if TcpListener::bind(address).is_ok() {
            return address;
        }
    }
    panic!("no free port from {FIRST} on, in {COUNT} tried");
}

#[test]
fn no_address_is_given_twice() {
    let mut given: Vec<SocketAddr> = (0..500).map(|_| free_address()).collect();
    given.sort_unstable();
    given.dedup();
    assert_eq!(given.len(), 500);
}
