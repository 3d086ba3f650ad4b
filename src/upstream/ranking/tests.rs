//! The table of a cached policy: which classes are ranked, for how long, and at whose cost.

use std::pin::pin;
use std::task::Poll;

use infergate_core::model::{Algorithm, ModelSpec};

use super::super::gate::fixtures::{spec, targets};
use super::*;
use crate::plugin::Plugins;
use crate::telemetry::Clock;

/// A model whose policy is asked off the path, and its gate.
fn cached() -> (Ranking, Arc<Gate>) {
    let mut model: ModelSpec = spec(Algorithm::Fair);
    model.plugins.routing = Some("latency".into());
    let ranking = Ranking::follow(Plugins::default().routing(&model), None);
    assert_eq!(ranking.mode(), RoutingMode::Cached);
    let gate = Gate::new(&model, targets(&model), Clock::start());
    (ranking, gate)
}

fn class(number: usize) -> Class {
    Class {
        lora: u32::try_from(number).ok(),
        ..Class::default()
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
    ranking.refresh(&gate, NOW).await;
    assert!(ranking.look_up(class(1), NOW).is_some());
    assert!(ranking.look_up(class(2), NOW).is_none());
    let late = NOW + STALE_AFTER;
    assert!(ranking.look_up(class(1), late).is_some());
    assert!(ranking.look_up(class(1), late + Millis(1)).is_none());
}

#[tokio::test]
async fn a_class_that_nobody_asks_for_is_forgotten_and_one_that_is_asked_for_stays() {
    let (ranking, gate) = cached();
    for number in [1, 2] {
        ranking.look_up(class(number), NOW);
    }
    // The first round finds both asked for.
    ranking.refresh(&gate, NOW).await;
    for round in 1..FORGOTTEN_AFTER_TICKS {
        if round % 1000 == 0 {
            ranking.look_up(class(2), NOW);
        }
        ranking.refresh(&gate, NOW).await;
        assert_eq!(known(&ranking), 2, "round {round}");
    }
    ranking.refresh(&gate, NOW).await;
    assert_eq!(known(&ranking), 1);
    let ranked: Vec<Class> = ranking.table.load().placed.iter().map(|p| p.0).collect();
    assert_eq!(ranked, [class(2)]);
    assert!(ranking.look_up(class(1), NOW).is_none(), "it begins anew");
    assert_eq!(known(&ranking), 2);
}

#[tokio::test]
async fn classes_have_a_bound_and_those_beyond_it_come_in_when_others_are_forgotten() {
    let (ranking, gate) = cached();
    for number in 0..10 * CLASSES_MAX {
        assert!(ranking.look_up(class(number), NOW).is_none());
    }
    assert_eq!(known(&ranking), CLASSES_MAX);
    ranking.refresh(&gate, NOW).await;
    let newcomer = class(10 * CLASSES_MAX);
    for _ in 0..FORGOTTEN_AFTER_TICKS {
        assert!(ranking.look_up(newcomer, NOW).is_none());
        ranking.look_up(class(0), NOW);
        ranking.refresh(&gate, NOW).await;
    }
    assert_eq!(known(&ranking), 1);
    assert!(ranking.look_up(newcomer, NOW).is_none());
    ranking.refresh(&gate, NOW).await;
    assert!(ranking.look_up(newcomer, NOW).is_some());
    // A generation that follows knows them too.
    let next = Ranking::follow(ranking.slot.clone(), Some(&ranking));
    assert_eq!(known(&next), 2);
}

#[tokio::test]
async fn a_round_gives_way_after_each_class() {
    let (ranking, gate) = cached();
    for number in 0..5 {
        ranking.look_up(class(number), NOW);
    }
    let mut round = pin!(ranking.refresh(&gate, NOW));
    let mut turns_of_others = 0;
    loop {
        let polled = std::future::poll_fn(|ctx| Poll::Ready(round.as_mut().poll(ctx))).await;
        if polled.is_ready() {
            break;
        }
        turns_of_others += 1;
        // Until it has ended, requests read the table before.
        assert!(ranking.table.load().placed.is_empty());
    }
    assert_eq!(turns_of_others, 5);
    assert_eq!(ranking.table.load().placed.len(), 5);
}
