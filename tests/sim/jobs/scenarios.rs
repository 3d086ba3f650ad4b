//! Runs of the world of jobs: random seeds without a fault of the store, and each planted fault with its own.
//!
//! Not the shares of flows, which have scenarios of their own.

use fastrand::Rng;

use super::ledger::Broken;
use super::store::PlantedFault;
use super::world::JobsWorld;
use crate::number;

/// Seeds of a usual run.
const SEEDS: u64 = 200;
/// Seeds within which a planted fault is found.
const SEEDS_TO_FIND: u64 = 40;

fn run(seed: u64, fault: Option<PlantedFault>) -> Result<JobsWorld, Broken> {
    let mut world = JobsWorld::new(Rng::with_seed(seed), fault);
    world.run()?;
    Ok(world)
}

#[test]
fn every_job_ends_once_whatever_happens_to_workers_clocks_and_stores() {
    let seeds = match number("INFERGATE_SIM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("INFERGATE_SIM_JOBS_SEEDS").unwrap_or(SEEDS),
    };
    let (mut ended, mut executions, mut steps) = (0, 0, 0);
    let mut rare = [0; 10];
    for seed in seeds.clone() {
        let _on_failure = crate::SeedReporter(seed);
        let world = run(seed, None).unwrap_or_else(|broken| panic!("{broken}"));
        ended += world.store.kept.ended.len();
        executions += world.ledger.executions;
        steps += world.steps;
        let counts = rare.iter_mut().zip(world.ledger.rare.all());
        counts.for_each(|(sum, count)| *sum += count);
    }
    println!("{seeds:?}: {ended} jobs ended, {executions} executions, {steps} steps; {rare:?}");
    // Seeds that reach nothing prove nothing.
    let is_many = seeds.end - seeds.start >= SEEDS;
    assert!(!is_many || rare.iter().all(|count| *count > 0), "{rare:?}");
}

#[test]
fn the_same_seed_is_the_same_run() {
    for seed in 0..5 {
        let digest = || {
            let world = run(seed, None).unwrap_or_else(|broken| panic!("{broken}"));
            let ended = world.store.kept.ended.values();
            let ended: Vec<_> = ended
                .map(|end| (end.event(), end.outcome.state, end.outcome.ended))
                .collect();
            (world.now, world.steps, world.ledger.executions, ended)
        };
        assert_eq!(digest(), digest(), "seed {seed}");
    }
}

/// Returns what the ledger says about a store with a fault, in the first seed that shows it.
fn find(fault: PlantedFault) -> Broken {
    let mut found = (0..SEEDS_TO_FIND).filter_map(|seed| run(seed, Some(fault)).err());
    let found = found.next();
    found.unwrap_or_else(|| panic!("{fault:?} is not found within {SEEDS_TO_FIND} seeds"))
}

#[test]
fn a_store_that_compares_no_epochs_is_found() {
    let broken = find(PlantedFault::EpochNotCompared);
    assert!(broken.contains("is ended by"), "{broken}");
}

#[test]
fn a_store_that_writes_the_outbox_after_the_end_is_found() {
    let broken = find(PlantedFault::OutboxOutsideCommit);
    assert!(broken.contains("without event and webhook"), "{broken}");
}

#[test]
fn leases_by_the_clocks_of_nodes_are_found() {
    let broken = find(PlantedFault::LeaseByNodeClock);
    let is_named = broken.contains("is declared lost and lives")
        || broken.contains("is dead and keeps its jobs");
    assert!(is_named, "{broken}");
}
