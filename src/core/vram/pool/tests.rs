//! Tests of the pool: scenes step by step here, random histories against a simulated host in `host.rs`.

use super::*;

#[path = "tests/claims.rs"]
mod claims;
#[path = "tests/contention.rs"]
mod contention;
#[path = "tests/host.rs"]
mod host;
#[path = "tests/planted.rs"]
mod planted;
#[path = "tests/restarts.rs"]
mod restarts;
#[path = "tests/shared.rs"]
mod shared;

use host::{Fault, GPU, SimulatedHost, model, small_config, turns_config};

use crate::vram::evict::{SwapPolicy, WaitReason};
use crate::vram::schedule::SwapReason;
use crate::vram::slot::{FailedPhase, InstanceFailure, LoadPhase, StopPhase};

fn id(name: &str) -> ModelId {
    ModelId::from(name)
}

fn slot(name: &str) -> SlotId {
    slot_id(&id(name), 0)
}

/// A host with one card of 22,000 MiB and models `a` to `c`, which need 14,000 MiB each, and `s`, which needs 4,000.
fn host() -> SimulatedHost {
    SimulatedHost::new(7, &[22_000], small_config())
}

#[test]
fn the_first_request_loads_a_model_and_the_room_is_leased_before_the_process_starts() {
    let mut host = host();
    host.arrive("a");
    let names = host.log.iter().filter_map(|action| match action {
        Action::Acquire { shares, reason, .. } => {
            Some(format!("acquire {} {}", shares[0].mib, reason.name()))
        }
        Action::Start { .. } => Some("start".to_owned()),
        _ => None,
    });
    assert_eq!(names.collect::<Vec<_>>(), ["acquire 14000 demand"]);
    host.deliver_all();
    assert_eq!(host.state("a"), SlotState::Loading(LoadPhase::Starting));
    host.load("a");
    assert_eq!(host.state("a"), SlotState::Ready);
    assert!(host.open.contains(&slot("a")));
}

/// A card of 22,000 MiB of which 500 are the driver's, with a model `x` whose memory nothing tells beside the others.
fn host_with_unknown() -> SimulatedHost {
    let mut config = small_config();
    let unknown = PoolModel {
        is_exclusive: true,
        ..model(22_000)
    };
    config.models.insert(id("x"), unknown);
    let mut host = SimulatedHost::new(7, &[22_000], config);
    host.set_outside(0, 500);
    host
}

#[test]
fn a_model_of_unknown_memory_leases_what_others_leave_of_a_device_and_is_alone_there() {
    let mut host = host_with_unknown();
    host.arrive("x");
    let shares = host.log.iter().find_map(|action| match action {
        Action::Acquire { shares, .. } => Some(shares[0].mib),
        _ => None,
    });
    assert_eq!(shares, Some(21_500));
    host.deliver_all();
    host.load("x");
    assert_eq!(host.state("x"), SlotState::Ready);
    // What comes free beside its lease is no room for it.
    host.set_outside(0, 400);
    host.arrive("s");
    host.deliver_all();
    assert!(!host.state("s").holds_lease());
}

#[test]
fn a_model_of_unknown_memory_goes_on_no_device_that_has_a_lease() {
    let mut host = host_with_unknown();
    host.arrive("s");
    host.deliver_all();
    host.load("s");
    host.serve_all("s");
    host.arrive("x");
    host.deliver_all();
    assert!(!host.state("x").holds_lease());
    assert!(
        host.state("s") != SlotState::Ready,
        "it makes room for a model that fits"
    );
}

#[test]
fn a_model_without_room_makes_the_least_recently_used_one_end_and_waits_for_its_memory() {
    let mut host = host();
    host.arrive("a");
    host.deliver_all();
    host.load("a");
    host.serve_all("a");
    host.arrive("b");
    assert_eq!(host.state("b"), SlotState::Acquiring(LoadKind::Start));
    assert_eq!(host.state("a"), SlotState::Draining(DrainReason::Victim));
    assert_eq!(host.lease_mib("b"), 0);
    host.deliver_all();
    assert_eq!(host.state("a"), SlotState::Stopping(StopPhase::Terminating));
    host.end("a");
    assert_eq!(host.state("a"), SlotState::Reclaiming);
    assert_eq!(
        host.lease_mib("a"),
        14_000,
        "until the memory is seen to be free"
    );
    host.event("a", SlotEvent::MemoryReturned);
    assert_eq!((host.lease_mib("a"), host.lease_mib("b")), (0, 14_000));
}

