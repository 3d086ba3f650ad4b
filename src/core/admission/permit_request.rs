//! Permit requests and their outcomes: the values that cross the boundary between shell and core.
//!
//! Values only: the decisions are in the admission queue.

use std::sync::Arc;

use super::cooldown::DemandClient;
use super::endpoint_id::EndpointId;
use super::order::EndpointOrder;
use super::permit_class::{ClassTurn, PermitClass};
use super::server::Handoff;
use crate::{AccountId, Millis, Refusal};

/// Identity of a waiting request; the shell keeps its waker under it. Never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueTicket(pub u64);

/// Identity of a permit: one request in flight at one endpoint. Never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PermitId(pub u64);

/// A request for a permit.
#[derive(Clone, Debug)]
pub struct PermitRequest {
    /// Class whose share the permit comes from. A durable request has neither account nor bound: of the fields
    /// below `deadline`, `no_wait`, `avoid`, `endpoint_order` and `is_retry` count for it.
    pub class: PermitClass,
    /// Account that is billed, and whose share the permit comes from.
    pub account: AccountId,
    /// The account's share relative to the others; 0 counts as 1.
    pub weight: u32,
    /// 0 is first, 9 last, larger is 9. Only `priority` looks at it.
    pub priority: u8,
    /// The model or adapter is resident: first among its priority.
    pub is_warm: bool,
    /// Tokens charged at grant, corrected by [`AdmissionQueue::correct_tokens`] at the end. Only
    /// `token-fair` looks at it.
    ///
    /// [`AdmissionQueue::correct_tokens`]: super::AdmissionQueue::correct_tokens
    pub tokens: u32,
    /// Deadline of the whole response.
    pub deadline: Millis,
    /// Refuse rather than wait.
    pub no_wait: bool,
    /// Endpoints tried already: taken only when no other one has a free permit. A handful at most.
    pub avoid: Vec<EndpointId>,
    /// Order of endpoints by a routing policy; by tier and load without one.
    pub endpoint_order: Option<Arc<EndpointOrder>>,
    /// Retry of a request that was admitted. Joins at the head of its queue, outside the queue's bounds;
    /// the permits and the model's retry budget bound the number of such requests.
    pub is_retry: bool,
    /// Bounded elsewhere, as durable jobs are by their store: joins outside the queue's bounds, and takes
    /// no place from requests within them.
    pub is_bounded_elsewhere: bool,
    /// Has a fallback model. The request is refused at once when no endpoint is usable, also where the
    /// model's other requests wait for one to recover.
    pub has_alternative: bool,
    /// Client that it names, where the model's processes are started by the gateway.
    pub client: Option<Arc<DemandClient>>,
}

/// A granted permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// To be released exactly once; a second release is ignored.
    pub permit: PermitId,
    /// Endpoint whose limit it counts against.
    pub endpoint: EndpointId,
    /// Waiter that gets it; `None` when it was granted at once.
    pub ticket: Option<QueueTicket>,
    /// Class that was served, and why.
    pub turn: ClassTurn,
}

/// Outcome of an [`PermitRequest`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdmissionOutcome {
    /// A permit was free.
    Leased(Grant),
    /// Wait for [`WaiterUpdates`] to name the ticket, or [`cancel`](super::AdmissionQueue::cancel).
    Queued {
        /// Identity of the waiter.
        ticket: QueueTicket,
        /// 1 is next. Exact for `fifo`; an estimate where others may come in between.
        position: usize,
        /// From now to the grant, as holds and permits are now.
        expected_wait: Millis,
    },
    /// Not admitted.
    Full(Refusal),
}

/// Outcomes for waiters. Calls append to it; the shell delivers it outside the lock.
#[derive(Debug, Default)]
pub struct WaiterUpdates {
    /// Waiters that got a permit, in the order of their grants.
    pub grants: Vec<Grant>,
    /// Waiters that will get none, and why.
    pub refusals: Vec<(QueueTicket, Refusal)>,
    /// Permits for requests that wait in the admission queues they name.
    pub handoffs: Vec<Handoff>,
}
