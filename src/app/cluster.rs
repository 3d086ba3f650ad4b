//! The part of this node in the cluster: publishes its load and applies the reports of other nodes.
//!
//! Requests are not forwarded and nodes are not judged here. A single loop with a period of [`BEAT`]; its
//! memory is bounded by the gossip. Where `cluster` is not configured none of it runs.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use infergate_core::routing::fleet::{Change, ModelLoad, NodeId, NodeReport};
use infergate_core::{AccountId, Millis, ModelId};
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};

use super::passed::PassedElsewhere;
use super::seeds::Seeds;
use crate::config::Config;
use crate::peer::{self, ACCOUNTS_MAX, Bound, Cluster, Drift, Gossip, News, Spent};
use crate::proxy::Shared;
use crate::telemetry::metrics::{GossipRefused, NodeChange, NodeLevels};

/// The gossip interval: more frequent reports would not leave this node.
const BEAT: Duration = Duration::from_millis(100);
/// Ticks between two draws (`FleetRule::drawn_every`), which are not published, and between two
/// reports of the neurons of the day.
const DRAW_BEATS: u64 = 5;
/// Ticks between two sweeps, and between two contacts of a seed while other nodes are known.
const SWEEP_BEATS: u64 = 10;
/// Sums that wait for their node's certificate: as many as sixteen nodes report. A certificate is shown within a
/// second or two.
const UNPROVEN_MAX: usize = 16 * ACCOUNTS_MAX;
/// Between two log lines about reports on accounts.
const COMPLAINT_EVERY: Millis = Millis::from_secs(60);

/// Bound sockets of a node that has not joined yet.
pub struct Joining {
    bound: Bound,
    cluster: Cluster,
    /// The listener for other nodes.
    peers: SocketAddr,
}

/// Binds the configured sockets; none where no cluster is configured.
///
/// # Errors
/// A sentence for the operator.
pub async fn bind(config: &Config) -> Result<Option<Joining>, String> {
    let (Some(cluster), Some(peers)) = (&config.cluster, &config.listen.peers) else {
        return Ok(None);
    };
    Ok(Some(Joining {
        bound: peer::bind(cluster.gossip).await?,
        cluster: cluster.clone(),
        peers: peers.address,
    }))
}

impl Joining {
    /// Joins the gossip without publishing anything yet.
    ///
    /// # Errors
    /// A sentence for the operator.
    pub async fn start(self, shared: &Arc<Shared>) -> Result<Membership, String> {
        shared.others.join();
        let here = shared.others.here().clone();
        let address = reached_at(self.peers, self.cluster.advertised());
        Ok(Membership {
            gossip: Gossip::start(self.bound, &self.cluster, here, shared.clock).await?,
            shared: Arc::clone(shared),
            address: address.to_string().into(),
            cluster: self.cluster,
            version: 0,
            told_spent: u64::MAX,
            told_generation: None,
            drifted: HashMap::new(),
            was_draining: false,
            draining: HashSet::new(),
            has_namesake: false,
            has_untold: false,
            unproven: HashMap::new(),
            passed: PassedElsewhere::default(),
            left_out: 0,
            complained: None,
        })
    }
}

/// Membership of this node: the gossip and the state around it.
pub struct Membership {
    gossip: Gossip,
    shared: Arc<Shared>,
    /// Where other nodes send requests.
    address: Arc<str>,
    cluster: Cluster,
    version: u64,
    told_spent: u64,
    /// Generation of the configuration that was published.
    told_generation: Option<u64>,
    /// Differences of other nodes as last logged.
    drifted: HashMap<Arc<str>, Drift>,
    was_draining: bool,
    /// Nodes that have reported that they drain.
    draining: HashSet<Arc<str>>,
    /// A process of the same name was logged.
    has_namesake: bool,
    /// More accounts than are published were logged.
    has_untold: bool,
    /// Usage reported by nodes that have not shown a certificate yet; at most [`UNPROVEN_MAX`]
    /// entries.
    unproven: HashMap<(NodeId, AccountId), Spent>,
    passed: PassedElsewhere,
    /// Sums left out as last logged, and the time of that.
    left_out: u64,
    complained: Option<Millis>,
}

