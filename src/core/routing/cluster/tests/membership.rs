//! Tests of membership, and of which reports count.

use super::*;

const NOW: Millis = Millis(10_000);

#[test]
fn nobody_is_asked_while_nobody_is_known() {
    let mut fleet = alone();
    assert_eq!(fleet.next_target(&seek(), 0, NOW), None);
    assert!(fleet.is_empty());
}

#[test]
fn what_a_node_says_of_itself_through_others_is_not_heard() {
    let mut fleet = alone();
    assert_eq!(
        fleet.apply_report(&report("a", "fra", 1, load(8)), NOW),
        None
    );
    assert!(fleet.is_empty());
}

#[test]
fn only_newer_reports_count() {
    let mut fleet = alone();
    let appeared = fleet.apply_report(&report("b", "fra", 5, load(8)), NOW);
    assert_eq!(appeared, Some(MembershipChange::Appeared(id("b", 1))));
    for version in [5, 4, 0] {
        assert_eq!(
            fleet.apply_report(&report("b", "fra", version, load(0)), NOW),
            None
        );
    }
    assert!(fleet.next_target(&seek(), 0, NOW).is_some());
    let changed = fleet.apply_report(&report("b", "fra", 6, load(0)), NOW);
    assert_eq!(changed, Some(MembershipChange::Changed(id("b", 1))));
    assert_eq!(fleet.next_target(&seek(), 0, NOW), None);
}

#[test]
fn a_restarted_node_is_a_new_one_and_its_former_life_is_over() {
    let mut fleet = alone();
    fleet.apply_report(&report("b", "fra", 900, load(1)), NOW);
    let chosen = fleet.next_target(&seek(), 0, NOW).expect("one is free");
    let before = fleet.record_forward(&chosen, NOW);
    let reborn = NodeReport {
        node: id("b", 2),
        ..report("b", "fra", 1, load(1))
    };
    let restarted = fleet.apply_report(&reborn, NOW);
    assert_eq!(restarted, Some(MembershipChange::Restarted(id("b", 2))));
    let chosen = fleet.next_target(&seek(), 0, NOW).expect("one is free");
    assert_eq!((chosen.node.generation, chosen.in_flight), (2, 0));
    fleet.record_forward(&chosen, NOW);
    fleet.finish_forward(before, ForwardOutcome::Failed, NOW);
    let seen = fleet.explain(&seek(), usize::MAX, NOW).0;
    assert_eq!(
        (seen[0].in_flight, seen[0].skip_reason),
        (1, Some(SkipReason::NoneFree))
    );
    let late = fleet.apply_report(&report("b", "fra", 901, load(8)), NOW);
    assert_eq!(late, None, "the dead do not speak");
    fleet.check();
}

#[test]
fn a_node_that_starts_again_by_an_earlier_clock_is_heard_once_its_former_life_is_lost() {
    let mut fleet = alone();
    let former = NodeReport {
        node: id("b", 7),
        ..report("b", "fra", 900, load(8))
    };
    fleet.apply_report(&former, NOW);
    let reborn = report("b", "fra", 1, load(8));
    assert_eq!(fleet.apply_report(&reborn, NOW), None);
    assert!(fleet.mark_lost("b"));
    let change = fleet.apply_report(&reborn, NOW);
    assert_eq!(change, Some(MembershipChange::Restarted(id("b", 1))));
    assert!(fleet.next_target(&seek(), 0, NOW).is_some());
    fleet.check();
}

