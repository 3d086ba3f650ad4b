//! The part of this node in the cluster: publishes its load and applies the reports of other nodes.
//!
//! Requests are not forwarded and nodes are not judged here. A single loop with a period of [`CLUSTER_TICK`]; its
//! memory is bounded by the gossip. Without `cluster` in the configuration none of it runs.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use infergate_core::routing::cluster::{MembershipChange, ModelLoad, NodeId, NodeReport};
use infergate_core::{AccountId, Millis, ModelId};
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};

use crate::app::membership_handover::{FormerNode, MembershipHandover, with_former};
use crate::app::plan::started_ms;
use crate::app::remote_counts::RemoteRequestCounts;
use crate::app::seeds::Seeds;
use crate::config::Config;
use crate::peer::{
    self, ACCOUNTS_MAX, AccountUsage, Cluster, ConfigDrift, Gossip, GossipIdentity, GossipSocket,
    GossipUpdate, IncompatibleNode, PROTOCOL_VERSION,
};
use crate::state::Shared;
use crate::telemetry::metrics::{GossipRefused, NodeChange, NodeLevels};

/// The gossip interval: more frequent reports would not leave this node.
const CLUSTER_TICK: Duration = Duration::from_millis(100);
/// Ticks between two draws (`FleetRule::drawn_every`), which are not published, and between two
/// reports of the neurons of the day.
const DRAW_TICKS: u64 = 5;
/// Ticks between two reports of a node that has no request and the same load as before.
const IDLE_TICKS: u64 = 5;
/// Ticks between two sweeps, and between two contacts of a seed while other nodes are known.
const SWEEP_TICKS: u64 = 10;
/// Sums that wait for their node's certificate: as many as sixteen nodes report. A certificate is shown within a
/// second or two.
const UNPROVEN_MAX: usize = 16 * ACCOUNTS_MAX;
/// Between two log lines about reports on accounts.
const LOG_INTERVAL: Millis = Millis::from_secs(60);

/// Bound sockets of a node that has not joined yet.
pub struct ClusterSockets {
    bound: GossipSocket,
    cluster: Cluster,
    /// The listener for other nodes.
    peers: SocketAddr,
}

/// Binds the configured sockets; none where no cluster is configured. An inherited socket is read once the node joins.
///
/// # Errors
/// A sentence for the operator.
pub async fn bind(
    config: &Config,
    inherited: Option<OwnedFd>,
) -> Result<Option<ClusterSockets>, String> {
    let (Some(cluster), Some(peers)) = (&config.cluster, &config.listen.peers) else {
        return Ok(None);
    };
    Ok(Some(ClusterSockets {
        bound: match inherited {
            Some(socket) => GossipSocket::inherited(socket)?,
            None => peer::bind(cluster.gossip).await?,
        },
        cluster: cluster.clone(),
        peers: peers.address,
    }))
}

impl AsFd for ClusterSockets {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bound.as_fd()
    }
}

impl ClusterSockets {
    /// Address of the gossip in the configuration.
    pub fn gossip(&self) -> SocketAddr {
        self.cluster.gossip
    }

    /// Joins the gossip without publishing anything yet; in the place of `former`, which has left it.
    ///
    /// # Errors
    /// A sentence for the operator.
    pub async fn start(
        self,
        shared: &Arc<Shared>,
        former: Option<FormerNode>,
    ) -> Result<Membership, String> {
        shared.cluster.join();
        let here = shared.cluster.here().clone();
        let identity = match &former {
            Some(former) => GossipIdentity {
                here,
                incarnation: started_ms(shared.clock).max(former.incarnation + 1),
            },
            None => here.into(),
        };
        let version = former.as_ref().map_or(0, |former| former.version);
        let passed = former.map(|former| former.passed.into_iter().collect());
        let address = reachable_address(self.peers, self.cluster.advertised());
        Ok(Membership {
            gossip: Gossip::start(self.bound, &self.cluster, identity.clone(), shared.clock)
                .await?,
            identity,
            shared: Arc::clone(shared),
            address: address.to_string().into(),
            cluster: self.cluster,
            version: Arc::new(AtomicU64::new(version)),
            passed_before: Arc::new(passed.unwrap_or_default()),
            published_usage: u64::MAX,
            published_generation: None,
            logged_drift: HashMap::new(),
            was_draining: false,
            draining: HashSet::new(),
            has_namesake: false,
            has_unpublished: false,
            unproven: HashMap::new(),
            remote_rates: RemoteRequestCounts::default(),
            left_out: 0,
            last_logged: None,
        })
    }
}

