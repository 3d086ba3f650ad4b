//! Nodes with real admission queues and real clusters, driven by a queue of events.
//!
//! Here are time, gossip, and what is done to nodes; `walk.rs` has a request's way through them.
//! Requests in flight are counted at the backend, every request ends exactly once, and a broken
//! promise panics where it is broken.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::sync::Arc;

use fastrand::Rng;
use infergate_core::admission::{AdmissionQueue, QueueTicket};
use infergate_core::routing::cluster::{ModelLoad, NodeId, NodeReport};
use infergate_core::routing::{ClusterView, RetryBudget};
use infergate_core::{Millis, ModelId};

use super::net::Net;
use super::request_path::{ClusterRequest, ForwardReply, NodeRequest};
use super::shape::{Shape, Traffic, model_name, model_spec};

/// Silence after which the failure detector reports a node as lost.
const DETECTED_AFTER: Millis = Millis(4_000);

/// A stream whose other end does not answer is given up after so long.
const BROKEN_AFTER: Millis = Millis(1_500);

/// Outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ClusterEnd {
    Completed,
    /// Out of capacity.
    Refused,
    /// Its errors are used up.
    Failed,
    DeadlinePassed,
    /// The node its client was connected to is gone.
    EntryLost,
}

pub enum ClusterEvent {
    Arrive,
    Gossip {
        node: usize,
        generation: u64,
    },
    News {
        to: usize,
        reports: Vec<Arc<NodeReport>>,
    },
    Look {
        node: usize,
        generation: u64,
    },
    Tick {
        node: usize,
        generation: u64,
    },
    Forwarded {
        parent: u64,
        child: u64,
        to: usize,
        generation: u64,
        hops: String,
    },
    Back {
        parent: u64,
        child: u64,
        answer: ForwardReply,
    },
    Broke {
        parent: u64,
        child: u64,
        connected: bool,
    },
    Gone {
        child: u64,
    },
    Worked {
        node_request: u64,
        attempt: u32,
    },
    Deadline {
        node_request: u64,
    },
}

/// A simulated node.
pub struct SimNode {
    pub name: Arc<str>,
    pub site: usize,
    pub up: bool,
    pub draining: bool,
    pub generation: u64,
    pub cluster: ClusterView,
    pub retries: RetryBudget,
    pub turnstiles: Vec<Option<AdmissionQueue>>,
    /// Requests of own clients refused since the last report, by model.
    pub refused: Vec<u32>,
    /// In flight at each endpoint of each model, as the backend counts.
    pub backends: Vec<Vec<u32>>,
    /// Waiting requests, by model and ticket.
    pub waiting: BTreeMap<(usize, QueueTicket), u64>,
    pub drift_ppm: i64,
    started: Millis,
    known: Vec<Option<Arc<NodeReport>>>,
    version: u64,
    /// Permit milliseconds used, until `busy_at`.
    busy: f64,
    busy_at: Millis,
    in_flight: u32,
    pub completed: u64,
}

/// Counters.
#[derive(Clone, Default)]
pub struct Tally {
    pub arrivals: u64,
    pub ended: BTreeMap<ClusterEnd, u64>,
    /// Heads sent to backends.
    pub attempts: u64,
    pub forwards: u64,
    /// Forwards refused for lack of capacity.
    pub forwards_refused: u64,
    /// Completed requests by the forwards on their way.
    pub by_hops: [u64; 4],
    /// Completion time of each request and its duration, both in milliseconds.
    pub completed_at: Vec<(u64, u64)>,
    /// Decisions of the cluster.
    pub decisions: u64,
}

pub struct ClusterSim {
    pub now: Millis,
    pub shape: Shape,
    pub nodes: Vec<SimNode>,
    pub net: Net,
    pub tally: Tally,
    /// Backends answer with an error, by node.
    pub failing: Vec<bool>,
    pub(super) node_requests: HashMap<u64, NodeRequest>,
    pub(super) requests: HashMap<u64, ClusterRequest>,
    pub(super) names: HashMap<Arc<str>, usize>,
    pub(super) models: Vec<String>,
    pub random: Rng,
    events: BinaryHeap<Reverse<(Millis, u64)>>,
    bodies: HashMap<u64, ClusterEvent>,
    numbers: u64,
    open_until: Millis,
    /// Cumulative weights.
    entries: Vec<f64>,
    popularity: Vec<f64>,
}

