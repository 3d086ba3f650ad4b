//! Path of a request: admission at a node, a forward where another has capacity, the response back.
//!
//! Plays the shell's part as plainly as possible. Each node works on a request of its own; a
//! forward makes a second one, whose reply answers the first.

use std::sync::Arc;

use infergate_core::Millis;
use infergate_core::admission::{
    AdmissionOutcome, EndpointId, Grant, PermitClass, PermitId, PermitRequest, QueueTicket,
    WaiterUpdates,
};
use infergate_core::routing::budget::{CAPACITY_ATTEMPTS_SMALL, ERRORS_MAX};
use infergate_core::routing::cluster::{
    ForwardOutcome, ForwardTarget, ForwardTicket as Sent, Need, NodeQuery,
};
use infergate_core::routing::hops::QUEUE_ALLOWED_AT;
use infergate_core::routing::{AttemptFailure, Hops, RetryTarget};

use super::world::{ClusterEnd, ClusterEvent, ClusterSim};

/// A failing backend answers after so long.
const FAILURE_TAKES: Millis = Millis(5);

/// No connection after so long.
const CONNECT_TIMEOUT: Millis = Millis(200);

/// Reply of a node to a forward.
pub enum ForwardReply {
    Done,
    Refused {
        free: u32,
        wait_ms: u32,
        hops: String,
    },
    Failed {
        hops: String,
    },
    /// A node further on was lost with it after a backend may have begun.
    Lost,
}

/// A client's request.
pub struct ClusterRequest {
    arrived: Millis,
    /// Requests at nodes; with the last one the record is dropped.
    node_requests: u32,
    ended: bool,
    service: Millis,
    attempts: u32,
    refusals: u32,
    /// Nodes that have got it, for as long as no hop was lost.
    seen: Vec<usize>,
    lost_hop: bool,
    depth: usize,
}

/// A request at a node.
pub struct NodeRequest {
    pub node: usize,
    model: usize,
    request: u64,
    parent: Option<u64>,
    hops: Hops,
    /// Number of visited nodes that forwarded the request to here, this one included.
    way: usize,
    /// By the clock of the node.
    deadline: Millis,
    resumed: bool,
    attempt: u32,
    avoid: Vec<EndpointId>,
    depth: usize,
    stage: Stage,
}

/// Initial values of a request at a node.
struct NewNodeRequest {
    request: u64,
    model: usize,
    node: usize,
    hops: Hops,
    depth: usize,
}

/// A forward that is over.
struct FinishedForward {
    at: usize,
    sent: Hops,
    ticket: Sent,
    granted: bool,
}

enum Stage {
    Deciding,
    Waiting {
        ticket: QueueTicket,
        until: Millis,
    },
    Running(PermitId, EndpointId),
    Forwarded {
        child: u64,
        to: usize,
        sent: Hops,
        ticket: Sent,
        /// A backend there, or further on, may have begun.
        granted: bool,
    },
}

impl NodeRequest {
    /// Returns whether the client's request arrived here.
    pub fn is_first(&self) -> bool {
        self.parent.is_none()
    }

    /// Request that works for this one, and its node.
    pub fn forwarded_to(&self) -> Option<(u64, usize)> {
        match self.stage {
            Stage::Forwarded { child, to, .. } => Some((child, to)),
            _ => None,
        }
    }
}

pub fn permit_query<'a>(model: &'a str, visited: &'a [Arc<str>]) -> NodeQuery<'a> {
    NodeQuery {
        model,
        visited,
        forced_site: None,
        site_order: None,
        need: Need::Permit,
    }
}

