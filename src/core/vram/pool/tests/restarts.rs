//! Restarts of several slots, and further slots of a model whose requests wait.

use super::host::{Activity, PERMITS, SimulatedHost, model};
use super::*;

/// A card with room for `room` slots of a model `m` with two, and a model `other` of the same size.
fn host_with_room(room: u64, replicas_min: u16) -> (SimulatedHost, PoolConfig) {
    let mut config = PoolConfig::default();
    config.models.insert(
        id("m"),
        PoolModel {
            replicas_min,
            replicas_max: 2,
            ..model(4000)
        },
    );
    config.models.insert(id("other"), model(4000));
    let host = SimulatedHost::new(7, &[room * 4000 + 1000], config.clone());
    (host, config)
}

/// Processes go on, and memory returns, until nothing changes.
fn settle(host: &mut SimulatedHost) {
    for _ in 0..40 {
        host.deliver_all();
        for slot in host.processes.keys().cloned().collect::<Vec<_>>() {
            host.advance(&slot);
        }
        host.deliver_all();
        for slot in host.reclaiming.iter().cloned().collect::<Vec<_>>() {
            host.reclaiming.remove(&slot);
            let life = host.pool.slot_state(&slot).unwrap().1;
            let at = PoolMoment {
                now: host.now,
                random: 0,
            };
            let actions = host
                .pool
                .slot_event(&slot, life, SlotEvent::MemoryReturned, at);
            host.perform(actions);
        }
    }
}

fn states(host: &SimulatedHost) -> [SlotState; 2] {
    [0, 1].map(|number| host.pool.slot_state(&slot_id(&id("m"), number)).unwrap().0)
}

fn lives(host: &SimulatedHost) -> [u64; 2] {
    [0, 1].map(|number| host.pool.slot_state(&slot_id(&id("m"), number)).unwrap().1)
}

const READY: SlotState = SlotState::Ready;
const CONFIGURATION: SlotState = SlotState::Draining(DrainReason::Configuration);

fn with_revision(config: &PoolConfig, revision: u64) -> PoolConfig {
    let mut config = config.clone();
    config.models.get_mut("m").unwrap().revision = revision;
    config
}

#[test]
fn slots_restart_one_after_the_other_and_the_next_drains_once_the_former_is_ready() {
    let (mut host, config) = host_with_room(2, 2);
    settle(&mut host);
    assert_eq!(states(&host), [READY, READY]);
    host.configure(with_revision(&config, 2));
    assert_eq!(states(&host), [CONFIGURATION, READY]);
    while states(&host)[0] != READY {
        assert_eq!(states(&host)[1], READY);
        host.deliver_all();
        let first = slot_id(&id("m"), 0);
        host.advance(&first);
        host.deliver_all();
        if states(&host)[0] == SlotState::Reclaiming {
            host.event("m", SlotEvent::MemoryReturned);
        }
    }
    assert_ne!(states(&host)[1], READY);
    settle(&mut host);
    assert_eq!((states(&host), lives(&host)), ([READY, READY], [2, 2]));
    assert!(!host.pool.is_restarting(&id("m")));
}

#[test]
fn a_slot_that_is_free_has_its_process_ready_before_the_old_one_drains() {
    let (mut host, config) = host_with_room(2, 0);
    host.command(PoolCommand::Load(id("m")));
    settle(&mut host);
    assert_eq!(states(&host), [READY, SlotState::Cold]);
    host.configure(with_revision(&config, 2));
    assert_eq!(states(&host)[0], READY);
    assert!(states(&host)[1].is_becoming_ready());
    settle(&mut host);
    assert_eq!(states(&host), [SlotState::Cold, READY]);
    assert_eq!(lives(&host), [1, 1]);
    assert!(!host.pool.is_restarting(&id("m")));
}