#[test]
fn who_drains_or_is_lost_or_silent_or_could_not_be_reached_is_not_asked() {
    let fresh = || {
        let mut fleet = alone();
        fleet.apply_report(&report("b", "fra", 1, load(8)), NOW);
        fleet
    };
    let reason =
        |fleet: &mut ClusterView, now| fleet.explain(&seek(), usize::MAX, now).0[0].skip_reason;

    let mut fleet = fresh();
    let draining = NodeReport {
        draining: true,
        ..report("b", "fra", 2, load(8))
    };
    let change = fleet.apply_report(&draining, NOW);
    assert_eq!(change, Some(MembershipChange::Draining(id("b", 1))));
    assert_eq!(reason(&mut fleet, NOW), Some(SkipReason::Draining));

    let mut fleet = fresh();
    assert!(fleet.mark_lost("b") && !fleet.mark_lost("b"));
    assert_eq!(reason(&mut fleet, NOW), Some(SkipReason::Gone));
    let change = fleet.apply_report(&report("b", "fra", 2, load(8)), NOW);
    assert_eq!(change, Some(MembershipChange::Returned(id("b", 1))));
    assert_eq!(reason(&mut fleet, NOW), None);

    let mut fleet = fresh();
    assert_eq!(
        reason(&mut fleet, NOW + Millis(5_000)),
        Some(SkipReason::Stale)
    );

    let mut fleet = fresh();
    let chosen = fleet.next_target(&seek(), 0, NOW).expect("eight are free");
    let ticket = fleet.record_forward(&chosen, NOW);
    fleet.finish_forward(ticket, ForwardOutcome::Failed, NOW);
    assert_eq!(reason(&mut fleet, NOW), Some(SkipReason::BackedOff));
    assert_eq!(reason(&mut fleet, NOW + Millis(250)), None);
}

#[test]
fn a_model_a_node_does_not_name_any_more_is_not_there() {
    let mut fleet = alone();
    fleet.apply_report(&report("b", "fra", 1, load(8)), NOW);
    let bare = NodeReport {
        models: Vec::new(),
        ..report("b", "fra", 2, load(8))
    };
    fleet.apply_report(&bare, NOW);
    assert_eq!(fleet.next_target(&seek(), 0, NOW), None);
    fleet.check();
    fleet.apply_report(&report("b", "fra", 3, load(8)), NOW);
    assert!(fleet.next_target(&seek(), 0, NOW).is_some());
    fleet.check();
}

#[test]
fn who_is_silent_for_a_minute_is_forgotten() {
    let mut fleet = alone();
    fleet.apply_report(&report("b", "fra", 1, load(8)), NOW);
    assert_eq!(fleet.sweep(NOW + Millis(59_999)), []);
    assert_eq!(fleet.sweep(NOW + Millis(60_000)), [id("b", 1)]);
    assert!(fleet.is_empty());
    fleet.check();
}

#[test]
fn no_more_nodes_are_known_than_the_bound_and_the_silent_make_room() {
    let mut fleet = alone();
    for number in 0..NODES_MAX {
        let name = format!("n{number}");
        fleet.apply_report(&report(&name, "fra", 1, load(1)), Millis(number as u64));
    }
    let one_more = report("late", "fra", 1, load(1));
    assert_eq!(fleet.apply_report(&one_more, Millis(4_999)), None);
    assert!(fleet.apply_report(&one_more, Millis(5_000)).is_some());
    assert_eq!(fleet.len(), NODES_MAX);
    fleet.check();
}

#[test]
fn a_node_that_moves_counts_at_its_new_site() {
    let mut fleet = alone();
    fleet.apply_report(&report("b", "fra", 1, load(8)), NOW);
    fleet.apply_report(&report("b", "ams", 2, load(8)), NOW);
    let forced = NodeQuery {
        forced_site: Some("ams"),
        ..seek()
    };
    assert!(fleet.next_target(&forced, 0, NOW).is_some());
    fleet.check();
}

#[test]
fn waiters_are_woken_once_when_there_may_be_room_and_only_if_somebody_found_none() {
    let mut fleet = alone();
    fleet.apply_report(&report("b", "fra", 1, load(8)), NOW);
    assert!(fleet.take_wakes().is_empty(), "nobody has asked");
    let none = ModelLoad {
        queue_room: 0,
        ..load(0)
    };
    fleet.apply_report(&report("b", "fra", 2, none), NOW);
    assert_eq!(fleet.next_target(&seek(), 0, NOW), None);
    fleet.apply_report(&report("b", "fra", 3, none), NOW);
    assert!(fleet.take_wakes().is_empty(), "still no room");
    fleet.apply_report(&report("b", "fra", 4, load(1)), NOW);
    assert_eq!(fleet.take_wakes(), [ModelId::from(MODEL)]);
    fleet.apply_report(&report("b", "fra", 5, load(2)), NOW);
    assert!(fleet.take_wakes().is_empty(), "they know");
}