/// A host in turns whose model `a` is ready.
fn host_in_turns() -> SimulatedHost {
    let mut host = SimulatedHost::new(7, &[22_000], turns_config());
    host.arrive("a");
    host.deliver_all();
    host.load("a");
    host
}

/// Turns of no time: whatever is not protected leaves.
fn config_without_turns() -> PoolConfig {
    let mut config = turns_config();
    config.swap = SwapRule::ORDER;
    config
}

fn reason(host: &SimulatedHost, name: &str) -> Option<ColdReason> {
    let mut reasons = host.pool.waiting_reasons();
    reasons
        .find(|(model, ..)| model.as_str() == name)
        .map(|(_, reason, _)| reason)
}

#[test]
fn a_busy_model_leaves_once_its_turn_is_over_and_a_victim_serves_on_without_its_challenger() {
    let mut host = host_in_turns();
    host.begin_request("a");
    host.arrive("b");
    let waits = ColdReason::Rule(WaitReason::TurnNotOver);
    assert_eq!(reason(&host, "b"), Some(waits));
    // 4 × (2 s that the load of `a` took + 16.7 s that `b` is expected to take).
    host.pass(Millis::from_secs(73));
    assert_eq!(host.state("a"), SlotState::Ready);
    host.pass(Millis::from_secs(4));
    assert_eq!(host.state("a"), SlotState::Draining(DrainReason::Victim));
    assert_eq!(reason(&host, "b"), Some(ColdReason::AwaitsVictims));
    host.leave_all("b");
    assert_eq!(host.state("a"), SlotState::Ready);
    assert_eq!(host.state("b"), SlotState::Cold);
    assert_eq!(reason(&host, "b"), None);
}

#[test]
fn an_idle_model_leaves_once_the_debt_exceeds_its_cost_and_the_swap_is_reported() {
    let mut host = host_in_turns();
    host.serve_all("a");
    host.arrive("b");
    let waits = ColdReason::Rule(WaitReason::DebtBelowCost);
    assert_eq!(reason(&host, "b"), Some(waits));
    host.pass(Millis::from_secs(14));
    assert_eq!(host.state("a"), SlotState::Draining(DrainReason::Victim));
    let report = host.log.iter().find_map(|action| match action {
        Action::Report {
            slot,
            report:
                PoolReport::Swap {
                    victims,
                    debt,
                    cost,
                    reason,
                },
            ..
        } => Some((slot.clone(), victims.clone(), *debt, *cost, *reason)),
        _ => None,
    });
    let (challenger, victims, debt, cost, reason) = report.expect("a report of the swap");
    assert_eq!((challenger, victims), (slot("b"), vec![slot("a")]));
    assert!(debt >= 13.0 * cost && cost > 0.0, "{debt} against {cost}");
    assert_eq!(reason, SwapReason::DebtAboveCost);
}

#[test]
fn the_rule_is_replaced_without_a_restart() {
    let mut host = host_in_turns();
    host.serve_all("a");
    host.arrive("b");
    assert_eq!(host.state("a"), SlotState::Ready);
    host.configure(small_config());
    assert_eq!(host.state("a"), SlotState::Draining(DrainReason::Victim));
}

#[test]
fn the_first_waiters_of_a_load_are_served_before_others_may_have_the_memory() {
    let mut host = SimulatedHost::new(7, &[22_000], turns_config());
    host.arrive("a");
    host.arrive("b");
    host.deliver_all();
    host.pass(Millis::from_secs(300));
    host.load("a");
    host.configure(config_without_turns());
    host.pass(Millis::from_secs(20));
    assert_eq!(host.state("a"), SlotState::Ready);
    let waits = ColdReason::Rule(WaitReason::Protected);
    assert_eq!(reason(&host, "b"), Some(waits));
    // A server that is ready and serves nothing does not keep the card.
    host.pass(Millis::from_secs(11));
    assert_eq!(host.state("a"), SlotState::Draining(DrainReason::Victim));
}

