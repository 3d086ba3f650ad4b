//! The policies, by example and at random.

use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::{
    BuiltinPolicy, Candidate, Choice, Hints, SplitMix64, WHOLE, complete_ranking, site_number,
};
use crate::routing::Health;

fn candidate(id: u32) -> Candidate {
    Candidate {
        id,
        site: 0,
        node: None,
        health: Health::Healthy,
        permits_free: 4,
        permits_total: 4,
        queue_len: 0,
        rtt_us: 0,
        ttft_us: 0,
        latency_us: 0,
        error_ppm: 0,
        lora_affinity: 0,
        prefix_affinity: 0,
        tier: 0,
        ooc: 0,
    }
}

fn policy(name: &str, settings: Value) -> BuiltinPolicy {
    let settings: Map<String, Value> = serde_json::from_value(settings).unwrap();
    BuiltinPolicy::named(name, &settings).unwrap().unwrap()
}

fn steps(choices: &[Choice]) -> Vec<Vec<u32>> {
    let steps = choices.chunk_by(|one, next| one.step == next.step);
    steps
        .map(|step| step.iter().map(|choice| choice.id).collect())
        .collect()
}

fn rank(policy: &BuiltinPolicy, hints: &Hints, candidates: &[Candidate]) -> Vec<Vec<u32>> {
    steps(&policy.rank(hints, candidates))
}

#[test]
fn every_name_is_a_policy_and_no_other_is() {
    for name in BuiltinPolicy::NAMES {
        assert_eq!(policy(name, json!({})).name(), name);
    }
    assert_eq!(BuiltinPolicy::named("nearest", &Map::new()), None);
}

#[test]
fn every_problem_of_the_settings_is_told_with_its_key() {
    let settings = json!({"step_ms": 0, "measure": "feel", "steps": null, "stepms": 5});
    let settings: Map<String, Value> = serde_json::from_value(settings).unwrap();
    let problems = BuiltinPolicy::named("latency", &settings)
        .unwrap()
        .unwrap_err();
    let paths: Vec<&str> = problems.iter().map(|problem| &*problem.path).collect();
    assert_eq!(paths, ["step_ms", "measure", "stepms"]);
    assert_eq!(
        problems[0].message,
        "expected a whole number from 1 to 60000, found 0"
    );
    assert_eq!(
        problems[2].message,
        "the policy has no such setting: it has step_ms, steps, measure"
    );
    let site: Map<String, Value> = serde_json::from_value(json!({"site": 1.5})).unwrap();
    assert!(BuiltinPolicy::named("forced-site", &site).unwrap().is_err());
}

#[test]
fn latency_groups_by_steps_from_the_best_and_tries_what_was_never_measured() {
    let at = |id, ms: u32| Candidate {
        latency_us: ms * 1000,
        ttft_us: 1,
        ..candidate(id)
    };
    let candidates = [
        at(0, 500),
        at(1, 449),
        at(2, 400),
        candidate(3),
        at(4, 9000),
        Candidate {
            rtt_us: 50_000,
            ..at(5, 399)
        },
    ];
    let latency = policy("latency", json!({"step_ms": 50, "steps": 3}));
    let found = rank(&latency, &Hints::default(), &candidates);
    assert_eq!(found, [vec![2, 3, 1, 5], vec![0, 4]]);
}

#[test]
fn latency_of_a_stream_is_the_time_to_its_first_token() {
    let slow_start = Candidate {
        ttft_us: 900_000,
        latency_us: 1_000_000,
        ..candidate(0)
    };
    let slow_end = Candidate {
        ttft_us: 100_000,
        latency_us: 9_000_000,
        ..candidate(1)
    };
    let latency = policy("latency", json!({}));
    let whole = rank(&latency, &Hints::default(), &[slow_start, slow_end]);
    assert_eq!(whole, [[0], [1]]);
    let streaming = Hints {
        streaming: true,
        ..Hints::default()
    };
    assert_eq!(
        rank(&latency, &streaming, &[slow_start, slow_end]),
        [[1], [0]]
    );
    let by_ttft = policy("latency", json!({"measure": "ttft"}));
    assert_eq!(
        rank(&by_ttft, &Hints::default(), &[slow_start, slow_end]),
        [[1], [0]]
    );
}

