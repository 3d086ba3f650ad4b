//! Bounded places for connections whose TLS handshake is not done yet.
//!
//! No byte is read here. A handshake takes milliseconds, so the connection that has been silent
//! longest is the least likely to make one. The oldest connection of an address gives way to the next once the
//! places of that address are taken. Once all places are taken, the oldest of the address with most of them
//! does. An address that opens connections and proves nothing thus keeps neither other addresses nor others of
//! its own address out. Connections whose handshake is done have no place here. Bounds: [`HandshakeBounds`].

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashMap;
use infergate_core::admission::HandshakeRate;
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore};
use tokio::time::sleep;

use crate::telemetry::{Clock, WarningLimit};

/// Handshakes under way at a time: a file descriptor, a task and some 20 KiB each.
#[derive(Clone, Copy, Debug)]
pub struct HandshakeBounds {
    /// Bound of all addresses together.
    pub total: usize,
    /// Bound of each address.
    pub per_address: usize,
}

impl HandshakeBounds {
    /// Bounds of other nodes, each of which opens as many connections at once for a burst of forwards.
    pub const OF_NODES: HandshakeBounds = HandshakeBounds {
        total: 1024,
        per_address: 256,
    };

    /// Bounds of clients. Behind a balancer all have one address, so that it may take all places.
    pub fn of_clients(handshakes: u32) -> HandshakeBounds {
        let total = handshakes as usize;
        HandshakeBounds {
            total,
            per_address: total,
        }
    }
}

/// Turn of the connections that are ready for their handshake, where a rate bounds these.
///
/// The one whose turn it is waits for the rate. Addresses take turns, and so do the connections of one: at most as many
/// as [`HandshakeBounds`] has places. Each may be dropped at any time.
pub struct HandshakeTurns {
    turn: Semaphore,
    /// Turns among connections of each address that waits. Held to find, add or remove one.
    of_addresses: Mutex<HashMap<IpAddr, Arc<Semaphore>>>,
    /// Held to take a handshake.
    rate: Mutex<HandshakeRate>,
    /// Lines about connections that are closed because of it.
    pub warnings: WarningLimit,
}

impl Default for HandshakeTurns {
    fn default() -> HandshakeTurns {
        HandshakeTurns {
            turn: Semaphore::new(1),
            of_addresses: Mutex::default(),
            rate: Mutex::default(),
            warnings: WarningLimit::default(),
        }
    }
}

impl HandshakeTurns {
    /// Returns once a handshake of a client at `address` may begin, of `per_second` at most.
    pub async fn wait(&self, address: IpAddr, per_second: u32, clock: Clock) {
        if per_second == 0 {
            return;
        }
        // One of each address stands in the queue of all: many connections of one come no sooner than one of another.
        let own = AddressTurns::enter(self, address.to_canonical());
        // Never closed.
        let _own = own.turns.acquire().await;
        let _turn = self.turn.acquire().await;
        loop {
            let now = clock.now();
            let taken = self.rate.lock().take(per_second, now);
            match taken {
                Ok(()) => return,
                Err(next) => sleep(Duration::from_millis(next.since(now).0)).await,
            }
        }
    }
}

/// Turns among the connections of an address, forgotten with the last of them.
struct AddressTurns<'a> {
    all: &'a HandshakeTurns,
    address: IpAddr,
    turns: Arc<Semaphore>,
}

impl AddressTurns<'_> {
    fn enter(all: &HandshakeTurns, address: IpAddr) -> AddressTurns<'_> {
        let mut known = all.of_addresses.lock();
        let turns = known.entry(address);
        let turns = turns.or_insert_with(|| Arc::new(Semaphore::new(1)));
        AddressTurns {
            all,
            address,
            turns: Arc::clone(turns),
        }
    }
}

impl Drop for AddressTurns<'_> {
    fn drop(&mut self) {
        let mut known = self.all.of_addresses.lock();
        // The table's own, and this one.
        if Arc::strong_count(&self.turns) <= 2 {
            known.remove(&self.address);
        }
    }
}

/// The connections that have not proved themselves yet.
#[derive(Default)]
pub struct Handshakes {
    /// Guards the addresses and their connections; held for a look-up when a connection comes and when it
    /// has proved itself or goes.
    addresses: Mutex<PendingByAddress>,
    /// Bound of their rate.
    pub turns: HandshakeTurns,
}

#[derive(Default)]
struct PendingByAddress {
    pending: usize,
    last: u64,
    /// Unproven connections of each address, the oldest first.
    known: HashMap<IpAddr, VecDeque<HandshakeSlot>>,
}

struct HandshakeSlot {
    number: u64,
    evicted: Arc<Notify>,
}

/// A connection that has not proved itself; its place is released by drop.
pub struct PendingHandshake {
    all: Arc<Handshakes>,
    address: IpAddr,
    number: u64,
    evicted: Arc<Notify>,
}

