//! Turns to prove oneself at the peers listener: how many handshakes run at once, and who waits for one.
//!
//! It reads no byte. A burst of connections of a node waits for its turns instead of being closed, which
//! would put the whole node in doubt at the other side; whoever connects and proves nothing takes turns
//! and places from its own address before it takes them from others. Bounds: [`PENDING_MAX`] connections,
//! and [`TURN_LIMIT`] for each to wait.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashMap;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// Handshakes at once: each is a millisecond of a core at most, or five seconds of silence.
const TURNS: usize = 256;
/// Of those, for connections from one address: sixteen addresses that prove nothing take them all.
const TURNS_PER_ADDRESS: usize = 16;
/// Connections that have not proved themselves, those that wait for a turn included: a file descriptor
/// and a task each.
const PENDING_MAX: usize = 1024;
/// Of those, from one address: as many as a node opens at once that has a burst to forward.
const PENDING_PER_ADDRESS: usize = 256;
/// To wait for a turn: the other side gives up connecting a little later.
const TURN_LIMIT: Duration = Duration::from_secs(1);

/// The connections that have not proved themselves yet.
pub struct Handshakes {
    turns: Arc<Semaphore>,
    /// Guards the addresses and their counts; held for a look-up when a connection comes and when it
    /// has proved itself or goes.
    addresses: Mutex<Addresses>,
}

#[derive(Default)]
struct Addresses {
    pending: usize,
    known: HashMap<IpAddr, Address>,
}

/// Of one address, for as long as there is a connection from it.
struct Address {
    pending: usize,
    turns: Arc<Semaphore>,
}

/// One connection that has not proved itself; its place is given back by drop.
pub struct Pending {
    all: Arc<Handshakes>,
    address: IpAddr,
    turns: Arc<Semaphore>,
}

/// A turn to do so; given back by drop.
pub struct Turn {
    _of_address: OwnedSemaphorePermit,
    _of_all: OwnedSemaphorePermit,
    _pending: Pending,
}

impl Handshakes {
    /// None under way.
    pub fn new() -> Arc<Handshakes> {
        Arc::new(Handshakes {
            turns: Arc::new(Semaphore::new(TURNS)),
            addresses: Mutex::default(),
        })
    }

    /// A place for a connection from `address`; none when all places, or those of its address, are taken.
    pub fn enter(self: &Arc<Handshakes>, address: IpAddr) -> Option<Pending> {
        let address = address.to_canonical();
        let mut addresses = self.addresses.lock();
        if addresses.pending >= PENDING_MAX {
            return None;
        }
        let known = addresses.known.entry(address).or_insert_with(|| Address {
            pending: 0,
            turns: Arc::new(Semaphore::new(TURNS_PER_ADDRESS)),
        });
        if known.pending >= PENDING_PER_ADDRESS {
            return None;
        }
        known.pending += 1;
        let turns = Arc::clone(&known.turns);
        addresses.pending += 1;
        Some(Pending {
            all: Arc::clone(self),
            address,
            turns,
        })
    }
}

impl Pending {
    /// Waits for its turn, in the order of coming; none when it does not come within a second.
    pub async fn turn(self) -> Option<Turn> {
        let turns = async {
            // Who waits for its address's turn keeps none of the turns of all.
            let of_address = Arc::clone(&self.turns).acquire_owned().await.ok()?;
            let of_all = Arc::clone(&self.all.turns).acquire_owned().await.ok()?;
            Some((of_address, of_all))
        };
        let (of_address, of_all) = timeout(TURN_LIMIT, turns).await.ok()??;
        Some(Turn {
            _of_address: of_address,
            _of_all: of_all,
            _pending: self,
        })
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        let mut addresses = self.all.addresses.lock();
        addresses.pending -= 1;
        if let Some(known) = addresses.known.get_mut(&self.address) {
            known.pending -= 1;
            if known.pending == 0 {
                addresses.known.remove(&self.address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    async fn turns(all: &Arc<Handshakes>, last: u8, count: usize) -> Vec<Turn> {
        let mut taken = Vec::new();
        for _ in 0..count {
            let pending = all.enter(address(last)).expect("a place");
            taken.push(pending.turn().await.expect("a turn"));
        }
        taken
    }

    #[tokio::test(start_paused = true)]
    async fn a_burst_of_one_address_waits_for_its_turns_and_gets_them() {
        let all = Handshakes::new();
        let mut held = turns(&all, 1, TURNS_PER_ADDRESS).await;
        let waits = all.enter(address(1)).unwrap().turn();
        tokio::pin!(waits);
        assert!(timeout(TURN_LIMIT / 2, &mut waits).await.is_err());
        held.pop();
        assert!(waits.await.is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_turn_that_does_not_come_within_a_second_is_waited_for_no_longer() {
        let all = Handshakes::new();
        let _held = turns(&all, 1, TURNS_PER_ADDRESS).await;
        assert!(all.enter(address(1)).unwrap().turn().await.is_none());
        assert_eq!(turns(&all, 2, 1).await.len(), 1, "others are not concerned");
    }

    #[tokio::test(start_paused = true)]
    async fn all_turns_are_taken_by_sixteen_addresses_and_waited_for_by_the_next() {
        let all = Handshakes::new();
        let mut held = Vec::new();
        for last in 0..16 {
            held.extend(turns(&all, last, TURNS_PER_ADDRESS).await);
        }
        let waits = all.enter(address(99)).unwrap().turn();
        tokio::pin!(waits);
        assert!(timeout(TURN_LIMIT / 2, &mut waits).await.is_err());
        held.pop();
        assert!(waits.await.is_some());
    }

    #[tokio::test]
    async fn places_are_bounded_for_an_address_and_for_all_and_come_back() {
        let all = Handshakes::new();
        let mut held = Vec::new();
        for last in 0..4 {
            for _ in 0..PENDING_PER_ADDRESS {
                held.push(all.enter(address(last)).expect("a place"));
            }
            assert!(all.enter(address(last)).is_none());
            assert!(
                all.enter(IpAddr::from([0, 0, 0, 0, 0, 0xffff, 0x0a00, last.into()]))
                    .is_none()
            );
        }
        assert!(all.enter(address(99)).is_none(), "no place is left");
        held.pop();
        assert!(all.enter(address(99)).is_some());
        held.clear();
        assert!(all.addresses.lock().known.is_empty());
    }
}