#[test]
fn a_model_leaves_once_its_first_waiters_are_served() {
    let mut host = SimulatedHost::new(7, &[22_000], config_without_turns());
    host.arrive("a");
    host.deliver_all();
    host.arrive("b");
    host.load("a");
    assert_eq!(host.state("a"), SlotState::Ready);
    host.begin_request("a");
    assert_eq!(host.state("a"), SlotState::Draining(DrainReason::Victim));
}

#[test]
fn an_order_makes_busy_models_leave() {
    let mut host = host_in_turns();
    host.begin_request("a");
    host.command(PoolCommand::Load(id("b")));
    assert_eq!(host.state("a"), SlotState::Draining(DrainReason::Victim));
    let is_order = |action: &Action| {
        matches!(action, Action::Report { report: PoolReport::Swap { reason, .. }, .. }
            if *reason == SwapReason::Order)
    };
    assert!(host.log.iter().any(is_order));
}

#[test]
fn a_device_with_a_challenger_takes_no_other_load() {
    let mut host = host();
    host.arrive("a");
    host.deliver_all();
    host.load("a");
    host.serve_all("a");
    host.arrive("b");
    host.deliver_all();
    host.end("a");
    host.arrive("c");
    host.arrive("s");
    for model in ["c", "s"] {
        assert_eq!(host.state(model), SlotState::Cold);
        let waits = ColdReason::Rule(WaitReason::NoDevice);
        assert_eq!(reason(&host, model), Some(waits));
    }
    host.event("a", SlotEvent::MemoryReturned);
    assert_eq!(host.lease_mib("b"), 14_000);
    host.deliver_all();
    host.load("b");
    assert_eq!(host.state("s"), SlotState::Loading(LoadPhase::Starting));
    assert_eq!(host.state("c"), SlotState::Cold);
}

#[test]
fn models_that_wait_are_listed_in_the_order_of_the_rule_and_a_chosen_one_is_not() {
    let mut host = host_in_turns();
    host.begin_request("a");
    host.arrive("b");
    host.pass(Millis::from_secs(10));
    host.arrive("c");
    let order = |host: &SimulatedHost| {
        let order = host.pool.waiting_challengers(host.now);
        assert!(order.is_sorted_by(|a, b| a.debt_per_load_sec >= b.debt_per_load_sec));
        let names = order.into_iter().map(|it| it.name);
        names.collect::<Vec<_>>()
    };
    let named = |name: &str| ChallengerName::Model(id(name));
    assert_eq!(order(&host), [named("b"), named("c")]);
    host.leave_all("b");
    assert_eq!(order(&host), [named("c")]);
    host.arrive("b");
    host.command(PoolCommand::Load(id("b")));
    assert_eq!(order(&host), [named("c")], "an order has chosen it");
}

/// Two cards that `a` and `c` have, both idle.
fn host_of_two_cards(config: PoolConfig) -> SimulatedHost {
    let mut host = SimulatedHost::new(7, &[22_000, 22_000], config);
    for model in ["a", "c"] {
        host.arrive(model);
        host.deliver_all();
        host.load(model);
        host.serve_all(model);
    }
    host
}

/// The processes of a victim ignore that they are asked to end, and that they are killed.
fn get_stuck(host: &mut SimulatedHost, model: &str) {
    assert_eq!(host.state(model), SlotState::Draining(DrainReason::Victim));
    host.deliver_all();
    host.pass(Millis::from_secs(11));
    host.pass(Millis::from_secs(31));
    assert_eq!(host.state(model), SlotState::Stuck);
}

#[test]
fn a_model_whose_victim_is_stuck_looks_for_room_elsewhere() {
    let mut host = host_of_two_cards(small_config());
    host.arrive("b");
    get_stuck(&mut host, "a");
    assert_eq!(host.state("c"), SlotState::Draining(DrainReason::Victim));
    host.deliver_all();
    host.end("c");
    host.event("c", SlotEvent::MemoryReturned);
    host.deliver_all();
    host.load("b");
    let states = ["a", "b"].map(|model| host.state(model));
    assert_eq!(states, [SlotState::Stuck, SlotState::Ready]);
}

