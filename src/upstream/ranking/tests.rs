//! The table of a cached policy: which classes are ranked, for how long, and at whose cost.

use std::pin::pin;
use std::task::Poll;

use infergate_core::model::{Algorithm, ModelSpec};
use infergate_core::routing::Health;
use infergate_core::routing::policy::site_number;
use serde_json::{Value, json};

use super::super::gate::fixtures::{spec, targets};
use super::*;
use crate::plugin::PluginSnapshot;
use crate::telemetry::Clock;

/// A model with a policy, and its gate.
fn with(policy: &str, settings: Value) -> (Ranking, Arc<AdmissionGate>) {
    let mut model: ModelSpec = spec(Algorithm::Fair);
    model.plugins.routing = Some(policy.into());
    model.routing = settings.as_object().cloned().unwrap_or_default();
    let ranking = Ranking::next_generation(PluginSnapshot::default().routing(&model), None, &[]);
    let gate = AdmissionGate::new(&model, targets(&model), Clock::start());
    (ranking, gate)
}

/// A model whose policy is asked off the path, and its gate.
fn cached() -> (Ranking, Arc<AdmissionGate>) {
    let (ranking, gate) = with("latency", json!({}));
    assert_eq!(ranking.mode(), RoutingMode::Cached);
    (ranking, gate)
}

/// Our site, and others with their round trips.
fn sites(others: &[(&str, u32)]) -> Vec<Site> {
    let names = std::iter::once(("fra", 0, 100)).chain(
        others
            .iter()
            .map(|&(name, rtt_us)| (name, site_number(name), rtt_us)),
    );
    let site = |(id, (name, site, rtt_us)): (u32, (&str, u32, u32))| {
        let (_, gate) = cached();
        let candidate = Candidate {
            id,
            site,
            rtt_us,
            health: Health::Healthy,
            ..gate.candidates(None)[0].2
        };
        (name.into(), candidate)
    };
    (0..).zip(names).map(site).collect()
}

fn ranked(sited: Option<Arc<SiteRanking>>) -> Vec<(String, u8)> {
    let places = &sited.expect("sites are ranked").ranked;
    let place = places
        .iter()
        .map(|(name, step, _)| (name.to_string(), *step));
    place.collect()
}

fn class(number: usize) -> RankingClass {
    RankingClass {
        lora: u32::try_from(number).ok(),
        ..RankingClass::default()
    }
}

/// Classes that the next round ranks.
fn known(ranking: &Ranking) -> usize {
    ranking.memory.lock().classes.len()
}

const NOW: Millis = Millis(1000);

#[tokio::test]
async fn a_class_is_ranked_from_the_round_after_it_was_first_asked_for() {
    let (ranking, gate) = cached();
    assert!(ranking.look_up(class(1), NOW).is_none());
    ranking.refresh(&gate, &[], NOW).await;
    assert!(ranking.look_up(class(1), NOW).is_some());
    assert!(ranking.look_up(class(2), NOW).is_none());
    let late = NOW + STALE_AFTER;
    assert!(ranking.look_up(class(1), late).is_some());
    assert!(ranking.look_up(class(1), late + Millis(1)).is_none());
}

#[tokio::test]
async fn a_class_that_nobody_asks_for_keeps_its_ranking_and_is_forgotten_after_a_minute() {
    let (ranking, gate) = cached();
    let ranked = |number| ranking.table.load().find(class(number)).cloned().unwrap();
    for number in [1, 2] {
        ranking.look_up(class(number), NOW);
    }
    assert_eq!(
        ranking.refresh(&gate, &[], NOW).await,
        RankingDemand::Requests
    );
    let (one, two) = (ranked(1), ranked(2));
    let tick = NOW + Millis(50);
    assert_eq!(ranking.refresh(&gate, &[], tick).await, RankingDemand::None);
    assert!(Arc::ptr_eq(&one, &ranked(1)) && Arc::ptr_eq(&two, &ranked(2)));

    let later = NOW + Millis::from_secs(30);
    assert!(ranking.look_up(class(2), later).is_some());
    assert_eq!(
        ranking.refresh(&gate, &[], later).await,
        RankingDemand::Requests
    );
    assert!(Arc::ptr_eq(&one, &ranked(1)) && !Arc::ptr_eq(&two, &ranked(2)));
    assert_eq!(known(&ranking), 2);

    let end = NOW + FORGOTTEN_AFTER;
    ranking.refresh(&gate, &[], end).await;
    assert_eq!(known(&ranking), 1);
    let ranked: Vec<RankingClass> = ranking.table.load().rankings.iter().map(|p| p.0).collect();
    assert_eq!(ranked, [class(2)]);
    assert!(ranking.look_up(class(1), end).is_none(), "it begins anew");
    assert_eq!(known(&ranking), 2);
}

