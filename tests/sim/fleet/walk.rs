//! Path of a request: admission at a node, a forward where another has capacity, the response back.
//!
//! Plays the shell's part as plainly as possible. Each node works on a request of its own; a
//! forward makes a second one, whose reply answers the first.

use std::sync::Arc;

use infergate_core::Millis;
use infergate_core::admission::{Ask, EndpointId, Grant, Outcome, PermitId, Ticket, Wakes};
use infergate_core::routing::budget::{CAPACITY_TRIES_SMALL, ERRORS_MAX};
use infergate_core::routing::fleet::{Chosen, Ended, Seek, Ticket as Sent, Wants};
use infergate_core::routing::hops::SETTLES_AT;
use infergate_core::routing::{Failure, Hops, RetryTarget};

use super::world::{End, Event, World};

/// A failing backend answers after so long.
const FAILURE_TAKES: Millis = Millis(5);

/// No connection after so long.
const CONNECT_TIMEOUT: Millis = Millis(200);

/// Reply of a node to a forward.
pub enum Answer {
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
pub struct Request {
    arrived: Millis,
    /// Requests at nodes; with the last one the record is dropped.
    visits: u32,
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
pub struct Visit {
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
struct Visiting {
    request: u64,
    model: usize,
    node: usize,
    hops: Hops,
    depth: usize,
}

/// A forward that is over.
struct Landed {
    at: usize,
    sent: Hops,
    ticket: Sent,
    granted: bool,
}

enum Stage {
    Deciding,
    Waiting {
        ticket: Ticket,
        until: Millis,
    },
    Running(PermitId, EndpointId),
    Away {
        child: u64,
        to: usize,
        sent: Hops,
        ticket: Sent,
        /// A backend there, or further on, may have begun.
        granted: bool,
    },
}

impl Visit {
    /// Returns whether the client's request arrived here.
    pub fn is_first(&self) -> bool {
        self.parent.is_none()
    }

