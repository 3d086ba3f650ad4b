//! Shape of a simulated cluster: nodes with their sites, models and permits, and its traffic.
//!
//! Values only; [`World`](super::world::World) plays them.

use infergate_core::Millis;
use infergate_core::model::{Algorithm, EndpointSpec, ModelSpec, QueueSpec, Task};
use infergate_core::routing::ClusterRule;

/// Shape of one node.
#[derive(Clone)]
pub struct NodeShape {
    pub site: usize,
    /// For each model the permits of each of its endpoints here; none: it is not served here.
    pub models: Vec<Vec<u32>>,
    /// Its clock runs so many millionths too fast.
    pub drift_ppm: i64,
}

/// Arrival of requests.
#[derive(Clone)]
pub struct Traffic {
    /// Requests a second, independently of each other.
    pub rate: f64,
    /// Share of each node as the first, relative to each other.
    pub entries: Vec<f64>,
    /// Share of each model in the requests, relative to each other.
    pub models: Vec<f64>,
    pub service: Millis,
    /// Uniformly up to this share more or less.
    pub jitter: f64,
    pub patience: Millis,
    pub body_bytes: u64,
}

/// Shape of the cluster.
#[derive(Clone)]
pub struct Shape {
    pub nodes: Vec<NodeShape>,
    pub traffic: Traffic,
    /// Places in the queue per permit.
    pub line: u32,
    pub gossip_every: Millis,
    /// Nodes informed in each round.
    pub fanout: usize,
    pub rule: ClusterRule,
}

impl Shape {
    /// `nodes` nodes of one site with one model, two endpoints of four permits each, whose requests
    /// take 100 ms; `load` times what they can serve comes to the nodes evenly.
    pub fn even(nodes: usize, load: f64) -> Shape {
        let node = NodeShape {
            site: 0,
            models: vec![vec![4, 4]],
            drift_ppm: 0,
        };
        Shape {
            nodes: vec![node; nodes],
            traffic: Traffic {
                rate: load * nodes as f64 * 80.0,
                entries: vec![1.0; nodes],
                models: vec![1.0],
                service: Millis(100),
                jitter: 0.2,
                patience: Millis::from_secs(5),
                body_bytes: 2_000,
            },
            line: 2,
            gossip_every: Millis(250),
            fanout: 3,
            rule: ClusterRule::default(),
        }
    }

    /// Sends all traffic to the first node.
    pub fn at_one_node(mut self) -> Shape {
        self.traffic.entries = vec![0.0; self.nodes.len()];
        self.traffic.entries[0] = 1.0;
        self
    }

    /// Permits of a node.
    pub fn permits(&self, node: usize) -> u32 {
        self.nodes[node].models.iter().flatten().sum()
    }
}

/// The model of that number with these permits.
pub fn model_spec(model: usize, permits: &[u32], line: u32) -> ModelSpec {
    let endpoint = |(at, &max_concurrent_requests): (usize, &u32)| EndpointSpec {
        url: format!("http://backend-{at}").into(),
        max_concurrent_requests,
        ..EndpointSpec::default()
    };
    ModelSpec {
        endpoints: permits.iter().enumerate().map(endpoint).collect(),
        queue: QueueSpec {
            algorithm: Algorithm::Fifo,
            capacity: line,
            ..QueueSpec::default()
        },
        timeout_secs: 60,
        ..ModelSpec::new(
            model_name(model).as_str().into(),
            Task::TextGeneration,
            "openai".into(),
        )
    }
}

/// Name of a model.
pub fn model_name(model: usize) -> String {
    format!("model-{model}")
}
