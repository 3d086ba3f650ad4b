//! Tests of the rule: its parts one by one, random states against what must never be, and the bound of a wait.

use fastrand::Rng;

use super::super::contender::Protection;
use super::super::device::{DeviceId, DeviceKind};
use super::super::fit::{Placement, PlacementRequest, Split, place};
use super::*;

const NOW: Millis = Millis(10_000_000);
/// States of a usual run; `INFERGATE_SWAP_STATES` sets another number.
const STATES: u64 = 120_000;

fn device(index: u32) -> DeviceId {
    DeviceId::from(format!("GPU-{index}").as_str())
}

fn room(index: u32, free_mib: u64) -> DeviceRoom {
    DeviceRoom {
        id: device(index),
        index,
        kind: DeviceKind::Gpu,
        name: "card".into(),
        empty_mib: 24_000,
        free_mib,
        residents: 0,
    }
}

/// A model with a load time of 10 s that waits.
fn cold(mib: u64, debt: f64, waited_secs: u64) -> ColdModel {
    ColdModel {
        placement: PlacementRequest {
            mib,
            devices: 1,
            split: Split::Never,
            context_mib: 450,
        },
        growth: Vec::new(),
        load: Millis::from_secs(10),
        priority: 5,
        spares_urgent: false,
        debt,
        unserved_since: NOW - Millis::from_secs(waited_secs),
    }
}

/// A resident with a load time of 10 s that is idle since it became ready.
fn idle(index: u32, mib: u64, arrivals_per_sec: f64, ready_secs: u64) -> Resident<'static> {
    let ready_since = NOW - Millis::from_secs(ready_secs);
    Resident {
        shares: vec![DeviceShare {
            device: device(index),
            mib,
        }]
        .into(),
        load: Millis::from_secs(10),
        priority: 5,
        arrivals_per_sec,
        is_busy: false,
        ready_since,
        last_used: ready_since,
        protection: None,
    }
}

fn busy(index: u32, mib: u64, ready_secs: u64) -> Resident<'static> {
    Resident {
        is_busy: true,
        ..idle(index, mib, 1.0, ready_secs)
    }
}

