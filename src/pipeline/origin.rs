//! Origin of a request, and what a request of that origin may do.
//!
//! Not a connection and not an account: decided once, when the context is made, and read by every step in
//! place of conditions on where a request comes from.

use std::sync::Arc;

use infergate_core::{AccountId, Millis};

/// Origin of a request.
#[derive(Clone, Debug)]
pub enum Origin {
    /// A client of this node.
    Client,
    /// Another node that forwards a request of its own client or job.
    Peer,
    /// A durable job that a worker runs.
    Job(Box<JobHeader>),
}

/// Data of a job that a worker knows before the pipeline runs it.
#[derive(Clone, Debug)]
pub struct JobHeader {
    /// Id of the event and the trace.
    pub event_id: Arc<str>,
    /// Account that pays.
    pub account: AccountId,
    /// Moment at which the run ends, by the job's own deadline rule, on the process's clock.
    pub deadline: Millis,
    /// Time since its create.
    pub age: Millis,
}

impl JobHeader {
    /// Returns the name of the run at servers that know runs by name: the job's id, of later epochs with their number.
    pub fn run_name(&self) -> String {
        match self.event_id.split_once(':') {
            Some((job, "0" | "1")) => job.to_owned(),
            _ => self.event_id.replace(':', "-"),
        }
    }
}

/// Writer of the inference event of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventOwner {
    /// The present node.
    Node,
    /// The present node once it has started a response, else the node before.
    Responder,
    /// The caller of the pipeline, which takes the event from the context.
    Caller,
}

/// Capabilities of a request, by its origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Takes units of the account's rates and of its concurrency.
    pub charges_rate: bool,
    /// Its tokens are charged here although its rate is not.
    pub charges_tokens: bool,
    /// The account's access to the model is checked here.
    pub checks_access: bool,
    /// The deadline is computed here, from model, configuration and caller.
    pub sets_deadline: bool,
    /// The model's fallbacks may be used.
    pub may_fall_back: bool,
    /// Another node may answer.
    pub may_forward: bool,
    /// May wait for endpoints that come back, and for a queue at another node.
    pub may_queue: bool,
    /// Waits for servers without capacity, as far as the model allows it.
    pub retries_capacity: bool,
    /// The bounds of the model's queue hold for it.
    pub queue_bound: bool,
    /// A streaming receiver gets comments while it waits.
    pub heartbeats: bool,
    /// The node before is told when the request waits and when a model server may start.
    pub reports_status: bool,
    /// A permit that it comes with may be exchanged for one of an endpoint that the routing policy prefers.
    pub exchanges_permit: bool,
    /// Counts as a request of the model for its retry budget and its demand.
    pub counts_demand: bool,
    /// Writer of the event.
    pub event_owner: EventOwner,
}

const CLIENT: Capabilities = Capabilities {
    charges_rate: true,
    charges_tokens: false,
    checks_access: true,
    sets_deadline: true,
    may_fall_back: true,
    may_forward: true,
    may_queue: true,
    retries_capacity: true,
    queue_bound: true,
    heartbeats: true,
    reports_status: false,
    exchanges_permit: false,
    counts_demand: true,
    event_owner: EventOwner::Node,
};

/// The node before has charged and checked the request; it finds another place sooner than a queue here.
const PEER: Capabilities = Capabilities {
    charges_rate: false,
    charges_tokens: false,
    checks_access: false,
    sets_deadline: false,
    may_fall_back: false,
    may_forward: true,
    may_queue: false,
    retries_capacity: false,
    queue_bound: true,
    heartbeats: false,
    reports_status: true,
    exchanges_permit: false,
    counts_demand: false,
    event_owner: EventOwner::Responder,
};

/// The store has counted and queued the job, which holds a permit before it starts; its neurons are reserved and its
/// tokens charged here. Without capacity it goes back to the store, which knows when it runs again. No other node answers it: its
/// end and its event are written as one, by the node that has the store.
const JOB: Capabilities = Capabilities {
    charges_rate: false,
    charges_tokens: true,
    checks_access: true,
    sets_deadline: false,
    may_fall_back: true,
    may_forward: false,
    may_queue: true,
    retries_capacity: false,
    queue_bound: false,
    heartbeats: false,
    reports_status: false,
    exchanges_permit: true,
    counts_demand: true,
    event_owner: EventOwner::Caller,
};

impl Origin {
    /// Returns what a request of this origin may do.
    pub const fn capabilities(&self) -> Capabilities {
        match self {
            Origin::Client => CLIENT,
            Origin::Peer => PEER,
            Origin::Job(_) => JOB,
        }
    }
}
