//! Shares of two classes that always wait, in simulated time: permit time, and the bound against starvation.
//!
//! Not the admission queue's other promises, which `classes.rs` holds. A permit is held for its class's
//! length, exactly or with a scatter of one half.

use std::collections::{BTreeMap, VecDeque};

use super::super::*;
use super::examples::spec;
use super::request;
use crate::Millis;
use crate::model::{Algorithm, ModelSpec};

/// Holds of the longer kind over which shares are measured.
const HOLDS: u64 = 200;

/// A permit that is out.
struct HeldPermit {
    permit: PermitId,
    class: PermitClass,
    since: Millis,
}

/// Both classes backlogged at one model.
struct BackloggedModel {
    queue: AdmissionQueue,
    spec: ModelSpec,
    permits: u32,
    now: Millis,
    /// Permits out, by the end of their hold.
    out: BTreeMap<(Millis, u64), HeldPermit>,
    grants: [u64; 2],
    /// Permit time since the measurement began, of permits that are back.
    returned_ms: [u64; 2],
    measured_from: Millis,
    lengths: [u64; 2],
    /// Holds scatter by one half.
    is_scattered: bool,
    random: u64,
    /// Times at which the waiters joined, in the order of their grants.
    joined: [VecDeque<Millis>; 2],
    /// Waits of live requests since the measurement began.
    waits: Vec<Millis>,
    /// Permit time granted to the other class since this one's latest grant, as long as holds are exact.
    granted_ms: [u64; 2],
    /// Most of that.
    granted_max_ms: [u64; 2],
}

impl BackloggedModel {
    fn new(permits: u32, share_percent: u32, lengths: [u64; 2]) -> BackloggedModel {
        let mut spec = spec(Algorithm::Fair, &[("a", permits)]);
        spec.jobs.share_percent = share_percent;
        BackloggedModel {
            queue: AdmissionQueue::new(&spec, Millis(0)),
            spec,
            permits,
            now: Millis(0),
            out: BTreeMap::new(),
            grants: [0; 2],
            returned_ms: [0; 2],
            measured_from: Millis(0),
            lengths,
            is_scattered: false,
            random: 1,
            joined: [VecDeque::new(), VecDeque::new()],
            waits: Vec::new(),
            granted_ms: [0; 2],
            granted_max_ms: [0; 2],
        }
    }

    /// Lets requests of both classes join until as many wait as there are permits.
    fn refill(&mut self) {
        for class in PermitClass::ALL {
            while self.joined[class as usize].len() < self.permits as usize {
                let ask = match class {
                    PermitClass::Live => request("ant"),
                    PermitClass::Durable => request("ant").durable(),
                };
                match self.queue.request_permit(ask.build(), self.now, 0) {
                    AdmissionOutcome::Leased(grant) => self.hold(grant),
                    AdmissionOutcome::Queued { .. } => {
                        self.joined[class as usize].push_back(self.now)
                    }
                    AdmissionOutcome::Full(refusal) => panic!("never refused: {refusal:?}"),
                }
            }
        }
    }

    fn hold(&mut self, grant: Grant) {
        let class = grant.turn.class;
        let length = self.lengths[class as usize];
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005);
        self.random = self.random.wrapping_add(1_442_695_040_888_963_407);
        let scattered = length / 2 + (self.random >> 33) % (length + 1);
        let hold = if self.is_scattered { scattered } else { length };
        if grant.ticket.is_some() {
            let joined = self.joined[class as usize].pop_front();
            let wait = self.now.since(joined.expect("a waiter was granted it"));
            self.waits
                .extend((class == PermitClass::Live).then_some(wait));
        }
        self.grants[class as usize] += 1;
        self.granted_ms[class as usize] = 0;
        let other = class.other() as usize;
        self.granted_ms[other] += hold;
        self.granted_max_ms[other] = self.granted_max_ms[other].max(self.granted_ms[other]);
        let key = (self.now + Millis(hold), self.grants[0] + self.grants[1]);
        let held = HeldPermit {
            permit: grant.permit,
            class,
            since: self.now,
        };
        self.out.insert(key, held);
        assert!(
            self.out.len() <= self.permits as usize,
            "never above the limit"
        );
    }

    /// Releases the permit whose hold ends next.
    fn step(&mut self) {
        self.refill();
        assert_eq!(
            self.out.len(),
            self.permits as usize,
            "every permit is used"
        );
        let ((end, _), held) = self.out.pop_first().expect("permits are out");
        self.now = end;
        let since = held.since.max(self.measured_from);
        self.returned_ms[held.class as usize] += end.since(since).0;
        let mut wakes = WaiterUpdates::default();
        self.queue.release(held.permit, self.now, 0, &mut wakes);
        for grant in wakes.grants {
            self.hold(grant);
        }
    }

    /// Lets `class` be granted `count` more permits.
    fn grant(&mut self, class: PermitClass, count: u64) {
        let goal = self.grants[class as usize] + count;
        while self.grants[class as usize] < goal {
            self.step();
        }
    }

    fn begin_measurement(&mut self) {
        self.measured_from = self.now;
        self.returned_ms = [0; 2];
        self.granted_max_ms = [0; 2];
        self.waits.clear();
    }

    fn longer(&self) -> PermitClass {
        match self.lengths {
            [live, durable] if live > durable => PermitClass::Live,
            _ => PermitClass::Durable,
        }
    }

    /// Durable requests' part of the permit time since the measurement began, percent.
    fn durable_percent(&self) -> f64 {
        let mut time = self.returned_ms;
        for held in self.out.values() {
            let since = held.since.max(self.measured_from);
            time[held.class as usize] += self.now.since(since).0;
        }
        time[1] as f64 * 100.0 / (time[0] + time[1]) as f64
    }

    /// Checks the share over [`HOLDS`] holds of the longer kind.
    fn check_share(&mut self, name: &str) {
        self.grant(self.longer(), HOLDS);
        let (percent, meant) = (self.durable_percent(), self.spec.jobs.share_percent);
        assert!(
            (percent - f64::from(meant)).abs() <= 3.0,
            "{name}: {percent:.2} % instead of {meant} %"
        );
        self.queue.check();
    }

    /// Checks that neither class was granted more than the bound while the other waited. Holds are exact.
    fn check_bound(&self, name: &str) {
        let durable = f64::from(self.spec.jobs.share_percent);
        let shares = [100.0 - durable, durable];
        for class in PermitClass::ALL {
            let (own, other) = (class as usize, class.other() as usize);
            let bound = shares[other] / shares[own] * self.lengths[own] as f64;
            let bound = bound + self.lengths[other] as f64;
            let granted = self.granted_max_ms[own] as f64;
            assert!(
                granted <= bound + 1.0,
                "{name}: {granted} ms over {bound} ms"
            );
        }
    }
}