impl Membership {
    /// As configured.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Publishes and polls for the life of the process.
    pub async fn run(mut self, seeds: watch::Receiver<Seeds>) {
        let mut beats = interval(BEAT);
        beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let over = self.gossip.over();
        tokio::pin!(over);
        for beat in 0.. {
            tokio::select! {
                _ = beats.tick() => {}
                why = &mut over => {
                    tracing::error!(why, "gossip has ended: this node is alone until it is restarted");
                    return;
                }
            }
            self.tell(beat).await;
            let news = self.gossip.hear().await;
            self.take(news);
            if beat.is_multiple_of(DRAW_BEATS) {
                self.shared.others.ring_all();
            }
            if beat.is_multiple_of(SWEEP_BEATS) {
                self.sweep();
            }
            if beat.is_multiple_of(SWEEP_BEATS) || self.gossip.is_alone() {
                let seeds = seeds.borrow().clone();
                self.greet(&seeds, beat);
            }
        }
    }

    async fn tell(&mut self, beat: u64) {
        let report = self.report();
        self.gossip.tell(&report).await;
        if report.draining && !self.was_draining {
            // No node should forward a request here that would have to be forwarded again.
            self.gossip.hurry().await;
        }
        self.was_draining = report.draining;
        let world = self.shared.world.load_full();
        if self.told_generation != Some(world.generation) {
            let digests = world.digests();
            self.shared.others.drifts.set_here(digests);
            self.gossip.tell_config(digests).await;
            self.told_generation = Some(world.generation);
        }
        if beat.is_multiple_of(DRAW_BEATS) {
            self.gossip.tell_passed(world.passed()).await;
        }
        if beat.is_multiple_of(DRAW_BEATS)
            && let Some((version, spent)) = self.shared.ledger.news(self.told_spent)
        {
            let untold = self.gossip.tell_spent(&spent).await;
            if untold > 0 && !self.has_untold {
                let most = ACCOUNTS_MAX;
                tracing::warn!(
                    untold,
                    most,
                    "what these accounts use here counts here only"
                );
            }
            (self.told_spent, self.has_untold) = (version, untold > 0);
        }
    }

    /// Builds the load report of this node.
    fn report(&mut self) -> NodeReport {
        let shared = &*self.shared;
        let world = shared.world.load();
        let mut wanting: HashMap<ModelId, u32> = shared.others.wanting().into_iter().collect();
        let mut models = Vec::with_capacity(world.lanes.iter().count());
        for lane in world.lanes.iter() {
            let wanted = wanting.remove(&lane.spec.id).unwrap_or(0);
            // A model with waiters only is published while it has them.
            if !lane.spec.endpoints.is_empty() || wanted > 0 {
                let load = ModelLoad {
                    wanting: wanted,
                    ..lane.gate.standing()
                };
                models.push((lane.spec.id.clone(), load));
            }
        }
        self.version += 1;
        NodeReport {
            node: shared.others.here().clone(),
            site: Arc::clone(shared.others.site()),
            address: Arc::clone(&self.address),
            draining: shared.others.is_leaving() || shared.drain.is_draining(),
            models,
            version: self.version,
            made: shared.clock.now(),
        }
    }

