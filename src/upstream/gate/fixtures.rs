//! A small model for the gate's tests.

use std::time::Duration;

use infergate_core::admission::PermitClass;
use infergate_core::model::{Algorithm, EndpointSpec, QueueSpec, Task};

use super::*;

/// Permits of the only endpoint.
pub const PERMITS: u32 = 2;

pub fn spec(algorithm: Algorithm) -> ModelSpec {
    ModelSpec {
        endpoints: vec![EndpointSpec {
            url: "http://127.0.0.1:1".into(),
            max_concurrent_requests: PERMITS,
            ..EndpointSpec::default()
        }],
        queue: QueueSpec {
            algorithm,
            ..QueueSpec::default()
        },
        ..ModelSpec::new("m".into(), Task::TextGeneration, "openai".into())
    }
}

pub fn targets(spec: &ModelSpec) -> Vec<Arc<Target>> {
    let target = |endpoint| Target::new(endpoint, "m", Duration::from_secs(1)).map(Arc::new);
    spec.endpoints.iter().filter_map(target).collect()
}

pub fn ask(account: &str) -> PermitRequest {
    PermitRequest {
        account: account.into(),
        weight: 1,
        priority: 5,
        is_warm: false,
        tokens: 1,
        deadline: Millis::MAX,
        no_wait: false,
        avoid: Vec::new(),
        endpoint_order: None,
        is_retry: false,
        is_bounded_elsewhere: false,
        has_alternative: false,
        client: None,
        class: PermitClass::Live,
    }
}