impl ClusterSim {
    pub(super) fn walk(&mut self, event: ClusterEvent) {
        match event {
            ClusterEvent::Forwarded {
                parent,
                child,
                to,
                generation,
                hops,
            } => {
                self.forwarded(parent, child, (to, generation), &hops);
            }
            ClusterEvent::Back {
                parent,
                child,
                answer,
            } => self.forward_replied(parent, child, answer),
            ClusterEvent::Broke {
                parent,
                child,
                connected,
            } => self.forward_broke(parent, child, connected),
            ClusterEvent::Gone { child } => {
                // A cut that healed in time is not noticed.
                let still = self
                    .node_requests
                    .get(&child)
                    .and_then(|node_request| node_request.parent);
                if still.is_none_or(|parent| !self.is_fine(parent, child)) {
                    self.abandon(child);
                }
            }
            ClusterEvent::Worked {
                node_request,
                attempt,
            } => self.finish_attempt(node_request, attempt),
            ClusterEvent::Deadline { node_request } => self.expire(node_request),
            _ => {}
        }
    }

    /// A client's request comes to a node.
    pub(super) fn enter(
        &mut self,
        entry: usize,
        model: usize,
        service: Millis,
        patience: Millis,
        body_bytes: u64,
    ) {
        let request = self.number();
        let hops = Hops::new(&self.nodes[entry].name, patience, body_bytes);
        let state = ClusterRequest {
            arrived: self.now,
            node_requests: 0,
            ended: false,
            service,
            attempts: 0,
            refusals: 0,
            seen: vec![entry],
            lost_hop: false,
            depth: 0,
        };
        self.requests.insert(request, state);
        let now = self.local(entry);
        self.nodes[entry].retries.record_request(now);
        let id = self.number();
        self.add_node_request(
            id,
            None,
            NewNodeRequest {
                request,
                model,
                node: entry,
                hops,
                depth: 0,
            },
        );
    }

    fn add_node_request(&mut self, id: u64, parent: Option<u64>, visiting: NewNodeRequest) {
        let NewNodeRequest {
            request,
            model,
            node,
            hops,
            depth,
        } = visiting;
        self.requests
            .get_mut(&request)
            .expect("it is open")
            .node_requests += 1;
        let left = hops.deadline_left;
        let node_request = NodeRequest {
            node,
            model,
            request,
            parent,
            deadline: self.local(node) + left,
            way: hops.visited.len(),
            hops,
            resumed: false,
            attempt: 0,
            avoid: Vec::new(),
            depth,
            stage: Stage::Deciding,
        };
        self.node_requests.insert(id, node_request);
        self.after(left, ClusterEvent::Deadline { node_request: id });
        self.ask(id);
    }

    /// Admission here, or another node, or no.
    fn ask(&mut self, id: u64) {
        let node_request = &self.node_requests[&id];
        let (at, model) = (node_request.node, node_request.model);
        let now = self.local(at);
        let ask = PermitRequest {
            is_bounded_elsewhere: false,
            has_alternative: false,
            client: None,
            class: PermitClass::Live,
            account: "ant".into(),
            weight: 1,
            priority: 5,
            is_warm: false,
            tokens: 0,
            deadline: node_request.deadline,
            no_wait: node_request.hops.wait_max == Millis::ZERO,
            avoid: node_request.avoid.clone(),
            endpoint_order: None,
            is_retry: node_request.resumed,
        };
        let wait_max = node_request.hops.wait_max;
        let rng = self.random.u64(..);
        if let Some(turnstile) = &mut self.nodes[at].turnstiles[model] {
            match turnstile.request_permit(ask, now, rng) {
                AdmissionOutcome::Leased(grant) => return self.begin(id, grant),
                AdmissionOutcome::Queued {
                    ticket,
                    expected_wait,
                    ..
                } if expected_wait > wait_max => {
                    turnstile.cancel(ticket, now);
                }
                AdmissionOutcome::Queued {
                    ticket,
                    expected_wait,
                    ..
                } => {
                    self.nodes[at].waiting.insert((model, ticket), id);
                    let until = now + expected_wait;
                    self.stage(id, Stage::Waiting { ticket, until });
                    self.retry_waiter(id);
                    return;
                }
                AdmissionOutcome::Full(_) => {}
            }
        }
        // A forwarded request waits nowhere else but comes back: whoever forwarded it sees more of
        // its way.
        let node_request = &self.node_requests[&id];
        let first = node_request.is_first();
        let left = node_request.deadline.since(now);
        let wait_max = match first {
            true => node_request.hops.may_wait(left),
            false => Millis::ZERO,
        };
        if self.forward_if_room(id, Need::Permit, wait_max) {
            return;
        }
        let line = Need::Queue {
            wait_max: left,
            crowded: self.nodes[at].turnstiles[model].is_none(),
        };
        if first && self.forward_if_room(id, line, left) {
            return;
        }
        if first {
            self.nodes[at].refused[model] += 1;
        }
        self.refuse(id);
    }