#[test]
fn a_sleeping_victim_ends_where_a_model_needs_all_of_its_memory() {
    let mut config = small_config();
    config.models.get_mut("a").unwrap().asleep_mib = Some(1000);
    config.models.insert(id("whole"), model(22_000));
    let mut host = SimulatedHost::new(7, &[22_000], config);
    host.arrive("a");
    host.deliver_all();
    host.load("a");
    host.serve_all("a");
    host.arrive("whole");
    host.deliver_all();
    assert_eq!(host.state("a"), SlotState::Stopping(StopPhase::Terminating));
    host.end("a");
    host.event("a", SlotEvent::MemoryReturned);
    assert_eq!((host.lease_mib("a"), host.lease_mib("whole")), (0, 22_000));
}

#[test]
fn a_wake_makes_others_leave_on_the_device_of_its_process() {
    let mut config = small_config();
    config.models.get_mut("a").unwrap().asleep_mib = Some(1000);
    let mut host = SimulatedHost::new(7, &[22_000], config);
    host.arrive("a");
    host.deliver_all();
    host.load("a");
    host.serve_all("a");
    host.arrive("b");
    host.deliver_all();
    host.event("a", SlotEvent::Slept);
    assert_eq!(host.lease_mib("b"), 14_000);
    host.deliver_all();
    host.load("b");
    host.serve_all("b");
    host.arrive("a");
    assert_eq!(host.state("b"), SlotState::Draining(DrainReason::Victim));
    assert_eq!(host.state("a"), SlotState::Acquiring(LoadKind::Wake));
}

#[test]
fn pinned_models_are_loaded_first_and_are_no_victims() {
    let mut config = small_config();
    config.models.get_mut("b").unwrap().is_pinned = true;
    config.models.get_mut("s").unwrap().is_preloaded = true;
    let mut host = SimulatedHost::new(7, &[22_000], config);
    assert_eq!(host.state("b"), SlotState::Acquiring(LoadKind::Start));
    assert_eq!(
        host.state("s"),
        SlotState::Cold,
        "one load at a time on a device"
    );
    host.deliver_all();
    host.load("b");
    host.deliver_all();
    host.load("s");
    host.arrive("a");
    assert_eq!(host.state("b"), SlotState::Ready);
    assert_eq!(host.state("a"), SlotState::Cold);
    host.pass(Millis::from_secs(301));
    assert_eq!(
        host.state("s"),
        SlotState::Draining(DrainReason::KeepAliveOver)
    );
    assert_eq!(host.state("b"), SlotState::Ready);
}

#[test]
fn a_pinned_model_is_loaded_again_after_a_crash() {
    let mut config = small_config();
    config.models.get_mut("b").unwrap().is_pinned = true;
    let mut host = SimulatedHost::new(7, &[22_000], config);
    host.deliver_all();
    host.load("b");
    host.crash("b");
    assert_eq!(host.state("b"), SlotState::Failed(FailedPhase::Killing));
    host.end("b");
    host.event("b", SlotEvent::MemoryReturned);
    assert_eq!(host.state("b"), SlotState::Failed(FailedPhase::Backoff));
    host.pass(Millis(1100));
    assert_eq!(host.state("b"), SlotState::Acquiring(LoadKind::Start));
}

#[test]
fn a_model_that_ran_out_of_memory_is_loaded_again_at_once_with_more() {
    let mut host = host();
    host.arrive("a");
    host.deliver_all();
    host.run_out_of_memory("a");
    host.end("a");
    host.event("a", SlotEvent::MemoryReturned);
    assert_eq!(host.lease_mib("a"), 16_100);
    let failed = |action: &Action| {
        matches!(action, Action::Report { report, .. }
        if *report == PoolReport::Failure(InstanceFailure::OutOfMemory))
    };
    assert_eq!(host.log.iter().filter(|action| failed(action)).count(), 1);
}

#[test]
fn a_broken_model_is_refused_and_tried_again_without_a_request() {
    let mut host = host();
    for _ in 0..5 {
        if host.state("a") != SlotState::Acquiring(LoadKind::Start) {
            host.arrive("a");
        }
        host.deliver_all();
        host.crash("a");
        host.end("a");
        host.event("a", SlotEvent::MemoryReturned);
        host.pass(Millis::from_secs(40));
    }
    let model = id("a");
    let reason = RejectReason::Broken;
    assert!(host.log.contains(&Action::Reject { model, reason }));
    assert_eq!(host.waiters("a"), 0);
    host.pass(Millis::from_secs(900));
    assert_eq!(host.state("a"), SlotState::Acquiring(LoadKind::Start));
    host.deliver_all();
    host.load("a");
    assert_eq!(host.outlook("a"), Some(ReadyOutlook::Usable));
}

