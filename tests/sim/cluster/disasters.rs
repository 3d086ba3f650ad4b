//! Nodes die, links break, messages are lost, clocks go wrong: nothing loops, nothing is granted
//! twice, and a healed cluster is whole within five seconds.

use fastrand::Rng;
use infergate_core::Millis;

use super::shape::Shape;
use super::world::{ClusterEnd, ClusterSim};
use crate::for_each_seed;

/// A cluster that is healed uses all its permits again within so long.
const WHOLE_AGAIN: Millis = Millis::from_secs(5);

fn any_shape(random: &mut Rng) -> Shape {
    let nodes = random.usize(3..12);
    let models = random.usize(1..4);
    let mut shape = Shape::even(nodes, 0.0);
    for node in &mut shape.nodes {
        node.site = random.usize(..3);
        node.drift_ppm = random.i64(-2_000..2_000);
        let permits = |rng: &mut Rng| (0..rng.usize(..3)).map(|_| rng.u32(1..5)).collect();
        node.models = (0..models).map(|_| permits(random)).collect();
    }
    shape.line = random.u32(..4);
    shape.gossip_every = Millis(random.u64(100..500));
    let traffic = &mut shape.traffic;
    traffic.models = (0..models).map(|_| 0.1 + random.f64()).collect();
    traffic.entries = (0..nodes).map(|_| 0.05 + random.f64()).collect();
    traffic.service = Millis(random.u64(20..500));
    traffic.jitter = random.f64();
    traffic.patience = Millis(random.u64(200..4_000));
    traffic.body_bytes = random.u64(..1_000_000);
    traffic.rate = nodes as f64 * 40.0 * random.f64();
    shape
}

#[test]
fn nothing_loops_or_is_granted_twice_whatever_happens() {
    for_each_seed(60, |mut rng| {
        let mut disturbance = rng.fork();
        let mut world = ClusterSim::new(any_shape(&mut rng), rng);
        world.net.jitter = Millis(disturbance.u64(..30));
        world.run(Millis::from_secs(15), |world| {
            let node = disturbance.usize(..world.nodes.len());
            let other = disturbance.usize(..world.nodes.len());
            match disturbance.u32(..1_000) {
                0..5 => world.crash(node),
                5..15 => world.restart(node),
                15..18 if node != other => world.cut(node, other),
                18..20 => world.partition(&[node, other]),
                20..25 => world.net.heal(),
                25..28 => world.net.loss = 0.4 * disturbance.f64(),
                28..34 => world.failing[node] = disturbance.u32(..3) == 0,
                34..36 if world.nodes[node].up => world.drain(node),
                _ => {}
            }
        });
        world.wind_down();
    });
}

/// A cluster in which all that comes to the first node keeps all nodes busy.
fn busy(nodes: usize, random: Rng) -> ClusterSim {
    let mut world = ClusterSim::new(Shape::even(nodes, 1.5).at_one_node(), random);
    world.run(Millis::from_secs(5), |_| {});
    world
}

fn assert_whole(world: &mut ClusterSim) {
    world.run(WHOLE_AGAIN, |_| {});
    let watched = Millis::from_secs(3);
    world.run(watched, |_| {});
    let capacity = world.nodes.len() as f64 * 80.0;
    let goodput = world.goodput(watched);
    assert!(goodput >= 0.95 * capacity, "{goodput:.0} of {capacity}");
    world.wind_down();
}

#[test]
fn after_a_partition_of_thirty_seconds_all_permits_are_used_again() {
    for_each_seed(5, |rng| {
        let mut world = busy(3, rng);
        world.partition(&[2]);
        world.run(Millis::from_secs(30), |_| {});
        world.net.heal();
        assert_whole(&mut world);
    });
}

#[test]
fn after_a_one_way_drop_all_permits_are_used_again() {
    for_each_seed(5, |rng| {
        let mut world = busy(3, rng);
        world.cut(1, 0);
        world.run(Millis::from_secs(30), |_| {});
        world.net.heal();
        assert_whole(&mut world);
    });
}