    /// Forwards when some node has what is wanted.
    fn forward_if_room(&mut self, id: u64, wants: Need, wait_max: Millis) -> bool {
        let Some(chosen) = self.next_target(id, wants, false) else {
            return false;
        };
        self.forward(id, &chosen, wait_max);
        true
    }

    fn next_target(&mut self, id: u64, wants: Need, waits: bool) -> Option<ForwardTarget> {
        let node_request = &self.node_requests[&id];
        if !node_request.hops.may_forward() {
            return None;
        }
        let now = self.local(node_request.node);
        let visited = match waits {
            true => node_request.hops.excluded_for_waiter(node_request.way),
            false => &node_request.hops.visited,
        };
        let seek = NodeQuery {
            need: wants,
            ..permit_query(&self.models[node_request.model], visited)
        };
        self.tally.decisions += 1;
        self.nodes[node_request.node]
            .cluster
            .next_target(&seek, self.random.u64(..), now)
    }

    /// A waiter looks whether to go. Returns whether others behind it should look as well.
    fn retry_waiter(&mut self, id: u64) -> bool {
        let Some(node_request) = self.node_requests.get(&id) else {
            return true;
        };
        let Stage::Waiting { ticket, until } = node_request.stage else {
            return true;
        };
        let (at, model) = (node_request.node, node_request.model);
        if !node_request.hops.may_forward() {
            return true;
        }
        let Some(chosen) = self.next_target(id, Need::Permit, true) else {
            return false;
        };
        let now = self.local(at);
        // Who should have had its turn already is as one who comes now.
        let turnstile = self.nodes[at].turnstiles[model].as_ref();
        let wait = match until > now {
            true => until.since(now),
            false => turnstile.map_or(Millis::ZERO, |turnstile| turnstile.expected_wait(now)),
        };
        if self.nodes[at].cluster.is_wait_here_shorter(wait, &chosen) {
            return true;
        }
        self.leave_line(at, model, ticket);
        if let Some(node_request) = self.node_requests.get_mut(&id) {
            node_request.resumed = true;
        }
        self.forward(id, &chosen, Millis::ZERO);
        true
    }

    pub(super) fn retry_waiters(&mut self, node: usize, model: usize) {
        let line = self.nodes[node]
            .waiting
            .range((model, QueueTicket(0))..(model + 1, QueueTicket(0)));
        let line: Vec<u64> = line.map(|(_, &id)| id).collect();
        for id in line {
            if !self.retry_waiter(id) {
                break;
            }
        }
    }

    fn leave_line(&mut self, at: usize, model: usize, ticket: QueueTicket) {
        let now = self.local(at);
        self.nodes[at].waiting.remove(&(model, ticket));
        let turnstile = self.nodes[at].turnstiles[model].as_mut();
        let left = turnstile.is_some_and(|turnstile| turnstile.cancel(ticket, now));
        assert!(left, "it was still waiting");
    }