#[tokio::test]
async fn the_first_requests_after_a_rest_use_the_ranking_of_before_it() {
    let (ranking, gate) = cached();
    ranking.look_up(class(1), NOW);
    ranking.refresh(&gate, &[], NOW).await;
    let after = NOW + FORGOTTEN_AFTER.since(STALE_AFTER);
    assert!(ranking.look_up(class(1), after).is_some());
    // The round that it requested does not come.
    assert!(ranking.look_up(class(1), after + STALE_AFTER).is_some());
    let late = after + STALE_AFTER + Millis(1);
    assert!(ranking.look_up(class(1), late).is_none());
    ranking.refresh(&gate, &[], late).await;
    assert!(ranking.look_up(class(1), late).is_some());
    ranking.refresh(&gate, &[], late).await;
    let too_late = late + FORGOTTEN_AFTER + Millis(1);
    assert!(ranking.look_up(class(1), too_late).is_none());
    ranking.refresh(&gate, &[], too_late).await;
    assert!(ranking.look_up(class(1), too_late).is_some());
}

#[tokio::test]
async fn classes_have_a_bound_and_those_beyond_it_come_in_when_others_are_forgotten() {
    let (ranking, gate) = cached();
    for number in 0..10 * CLASSES_MAX {
        assert!(ranking.look_up(class(number), NOW).is_none());
    }
    assert_eq!(known(&ranking), CLASSES_MAX);
    ranking.refresh(&gate, &[], NOW).await;
    let newcomer = class(10 * CLASSES_MAX);
    let end = NOW + FORGOTTEN_AFTER;
    for secs in 0..=60 {
        let now = NOW + Millis::from_secs(secs);
        assert!(ranking.look_up(newcomer, now).is_none());
        ranking.look_up(class(0), now);
        ranking.refresh(&gate, &[], now).await;
    }
    assert_eq!(known(&ranking), 1);
    assert!(ranking.look_up(newcomer, end).is_none());
    ranking.refresh(&gate, &[], end).await;
    assert!(ranking.look_up(newcomer, end).is_some());
    // A generation that follows knows them too.
    let next = Ranking::next_generation(ranking.slot.clone(), Some(&ranking), &[]);
    assert_eq!(known(&next), 2);
}

#[tokio::test]
async fn a_round_gives_way_after_each_class() {
    let (ranking, gate) = cached();
    for number in 0..5 {
        ranking.look_up(class(number), NOW);
    }
    let mut round = pin!(ranking.refresh(&gate, &[], NOW));
    let mut turns_of_others = 0;
    loop {
        let polled = std::future::poll_fn(|ctx| Poll::Ready(round.as_mut().poll(ctx))).await;
        if polled.is_ready() {
            break;
        }
        turns_of_others += 1;
        // Until it has ended, requests read the table before.
        assert!(ranking.table.load().rankings.is_empty());
    }
    assert_eq!(turns_of_others, 5);
    assert_eq!(ranking.table.load().rankings.len(), 5);
}

