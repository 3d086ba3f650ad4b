//! Sharing of one model's permits between live and durable requests: whose turn it is when both wait.
//!
//! Neither queue nor permit is here: the admission queue reports demand, grants and releases. Virtual
//! service of a class is its permit time over its share; the class with less is next. A permit is charged
//! its expected hold at the grant, its overrun as it happens, and corrected at the release. The algorithm
//! is start-time fair queueing with two flows (<https://dl.acm.org/doi/10.1145/248156.248171>). A bound
//! holds against starvation: from the moment a class waits, the other is granted at most
//! `share(other) / share(class) × longest recent hold of the class`, plus one hold.
//!
//! While a class cannot use a permit its lag behind the other does not grow, and it ends with the last
//! permit: no credit is saved. A debt stays until the other class has caught up. Without durable
//! requests the sharing is inactive: nothing is charged, and a call costs one comparison. Its other work
//! is kept out of the callers' code, so that theirs stays short. That work is O(log permits). Spans are milliseconds. Called by the admission queue.

use std::collections::BTreeSet;

use super::permit_class::{ClassChoice, ClassTurn, PermitClass};
use super::permit_request::PermitId;
use super::service_time::ServiceTimeEstimator;
use crate::Millis;

/// Holds after which a longest hold ages; after as many again it is forgotten. Some eight rounds of a small
/// model's permits.
const RECENT_HOLDS: u32 = 32;

/// Demand of a class for permits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum ClassDemand {
    /// No request waits and none holds a permit.
    #[default]
    Idle,
    /// Requests hold permits; none waits that could use one more.
    Served,
    /// A request waits that could use a permit.
    Waiting,
}

/// Charge of a permit in use: a key of the ordered set, soonest end of the expected hold first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PermitCharge {
    /// End of the expected hold.
    due: Millis,
    permit: PermitId,
    expected: Millis,
}

impl PermitCharge {
    /// Returns the charge of a permit that was granted at `since`.
    pub fn new(permit: PermitId, since: Millis, expected: Millis) -> PermitCharge {
        PermitCharge {
            due: since + expected,
            permit,
            expected,
        }
    }

    fn since(&self) -> Millis {
        self.due - self.expected
    }
}

/// Permits held for longer than expected, as sums, so that time passes for all of them in O(1).
#[derive(Clone, Copy, Debug, Default)]
struct Overruns {
    count: u64,
    due_sum: u64,
    since_sum: u64,
}

impl Overruns {
    fn add(&mut self, charge: PermitCharge) {
        self.count += 1;
        self.due_sum += charge.due.0;
        self.since_sum += charge.since().0;
    }

    fn remove(&mut self, charge: PermitCharge) {
        self.count -= 1;
        self.due_sum -= charge.due.0;
        self.since_sum -= charge.since().0;
    }

    /// Returns the permit time beyond the expected holds at `now`.
    fn total(&self, now: Millis) -> u64 {
        (self.count * now.0).saturating_sub(self.due_sum)
    }

    /// Returns the mean time for which these permits are held so far.
    fn mean_hold(&self, now: Millis) -> Millis {
        let total = (self.count * now.0).saturating_sub(self.since_sum);
        Millis(total / self.count.max(1))
    }
}

/// Longest of the last 32 to 63 holds, at least one millisecond; zero before the first.
#[derive(Clone, Copy, Debug, Default)]
struct LongestHold {
    recent: Millis,
    aged: Millis,
    count: u32,
}

impl LongestHold {
    fn record(&mut self, hold: Millis) {
        if self.count == RECENT_HOLDS {
            self.aged = std::mem::take(&mut self.recent);
            self.count = 0;
        }
        self.count += 1;
        self.recent = self.recent.max(hold).max(Millis(1));
    }

    fn get(&self) -> Millis {
        self.recent.max(self.aged)
    }
}

/// Permit time granted since the other class began to wait, or was last granted a permit.
#[derive(Clone, Copy, Debug)]
struct GrantedTime {
    /// Permits up to this one were granted before.
    after: PermitId,
    /// Without overruns.
    charged_ms: i64,
    overruns: Overruns,
}

