//! Planted faults: each of them turns the checks of the simulated host red.

use super::contention::Contention;
use super::host::Fault;
use super::run_seed;
use crate::vram::evict::SwapPolicy;

/// Runs seeds until a check fails.
fn run_with(fault: Fault) {
    for seed in 0..100 {
        run_seed(seed, 2000, SwapPolicy::Turns, Some(fault));
    }
}

#[test]
#[should_panic(expected = "asks for more than is free")]
fn memory_that_is_granted_twice_is_found() {
    run_with(Fault::DoubleGrant);
}

#[test]
#[should_panic(expected = "is pinned")]
fn an_evicted_pin_is_found() {
    run_with(Fault::EvictedPin);
}

#[test]
#[should_panic(expected = "waiters without a path")]
fn a_lost_waiter_is_found() {
    run_with(Fault::LostWaiter);
}

#[test]
#[should_panic(expected = "has a lease")]
fn a_lease_of_a_dead_holder_is_found() {
    run_with(Fault::DeadHolder);
}

#[test]
#[should_panic(expected = "is promised twice")]
fn room_of_a_claim_that_is_given_to_others_is_found() {
    run_with(Fault::LostClaim);
}

#[test]
#[should_panic(expected = "waits longer than its bound")]
fn starvation_is_found() {
    let mut contention = Contention::new(1, 2);
    contention.set_turn(1000);
    contention.run(20_000);
}

#[test]
#[should_panic(expected = "waits longer than its bound")]
fn starvation_among_several_is_found() {
    let mut contention = Contention::new(1, 4);
    contention.set_turn(1000);
    contention.run(20_000);
}