/// Membership of this node: the gossip and the state around it.
pub struct Membership {
    gossip: Gossip,
    identity: GossipIdentity,
    shared: Arc<Shared>,
    /// Address at which other nodes send requests.
    address: Arc<str>,
    cluster: Cluster,
    /// Version of the last report.
    version: Arc<AtomicU64>,
    /// Requests of accounts that had passed in former processes.
    passed_before: Arc<HashMap<AccountId, u64>>,
    published_usage: u64,
    /// Generation of the configuration that was published.
    published_generation: Option<u64>,
    /// Differences of other nodes as last logged.
    logged_drift: HashMap<Arc<str>, ConfigDrift>,
    was_draining: bool,
    /// Nodes that have reported that they drain.
    draining: HashSet<Arc<str>>,
    /// A process of the same name was logged.
    has_namesake: bool,
    /// More accounts than are published were logged.
    has_unpublished: bool,
    /// Usage reported by nodes that have not shown a certificate yet; at most [`UNPROVEN_MAX`]
    /// entries.
    unproven: HashMap<(NodeId, AccountId), AccountUsage>,
    remote_rates: RemoteRequestCounts,
    /// Sums left out as last logged, and the time of that.
    left_out: u64,
    last_logged: Option<Millis>,
}

impl Membership {
    /// Returns the hold on this membership, with what ends it.
    pub fn handover(&self) -> (MembershipHandover, watch::Receiver<bool>) {
        let (stop, stopped) = watch::channel(false);
        let handover = MembershipHandover {
            identity: self.identity.clone(),
            version: Arc::clone(&self.version),
            passed_before: Arc::clone(&self.passed_before),
            stop,
        };
        (handover, stopped)
    }

