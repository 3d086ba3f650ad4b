//! Permits in use: their endpoint, class, time of grant and kind.
//!
//! Endpoints and limits are not here but in [`Endpoints`](super::endpoints::Endpoints). A permit is one
//! of three kinds. An *assigned* one belongs to a request in this process, which releases it by dropping
//! its guard. An *unassigned* one holds a slot before there is a request. A *detached* one belongs to
//! work that outlives its request. No drop releases a detached permit, so it carries a lease that its
//! owner renews; an owner that dies loses the slot when the lease expires.

use std::collections::BTreeSet;

use super::PermitId;
use super::endpoint_id::EndpointId;
use super::permit_class::PermitClass;
use super::slab::Slab;
use crate::Millis;

/// Kind of a permit's owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PermitKind {
    Assigned,
    Unassigned,
    Detached { lease_until: Millis },
}

/// A permit that is out.
#[derive(Clone, Copy, Debug)]
struct PermitRecord {
    endpoint: EndpointId,
    class: PermitClass,
    /// Hold charged at the grant; zero where none was.
    expected: Millis,
    since: Millis,
    kind: PermitKind,
}

/// A released permit: its endpoint, its class and the time it was held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReleasedPermit {
    pub endpoint: EndpointId,
    pub class: PermitClass,
    pub since: Millis,
    /// Hold charged at the grant; zero where none was.
    pub expected: Millis,
    /// Time for which a request held it; `None` when none ever did.
    pub hold: Option<Millis>,
}

/// All permits that are out.
pub(super) struct Permits {
    held: Slab<PermitRecord>,
    /// Detached permits, soonest end of lease first.
    leases: BTreeSet<(Millis, PermitId)>,
}

impl Permits {
    pub fn new() -> Permits {
        Permits {
            held: Slab::new(),
            leases: BTreeSet::new(),
        }
    }

    /// Returns whether no further permit can be recorded.
    pub fn is_full(&self) -> bool {
        self.held.is_full()
    }

    /// A permit for a request, charged with an `expected` hold unless that is zero. The caller has seen that
    /// the table is not full.
    pub fn issue(
        &mut self,
        endpoint: EndpointId,
        class: PermitClass,
        expected: Millis,
        now: Millis,
    ) -> PermitId {
        self.insert(PermitRecord {
            endpoint,
            class,
            expected,
            since: now,
            kind: PermitKind::Assigned,
        })
    }

    /// A live permit without a request. The caller has seen that the table is not full.
    pub fn reserve(&mut self, endpoint: EndpointId, now: Millis) -> PermitId {
        self.insert(PermitRecord {
            endpoint,
            class: PermitClass::Live,
            expected: Millis::ZERO,
            since: now,
            kind: PermitKind::Unassigned,
        })
    }

    fn insert(&mut self, held: PermitRecord) -> PermitId {
        let place = self.held.insert(held);
        PermitId(self.held.key(place))
    }

    /// An unassigned permit has got its request. Others stay what they are.
    pub fn assign(&mut self, permit: PermitId) {
        if let Some(place) = self.held.find(permit.0)
            && self.held[place].kind == PermitKind::Unassigned
        {
            self.held[place].kind = PermitKind::Assigned;
        }
    }

    /// No request had an assigned permit. Others stay what they are.
    pub fn unassign(&mut self, permit: PermitId) {
        if let Some(place) = self.held.find(permit.0)
            && self.held[place].kind == PermitKind::Assigned
        {
            self.held[place].kind = PermitKind::Unassigned;
        }
    }

    /// Puts `permit` under a lease, or moves the end of the one it has. False when it is not out
    /// any more, as after its lease ran out.
    pub fn lease(&mut self, permit: PermitId, lease_until: Millis) -> bool {
        let Some(place) = self.held.find(permit.0) else {
            return false;
        };
        if let PermitKind::Detached { lease_until } = self.held[place].kind {
            self.leases.remove(&(lease_until, permit));
        }
        self.held[place].kind = PermitKind::Detached { lease_until };
        self.leases.insert((lease_until, permit));
        true
    }

    /// Returns whether `permit` is in use.
    pub fn is_held(&self, permit: PermitId) -> bool {
        self.held.find(permit.0).is_some()
    }