#[test]
fn a_model_that_fits_no_device_is_refused_until_there_is_one() {
    let mut config = small_config();
    config.models.insert(id("huge"), model(30_000));
    let mut host = SimulatedHost::new(7, &[22_000, 40_000], config);
    let earlier = host.log.len();
    host.lose_device(1);
    let (model, reason) = (id("huge"), RejectReason::DoesNotFit);
    let refused = Action::Reject { model, reason };
    assert!(host.log[earlier..].contains(&refused) && !host.log[..earlier].contains(&refused));
    host.recover_device(1);
    assert!(matches!(
        host.outlook("huge"),
        Some(ReadyOutlook::AfterLoad(_))
    ));
}

#[test]
fn a_lost_device_fails_its_slots_and_no_others() {
    let mut host = SimulatedHost::new(7, &[22_000, 22_000], small_config());
    for model in ["a", "b"] {
        host.arrive(model);
        host.deliver_all();
        host.load(model);
    }
    host.lose_device(0);
    let states = ["a", "b"].map(|model| host.state(model));
    assert!(states.contains(&SlotState::Ready));
    assert!(states.contains(&SlotState::Failed(FailedPhase::Killing)));
}

#[test]
fn a_pin_without_its_device_takes_the_room_of_a_less_urgent_pin_and_of_no_other() {
    for (lost, kept) in [("a", "b"), ("b", "a")] {
        let mut config = small_config();
        for (nth, name) in ["a", "b"].into_iter().enumerate() {
            let model = config.models.get_mut(name).unwrap();
            (model.is_pinned, model.priority) = (true, nth as u8 + 1);
        }
        let mut host = SimulatedHost::new(7, &[22_000, 22_000], config);
        host.deliver_all();
        host.load("a");
        host.deliver_all();
        host.load("b");
        assert_eq!(host.state("b"), SlotState::Ready);
        // The first one to load has the first card.
        host.lose_device(usize::from(lost == "b"));
        assert_eq!(host.state(lost), SlotState::Failed(FailedPhase::Killing));
        host.end(lost);
        host.event(lost, SlotEvent::MemoryReturned);
        host.pass(Millis(1100));
        let unplaced = |host: &SimulatedHost, name: &str| {
            let mut details = host.pool.model_details(host.now).into_iter();
            details.find(|it| it.model == id(name)).unwrap().unplaced
        };
        match lost {
            "a" => {
                assert_eq!(host.state(kept), SlotState::Draining(DrainReason::Victim));
                host.deliver_all();
                assert_eq!(
                    host.state(kept),
                    SlotState::Stopping(StopPhase::Terminating)
                );
                host.end(kept);
                host.event(kept, SlotEvent::MemoryReturned);
                host.deliver_all();
                host.load(lost);
            }
            _ => assert_eq!(host.state(kept), SlotState::Ready),
        }
        host.pass(Millis::from_secs(2));
        assert_eq!(host.state("a"), SlotState::Ready);
        assert_eq!(host.state("b"), SlotState::Cold);
        assert_eq!(unplaced(&host, "a"), None);
        assert!(unplaced(&host, "b") >= Some(Millis::from_secs(2)));
        host.recover_device(usize::from(lost == "b"));
        host.deliver_all();
        host.load("b");
        assert_eq!(unplaced(&host, "b"), None);
        assert_eq!(host.state("b"), SlotState::Ready);
    }
}

#[test]
fn a_new_revision_restarts_a_model_and_another_keep_alive_does_not() {
    let mut host = host();
    host.arrive("a");
    host.deliver_all();
    host.load("a");
    host.serve_all("a");
    let mut config = small_config();
    config.models.get_mut("a").unwrap().keep_alive = None;
    host.configure(config.clone());
    assert_eq!(host.state("a"), SlotState::Ready);
    config.models.get_mut("a").unwrap().revision = 2;
    host.configure(config);
    assert_eq!(
        host.state("a"),
        SlotState::Draining(DrainReason::Configuration)
    );
    host.deliver_all();
    host.end("a");
    host.event("a", SlotEvent::MemoryReturned);
    assert_eq!(host.state("a"), SlotState::Acquiring(LoadKind::Start));
}

