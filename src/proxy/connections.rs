//! How many connections each client address has open.
//!
//! It does not know requests. A connection over the limit is closed before a byte of it is read.

use std::net::IpAddr;
use std::sync::Arc;

use hashbrown::HashMap;
use parking_lot::Mutex;

/// Open connections by client address.
#[derive(Default)]
pub struct Connections {
    /// Guards the counts; held for one look-up when a connection opens or closes.
    open: Mutex<HashMap<IpAddr, u32>>,
}

impl Connections {
    /// Counts a connection, unless `limit` are open from `address` already.
    pub fn open(self: &Arc<Connections>, address: IpAddr, limit: u32) -> Option<Connection> {
        let mut open = self.open.lock();
        let count = open.entry(address).or_insert(0);
        if *count >= limit {
            return None;
        }
        *count += 1;
        Some(Connection {
            all: Arc::clone(self),
            address,
        })
    }

    /// All open connections.
    pub fn total(&self) -> u64 {
        self.open
            .lock()
            .values()
            .map(|count| u64::from(*count))
            .sum()
    }
}

/// One open connection; given back by drop.
pub struct Connection {
    all: Arc<Connections>,
    address: IpAddr,
}

impl Drop for Connection {
    fn drop(&mut self) {
        let mut open = self.all.open.lock();
        if let Some(count) = open.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                // Addresses that left cost nothing.
                open.remove(&self.address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_over_its_limit_gets_in_again_when_one_of_its_connections_ends() {
        let all = Arc::new(Connections::default());
        let (a, b) = (IpAddr::from([127, 0, 0, 1]), IpAddr::from([127, 0, 0, 2]));
        let first = all.open(a, 1).unwrap();
        assert!(all.open(a, 1).is_none());
        let _other = all.open(b, 1).unwrap();
        drop(first);
        assert!(all.open(a, 1).is_some());
        assert_eq!(all.total(), 1);
    }
}
