//! Tests of claims of other holders: room is made for them as for a cold model, and kept until they take it.

use super::*;
use crate::vram::fit::{PlacementRequest, Split};
use crate::vram::lease::ClaimId;

fn claim(mib: u64, priority: u8, debt: f64, since: Millis) -> PoolClaim {
    PoolClaim {
        id: ClaimId::from("c-1".to_owned()),
        placement: PlacementRequest {
            mib,
            devices: 1,
            split: Split::Never,
            context_mib: 0,
        },
        priority,
        debt,
        since,
    }
}

/// A host of 22,000 MiB on which `a` with 14,000 is ready.
fn host_with_a() -> SimulatedHost {
    let mut host = SimulatedHost::new(7, &[22_000], turns_config());
    host.arrive("a");
    host.deliver_all();
    host.load("a");
    host.serve_all("a");
    host
}

fn set(host: &mut SimulatedHost, claims: Vec<PoolClaim>) {
    host.pool.set_claims(claims);
    host.sample();
}

#[test]
fn an_idle_model_leaves_for_a_claim_and_nothing_else_takes_its_room() {
    let mut host = host_with_a();
    host.pass(Millis::from_secs(100));
    let since = host.now;
    set(&mut host, vec![claim(15_000, 7, 100.0, since)]);
    assert_eq!(host.state("a"), SlotState::Draining(DrainReason::Victim));
    host.deliver_all();
    host.end("a");
    host.event("a", SlotEvent::MemoryReturned);
    assert_eq!(host.state("a"), SlotState::Cold);
    host.arrive("b");
    host.deliver_all();
    assert_eq!(host.state("b"), SlotState::Cold, "its room is the claim's");
    // The claim became a lease.
    host.set_outside(0, 15_000);
    set(&mut host, Vec::new());
    host.arrive("s");
    host.deliver_all();
    assert_ne!(host.state("s"), SlotState::Cold);
    assert_eq!(
        host.state("b"),
        SlotState::Cold,
        "there is no room beside it"
    );
}

#[test]
fn a_claim_that_is_gone_before_a_victim_has_ended_lets_it_serve_on() {
    let mut host = host_with_a();
    host.arrive("a");
    host.begin_request("a");
    let since = host.now;
    host.pass(Millis::from_secs(400));
    set(&mut host, vec![claim(15_000, 5, 1e6, since)]);
    assert_eq!(host.state("a"), SlotState::Draining(DrainReason::Victim));
    set(&mut host, Vec::new());
    assert_eq!(host.state("a"), SlotState::Ready);
}

#[test]
fn a_busy_model_with_more_urgent_requests_keeps_its_memory() {
    let mut host = host_with_a();
    host.arrive("a");
    host.begin_request("a");
    let since = host.now;
    host.pass(Millis::from_secs(400));
    set(&mut host, vec![claim(15_000, 7, 1e6, since)]);
    assert_eq!(host.state("a"), SlotState::Ready);
}

#[test]
fn a_claim_whose_victim_is_stuck_gets_room_elsewhere() {
    let mut host = host_of_two_cards(small_config());
    let since = host.now;
    set(&mut host, vec![claim(15_000, 7, 100.0, since)]);
    get_stuck(&mut host, "a");
    assert_eq!(host.state("c"), SlotState::Draining(DrainReason::Victim));
}

#[test]
fn a_load_that_nothing_waits_for_ends_where_a_claim_has_taken_the_other_room() {
    let mut host = SimulatedHost::new(7, &[22_000, 22_000], small_config());
    host.arrive("a");
    host.deliver_all();
    host.leave_all("a");
    let since = host.now;
    host.pool.set_claims(vec![claim(15_000, 7, 100.0, since)]);
    host.now = host.now + Millis(100);
    // The claim comes first. From its choice on the load is in the way, at the same moment.
    host.arrive("b");
    assert_eq!(host.state("a"), SlotState::Stopping(StopPhase::Terminating));
    assert_eq!(host.state("b"), SlotState::Cold);
}

#[test]
fn room_that_a_claim_does_not_take_is_given_to_others() {
    let mut host = host_with_a();
    host.pass(Millis::from_secs(100));
    let since = host.now;
    set(&mut host, vec![claim(8000, 7, 100.0, since)]);
    assert_eq!(host.state("a"), SlotState::Ready, "there is room beside it");
    host.arrive("s");
    host.deliver_all();
    assert_eq!(host.state("s"), SlotState::Cold);
    host.pass(Millis::from_secs(6));
    host.deliver_all();
    assert_ne!(host.state("s"), SlotState::Cold);
}