    fn forward(&mut self, id: u64, chosen: &ForwardTarget, wait_max: Millis) {
        let child = self.number();
        let node_request = self
            .node_requests
            .get_mut(&id)
            .expect("only open visits forward");
        let at = node_request.node;
        let to = self.names[&chosen.node.name];
        let generation = chosen.node.generation;
        assert!(
            !node_request.hops.visited[..node_request.way].contains(&chosen.node.name),
            "it does not go round"
        );
        node_request.hops.revisit(&chosen.node.name);
        let request = node_request.request;
        let deadline = node_request.deadline;
        let now = self.local(at);
        let ticket = self.nodes[at].cluster.record_forward(chosen, now);
        let left = deadline.since(now);
        let node_request = self
            .node_requests
            .get_mut(&id)
            .expect("only open visits forward");
        let sent = node_request.hops.forward(
            &chosen.node.name,
            left,
            wait_max,
            chosen.in_flight + 1,
            chosen.is_only_candidate,
        );
        let text = sent.to_string();
        node_request.stage = Stage::Forwarded {
            child,
            to,
            sent,
            ticket,
            granted: false,
        };
        self.tally.forwards += 1;
        let sites = self.sites(at, to);
        if !self.net.connects(at, to) {
            self.after(
                CONNECT_TIMEOUT,
                ClusterEvent::Broke {
                    parent: id,
                    child,
                    connected: false,
                },
            );
        } else if !self.nodes[to].up || self.nodes[to].generation != generation {
            let way = self.net.way(sites, &mut self.random);
            self.after(
                way + way,
                ClusterEvent::Broke {
                    parent: id,
                    child,
                    connected: false,
                },
            );
        } else {
            let seen = &mut self.requests.get_mut(&request).expect("it is open").seen;
            seen.push(to);
            let way = self.net.stream(sites, &mut self.random);
            self.after(
                way,
                ClusterEvent::Forwarded {
                    parent: id,
                    child,
                    to,
                    generation,
                    hops: text,
                },
            );
        }
    }

    fn forwarded(&mut self, parent: u64, child: u64, (to, generation): (usize, u64), text: &str) {
        let Some(caller) = self.node_requests.get(&parent).filter(|caller| {
            caller
                .forwarded_to()
                .is_some_and(|(expected, _)| expected == child)
        }) else {
            return;
        };
        let (request, from, depth) = (caller.request, caller.node, caller.depth + 1);
        let model = caller.model;
        if !self.nodes[to].up || self.nodes[to].generation != generation {
            let way = self.net.way(self.sites(from, to), &mut self.random);
            self.after(
                way,
                ClusterEvent::Broke {
                    parent,
                    child,
                    connected: true,
                },
            );
            return;
        }
        let mut hops = Hops::parse(text).expect("our own text is well formed");
        hops.arrive(&self.nodes[to].name.clone())
            .expect("nobody is asked twice");
        let state = self.requests.get_mut(&request).expect("it is open");
        let before = state.seen.iter().filter(|&&seen| seen == to).count();
        let most = 1 + (CAPACITY_ATTEMPTS_SMALL - QUEUE_ALLOWED_AT) as usize;
        assert!(
            before <= most || state.lost_hop,
            "nor is a node asked for ever"
        );
        self.add_node_request(
            child,
            Some(parent),
            NewNodeRequest {
                request,
                model,
                node: to,
                hops,
                depth,
            },
        );
    }

    fn begin(&mut self, id: u64, grant: Grant) {
        let node_request = self
            .node_requests
            .get_mut(&id)
            .expect("only open visits get permits");
        node_request.stage = Stage::Running(grant.permit, grant.endpoint);
        node_request.attempt += 1;
        let (at, attempt, model) = (node_request.node, node_request.attempt, node_request.model);
        assert!(
            node_request.hops.budget.errors_left > 0,
            "an attempt has an error left"
        );
        let request = self
            .requests
            .get_mut(&node_request.request)
            .expect("it is open");
        request.attempts += 1;
        request.depth = node_request.depth;
        assert!(
            request.attempts <= ERRORS_MAX,
            "no request is tried more than its budget"
        );
        let service = request.service;
        self.tally.attempts += 1;
        let endpoint = grant.endpoint.0 as usize;
        let used = &mut self.nodes[at].backends[model][endpoint];
        *used += 1;
        let limit = self.shape.nodes[at].models[model][endpoint];
        assert!(*used <= limit, "no backend has more than its permits");
        self.in_flight(at, 1);
        let span = if self.failing[at] {
            FAILURE_TAKES
        } else {
            service
        };
        self.after(
            span,
            ClusterEvent::Worked {
                node_request: id,
                attempt,
            },
        );
        self.grant(id);
    }