    fn take(&mut self, news: News) {
        self.keep_passed();
        // Before reports: a node may be lost and return as another generation at once.
        for name in news.lost {
            let site = self.site_of(&name);
            if self.shared.others.lost(&name) {
                tracing::warn!(node = &*name, site = &*site, "node lost");
                self.shared.metrics.node_changed(NodeChange::Lost);
            }
        }
        for report in news.reports {
            let report = self.shared.others.understood(report);
            let Some(change) = self.shared.others.heard(&report) else {
                continue;
            };
            let name = &report.node.name;
            // The cluster may know it already: a draining node announces it directly as well.
            let drains_now = report.draining && self.draining.insert(Arc::clone(name));
            if !report.draining {
                self.draining.remove(name);
            }
            let event = match change {
                Change::Appeared(_) => Some(NodeChange::Appeared),
                Change::Restarted(_) => Some(NodeChange::Restarted),
                Change::Returned(_) => Some(NodeChange::Returned),
                Change::Draining(_) | Change::Changed(_) => None,
            };
            let drained = drains_now.then_some(NodeChange::Draining);
            for event in event.into_iter().chain(drained) {
                self.changed(event, &report.node, &report.site);
            }
        }
        self.take_spent(news.spent);
        self.take_passed(news.passed);
        for (node, digests) in &news.configs {
            self.shared.others.drifts.heard(node, *digests);
        }
        let shared = &*self.shared;
        if let Some(at) = news.namesake.filter(|_| !self.has_namesake) {
            let name = &*shared.others.here().name;
            tracing::error!(name, %at, "another node has the same node.id: each needs its own");
        }
        self.has_namesake = news.namesake.is_some();
    }

    /// Applies sums of the day once their node has shown its certificate over TLS: the secret of the
    /// gossip alone is not enough to lock accounts out. Until then the latest of them wait.
    fn take_spent(&mut self, news: Vec<(NodeId, AccountId, Spent)>) {
        if news.is_empty() && self.unproven.is_empty() {
            return;
        }
        let shared = &*self.shared;
        for (node, account, sum) in news {
            let is_known = self.unproven.contains_key(&(node.clone(), account.clone()));
            if is_known || self.unproven.len() < UNPROVEN_MAX {
                self.unproven.insert((node, account), sum);
            }
        }
        let mut proven: HashMap<NodeId, bool> = HashMap::new();
        let mut taken = Vec::new();
        self.unproven.retain(|(node, account), sum| {
            let others = &shared.others;
            let is_proven = *proven
                .entry(node.clone())
                .or_insert_with(|| others.is_proven(node));
            if is_proven {
                taken.push((node.clone(), account.clone(), *sum));
            }
            // Sums of a node that has left are dropped.
            !is_proven && others.is_member(&node.name, node.generation)
        });
        let told = taken.iter();
        let told = told.map(|(node, account, sum)| (node, account, sum.day, sum.micro));
        shared.ledger.heard(told, &shared.world.load());
    }

    /// Runs before the reports: a node's first report is the base that counting starts from.
    fn keep_passed(&mut self) {
        let others = &self.shared.others;
        if others.is_alone() {
            return;
        }
        let living = others.nodes().into_iter().filter(|view| !view.gone);
        let living = living.map(|view| {
            let is_proven = others.is_proven(&view.node);
            (view.node, is_proven)
        });
        self.passed.keep(living);
    }

    /// Counts requests admitted at other nodes against the limits per minute of this one.
    fn take_passed(&mut self, told: Vec<(NodeId, AccountId, u64)>) {
        if told.is_empty() {
            return;
        }
        let shared = &*self.shared;
        let more = self.passed.take(told);
        let (world, now) = (shared.world.load(), shared.clock.now());
        for (account, count) in more {
            world.take_elsewhere(&account, count, now);
        }
    }

    fn changed(&self, event: NodeChange, id: &NodeId, site: &str) {
        let NodeId { name, generation } = id;
        tracing::info!(node = &**name, generation, site, "node {}", event.name());
        self.shared.metrics.node_changed(event);
    }