impl GrantedTime {
    fn start(after: PermitId) -> GrantedTime {
        GrantedTime {
            after,
            charged_ms: 0,
            overruns: Overruns::default(),
        }
    }

    fn total_ms(&self, now: Millis) -> f64 {
        self.charged_ms as f64 + self.overruns.total(now) as f64
    }
}

/// Service of one class.
#[derive(Debug)]
struct ClassService {
    /// Share of the permit time while both wait, above zero and below one.
    share: f64,
    demand: ClassDemand,
    /// Virtual service without overruns, milliseconds of permit time over the share.
    charged: f64,
    /// Lag behind the other class when it last could use a permit.
    credit: f64,
    /// Charges of permits within their expected hold.
    within: BTreeSet<PermitCharge>,
    overruns: Overruns,
    granted: GrantedTime,
    holds: ServiceTimeEstimator,
    longest: LongestHold,
}

impl ClassService {
    fn new(share: f64) -> ClassService {
        ClassService {
            share,
            demand: ClassDemand::Idle,
            charged: 0.0,
            credit: 0.0,
            within: BTreeSet::new(),
            overruns: Overruns::default(),
            granted: GrantedTime::start(PermitId(0)),
            holds: ServiceTimeEstimator::default(),
            longest: LongestHold::default(),
        }
    }

    /// Returns the virtual service at `now`.
    fn service(&mut self, now: Millis) -> f64 {
        while let Some(charge) = self.within.first().copied()
            && charge.due <= now
        {
            self.within.pop_first();
            self.overruns.add(charge);
            if charge.permit > self.granted.after {
                self.granted.overruns.add(charge);
            }
        }
        self.charged + self.overruns.total(now) as f64 / self.share
    }

    fn charge(&mut self, charge: PermitCharge) {
        self.within.insert(charge);
        self.charged += charge.expected.0 as f64 / self.share;
        self.granted.charged_ms += charge.expected.0 as i64;
    }

    /// Replaces the charge of a permit by the time for which it was held.
    fn settle(&mut self, charge: PermitCharge, now: Millis) {
        let hold = now.since(charge.since());
        let correction = hold.0 as i64 - charge.expected.0 as i64;
        let is_counted = charge.permit > self.granted.after;
        if !self.within.remove(&charge) {
            self.overruns.remove(charge);
            if is_counted {
                self.granted.overruns.remove(charge);
            }
        }
        self.charged += correction as f64 / self.share;
        if is_counted {
            self.granted.charged_ms += correction;
        }
    }

    /// Returns the hold to charge for a grant at `now`, at least one millisecond. Before the mean is
    /// reliable, permits that are out already say more than the first ones that came back.
    fn expected_hold(&mut self, now: Millis) -> Millis {
        let mean = self.holds.mean();
        if self.holds.is_reliable() {
            return mean.max(Millis(1));
        }
        self.service(now);
        mean.max(self.overruns.mean_hold(now)).max(Millis(1))
    }
}

/// Virtual service and hold times of both classes.
#[derive(Debug)]
pub(super) struct ClassShare {
    /// Durable requests wait or hold permits, or did so until a moment ago.
    is_active: bool,
    live: ClassService,
    durable: ClassService,
    /// Latest permit that was charged.
    latest: PermitId,
    /// Class of the latest charge: between equals it is the other's turn.
    served: PermitClass,
}

impl ClassShare {
    /// Creates the sharing, inactive, with `durable_percent` of the permit time for durable requests.
    pub fn new(durable_percent: u32) -> ClassShare {
        let [live, durable] = shares(durable_percent);
        ClassShare {
            is_active: false,
            live: ClassService::new(live),
            durable: ClassService::new(durable),
            latest: PermitId(0),
            served: PermitClass::Durable,
        }
    }

    /// Changes the share of durable requests; the classes start anew as equals.
    pub fn configure(&mut self, durable_percent: u32, now: Millis) {
        let shares = shares(durable_percent);
        if shares != [self.live.share, self.durable.share] {
            [self.live.share, self.durable.share] = shares;
            self.equalise(now);
        }
    }