    /// The forwarding node learns of the grant before a backend begins.
    fn grant(&mut self, id: u64) {
        let mut child = id;
        while let Some(parent) = self
            .node_requests
            .get(&child)
            .and_then(|node_request| node_request.parent)
        {
            if let Some(node_request) = self.node_requests.get_mut(&parent)
                && let Stage::Forwarded { granted, .. } = &mut node_request.stage
            {
                *granted = true;
            }
            child = parent;
        }
    }

    fn finish_attempt(&mut self, id: u64, attempt: u32) {
        let Some(node_request) = self
            .node_requests
            .get_mut(&id)
            .filter(|node_request| node_request.attempt == attempt)
        else {
            return;
        };
        let Stage::Running(permit, endpoint) = node_request.stage else {
            return;
        };
        let (at, model) = (node_request.node, node_request.model);
        node_request.stage = Stage::Deciding;
        if !self.failing[at] {
            self.nodes[at].completed += 1;
            self.answer(id, ForwardReply::Done);
            self.release((at, model), permit, endpoint);
            return;
        }
        node_request.avoid.push(endpoint);
        node_request.resumed = true;
        let again = node_request.hops.budget.record_error();
        self.release((at, model), permit, endpoint);
        self.retry(id, again, AttemptFailure::Failed);
    }

    /// Tries again here or elsewhere when both budgets allow.
    fn retry(&mut self, id: u64, errors_left: bool, failure: AttemptFailure) {
        let Some(node_request) = self.node_requests.get(&id) else {
            return;
        };
        let at = node_request.node;
        let tried = ERRORS_MAX - node_request.hops.budget.errors_left;
        let now = self.local(at);
        let target = RetryTarget::AfterNode;
        let retries = &mut self.nodes[at].retries;
        if errors_left && retries.may_retry(tried, failure, target, now) {
            return self.ask(id);
        }
        let node_request = &self.node_requests[&id];
        let hops = node_request.hops.to_string();
        self.answer(id, ForwardReply::Failed { hops });
    }

    /// A permit of a model at a node.
    fn release(&mut self, (at, model): (usize, usize), permit: PermitId, endpoint: EndpointId) {
        let now = self.local(at);
        let rng = self.random.u64(..);
        self.nodes[at].backends[model][endpoint.0 as usize] -= 1;
        self.in_flight(at, -1);
        let mut wakes = WaiterUpdates::default();
        if let Some(turnstile) = &mut self.nodes[at].turnstiles[model] {
            turnstile.release(permit, now, rng, &mut wakes);
        }
        self.wake(at, model, wakes);
    }

    fn wake(&mut self, at: usize, model: usize, wakes: WaiterUpdates) {
        for grant in wakes.grants {
            let ticket = grant.ticket.expect("a woken waiter has a ticket");
            let waiter = self.nodes[at].waiting.remove(&(model, ticket));
            self.begin(waiter.expect("a waiter is woken once"), grant);
        }
        for (ticket, _) in wakes.refusals {
            let waiter = self.nodes[at].waiting.remove(&(model, ticket));
            let waiter = waiter.expect("a waiter is refused once");
            self.stage(waiter, Stage::Deciding);
            self.refuse(waiter);
        }
    }

    fn refuse(&mut self, id: u64) {
        let node_request = &self.node_requests[&id];
        let (at, model) = (node_request.node, node_request.model);
        let now = self.local(at);
        let (mut free, mut wait_ms) = (0, 0);
        if let Some(turnstile) = &self.nodes[at].turnstiles[model] {
            let gauges = turnstile.gauges();
            free = gauges.limit - gauges.used;
            wait_ms = turnstile.expected_wait(now).0 as u32;
        }
        let hops = node_request.hops.to_string();
        self.answer(
            id,
            ForwardReply::Refused {
                free,
                wait_ms,
                hops,
            },
        );
    }