impl ClusterSim {
    pub fn new(shape: Shape, random: Rng) -> ClusterSim {
        let count = shape.nodes.len();
        let sums = |weights: &[f64]| {
            let mut sum = 0.0;
            let add = |weight: &f64| {
                sum += weight;
                sum
            };
            weights.iter().map(add).collect::<Vec<f64>>()
        };
        let mut world = ClusterSim {
            now: Millis(1_000_000),
            nodes: Vec::new(),
            net: Net::default(),
            tally: Tally::default(),
            failing: vec![false; count],
            node_requests: HashMap::new(),
            requests: HashMap::new(),
            names: HashMap::new(),
            models: (0..shape.traffic.models.len()).map(model_name).collect(),
            random,
            events: BinaryHeap::new(),
            bodies: HashMap::new(),
            numbers: 0,
            open_until: Millis::MAX,
            entries: sums(&shape.traffic.entries),
            popularity: sums(&shape.traffic.models),
            shape,
        };
        for node in 0..count {
            let born = world.born(node, 1);
            world.names.insert(born.name.clone(), node);
            world.nodes.push(born);
            world.wind_up(node);
        }
        world.after(Millis::ZERO, ClusterEvent::Arrive);
        world
    }

    /// Runs for `span`, with `disturb` called about every ten milliseconds.
    pub fn run(&mut self, span: Millis, mut disturb: impl FnMut(&mut ClusterSim)) {
        let end = self.now + span;
        let mut disturbed = self.now;
        while let Some(&Reverse((at, number))) = self.events.peek()
            && at <= end
        {
            self.events.pop();
            self.now = at;
            if at.since(disturbed) >= Millis(10) {
                disturbed = at;
                disturb(self);
            }
            if let Some(event) = self.bodies.remove(&number) {
                self.apply(event);
            }
        }
        self.now = end;
    }

    /// Lets everything that is open end, without new arrivals; then nothing is held anywhere.
    pub fn wind_down(&mut self) {
        self.net.heal();
        self.net.loss = 0.0;
        self.open_until = self.now;
        self.run(self.shape.traffic.patience + Millis::from_secs(10), |_| {});
        assert!(self.requests.is_empty(), "every request has ended");
        assert!(self.node_requests.is_empty(), "nobody works for nobody");
        let ended: u64 = self.tally.ended.values().sum();
        assert_eq!(ended, self.tally.arrivals, "every request has ended once");
        for at in 0..self.nodes.len() {
            let node = &self.nodes[at];
            if !node.up {
                continue;
            }
            let in_flight: u32 = node.backends.iter().flatten().sum();
            assert_eq!((in_flight, node.in_flight), (0, 0), "backends are idle");
            for turnstile in node.turnstiles.iter().flatten() {
                let gauges = turnstile.gauges();
                assert_eq!((gauges.used, gauges.depth), (0, 0), "all is given back");
            }
            for model in 0..self.models.len() {
                let seen = self.seen(at, model);
                assert!(
                    seen.iter().all(|other| other.in_flight == 0),
                    "no ticket is left"
                );
            }
        }
    }

    fn seen(&mut self, at: usize, model: usize) -> Vec<infergate_core::routing::cluster::NodeView> {
        let now = self.local(at);
        let seek = super::request_path::permit_query(&self.models[model], &[]);
        self.nodes[at].cluster.explain(&seek, usize::MAX, now).0
    }

    /// The clock of a node: since its own start, and as fast as it goes.
    pub fn local(&self, node: usize) -> Millis {
        let node = &self.nodes[node];
        let since = self.now.since(node.started).0 as i64;
        Millis((since + since * node.drift_ppm / 1_000_000) as u64)
    }

    /// kill -9: all it had is gone, at its backends too.
    pub fn crash(&mut self, node: usize) {
        if !self.nodes[node].up {
            return;
        }
        self.account(node);
        self.nodes[node].up = false;
        self.nodes[node].in_flight = 0;
        self.nodes[node].waiting.clear();
        self.nodes[node]
            .turnstiles
            .iter_mut()
            .for_each(|turnstile| *turnstile = None);
        for backend in self.nodes[node].backends.iter_mut().flatten() {
            *backend = 0;
        }
        let here = |node_request: &NodeRequest| node_request.node == node;
        let mut lost: Vec<u64> = self
            .node_requests
            .iter()
            .filter(|(_, v)| here(v))
            .map(|(id, _)| *id)
            .collect();
        lost.sort_unstable();
        for id in lost {
            self.lose(id);
        }
    }

