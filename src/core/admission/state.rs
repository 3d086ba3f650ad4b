//! What operators see of a turnstile: the numbers behind `/state` and `/metrics`.
//!
//! It holds copies, taken under the lock and rendered outside it.

use std::sync::Arc;

use super::EndpointId;
use crate::model::Algorithm;
use crate::{AccountId, Millis};

/// Numbers for metrics, read in O(1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gauges {
    /// Permits out, at draining endpoints too.
    pub used: u32,
    /// Permits of all configured endpoints, healthy or not.
    pub limit: u32,
    /// Requests waiting.
    pub depth: usize,
    /// Endpoints configured.
    pub endpoints: u32,
    /// Endpoints configured and neither down nor ejected.
    pub usable_endpoints: u32,
}

/// Everything `GET /state` tells about a model's queue and permits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// Order of service.
    pub algorithm: Algorithm,
    /// Requests waiting.
    pub depth: usize,
    /// Length at which a line is full: an account's line for `fair` and `token-fair`, the only
    /// line otherwise.
    pub capacity: usize,
    /// The span until everybody who waits now has a permit and there is one more.
    pub expected_wait: Millis,
    /// Waiting requests of each account that has any, sorted by account.
    pub accounts: Vec<(AccountId, usize)>,
    /// Endpoints in use, draining ones included.
    pub endpoints: Vec<EndpointState>,
}

/// One endpoint as `GET /state` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointState {
    /// Its index for as long as it is configured or drains.
    pub id: EndpointId,
    /// Base URL.
    pub url: Arc<str>,
    /// Permits out, for this model.
    pub used: u32,
    /// Permits out at its server, for all models that share them.
    pub server_used: u32,
    /// Permits it has; `used` may be above it after the limit was lowered.
    pub limit: u32,
    /// Neither down nor ejected.
    pub usable: bool,
    /// Not configured any more, and forgotten when its last permit returns.
    pub draining: bool,
}