    /// Request that works for this one, and its node.
    pub fn away(&self) -> Option<(u64, usize)> {
        match self.stage {
            Stage::Away { child, to, .. } => Some((child, to)),
            _ => None,
        }
    }
}

pub fn seek<'a>(model: &'a str, visited: &'a [Arc<str>]) -> Seek<'a> {
    Seek {
        model,
        visited,
        forced_site: None,
        sites: None,
        wants: Wants::Permit,
    }
}

impl World {
    pub(super) fn walk(&mut self, event: Event) {
        match event {
            Event::Forwarded {
                parent,
                child,
                to,
                generation,
                hops,
            } => {
                self.forwarded(parent, child, (to, generation), &hops);
            }
            Event::Back {
                parent,
                child,
                answer,
            } => self.back(parent, child, answer),
            Event::Broke {
                parent,
                child,
                connected,
            } => self.broke(parent, child, connected),
            Event::Gone { child } => {
                // A cut that healed in time is not noticed.
                let still = self.visits.get(&child).and_then(|visit| visit.parent);
                if still.is_none_or(|parent| !self.is_fine(parent, child)) {
                    self.abandon(child);
                }
            }
            Event::Worked { visit, attempt } => self.worked(visit, attempt),
            Event::Deadline { visit } => self.late(visit),
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
        let hops = Hops::begin(&self.nodes[entry].name, patience, body_bytes);
        let state = Request {
            arrived: self.now,
            visits: 0,
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
        self.nodes[entry].retries.request_begins(now);
        let id = self.number();
        self.visit(
            id,
            None,
            Visiting {
                request,
                model,
                node: entry,
                hops,
                depth: 0,
            },
        );
    }

    fn visit(&mut self, id: u64, parent: Option<u64>, visiting: Visiting) {
        let Visiting {
            request,
            model,
            node,
            hops,
            depth,
        } = visiting;
        self.requests.get_mut(&request).expect("it is open").visits += 1;
        let left = hops.deadline_left;
        let visit = Visit {
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
        self.visits.insert(id, visit);
        self.after(left, Event::Deadline { visit: id });
        self.ask(id);
    }

    /// Admission here, or another node, or no.
    fn ask(&mut self, id: u64) {
        let visit = &self.visits[&id];
        let (at, model) = (visit.node, visit.model);
        let now = self.local(at);
        let ask = Ask {
            elsewhere: false,
            account: "ant".into(),
            weight: 1,
            priority: 5,
            warm: false,
            tokens: 0,
            deadline: visit.deadline,
            no_wait: visit.hops.wait_max == Millis::ZERO,
            avoid: visit.avoid.clone(),
            order: None,
            resume: visit.resumed,
        };
        let wait_max = visit.hops.wait_max;
        let dice = self.dice.u64(..);
        if let Some(turnstile) = &mut self.nodes[at].turnstiles[model] {
            match turnstile.ask(ask, now, dice) {
                Outcome::Leased(grant) => return self.begin(id, grant),
                Outcome::Queued {
                    ticket,
                    expected_wait,
                    ..
                } if expected_wait > wait_max => {
                    turnstile.leave(ticket, now);
                }
                Outcome::Queued {
                    ticket,
                    expected_wait,
                    ..
                } => {
                    self.nodes[at].waiting.insert((model, ticket), id);
                    let until = now + expected_wait;
                    self.stage(id, Stage::Waiting { ticket, until });
                    self.look(id);
                    return;
                }
                Outcome::Full(_) => {}
            }
        }
        // A forwarded request waits nowhere else but comes back: whoever forwarded it sees more of
        // its way.
        let visit = &self.visits[&id];
        let first = visit.is_first();
        let left = visit.deadline.since(now);
        let wait_max = match first {
            true => visit.hops.may_wait(left),
            false => Millis::ZERO,
        };
        if self.go(id, Wants::Permit, wait_max) {
            return;
        }
        let line = Wants::Line {
            wait_max: left,
            crowded: self.nodes[at].turnstiles[model].is_none(),
        };
        if first && self.go(id, line, left) {
            return;
        }
        if first {
            self.nodes[at].refused[model] += 1;
        }
        self.refuse(id);
    }

    /// Forwards when some node has what is wanted.
    fn go(&mut self, id: u64, wants: Wants, wait_max: Millis) -> bool {
        let Some(chosen) = self.next(id, wants, false) else {
            return false;
        };
        self.forward(id, &chosen, wait_max);
        true
    }

    fn next(&mut self, id: u64, wants: Wants, waits: bool) -> Option<Chosen> {
        let visit = &self.visits[&id];
        if !visit.hops.may_forward() {
            return None;
        }
        let now = self.local(visit.node);
        let visited = match waits {
            true => visit.hops.visited_by_waiter(visit.way),
            false => &visit.hops.visited,
        };
        let seek = Seek {
            wants,
            ..seek(&self.models[visit.model], visited)
        };
        self.tally.decisions += 1;
        self.nodes[visit.node]
            .fleet
            .next(&seek, self.dice.u64(..), now)
    }

    /// A waiter looks whether to go. Returns whether others behind it should look as well.
    fn look(&mut self, id: u64) -> bool {
        let Some(visit) = self.visits.get(&id) else {
            return true;
        };
        let Stage::Waiting { ticket, until } = visit.stage else {
            return true;
        };
        let (at, model) = (visit.node, visit.model);
        if !visit.hops.may_forward() {
            return true;
        }
        let Some(chosen) = self.next(id, Wants::Permit, true) else {
            return false;
        };
        let now = self.local(at);
        // Who should have had its turn already is as one who comes now.
        let turnstile = self.nodes[at].turnstiles[model].as_ref();
        let wait = match until > now {
            true => until.since(now),
            false => turnstile.map_or(Millis::ZERO, |turnstile| turnstile.expected_wait(now)),
        };
        if self.nodes[at].fleet.worth_waiting_here(wait, &chosen) {
            return true;
        }
        self.leave_line(at, model, ticket);
        if let Some(visit) = self.visits.get_mut(&id) {
            visit.resumed = true;
        }
        self.forward(id, &chosen, Millis::ZERO);
        true
    }

    pub(super) fn look_again(&mut self, node: usize, model: usize) {
        let line = self.nodes[node]
            .waiting
            .range((model, Ticket(0))..(model + 1, Ticket(0)));
        let line: Vec<u64> = line.map(|(_, &id)| id).collect();
        for id in line {
            if !self.look(id) {
                break;
            }
        }
    }

    fn leave_line(&mut self, at: usize, model: usize, ticket: Ticket) {
        let now = self.local(at);
        self.nodes[at].waiting.remove(&(model, ticket));
        let turnstile = self.nodes[at].turnstiles[model].as_mut();
        let left = turnstile.is_some_and(|turnstile| turnstile.leave(ticket, now));
        assert!(left, "it was still waiting");
    }

    fn forward(&mut self, id: u64, chosen: &Chosen, wait_max: Millis) {
        let child = self.number();
        let visit = self.visits.get_mut(&id).expect("only open visits forward");
        let at = visit.node;
        let to = self.names[&chosen.node.name];
        let generation = chosen.node.generation;
        assert!(
            !visit.hops.visited[..visit.way].contains(&chosen.node.name),
            "it does not go round"
        );
        visit.hops.asks_again(&chosen.node.name);
        let request = visit.request;
        let deadline = visit.deadline;
        let now = self.local(at);
        let ticket = self.nodes[at].fleet.sent(chosen, now);
        let left = deadline.since(now);
        let visit = self.visits.get_mut(&id).expect("only open visits forward");
        let sent = visit.hops.forward(
            &chosen.node.name,
            left,
            wait_max,
            chosen.in_flight + 1,
            chosen.only,
        );
        let text = sent.to_string();
        visit.stage = Stage::Away {
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
                Event::Broke {
                    parent: id,
                    child,
                    connected: false,
                },
            );
        } else if !self.nodes[to].up || self.nodes[to].generation != generation {
            let way = self.net.way(sites, &mut self.dice);
            self.after(
                way + way,
                Event::Broke {
                    parent: id,
                    child,
                    connected: false,
                },
            );
        } else {
            let seen = &mut self.requests.get_mut(&request).expect("it is open").seen;
            seen.push(to);
            let way = self.net.stream(sites, &mut self.dice);
            self.after(
                way,
                Event::Forwarded {
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
        let Some(caller) = self
            .visits
            .get(&parent)
            .filter(|caller| caller.away().is_some_and(|(expected, _)| expected == child))
        else {
            return;
        };
        let (request, from, depth) = (caller.request, caller.node, caller.depth + 1);
        let model = caller.model;
        if !self.nodes[to].up || self.nodes[to].generation != generation {
            let way = self.net.way(self.sites(from, to), &mut self.dice);
            self.after(
                way,
                Event::Broke {
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
        let most = 1 + (CAPACITY_TRIES_SMALL - SETTLES_AT) as usize;
        assert!(
            before <= most || state.lost_hop,
            "nor is a node asked for ever"
        );
        self.visit(
            child,
            Some(parent),
            Visiting {
                request,
                model,
                node: to,
                hops,
                depth,
            },
        );
    }

    fn begin(&mut self, id: u64, grant: Grant) {
        let visit = self
            .visits
            .get_mut(&id)
            .expect("only open visits get permits");
        visit.stage = Stage::Running(grant.permit, grant.endpoint);
        visit.attempt += 1;
        let (at, attempt, model) = (visit.node, visit.attempt, visit.model);
        assert!(
            visit.hops.tries.errors_left > 0,
            "an attempt has an error left"
        );
        let request = self.requests.get_mut(&visit.request).expect("it is open");
        request.attempts += 1;
        request.depth = visit.depth;
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
        self.after(span, Event::Worked { visit: id, attempt });
        self.grant(id);
    }

    /// The forwarding node learns of the grant before a backend begins.
    fn grant(&mut self, id: u64) {
        let mut child = id;
        while let Some(parent) = self.visits.get(&child).and_then(|visit| visit.parent) {
            if let Some(visit) = self.visits.get_mut(&parent)
                && let Stage::Away { granted, .. } = &mut visit.stage
            {
                *granted = true;
            }
            child = parent;
        }
    }

    fn worked(&mut self, id: u64, attempt: u32) {
        let Some(visit) = self
            .visits
            .get_mut(&id)
            .filter(|visit| visit.attempt == attempt)
        else {
            return;
        };
        let Stage::Running(permit, endpoint) = visit.stage else {
            return;
        };
        let (at, model) = (visit.node, visit.model);
        visit.stage = Stage::Deciding;
        if !self.failing[at] {
            self.nodes[at].completed += 1;
            self.answer(id, Answer::Done);
            self.give_back((at, model), permit, endpoint);
            return;
        }
        visit.avoid.push(endpoint);
        visit.resumed = true;
        let again = visit.hops.tries.error();
        self.give_back((at, model), permit, endpoint);
        self.again(id, again, Failure::Failed);
    }

    /// Tries again here or elsewhere when both budgets allow.
    fn again(&mut self, id: u64, errors_left: bool, failure: Failure) {
        let Some(visit) = self.visits.get(&id) else {
            return;
        };
        let at = visit.node;
        let tried = ERRORS_MAX - visit.hops.tries.errors_left;
        let now = self.local(at);
        let target = RetryTarget::AfterNode;
        let retries = &mut self.nodes[at].retries;
        if errors_left && retries.may_retry(tried, failure, target, now) {
            return self.ask(id);
        }
        let visit = &self.visits[&id];
        let hops = visit.hops.to_string();
        self.answer(id, Answer::Failed { hops });
    }

    /// A permit of a model at a node.
    fn give_back(&mut self, (at, model): (usize, usize), permit: PermitId, endpoint: EndpointId) {
        let now = self.local(at);
        let dice = self.dice.u64(..);
        self.nodes[at].backends[model][endpoint.0 as usize] -= 1;
        self.in_flight(at, -1);
        let mut wakes = Wakes::default();
        if let Some(turnstile) = &mut self.nodes[at].turnstiles[model] {
            turnstile.give_back(permit, now, dice, &mut wakes);
        }
        self.wake(at, model, wakes);
    }

    fn wake(&mut self, at: usize, model: usize, wakes: Wakes) {
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
        let visit = &self.visits[&id];
        let (at, model) = (visit.node, visit.model);
        let now = self.local(at);
        let (mut free, mut wait_ms) = (0, 0);
        if let Some(turnstile) = &self.nodes[at].turnstiles[model] {
            let gauges = turnstile.gauges();
            free = gauges.limit - gauges.used;
            wait_ms = turnstile.expected_wait(now).0 as u32;
        }
        let hops = visit.hops.to_string();
        self.answer(
            id,
            Answer::Refused {
                free,
                wait_ms,
                hops,
            },
        );
    }

    /// Ends a request at a node with a reply: to the client, or to the forwarding node.
    fn answer(&mut self, id: u64, answer: Answer) {
        let Some(visit) = self.remove(id) else { return };
        let Some(parent) = visit.parent else {
            let end = match answer {
                Answer::Done => End::Completed,
                Answer::Refused { .. } => End::Refused,
                Answer::Failed { .. } | Answer::Lost => End::Failed,
            };
            return self.end(visit.request, end);
        };
        let Some(caller) = self.visits.get(&parent) else {
            return;
        };
        let to = caller.node;
        if self.net.connects(visit.node, to) {
            let way = self.net.stream(self.sites(visit.node, to), &mut self.dice);
            self.after(
                way,
                Event::Back {
                    parent,
                    child: id,
                    answer,
                },
            );
        } else {
            self.after(
                CONNECT_TIMEOUT,
                Event::Broke {
                    parent,
                    child: id,
                    connected: true,
                },
            );
        }
    }

    fn back(&mut self, parent: u64, child: u64, answer: Answer) {
        let Some(Landed {
            at, sent, ticket, ..
        }) = self.landed(parent, child)
        else {
            return;
        };
        let now = self.local(at);
        let ended = match answer {
            Answer::Refused { free, wait_ms, .. } => Ended::Refused { free, wait_ms },
            Answer::Failed { .. } => Ended::ServersFailed,
            Answer::Done | Answer::Lost => Ended::Answered { ttft_us: 0 },
        };
        self.nodes[at].fleet.ended(ticket, ended, now);
        let (text, refused) = match answer {
            Answer::Done | Answer::Lost => {
                self.answer(parent, answer);
                return self.wake_seekers(at);
            }
            Answer::Refused { hops, .. } => (hops, true),
            Answer::Failed { hops } => (hops, false),
        };
        let left = Hops::parse(&text).expect("our own text is well formed");
        let visit = self.visits.get_mut(&parent).expect("it has just landed");
        visit
            .hops
            .came_back(&sent, &left)
            .expect("our own answer follows");
        if refused {
            let request = self.requests.get_mut(&visit.request).expect("it is open");
            request.refusals += 1;
            assert!(request.refusals <= CAPACITY_TRIES_SMALL, "nor refused more");
            self.tally.forwards_refused += 1;
            visit.hops.tries.no_room();
            // Once no node is left to ask it waits here as any other.
            self.ask(parent);
        } else {
            let errors_left = visit.hops.tries.errors_left > 0;
            self.again(parent, errors_left, Failure::Failed);
        }
        self.wake_seekers(at);
    }

    fn broke(&mut self, parent: u64, child: u64, connected: bool) {
        if connected && self.is_fine(parent, child) {
            return;
        }
        let Some(Landed {
            at,
            ticket,
            granted,
            ..
        }) = self.landed(parent, child)
        else {
            return;
        };
        let now = self.local(at);
        self.nodes[at].fleet.ended(ticket, Ended::Failed, now);
        if connected && granted {
            self.answer(parent, Answer::Lost);
            return self.wake_seekers(at);
        }
        let visit = self.visits.get_mut(&parent).expect("it has just landed");
        let request = self.requests.get_mut(&visit.request).expect("it is open");
        let (errors_left, failure) = if connected {
            request.lost_hop = true;
            (visit.hops.lost_in_line(), Failure::NotConnected)
        } else {
            (visit.hops.tries.error(), Failure::NotConnected)
        };
        self.again(parent, errors_left, failure);
        self.wake_seekers(at);
    }

    /// Both ends of a forward live and see each other.
    fn is_fine(&self, parent: u64, child: u64) -> bool {
        let (Some(caller), Some(worker)) = (self.visits.get(&parent), self.visits.get(&child))
        else {
            return false;
        };
        let expected = caller.away().is_some_and(|(expected, _)| expected == child);
        expected && self.net.connects(caller.node, worker.node)
    }

    /// Takes the forward of a request if `child` is its reply.
    fn landed(&mut self, parent: u64, child: u64) -> Option<Landed> {
        let visit = self.visits.get_mut(&parent)?;
        if visit.away()?.0 != child {
            return None;
        }
        match std::mem::replace(&mut visit.stage, Stage::Deciding) {
            Stage::Away {
                sent,
                ticket,
                granted,
                ..
            } => Some(Landed {
                at: visit.node,
                sent,
                ticket,
                granted,
            }),
            _ => None,
        }
    }

    fn late(&mut self, id: u64) {
        let Some(visit) = self.visits.get(&id) else {
            return;
        };
        let (request, first) = (visit.request, visit.parent.is_none());
        if first {
            self.end(request, End::DeadlinePassed);
        }
        self.abandon(id);
    }

    /// Cancels a request at a node: releases what it holds.
    fn abandon(&mut self, id: u64) {
        let Some(visit) = self.remove(id) else { return };
        let place = (visit.node, visit.model);
        match visit.stage {
            Stage::Deciding => {}
            Stage::Waiting { ticket, .. } => self.leave_line(visit.node, visit.model, ticket),
            Stage::Running(permit, endpoint) => self.give_back(place, permit, endpoint),
            Stage::Away {
                child, to, ticket, ..
            } => {
                let now = self.local(visit.node);
                self.nodes[visit.node].fleet.ended(ticket, Ended::Cut, now);
                self.leave_child(visit.node, child, to);
                self.wake_seekers(visit.node);
            }
        }
    }

    /// Cancels the request at the node it was forwarded to.
    fn leave_child(&mut self, at: usize, child: u64, to: usize) {
        let way = self.net.way(self.sites(at, to), &mut self.dice);
        self.after(way, Event::Gone { child });
    }

    /// Drops a request whose node is dead.
    pub(super) fn lose(&mut self, id: u64) {
        let Some(visit) = self.remove(id) else { return };
        if let Stage::Away { child, to, .. } = visit.stage {
            self.leave_child(visit.node, child, to);
        }
        match visit.parent {
            None => self.end(visit.request, End::EntryLost),
            Some(parent) => {
                self.after(
                    Millis(2),
                    Event::Broke {
                        parent,
                        child: id,
                        connected: true,
                    },
                );
            }
        }
    }

    fn end(&mut self, id: u64, end: End) {
        let request = self
            .requests
            .get_mut(&id)
            .expect("it is kept until it ends");
        assert!(!request.ended, "a request ends once");
        request.ended = true;
        let (depth, took) = (request.depth, self.now.since(request.arrived).0);
        if request.visits == 0 {
            self.requests.remove(&id);
        }
        *self.tally.ended.entry(end).or_default() += 1;
        if end == End::Completed {
            self.tally.by_hops[depth.min(3)] += 1;
            self.tally.completed_at.push((self.now.0, took));
        }
    }

    fn remove(&mut self, id: u64) -> Option<Visit> {
        let visit = self.visits.remove(&id)?;
        if let Some(request) = self.requests.get_mut(&visit.request) {
            request.visits -= 1;
            if request.visits == 0 && request.ended {
                self.requests.remove(&visit.request);
            }
        }
        Some(visit)
    }

    fn stage(&mut self, id: u64, stage: Stage) {
        if let Some(visit) = self.visits.get_mut(&id) {
            visit.stage = stage;
        }
    }
}
