//! Cost of one decision through the pool, with the host of `cost.rs`: demand is set for all models, and all is settled.
//!
//! Timers, backoffs and outlooks of the models are looked at as well. The targets are those of the rule alone. A call that
//! begins swaps decides once for each, and once more; its loads and drains count as parts of its decisions.

use std::collections::BTreeMap;
use std::hint::black_box;

use infergate_core::vram::{
    Action, DeviceId, DeviceKind, DeviceShare, ModelDemand, ModelPool, PlacementRequest,
    PoolConfig, PoolDevice, PoolModel, PoolMoment, PoolReport, SlotId, SlotLimits, Split,
    StoredModel,
};
use infergate_core::{Millis, ModelId};

use crate::cost::{
    DEVICES, MEAN_MAX_MICROS, MODELS, P99_MAX_MICROS, RESIDENTS, WAITING, thread_micros,
};
use crate::trace::Random;

const STATES: u64 = 200;
const DECISIONS: u64 = 20;
const CLOCK_CALLS: usize = 10_000;
const DEVICE_MIB: u64 = 81_000;
const RESIDENT_MIB: u64 = 16_000;

/// Prints the cost of decisions through the pool; returns the targets that are missed.
pub fn decisions() -> Vec<String> {
    let names: Vec<ModelId> = (0..MODELS).map(name).collect();
    let clock = clock_micros();
    let (mut idle, mut each, mut whole) = (Vec::new(), Vec::new(), Vec::new());
    for seed in 0..STATES {
        let mut random = Random(seed);
        let (pool, now) = pool(&mut random, &names);
        for nth in 0..DECISIONS {
            let demands = demands(&mut random, &names, now, nth % 2 == 0);
            let mut times = [0.0; 3];
            let mut swaps = 0;
            for time in &mut times {
                let mut pool = pool.clone();
                let demands = demands.iter().map(|(id, demand)| (id, demand));
                let begin = thread_micros();
                let actions = pool.update_demand(demands, moment(now));
                *time = thread_micros() - begin - clock;
                swaps = black_box(actions).iter().filter(|it| is_swap(it)).count();
            }
            times.sort_unstable_by(f64::total_cmp);
            if swaps == 0 {
                idle.push(times[1]);
            } else {
                // Behind each step the rule is asked for the next one.
                each.push(times[1] / (swaps + 1) as f64);
                whole.push(times[1]);
            }
        }
    }
    println!("\nDecision through the pool: a call with the demand of all models");
    println!("| calls | number | mean | p99 |");
    println!("|---|---|---|---|");
    let mut missed = Vec::new();
    for (row, micros) in [
        ("that end in no step", &mut idle),
        ("that begin swaps, for each decision", &mut each),
    ] {
        let (mean, p99) = print_row(row, micros);
        if mean > MEAN_MAX_MICROS {
            missed.push(format!("calls {row}: mean {MEAN_MAX_MICROS} µs"));
        }
        if p99 > P99_MAX_MICROS {
            missed.push(format!("calls {row}: p99 {P99_MAX_MICROS} µs"));
        }
    }
    print_row("that begin swaps, whole", &mut whole);
    missed
}

/// Median of the time that the clock itself takes, a call of the system: it is no part of a decision.
fn clock_micros() -> f64 {
    let mut times: Vec<f64> = (0..CLOCK_CALLS)
        .map(|_| {
            let begin = thread_micros();
            thread_micros() - begin
        })
        .collect();
    times.sort_unstable_by(f64::total_cmp);
    times[times.len() / 2]
}

fn print_row(name: &str, micros: &mut [f64]) -> (f64, f64) {
    micros.sort_unstable_by(f64::total_cmp);
    let count = micros.len();
    let mean = micros.iter().sum::<f64>() / count.max(1) as f64;
    let p99 = micros.get(count * 99 / 100).copied().unwrap_or(0.0);
    println!("| {name} | {count} | {mean:.1} µs | {p99:.1} µs |");
    (mean, p99)
}

