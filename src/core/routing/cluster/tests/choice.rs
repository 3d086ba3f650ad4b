//! Tests of node selection.

use serde_json::json;

use super::*;
use crate::routing::policy::{BuiltinPolicy, Hints, complete_ranking};

const NOW: Millis = Millis(10_000);

/// `b` and `c` here, `d` and `e` near, `f` far.
fn five() -> ClusterView {
    let mut fleet = alone();
    for (name, site, rtt_us) in [
        ("b", "fra", 200),
        ("c", "fra", 300),
        ("d", "ams", 8_000),
        ("e", "par", 12_000),
        ("f", "sin", 160_000),
    ] {
        fleet.apply_report(&report(name, site, 1, load(8)), NOW);
        fleet.record_rtt(name, rtt_us);
    }
    fleet
}

fn names(texts: &[&str]) -> Vec<Arc<str>> {
    texts.iter().map(|&text| text.into()).collect()
}

fn fill(fleet: &mut ClusterView, node: &str, site: &str) {
    fleet.apply_report(&report(node, site, 2, load(0)), NOW);
}

#[test]
fn our_site_is_first_then_the_near_ones_together_then_the_far_one() {
    let mut fleet = five();
    assert_eq!(ever(&mut fleet, &seek(), NOW), names(&["b", "c"]));
    fill(&mut fleet, "b", "fra");
    assert_eq!(ever(&mut fleet, &seek(), NOW), names(&["c"]));
    fill(&mut fleet, "c", "fra");
    assert_eq!(ever(&mut fleet, &seek(), NOW), names(&["d", "e"]));
    fill(&mut fleet, "d", "ams");
    fill(&mut fleet, "e", "par");
    assert_eq!(ever(&mut fleet, &seek(), NOW), names(&["f"]));
    fill(&mut fleet, "f", "sin");
    assert_eq!(ever(&mut fleet, &seek(), NOW), names(&[]));
}

#[test]
fn a_policys_order_of_sites_goes_before_distance() {
    let mut fleet = five();
    let order = SiteOrder::new(vec![
        ("sin".into(), 0),
        ("par".into(), 1),
        ("fra".into(), 1),
    ]);
    let ranked = NodeQuery {
        site_order: Some(&order),
        ..seek()
    };
    assert_eq!(ever(&mut fleet, &ranked, NOW), names(&["f"]));
    fill(&mut fleet, "f", "sin");
    assert_eq!(ever(&mut fleet, &ranked, NOW), names(&["b", "c", "e"]));
    for (node, site) in [("b", "fra"), ("c", "fra"), ("e", "par")] {
        fill(&mut fleet, node, site);
    }
    assert_eq!(
        ever(&mut fleet, &ranked, NOW),
        names(&["d"]),
        "not named: last"
    );
}

#[test]
fn our_site_is_first_among_those_that_a_policy_holds_for_equal() {
    let mut fleet = five();
    let sites = fleet.site_candidates(MODEL, NOW);
    let choices = [(3, 0), (0, 1), (1, 1), (2, 2)];
    let choices = choices.map(|(id, step)| crate::routing::Choice { id, step });
    let order = SiteOrder::from_choices(&choices, &sites);
    let ranked = NodeQuery {
        site_order: Some(&order),
        ..seek()
    };
    let expected = [
        ("f", "sin"),
        ("b", "fra"),
        ("c", "fra"),
        ("d", "ams"),
        ("e", "par"),
    ];
    for tier in [0..1, 1..3, 3..4, 4..5] {
        let tier = &expected[tier];
        let there: Vec<&str> = tier.iter().map(|(node, _)| *node).collect();
        assert_eq!(ever(&mut fleet, &ranked, NOW), names(&there));
        for (node, site) in tier {
            fill(&mut fleet, node, site);
        }
    }
}

