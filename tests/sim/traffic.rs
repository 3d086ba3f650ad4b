//! Traffic of a simulated model: accounts, arrivals, and how each request may end.
//!
//! Values only; [`World`](crate::world::World) plays them.

use infergate_core::model::{Algorithm, EndpointSpec, ModelSpec, QueueSpec, Task};
use infergate_core::{Millis, Refusal};

/// An account's traffic.
#[derive(Clone)]
pub struct Source {
    pub account: &'static str,
    pub weight: u32,
    pub load: Load,
    pub service: Service,
    pub tokens: u32,
    /// From arrival to the moment the response must be complete.
    pub patience: Millis,
    /// Share of requests cancelled by the client, as one in so many; 0 for none.
    pub gives_up_one_in: u64,
}

/// Arrival of requests.
#[derive(Clone, Copy, PartialEq)]
pub enum Load {
    Nothing,
    /// So many are always open: one ends, the next begins.
    Closed(usize),
    /// Independently of each other, so many a second on average.
    Poisson(f64),
    /// Paced arrivals, on average so many a second, with at most one open.
    Paced(f64),
}

/// Service time of a backend.
#[derive(Clone, Copy)]
pub struct Service {
    pub mean: Millis,
    /// Uniformly up to this share more or less.
    pub jitter: f64,
}

/// Outcome of a request.
#[derive(Clone, Debug, PartialEq)]
pub enum End {
    Completed,
    /// Cut while a backend worked on it: work for nothing.
    CutByDeadline,
    /// Gave up waiting, by deadline.
    LeftLine,
    CutByClient,
    Failed,
    Refused(Refusal),
}

/// A model with these endpoints and permits.
pub fn spec(algorithm: Algorithm, endpoints: &[(&str, u32)]) -> ModelSpec {
    let endpoint = |&(url, max_concurrent_requests): &(&str, u32)| EndpointSpec {
        url: url.into(),
        max_concurrent_requests,
        ..EndpointSpec::default()
    };
    ModelSpec {
        endpoints: endpoints.iter().map(endpoint).collect(),
        queue: QueueSpec {
            algorithm,
            capacity: 16,
            ..QueueSpec::default()
        },
        timeout_secs: 60,
        ..ModelSpec::new("model".into(), Task::TextGeneration, "openai".into())
    }
}

impl Source {
    /// Patient clients of an account of weight 1, whose requests take 100 ms and 100 tokens.
    pub fn new(account: &'static str, load: Load) -> Source {
        Source {
            account,
            weight: 1,
            load,
            service: Service {
                mean: Millis(100),
                jitter: 0.0,
            },
            tokens: 100,
            patience: Millis::from_secs(60),
            gives_up_one_in: 0,
        }
    }
}