    /// Requests that its backends work on.
    pub fn at_work(&self, node: usize) -> u64 {
        let backends = self.nodes[node].backends.iter().flatten();
        backends.map(|&used| u64::from(used)).sum()
    }

    /// Restarts the node as a new generation with an empty view.
    pub fn restart(&mut self, node: usize) {
        if self.nodes[node].up {
            return;
        }
        let generation = self.nodes[node].generation + 1;
        let (busy, completed) = (self.nodes[node].busy, self.nodes[node].completed);
        self.nodes[node] = self.born(node, generation);
        self.nodes[node].busy = busy;
        self.nodes[node].completed = completed;
        self.wind_up(node);
    }

    /// Drains the node; clients connect elsewhere.
    pub fn drain(&mut self, node: usize) {
        self.nodes[node].draining = true;
        self.gossip(node, None);
    }

    /// Cuts one direction; streams notice in time.
    pub fn cut(&mut self, from: usize, to: usize) {
        self.net.cut(from, to);
        let mut open: Vec<(u64, u64)> = Vec::new();
        for (id, node_request) in &self.node_requests {
            if let Some((child, other)) = node_request.forwarded_to()
                && [(from, to), (to, from)].contains(&(node_request.node, other))
            {
                open.push((*id, child));
            }
        }
        open.sort_unstable();
        for (parent, child) in open {
            self.after(
                BROKEN_AFTER,
                ClusterEvent::Broke {
                    parent,
                    child,
                    connected: true,
                },
            );
            self.after(BROKEN_AFTER, ClusterEvent::Gone { child });
        }
    }

    /// Cuts off `island` from everybody else.
    pub fn partition(&mut self, island: &[usize]) {
        for one in 0..self.nodes.len() {
            for &other in island {
                if !island.contains(&one) {
                    self.cut(one, other);
                    self.cut(other, one);
                }
            }
        }
    }

    /// Mean permits in use of a node over its permits, since the start.
    pub fn load_of(&mut self, node: usize, since: Millis) -> f64 {
        self.account(node);
        let span = self.now.since(since).0 as f64;
        self.nodes[node].busy / span / f64::from(self.shape.permits(node))
    }

    /// Counts from now on.
    pub fn reset_tally(&mut self) {
        for node in 0..self.nodes.len() {
            self.account(node);
            self.nodes[node].busy = 0.0;
            self.nodes[node].completed = 0;
        }
        let open = self.requests.len() as u64;
        self.tally = Tally {
            arrivals: open,
            ..Tally::default()
        };
    }

    /// Requests completed per second in the last `span`.
    pub fn goodput(&self, span: Millis) -> f64 {
        let from = self.now.since(span).0;
        let late = self.tally.completed_at.iter().rev();
        late.take_while(|(at, _)| *at >= from).count() as f64 * 1000.0 / span.0 as f64
    }

    pub fn ended(&self, end: ClusterEnd) -> u64 {
        self.tally.ended.get(&end).copied().unwrap_or(0)
    }

    pub(super) fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    pub(super) fn after(&mut self, span: Millis, event: ClusterEvent) {
        let number = self.number();
        self.bodies.insert(number, event);
        self.events.push(Reverse((self.now + span, number)));
    }

    pub(super) fn sites(&self, one: usize, other: usize) -> (usize, usize) {
        (self.nodes[one].site, self.nodes[other].site)
    }

    /// Adds to the requests in flight of a node, for its mean load.
    pub(super) fn in_flight(&mut self, node: usize, change: i32) {
        self.account(node);
        let node = &mut self.nodes[node];
        node.in_flight = node
            .in_flight
            .checked_add_signed(change)
            .expect("never below nothing");
    }

    fn account(&mut self, node: usize) {
        let now = self.now;
        let node = &mut self.nodes[node];
        node.busy += f64::from(node.in_flight) * now.since(node.busy_at).0 as f64;
        node.busy_at = now;
    }

