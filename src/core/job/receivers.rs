//! Order of webhook deliveries: bounds in flight, turns between receivers, and probes of those that fail.
//!
//! Neither sends nor keeps bodies, and forgets at a restart: the outbox is the store's. A receiver is a scheme, host
//! and port; a *lane* is what one account sends to one receiver. Receivers take turns, and lanes take turns within a
//! receiver. Notices of running jobs have the same bounds in flight, and go behind the ends of their lane. A delivery costs O(log deliveries) per step; nothing is scanned.

mod places;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use hashbrown::HashMap;

use super::webhook::{DeliveryDecision, DeliveryResult};
use crate::{AccountId, Millis};
use places::{Lane, LaneKey, Receiver};

/// Number of a delivery, given by the caller and unique among those not finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeliveryId(pub u64);

/// Bounds of deliveries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiverLimits {
    /// Deliveries in flight.
    pub in_flight_max: usize,
    /// Deliveries in flight of one account to one receiver.
    pub in_flight_max_per_lane: usize,
    /// Deliveries in flight to one receiver, of all accounts: one that hangs leaves room for others.
    pub in_flight_max_per_receiver: usize,
    /// Deliveries in flight of one account, to all receivers, for the same reason.
    pub in_flight_max_per_account: usize,
    /// Probes in flight of failing receivers, which may all hang.
    pub probes_max: usize,
    /// Deliveries of one account that are not finished. The oldest waiting one beyond becomes a dead letter.
    pub pending_max_per_account: usize,
    /// Deliveries that are not finished. Further ones are to stay in the store.
    pub pending_max: usize,
}

impl Default for ReceiverLimits {
    fn default() -> ReceiverLimits {
        ReceiverLimits {
            in_flight_max: 256,
            in_flight_max_per_lane: 4,
            in_flight_max_per_receiver: 64,
            in_flight_max_per_account: 64,
            probes_max: 64,
            pending_max_per_account: 10_000,
            pending_max: 100_000,
        }
    }
}

/// Answer to a new delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum DeliveryAdmission {
    /// Waits for its turn.
    Waiting,
    /// Waits for its turn; the account's oldest waiting delivery became a dead letter.
    Displaced(DeliveryId),
    /// The number is in use: nothing changed.
    Known,
    /// At [`ReceiverLimits::pending_max`]: nothing changed.
    Full,
}

/// Counts for the state page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReceiversStatus {
    /// Deliveries that wait.
    pub waiting: usize,
    /// Deliveries in flight.
    pub in_flight: usize,
    /// Receivers with deliveries.
    pub receivers: usize,
    /// Receivers among them that are probed.
    pub failing: usize,
}

