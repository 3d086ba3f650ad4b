//! Number of open connections of each client address, and of all of them together.
//!
//! A connection over a limit is closed before a byte of it is read. Requests are counted only where a trusted proxy
//! tells whose they are: its connections carry those of many clients.

use std::net::IpAddr;
use std::sync::Arc;

use hashbrown::HashMap;
use parking_lot::Mutex;

use crate::state::Limits;

/// Open connections of clients.
#[derive(Default)]
pub struct ClientConnections {
    /// Guards the counts; held for one look-up when a connection opens or closes.
    open: Mutex<ConnectionCounts>,
}

#[derive(Default)]
struct ConnectionCounts {
    total: u32,
    by_address: HashMap<IpAddr, u32>,
}

/// Limit that a connection is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionLimit {
    /// `limits.connections`.
    OfAll,
    /// `limits.connections_per_client`.
    OfClient,
}

impl ConnectionLimit {
    /// Label in metrics.
    pub const fn reason(self) -> &'static str {
        match self {
            ConnectionLimit::OfAll => "limit",
            ConnectionLimit::OfClient => "per-client-limit",
        }
    }
}

impl ClientConnections {
    /// Counts a connection from `address`; from none where it is not known, or not yet.
    ///
    /// # Errors
    /// The limit that is reached already.
    pub fn open(
        self: &Arc<ClientConnections>,
        address: Option<IpAddr>,
        limits: &Limits,
    ) -> Result<ClientConnectionGuard, ConnectionLimit> {
        let mut open = self.open.lock();
        if open.total >= limits.connections {
            return Err(ConnectionLimit::OfAll);
        }
        if let Some(address) = address {
            open.count(address, limits)?;
        }
        open.total += 1;
        Ok(ClientConnectionGuard {
            all: Arc::clone(self),
            address,
        })
    }

    /// Counts a request of a trusted proxy by the address of its client, until the guard is dropped.
    ///
    /// # Errors
    /// The address has as many connections and requests as it may.
    pub fn enter_request(
        self: &Arc<ClientConnections>,
        address: IpAddr,
        limits: &Limits,
    ) -> Result<ClientRequestGuard, ConnectionLimit> {
        self.open.lock().count(address, limits)?;
        Ok(ClientRequestGuard {
            all: Arc::clone(self),
            address,
        })
    }

    /// All open connections.
    pub fn total(&self) -> u64 {
        self.open.lock().total.into()
    }
}

impl ConnectionCounts {
    fn count(&mut self, address: IpAddr, limits: &Limits) -> Result<(), ConnectionLimit> {
        let count = self.by_address.entry(address).or_insert(0);
        if *count >= limits.connections_per_client {
            return Err(ConnectionLimit::OfClient);
        }
        *count += 1;
        Ok(())
    }

    fn release(&mut self, address: IpAddr) {
        if let Some(count) = self.by_address.get_mut(&address) {
            *count -= 1;
            if *count == 0 {
                // Addresses that left cost nothing.
                self.by_address.remove(&address);
            }
        }
    }
}

/// Guard of a request that counts by its client's address; released by drop.
pub struct ClientRequestGuard {
    all: Arc<ClientConnections>,
    address: IpAddr,
}

impl Drop for ClientRequestGuard {
    fn drop(&mut self) {
        self.all.open.lock().release(self.address);
    }
}

/// Guard of one open connection; released by drop.
pub struct ClientConnectionGuard {
    all: Arc<ClientConnections>,
    address: Option<IpAddr>,
}

impl ClientConnectionGuard {
    /// Counts the connection by its client's address, as a balancer tells it.
    ///
    /// # Errors
    /// The address has as many connections as it may.
    pub fn record_address(
        &mut self,
        address: IpAddr,
        limits: &Limits,
    ) -> Result<(), ConnectionLimit> {
        if self.address.is_none() {
            self.all.open.lock().count(address, limits)?;
            self.address = Some(address);
        }
        Ok(())
    }
}

impl Drop for ClientConnectionGuard {
    fn drop(&mut self) {
        let mut open = self.all.open.lock();
        open.total = open.total.saturating_sub(1);
        if let Some(address) = self.address {
            open.release(address);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_over_its_limit_gets_in_again_when_one_of_its_connections_ends() {
        let all = Arc::new(ClientConnections::default());
        let limits = Limits {
            connections: 2,
            connections_per_client: 1,
            ..Limits::default()
        };
        let [a, b, c] = [1, 2, 3].map(|last| Some(IpAddr::from([127, 0, 0, last])));
        let first = all.open(a, &limits).unwrap();
        assert_eq!(all.open(a, &limits).err(), Some(ConnectionLimit::OfClient));
        let _other = all.open(b, &limits).unwrap();
        assert_eq!(all.open(c, &limits).err(), Some(ConnectionLimit::OfAll));
        drop(first);
        assert!(all.open(a, &limits).is_ok());
        assert_eq!(all.total(), 1);
    }

    #[test]
    fn a_client_behind_a_balancer_is_counted_once_its_address_is_told() {
        let all = Arc::new(ClientConnections::default());
        let limits = Limits {
            connections_per_client: 1,
            ..Limits::default()
        };
        let address = IpAddr::from([203, 0, 113, 7]);
        let [mut first, mut second] = [(); 2].map(|()| all.open(None, &limits).unwrap());
        first.record_address(address, &limits).unwrap();
        let over = second.record_address(address, &limits);
        assert_eq!(over, Err(ConnectionLimit::OfClient));
        drop(first);
        assert_eq!(second.record_address(address, &limits), Ok(()));
        drop(second);
        assert!(all.open.lock().by_address.is_empty());
    }
}