    /// Ends a request at a node with a reply: to the client, or to the forwarding node.
    fn answer(&mut self, id: u64, answer: ForwardReply) {
        let Some(node_request) = self.remove(id) else {
            return;
        };
        let Some(parent) = node_request.parent else {
            let end = match answer {
                ForwardReply::Done => ClusterEnd::Completed,
                ForwardReply::Refused { .. } => ClusterEnd::Refused,
                ForwardReply::Failed { .. } | ForwardReply::Lost => ClusterEnd::Failed,
            };
            return self.end(node_request.request, end);
        };
        let Some(caller) = self.node_requests.get(&parent) else {
            return;
        };
        let to = caller.node;
        if self.net.connects(node_request.node, to) {
            let way = self
                .net
                .stream(self.sites(node_request.node, to), &mut self.random);
            self.after(
                way,
                ClusterEvent::Back {
                    parent,
                    child: id,
                    answer,
                },
            );
        } else {
            self.after(
                CONNECT_TIMEOUT,
                ClusterEvent::Broke {
                    parent,
                    child: id,
                    connected: true,
                },
            );
        }
    }

    fn forward_replied(&mut self, parent: u64, child: u64, answer: ForwardReply) {
        let Some(FinishedForward {
            at, sent, ticket, ..
        }) = self.take_forward(parent, child)
        else {
            return;
        };
        let now = self.local(at);
        let ended = match answer {
            ForwardReply::Refused { free, wait_ms, .. } => {
                ForwardOutcome::Refused { free, wait_ms }
            }
            ForwardReply::Failed { .. } => ForwardOutcome::ServersFailed,
            ForwardReply::Done | ForwardReply::Lost => ForwardOutcome::Answered { ttft_us: 0 },
        };
        self.nodes[at].cluster.finish_forward(ticket, ended, now);
        let (text, refused) = match answer {
            ForwardReply::Done | ForwardReply::Lost => {
                self.answer(parent, answer);
                return self.wake_unmet_demand(at);
            }
            ForwardReply::Refused { hops, .. } => (hops, true),
            ForwardReply::Failed { hops } => (hops, false),
        };
        let left = Hops::parse(&text).expect("our own text is well formed");
        let node_request = self
            .node_requests
            .get_mut(&parent)
            .expect("it has just landed");
        node_request
            .hops
            .settle_returned(&sent, &left)
            .expect("our own answer follows");
        if refused {
            let request = self
                .requests
                .get_mut(&node_request.request)
                .expect("it is open");
            request.refusals += 1;
            assert!(
                request.refusals <= CAPACITY_ATTEMPTS_SMALL,
                "nor refused more"
            );
            self.tally.forwards_refused += 1;
            node_request.hops.budget.record_out_of_capacity();
            // Once no node is left to ask it waits here as any other.
            self.ask(parent);
        } else {
            let errors_left = node_request.hops.budget.errors_left > 0;
            self.retry(parent, errors_left, AttemptFailure::Failed);
        }
        self.wake_unmet_demand(at);
    }

    fn forward_broke(&mut self, parent: u64, child: u64, connected: bool) {
        if connected && self.is_fine(parent, child) {
            return;
        }
        let Some(FinishedForward {
            at,
            ticket,
            granted,
            ..
        }) = self.take_forward(parent, child)
        else {
            return;
        };
        let now = self.local(at);
        self.nodes[at]
            .cluster
            .finish_forward(ticket, ForwardOutcome::Failed, now);
        if connected && granted {
            self.answer(parent, ForwardReply::Lost);
            return self.wake_unmet_demand(at);
        }
        let node_request = self
            .node_requests
            .get_mut(&parent)
            .expect("it has just landed");
        let request = self
            .requests
            .get_mut(&node_request.request)
            .expect("it is open");
        let (errors_left, failure) = if connected {
            request.lost_hop = true;
            (
                node_request.hops.settle_lost_in_queue(),
                AttemptFailure::NotConnected,
            )
        } else {
            (
                node_request.hops.budget.record_error(),
                AttemptFailure::NotConnected,
            )
        };
        self.retry(parent, errors_left, failure);
        self.wake_unmet_demand(at);
    }

