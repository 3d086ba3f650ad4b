//! Cost of one decision with 200 models, 8 devices, 40 residents and 64 models that wait.
//!
//! In CPU time of the thread, which a busy machine disturbs less than the clock on the wall; the median of three for each
//! state. Half of the states are full of demand, so that most end in a swap, half are not, so that all models are looked
//! at.

use std::hint::black_box;

use infergate_core::Millis;
use infergate_core::vram::{
    ColdModel, DeviceId, DeviceKind, DeviceRoom, DeviceShare, PlacementRequest, Resident, Split,
    SwapRule, SwapStep,
};
use rustix::time::{ClockId, clock_gettime};

use crate::trace::Random;

const STATES: u64 = 20_000;
pub const DEVICES: usize = 8;
pub const RESIDENTS: usize = 40;
pub const MODELS: usize = 200;
pub const WAITING: usize = 64;
const DEVICE_MIB: u64 = 81_000;
const NOW: Millis = Millis(10_000_000);
pub const MEAN_MAX_MICROS: f64 = 10.0;
pub const P99_MAX_MICROS: f64 = 50.0;

/// Contenders of one moment.
struct State {
    cold: Vec<ColdModel>,
    residents: Vec<Resident<'static>>,
    rooms: Vec<DeviceRoom>,
}

/// Prints the cost of decisions; returns the targets that are missed.
pub fn decisions() -> Vec<String> {
    let rule = SwapRule::default();
    let mut micros = Vec::new();
    let mut waits = 0;
    for seed in 0..STATES {
        let state = state(&mut Random(seed), seed % 2 == 0);
        let mut times = [0.0; 3];
        for time in &mut times {
            let begin = thread_micros();
            let decision = rule.next_step(&state.cold, &state.residents, &state.rooms, NOW);
            *time = thread_micros() - begin;
            waits += u64::from(black_box(decision).step == SwapStep::Wait);
        }
        times.sort_unstable_by(f64::total_cmp);
        micros.push(times[1]);
    }
    micros.sort_unstable_by(f64::total_cmp);
    let mean = micros.iter().sum::<f64>() / micros.len() as f64;
    let p99 = micros[micros.len() * 99 / 100];
    println!(
        "\nDecision with {MODELS} models, {DEVICES} devices, {RESIDENTS} residents, {WAITING} waiting"
    );
    println!("| mean | p99 | end in no step |");
    println!("|---|---|---|");
    let share = 100 * waits / (3 * STATES);
    println!("| {mean:.1} µs | {p99:.1} µs | {share} % |");
    let mut missed = Vec::new();
    if mean > MEAN_MAX_MICROS {
        missed.push(format!("decision: mean {MEAN_MAX_MICROS} µs"));
    }
    if p99 > P99_MAX_MICROS {
        missed.push(format!("decision: p99 {P99_MAX_MICROS} µs"));
    }
    missed
}

/// CPU time of the thread.
pub fn thread_micros() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3
}

fn state(random: &mut Random, is_full_of_demand: bool) -> State {
    let mut rooms: Vec<DeviceRoom> = (0..DEVICES).map(room).collect();
    let residents = (0..RESIDENTS)
        .map(|_| resident(random, &mut rooms))
        .collect();
    let cold = (0..MODELS - RESIDENTS)
        .map(|nth| cold(random, nth, is_full_of_demand))
        .collect();
    State {
        cold,
        residents,
        rooms,
    }
}

fn room(nth: usize) -> DeviceRoom {
    DeviceRoom {
        id: DeviceId::from(format!("GPU-5a1c93d2-7e04-4f5e-9b1d-0000000000{nth:02}").as_str()),
        index: nth as u32,
        kind: DeviceKind::Gpu,
        name: "NVIDIA H100 80GB HBM3".into(),
        empty_mib: DEVICE_MIB,
        free_mib: DEVICE_MIB,
        residents: 0,
    }
}

/// A resident on the device with the most room, as large as a fifth of it.
fn resident(random: &mut Random, rooms: &mut [DeviceRoom]) -> Resident<'static> {
    let most = (0..rooms.len()).max_by_key(|nth| rooms[*nth].free_mib);
    let room = &mut rooms[most.expect("there are devices")];
    let mib = (14_000 + random.next() % 4000).min(room.free_mib);
    room.free_mib -= mib;
    room.residents += 1;
    Resident {
        shares: vec![DeviceShare {
            device: room.id.clone(),
            mib,
        }]
        .into(),
        load: Millis(2000 + mib),
        priority: (random.next() % 10) as u8,
        arrivals_per_sec: random.unit(),
        is_busy: random.unit() < 0.5,
        ready_since: Millis(NOW.0 - random.next() % 400_000),
        last_used: Millis(NOW.0 - random.next() % 60_000),
        protection: None,
    }
}

fn cold(random: &mut Random, nth: usize, is_full_of_demand: bool) -> ColdModel {
    let mib = 12_000 + random.next() % 40_000;
    let waited = if is_full_of_demand { 200_000 } else { 20_000 };
    let split = if nth.is_multiple_of(16) {
        Split::Equal
    } else {
        Split::Never
    };
    let debt = if is_full_of_demand { 20_000.0 } else { 50.0 };
    ColdModel {
        placement: PlacementRequest {
            mib: if split == Split::Equal { 3 * mib } else { mib },
            devices: 1,
            split,
            context_mib: 450,
        },
        growth: Vec::new(),
        load: Millis(2000 + mib),
        priority: (random.next() % 10) as u8,
        spares_urgent: false,
        debt: if nth < WAITING {
            debt * random.unit()
        } else {
            0.0
        },
        unserved_since: Millis(NOW.0 - random.next() % waited),
    }
}