#[test]
fn a_fixed_seed_gives_a_fixed_order_and_all_orders_occur() {
    let random = policy("random", json!({}));
    let candidates = [candidate(0), candidate(1), candidate(2)];
    let order = |seed| {
        rank(
            &random,
            &Hints {
                seed,
                ..Hints::default()
            },
            &candidates,
        )
        .concat()
    };
    let mut counts = std::collections::BTreeMap::new();
    for seed in 0..6000 {
        assert_eq!(order(seed), order(seed));
        *counts.entry(order(seed)).or_insert(0) += 1;
    }
    assert_eq!(counts.len(), 6);
    assert!(
        counts.values().all(|count| (850..1150).contains(count)),
        "{counts:?}"
    );
}

#[test]
fn the_generator_yields_its_published_numbers() {
    // The first outputs of splitmix64 with the seed 1234567.
    let mut rng = SplitMix64::new(1_234_567);
    assert_eq!(rng.next_u64(), 6_457_827_717_110_365_317);
    assert_eq!(rng.next_u64(), 3_203_168_211_198_807_973);
    assert_eq!(SplitMix64::new(7).next_below(0), 0);
}

#[test]
fn the_forced_site_is_first_and_the_request_outvotes_the_setting() {
    let at = |id, site| Candidate {
        site,
        ..candidate(id)
    };
    let candidates = [at(0, 0), at(1, 1), at(2, 2)];
    let forced = policy("forced-site", json!({"site": 1}));
    assert_eq!(
        rank(&forced, &Hints::default(), &candidates),
        [vec![1], vec![0, 2]]
    );
    let hints = Hints {
        forced_site: Some(2),
        ..Hints::default()
    };
    assert_eq!(rank(&forced, &hints, &candidates), [vec![2], vec![0, 1]]);
    let nowhere = policy("forced-site", json!({}));
    assert_eq!(rank(&nowhere, &Hints::default(), &candidates), [[0, 1, 2]]);
}

#[test]
fn a_site_may_be_forced_by_its_name() {
    let at = |id, site| Candidate {
        site,
        ..candidate(id)
    };
    let candidates = [
        at(0, 0),
        at(1, site_number("ams")),
        at(2, site_number("sin")),
    ];
    let forced = |site| policy("forced-site", json!({ "site": site }));
    let found = |site| rank(&forced(site), &Hints::default(), &candidates);
    assert_eq!(found("sin"), [vec![2], vec![0, 1]]);
    assert_eq!(found("ams"), [vec![1], vec![0, 2]]);
    assert_eq!(
        found("fra"),
        [[0, 1, 2]],
        "nobody serves it there, or it is ours"
    );
    // Published with the algorithm.
    assert_eq!(site_number(""), 0x811c_9dc5);
    assert_eq!(site_number("foobar"), 0xbf9c_f968);
    let none: Map<String, Value> = serde_json::from_value(json!({"site": ""})).unwrap();
    assert!(BuiltinPolicy::named("forced-site", &none).unwrap().is_err());
}

#[test]
fn requests_flow_in_proportion_to_room_and_away_from_who_was_out_of_capacity() {
    let room = |id, free, queue| Candidate {
        permits_free: free,
        queue_len: queue,
        ..candidate(id)
    };
    let candidates = [
        room(0, 60, 0),
        room(1, 50, 20),
        room(2, 10, 0),
        room(3, 5, 9),
        Candidate {
            ooc: 1,
            ..room(4, 99, 0)
        },
    ];
    let flow = policy("resource-flow", json!({}));
    let mut first = [0; 5];
    for seed in 0..10_000 {
        let order = rank(
            &flow,
            &Hints {
                seed,
                ..Hints::default()
            },
            &candidates,
        );
        assert_eq!(order.last().unwrap(), &[4]);
        assert_eq!(order[3], [3]);
        first[order[0][0] as usize] += 1;
    }
    assert!((5700..6300).contains(&first[0]), "{first:?}");
    assert!((2700..3300).contains(&first[1]), "{first:?}");
    assert!((850..1150).contains(&first[2]), "{first:?}");
    let patient = policy("resource-flow", json!({"ooc_max": 1}));
    let drawn = (0..100).any(|seed| {
        rank(
            &patient,
            &Hints {
                seed,
                ..Hints::default()
            },
            &candidates,
        )[0] == [4]
    });
    assert!(drawn);
}