    /// Both ends of a forward live and see each other.
    fn is_fine(&self, parent: u64, child: u64) -> bool {
        let (Some(caller), Some(worker)) = (
            self.node_requests.get(&parent),
            self.node_requests.get(&child),
        ) else {
            return false;
        };
        let expected = caller
            .forwarded_to()
            .is_some_and(|(expected, _)| expected == child);
        expected && self.net.connects(caller.node, worker.node)
    }

    /// Takes the forward of a request if `child` is its reply.
    fn take_forward(&mut self, parent: u64, child: u64) -> Option<FinishedForward> {
        let node_request = self.node_requests.get_mut(&parent)?;
        if node_request.forwarded_to()?.0 != child {
            return None;
        }
        match std::mem::replace(&mut node_request.stage, Stage::Deciding) {
            Stage::Forwarded {
                sent,
                ticket,
                granted,
                ..
            } => Some(FinishedForward {
                at: node_request.node,
                sent,
                ticket,
                granted,
            }),
            _ => None,
        }
    }

    fn expire(&mut self, id: u64) {
        let Some(node_request) = self.node_requests.get(&id) else {
            return;
        };
        let (request, first) = (node_request.request, node_request.parent.is_none());
        if first {
            self.end(request, ClusterEnd::DeadlinePassed);
        }
        self.abandon(id);
    }

    /// Cancels a request at a node: releases what it holds.
    fn abandon(&mut self, id: u64) {
        let Some(node_request) = self.remove(id) else {
            return;
        };
        let place = (node_request.node, node_request.model);
        match node_request.stage {
            Stage::Deciding => {}
            Stage::Waiting { ticket, .. } => {
                self.leave_line(node_request.node, node_request.model, ticket)
            }
            Stage::Running(permit, endpoint) => self.release(place, permit, endpoint),
            Stage::Forwarded {
                child, to, ticket, ..
            } => {
                let now = self.local(node_request.node);
                self.nodes[node_request.node].cluster.finish_forward(
                    ticket,
                    ForwardOutcome::Cancelled,
                    now,
                );
                self.leave_child(node_request.node, child, to);
                self.wake_unmet_demand(node_request.node);
            }
        }
    }

    /// Cancels the request at the node it was forwarded to.
    fn leave_child(&mut self, at: usize, child: u64, to: usize) {
        let way = self.net.way(self.sites(at, to), &mut self.random);
        self.after(way, ClusterEvent::Gone { child });
    }

    /// Drops a request whose node is dead.
    pub(super) fn lose(&mut self, id: u64) {
        let Some(node_request) = self.remove(id) else {
            return;
        };
        if let Stage::Forwarded { child, to, .. } = node_request.stage {
            self.leave_child(node_request.node, child, to);
        }
        match node_request.parent {
            None => self.end(node_request.request, ClusterEnd::EntryLost),
            Some(parent) => {
                self.after(
                    Millis(2),
                    ClusterEvent::Broke {
                        parent,
                        child: id,
                        connected: true,
                    },
                );
            }
        }
    }

    fn end(&mut self, id: u64, end: ClusterEnd) {
        let request = self
            .requests
            .get_mut(&id)
            .expect("it is kept until it ends");
        assert!(!request.ended, "a request ends once");
        request.ended = true;
        let (depth, took) = (request.depth, self.now.since(request.arrived).0);
        if request.node_requests == 0 {
            self.requests.remove(&id);
        }
        *self.tally.ended.entry(end).or_default() += 1;
        if end == ClusterEnd::Completed {
            self.tally.by_hops[depth.min(3)] += 1;
            self.tally.completed_at.push((self.now.0, took));
        }
    }

    fn remove(&mut self, id: u64) -> Option<NodeRequest> {
        let node_request = self.node_requests.remove(&id)?;
        if let Some(request) = self.requests.get_mut(&node_request.request) {
            request.node_requests -= 1;
            if request.node_requests == 0 && request.ended {
                self.requests.remove(&node_request.request);
            }
        }
        Some(node_request)
    }

    fn stage(&mut self, id: u64, stage: Stage) {
        if let Some(node_request) = self.node_requests.get_mut(&id) {
            node_request.stage = stage;
        }
    }
}