#[test]
fn without_room_for_a_second_process_the_old_one_drains_first_and_is_loaded_again() {
    let (mut host, config) = host_with_room(1, 0);
    host.command(PoolCommand::Load(id("m")));
    settle(&mut host);
    host.configure(with_revision(&config, 2));
    assert_eq!(states(&host), [CONFIGURATION, SlotState::Cold]);
    settle(&mut host);
    let states = states(&host);
    assert_eq!(states.iter().filter(|state| **state == READY).count(), 1);
}

#[test]
fn a_restart_whose_further_slot_got_no_lease_is_no_unload() {
    let (mut host, config) = host_with_room(2, 0);
    host.command(PoolCommand::Load(id("m")));
    settle(&mut host);
    host.refuses_leases = true;
    host.configure(with_revision(&config, 2));
    assert!(states(&host)[1].is_becoming_ready());
    host.deliver_all();
    assert_eq!(states(&host), [READY, SlotState::Cold]);
    host.refuses_leases = false;
    // Another program has the room for a second process meanwhile.
    host.set_outside(0, 4000);
    assert_eq!(states(&host)[0], CONFIGURATION);
    settle(&mut host);
    let states = states(&host);
    assert_eq!(states.iter().filter(|state| **state == READY).count(), 1);
}

#[test]
fn settings_that_fail_leave_the_former_process_of_another_slot_serving() {
    let (mut host, config) = host_with_room(2, 0);
    host.command(PoolCommand::Load(id("m")));
    settle(&mut host);
    host.configure(with_revision(&config, 2));
    for _ in 0..3 {
        host.deliver_all();
        let second = slot_id(&id("m"), 1);
        if host.processes.contains_key(&second) {
            host.exit(&second, false, false);
        }
        settle(&mut host);
        assert_eq!(states(&host)[0], READY, "{:?}", states(&host));
        assert_eq!(lives(&host)[0], 1);
        host.pass(Millis(400));
    }
    assert!(host.pool.is_restarting(&id("m")));
    // The former settings come back: nothing is outdated any more.
    host.configure(config);
    settle(&mut host);
    assert_eq!((states(&host)[0], lives(&host)[0]), (READY, 1));
    assert!(!host.pool.is_restarting(&id("m")));
}

#[test]
fn a_victim_with_new_settings_does_not_come_back_by_itself() {
    let (mut host, config) = host_with_room(1, 0);
    host.command(PoolCommand::Load(id("m")));
    settle(&mut host);
    host.serve_all("m");
    host.command(PoolCommand::Load(id("other")));
    assert_eq!(states(&host)[0], SlotState::Draining(DrainReason::Victim));
    host.configure(with_revision(&config, 2));
    settle(&mut host);
    assert_eq!(host.state("other"), READY);
    assert_eq!(states(&host), [SlotState::Cold; 2]);
}

#[test]
fn an_order_restarts_each_process_once_and_loads_a_model_without_one() {
    let (mut host, _) = host_with_room(2, 2);
    settle(&mut host);
    host.command(PoolCommand::Restart(id("m")));
    assert!(host.pool.is_restarting(&id("m")));
    settle(&mut host);
    assert_eq!((states(&host), lives(&host)), ([READY, READY], [2, 2]));
    host.pass(Millis::from_secs(100));
    settle(&mut host);
    assert_eq!(lives(&host), [2, 2]);
    host.command(PoolCommand::RestartSlot(slot_id(&id("m"), 1)));
    settle(&mut host);
    assert_eq!(lives(&host), [2, 3]);
    host.command(PoolCommand::Restart(id("other")));
    assert!(host.state("other").is_becoming_ready() || host.state("other") == SlotState::Cold);
}

/// Requests beyond the permits of one slot, of accounts enough that all of them count.
fn flood(host: &mut SimulatedHost) {
    for _ in 0..PERMITS * 2 {
        host.arrive("m");
        host.begin_request("m");
    }
}