#[test]
fn a_load_without_waiters_goes_on_unless_another_model_waits_for_its_room() {
    let mut host = host();
    host.arrive("a");
    host.deliver_all();
    host.leave_all("a");
    assert_eq!(host.state("a"), SlotState::Loading(LoadPhase::Starting));
    host.arrive("s");
    assert_eq!(
        host.state("a"),
        SlotState::Loading(LoadPhase::Starting),
        "there is room beside"
    );
    host.arrive("b");
    assert_eq!(host.state("a"), SlotState::Stopping(StopPhase::Terminating));
}

#[test]
fn a_draining_node_stops_pinned_models_last() {
    let mut config = small_config();
    config.models.get_mut("s").unwrap().is_pinned = true;
    let mut host = SimulatedHost::new(7, &[22_000], config);
    host.deliver_all();
    host.load("s");
    host.arrive("a");
    host.deliver_all();
    host.load("a");
    host.serve_all("a");
    host.command(PoolCommand::DrainNode);
    assert_eq!(host.state("s"), SlotState::Ready);
    host.deliver_all();
    host.end("a");
    host.event("a", SlotEvent::MemoryReturned);
    assert_eq!(host.state("s"), SlotState::Draining(DrainReason::NodeDrain));
}

#[test]
fn a_pool_that_holds_ends_what_it_has_begun_and_begins_nothing() {
    let mut host = SimulatedHost::new(7, &[22_000], small_config());
    host.arrive("a");
    host.deliver_all();
    host.command(PoolCommand::Hold);
    host.load("a");
    host.serve_all("a");
    host.arrive("s");
    host.pass(Millis::from_secs(301));
    host.deliver_all();
    assert_eq!(host.state("a"), SlotState::Ready);
    assert_eq!(host.state("s"), SlotState::Cold);
    host.command(PoolCommand::GoOn);
    host.deliver_all();
    assert_ne!(host.state("s"), SlotState::Cold);
}

#[test]
fn a_sleeping_model_keeps_little_memory_and_is_woken_by_a_request() {
    let mut config = small_config();
    config.models.get_mut("a").unwrap().asleep_mib = Some(1000);
    let mut host = SimulatedHost::new(7, &[22_000], config);
    host.arrive("a");
    host.deliver_all();
    host.load("a");
    host.serve_all("a");
    host.pass(Millis::from_secs(301));
    host.deliver_all();
    host.event("a", SlotEvent::Slept);
    assert_eq!(
        (host.state("a"), host.lease_mib("a")),
        (SlotState::Asleep, 1000)
    );
    host.arrive("a");
    host.deliver_all();
    assert_eq!(host.state("a"), SlotState::Loading(LoadPhase::Waking));
    assert_eq!(host.lease_mib("a"), 14_000);
}

#[test]
fn an_unload_that_meets_a_wake_is_performed_once_the_ledger_has_answered() {
    for is_refused in [false, true] {
        let mut config = small_config();
        config.models.get_mut("a").unwrap().asleep_mib = Some(1000);
        let mut host = SimulatedHost::new(7, &[22_000], config);
        host.arrive("a");
        host.deliver_all();
        host.load("a");
        host.serve_all("a");
        host.pass(Millis::from_secs(301));
        host.deliver_all();
        host.event("a", SlotEvent::Slept);
        host.refuses_leases = is_refused;
        host.arrive("a");
        host.leave_all("a");
        let wakes = SlotState::Acquiring(LoadKind::Wake);
        assert_eq!(host.state("a"), wakes);
        host.command(PoolCommand::Unload(id("a")));
        assert_eq!(host.state("a"), wakes, "the ledger has not answered");
        host.deliver_all();
        assert_eq!(host.state("a"), SlotState::Stopping(StopPhase::Terminating));
        host.end("a");
        host.event("a", SlotEvent::MemoryReturned);
        assert_eq!((host.state("a"), host.lease_mib("a")), (SlotState::Cold, 0));
        // The order was for that process.
        host.refuses_leases = false;
        host.sample();
        host.arrive("a");
        host.deliver_all();
        host.load("a");
        assert_eq!(host.state("a"), SlotState::Ready);
    }
}