fn is_swap(action: &Action) -> bool {
    let Action::Report { report, .. } = action else {
        return false;
    };
    matches!(report, PoolReport::Swap { .. })
}

fn moment(now: Millis) -> PoolMoment {
    PoolMoment { now, random: 7 }
}

fn name(nth: usize) -> ModelId {
    ModelId::from(format!("model-{nth:03}").as_str())
}

fn device(nth: usize) -> DeviceId {
    DeviceId::from(format!("GPU-5a1c93d2-7e04-4f5e-9b1d-0000000000{nth:02}").as_str())
}

/// A pool whose first models are resident, some minutes after they became ready.
fn pool(random: &mut Random, names: &[ModelId]) -> (ModelPool, Millis) {
    let start = Millis::from_secs(1000);
    let models: BTreeMap<ModelId, PoolModel> = (0..MODELS)
        .map(|nth| (names[nth].clone(), model(random, nth)))
        .collect();
    let mut pool = ModelPool::default();
    let config = PoolConfig {
        models,
        ..PoolConfig::default()
    };
    pool.set_config(config, moment(start));
    let devices = (0..DEVICES).map(|nth| PoolDevice {
        id: device(nth),
        index: nth as u32,
        kind: DeviceKind::Gpu,
        name: "NVIDIA H100 80GB HBM3".into(),
        empty_mib: DEVICE_MIB,
        others_mib: 0,
        outside_mib: 0,
        is_open: true,
    });
    pool.set_devices(devices.collect(), moment(start));
    for (nth, model) in names.iter().take(RESIDENTS).enumerate() {
        let slot = SlotId {
            model: model.clone(),
            number: 0,
        };
        let share = DeviceShare {
            device: device(nth % DEVICES),
            mib: RESIDENT_MIB,
        };
        pool.adopt(&slot, vec![share], moment(start));
    }
    (pool, start + Millis::from_secs(250))
}

fn model(random: &mut Random, nth: usize) -> PoolModel {
    let mib = if nth < RESIDENTS {
        RESIDENT_MIB
    } else {
        12_000 + random.next() % 40_000
    };
    PoolModel {
        need: PlacementRequest {
            mib,
            devices: 1,
            split: Split::Never,
            context_mib: 450,
        },
        is_exclusive: false,
        asleep_mib: None,
        stored: StoredModel {
            bytes: mib << 20,
            rate_mib: None,
        },
        limits: SlotLimits {
            ready_timeout: Millis::from_secs(600),
            stop_timeout: Millis::from_secs(10),
        },
        priority: (random.next() % 10) as u8,
        replicas_min: 0,
        replicas_max: 1,
        permits: crate::trace::PERMITS,
        is_pinned: false,
        is_preloaded: false,
        keep_alive: None,
        revision: 0,
    }
}

fn demands(
    random: &mut Random,
    names: &[ModelId],
    now: Millis,
    is_full: bool,
) -> Vec<(ModelId, ModelDemand)> {
    let (waited, debt) = if is_full {
        (200_000, 20_000.0)
    } else {
        (20_000, 50.0)
    };
    let demand = |nth: usize| {
        let demand = if nth < RESIDENTS {
            ModelDemand {
                arrivals_per_sec: random.unit(),
                in_flight: (random.next() % 2) as u32,
                last_used: Millis(now.0 - random.next() % 60_000),
                ..ModelDemand::NONE
            }
        } else if nth < RESIDENTS + WAITING {
            ModelDemand {
                waiters: 1,
                debt: debt * random.unit(),
                unserved_since: Some(Millis(now.0 - random.next() % waited)),
                ..ModelDemand::NONE
            }
        } else {
            ModelDemand::NONE
        };
        (names[nth].clone(), demand)
    };
    (0..MODELS).map(demand).collect()
}
