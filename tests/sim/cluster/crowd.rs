//! Fifty nodes and two hundred models: how even the load is, how far requests go, how much a node
//! has to know.
//!
//! A test here with some ten thousand requests and generous bounds; `benches/fleet.rs` plays a
//! million and prints the figures.

use fastrand::Rng;
use infergate_core::Millis;

use super::shape::{NodeShape, Shape};
use super::world::{ClusterEnd, ClusterSim};

/// Nodes that serve each model.
const COPIES: usize = 10;

const SERVICE: Millis = Millis(1_000);

/// Results.
pub struct Figures {
    pub requests: u64,
    pub completed: u64,
    /// Out of capacity, to clients.
    pub refused: u64,
    /// Highest mean load of a node over the mean of all.
    pub most_over_mean: f64,
    pub mean_load: f64,
    /// Shares of completed requests by forwards on their way: none, one, two.
    pub hops: [f64; 3],
    pub forwards_refused: f64,
    pub attempts: f64,
    pub decisions: u64,
    /// Bytes of the cluster view of one node, for each node in it.
    pub bytes_per_node: usize,
    pub p99_ms: u64,
}

/// Entry of the requests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Entry {
    Everywhere,
    /// At one node in ten.
    AtFew,
}

/// Builds `nodes` nodes of five sites and `models` models at ten nodes each, with two to six
/// permits there. Some models are requested much more than others and have more permits.
fn shape(nodes: usize, models: usize, load: f64, entry: Entry, random: &mut Rng) -> Shape {
    let mut shape = Shape::even(nodes, 0.0);
    let bare = NodeShape {
        site: 0,
        models: vec![Vec::new(); models],
        drift_ppm: 0,
    };
    shape.nodes = (0..nodes)
        .map(|at| NodeShape {
            site: at % 5,
            ..bare.clone()
        })
        .collect();
    let mut popularity = Vec::new();
    for model in 0..models {
        let permits = random.u32(2..=6);
        let first = random.usize(..nodes);
        for copy in 0..COPIES.min(nodes) {
            let node = (first + copy * nodes / COPIES.min(nodes)) % nodes;
            shape.nodes[node].models[model] = vec![permits];
        }
        popularity.push(f64::from(permits));
    }
    let permits: u32 = (0..nodes).map(|node| shape.permits(node)).sum();
    shape.traffic.models = popularity;
    shape.traffic.service = SERVICE;
    shape.traffic.patience = Millis::from_secs(30);
    shape.traffic.rate = load * f64::from(permits) * 1000.0 / SERVICE.0 as f64;
    shape.traffic.entries = vec![1.0; nodes];
    if entry == Entry::AtFew {
        let weight = |at: usize| f64::from(u8::from(at.is_multiple_of(10)));
        shape.traffic.entries = (0..nodes).map(weight).collect();
    }
    shape
}

/// Plays until `requests` have come after everybody knows everybody.
pub fn play(
    nodes: usize,
    models: usize,
    load: f64,
    entry: Entry,
    requests: u64,
    mut rng: Rng,
) -> Figures {
    let shape = shape(nodes, models, load, entry, &mut rng);
    let secs = requests as f64 / shape.traffic.rate;
    let mut world = ClusterSim::new(shape, rng);
    world.run(Millis::from_secs(6), |_| {});
    world.reset_tally();
    let start = world.now;
    world.run(Millis((secs * 1000.0) as u64), |_| {});
    let tally = world.tally.clone();
    let loads: Vec<f64> = (0..nodes).map(|node| world.load_of(node, start)).collect();
    let mean_load = loads.iter().sum::<f64>() / nodes as f64;
    let most = loads.iter().fold(0.0_f64, |most, &load| most.max(load));
    let completed = world.ended(ClusterEnd::Completed);
    let share = |count: u64| count as f64 / completed as f64;
    let mut took: Vec<u64> = tally.completed_at.iter().map(|&(_, took)| took).collect();
    took.sort_unstable();
    Figures {
        requests: tally.arrivals,
        completed,
        refused: world.ended(ClusterEnd::Refused),
        most_over_mean: most / mean_load,
        mean_load,
        hops: [0, 1, 2].map(|hops| share(tally.by_hops[hops])),
        forwards_refused: tally.forwards_refused as f64 / tally.arrivals as f64,
        attempts: tally.attempts as f64 / tally.arrivals as f64,
        decisions: tally.decisions,
        bytes_per_node: world.nodes[0].cluster.bytes() / nodes,
        p99_ms: took[took.len() * 99 / 100],
    }
}