#[test]
fn a_forward_that_ends_wakes_those_who_found_no_room() {
    let mut fleet = alone();
    let one = ModelLoad {
        queue_room: 0,
        ..load(1)
    };
    fleet.apply_report(&report("b", "fra", 1, one), NOW);
    let chosen = fleet.next_target(&seek(), 0, NOW).expect("one is free");
    let ticket = fleet.record_forward(&chosen, NOW);
    assert_eq!(fleet.next_target(&seek(), 0, NOW), None);
    fleet.finish_forward(ticket, ForwardOutcome::Answered { ttft_us: 900 }, NOW);
    assert_eq!(fleet.take_wakes(), [ModelId::from(MODEL)]);
}

#[test]
fn a_node_that_says_itself_that_it_drains_is_not_asked_until_it_reports_otherwise() {
    let mut fleet = alone();
    assert!(!fleet.mark_draining("b", 1), "nobody knows it");
    fleet.apply_report(&report("b", "fra", 5, load(8)), NOW);
    assert!(!fleet.mark_draining("b", 2), "another life of it");
    assert!(fleet.next_target(&seek(), 0, NOW).is_some());
    assert!(fleet.mark_draining("b", 1));
    assert!(!fleet.mark_draining("b", 1), "that was known");
    let reason = fleet.explain(&seek(), usize::MAX, NOW).0[0].skip_reason;
    assert_eq!(reason, Some(SkipReason::Draining));
    fleet.apply_report(&report("b", "fra", 5, load(8)), NOW);
    assert_eq!(fleet.next_target(&seek(), 0, NOW), None, "an old report");
    let returned = fleet.apply_report(&report("b", "fra", 6, load(8)), NOW);
    assert_eq!(returned, Some(MembershipChange::Returned(id("b", 1))));
    assert!(fleet.next_target(&seek(), 0, NOW).is_some());
}

#[test]
fn of_a_node_that_has_not_proved_itself_nothing_counts_until_it_has() {
    let rule = ClusterRule {
        proven_only: true,
        ..ClusterRule::default()
    };
    let mut fleet = ClusterView::new(id("a", 1), "fra".into(), rule);
    let wanting = ModelLoad {
        unmet_demand: 5,
        ..load(8)
    };
    fleet.apply_report(&report("stranger", "ams", 1, wanting), Millis(1));
    fleet.apply_report(&report("b", "fra", 1, load(1)), Millis(1));
    assert_eq!(fleet.next_target(&seek(), 0, Millis(2)), None);
    assert_eq!(fleet.site_candidates(MODEL, Millis(2)), []);
    let (seen, _) = fleet.explain(&seek(), 8, Millis(2));
    let unproven = |view: &NodeView| view.skip_reason == Some(SkipReason::Unproven);
    assert!(seen.len() == 2 && seen.iter().all(unproven));

    assert!(
        fleet.record_ping_response("b", Millis(3)) && !fleet.record_ping_response("b", Millis(4))
    );
    fleet.apply_report(&report("stranger", "ams", 2, wanting), Millis(4));
    // The whole of the one permit: the need of an unproven node reserves no share.
    assert_eq!(ever(&mut fleet, &seek(), Millis(4)), ["b".into()]);
    let lots = (0..100).filter(|&lot| fleet.next_target(&seek(), lot, Millis(4)).is_some());
    assert_eq!(lots.count(), 100);

    // Another process under the name has to prove itself again.
    let mut restarted = report("b", "fra", 1, load(8));
    restarted.node.generation = 2;
    fleet.apply_report(&restarted, Millis(5));
    assert_eq!(fleet.next_target(&seek(), 0, Millis(6)), None);
    fleet.record_ping_response("b", Millis(7));
    assert!(fleet.next_target(&seek(), 0, Millis(8)).is_some());
}