#[test]
fn affinity_goes_to_the_adapter_then_to_the_prefix() {
    let lora = Candidate {
        lora_affinity: WHOLE,
        ..candidate(0)
    };
    let prefix = Candidate {
        prefix_affinity: 900,
        ..candidate(1)
    };
    let candidates = [lora, prefix, candidate(2), candidate(3)];
    let affinity = policy("affinity", json!({}));
    let wanted = Hints {
        lora: Some(7),
        ..Hints::default()
    };
    assert_eq!(
        rank(&affinity, &wanted, &candidates),
        [vec![0], vec![1], vec![2, 3]]
    );
    assert_eq!(
        rank(&affinity, &Hints::default(), &candidates),
        [vec![1], vec![0, 2, 3]]
    );
    assert_eq!(
        rank(&affinity, &Hints::default(), &[candidate(5), candidate(6)]),
        [[5, 6]]
    );
}

#[test]
fn affinity_yields_to_load_and_comes_back_with_room() {
    let used = |id, used| Candidate {
        permits_free: 10 - used,
        permits_total: 10,
        ..candidate(id)
    };
    let warm = |load| Candidate {
        prefix_affinity: WHOLE,
        ..used(0, load)
    };
    let affinity = policy("affinity", json!({}));
    let first = |load, others: u32| {
        rank(
            &affinity,
            &Hints::default(),
            &[warm(load), used(1, others), used(2, others)],
        )[0]
        .clone()
    };
    // With this request, 1.25 × 14 / 3 and 1.25 × 13 / 3, rounded up, are 6.
    assert_eq!(first(5, 4), [0]);
    assert_eq!(first(6, 3), [1, 2]);
    assert_eq!(first(9, 9), [0]);
    let loose = policy("affinity", json!({"load_percent": 300}));
    assert_eq!(
        rank(
            &loose,
            &Hints::default(),
            &[warm(6), used(1, 3), used(2, 3)]
        )[0],
        [0]
    );
    assert_eq!(rank(&affinity, &Hints::default(), &[warm(10)]), [[0]]);
}

#[test]
fn the_unfit_come_last_and_tiers_stay_apart_in_every_policy() {
    let bad = [
        Health::Degraded,
        Health::Ejected,
        Health::Draining,
        Health::Down,
    ];
    let mut candidates: Vec<Candidate> = (1u32..)
        .zip(bad)
        .map(|(id, health)| Candidate {
            health,
            prefix_affinity: WHOLE,
            lora_affinity: WHOLE,
            rtt_us: 1,
            ..candidate(id)
        })
        .collect();
    candidates.push(Candidate {
        rtt_us: 900_000,
        ..candidate(9)
    });
    candidates.push(Candidate {
        tier: 1,
        prefix_affinity: WHOLE,
        rtt_us: 1,
        permits_free: 99,
        ..candidate(7)
    });
    for name in BuiltinPolicy::NAMES {
        let order = rank(
            &policy(name, json!({})),
            &Hints {
                lora: Some(1),
                ..Hints::default()
            },
            &candidates,
        );
        assert_eq!(order.concat(), [9, 7, 1, 2, 3, 4], "{name}");
        assert_eq!(order.len(), 6, "{name}");
    }
}

#[test]
fn an_answer_is_made_whole() {
    let candidates = [
        candidate(0),
        candidate(1),
        Candidate {
            health: Health::Down,
            ..candidate(2)
        },
        candidate(3),
        candidate(4),
    ];
    let choice = |id, step| Choice { id, step };
    let answer = [
        choice(1, 9),
        choice(77, 0),
        choice(2, 0),
        choice(0, 4),
        choice(1, 0),
    ];
    assert_eq!(
        steps(&complete_ranking(&answer, &candidates)),
        [vec![0], vec![1], vec![3, 4], vec![2]]
    );
    assert_eq!(
        steps(&complete_ranking(&[], &candidates)),
        [vec![0, 1, 3, 4], vec![2]]
    );
    assert_eq!(complete_ranking(&answer, &[]), []);
}

fn health() -> impl Strategy<Value = Health> {
    proptest::sample::select(Health::ALL.to_vec())
}