    /// Returns whether `permit` is detached and in use.
    pub fn is_detached(&self, permit: PermitId) -> bool {
        let place = self.held.find(permit.0);
        place.is_some_and(|place| matches!(self.held[place].kind, PermitKind::Detached { .. }))
    }

    /// Takes `permit` back; `None` when it is back already.
    pub fn release(&mut self, permit: PermitId, now: Millis) -> Option<ReleasedPermit> {
        let held = self.held.remove(self.held.find(permit.0)?);
        if let PermitKind::Detached { lease_until } = held.kind {
            self.leases.remove(&(lease_until, permit));
        }
        let hold = (held.kind != PermitKind::Unassigned).then(|| now.since(held.since));
        Some(ReleasedPermit {
            endpoint: held.endpoint,
            class: held.class,
            since: held.since,
            expected: held.expected,
            hold,
        })
    }

    /// A detached permit whose lease is over at `now`.
    pub fn expired(&self, now: Millis) -> Option<PermitId> {
        let &(lease_until, permit) = self.leases.first()?;
        (lease_until <= now).then_some(permit)
    }

    /// Permits out at `endpoint`, counted one by one.
    pub fn count_at(&self, endpoint: EndpointId) -> usize {
        self.held
            .iter()
            .filter(|(_, held)| held.endpoint == endpoint)
            .count()
    }

    /// Permits of `class` that are out, and those of them that were charged, counted one by one.
    pub fn count_of(&self, class: PermitClass) -> (usize, usize) {
        let of_class = self.held.iter().filter(|(_, held)| held.class == class);
        let charged = of_class.clone();
        let charged = charged.filter(|(_, held)| held.expected > Millis::ZERO);
        (of_class.count(), charged.count())
    }

    /// Asserts that leases are those of detached permits.
    pub fn check(&self) {
        let mut detached = 0;
        for (place, held) in self.held.iter() {
            if let PermitKind::Detached { lease_until } = held.kind {
                let permit = PermitId(self.held.key(place));
                assert!(
                    self.leases.contains(&(lease_until, permit)),
                    "a lease has an end"
                );
                detached += 1;
            }
        }
        assert_eq!(detached, self.leases.len(), "every lease has its permit");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: EndpointId = EndpointId(3);

    #[test]
    fn a_permit_comes_back_once() {
        let mut permits = Permits::new();
        let permit = permits.issue(AT, PermitClass::Live, Millis::ZERO, Millis(10));
        let returned = ReleasedPermit {
            endpoint: AT,
            class: PermitClass::Live,
            since: Millis(10),
            expected: Millis::ZERO,
            hold: Some(Millis(15)),
        };
        assert_eq!(permits.release(permit, Millis(25)), Some(returned));
        assert_eq!(permits.release(permit, Millis(26)), None);
    }

    #[test]
    fn a_permit_that_goes_back_unused_tells_no_hold_time() {
        let mut permits = Permits::new();
        let permit = permits.issue(AT, PermitClass::Durable, Millis(7), Millis(0));
        permits.unassign(permit);
        let returned = permits.release(permit, Millis(5)).unwrap();
        assert_eq!((returned.hold, returned.expected), (None, Millis(7)));
    }

    #[test]
    fn a_slot_that_never_had_a_request_tells_no_hold_time() {
        let mut permits = Permits::new();
        let [unused, used] = [
            permits.reserve(AT, Millis(0)),
            permits.reserve(AT, Millis(0)),
        ];
        permits.assign(used);
        assert_eq!(permits.release(unused, Millis(5)).unwrap().hold, None);
        assert_eq!(
            permits.release(used, Millis(5)).unwrap().hold,
            Some(Millis(5))
        );
    }

    #[test]
    fn a_detached_permit_is_lost_when_nobody_renews_its_lease() {
        let mut permits = Permits::new();
        let permit = permits.issue(AT, PermitClass::Live, Millis::ZERO, Millis(0));
        assert!(permits.lease(permit, Millis(100)));
        assert_eq!(permits.expired(Millis(99)), None);
        assert!(permits.lease(permit, Millis(200)));
        assert_eq!(permits.expired(Millis(199)), None);
        assert_eq!(permits.expired(Millis(200)), Some(permit));
        permits.check();

        permits.release(permit, Millis(200));
        assert!(!permits.lease(permit, Millis(300)));
        permits.check();
    }
}
