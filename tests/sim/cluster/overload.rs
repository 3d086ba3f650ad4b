//! More than one node can serve, and more than all can.

use infergate_core::Millis;

use super::crowd::{Entry, play};
use super::shape::{NodeShape, Shape};
use super::world::{ClusterEnd, ClusterSim};
use crate::for_each_seed;

/// Reports have to come in first.
const SETTLED: Millis = Millis::from_secs(3);

fn settled(shape: Shape, random: fastrand::Rng) -> ClusterSim {
    let mut world = ClusterSim::new(shape, random);
    world.run(SETTLED, |_| {});
    world.reset_tally();
    world
}

#[test]
fn what_comes_to_one_node_is_served_by_all_three() {
    for_each_seed(5, |rng| {
        let mut world = settled(Shape::even(3, 1.3).at_one_node(), rng);
        let start = world.now;
        world.run(Millis::from_secs(10), |_| {});
        let capacity = 3.0 * 80.0;
        let goodput = world.goodput(world.now.since(start));
        assert!(goodput >= 0.95 * capacity, "{goodput:.0} of {capacity}");
        world.wind_down();
    });
}

#[test]
fn a_node_without_permits_of_its_own_uses_those_of_others() {
    for_each_seed(5, |rng| {
        let mut shape = Shape::even(4, 0.9).at_one_node();
        // The first is an edge node.
        shape.nodes[0].models = vec![Vec::new()];
        shape.traffic.rate = 0.9 * 3.0 * 80.0;
        let mut world = settled(shape, rng);
        world.run(Millis::from_secs(10), |_| {});
        let (completed, arrivals) = (world.ended(ClusterEnd::Completed), world.tally.arrivals);
        assert!(
            completed * 100 >= arrivals * 97,
            "{completed} of {arrivals}"
        );
        world.wind_down();
    });
}

#[test]
fn ten_times_too_much_costs_no_more_than_it_must() {
    for (nodes, seeds, secs) in [(3, 5, 5), (10, 2, 5), (50, 1, 2)] {
        for_each_seed(seeds, |rng| {
            let mut world = settled(Shape::even(nodes, 10.0), rng);
            let start = world.now;
            world.run(Millis::from_secs(secs), |_| {});
            let span = world.now.since(start);
            let tally = world.tally.clone();
            let arrivals = tally.arrivals;
            assert!(
                tally.attempts * 10 <= arrivals * 11,
                "{} attempts",
                tally.attempts
            );
            let refused = tally.forwards_refused as f64 / arrivals as f64;
            assert!(
                refused <= 1.2,
                "{nodes} nodes: {refused:.2} refused forwards a request"
            );
            let goodput = world.goodput(span) / (nodes as f64 * 80.0);
            assert!(
                goodput >= 0.95,
                "{nodes} nodes: {goodput:.3} of the capacity"
            );
            world.wind_down();
        });
    }
}

#[test]
fn ten_times_too_much_through_nodes_without_permits_is_borne_as_well() {
    for (nodes, seeds) in [(6, 3), (20, 1)] {
        for_each_seed(seeds, |rng| {
            let mut shape = Shape::even(nodes, 5.0);
            for node in 0..nodes / 2 {
                shape.nodes[node].models = vec![Vec::new()];
            }
            let mut world = settled(shape, rng);
            let start = world.now;
            world.run(Millis::from_secs(5), |_| {});
            let span = world.now.since(start);
            let tally = world.tally.clone();
            assert!(tally.attempts * 10 <= tally.arrivals * 11);
            let refused = tally.forwards_refused as f64 / tally.arrivals as f64;
            assert!(
                refused <= 1.2,
                "{nodes} nodes: {refused:.2} refused forwards a request"
            );
            let goodput = world.goodput(span) / (nodes as f64 / 2.0 * 80.0);
            assert!(
                goodput >= 0.95,
                "{nodes} nodes: {goodput:.3} of the capacity"
            );
            world.wind_down();
        });
    }
}

#[test]
fn when_all_backends_fail_attempts_grow_by_a_tenth() {
    for_each_seed(3, |rng| {
        let mut world = settled(Shape::even(5, 0.8), rng);
        world.failing.fill(true);
        world.run(Millis::from_secs(20), |_| {});
        // Two free retries in ten seconds at each node beside the tenth.
        let (attempts, arrivals) = (world.tally.attempts, world.tally.arrivals);
        assert!(
            attempts * 100 <= arrivals * 111,
            "{attempts} for {arrivals}"
        );
        world.wind_down();
    });
}

#[test]
fn one_node_that_frees_up_is_not_overrun_by_forty_nine() {
    for_each_seed(3, |rng| {
        // Nobody but the first node has permits to spare, and no request is short.
        let mut shape = Shape::even(50, 3.0);
        shape.traffic.entries[0] = 0.0;
        shape.traffic.service = Millis::from_secs(4);
        shape.traffic.patience = Millis::from_secs(60);
        shape.traffic.rate = 3.0 * 50.0 * 2.0;
        let mut world = ClusterSim::new(shape, rng);
        // The first is down while the others fill up, then comes with eight free permits.
        world.crash(0);
        world.run(Millis::from_secs(20), |_| {});
        world.restart(0);
        world.reset_tally();
        world.run(Millis::from_secs(3), |_| {});
        let used: u32 = world.nodes[0].backends.iter().flatten().sum();
        assert_eq!(used, 8, "its permits are found");
        let refused = world.tally.forwards_refused;
        assert!(refused <= 60, "{refused} came in vain for 8 permits");
        world.wind_down();
    });
}

#[test]
fn the_near_site_is_used_before_the_far_one() {
    for_each_seed(3, |rng| {
        let mut shape = Shape::even(4, 0.6).at_one_node();
        for (node, site) in [(0, 0), (1, 0), (2, 1), (3, 9)] {
            shape.nodes[node] = NodeShape {
                site,
                ..shape.nodes[node].clone()
            };
        }
        // Two and a half nodes' worth.
        let mut world = settled(shape, rng);
        let start = world.now;
        world.run(Millis::from_secs(20), |_| {});
        let load: Vec<f64> = (0..4).map(|node| world.load_of(node, start)).collect();
        assert!(load[0] > 0.9 && load[1] > 0.8, "{load:?}");
        assert!(load[2] > 2.0 * load[3], "{load:?}");
        world.wind_down();
    });
}

#[test]
fn at_four_fifths_of_what_a_large_fleet_can_serve_its_load_is_even() {
    for_each_seed(1, |rng| {
        // Where all comes in at few nodes, those serve at home what they can and are full.
        for (entry, most) in [(Entry::Everywhere, 1.15), (Entry::AtFew, 1.3)] {
            let figures = play(20, 20, 0.8, entry, 20_000, rng.clone());
            let uneven = figures.most_over_mean;
            assert!(uneven <= most, "{entry:?}: {uneven:.3} times the mean");
            assert!(
                (0.7..=0.9).contains(&figures.mean_load),
                "{:.3}",
                figures.mean_load
            );
            assert!(figures.attempts <= 1.01, "{:.3}", figures.attempts);
            assert!(figures.p99_ms <= 10_000, "{} ms", figures.p99_ms);
            assert!(figures.decisions > 0 && figures.bytes_per_node <= 64 * 1024);
            assert!(figures.completed * 100 >= figures.requests * 95);
            assert!(figures.refused * 100 <= figures.requests);
            assert!(figures.hops[0] + figures.hops[1] >= 0.95);
            assert!(
                figures.forwards_refused <= 0.8,
                "{:.3}",
                figures.forwards_refused
            );
        }
    });
}
