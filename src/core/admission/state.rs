//! State of an admission queue for operators: the numbers behind `/state` and `/metrics`.
//!
//! Not live: copies, taken under the lock and rendered outside it.

use std::sync::Arc;

use super::endpoint_id::EndpointId;
use super::permit_class::ClassTurn;
use crate::model::Algorithm;
use crate::{AccountId, Millis};

/// Numbers for metrics, read in O(1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdmissionGauges {
    /// Permits in use, at draining endpoints too.
    pub used: u32,
    /// Permits in use that durable requests hold.
    pub durable_used: u32,
    /// Permits of all configured endpoints, healthy or not.
    pub limit: u32,
    /// Requests waiting, of both classes.
    pub depth: usize,
    /// Durable requests waiting.
    pub durable_waiting: usize,
    /// Endpoints configured.
    pub endpoints: u32,
    /// Endpoints configured and neither down nor ejected.
    pub usable_endpoints: u32,
}

/// A model's queue and permits as `GET /state` shows them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdmissionState {
    /// Order of service.
    pub algorithm: Algorithm,
    /// Requests waiting, of both classes.
    pub depth: usize,
    /// Durable requests waiting.
    pub durable_waiting: usize,
    /// Permits in use that durable requests hold.
    pub durable_used: u32,
    /// Permits that durable requests may hold at once, at the usable endpoints.
    pub durable_max: u32,
    /// Class that got the latest permit, and why.
    pub last_turn: Option<ClassTurn>,
    /// Length at which a queue is full: an account's queue for `fair` and `token-fair`, the only queue
    /// otherwise.
    pub capacity: usize,
    /// Expected time until all present live waiters have a permit and one more is free.
    pub expected_wait: Millis,
    /// Waiting live requests of each account that has any, sorted by account.
    pub accounts: Vec<(AccountId, usize)>,
    /// Endpoints in use, draining ones included.
    pub endpoints: Vec<EndpointState>,
}

/// An endpoint as `GET /state` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointState {
    /// Its index for as long as it is configured or drains.
    pub id: EndpointId,
    /// Base URL.
    pub url: Arc<str>,
    /// Permits in use, for this model.
    pub used: u32,
    /// Permits in use at its server, for all models that share them.
    pub server_used: u32,
    /// Limit; `used` may be above it after the limit was lowered.
    pub limit: u32,
    /// Neither down nor ejected.
    pub usable: bool,
    /// Not configured any more, and forgotten when its last permit returns.
    pub draining: bool,
}