#[test]
fn an_unload_ends_a_process_whose_wake_awaits_victims() {
    let mut config = small_config();
    config.models.get_mut("a").unwrap().asleep_mib = Some(1000);
    let mut host = SimulatedHost::new(7, &[22_000], config);
    host.arrive("a");
    host.deliver_all();
    host.load("a");
    host.serve_all("a");
    host.arrive("b");
    host.deliver_all();
    host.event("a", SlotEvent::Slept);
    host.deliver_all();
    host.load("b");
    host.serve_all("b");
    host.arrive("a");
    assert_eq!(host.state("a"), SlotState::Acquiring(LoadKind::Wake));
    host.command(PoolCommand::Unload(id("a")));
    let states = ["a", "b"].map(|model| host.state(model));
    let terminating = SlotState::Stopping(StopPhase::Terminating);
    assert_eq!(states, [terminating, SlotState::Ready]);
}

#[test]
fn an_adopted_process_has_its_leases_and_needs_no_load() {
    let mut host = host();
    host.adopt("a", 14_000);
    assert_eq!(host.state("a"), SlotState::Ready);
    assert!(
        !host
            .log
            .iter()
            .any(|action| matches!(action, Action::Acquire { .. }))
    );
    host.arrive("b");
    assert_eq!(host.state("a"), SlotState::Draining(DrainReason::Victim));
}

#[test]
fn events_of_an_earlier_life_change_nothing() {
    let mut host = host();
    host.arrive("a");
    host.deliver_all();
    let before = host.state("a");
    host.raw_event("a", 0, SlotEvent::ProcessesGone);
    host.raw_event("a", 1, SlotEvent::LeaseHeld);
    host.raw_event("a", 1, SlotEvent::Abort);
    assert_eq!(host.state("a"), before);
    let ignored = |action: &&Action| {
        matches!(
            action,
            Action::Report {
                report: PoolReport::Ignored(_),
                ..
            }
        )
    };
    assert_eq!(host.log.iter().filter(ignored).count(), 3);
    assert_eq!(GPU, "GPU-");
}

/// Events of a usual run; `INFERGATE_POOL_EVENTS` sets another number.
const EVENTS: u64 = 100_000;
/// Events of one seed: then all is healed, and each waiter has to be served.
const EVENTS_PER_SEED: u64 = 2000;

fn events() -> u64 {
    let events = std::env::var("INFERGATE_POOL_EVENTS").ok();
    events.and_then(|text| text.parse().ok()).unwrap_or(EVENTS)
}

/// Returns a digest of the actions, the loads, and the claims that took their room.
fn run_seed(seed: u64, events: u64, policy: SwapPolicy, fault: Option<Fault>) -> (u64, u64, u64) {
    let mut host = SimulatedHost::random(seed, policy, fault);
    for _ in 0..events {
        host.random_event();
    }
    host.heal_and_serve();
    (host.digest(), host.loads, host.claims_taken)
}

fn run_seeds(policy: SwapPolicy) {
    let events = events();
    let (mut loads, mut taken, mut digest) = (0, 0, 0u64);
    for seed in 0..events.div_ceil(EVENTS_PER_SEED) {
        let (one, more, claims) = run_seed(seed, EVENTS_PER_SEED, policy, None);
        digest = digest.wrapping_mul(31).wrapping_add(one);
        loads += more;
        taken += claims;
    }
    println!("{policy:?}: {events} events, {loads} loads, {taken} claims, digest {digest:016x}");
    assert!(loads > events / 200, "{loads} loads");
    assert!(taken > events / 4000, "{taken} claims took their room");
}

#[test]
fn random_histories_in_turns_keep_every_invariant_and_lose_no_waiter() {
    run_seeds(SwapPolicy::Turns);
}

#[test]
fn random_histories_by_last_use_keep_every_invariant_and_lose_no_waiter() {
    run_seeds(SwapPolicy::Lru);
}

#[test]
fn equal_histories_have_equal_actions() {
    let run = |seed| run_seed(seed, 1000, SwapPolicy::Turns, None);
    for seed in [3, 5] {
        assert_eq!(run(seed), run(seed));
    }
    assert_ne!(run(3).0, run(5).0);
}