    /// As configured.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Publishes and polls for the life of the process, or until it is `stopped`.
    pub async fn run(mut self, seeds: watch::Receiver<Seeds>, mut stopped: watch::Receiver<bool>) {
        let mut ticks = interval(CLUSTER_TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let over = self.gossip.terminated();
        tokio::pin!(over);
        for tick in 0.. {
            tokio::select! {
                _ = ticks.tick() => {}
                why = &mut over => {
                    tracing::error!(why, "gossip has ended: this node is alone until it is restarted");
                    return;
                }
                _ = stopped.wait_for(|stopped| *stopped) => {
                    // Before the receiver, whose end says that this has ended.
                    drop(self);
                    return;
                }
            }
            self.publish(tick).await;
            let update = self.gossip.poll().await;
            self.apply(update);
            if tick.is_multiple_of(DRAW_TICKS) {
                self.shared.cluster.notify_all();
            }
            if tick.is_multiple_of(SWEEP_TICKS) {
                self.sweep();
            }
            if tick.is_multiple_of(SWEEP_TICKS) || self.gossip.is_alone() {
                let seeds = seeds.borrow().clone();
                self.contact_seeds(&seeds, tick);
            }
        }
    }

    async fn publish(&mut self, tick: u64) {
        let report = self.report();
        let is_idle = self.shared.drain.in_flight() == 0 && report.draining == self.was_draining;
        let has_news = !is_idle || !self.gossip.has_published(&report);
        // An idle node is trusted as fully with a report twice a second.
        if has_news || tick.is_multiple_of(IDLE_TICKS) {
            self.gossip.publish(&report).await;
        }
        if report.draining && !self.was_draining {
            // No node should forward a request here that would have to be forwarded again.
            self.gossip.flush().await;
        }
        self.was_draining = report.draining;
        let snapshot = self.shared.snapshot.load_full();
        if self.published_generation != Some(snapshot.generation) {
            let digests = snapshot.digests();
            self.shared.cluster.drifts.set_here(digests);
            self.gossip.publish_config(digests).await;
            self.published_generation = Some(snapshot.generation);
        }
        if tick.is_multiple_of(DRAW_TICKS) {
            let passed = with_former(snapshot.requests_passed(), &self.passed_before);
            self.gossip.publish_passed(passed).await;
        }
        if tick.is_multiple_of(DRAW_TICKS)
            && let Some((version, usage)) = self.shared.quota.changes_since(self.published_usage)
        {
            let unpublished = self.gossip.publish_usage(&usage).await;
            if unpublished > 0 && !self.has_unpublished {
                let most = ACCOUNTS_MAX;
                tracing::warn!(
                    unpublished,
                    most,
                    "what these accounts use here counts here only"
                );
            }
            (self.published_usage, self.has_unpublished) = (version, unpublished > 0);
        }
    }

    /// Builds the load report of this node.
    fn report(&mut self) -> NodeReport {
        let shared = &*self.shared;
        let snapshot = shared.snapshot.load();
        let mut waiters: HashMap<ModelId, u32> = shared.cluster.take_demand().into_iter().collect();
        let mut models = Vec::with_capacity(snapshot.models.iter().count());
        for model in snapshot.models.iter() {
            let unmet = waiters.remove(&model.spec.id).unwrap_or(0);
            // A model with waiters only is published while it has them.
            if !model.spec.endpoints.is_empty() || unmet > 0 {
                let load = ModelLoad {
                    unmet_demand: unmet,
                    ..model.gate.model_load()
                };
                models.push((model.spec.id.clone(), load));
            }
        }
        let version = self.version.fetch_add(1, Ordering::Relaxed) + 1;
        NodeReport {
            node: shared.cluster.here().clone(),
            site: Arc::clone(shared.cluster.site()),
            address: Arc::clone(&self.address),
            draining: shared.cluster.is_leaving() || shared.drain.is_draining(),
            models,
            version,
            made: shared.clock.now(),
        }
    }

    fn apply(&mut self, update: GossipUpdate) {
        self.update_members();
        // Before reports: a node may be lost and return as another generation at once.
        for name in update.lost {
            let site = self.site_of(&name);
            if self.shared.cluster.record_loss(&name) {
                tracing::warn!(node = &*name, site = &*site, "node lost");
                self.shared.metrics.record_node_change(NodeChange::Lost);
            }
        }
        for report in update.reports {
            let report = self.shared.cluster.corrected(report);
            let Some(change) = self.shared.cluster.record_report(&report) else {
                continue;
            };
            let name = &report.node.name;
            // The cluster may know it already: a draining node announces it directly as well.
            let drains_now = report.draining && self.draining.insert(Arc::clone(name));
            if !report.draining {
                self.draining.remove(name);
            }
            let event = match change {
                MembershipChange::Appeared(_) => Some(NodeChange::Appeared),
                MembershipChange::Restarted(_) => Some(NodeChange::Restarted),
                MembershipChange::Returned(_) => Some(NodeChange::Returned),
                MembershipChange::Draining(_) | MembershipChange::Changed(_) => None,
            };
            let drained = drains_now.then_some(NodeChange::Draining);
            for event in event.into_iter().chain(drained) {
                self.log_change(event, &report.node, &report.site);
            }
        }
        self.apply_incompatible(update.incompatible);
        self.apply_usage(update.usage);
        self.apply_rates(update.passed);
        for (node, digests) in &update.configs {
            self.shared.cluster.drifts.record(node, *digests);
        }
        let shared = &*self.shared;
        if let Some(at) = update.namesake.filter(|_| !self.has_namesake) {
            let name = &*shared.cluster.here().name;
            tracing::error!(name, %at, "another node has the same node.id: each needs its own");
        }
        self.has_namesake = update.namesake.is_some();
    }

    /// Records live nodes of other versions of the protocol, and logs each once. A process that was a member
    /// under the same name is lost.
    fn apply_incompatible(&self, found: Vec<IncompatibleNode>) {
        let cluster = &self.shared.cluster;
        for IncompatibleNode { node, protocol } in cluster.incompatible.replace(found) {
            if cluster.record_loss(&node.name) {
                self.shared.metrics.record_node_change(NodeChange::Lost);
            }
            tracing::warn!(
                node = &*node.name,
                protocol,
                here = PROTOCOL_VERSION,
                "node speaks another version of the protocol between nodes: no request is forwarded to it and its reports are not read; run the same version of infergate on all nodes"
            );
        }
    }

    /// Applies sums of the day once their node has shown its certificate over TLS: the secret of the
    /// gossip alone is not enough to lock accounts out. Until then the latest of them wait.
    fn apply_usage(&mut self, sums: Vec<(NodeId, AccountId, AccountUsage)>) {
        if sums.is_empty() && self.unproven.is_empty() {
            return;
        }
        let shared = &*self.shared;
        for (node, account, sum) in sums {
            let is_known = self.unproven.contains_key(&(node.clone(), account.clone()));
            if is_known || self.unproven.len() < UNPROVEN_MAX {
                self.unproven.insert((node, account), sum);
            }
        }
        let mut proven: HashMap<NodeId, bool> = HashMap::new();
        let mut taken = Vec::new();
        self.unproven.retain(|(node, account), sum| {
            let others = &shared.cluster;
            let is_proven = *proven
                .entry(node.clone())
                .or_insert_with(|| others.is_proven(node));
            if is_proven {
                taken.push((node.clone(), account.clone(), *sum));
            }
            // Sums of a node that has left are dropped.
            !is_proven && others.is_member(&node.name, node.generation)
        });
        let usage = taken.iter();
        let reported = usage.map(|(node, account, sum)| (node, account, sum.day, sum.micro));
        shared
            .quota
            .record_peer_usage(reported, &shared.snapshot.load());
    }

    /// Runs before the reports: a node's first report is the base that counting starts from.
    fn update_members(&mut self) {
        let others = &self.shared.cluster;
        if others.is_alone() {
            return;
        }
        let living = others.nodes().into_iter().filter(|view| !view.gone);
        let living = living.map(|view| {
            let is_proven = others.is_proven(&view.node);
            (view.node, is_proven)
        });
        self.remote_rates.set_members(living);
    }

    /// Counts requests admitted at other nodes against the limits per minute of this one.
    fn apply_rates(&mut self, reports: Vec<(NodeId, AccountId, u64)>) {
        if reports.is_empty() {
            return;
        }
        let shared = &*self.shared;
        let more = self.remote_rates.update(reports);
        let (snapshot, now) = (shared.snapshot.load(), shared.clock.now());
        for (account, count) in more {
            snapshot.count_remote_requests(&account, count, now);
        }
    }

    fn log_change(&self, event: NodeChange, id: &NodeId, site: &str) {
        let NodeId { name, generation } = id;
        tracing::info!(node = &**name, generation, site, "node {}", event.name());
        self.shared.metrics.record_node_change(event);
    }

    /// Logs nodes whose configuration has come to differ from this one's, and those that agree again.
    fn log_drift(&mut self) {
        let shared = &*self.shared;
        let nodes = shared.cluster.nodes();
        self.logged_drift
            .retain(|name, _| nodes.iter().any(|view| view.node.name == *name));
        let is_one_of_us = |id: &NodeId| shared.cluster.is_proven(id);
        for view in nodes
            .iter()
            .filter(|view| !view.gone && is_one_of_us(&view.node))
        {
            let (name, drift) = (&view.node.name, shared.cluster.drifts.drift_of(&view.node));
            let before = self.logged_drift.insert(Arc::clone(name), drift);
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
        self.log_drift();
        for id in self.shared.cluster.sweep() {
            self.draining.remove(&id.name);
            tracing::info!(
                node = &*id.name,
                generation = id.generation,
                "node forgotten"
            );
            self.shared
                .metrics
                .record_node_change(NodeChange::Forgotten);
        }
        let left_out = self.shared.quota.omitted();
        let refused = GossipRefused {
            sums: left_out,
            ..self.gossip.refused()
        };
        self.shared.metrics.set_gossip_refused(refused);
        let now = self.shared.clock.now();
        if left_out > self.left_out && self.may_log(now) {
            tracing::warn!(
                left_out,
                "sums of accounts were left out, as unknown here, of another day or beyond ten times the limit: have all nodes the same accounts and the same day?"
            );
            (self.left_out, self.last_logged) = (left_out, Some(now));
        }
    }

    fn may_log(&self, now: Millis) -> bool {
        self.last_logged
            .is_none_or(|last| now.since(last) >= LOG_INTERVAL)
    }

    /// Contacts one seed at a time, in turn: the cluster may have fallen apart, or not have formed
    /// yet.
    fn contact_seeds(&self, seeds: &[SocketAddr], tick: u64) {
        let others = seeds
            .iter()
            .filter(|&&seed| seed != self.cluster.advertised());
        let others: Vec<SocketAddr> = others.copied().collect();
        let round = match self.gossip.is_alone() {
            true => tick,
            false => tick / SWEEP_TICKS,
        };
        if !others.is_empty() {
            let at = round as usize % others.len();
            self.gossip.contact_seeds([others[at]]);
        }
    }

    fn site_of(&self, name: &str) -> Arc<str> {
        let nodes = self.shared.cluster.nodes();
        let known = nodes.into_iter().find(|view| *view.node.name == *name);
        known.map_or_else(|| "".into(), |view| view.site)
    }
}

/// Address at which other nodes reach a listener: the advertised one when it listens on all
/// addresses.
fn reachable_address(listener: SocketAddr, advertised: SocketAddr) -> SocketAddr {
    match listener.ip().is_unspecified() {
        true => SocketAddr::new(advertised.ip(), listener.port()),
        false => listener,
    }
}

/// Number of other nodes that live, drain and are lost.
pub fn levels(shared: &Shared) -> NodeLevels {
    let mut levels = NodeLevels::default();
    for view in shared.cluster.nodes() {
        let drift = shared.cluster.drifts.drift_of(&view.node);
        if !view.gone && shared.cluster.is_proven(&view.node) {
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
    levels.incompatible = shared.cluster.incompatible.list().len() as u64;
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
            reachable_address(at("0.0.0.0:7070"), advertised),
            at("10.0.0.1:7070")
        );
        assert_eq!(
            reachable_address(at("10.0.0.2:7070"), advertised),
            at("10.0.0.2:7070")
        );
        assert_eq!(
            reachable_address(at("[::]:7070"), advertised),
            at("10.0.0.1:7070")
        );
    }
}
