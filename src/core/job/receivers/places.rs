//! Places of lanes and receivers: each is in at most one set, and the sets hold only what may go on from there.
//!
//! Makes no choice between them. A lane waits for its moment, for its receiver, or for room of its account; a
//! receiver is ready, paused between two probes, or waits for room for a probe. O(log n) per move.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{DeliveryId, Receivers};
use crate::Millis;
use crate::job::webhook::DeliveryResult;

/// Failures in a row from which on a receiver is probed.
const FAILURES_MAX: u32 = 5;

/// Pause before the first probe; each failed one doubles it up to [`PROBE_PAUSE_MAX`]. Without a pause, a receiver
/// that refuses connections would use up the attempts of all that wait.
const PROBE_PAUSE_MIN: Millis = Millis::from_secs(1);
const PROBE_PAUSE_MAX: Millis = Millis::from_secs(60);

/// Deliveries of an account to one receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct LaneKey {
    pub receiver: u64,
    pub account: u64,
}

/// Deliveries of a lane.
#[derive(Debug, Default)]
pub(super) struct Lane {
    /// Ends by due moment, then by arrival.
    pub waiting: BTreeSet<(Millis, u64, DeliveryId)>,
    /// Notices by arrival, all of them due.
    pub notices: BTreeSet<(u64, DeliveryId)>,
    pub in_flight: usize,
    /// Number of the latest start.
    pub turn: u64,
    place: LanePlace,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum LanePlace {
    /// Without a delivery to start.
    #[default]
    Nowhere,
    /// In `timers`.
    Timer(Millis),
    /// In `ready_lanes` of its receiver.
    Ready,
    /// In `parked` of its account.
    Parked,
}

impl Lane {
    /// Moment from which one may start.
    fn next_due(&self) -> Option<Millis> {
        match self.notices.is_empty() {
            true => self.waiting.first().map(|(due, ..)| *due),
            false => Some(Millis::ZERO),
        }
    }

    /// Takes the first that may start: an end before every notice.
    pub fn take_due(&mut self, now: Millis) -> Option<DeliveryId> {
        let is_end = self.waiting.first().is_some_and(|(due, ..)| *due <= now);
        match is_end {
            true => self.waiting.pop_first().map(|(.., id)| id),
            false => self.notices.pop_first().map(|(_, id)| id),
        }
    }

    fn is_empty(&self) -> bool {
        self.in_flight == 0 && self.waiting.is_empty() && self.notices.is_empty()
    }
}

/// Receiver with its record.
#[derive(Debug)]
pub(super) struct Receiver {
    name: Arc<str>,
    pub in_flight: usize,
    /// Number of the latest start; at first that of the creation, so that new receivers do not jump the queue.
    pub turn: u64,
    /// End of the pause between two probes.
    pub paused_until: Option<Millis>,
    failures_in_a_row: u32,
    lanes: usize,
    ready_lanes: BTreeSet<(u64, LaneKey)>,
    place: ReceiverPlace,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReceiverPlace {
    /// Without a lane that is due, or with all in flight that it may have.
    Nowhere,
    /// In `ready`.
    Ready,
    /// In `parked`.
    Parked,
    /// In `pauses`.
    Paused(Millis),
}

impl Receiver {
    pub fn new(name: Arc<str>, turn: u64) -> Receiver {
        Receiver {
            name,
            in_flight: 0,
            turn,
            paused_until: None,
            failures_in_a_row: 0,
            lanes: 0,
            ready_lanes: BTreeSet::new(),
            place: ReceiverPlace::Nowhere,
        }
    }

    pub fn is_failing(&self) -> bool {
        self.failures_in_a_row >= FAILURES_MAX
    }

    pub fn first_ready_lane(&self) -> Option<(u64, LaneKey)> {
        self.ready_lanes.first().copied()
    }

    /// Records the result of an attempt. A receiver that answers 410 is alive.
    pub fn record(&mut self, result: DeliveryResult, now: Millis) {
        match result {
            DeliveryResult::Accepted | DeliveryResult::Gone => {
                self.failures_in_a_row = 0;
                self.paused_until = None;
            }
            DeliveryResult::Failed { .. } => {
                self.failures_in_a_row = self.failures_in_a_row.saturating_add(1);
                if self.is_failing() {
                    let doublings = (self.failures_in_a_row - FAILURES_MAX).min(16);
                    let pause = Millis(PROBE_PAUSE_MIN.0 << doublings).min(PROBE_PAUSE_MAX);
                    self.paused_until = Some(now + pause);
                }
            }
        }
    }
}

impl Receivers {
    pub(super) fn open_lane(&mut self, key: LaneKey) {
        if self.lanes.contains_key(&key) {
            return;
        }
        let lane = Lane {
            turn: self.next_number(),
            ..Lane::default()
        };
        self.lanes.insert(key, lane);
        let receiver = self.receivers.get_mut(&key.receiver);
        receiver.expect("numbered before").lanes += 1;
    }

