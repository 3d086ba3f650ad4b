//! More requests than permits can serve: work goes on at full rate, and none of it is for nothing.

use fastrand::Rng;
use infergate_core::model::Algorithm;
use infergate_core::{Millis, Refusal};

use crate::for_each_seed;
use crate::traffic::{End, Load, Service, Source, spec};
use crate::world::ModelSim;

const PERMITS: u32 = 8;
/// Requests a second that eight permits can serve at 100 ms each.
const CAPACITY: f64 = 80.0;
const RUN: Millis = Millis::from_secs(20);

const ALGORITHMS: [Algorithm; 4] = [
    Algorithm::Fifo,
    Algorithm::Fair,
    Algorithm::Priority,
    Algorithm::TokenFair,
];

fn overloaded(algorithm: Algorithm, times: f64, source: Source, random: Rng) -> ModelSim {
    let mut model = spec(algorithm, &[("a", PERMITS)]);
    // A line of a thousand: only time bounds it.
    model.queue.capacity = 1000;
    let source = Source {
        load: Load::Poisson(times * CAPACITY),
        ..source
    };
    let mut world = ModelSim::new(model, vec![source], random);
    world.run(RUN, |_| {});
    world
}

fn goodput(world: &ModelSim) -> f64 {
    let completed = world
        .ended
        .iter()
        .filter(|ended| ended.end == End::Completed)
        .count();
    completed as f64 / (RUN.0 as f64 / 1000.0)
}

#[test]
fn goodput_stays_at_capacity_however_far_load_is_beyond_it() {
    for_each_seed(1, |rng| {
        for algorithm in ALGORITHMS {
            for times in [1.0, 2.0, 3.0, 5.0, 10.0] {
                let source = Source::new("ant", Load::Closed(0));
                let world = overloaded(algorithm, times, source, rng.clone());
                let least = if times > 1.0 { 0.97 } else { 0.90 };
                let goodput = goodput(&world) / CAPACITY;
                assert!(
                    goodput >= least,
                    "{algorithm:?} at {times} times: {goodput:.3}"
                );
                assert!(world.backends["a"].high_water <= PERMITS);
            }
        }
    });
}

#[test]
fn with_a_line_of_a_thousand_and_two_seconds_no_work_is_done_for_those_who_will_be_late() {
    for_each_seed(1, |rng| {
        for algorithm in ALGORITHMS {
            for jitter in [0.0, 0.2, 0.5] {
                let service = Service {
                    mean: Millis(100),
                    jitter,
                };
                let patience = Millis::from_secs(2);
                let source = Source {
                    service,
                    patience,
                    ..Source::new("ant", Load::Closed(0))
                };
                let world = overloaded(algorithm, 10.0, source, rng.clone());
                let goodput = goodput(&world) / CAPACITY;
                assert!(
                    goodput >= 0.95,
                    "{algorithm:?}, jitter {jitter}: {goodput:.3}"
                );
                let early =
                    |end: &End| matches!(end, End::Refused(Refusal::CannotStartInTime { .. }));
                assert!(world.ended.iter().any(|ended| early(&ended.end)));
            }
        }
    });
}

#[test]
fn backends_that_stalled_are_used_again_as_soon_as_they_recover() {
    for_each_seed(3, |rng| {
        // Ten seconds in which every request lasts until its deadline, then normal service.
        let stalled = Service {
            mean: Millis::from_secs(600),
            jitter: 0.0,
        };
        let patience = Millis::from_secs(5);
        let normal = Source {
            patience,
            ..Source::new("ant", Load::Poisson(CAPACITY))
        };
        let stuck = Source {
            service: stalled,
            load: Load::Closed(64),
            ..normal.clone()
        };
        let mut world = ModelSim::new(
            spec(Algorithm::Fifo, &[("a", PERMITS)]),
            vec![stuck, normal],
            rng,
        );
        let mut recovered = false;
        world.run(Millis::from_secs(10), |_| {});
        world.run(Millis::from_secs(30), |world| {
            if !recovered {
                world.stop(0);
                recovered = true;
            }
        });
        let last = world
            .ended
            .iter()
            .filter(|ended| ended.at > Millis::from_secs(20));
        let (mut all, mut completed) = (0, 0);
        for ended in last {
            all += 1;
            completed += u32::from(ended.end == End::Completed);
        }
        assert!(
            f64::from(completed) >= 0.8 * f64::from(all),
            "{completed} of {all}"
        );
    });
}

#[test]
fn refusals_end_soon_after_load_does() {
    for_each_seed(3, |rng| {
        let busy = Source::new("ant", Load::Poisson(5.0 * CAPACITY));
        let calm = Source::new("bee", Load::Poisson(0.8 * CAPACITY));
        let mut model = spec(Algorithm::Fair, &[("a", PERMITS)]);
        model.queue.capacity = 2;
        let mut world = ModelSim::new(model, vec![busy, calm], rng);
        world.run(Millis::from_secs(10), |_| {});
        world.stop(0);
        world.run(Millis::from_secs(30), |_| {});
        let settled = Millis::from_secs(12);
        let refused = |end: &End| matches!(end, End::Refused(_));
        let late = world
            .ended
            .iter()
            .filter(|ended| ended.at > settled && refused(&ended.end));
        assert_eq!(late.count(), 0);
    });
}

#[test]
fn with_all_servers_silent_no_answer_is_later_than_eight_seconds() {
    for_each_seed(3, |rng| {
        for algorithm in ALGORITHMS {
            let mut model = spec(algorithm, &[("a", 4), ("b", 4)]);
            model.queue.capacity = 128;
            let sources = ["ant", "bee"].map(|account| Source {
                service: Service {
                    mean: Millis::from_secs(2),
                    jitter: 0.0,
                },
                patience: Millis::from_secs(30),
                ..Source::new(account, Load::Poisson(100.0))
            });
            let mut world = ModelSim::new(model, sources.to_vec(), rng.clone());
            for backend in world.backends.values_mut() {
                backend.silent = true;
            }
            world.run(Millis::from_secs(30), |_| {});
            world.wind_down();
            let slowest = world.ended.iter().map(|ended| ended.took).max();
            let bound = Millis::from_secs(8);
            assert!(slowest < Some(bound), "{algorithm:?}: {slowest:?}");
            assert!(world.ended.iter().all(|ended| ended.end != End::LeftLine));
        }
    });
}