    fn born(&self, at: usize, generation: u64) -> SimNode {
        let shape = &self.shape.nodes[at];
        let id = NodeId {
            name: format!("node-{at}").into(),
            generation,
        };
        let turnstile = |(model, permits): (usize, &Vec<u32>)| {
            let spec = model_spec(model, permits, self.shape.line);
            (!permits.is_empty()).then(|| AdmissionQueue::new(&spec, Millis::ZERO))
        };
        let site = format!("site-{}", shape.site);
        SimNode {
            name: id.name.clone(),
            site: shape.site,
            up: true,
            draining: false,
            generation,
            cluster: ClusterView::new(id, site.into(), self.shape.rule),
            retries: RetryBudget::new(),
            turnstiles: shape.models.iter().enumerate().map(turnstile).collect(),
            refused: vec![0; shape.models.len()],
            backends: shape
                .models
                .iter()
                .map(|permits| vec![0; permits.len()])
                .collect(),
            waiting: BTreeMap::new(),
            drift_ppm: shape.drift_ppm,
            started: self.now,
            known: vec![None; self.shape.nodes.len()],
            version: 0,
            busy: 0.0,
            busy_at: self.now,
            in_flight: 0,
            completed: 0,
        }
    }

    /// Starts what a node does by itself.
    fn wind_up(&mut self, node: usize) {
        let generation = self.nodes[node].generation;
        let phase = Millis(self.random.u64(..self.shape.gossip_every.0));
        self.after(phase, ClusterEvent::Gossip { node, generation });
        self.after(phase + Millis(7), ClusterEvent::Look { node, generation });
        self.after(phase + Millis(13), ClusterEvent::Tick { node, generation });
    }

    fn apply(&mut self, event: ClusterEvent) {
        match event {
            ClusterEvent::Arrive => self.arrive(),
            ClusterEvent::News { to, reports } => self.deliver_reports(to, reports),
            ClusterEvent::Gossip { node, generation } if self.lives(node, generation) => {
                self.gossip(node, Some(self.shape.fanout));
                self.after(
                    self.shape.gossip_every,
                    ClusterEvent::Gossip { node, generation },
                );
            }
            ClusterEvent::Look { node, generation } if self.lives(node, generation) => {
                for model in 0..self.models.len() {
                    self.retry_waiters(node, model);
                }
                self.after(
                    self.shape.rule.share_period,
                    ClusterEvent::Look { node, generation },
                );
            }
            ClusterEvent::Tick { node, generation } if self.lives(node, generation) => {
                self.tick(node);
                self.after(Millis(1_000), ClusterEvent::Tick { node, generation });
            }
            ClusterEvent::Gossip { .. } | ClusterEvent::Look { .. } | ClusterEvent::Tick { .. } => {
            }
            other => self.walk(other),
        }
    }

    fn lives(&self, node: usize, generation: u64) -> bool {
        self.nodes[node].up && self.nodes[node].generation == generation
    }

    fn tick(&mut self, node: usize) {
        let now = self.local(node);
        self.nodes[node].cluster.sweep(now);
        let silent = |view: &infergate_core::routing::cluster::NodeView| view.age >= DETECTED_AFTER;
        let seen = self.nodes[node].cluster.nodes(now);
        for view in seen.into_iter().filter(silent) {
            self.nodes[node].cluster.mark_lost(&view.node.name);
        }
        // A check visits every waiter.
        if self.models.len() < 10 {
            self.nodes[node].cluster.check();
            self.nodes[node]
                .turnstiles
                .iter()
                .flatten()
                .for_each(AdmissionQueue::check);
        }
    }

    /// Tells `fanout` others, or everybody, what it knows.
    fn gossip(&mut self, node: usize, fanout: Option<usize>) {
        let report = Arc::new(self.report(node));
        self.nodes[node].known[node] = Some(report);
        let reports: Vec<Arc<NodeReport>> =
            self.nodes[node].known.iter().flatten().cloned().collect();
        let count = self.nodes.len();
        let reported: Vec<usize> = match fanout {
            Some(fanout) => (0..fanout).map(|_| self.random.usize(..count)).collect(),
            None => (0..count).collect(),
        };
        for to in reported.into_iter().filter(|&to| to != node) {
            let sites = self.sites(node, to);
            if let Some(way) = self.net.datagram((node, to), sites, &mut self.random) {
                let reports = reports.clone();
                self.after(way, ClusterEvent::News { to, reports });
            }
        }
    }