#[test]
fn with_a_third_of_all_messages_lost_the_fleet_still_works() {
    for_each_seed(5, |rng| {
        let mut world = busy(3, rng);
        world.net.loss = 0.3;
        world.run(Millis::from_secs(3), |_| {});
        world.reset_tally();
        let start = world.now;
        world.run(Millis::from_secs(20), |_| {});
        // Each loss holds a forward up for twice the time its permit would be used.
        let goodput = world.goodput(world.now.since(start)) / 240.0;
        assert!(goodput >= 0.5, "{goodput:.3} of the capacity");
        world.net.loss = 0.0;
        assert_whole(&mut world);
    });
}

#[test]
fn a_restarted_node_is_used_again() {
    for_each_seed(5, |rng| {
        let mut world = busy(5, rng);
        world.crash(3);
        world.run(Millis::from_secs(10), |_| {});
        world.restart(3);
        assert_whole(&mut world);
    });
}

#[test]
fn who_is_killed_takes_only_its_own_clients_along() {
    for_each_seed(5, |rng| {
        // Half of what the others can serve.
        let mut shape = Shape::even(5, 0.5);
        shape.traffic.entries[3] = 0.0;
        let mut world = ClusterSim::new(shape, rng);
        world.run(Millis::from_secs(5), |_| {});
        // Its permits are in use by others' requests.
        world.failing.fill(false);
        world.crash(3);
        world.run(Millis::from_secs(2), |_| {});
        world.reset_tally();
        world.run(Millis::from_secs(10), |_| {});
        world.wind_down();
        let lost = world.tally.arrivals - world.ended(ClusterEnd::Completed);
        assert!(
            lost * 1_000 <= world.tally.arrivals,
            "{:?}",
            world.tally.ended
        );
    });
}

#[test]
fn of_a_killed_node_only_what_had_begun_there_fails() {
    for_each_seed(5, |rng| {
        // Forwards of two seconds to four nodes, two of which die in the middle of them.
        let mut shape = Shape::even(5, 0.0).at_one_node();
        shape.traffic.service = Millis::from_secs(2);
        shape.traffic.patience = Millis::from_secs(30);
        shape.traffic.rate = 8.0;
        let mut world = ClusterSim::new(shape, rng);
        world.run(Millis::from_secs(10), |_| {});
        let mut started = world.at_work(2);
        world.crash(2);
        world.run(Millis::from_secs(5), |_| {});
        started += world.at_work(4);
        world.crash(4);
        world.run(Millis::from_secs(5), |_| {});
        world.wind_down();
        assert_eq!(
            world.ended(ClusterEnd::Failed),
            started,
            "{:?}",
            world.tally.ended
        );
        assert_eq!(
            world.ended(ClusterEnd::Completed) + started,
            world.tally.arrivals,
            "{:?}",
            world.tally.ended
        );
    });
}

#[test]
fn a_rolling_drain_and_restart_of_all_fails_nobody() {
    for_each_seed(3, |rng| {
        let mut world = ClusterSim::new(Shape::even(4, 0.6), rng);
        world.run(Millis::from_secs(3), |_| {});
        world.reset_tally();
        for node in 0..4 {
            world.drain(node);
            world.run(Millis::from_secs(2), |_| {});
            world.crash(node);
            world.run(Millis(500), |_| {});
            world.restart(node);
            world.run(Millis::from_secs(3), |_| {});
        }
        world.wind_down();
        let ended = &world.tally.ended;
        assert_eq!(
            world.ended(ClusterEnd::Failed) + world.ended(ClusterEnd::EntryLost),
            0,
            "{ended:?}"
        );
        let refused = world.ended(ClusterEnd::Refused);
        assert!(refused * 100 <= world.tally.arrivals, "{ended:?}");
    });
}