#[test]
fn waiting_requests_of_a_model_that_serves_load_a_further_slot_which_ends_when_it_is_idle() {
    let (mut host, _) = host_with_room(2, 0);
    host.command(PoolCommand::Load(id("m")));
    settle(&mut host);
    flood(&mut host);
    assert_eq!(
        states(&host)[1],
        SlotState::Cold,
        "they have not waited long"
    );
    host.pass(Millis::from_secs(6));
    assert!(states(&host)[1].is_becoming_ready(), "{:?}", states(&host));
    settle(&mut host);
    assert_eq!(states(&host), [READY, READY]);
    let second = slot_id(&id("m"), 1);
    while host.grant(&second) {
        host.finish_one(&second);
    }
    host.pass(Millis::from_secs(290));
    assert_eq!(states(&host), [READY, READY]);
    host.pass(Millis::from_secs(20));
    settle(&mut host);
    assert_eq!(states(&host), [READY, SlotState::Cold]);
}

#[test]
fn waiting_requests_wake_a_further_slot_that_fell_asleep() {
    let (mut host, mut config) = host_with_room(2, 0);
    config.models.get_mut("m").unwrap().asleep_mib = Some(500);
    host.configure(config);
    host.command(PoolCommand::Load(id("m")));
    settle(&mut host);
    flood(&mut host);
    host.pass(Millis::from_secs(6));
    settle(&mut host);
    let second = slot_id(&id("m"), 1);
    while host.grant(&second) {
        host.finish_one(&second);
    }
    host.pass(Millis::from_secs(310));
    settle(&mut host);
    assert_eq!(states(&host), [READY, SlotState::Asleep]);
    flood(&mut host);
    host.pass(Millis::from_secs(6));
    let wakes = SlotState::Acquiring(LoadKind::Wake);
    assert_eq!(states(&host), [READY, wakes]);
    settle(&mut host);
    assert_eq!((states(&host), lives(&host)), ([READY; 2], [1, 1]));
}

#[test]
fn no_further_slot_takes_room_that_another_model_waits_for_or_makes_one_leave() {
    let (mut host, _) = host_with_room(2, 0);
    for name in ["m", "other"] {
        host.command(PoolCommand::Load(id(name)));
        settle(&mut host);
    }
    host.serve_all("other");
    flood(&mut host);
    host.pass(Millis::from_secs(60));
    assert_eq!(host.state("other"), READY);
    assert_eq!(states(&host), [READY, SlotState::Cold]);
}

#[test]
fn a_further_slot_of_a_pinned_model_leaves_for_others_and_its_first_one_does_not() {
    let (mut host, mut config) = host_with_room(2, 0);
    config.models.get_mut("m").unwrap().is_pinned = true;
    host.configure(config);
    settle(&mut host);
    flood(&mut host);
    host.pass(Millis::from_secs(6));
    settle(&mut host);
    assert_eq!(states(&host), [READY, READY]);
    let slots = [0, 1].map(|number| slot_id(&id("m"), number));
    for slot in &slots {
        while host.grant(slot) {
            host.finish_one(slot);
        }
        while host.in_flight.get(slot).is_some_and(|count| *count > 0) {
            host.finish_one(slot);
        }
    }
    host.command(PoolCommand::Load(id("other")));
    settle(&mut host);
    assert_eq!(host.state("other"), READY);
    assert_eq!(states(&host), [READY, SlotState::Cold]);
}

#[test]
fn a_process_that_loads_with_former_settings_is_ended_and_loaded_again() {
    let (mut host, config) = host_with_room(2, 0);
    host.arrive("m");
    host.deliver_all();
    let first = slot_id(&id("m"), 0);
    assert_eq!(host.processes[&first].activity, Activity::Starting);
    host.configure(with_revision(&config, 2));
    settle(&mut host);
    let ready = states(&host)
        .iter()
        .filter(|state| **state == READY)
        .count();
    assert_eq!(ready, 1);
    assert!(!host.pool.is_restarting(&id("m")));
}