    /// Returns whether permits are charged.
    pub fn is_active(&self) -> bool {
        self.is_active
    }

    /// Begins to charge permits, with the classes as equals. Permits granted before are never charged.
    pub fn activate(&mut self, now: Millis) {
        if !self.is_active {
            self.is_active = true;
            self.equalise(now);
        }
    }

    /// Returns the hold times of a class.
    pub fn holds(&self, class: PermitClass) -> &ServiceTimeEstimator {
        match class {
            PermitClass::Live => &self.live.holds,
            PermitClass::Durable => &self.durable.holds,
        }
    }

    /// Records the demand of both classes, after every change of it. Ends the sharing when durable requests
    /// are gone and owe nothing to live ones.
    #[inline(never)]
    pub fn set_demand(&mut self, live: ClassDemand, durable: ClassDemand, now: Millis) {
        self.set_demand_of(PermitClass::Live, live, now);
        self.set_demand_of(PermitClass::Durable, durable, now);
        if durable == ClassDemand::Idle && !self.is_remembered(live, now) {
            self.is_active = false;
            for service in [&mut self.live, &mut self.durable] {
                service.demand = ClassDemand::Idle;
                service.credit = 0.0;
            }
        }
    }

    /// Returns whether service of durable requests that are gone still counts: live ones have got less since,
    /// or wait for the first permit since.
    fn is_remembered(&mut self, live: ClassDemand, now: Millis) -> bool {
        let owes = self.durable.service(now) > self.live.service(now);
        match live {
            ClassDemand::Idle => false,
            ClassDemand::Served => owes,
            ClassDemand::Waiting => owes || self.durable.granted.total_ms(now) > 0.0,
        }
    }

    fn set_demand_of(&mut self, class: PermitClass, demand: ClassDemand, now: Millis) {
        let latest = self.latest;
        let (own, other) = self.pair(class);
        let was_waiting = own.demand == ClassDemand::Waiting;
        let is_waiting = demand == ClassDemand::Waiting;
        own.demand = demand;
        if was_waiting && !is_waiting {
            own.credit = (other.service(now) - own.service(now)).max(0.0);
        }
        if is_waiting && !was_waiting {
            let start = other.service(now) - own.credit;
            own.charged += (start - own.service(now)).max(0.0);
            other.granted = GrantedTime::start(latest);
        }
        if demand == ClassDemand::Idle {
            own.credit = 0.0;
        }
    }

    /// Returns the class of the next permit. Both classes wait.
    #[inline(never)]
    pub fn choose(&mut self, now: Millis) -> ClassTurn {
        let services = (self.live.service(now), self.durable.service(now));
        let class = match services {
            (live, durable) if live < durable => PermitClass::Live,
            (live, durable) if live > durable => PermitClass::Durable,
            _ => self.served.other(),
        };
        let (own, other) = self.pair(class);
        if own.granted.total_ms(now) >= granted_max_ms(own, other) {
            return ClassTurn {
                class: class.other(),
                choice: ClassChoice::StarvationBound,
            };
        }
        ClassTurn {
            class,
            choice: ClassChoice::LessService,
        }
    }

    /// Records a grant.
    pub fn record_grant(&mut self, class: PermitClass, now: Millis) {
        self.pair(class).0.holds.record_grant(now);
    }

    /// Returns the hold to charge for a grant at `now`, at least one millisecond.
    pub fn expected_hold(&mut self, class: PermitClass, now: Millis) -> Millis {
        self.pair(class).0.expected_hold(now)
    }

    /// Charges the permit of a grant, while the sharing is active.
    pub fn charge(&mut self, class: PermitClass, charge: PermitCharge) {
        self.latest = charge.permit;
        self.served = class;
        let (own, other) = self.pair(class);
        own.charge(charge);
        other.granted = GrantedTime::start(charge.permit);
    }