#[tokio::test]
async fn sites_are_ranked_before_the_first_request_and_forgotten_with_the_fleet() {
    let (ranking, gate) = cached();
    let class = class(1);
    let three = sites(&[("sin", 160_000), ("ams", 8_000)]);
    assert!(ranking.sites(class, NOW).is_none());
    ranking.refresh(&gate, &three, NOW).await;
    let found = ranked(ranking.sites(class, NOW));
    let expected = [("fra", 0), ("ams", 0), ("sin", 1)];
    assert_eq!(found, expected.map(|(name, step)| (name.to_owned(), step)));
    // The class is ranked by itself once it was asked for, with the sites.
    ranking.look_up(class, NOW);
    ranking.refresh(&gate, &three, NOW).await;
    assert_eq!(ranked(ranking.sites(class, NOW)), found);
    let late = NOW + STALE_AFTER;
    assert!(ranking.sites(class, late).is_some());
    assert!(ranking.sites(class, late + Millis(1)).is_none());
    // One site needs no order.
    ranking.refresh(&gate, &three[..1], NOW).await;
    assert!(ranking.sites(class, NOW).is_none());
}

#[tokio::test]
async fn a_policy_that_is_asked_for_each_request_ranks_sites_ahead_and_none_ranks_none() {
    let three = sites(&[("sin", 160_000), ("ams", 8_000)]);
    let (ranking, gate) = with("random", json!({}));
    assert_eq!(ranking.mode(), RoutingMode::PerRequest);
    let demand = ranking.refresh(&gate, &three, NOW).await;
    assert_eq!(demand, RankingDemand::Sites);
    assert_eq!(ranked(ranking.sites(RankingClass::default(), NOW)).len(), 3);
    let demand = ranking.refresh(&gate, &three, NOW).await;
    assert_eq!(demand, RankingDemand::Requests, "one asked");
    let demand = ranking.refresh(&gate, &three, NOW).await;
    assert_eq!(demand, RankingDemand::Sites, "none asked since");
    let (forced, gate) = with("forced-site", json!({ "site": "sin" }));
    forced.refresh(&gate, &three, NOW).await;
    assert_eq!(
        ranked(forced.sites(RankingClass::default(), NOW))[0].0,
        "sin"
    );
    let none = Ranking::next_generation(
        PluginSnapshot::default().routing(&spec(Algorithm::Fair)),
        None,
        &[],
    );
    none.refresh(&gate, &three, NOW).await;
    assert!(none.sites(RankingClass::default(), NOW).is_none());
}

#[tokio::test]
async fn streams_and_whole_answers_have_orders_of_their_own() {
    let mut three = sites(&[("sin", 10_000), ("ams", 10_000)]);
    three[1].1.ttft_us = 900_000;
    three[2].1.ttft_us = 20_000;
    let (ranking, gate) = cached();
    ranking.refresh(&gate, &three, NOW).await;
    let streaming = RankingClass {
        streaming: true,
        ..RankingClass::default()
    };
    let last = |class| ranked(ranking.sites(class, NOW))[2].clone();
    assert_eq!(last(streaming).0, "sin");
    assert!(last(streaming).1 > 0);
    assert_eq!(
        last(RankingClass::default()).1,
        0,
        "all answers are near enough"
    );
}

#[tokio::test]
async fn a_class_asks_for_a_round_until_one_has_ranked_it() {
    let (ranking, gate) = cached();
    assert!(ranking.remember_class(class(1), NOW));
    assert!(ranking.remember_class(class(1), NOW), "not ranked yet");
    ranking.refresh(&gate, &[], NOW).await;
    let ranked = ranking.table.load().find(class(1)).cloned().unwrap();
    let wants = |after| ranked.ask(NOW + Millis(after)).wants_round;
    assert!(wants(0));
    assert!(!wants(0) && !wants(STALE_AFTER.0), "one is on its way");
    assert!(wants(STALE_AFTER.0 + 1), "it did not come");
    assert!(wants(FORGOTTEN_AFTER.0 + 1));

    // The table of a new generation is empty, and the class is known.
    let next = Ranking::next_generation(ranking.slot.clone(), Some(&ranking), &[]);
    assert!(next.look_up(class(1), NOW).is_none());
    assert!(next.remember_class(class(1), NOW));
    next.refresh(&gate, &[], NOW).await;
    assert!(next.look_up(class(1), NOW).is_some());
    // Beyond the bound a class is not ranked, so it asks for nothing.
    for number in 2..=CLASSES_MAX {
        next.remember_class(class(number), NOW);
    }
    assert!(!next.remember_class(class(CLASSES_MAX + 1), NOW));
}
