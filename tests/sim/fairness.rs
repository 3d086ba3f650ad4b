//! Shares of a scarce model: by requests, by weights, by tokens, and for accounts with little traffic.

use infergate_core::Millis;
use infergate_core::model::Algorithm;

use crate::for_each_seed;
use crate::traffic::{End, Load, Service, Source, spec};
use crate::world::ModelSim;

const PERMITS: u32 = 8;
const SERVICE: Millis = Millis(100);
const ACCOUNTS: [&str; 5] = ["ant", "bee", "cat", "dog", "elk"];

/// Jain's index: 1 when all are equal, 1/n when one has everything
/// (<https://arxiv.org/abs/cs/9809099>).
fn jain(shares: &[f64]) -> f64 {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    sum * sum / (shares.len() as f64 * squares)
}

fn backlogged(account: &'static str, open: usize) -> Source {
    let service = Service {
        mean: SERVICE,
        jitter: 0.1,
    };
    Source {
        service,
        ..Source::new(account, Load::Closed(open))
    }
}

/// Completed requests of each source in `from..to`.
fn completed(world: &ModelSim, sources: usize, from: Millis, to: Millis) -> Vec<f64> {
    let mut counts = vec![0.0; sources];
    for ended in &world.ended {
        if ended.end == End::Completed && (from..to).contains(&ended.at) {
            counts[ended.source] += 1.0;
        }
    }
    counts
}

/// The latency that 99 of 100 completed requests of the sources picked stay below.
fn p99(world: &ModelSim, picked: impl Fn(usize) -> bool) -> Millis {
    let ended = world.ended.iter().filter(|ended| picked(ended.source));
    let mut took: Vec<Millis> = ended
        .map(|ended| {
            assert_eq!(
                ended.end,
                End::Completed,
                "nobody who asks for little is refused"
            );
            ended.took
        })
        .collect();
    took.sort_unstable();
    took[took.len() * 99 / 100]
}

#[test]
fn backlogged_accounts_get_equal_shares_however_many_requests_they_have_open() {
    for_each_seed(5, |rng| {
        let open = [100, 60, 40, 24, 24];
        let sources = ACCOUNTS
            .iter()
            .zip(open)
            .map(|(account, open)| backlogged(account, open));
        let model = spec(Algorithm::Fair, &[("a", PERMITS)]);
        let mut world = ModelSim::new(model, sources.collect(), rng);
        world.run(Millis::from_secs(31), |_| {});
        for window in 0..6 {
            let from = Millis::from_secs(1 + 5 * window);
            let shares = completed(&world, 5, from, from + Millis::from_secs(5));
            assert!(jain(&shares) >= 0.99, "{shares:?}");
        }
    });
}

#[test]
fn weights_of_1_2_4_give_shares_of_1_2_4() {
    for_each_seed(5, |rng| {
        let weighted = |(account, weight)| Source {
            weight,
            ..backlogged(account, 100)
        };
        let sources = [("ant", 1), ("bee", 2), ("cat", 4)].map(weighted);
        let model = spec(Algorithm::Fair, &[("a", PERMITS)]);
        let mut world = ModelSim::new(model, sources.to_vec(), rng);
        world.run(Millis::from_secs(31), |_| {});
        let counts = completed(&world, 3, Millis::from_secs(1), Millis::from_secs(31));
        let sum: f64 = counts.iter().sum();
        for (count, weight) in counts.iter().zip([1.0, 2.0, 4.0]) {
            let share = count / sum / (weight / 7.0);
            assert!((0.95..=1.05).contains(&share), "{counts:?}");
        }
    });
}

#[test]
fn a_greedy_account_neither_slows_nor_pushes_out_twenty_small_ones() {
    const SMALL: [&str; 20] = [
        "s01", "s02", "s03", "s04", "s05", "s06", "s07", "s08", "s09", "s10", "s11", "s12", "s13",
        "s14", "s15", "s16", "s17", "s18", "s19", "s20",
    ];
    for_each_seed(5, |rng| {
        // Half of the fair share of 80 requests a second among 21.
        let small = SMALL.map(|account| Source {
            service: Service {
                mean: SERVICE,
                jitter: 0.1,
            },
            ..Source::new(account, Load::Paced(80.0 / 21.0 / 2.0))
        });
        let model = spec(Algorithm::Fair, &[("a", PERMITS)]);
        let mut alone = ModelSim::new(model.clone(), small[..1].to_vec(), rng.clone());
        alone.run(Millis::from_secs(60), |_| {});
        let solo = p99(&alone, |_| true);

        let mut sources = small.to_vec();
        sources.push(backlogged("greedy", 100));
        let mut world = ModelSim::new(model, sources, rng);
        world.run(Millis::from_secs(60), |_| {});
        let crowded = p99(&world, |source| source < SMALL.len());
        let bound = Millis(solo.0 * 3 / 2) + SERVICE;
        assert!(crowded <= bound, "{crowded:?} against {solo:?} alone");
    });
}

#[test]
fn token_fair_shares_tokens_between_long_and_short_answers() {
    for_each_seed(5, |rng| {
        let long = Source {
            tokens: 2_000,
            service: Service {
                mean: Millis(1_000),
                jitter: 0.2,
            },
            ..Source::new("long", Load::Closed(64))
        };
        let short = Source {
            tokens: 200,
            ..backlogged("short", 64)
        };
        let model = spec(Algorithm::TokenFair, &[("a", PERMITS)]);
        let mut world = ModelSim::new(model, vec![long, short], rng);
        world.run(Millis::from_secs(32), |_| {});
        let counts = completed(&world, 2, Millis::from_secs(2), Millis::from_secs(32));
        let tokens = [counts[0] * 2_000.0, counts[1] * 200.0];
        assert!(jain(&tokens) >= 0.95, "{tokens:?}");
    });
}