impl Handshakes {
    /// A place for a connection from `address`; another one may have to give way for it.
    pub fn enter(
        self: &Arc<Handshakes>,
        address: IpAddr,
        bounds: HandshakeBounds,
    ) -> PendingHandshake {
        let address = address.to_canonical();
        let mut addresses = self.addresses.lock();
        let of_address = addresses.known.get(&address).map_or(0, VecDeque::len);
        if of_address >= bounds.per_address {
            addresses.evict(address);
        } else if addresses.pending >= bounds.total
            && let Some(largest) = addresses.largest()
        {
            addresses.evict(largest);
        }
        addresses.pending += 1;
        addresses.last += 1;
        let (number, evicted) = (addresses.last, Arc::new(Notify::new()));
        let place = HandshakeSlot {
            number,
            evicted: Arc::clone(&evicted),
        };
        addresses.known.entry(address).or_default().push_back(place);
        PendingHandshake {
            all: Arc::clone(self),
            address,
            number,
            evicted,
        }
    }
}

impl PendingByAddress {
    /// The oldest connection of an address gives way.
    fn evict(&mut self, address: IpAddr) {
        let oldest = self.known.get_mut(&address).and_then(VecDeque::pop_front);
        if let Some(oldest) = oldest {
            oldest.evicted.notify_one();
            self.pending -= 1;
        }
    }

    /// The address with most of them. O(addresses), and only when all places are taken.
    fn largest(&self) -> Option<IpAddr> {
        let largest = self.known.iter().max_by_key(|(_, places)| places.len());
        largest.map(|(address, _)| *address)
    }
}

impl PendingHandshake {
    /// Returns when it has to give way.
    pub async fn evicted(&self) {
        self.evicted.notified().await;
    }
}

impl Drop for PendingHandshake {
    fn drop(&mut self) {
        let mut addresses = self.all.addresses.lock();
        let Some(places) = addresses.known.get_mut(&self.address) else {
            return;
        };
        let before = places.len();
        places.retain(|place| place.number != self.number);
        let (given_back, is_last) = (before - places.len(), places.is_empty());
        addresses.pending -= given_back;
        if is_last {
            addresses.known.remove(&self.address);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    const BOUNDS: HandshakeBounds = HandshakeBounds::OF_NODES;

    fn address(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    fn enter(all: &Arc<Handshakes>, last: u8, count: usize) -> Vec<PendingHandshake> {
        (0..count)
            .map(|_| all.enter(address(last), BOUNDS))
            .collect()
    }

    fn evicted(pending: &[PendingHandshake]) -> usize {
        let gone = pending
            .iter()
            .filter(|one| one.evicted().now_or_never().is_some());
        gone.count()
    }

    #[tokio::test(start_paused = true)]
    async fn many_of_one_address_hold_up_no_other_address_at_a_rate() {
        let (all, clock) = (HandshakeTurns::default(), Clock::start());
        let many =
            || futures_util::future::join_all((0..50).map(|_| all.wait(address(1), 2, clock)));
        let mut flood = Box::pin(many());
        assert!(flood.as_mut().now_or_never().is_none());
        let mut other = Box::pin(all.wait(address(2), 2, clock));
        assert!(other.as_mut().now_or_never().is_none());
        tokio::select! {
            biased;
            () = &mut other => {}
            _ = &mut flood => panic!("the other one is served before"),
        }
        drop((flood, other));
        assert!(all.of_addresses.lock().is_empty());
    }

    #[test]
    fn the_oldest_of_an_address_gives_way_to_its_next_and_to_nobody_elses() {
        let all = Arc::new(Handshakes::default());
        let other = enter(&all, 2, 1);
        let silent = enter(&all, 1, BOUNDS.per_address);
        assert_eq!(evicted(&silent), 0);
        let mapped = IpAddr::from([0, 0, 0, 0, 0, 0xffff, 0x0a00, 1]);
        let node = all.enter(mapped, BOUNDS);
        assert!(silent[0].evicted().now_or_never().is_some());
        assert_eq!((evicted(&silent[1..]), evicted(&[node])), (0, 0));
        assert_eq!(evicted(&other), 0);
    }

    #[test]
    fn when_all_places_are_taken_the_address_with_most_gives_one_up() {
        let all = Arc::new(Handshakes::default());
        let mut held: Vec<Vec<PendingHandshake>> = (0..3).map(|at| enter(&all, at, 250)).collect();
        held.push(enter(&all, 3, 256));
        held.push(enter(&all, 4, BOUNDS.total - 3 * 250 - 256));
        let node = all.enter(address(99), BOUNDS);
        assert_eq!(evicted(&held[3]), 1);
        assert_eq!(held[..3].iter().map(|one| evicted(one)).sum::<usize>(), 0);
        assert_eq!(all.addresses.lock().pending, BOUNDS.total);
        drop((held, node));
        let addresses = all.addresses.lock();
        assert!(addresses.known.is_empty() && addresses.pending == 0);
    }
}