fn decide(cold: &[ColdModel], residents: &[Resident<'_>], rooms: &[DeviceRoom]) -> SwapDecision {
    SwapRule::default().next_step(cold, residents, rooms, NOW)
}

/// The model that is loaded and its victims, of a swap.
fn swapped(decision: &SwapDecision) -> Option<(usize, &[usize])> {
    match &decision.step {
        SwapStep::Swap { model, victims, .. } => Some((*model, victims)),
        SwapStep::Load { .. } | SwapStep::Wait => None,
    }
}

#[test]
fn free_memory_goes_to_the_greatest_debt_for_the_time_of_its_load() {
    let mut models = [
        cold(4000, 10.0, 5),
        cold(4000, 30.0, 5),
        cold(4000, 20.0, 5),
    ];
    models[1].load = Millis::from_secs(100);
    let decision = decide(&models, &[], &[room(0, 9000)]);
    assert!(matches!(decision.step, SwapStep::Load { model: 2, .. }));
    let reasons = [(0, WaitReason::OtherFirst), (1, WaitReason::OtherFirst)];
    assert_eq!(decision.waiting, reasons);
}

#[test]
fn an_idle_resident_leaves_once_the_debt_exceeds_its_cost() {
    // 0.01 a second × 2 × (10 s)² × 13.
    let residents = [idle(0, 20_000, 0.01, 1)];
    let rooms = [room(0, 1000)];
    let below = decide(&[cold(8000, 25.9, 5)], &residents, &rooms);
    assert_eq!(below.waiting, [(0, WaitReason::DebtBelowCost)]);
    let above = decide(&[cold(8000, 26.1, 5)], &residents, &rooms);
    assert_eq!(swapped(&above), Some((0, [0].as_slice())));
    let SwapStep::Swap { shares, reason, .. } = above.step else {
        panic!("a swap");
    };
    assert_eq!((shares[0].mib, reason), (8000, SwapReason::DebtAboveCost));
}

#[test]
fn a_busy_resident_leaves_after_its_turn_once_the_model_has_waited_as_long() {
    let rooms = [room(0, 1000)];
    let with = |waited, ready| {
        decide(
            &[cold(8000, 1e9, waited)],
            &[busy(0, 20_000, ready)],
            &rooms,
        )
    };
    // 4 × (10 s + 10 s).
    assert_eq!(with(79, 500).waiting, [(0, WaitReason::TurnNotOver)]);
    assert_eq!(with(500, 79).waiting, [(0, WaitReason::TurnNotOver)]);
    let over = with(80, 80);
    assert_eq!(swapped(&over), Some((0, [0].as_slice())));
    let SwapStep::Swap { cost, reason, .. } = over.step else {
        panic!("a swap");
    };
    assert_eq!((cost, reason), (0.0, SwapReason::TurnOver));
}

#[test]
fn a_model_that_loads_slowly_is_not_overtaken_at_the_end_of_each_turn() {
    let rooms = [room(0, 1000)];
    let mut slow = cold(8000, 1e9, 500);
    slow.load = Millis::from_secs(30);
    let quick = cold(8000, 1e6, 500);
    let with = |slow: &ColdModel, ready| {
        let cold = [slow.clone(), quick.clone()];
        decide(&cold, &[busy(0, 20_000, ready)], &rooms)
    };
    // 4 × (10 s + 10 s), and 4 × (30 s + 10 s).
    let waits = [0, 1].map(|model| (model, WaitReason::TurnNotOver));
    assert_eq!(with(&slow, 80).waiting, waits);
    assert_eq!(with(&slow, 159).waiting, waits);
    assert_eq!(swapped(&with(&slow, 160)), Some((0, [0].as_slice())));
    // Behind the other, or before it has waited for a turn itself, it reserves nothing.
    let mut behind = slow.clone();
    behind.debt = 1.0;
    assert_eq!(swapped(&with(&behind, 80)), Some((1, [0].as_slice())));
    let mut new = slow.clone();
    new.unserved_since = quick.unserved_since + Millis::from_secs(400);
    assert_eq!(swapped(&with(&new, 80)), Some((1, [0].as_slice())));
    // A more urgent resident has a longer turn against it, and not against the other.
    slow.priority = 9;
    assert_eq!(swapped(&with(&slow, 80)), Some((1, [0].as_slice())));
}

#[test]
fn a_turn_is_longer_against_a_less_urgent_model() {
    let rooms = [room(0, 1000)];
    let mut model = cold(8000, 1e9, 700);
    let mut resident = busy(0, 20_000, 639);
    (model.priority, resident.priority) = (9, 0);
    let decision = decide(&[model.clone()], &[resident.clone()], &rooms);
    assert_eq!(decision.waiting, [(0, WaitReason::TurnNotOver)]);
    resident.ready_since = NOW - Millis::from_secs(640);
    assert!(swapped(&decide(&[model], &[resident], &rooms)).is_some());
}

#[test]
fn the_cheapest_memory_leaves_and_no_victim_is_superfluous() {
    let rooms = [room(0, 0)];
    let residents = [
        idle(0, 4000, 0.001, 5),
        idle(0, 8000, 0.02, 5),
        idle(0, 12_000, 0.01, 5),
    ];
    // The first is the cheapest, but the third alone suffices.
    let decision = decide(&[cold(12_000, 1e6, 5)], &residents, &rooms);
    assert_eq!(swapped(&decision), Some((0, [2].as_slice())));
    let decision = decide(&[cold(13_000, 1e6, 5)], &residents, &rooms);
    assert_eq!(swapped(&decision), Some((0, [0, 2].as_slice())));
}

#[test]
fn of_superfluous_victims_the_dearest_stays() {
    let residents = [
        idle(0, 4000, 0.001, 5),
        idle(0, 4000, 0.002, 5),
        idle(0, 12_000, 0.01, 5),
    ];
    let decision = decide(&[cold(14_000, 1e6, 5)], &residents, &[room(0, 0)]);
    assert_eq!(swapped(&decision), Some((0, [0, 2].as_slice())));
}

#[test]
fn among_equals_the_least_recently_used_leaves_and_the_cheapest_device_wins() {
    let rooms = [room(0, 0), room(1, 0)];
    let residents = [
        idle(0, 12_000, 0.01, 5),
        idle(0, 12_000, 0.01, 9),
        idle(1, 24_000, 0.02, 9),
    ];
    let decision = decide(&[cold(12_000, 1e6, 5)], &residents, &rooms);
    assert_eq!(swapped(&decision), Some((0, [1].as_slice())));
}

#[test]
fn of_idle_residents_the_least_recently_used_leaves_once_the_shortest_turn_is_over() {
    let rooms = [room(0, 0)];
    let mut fast = idle(0, 12_000, 0.01, 500);
    fast.load = Millis::from_secs(5);
    fast.last_used = NOW - Millis::from_secs(20);
    let mut slow = idle(0, 12_000, 0.02, 500);
    slow.load = Millis::from_secs(30);
    slow.last_used = NOW - Millis::from_secs(400);
    // Longer by its priority, if it were busy.
    slow.priority = 2;
    let residents = [fast, slow];
    let leaves = |waited, debt| {
        let decision = decide(&[cold(8000, debt, waited)], &residents, &rooms);
        swapped(&decision).map(|(_, victims)| victims.to_vec())
    };
    // 4 × (10 s + 5 s) are over, 4 × (10 s + 30 s) are not. Before, the cheapest leaves.
    assert_eq!(leaves(59, 1e6), Some(vec![0]));
    assert_eq!(leaves(60, 0.001), Some(vec![1]));
}

#[test]
fn a_need_of_two_devices_takes_victims_of_both() {
    let rooms = [room(0, 4000), room(1, 4000)];
    let residents = [
        idle(0, 20_000, 0.01, 5),
        idle(1, 10_000, 0.01, 5),
        idle(1, 10_000, 0.5, 5),
    ];
    let mut model = cold(28_000, 1e6, 5);
    model.placement.split = Split::Equal;
    let decision = decide(&[model.clone()], &residents, &rooms);
    assert_eq!(swapped(&decision), Some((0, [0, 1].as_slice())));
    model.placement.mib = 49_000;
    let decision = decide(&[model], &residents, &rooms);
    assert_eq!(decision.waiting, [(0, WaitReason::DoesNotFit)]);
}

#[test]
fn each_model_that_waits_has_its_reason() {
    let rooms = [room(0, 1000)];
    let mut pinned = idle(0, 23_000, 0.0, 500);
    pinned.protection = Some(Protection::Pinned);
    let models = [
        cold(25_000, 9.0, 500),
        cold(8000, 8.0, 500),
        cold(1, 0.0, 0),
    ];
    let reasons = decide(&models, &[pinned], &rooms).waiting;
    assert_eq!(
        reasons,
        [(0, WaitReason::DoesNotFit), (1, WaitReason::Protected)]
    );
    let nowhere = decide(&models[1..2], &[], &[]).waiting;
    assert_eq!(nowhere, [(0, WaitReason::NoDevice)]);
}

#[test]
fn a_resident_keeps_its_memory_for_the_least_warm_time() {
    let rule = SwapRule {
        min_warm: Millis::from_secs(60),
        ..SwapRule::default()
    };
    let (model, rooms) = (cold(8000, 1e9, 5), [room(0, 1000)]);
    let step = |ready| {
        let residents = [idle(0, 20_000, 0.0, ready)];
        rule.next_step(std::slice::from_ref(&model), &residents, &rooms, NOW)
    };
    assert_eq!(step(59).waiting, [(0, WaitReason::Protected)]);
    assert!(swapped(&step(60)).is_some());
}

#[test]
fn the_lru_policy_evicts_idle_residents_the_least_urgent_first() {
    let rule = SwapRule {
        policy: SwapPolicy::Lru,
        ..SwapRule::default()
    };
    let rooms = [room(0, 0)];
    let mut residents = vec![
        idle(0, 8000, 9.0, 50),
        idle(0, 8000, 9.0, 20),
        busy(0, 8000, 5000),
    ];
    residents[1].priority = 7;
    let models = [cold(8000, 1e9, 5), cold(8000, 1.0, 9)];
    let decision = rule.next_step(&models, &residents, &rooms, NOW);
    assert_eq!(swapped(&decision), Some((1, [1].as_slice())));
    let decision = rule.next_step(&[cold(24_000, 1e9, 5000)], &residents, &rooms, NOW);
    assert_eq!(decision.waiting, [(0, WaitReason::TurnNotOver)]);
}

/// Contenders of a random moment. Leases fit their devices; some devices take no load, and are not among the rooms.
struct State {
    cold: Vec<ColdModel>,
    residents: Vec<Resident<'static>>,
    rooms: Vec<DeviceRoom>,
}

fn state(random: &mut Rng) -> State {
    let count = random.u32(1..5);
    let mut rooms: Vec<DeviceRoom> = (0..count).map(|index| room(index, 24_000)).collect();
    let mut residents = Vec::new();
    for _ in 0..random.usize(0..9) {
        let mut resident = idle(0, 0, random.f64() * 0.2, random.u64(0..300));
        resident.shares.to_mut().clear();
        let is_split = random.u8(0..6) == 0;
        for room in &mut rooms {
            let mib = random.u64(1000..16_000);
            let is_there = is_split || resident.shares.is_empty() && random.bool();
            if is_there && mib <= room.free_mib {
                room.free_mib -= mib;
                let device = room.id.clone();
                resident.shares.to_mut().push(DeviceShare { device, mib });
            }
        }
        resident.is_busy = random.bool();
        resident.priority = random.u8(0..10);
        resident.load = Millis(random.u64(500..30_000));
        resident.last_used = NOW - Millis(random.u64(0..100_000));
        resident.protection = match random.u8(0..12) {
            0 => Some(Protection::Pinned),
            1 => Some(Protection::Held),
            2 => Some(Protection::Loading),
            3 => Some(Protection::Leaving),
            4 => Some(Protection::FirstWaiters),
            5 => Some(Protection::Asleep),
            _ => None,
        };
        residents.push(resident);
    }
    let cold = (0..random.usize(0..7)).map(|_| waiting(random)).collect();
    if random.u8(0..4) == 0 {
        rooms.swap_remove(random.usize(..rooms.len()));
        rooms.sort_unstable_by_key(|room| room.index);
    }
    State {
        cold,
        residents,
        rooms,
    }
}

fn waiting(random: &mut Rng) -> ColdModel {
    let mut model = cold(random.u64(500..30_000), 0.0, random.u64(0..400));
    let scale = [0.0, 1.0, 100.0, 1e5][random.usize(..4)];
    model.debt = random.f64() * scale;
    model.priority = random.u8(0..10);
    model.load = Millis(random.u64(500..30_000));
    model.placement.split = [
        Split::Never,
        Split::Never,
        Split::Equal,
        Split::Proportional,
    ][random.usize(..4)];
    if model.placement.split == Split::Never && random.u8(0..4) == 0 {
        model.placement.devices = 2;
    }
    model
}

/// Asserts that a resident may leave for a model: by the words of the rule, not by its code.
fn assert_allowed(rule: &SwapRule, model: &ColdModel, victim: &Resident<'_>) {
    assert_eq!(victim.protection, None);
    let ready_for = NOW.since(victim.ready_since).0;
    assert!(ready_for >= rule.min_warm.0);
    if victim.is_busy {
        assert_eq!(rule.policy, SwapPolicy::Turns, "busy ones stay");
        let less_urgent = i32::from(model.priority) - i32::from(victim.priority);
        let turn = u64::from(rule.turn) * (model.load.0 + victim.load.0);
        let turn = turn * 2_u64.pow(less_urgent.clamp(0, 3).unsigned_abs());
        assert!(ready_for >= turn, "its turn is not over");
        assert!(NOW.since(model.unserved_since).0 >= turn, "too early");
    }
}

/// Asserts that the shares fit once the victims are gone, and not as long as one of them stays.
fn assert_needed(state: &State, model: &ColdModel, victims: &[usize], shares: &[DeviceShare]) {
    let fits_without = |gone: &dyn Fn(usize) -> bool| {
        let mut rooms = state.rooms.clone();
        rooms.retain(|room| shares.iter().any(|share| share.device == room.id));
        for room in &mut rooms {
            let leaving = victims.iter().filter(|victim| gone(**victim));
            let theirs = leaving.flat_map(|victim| state.residents[*victim].shares.iter());
            let there = theirs.filter(|share| share.device == room.id);
            room.free_mib += there.map(|share| share.mib).sum::<u64>();
        }
        matches!(place(&model.placement, &rooms), Placement::Fits(_))
    };
    assert!(fits_without(&|_| true), "the memory suffices");
    for stays in victims {
        assert!(
            !fits_without(&|victim| victim != *stays),
            "{stays} is superfluous"
        );
    }
}

/// Checks a decision; returns 0 for a load, 1 for a swap, 2 for none.
fn check(rule: &SwapRule, state: &State) -> usize {
    let State {
        cold,
        residents,
        rooms,
    } = state;
    let decision = rule.next_step(cold, residents, rooms, NOW);
    assert_eq!(decision, rule.next_step(cold, residents, rooms, NOW));
    let chosen = match &decision.step {
        SwapStep::Load { model, shares } => {
            let placement = place(&cold[*model].placement, rooms);
            assert_eq!(placement, Placement::Fits(shares.clone()));
            Some(*model)
        }
        SwapStep::Swap {
            model,
            victims,
            shares,
            cost,
            ..
        } => {
            assert!(!victims.is_empty());
            assert!(victims.is_sorted());
            for victim in victims {
                assert_allowed(rule, &cold[*model], &residents[*victim]);
            }
            assert_needed(state, &cold[*model], victims, shares);
            assert!(cost * f64::from(rule.patience) <= cold[*model].debt * (1.0 + 1e-9));
            Some(*model)
        }
        SwapStep::Wait => None,
    };
    let with_debt = (0..cold.len()).filter(|nth| cold[*nth].debt > 0.0);
    if !matches!(decision.step, SwapStep::Load { .. }) {
        for nth in with_debt.clone() {
            assert_eq!(cold[nth].place(rooms), None, "{nth} could load");
        }
    }
    let mut named: Vec<usize> = decision.waiting.iter().map(|(nth, _)| *nth).collect();
    named.extend(chosen);
    named.sort_unstable();
    assert!(
        named.into_iter().eq(with_debt),
        "each has a step or a reason"
    );
    match decision.step {
        SwapStep::Load { .. } => 0,
        SwapStep::Swap { .. } => 1,
        SwapStep::Wait => 2,
    }
}

#[test]
fn random_states_never_have_a_forbidden_victim_nor_leave_free_memory_to_waiters() {
    let states = std::env::var("INFERGATE_SWAP_STATES");
    let states = states.map_or(STATES, |text| text.parse().expect("a number"));
    let mut steps = [0; 3];
    for seed in 0..states {
        let mut random = Rng::with_seed(seed);
        let state = state(&mut random);
        let rule = SwapRule {
            policy: [SwapPolicy::Turns, SwapPolicy::Lru][usize::from(random.u8(0..5) == 0)],
            turn: random.u32(0..6),
            patience: random.u32(0..20),
            min_warm: Millis(random.u64(0..3) * 20_000),
        };
        steps[check(&rule, &state)] += 1;
    }
    let is_often = |count: &u64| *count > states / 20;
    assert!(steps.iter().all(is_often), "loads, swaps, waits: {steps:?}");
}

#[test]
fn one_contender_waits_for_one_turn_at_most() {
    let mut random = Rng::with_seed(3);
    for _ in 0..300 {
        let mut model = cold(20_000, 0.0, 0);
        model.load = Millis(random.u64(100..60_000));
        let mut resident = busy(0, 20_000, 0);
        resident.load = Millis(random.u64(100..60_000));
        resident.priority = random.u8(0..10);
        model.priority = random.u8(0..10);
        resident.ready_since = NOW + Millis(random.u64(0..100_000));
        model.unserved_since = NOW + Millis(random.u64(0..100_000));
        let rule = SwapRule::default();
        let begin = resident.ready_since.max(model.unserved_since);
        let doublings = model.priority.saturating_sub(resident.priority).min(3);
        let turn = u64::from(rule.turn << doublings) * (model.load + resident.load).0;
        // Busy all the time, and used at this moment: the worst for whoever waits.
        let step_at = |now: Millis| {
            let model = ColdModel {
                spares_urgent: false,
                debt: 0.001,
                ..model.clone()
            };
            let resident = Resident {
                last_used: now,
                ..resident.clone()
            };
            rule.next_step(&[model], &[resident], &[room(0, 4000)], now)
        };
        assert_eq!(step_at(begin + Millis(turn - 1)).step, SwapStep::Wait);
        assert!(swapped(&step_at(begin + Millis(turn))).is_some());
    }
}