#[test]
fn every_built_in_policy_makes_an_order_of_sites() {
    let mut fleet = five();
    fill(&mut fleet, "d", "ams");
    let sites = fleet.site_candidates(MODEL, NOW);
    let list: Vec<_> = sites.iter().map(|(_, candidate)| *candidate).collect();
    let first = |name: &str, settings: serde_json::Value, hints: Hints| {
        let settings = settings.as_object().cloned().unwrap_or_default();
        let policy = BuiltinPolicy::named(name, &settings).unwrap().unwrap();
        let choices = complete_ranking(&policy.rank(&hints, &list), &list);
        let order = SiteOrder::from_choices(&choices, &sites);
        let steps = sites.iter().map(|(site, _)| (order.step(site), &**site));
        let mut steps: Vec<_> = steps.collect();
        steps.sort_unstable();
        steps.iter().map(|(_, site)| *site).collect::<Vec<_>>()
    };
    let seeded = |seed| Hints {
        seed,
        ..Hints::default()
    };
    // By round trips: ams and par are as good as fra within a step, and ours is first of them.
    let by_latency = first("latency", json!({}), seeded(0));
    assert_eq!(by_latency, ["fra", "ams", "par", "sin"]);
    let forced = first("forced-site", json!({ "site": "sin" }), seeded(0));
    assert_eq!(forced, ["sin", "fra", "ams", "par"]);
    for seed in 0..100 {
        let flow = first("resource-flow", json!({}), seeded(seed));
        assert_eq!(flow[3], "ams", "nothing is free there");
    }
    // Who is busier than its share is second.
    let affine = first("affinity", json!({}), seeded(0));
    assert_eq!(affine, ["fra", "par", "sin", "ams"]);
    let drawn: std::collections::BTreeSet<&str> = (0..100)
        .map(|seed| first("random", json!({}), seeded(seed))[0])
        .collect();
    assert_eq!(drawn.len(), 4, "{drawn:?}");
}

#[test]
fn a_plan_that_was_kept_follows_who_comes_and_how_far_a_site_turns_out() {
    let mut fleet = five();
    for (node, site) in [("b", "fra"), ("c", "fra")] {
        fill(&mut fleet, node, site);
    }
    assert_eq!(ever(&mut fleet, &seek(), NOW), names(&["d", "e"]));
    for _ in 0..100 {
        fleet.record_rtt("e", 300_000);
    }
    assert_eq!(ever(&mut fleet, &seek(), NOW), names(&["d"]));
    fleet.apply_report(&report("g", "fra", 1, load(8)), NOW);
    assert_eq!(ever(&mut fleet, &seek(), NOW), names(&["g"]));
}

#[test]
fn a_forced_site_is_the_only_one() {
    let mut fleet = five();
    let forced = NodeQuery {
        forced_site: Some("sin"),
        ..seek()
    };
    assert_eq!(ever(&mut fleet, &forced, NOW), names(&["f"]));
    fill(&mut fleet, "f", "sin");
    assert_eq!(fleet.next_target(&forced, 0, NOW), None);
}

#[test]
fn nobody_is_asked_twice() {
    let mut fleet = five();
    let visited = names(&["a", "b", "c", "e", "unknown"]);
    let again = NodeQuery {
        visited: &visited,
        ..seek()
    };
    assert_eq!(ever(&mut fleet, &again, NOW), names(&["d"]));
}

#[test]
fn of_two_the_freer_is_taken_and_what_was_sent_counts() {
    let mut fleet = alone();
    for number in 0..10 {
        fleet.apply_report(&report(&format!("n{number}"), "fra", 1, load(8)), NOW);
    }
    for lot in 0..60 {
        let chosen = fleet
            .next_target(&seek(), lot, NOW)
            .expect("eighty are free");
        fleet.record_forward(&chosen, NOW);
    }
    let seen = fleet.explain(&seek(), usize::MAX, NOW).0;
    assert_eq!(seen.iter().map(|node| node.in_flight).sum::<u32>(), 60);
    for node in seen {
        assert!((4..=8).contains(&node.in_flight), "{node:?}");
    }
}

#[test]
fn an_older_view_is_believed_less() {
    let mut fleet = alone();
    fleet.apply_report(&report("old", "fra", 1, load(8)), NOW);
    let later = NOW + Millis(4_000);
    fleet.apply_report(&report("new", "fra", 1, load(3)), later);
    assert_eq!(ever(&mut fleet, &seek(), later), names(&["new"]));
}

#[test]
fn who_refused_is_not_asked_until_it_tells_something_newer_or_a_second_is_over() {
    for newer in [true, false] {
        let mut fleet = alone();
        fleet.apply_report(&report("b", "fra", 1, load(8)), NOW);
        let chosen = fleet.next_target(&seek(), 0, NOW).expect("eight are free");
        let ticket = fleet.record_forward(&chosen, NOW);
        let refused = ForwardOutcome::Refused {
            free: 2,
            wait_ms: 40,
        };
        fleet.finish_forward(ticket, refused, NOW);
        let reason =
            |fleet: &mut ClusterView, now| fleet.explain(&seek(), usize::MAX, now).0[0].skip_reason;
        assert_eq!(
            reason(&mut fleet, NOW + Millis(999)),
            Some(SkipReason::Full)
        );
        if newer {
            fleet.apply_report(&report("b", "fra", 2, load(2)), NOW);
            assert_eq!(reason(&mut fleet, NOW), None);
        } else {
            assert_eq!(reason(&mut fleet, NOW + Millis(1_000)), None);
        }
    }
}