/// Delivery that is not finished.
#[derive(Clone, Copy, Debug)]
struct Delivery {
    lane: LaneKey,
    /// Order of arrival, which retries keep.
    sequence: u64,
    kind: DeliveryKind,
    phase: DeliveryPhase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DeliveryKind {
    /// End of a job: has a due moment, and may be displaced.
    End,
    /// Notice of a running job: due at once.
    Notice,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DeliveryPhase {
    Waiting { due: Millis },
    InFlight { is_probe: bool },
}

/// Account with deliveries.
#[derive(Debug)]
struct AccountLoad {
    name: AccountId,
    /// Waiting ends by arrival, for the oldest.
    waiting: BTreeMap<u64, DeliveryId>,
    /// Waiting notices.
    notices: usize,
    /// Ends and notices in flight, and the ends among them.
    in_flight: usize,
    ends_in_flight: usize,
    /// Lanes that are due while the account has all it may have in flight, by turn.
    parked: BTreeSet<(u64, LaneKey)>,
}

impl AccountLoad {
    /// Takes a delivery out of those that wait.
    fn take_waiting(&mut self, delivery: &Delivery) {
        match delivery.kind {
            DeliveryKind::End => _ = self.waiting.remove(&delivery.sequence),
            DeliveryKind::Notice => self.notices -= 1,
        }
    }
}

/// Scheduler of deliveries.
#[derive(Debug)]
pub struct Receivers {
    limits: ReceiverLimits,
    deliveries: HashMap<DeliveryId, Delivery>,
    /// Notices among the deliveries.
    notices: usize,
    lanes: HashMap<LaneKey, Lane>,
    receivers: HashMap<u64, Receiver>,
    receiver_numbers: HashMap<Arc<str>, u64>,
    accounts: HashMap<u64, AccountLoad>,
    account_numbers: HashMap<AccountId, u64>,
    /// Receivers that may have a delivery now, the one served longest ago first.
    ready: BTreeSet<(u64, u64)>,
    /// Failing receivers that wait for one of [`ReceiverLimits::probes_max`].
    parked: BTreeSet<(u64, u64)>,
    /// Accounts with parked lanes and room for one in flight.
    roomy: BTreeSet<u64>,
    /// Lanes by the moment of their first delivery.
    timers: BTreeSet<(Millis, LaneKey)>,
    /// Failing receivers by the moment of their next probe.
    pauses: BTreeSet<(Millis, u64)>,
    in_flight: usize,
    probes: usize,
    failing: usize,
    /// Latest number given to a delivery, lane, receiver, account or turn; never used twice.
    number: u64,
}

impl Receivers {
    /// Creates an empty schedule.
    pub fn new(limits: ReceiverLimits) -> Receivers {
        Receivers {
            limits,
            deliveries: HashMap::new(),
            notices: 0,
            lanes: HashMap::new(),
            receivers: HashMap::new(),
            receiver_numbers: HashMap::new(),
            accounts: HashMap::new(),
            account_numbers: HashMap::new(),
            ready: BTreeSet::new(),
            parked: BTreeSet::new(),
            roomy: BTreeSet::new(),
            timers: BTreeSet::new(),
            pauses: BTreeSet::new(),
            in_flight: 0,
            probes: 0,
            failing: 0,
            number: 0,
        }
    }

    /// Adds a delivery to `receiver` (a [`receiver_key`](super::receiver_url::ReceiverUrl::receiver_key)), not to
    /// begin before `due`.
    pub fn add(
        &mut self,
        id: DeliveryId,
        receiver: &Arc<str>,
        account: &AccountId,
        due: Millis,
    ) -> DeliveryAdmission {
        if self.deliveries.contains_key(&id) {
            return DeliveryAdmission::Known;
        }
        if self.deliveries.len() - self.notices >= self.limits.pending_max {
            return DeliveryAdmission::Full;
        }
        let lane = self.insert(id, DeliveryKind::End, receiver, account);
        self.enqueue(id, due);
        match self.displace(lane.account) {
            Some(oldest) => DeliveryAdmission::Displaced(oldest),
            None => DeliveryAdmission::Waiting,
        }
    }

    /// Adds a notice of a running job. Counts against no bound of pending deliveries: a run has one at most. Returns
    /// whether it waits now: a receiver that is probed gets none.
    pub fn add_notice(&mut self, id: DeliveryId, receiver: &Arc<str>, account: &AccountId) -> bool {
        if self.deliveries.contains_key(&id) || self.is_failing(receiver) {
            return false;
        }
        self.insert(id, DeliveryKind::Notice, receiver, account);
        self.notices += 1;
        self.enqueue(id, Millis::ZERO);
        true
    }

    /// Changes [`ReceiverLimits::pending_max_per_account`]. Returns the waiting deliveries beyond it, which are removed.
    pub fn set_pending_max_per_account(&mut self, max: usize) -> Vec<DeliveryId> {
        self.limits.pending_max_per_account = max;
        let accounts: Vec<u64> = self.accounts.keys().copied().collect();
        let mut displaced = Vec::new();
        for account in accounts {
            while let Some(oldest) = self.displace(account) {
                displaced.push(oldest);
            }
        }
        displaced
    }

    /// Removes the oldest waiting end of an account that has more than it may.
    fn displace(&mut self, account: u64) -> Option<DeliveryId> {
        let load = self.accounts.get(&account)?;
        let pending = load.waiting.len() + load.ends_in_flight;
        let (_, oldest) = load.waiting.first_key_value()?;
        let oldest = *oldest;
        if pending <= self.limits.pending_max_per_account {
            return None;
        }
        self.remove(oldest);
        Some(oldest)
    }

    /// Returns whether a delivery in flight probes its receiver.
    pub fn is_probe(&self, id: DeliveryId) -> bool {
        let phase = self.deliveries.get(&id).map(|delivery| delivery.phase);
        phase == Some(DeliveryPhase::InFlight { is_probe: true })
    }

    fn insert(
        &mut self,
        id: DeliveryId,
        kind: DeliveryKind,
        receiver: &Arc<str>,
        account: &AccountId,
    ) -> LaneKey {
        let lane = LaneKey {
            receiver: self.number_receiver(receiver),
            account: self.number_account(account),
        };
        let delivery = Delivery {
            lane,
            sequence: self.next_number(),
            kind,
            phase: DeliveryPhase::Waiting { due: Millis::ZERO },
        };
        self.deliveries.insert(id, delivery);
        self.open_lane(lane);
        lane
    }

    /// Starts the next delivery: of the receivers with one due, the one served longest ago. To be called until
    /// there is none.
    pub fn next(&mut self, now: Millis) -> Option<DeliveryId> {
        self.wake(now);
        while self.in_flight < self.limits.in_flight_max {
            let was_parked = self.release_lane(now) | self.release_probe();
            match self.ready.first() {
                Some((_, number)) => {
                    if let Some(lane) = self.choose_lane(*number, now) {
                        return Some(self.start(lane, now));
                    }
                }
                None if was_parked => {}
                None => return None,
            }
        }
        None
    }

    /// Ends an attempt. After [`DeliveryDecision::RetryAt`] the delivery waits again. A delivery that is not in
    /// flight is left as it is.
    pub fn finish(
        &mut self,
        id: DeliveryId,
        result: DeliveryResult,
        decision: DeliveryDecision,
        now: Millis,
    ) {
        let Some(delivery) = self.take_in_flight(id) else {
            return;
        };
        self.record_result(delivery.lane.receiver, result, now);
        match decision {
            DeliveryDecision::RetryAt(due) => self.enqueue(id, due),
            DeliveryDecision::Done | DeliveryDecision::Dead => self.forget(id),
        }
        self.settle(delivery.lane);
    }

    /// Takes a delivery out, waiting or in flight: settled by another node, or dead by hand. Returns whether it
    /// was there. Says nothing about the receiver.
    pub fn remove(&mut self, id: DeliveryId) -> bool {
        let Some(delivery) = self.deliveries.get(&id).copied() else {
            return false;
        };
        match delivery.phase {
            DeliveryPhase::InFlight { .. } => {
                self.take_in_flight(id);
            }
            DeliveryPhase::Waiting { due } => {
                let load = self.accounts.get_mut(&delivery.lane.account);
                load.expect("has a lane").take_waiting(&delivery);
                let lane = self.lanes.get_mut(&delivery.lane);
                let lane = lane.expect("has a delivery");
                match delivery.kind {
                    DeliveryKind::End => lane.waiting.remove(&(due, delivery.sequence, id)),
                    DeliveryKind::Notice => lane.notices.remove(&(delivery.sequence, id)),
                };
            }
        }
        self.forget(id);
        self.settle(delivery.lane);
        true
    }

    fn forget(&mut self, id: DeliveryId) {
        if let Some(delivery) = self.deliveries.remove(&id) {
            self.notices -= usize::from(delivery.kind == DeliveryKind::Notice);
        }
    }

    /// Earliest moment at which [`next`](Self::next) may start a delivery without a finish before; zero when one is
    /// due already.
    pub fn next_due(&self) -> Option<Millis> {
        if self.in_flight >= self.limits.in_flight_max {
            return None;
        }
        let has_room = self.probes < self.limits.probes_max && !self.parked.is_empty();
        if has_room || !self.ready.is_empty() || !self.roomy.is_empty() {
            return Some(Millis::ZERO);
        }
        let timer = self.timers.first().map(|(due, _)| *due);
        let pause = self.pauses.first().map(|(due, _)| *due);
        timer.into_iter().chain(pause).min()
    }

    /// Returns the counts. O(1).
    pub fn status(&self) -> ReceiversStatus {
        ReceiversStatus {
            waiting: self.deliveries.len() - self.in_flight,
            in_flight: self.in_flight,
            receivers: self.receivers.len(),
            failing: self.failing,
        }
    }

    /// Returns whether `receiver` is probed by one delivery at a time.
    pub fn is_failing(&self, receiver: &str) -> bool {
        let number = self.receiver_numbers.get(receiver);
        let receiver = number.and_then(|number| self.receivers.get(number));
        receiver.is_some_and(Receiver::is_failing)
    }

    fn next_number(&mut self) -> u64 {
        self.number += 1;
        self.number
    }

    fn number_receiver(&mut self, name: &Arc<str>) -> u64 {
        if let Some(number) = self.receiver_numbers.get(name) {
            return *number;
        }
        let number = self.next_number();
        self.receiver_numbers.insert(name.clone(), number);
        let receiver = Receiver::new(name.clone(), number);
        self.receivers.insert(number, receiver);
        number
    }

    fn number_account(&mut self, name: &AccountId) -> u64 {
        if let Some(number) = self.account_numbers.get(name) {
            return *number;
        }
        let number = self.next_number();
        self.account_numbers.insert(name.clone(), number);
        let load = AccountLoad {
            name: name.clone(),
            waiting: BTreeMap::new(),
            notices: 0,
            in_flight: 0,
            ends_in_flight: 0,
            parked: BTreeSet::new(),
        };
        self.accounts.insert(number, load);
        number
    }

    fn enqueue(&mut self, id: DeliveryId, due: Millis) {
        let delivery = self.deliveries.get_mut(&id).expect("added before");
        delivery.phase = DeliveryPhase::Waiting { due };
        let (key, sequence) = (delivery.lane, delivery.sequence);
        let load = self.accounts.get_mut(&key.account);
        let load = load.expect("added with its lane");
        let lane = self.lanes.get_mut(&key).expect("added before");
        match delivery.kind {
            DeliveryKind::End => {
                load.waiting.insert(sequence, id);
                lane.waiting.insert((due, sequence, id));
            }
            DeliveryKind::Notice => {
                load.notices += 1;
                lane.notices.insert((sequence, id));
            }
        }
        self.place_lane(key, None);
    }

    /// Moves lanes and receivers whose moment has come.
    fn wake(&mut self, now: Millis) {
        while let Some((due, key)) = self.timers.first().copied()
            && due <= now
        {
            self.place_lane(key, Some(now));
        }
        while let Some((due, number)) = self.pauses.first().copied()
            && due <= now
        {
            let receiver = self.receivers.get_mut(&number);
            receiver.expect("paused").paused_until = None;
            self.place_receiver(number);
        }
    }

    /// Returns the lane of `number` to serve, or none after the receiver or a lane was put aside.
    fn choose_lane(&mut self, number: u64, now: Millis) -> Option<LaneKey> {
        let receiver = &self.receivers[&number];
        let is_probe = receiver.is_failing();
        let (_, key) = receiver.first_ready_lane()?;
        let load = &self.accounts[&key.account];
        if load.in_flight >= self.limits.in_flight_max_per_account {
            self.place_lane(key, Some(now));
            return None;
        }
        if is_probe && self.probes >= self.limits.probes_max {
            self.place_receiver(number);
            return None;
        }
        Some(key)
    }

    fn start(&mut self, key: LaneKey, now: Millis) -> DeliveryId {
        let turn = self.next_number();
        self.unplace_lane(key);
        self.unplace_receiver(key.receiver);
        let lane = self.lanes.get_mut(&key).expect("ready");
        lane.turn = turn;
        lane.in_flight += 1;
        let id = lane.take_due(now);
        let id = id.expect("a ready lane has a delivery that is due");
        let receiver = self.receivers.get_mut(&key.receiver).expect("ready");
        receiver.turn = turn;
        receiver.in_flight += 1;
        let is_probe = receiver.is_failing();
        let load = self.accounts.get_mut(&key.account).expect("has a lane");
        let delivery = self.deliveries.get_mut(&id).expect("waits");
        load.take_waiting(delivery);
        load.in_flight += 1;
        load.ends_in_flight += usize::from(delivery.kind == DeliveryKind::End);
        self.in_flight += 1;
        self.probes += usize::from(is_probe);
        delivery.phase = DeliveryPhase::InFlight { is_probe };
        self.update_room(key.account);
        self.place_lane(key, Some(now));
        self.place_receiver(key.receiver);
        id
    }

    /// Takes a delivery out of flight; the caller settles its lane.
    fn take_in_flight(&mut self, id: DeliveryId) -> Option<Delivery> {
        let delivery = *self.deliveries.get(&id)?;
        let DeliveryPhase::InFlight { is_probe } = delivery.phase else {
            return None;
        };
        let key = delivery.lane;
        self.lanes.get_mut(&key).expect("in flight").in_flight -= 1;
        let receiver = self.receivers.get_mut(&key.receiver);
        receiver.expect("in flight").in_flight -= 1;
        let load = self.accounts.get_mut(&key.account);
        let load = load.expect("in flight");
        load.in_flight -= 1;
        load.ends_in_flight -= usize::from(delivery.kind == DeliveryKind::End);
        self.in_flight -= 1;
        self.probes -= usize::from(is_probe);
        self.update_room(key.account);
        Some(delivery)
    }

    fn record_result(&mut self, number: u64, result: DeliveryResult, now: Millis) {
        // The order of places depends on the record: out first, back when the lane is settled.
        self.unplace_receiver(number);
        let receiver = self.receivers.get_mut(&number).expect("in flight");
        let was_failing = receiver.is_failing();
        receiver.record(result, now);
        match (was_failing, receiver.is_failing()) {
            (false, true) => self.failing += 1,
            (true, false) => self.failing -= 1,
            _ => {}
        }
    }

    /// Places a lane and its receiver anew after a delivery left.
    fn settle(&mut self, key: LaneKey) {
        self.place_lane(key, None);
        self.place_receiver(key.receiver);
        self.close_lane(key);
    }
}

#[cfg(test)]
#[path = "tests/receivers.rs"]
mod tests;
