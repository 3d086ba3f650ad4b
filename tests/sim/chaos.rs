//! Random faults combined: backends break and recover, reloads change endpoints, limits and
//! algorithms, clients leave. After every step the invariants hold; at the end every request has
//! ended once and every permit is back.

use fastrand::Rng;
use infergate_core::Millis;
use infergate_core::model::{Algorithm, ModelSpec, WhenUnhealthy};

use crate::for_each_seed;
use crate::traffic::{End, Load, Service, Source, spec};
use crate::world::ModelSim;

const URLS: [&str; 5] = ["a", "b", "c", "d", "e"];
const ALGORITHMS: [Algorithm; 4] = [
    Algorithm::Fifo,
    Algorithm::Fair,
    Algorithm::Priority,
    Algorithm::TokenFair,
];

fn any_spec(random: &mut Rng) -> ModelSpec {
    let mut endpoints = Vec::new();
    for url in URLS {
        if random.u32(..3) > 0 {
            endpoints.push((url, random.u32(1..6)));
        }
    }
    let mut spec = spec(ALGORITHMS[random.usize(..4)], &endpoints);
    for endpoint in &mut spec.endpoints {
        endpoint.priority = random.u32(..2);
    }
    spec.queue.capacity = random.u32(..5);
    spec.queue.total_capacity = random.u32(..200);
    if random.u32(..4) == 0 {
        spec.queue.when_unhealthy = WhenUnhealthy::Refuse;
    }
    spec
}

fn any_source(account: &'static str, random: &mut Rng) -> Source {
    let load = match random.u32(..3) {
        0 => Load::Closed(random.usize(1..30)),
        1 => Load::Poisson(1.0 + 60.0 * random.f64()),
        _ => Load::Paced(1.0 + 10.0 * random.f64()),
    };
    Source {
        account,
        weight: random.u32(1..5),
        load,
        service: Service {
            mean: Millis(random.u64(10..400)),
            jitter: random.f64(),
        },
        tokens: random.u32(1..2_000),
        patience: Millis(random.u64(100..5_000)),
        gives_up_one_in: random.u64(..6),
    }
}

#[test]
fn nothing_is_lost_or_granted_twice_whatever_happens() {
    for_each_seed(60, |mut rng| {
        let accounts = ["ant", "bee", "cat", "dog", "elk"];
        let sources = accounts
            .map(|account| any_source(account, &mut rng))
            .to_vec();
        let mut disturbance = rng.fork();
        let mut world = ModelSim::new(any_spec(&mut rng), sources, rng);
        world.run(Millis::from_secs(10), |world| {
            match disturbance.u32(..400) {
                0..=3 => world.configure(any_spec(&mut disturbance)),
                4..=9 => {
                    world.set_failing(URLS[disturbance.usize(..5)], disturbance.u32(..2) == 0);
                }
                _ => {}
            }
        });
        world.wind_down();
    });
}

#[test]
fn flipping_the_algorithm_a_hundred_times_under_load_loses_nobody() {
    for_each_seed(5, |rng| {
        let patient = |account| Source::new(account, Load::Closed(30));
        let sources = ["ant", "bee", "cat"].map(patient).to_vec();
        let roomy = |algorithm| {
            let mut spec = spec(algorithm, &[("a", 4), ("b", 4)]);
            spec.queue.capacity = 100;
            spec
        };
        let mut world = ModelSim::new(roomy(Algorithm::Fair), sources, rng);
        for flip in 1..=100 {
            world.run(Millis(100 * flip), |_| {});
            world.configure(roomy(ALGORITHMS[flip as usize % 4]));
        }
        world.wind_down();
        assert!(world.ended.iter().all(|ended| ended.end == End::Completed));
    });
}

#[test]
fn one_broken_backend_of_two_costs_few_requests_and_its_repair_brings_all_capacity_back() {
    for_each_seed(10, |rng| {
        // Of one account alone failures are believed only once its last success is ten seconds old.
        let sources = vec![
            Source::new("ant", Load::Poisson(50.0)),
            Source::new("bee", Load::Poisson(50.0)),
        ];
        let model = spec(Algorithm::Fair, &[("a", 8), ("b", 8)]);
        let mut world = ModelSim::new(model, sources, rng);
        let [broken, repaired, end] = [10, 40, 60].map(Millis::from_secs);
        world.run(broken, |_| {});
        world.set_failing("a", true);
        world.run(repaired, |_| {});
        world.set_failing("a", false);
        world.run(end, |_| {});

        let failed = world
            .ended
            .iter()
            .filter(|ended| ended.end == End::Failed)
            .count();
        assert!(
            failed * 100 <= world.arrivals,
            "{failed} of {}",
            world.arrivals
        );
        // Two passed checks, and some seconds for the queue that has formed at one backend.
        let settled = repaired + Millis::from_secs(12);
        let late = world.ended.iter().filter(|ended| ended.at > settled);
        for ended in late {
            assert_eq!(ended.end, End::Completed);
            assert!(ended.took <= Millis(200), "both backends are in use again");
        }
    });
}