#[test]
fn a_request_that_can_wait_nowhere_here_goes_to_a_short_line() {
    let mut fleet = alone();
    for (name, wait_ms) in [("b", 900), ("c", 200), ("d", 5_000)] {
        let line = ModelLoad {
            wait_ms,
            queued: 1,
            queue_room: 1,
            ..load(0)
        };
        fleet.apply_report(&report(name, "fra", 1, line), NOW);
    }
    let wants = |wait_max| NodeQuery {
        need: Need::Queue {
            wait_max: Millis(wait_max),
            crowded: false,
        },
        ..seek()
    };
    assert_eq!(
        fleet.next_target(&seek(), 0, NOW),
        None,
        "no permit is free"
    );
    assert_eq!(ever(&mut fleet, &wants(100), NOW), names(&[]));
    assert_eq!(ever(&mut fleet, &wants(300), NOW), names(&["c"]));
    let chosen = fleet
        .next_target(&wants(300), 0, NOW)
        .expect("c has a place");
    fleet.record_forward(&chosen, NOW);
    assert_eq!(
        ever(&mut fleet, &wants(300), NOW),
        names(&[]),
        "it was the last place"
    );
    assert_eq!(ever(&mut fleet, &wants(1_000), NOW), names(&["b"]));
    let crowded = ModelLoad {
        queued: 1,
        queue_room: 1,
        unmet_demand: 1,
        ..load(0)
    };
    fleet.apply_report(&report("b", "fra", 2, crowded), NOW);
    assert_eq!(
        ever(&mut fleet, &wants(1_000), NOW),
        names(&[]),
        "its own clients wait there"
    );
}

#[test]
fn waiting_here_is_worth_it_only_while_it_is_shorter_than_a_forward() {
    let mut fleet = five();
    let near = fleet
        .next_target(&seek(), 0, NOW)
        .expect("b and c have room");
    assert!(fleet.is_wait_here_shorter(Millis(1), &near));
    assert!(!fleet.is_wait_here_shorter(Millis(2), &near));
    let forced = NodeQuery {
        forced_site: Some("sin"),
        ..seek()
    };
    let far = fleet.next_target(&forced, 0, NOW).expect("f has room");
    assert!(fleet.is_wait_here_shorter(Millis(161), &far));
    assert!(!fleet.is_wait_here_shorter(Millis(162), &far));
}

#[test]
fn a_node_in_doubt_gets_one_request_until_it_answers() {
    let mut fleet = alone();
    fleet.apply_report(&report("b", "fra", 1, load(8)), NOW);
    let send = |fleet: &mut ClusterView, now| {
        let chosen = fleet.next_target(&seek(), 0, now)?;
        Some(fleet.record_forward(&chosen, now))
    };
    let ticket = send(&mut fleet, NOW).expect("eight are free");
    fleet.finish_forward(ticket, ForwardOutcome::Failed, NOW);
    assert_eq!(send(&mut fleet, NOW + Millis(249)), None);
    let trial = send(&mut fleet, NOW + Millis(250)).expect("time to find out");
    assert_eq!(send(&mut fleet, NOW + Millis(260)), None);
    fleet.finish_forward(
        trial,
        ForwardOutcome::Answered { ttft_us: 0 },
        NOW + Millis(270),
    );
    assert!(send(&mut fleet, NOW + Millis(271)).is_some());
}

#[test]
fn a_policy_sees_what_each_site_has_and_its_answer_is_an_order() {
    let mut fleet = five();
    let sites = fleet.site_candidates(MODEL, NOW);
    let seen: Vec<(&str, u32, u32)> = sites
        .iter()
        .map(|(name, site)| (&**name, site.permits_free, site.rtt_us))
        .collect();
    let expected = [
        ("fra", 16, 200),
        ("ams", 8, 8_000),
        ("par", 8, 12_000),
        ("sin", 8, 160_000),
    ];
    assert_eq!(seen, expected);
    assert_eq!(sites[0].1.site, 0);
    assert_eq!(sites[3].1.site, crate::routing::policy::site_number("sin"));
    let choices = [(3, 0), (0, 1)].map(|(id, step)| crate::routing::Choice { id, step });
    let order = SiteOrder::from_choices(&choices, &sites);
    let ranked = NodeQuery {
        site_order: Some(&order),
        ..seek()
    };
    assert_eq!(ever(&mut fleet, &ranked, NOW), names(&["f"]));
}