    /// Records the release of a permit that was held for `hold`.
    pub fn record_hold(&mut self, class: PermitClass, hold: Millis, now: Millis) {
        let (own, _) = self.pair(class);
        own.holds.record_hold(hold, now);
        own.longest.record(hold);
    }

    /// Corrects the charge of a permit that is released at `now`.
    #[inline(never)]
    pub fn settle(&mut self, class: PermitClass, charge: PermitCharge, now: Millis) {
        self.pair(class).0.settle(charge, now);
    }

    /// Returns the part of `permits` that a class can count on while the other may hold `other_max` of them.
    pub fn permits_of(&self, class: PermitClass, permits: u32, other_max: u32) -> f64 {
        let share = match class {
            PermitClass::Live => self.live.share,
            PermitClass::Durable => self.durable.share,
        };
        let left = permits.saturating_sub(other_max);
        (f64::from(permits) * share).max(f64::from(left))
    }

    fn equalise(&mut self, now: Millis) {
        for service in [&mut self.live, &mut self.durable] {
            service.charged -= service.service(now);
            service.credit = 0.0;
        }
    }

    fn pair(&mut self, class: PermitClass) -> (&mut ClassService, &mut ClassService) {
        match class {
            PermitClass::Live => (&mut self.live, &mut self.durable),
            PermitClass::Durable => (&mut self.durable, &mut self.live),
        }
    }

    /// Asserts that charges are those of `charged` permits of each class, live ones first.
    pub fn check(&self, charged: [usize; 2]) {
        for (service, charged) in [&self.live, &self.durable].into_iter().zip(charged) {
            let counted = service.within.len() + service.overruns.count as usize;
            assert_eq!(counted, charged, "every charge has its permit");
            assert!(
                service.granted.overruns.count <= service.overruns.count,
                "granted time is a part of all"
            );
        }
    }
}

/// Shares of live and durable requests.
fn shares(durable_percent: u32) -> [f64; 2] {
    let durable = f64::from(durable_percent.clamp(1, 99)) / 100.0;
    [1.0 - durable, durable]
}