/// Lengths of holds, live ones first, with ratios of 1:1 to 1:1,000 either way.
const LENGTHS: [[u64; 2]; 8] = [
    [1_000, 1_000],
    [500, 1_700],
    [1_700, 500],
    [100, 10_000],
    [10_000, 100],
    [10, 10_000],
    [10_000, 10],
    [700, 900],
];

#[test]
fn shares_hold_within_3_points_and_neither_class_starves_for_all_ratios_of_holds() {
    for lengths in LENGTHS {
        for (permits, share_percent) in [(1, 25), (4, 25), (3, 60), (8, 10)] {
            let name = format!("{lengths:?} with {permits} permits, {share_percent} %");
            let mut model = BackloggedModel::new(permits, share_percent, lengths);
            model.check_share(&name);
            model.begin_measurement();
            model.check_share(&name);
            model.check_bound(&name);
        }
    }
}

#[test]
fn shares_hold_for_holds_that_scatter() {
    for lengths in LENGTHS {
        let mut model = BackloggedModel::new(4, 25, lengths);
        model.is_scattered = true;
        model.check_share(&format!("{lengths:?}"));
    }
}

#[test]
fn shares_hold_after_estimates_that_were_wrong() {
    for (first, lengths) in [
        ([10_000, 10_000], [100, 10_000]),
        ([100, 10], [100, 10_000]),
        ([10, 10_000], [10_000, 10]),
        ([10_000, 10], [10, 10_000]),
        ([1, 1], [1_000, 1_000]),
        ([1_000, 1], [10, 10_000]),
    ] {
        let name = format!("{first:?} before {lengths:?}");
        let mut model = BackloggedModel::new(4, 25, first);
        for class in PermitClass::ALL {
            model.grant(class, 40);
        }
        model.lengths = lengths;
        // Permits of the former lengths return first.
        for _ in 0..4 {
            model.step();
        }
        model.begin_measurement();
        model.check_share(&name);
    }
}

#[test]
fn a_changed_share_holds_from_then_on() {
    let mut model = BackloggedModel::new(4, 25, [100, 10_000]);
    model.check_share("before");
    for share_percent in [50, 5, 80] {
        model.spec.jobs.share_percent = share_percent;
        let mut wakes = WaiterUpdates::default();
        model.queue.configure(&model.spec, model.now, 0, &mut wakes);
        assert!(wakes.grants.is_empty() && wakes.refusals.is_empty());
        model.begin_measurement();
        model.check_share("after");
    }
}

#[test]
fn live_requests_wait_no_longer_than_a_durable_hold_and_their_own_queue() {
    let mut model = BackloggedModel::new(4, 25, [100, 10_000]);
    model.grant(PermitClass::Durable, 10);
    model.begin_measurement();
    model.check_share("share");
    model.waits.sort_unstable();
    let p99 = model.waits[model.waits.len() * 99 / 100];
    // Four wait at three permits of their share.
    assert!(p99 <= Millis(10_000 + 134), "{p99:?}");
}

#[test]
fn waits_of_live_requests_are_estimated_by_their_own_holds_and_permits() {
    let mut model = BackloggedModel::new(4, 25, [100, 10_000]);
    model.grant(PermitClass::Durable, 40);
    model.refill();
    let state = model.queue.state(model.now);
    // Four wait and one more: five holds of 100 ms at the three permits of their share.
    assert_eq!(state.expected_wait, Millis(167));
    assert_eq!((state.durable_waiting, state.durable_max), (4, 4));
}
