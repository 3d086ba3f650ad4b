//! Several pools on one ledger: gateways that see each other's leases with their next sample, and lease at once.

use fastrand::Rng;

use super::host::SimulatedHost;
use super::{EVENTS_PER_SEED, events};
use crate::vram::evict::SwapPolicy;

/// Gateways of a host.
const GATEWAYS: u64 = 3;

/// Runs random events of gateways with the same cards and models; returns their loads. `see_each_other`: the ledger is
/// one.
fn run(seed: u64, count: u64, policy: SwapPolicy, see_each_other: bool) -> u64 {
    let mut rng = Rng::with_seed(seed);
    let mut hosts: Vec<SimulatedHost> = Vec::new();
    for nth in 0..GATEWAYS {
        let leased = match see_each_other {
            true => sums(hosts.iter()),
            false => Vec::new(),
        };
        let mut host = SimulatedHost::random_beside(seed, policy, None, &leased);
        host.rng.seed(seed * GATEWAYS + nth);
        host.has_neighbours = true;
        hosts.push(host);
    }
    for nth in 0..count {
        let turn = rng.usize(0..hosts.len());
        if see_each_other {
            let others = hosts.iter().enumerate().filter(|(at, _)| *at != turn);
            let leased = sums(others.map(|(_, host)| host));
            hosts[turn].set_neighbours(leased);
        }
        hosts[turn].random_event();
        for (card, leased) in sums(hosts.iter()).into_iter().enumerate() {
            let total_mib = hosts[turn].totals_mib()[card];
            assert!(leased <= total_mib, "over-commit on {card} at event {nth}");
        }
    }
    // Each is left alone in the end, and has to serve what waits.
    for host in &mut hosts {
        host.set_neighbours(std::iter::repeat(0));
        host.heal_and_serve();
    }
    hosts.iter().map(|host| host.loads).sum()
}

/// Leases of hosts on each card; empty without a host.
fn sums<'a>(hosts: impl Iterator<Item = &'a SimulatedHost>) -> Vec<u64> {
    let leased = hosts.map(SimulatedHost::leased_by_card);
    let sum = |a: Vec<u64>, b: Vec<u64>| a.iter().zip(&b).map(|(a, b)| a + b).collect();
    leased.reduce(sum).unwrap_or_default()
}

#[test]
fn random_histories_of_several_pools_on_one_ledger_commit_no_memory_twice() {
    let events = events();
    let mut loads = 0;
    for seed in 0..events.div_ceil(EVENTS_PER_SEED) {
        let policy = match seed % 2 {
            0 => SwapPolicy::Turns,
            _ => SwapPolicy::Lru,
        };
        loads += run(seed, EVENTS_PER_SEED, policy, true);
    }
    println!("{GATEWAYS} pools: {events} events, {loads} loads");
    assert!(loads > events / 400, "{loads} loads");
}

#[test]
fn pools_that_do_not_share_a_ledger_are_found() {
    let found = (0..4).map(|seed| {
        std::panic::catch_unwind(|| run(seed, EVENTS_PER_SEED, SwapPolicy::Turns, false))
    });
    assert!(found.filter(Result::is_err).count() > 0);
}