/// Returns the permit time that `own` may be granted while `other` waits, less one hold. Unbounded before
/// the other's first hold is known: virtual service alone decides until then.
fn granted_max_ms(own: &ClassService, other: &ClassService) -> f64 {
    match other.longest.get() {
        Millis::ZERO => f64::INFINITY,
        hold => own.share / other.share * hold.0 as f64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use PermitClass::{Durable, Live};

    /// Sharing with one permit, while both classes wait.
    struct ShareFixture {
        share: ClassShare,
        now: Millis,
        permits: u64,
    }

    impl ShareFixture {
        fn new(durable_percent: u32) -> ShareFixture {
            let mut share = ClassShare::new(durable_percent);
            share.activate(Millis(0));
            share.set_demand(ClassDemand::Waiting, ClassDemand::Waiting, Millis(0));
            ShareFixture {
                share,
                now: Millis(0),
                permits: 0,
            }
        }

        fn grant(&mut self, class: PermitClass) -> PermitCharge {
            self.permits += 1;
            self.share.record_grant(class, self.now);
            let expected = self.share.expected_hold(class, self.now);
            let charge = PermitCharge::new(PermitId(self.permits), self.now, expected);
            self.share.charge(class, charge);
            charge
        }

        fn release(&mut self, class: PermitClass, charge: PermitCharge) {
            self.share.settle(class, charge, self.now);
            let hold = self.now.since(charge.since());
            self.share.record_hold(class, hold, self.now);
        }

        fn hold(&mut self, class: PermitClass, hold: u64) {
            let charge = self.grant(class);
            self.now = self.now + Millis(hold);
            self.release(class, charge);
        }

        fn demand(&mut self, live: ClassDemand, durable: ClassDemand) {
            self.share.set_demand(live, durable, self.now);
        }

        fn choose(&mut self) -> PermitClass {
            self.share.choose(self.now).class
        }
    }

    #[test]
    fn equals_take_turns_and_the_first_is_live() {
        let mut fixture = ShareFixture::new(50);
        for class in [Live, Durable, Live, Durable] {
            assert_eq!(fixture.choose(), class);
            fixture.hold(class, 0);
        }
    }

    #[test]
    fn a_hold_is_charged_while_it_lasts_and_corrected_at_its_end() {
        let mut fixture = ShareFixture::new(50);
        fixture.hold(Live, 100);
        let durable = fixture.grant(Durable);
        assert_eq!(fixture.choose(), Durable, "one millisecond was charged");
        fixture.now = fixture.now + Millis(150);
        let turn = fixture.share.choose(fixture.now);
        let longer_than_live = ClassTurn {
            class: Live,
            choice: ClassChoice::LessService,
        };
        assert_eq!(turn, longer_than_live);
        fixture.release(Durable, durable);

        let early = fixture.grant(Durable);
        assert_eq!(early.expected, Millis(150));
        fixture.release(Durable, early);
        fixture.hold(Live, 60);
        assert_eq!(fixture.choose(), Durable, "nothing is charged for no time");
    }

    #[test]
    fn a_class_that_was_idle_has_saved_no_credit() {
        let mut fixture = ShareFixture::new(50);
        fixture.demand(ClassDemand::Idle, ClassDemand::Waiting);
        fixture.hold(Durable, 10_000);
        fixture.demand(ClassDemand::Waiting, ClassDemand::Waiting);
        fixture.hold(Live, 10);
        assert_eq!(fixture.choose(), Durable);
    }

    #[test]
    fn a_class_that_comes_back_owes_what_it_owed() {
        let mut fixture = ShareFixture::new(25);
        fixture.hold(Durable, 1000);
        fixture.demand(ClassDemand::Waiting, ClassDemand::Idle);
        assert!(fixture.share.is_active());
        fixture.hold(Live, 1000);
        fixture.demand(ClassDemand::Waiting, ClassDemand::Waiting);
        assert_eq!(fixture.choose(), Live);
        fixture.hold(Live, 2000);
        fixture.hold(Live, 1);
        assert_eq!(fixture.choose(), Durable);
    }

    #[test]
    fn the_sharing_ends_when_durable_requests_are_gone_and_owe_nothing() {
        let mut fixture = ShareFixture::new(25);
        fixture.hold(Durable, 1000);
        fixture.demand(ClassDemand::Waiting, ClassDemand::Idle);
        assert!(fixture.share.is_active());
        fixture.hold(Live, 3000);
        fixture.demand(ClassDemand::Waiting, ClassDemand::Idle);
        assert!(!fixture.share.is_active());
    }

    #[test]
    fn a_class_in_debt_is_next_once_the_other_had_its_bound() {
        let mut fixture = ShareFixture::new(25);
        fixture.hold(Durable, 100);
        let held: Vec<PermitCharge> = (0..8).map(|_| fixture.grant(Durable)).collect();
        for _ in 0..3 {
            assert_eq!(fixture.choose(), Live, "it has more than it owes");
            fixture.hold(Live, 100);
        }
        let turn = fixture.share.choose(fixture.now);
        let next = ClassTurn {
            class: Durable,
            choice: ClassChoice::StarvationBound,
        };
        assert_eq!(turn, next);
        for charge in held {
            fixture.release(Durable, charge);
        }
        fixture.share.check([0, 0]);
    }

    #[test]
    fn the_longest_hold_is_forgotten_after_64_others() {
        let mut longest = LongestHold::default();
        longest.record(Millis(500));
        for _ in 0..62 {
            longest.record(Millis(10));
        }
        assert_eq!(longest.get(), Millis(500));
        longest.record(Millis(10));
        longest.record(Millis(10));
        assert_eq!(longest.get(), Millis(10));
    }

    #[test]
    fn permits_to_count_on_are_the_share_or_all_that_the_other_cannot_have() {
        let share = ClassShare::new(25);
        assert_eq!(share.permits_of(Live, 8, 8), 6.0);
        assert_eq!(share.permits_of(Live, 8, 1), 7.0);
        assert_eq!(share.permits_of(Durable, 8, 8), 2.0);
    }
}