prop_compose! {
    fn any_candidate()(
        health in health(), site in 0..4u32, free in any::<u32>(), total in any::<u32>(), queue in any::<u32>(),
        rtt in any::<u32>(), ttft in any::<u32>(), latency in any::<u32>(), small in any::<bool>(),
        lora in any::<u16>(), prefix in any::<u16>(), tier in 0..3u8, ooc in any::<u8>(),
    ) -> Candidate {
        let cut = |value: u32| if small { value % 16 } else { value };
        Candidate {
            health, site, permits_free: cut(free), permits_total: cut(total), queue_len: cut(queue),
            rtt_us: cut(rtt), ttft_us: cut(ttft), latency_us: cut(latency), lora_affinity: lora,
            prefix_affinity: prefix, tier, ooc, ..candidate(0)
        }
    }
}

fn candidates() -> impl Strategy<Value = Vec<Candidate>> {
    proptest::collection::vec(any_candidate(), 0..30).prop_map(|mut all| {
        for (id, candidate) in all.iter_mut().enumerate() {
            // Ids need not be dense.
            candidate.id = id as u32 * 3;
        }
        all
    })
}

prop_compose! {
    fn any_hints()(seed in any::<u64>(), streaming in any::<bool>(), lora in any::<Option<u32>>(), forced_site in proptest::option::of(0..5u32)) -> Hints {
        Hints { seed, streaming, lora, forced_site, ..Hints::default() }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn every_policy_names_every_candidate_once_in_the_order_of_steps(candidates in candidates(), hints in any_hints()) {
        for name in BuiltinPolicy::NAMES {
            let policy = policy(name, json!({}));
            let choices = policy.rank(&hints, &candidates);
            prop_assert_eq!(&choices, &policy.rank(&hints, &candidates));
            let mut ids: Vec<u32> = choices.iter().map(|choice| choice.id).collect();
            prop_assert!(choices.windows(2).all(|pair| pair[0].step <= pair[1].step));
            ids.sort_unstable();
            let all: Vec<u32> = candidates.iter().map(|candidate| candidate.id).collect();
            prop_assert_eq!(ids, all);
            // Who is down is last by every policy's own rule, so that the check only moves them.
            let whole = complete_ranking(&choices, &candidates);
            prop_assert_eq!(whole.len(), candidates.len());
        }
    }

    #[test]
    fn any_answer_comes_out_whole_and_checked_again_stays(
        candidates in candidates(), answer in proptest::collection::vec((0..100u32, any::<u8>()), 0..60),
    ) {
        let answer: Vec<Choice> = answer.into_iter().map(|(id, step)| Choice { id, step }).collect();
        let whole = complete_ranking(&answer, &candidates);
        let mut ids: Vec<u32> = whole.iter().map(|choice| choice.id).collect();
        ids.sort_unstable();
        let all: Vec<u32> = candidates.iter().map(|candidate| candidate.id).collect();
        prop_assert_eq!(ids, all);
        prop_assert!(whole.windows(2).all(|pair| pair[1].step.wrapping_sub(pair[0].step) <= 1));
        prop_assert!(whole.first().is_none_or(|first| first.step == 0));
        let down = |choice: &&Choice| candidates.iter().any(|c| c.id == choice.id && c.health == Health::Down);
        let after = whole.iter().skip_while(|choice| !down(choice));
        prop_assert!(after.clone().all(|choice| down(&choice)), "who is down is last");
        prop_assert_eq!(complete_ranking(&whole, &candidates), whole.clone());
    }

    #[test]
    fn a_healthy_candidate_with_affinity_and_no_load_is_first(candidates in candidates(), at in any::<proptest::sample::Index>()) {
        prop_assume!(!candidates.is_empty());
        let mut candidates = candidates;
        let at = at.index(candidates.len());
        let warm = &mut candidates[at];
        *warm = Candidate { prefix_affinity: WHOLE, lora_affinity: WHOLE, permits_free: 8, permits_total: 8, ..candidate(warm.id) };
        let id = warm.id;
        let hints = Hints { lora: Some(1), ..Hints::default() };
        let first = rank(&policy("affinity", json!({})), &hints, &candidates)[0].clone();
        prop_assert!(first.contains(&id));
    }
}