    fn report(&mut self, at: usize) -> NodeReport {
        let now = self.local(at);
        // Of those who wait, the clients of the node itself.
        let mut own = vec![0; self.models.len()];
        for ((model, _), node_request) in &self.nodes[at].waiting {
            own[*model] += u32::from(self.node_requests[node_request].is_first());
        }
        let node = &mut self.nodes[at];
        node.version += 1;
        let mut models = Vec::new();
        for (model, turnstile) in node.turnstiles.iter().enumerate() {
            let refused = std::mem::take(&mut node.refused[model]);
            let name = ModelId::from(&*self.models[model]);
            let Some(turnstile) = turnstile else {
                let load = ModelLoad {
                    unmet_demand: refused,
                    ..ModelLoad::default()
                };
                if refused > 0 {
                    models.push((name, load));
                }
                continue;
            };
            let gauges = turnstile.gauges();
            let capacity = (gauges.limit * self.shape.line).min(1000);
            let load = ModelLoad {
                permits: gauges.limit,
                free: gauges.limit - gauges.used,
                queued: gauges.depth as u32,
                unmet_demand: own[model] + refused,
                queue_room: capacity.saturating_sub(gauges.depth as u32),
                wait_ms: turnstile.expected_wait(now).0 as u32,
                ttft_us: 0,
            };
            models.push((name, load));
        }
        NodeReport {
            node: NodeId {
                name: node.name.clone(),
                generation: node.generation,
            },
            site: format!("site-{}", node.site).into(),
            address: node.name.clone(),
            draining: node.draining,
            models,
            version: node.version,
            made: now,
        }
    }

    fn deliver_reports(&mut self, to: usize, reports: Vec<Arc<NodeReport>>) {
        if !self.nodes[to].up {
            return;
        }
        let now = self.local(to);
        for report in reports {
            let from = self.names[&report.node.name];
            let node = &mut self.nodes[to];
            let age = |report: &NodeReport| (report.node.generation, report.version);
            let newer = node.known[from]
                .as_ref()
                .is_none_or(|known| age(known) < age(&report));
            if from == to || !newer {
                continue;
            }
            node.cluster.apply_report(&report, now);
            // Known from pings, as the shell would measure it.
            let rtt_us = 2_000 + 16_000 * node.site.abs_diff(self.shape.nodes[from].site) as u32;
            node.cluster.record_rtt(&report.node.name, rtt_us);
            node.known[from] = Some(report);
        }
        self.wake_unmet_demand(to);
    }

    /// Wakes waiters of models for which there may be capacity elsewhere.
    pub(super) fn wake_unmet_demand(&mut self, node: usize) {
        for model in self.nodes[node].cluster.take_wakes() {
            let at = self.models.iter().position(|name| *name == model.as_str());
            self.retry_waiters(node, at.expect("only known models are told of"));
        }
    }

    fn arrive(&mut self) {
        if self.now >= self.open_until {
            return;
        }
        let Traffic {
            rate,
            service,
            jitter,
            patience,
            body_bytes,
            ..
        } = self.shape.traffic;
        // Below a millisecond several come at once.
        let span = -(1.0 - self.random.f64()).ln() * 1000.0 / rate;
        let whole = span.floor();
        let more = self.random.f64() < span - whole;
        self.after(Millis(whole as u64 + u64::from(more)), ClusterEvent::Arrive);
        let entry = drawn(&self.entries, &mut self.random);
        let model = drawn(&self.popularity, &mut self.random);
        let scale = 1.0 + jitter * (2.0 * self.random.f64() - 1.0);
        let service = Millis((service.0 as f64 * scale).round() as u64);
        // Clients try the next node when one is down or drains.
        let count = self.nodes.len();
        let nodes = (entry..entry + count).map(|node| node % count);
        let mut open = nodes.filter(|&node| self.nodes[node].up && !self.nodes[node].draining);
        if let Some(entry) = open.next() {
            self.tally.arrivals += 1;
            self.enter(entry, model, service, patience, body_bytes);
        }
    }
}

fn drawn(sums: &[f64], random: &mut Rng) -> usize {
    let draw = random.f64() * sums.last().expect("there is something to draw");
    sums.partition_point(|&sum| sum <= draw).min(sums.len() - 1)
}
