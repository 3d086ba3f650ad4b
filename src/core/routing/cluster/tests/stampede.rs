//! Many nodes that look at the same picture.

use super::*;

const NODES: u32 = 50;

fn name(number: u32) -> String {
    format!("n{number}")
}

/// Everybody's view: nodes 1 to 49 are full with a line of waiters, node 0 has `free` permits.
fn crowd(free: u32) -> Vec<ClusterView> {
    let seekers = 1..NODES;
    let fleets = seekers.map(|number| {
        let here = id(&name(number), 1);
        let mut fleet = ClusterView::new(here, "fra".into(), ClusterRule::default());
        for other in 1..NODES {
            let waiting = ModelLoad {
                queued: 10,
                unmet_demand: 10,
                ..load(0)
            };
            fleet.apply_report(&report(&name(other), "fra", 1, waiting), Millis(1_000));
        }
        fleet.apply_report(&report(&name(0), "fra", 1, load(free)), Millis(1_000));
        fleet
    });
    fleets.collect()
}

/// Each sends as much as it may; how much that is together.
fn rush(fleets: &mut [ClusterView], now: Millis) -> u32 {
    let mut sent = 0;
    for fleet in fleets {
        while let Some(chosen) = fleet.next_target(&seek(), 7, now) {
            fleet.record_forward(&chosen, now);
            sent += 1;
        }
    }
    sent
}

#[test]
fn when_one_node_frees_up_about_as_many_come_as_there_is_room() {
    for free in [1, 2, 8] {
        let mut fleets = crowd(free);
        let rounds = 200;
        let (mut sum, mut most) = (0, 0);
        for version in 2..2 + rounds {
            let now = Millis(1_000 * version);
            let news = report(&name(0), "fra", version, load(free));
            for fleet in &mut fleets {
                fleet.apply_report(&news, now);
            }
            let sent = rush(&mut fleets, now);
            sum += sent;
            most = most.max(sent);
            // Whoever sent has its response before the next report.
            fleets = crowd_again(fleets, version);
        }
        let mean = f64::from(sum) / rounds as f64 / f64::from(free);
        assert!(
            (0.8..=1.2).contains(&mean),
            "{mean} times the room of {free}"
        );
        assert!(most <= free * 2 + 6, "{most} at once for {free}");
    }
}

/// All flights have landed.
fn crowd_again(fleets: Vec<ClusterView>, version: u64) -> Vec<ClusterView> {
    let permits = 8;
    let mut fleets = fleets;
    for fleet in &mut fleets {
        // A new life of node 0 forgets what was sent; the others go on.
        fleet.forget("n0");
        let reborn = report("n0", "fra", version, ModelLoad { permits, ..load(0) });
        fleet.apply_report(&reborn, Millis(1_000 * version));
    }
    fleets
}

#[test]
fn the_lots_change_with_time_so_that_room_nobody_drew_is_used_soon() {
    let mut fleets = crowd(1);
    let mut spans = 0;
    while rush(&mut fleets, Millis(1_000 + 250 * spans)) == 0 {
        spans += 1;
        assert!(
            spans < 16,
            "within the seconds in which the report is believed"
        );
    }
}

#[test]
fn who_is_alone_in_want_of_permits_gets_them_all() {
    let mut fleet = alone();
    for other in 0..NODES {
        fleet.apply_report(&report(&name(other), "fra", 1, load(8)), Millis(1_000));
    }
    assert_eq!(
        rush(std::slice::from_mut(&mut fleet), Millis(1_000)),
        8 * NODES
    );
}