    /// Forgets a lane without deliveries, and its receiver and account where it was their last.
    pub(super) fn close_lane(&mut self, key: LaneKey) {
        let lane = &self.lanes[&key];
        if !lane.is_empty() {
            return;
        }
        self.unplace_lane(key);
        self.lanes.remove(&key);
        let receiver = self.receivers.get_mut(&key.receiver).expect("has a lane");
        receiver.lanes -= 1;
        if receiver.lanes == 0 {
            self.unplace_receiver(key.receiver);
            if let Some(receiver) = self.receivers.remove(&key.receiver) {
                self.failing -= usize::from(receiver.is_failing());
                self.receiver_numbers.remove(&receiver.name);
            }
        }
        let load = &self.accounts[&key.account];
        if load.in_flight == 0 && load.notices == 0 && load.waiting.is_empty() {
            self.account_numbers.remove(&load.name);
            self.accounts.remove(&key.account);
            self.roomy.remove(&key.account);
        }
    }

    /// Puts a lane where it belongs. Without `now`, one that is due waits for its timer, which has run out.
    pub(super) fn place_lane(&mut self, key: LaneKey, now: Option<Millis>) {
        self.unplace_lane(key);
        let lane = &self.lanes[&key];
        let turn = lane.turn;
        let due = lane.next_due();
        let has_room = lane.in_flight < self.limits.in_flight_max_per_lane;
        let place = match due.filter(|_| has_room) {
            None => LanePlace::Nowhere,
            Some(due) if now.is_none_or(|now| now < due) => {
                self.timers.insert((due, key));
                LanePlace::Timer(due)
            }
            Some(_) => {
                let load = self.accounts.get_mut(&key.account).expect("has a lane");
                if load.in_flight >= self.limits.in_flight_max_per_account {
                    load.parked.insert((turn, key));
                    LanePlace::Parked
                } else {
                    let receiver = self.receivers.get_mut(&key.receiver);
                    let receiver = receiver.expect("has a lane");
                    receiver.ready_lanes.insert((turn, key));
                    LanePlace::Ready
                }
            }
        };
        self.lanes.get_mut(&key).expect("read above").place = place;
        if place == LanePlace::Ready {
            self.place_receiver(key.receiver);
        }
    }

    /// Takes a lane out of its place, before its turn or deliveries change.
    pub(super) fn unplace_lane(&mut self, key: LaneKey) {
        let lane = self.lanes.get_mut(&key).expect("has deliveries");
        let turn = lane.turn;
        match std::mem::take(&mut lane.place) {
            LanePlace::Nowhere => {}
            LanePlace::Timer(due) => {
                self.timers.remove(&(due, key));
            }
            LanePlace::Ready => {
                let receiver = self.receivers.get_mut(&key.receiver);
                receiver
                    .expect("has a lane")
                    .ready_lanes
                    .remove(&(turn, key));
                self.place_receiver(key.receiver);
            }
            LanePlace::Parked => {
                let load = self.accounts.get_mut(&key.account);
                load.expect("has a lane").parked.remove(&(turn, key));
                self.update_room(key.account);
            }
        }
    }

    /// Puts a receiver where it belongs.
    pub(super) fn place_receiver(&mut self, number: u64) {
        self.unplace_receiver(number);
        let has_probe_room = self.probes < self.limits.probes_max;
        let receiver = self.receivers.get_mut(&number).expect("has a lane");
        let in_flight_max = match receiver.is_failing() {
            true => 1,
            false => self.limits.in_flight_max_per_receiver,
        };
        let may_start = !receiver.ready_lanes.is_empty() && receiver.in_flight < in_flight_max;
        receiver.place = match receiver.paused_until {
            _ if !may_start => ReceiverPlace::Nowhere,
            Some(until) => {
                self.pauses.insert((until, number));
                ReceiverPlace::Paused(until)
            }
            None if receiver.is_failing() && !has_probe_room => {
                self.parked.insert((receiver.turn, number));
                ReceiverPlace::Parked
            }
            None => {
                self.ready.insert((receiver.turn, number));
                ReceiverPlace::Ready
            }
        };
    }

    /// Takes a receiver out of its place, before its turn or record changes.
    pub(super) fn unplace_receiver(&mut self, number: u64) {
        let receiver = self.receivers.get_mut(&number).expect("has a lane");
        match std::mem::replace(&mut receiver.place, ReceiverPlace::Nowhere) {
            ReceiverPlace::Nowhere => false,
            ReceiverPlace::Ready => self.ready.remove(&(receiver.turn, number)),
            ReceiverPlace::Parked => self.parked.remove(&(receiver.turn, number)),
            ReceiverPlace::Paused(until) => self.pauses.remove(&(until, number)),
        };
    }

    /// Records whether an account has parked lanes and room for them.
    pub(super) fn update_room(&mut self, account: u64) {
        let load = &self.accounts[&account];
        let has_room = load.in_flight < self.limits.in_flight_max_per_account;
        if has_room && !load.parked.is_empty() {
            self.roomy.insert(account);
        } else {
            self.roomy.remove(&account);
        }
    }

    /// Moves one parked lane on whose account has room again.
    pub(super) fn release_lane(&mut self, now: Millis) -> bool {
        let Some(account) = self.roomy.first().copied() else {
            return false;
        };
        let parked = self.accounts[&account].parked.first().copied();
        let (_, key) = parked.expect("a roomy account has parked lanes");
        self.place_lane(key, Some(now));
        true
    }

    /// Moves one parked receiver on if there is room for a probe.
    pub(super) fn release_probe(&mut self) -> bool {
        let has_room = self.probes < self.limits.probes_max;
        match self.parked.first().copied() {
            Some((_, number)) if has_room => {
                self.place_receiver(number);
                true
            }
            _ => false,
        }
    }
}