    /// Logs nodes whose configuration has come to differ from this one's, and those that agree again.
    fn compare(&mut self) {
        let shared = &*self.shared;
        let nodes = shared.others.nodes();
        self.drifted
            .retain(|name, _| nodes.iter().any(|view| view.node.name == *name));
        let is_one_of_us = |id: &NodeId| shared.others.is_proven(id);
        for view in nodes
            .iter()
            .filter(|view| !view.gone && is_one_of_us(&view.node))
        {
            let (name, drift) = (&view.node.name, shared.others.drifts.of(&view.node));
            let before = self.drifted.insert(Arc::clone(name), drift);
            if before.unwrap_or_default() == drift {
                continue;
            }
            match drift.is_none() {
                true => tracing::info!(node = &**name, "node is configured like this one again"),
                false => tracing::warn!(
                    node = &**name,
                    differs = drift.names().join(", "),
                    "node is configured otherwise than this one: requests that it forwards, or gets, are priced and allowed by two rules"
                ),
            }
        }
    }

    fn sweep(&mut self) {
        self.compare();
        for id in self.shared.others.sweep() {
            self.draining.remove(&id.name);
            tracing::info!(
                node = &*id.name,
                generation = id.generation,
                "node forgotten"
            );
            self.shared.metrics.node_changed(NodeChange::Forgotten);
        }
        let left_out = self.shared.ledger.left_out();
        let refused = GossipRefused {
            sums: left_out,
            ..self.gossip.refused()
        };
        self.shared.metrics.set_gossip_refused(refused);
        let now = self.shared.clock.now();
        if left_out > self.left_out && self.may_complain(now) {
            tracing::warn!(
                left_out,
                "sums of accounts were left out, as unknown here, of another day or beyond ten times the limit: have all nodes the same accounts and the same day?"
            );
            (self.left_out, self.complained) = (left_out, Some(now));
        }
    }

    fn may_complain(&self, now: Millis) -> bool {
        self.complained
            .is_none_or(|last| now.since(last) >= COMPLAINT_EVERY)
    }

    /// Contacts one seed at a time, in turn: the cluster may have fallen apart, or not have formed
    /// yet.
    fn greet(&self, seeds: &[SocketAddr], beat: u64) {
        let others = seeds
            .iter()
            .filter(|&&seed| seed != self.cluster.advertised());
        let others: Vec<SocketAddr> = others.copied().collect();
        let turn = match self.gossip.is_alone() {
            true => beat,
            false => beat / SWEEP_BEATS,
        };
        if !others.is_empty() {
            let at = turn as usize % others.len();
            self.gossip.greet([others[at]]);
        }
    }

    fn site_of(&self, name: &str) -> Arc<str> {
        let nodes = self.shared.others.nodes();
        let known = nodes.into_iter().find(|view| *view.node.name == *name);
        known.map_or_else(|| "".into(), |view| view.site)
    }
}

/// Where other nodes reach a listener: where all addresses are listened on, at the one that is
/// advertised.
fn reached_at(listener: SocketAddr, advertised: SocketAddr) -> SocketAddr {
    match listener.ip().is_unspecified() {
        true => SocketAddr::new(advertised.ip(), listener.port()),
        false => listener,
    }
}

/// How many of the others live, drain and are lost.
pub fn levels(shared: &Shared) -> NodeLevels {
    let mut levels = NodeLevels::default();
    for view in shared.others.nodes() {
        let drift = shared.others.drifts.of(&view.node);
        if !view.gone && shared.others.is_proven(&view.node) {
            levels.other_accounts += u64::from(drift.accounts);
            levels.other_models += u64::from(drift.models);
            levels.other_tariffs += u64::from(drift.tariffs);
        }
        match (view.gone, view.draining) {
            (true, _) => levels.lost += 1,
            (false, true) => levels.draining += 1,
            (false, false) => levels.live += 1,
        }
    }
    levels
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_on_all_addresses_is_reached_at_the_advertised_one() {
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        let advertised = at("10.0.0.1:7071");
        assert_eq!(
            reached_at(at("0.0.0.0:7070"), advertised),
            at("10.0.0.1:7070")
        );
        assert_eq!(
            reached_at(at("10.0.0.2:7070"), advertised),
            at("10.0.0.2:7070")
        );
        assert_eq!(reached_at(at("[::]:7070"), advertised), at("10.0.0.1:7070"));
    }
}
