//! Shared handle of the cluster's state: where a request goes, what was forwarded, and which
//! requests wait for capacity elsewhere.
//!
//! Connections are not opened here. The lock is held for the length of one decision and never
//! across an await; a node that knows no other takes none. A forwarded request is a guard, so that
//! a request dropped anywhere is not counted as still there.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use hashbrown::HashMap;
use infergate_core::routing::cluster::{
    ClusterRule, ForwardOutcome, ForwardTarget, ForwardTicket, Liveness, MembershipChange, NodeId,
    NodeQuery, NodeReport, NodeView, SILENCE_MAX,
};
use infergate_core::routing::{Candidate, ClusterView};
use infergate_core::{Millis, ModelId};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::sleep;

use super::drift::DriftTable;
use super::progress::ForwardProgress;
use super::protocol::IncompatibleNodes;
use crate::telemetry::Clock;

/// Interval between checks of a node that may be lost.
const LIVENESS_EVERY: Duration = Duration::from_millis(250);

/// The other nodes.
pub struct ClusterHandle {
    clock: Clock,
    here: NodeId,
    site: Arc<str>,
    /// Guards the view of the others. Held by: requests that look for a node, forwards that end,
    /// gossip that arrives, the ranker, `/state`.
    view: Mutex<ClusterView>,
    /// Nodes known: where there is none nothing else is looked at.
    known: AtomicUsize,
    /// True once this node has joined a cluster.
    joined: AtomicBool,
    /// True once this node leaves, and the others are being notified.
    leaving: AtomicBool,
    /// Nodes that announced draining, with the generation that did: a draining node does not
    /// return, whatever it published before. Guards the list; held for a look-up.
    draining_nodes: Mutex<HashMap<Arc<str>, u64>>,
    /// Guards the list; held for a look-up.
    notifiers: Mutex<HashMap<ModelId, Arc<CapacityNotifier>>>,
    /// Drift of the other nodes' configurations.
    pub drifts: DriftTable,
    /// Live nodes of other versions of the protocol: no members.
    pub incompatible: IncompatibleNodes,
    /// Notified when a node has appeared that has not shown its certificate.
    appeared: Notify,
    /// Number of losses of nodes; each forward in flight then checks whether its own node is lost.
    losses: watch::Sender<u64>,
}

/// Requests of one model that wait for capacity elsewhere.
#[derive(Default)]
struct CapacityNotifier {
    /// Notified for the waiter that came first, which passes the notification on.
    signal: Notify,
    /// Number of the last notification, so that it is passed on once only.
    sequence: AtomicU64,
    /// Number of requests that watch.
    watchers: AtomicU32,
    /// Requests of own clients that wait.
    waiting: AtomicU32,
    /// Requests refused since the last report.
    refused: AtomicU32,
}

impl ClusterHandle {
    /// Creates the handle of a node that knows no other.
    pub fn new(here: NodeId, site: Arc<str>, clock: Clock) -> Arc<ClusterHandle> {
        let rule = ClusterRule {
            proven_only: true,
            ..ClusterRule::default()
        };
        let view = ClusterView::new(here.clone(), Arc::clone(&site), rule);
        Arc::new(ClusterHandle {
            clock,
            here,
            site,
            view: Mutex::new(view),
            known: AtomicUsize::new(0),
            joined: AtomicBool::new(false),
            leaving: AtomicBool::new(false),
            draining_nodes: Mutex::default(),
            notifiers: Mutex::default(),
            drifts: DriftTable::default(),
            incompatible: IncompatibleNodes::default(),
            appeared: Notify::new(),
            losses: watch::Sender::new(0),
        })
    }

    /// Id of this node.
    pub fn here(&self) -> &NodeId {
        &self.here
    }

    /// Site of this node.
    pub fn site(&self) -> &Arc<str> {
        &self.site
    }

    /// Marks this node as leaving: from now on every report says so, so that it is not taken for
    /// one that returned.
    pub fn begin_leaving(&self) {
        self.leaving.store(true, Ordering::Relaxed);
    }

    /// Returns whether this node is leaving.
    pub fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::Relaxed)
    }

    /// Marks this node as one of a cluster, also while no other node is there.
    pub fn join(&self) {
        self.joined.store(true, Ordering::Relaxed);
    }

    /// Returns whether this node is one of a cluster.
    pub fn has_joined(&self) -> bool {
        self.joined.load(Ordering::Relaxed)
    }

    /// Returns whether no other node is known.
    pub fn is_alone(&self) -> bool {
        self.known.load(Ordering::Relaxed) == 0
    }

    /// The node to forward to now, if there is one. Capacity is not reserved there.
    pub fn next_target(&self, query: &NodeQuery<'_>) -> Option<ForwardTarget> {
        if self.is_alone() {
            return None;
        }
        let now = self.clock.now();
        self.view.lock().next_target(query, fastrand::u64(..), now)
    }

    /// Returns whether a node may serve what is asked for, with room or without.
    pub fn serves(&self, query: &NodeQuery<'_>) -> bool {
        self.view.lock().serves(query, self.clock.now())
    }

    /// Returns whether waiting here is better although `there` has a free permit.
    pub fn worth_waiting_here(&self, expected_wait: Millis, there: &ForwardTarget) -> bool {
        self.view.lock().is_wait_here_shorter(expected_wait, there)
    }

    /// Records that a request is forwarded to the target of [`ClusterHandle::next_target`].
    pub fn begin_forward(self: &Arc<ClusterHandle>, chosen: &ForwardTarget) -> ForwardGuard {
        let ticket = self.view.lock().record_forward(chosen, self.clock.now());
        ForwardGuard {
            cluster: Arc::clone(self),
            ticket,
            ended: ForwardOutcome::Cancelled,
        }
    }

    /// Records a report of another node.
    pub fn record_report(&self, report: &NodeReport) -> Option<MembershipChange> {
        let change = self.changed(|view, now| view.apply_report(report, now));
        if let Some(MembershipChange::Appeared(_) | MembershipChange::Restarted(_)) = change {
            self.appeared.notify_one();
        }
        self.notify();
        change
    }

    /// Waits until a node has appeared that has not shown its certificate.
    pub async fn appeared(&self) {
        self.appeared.notified().await;
    }

    /// Records that the failure detector has declared a node lost. False when that was known.
    pub fn record_loss(&self, name: &str) -> bool {
        let is_new = self.changed(|view, _| view.mark_lost(name));
        if is_new {
            self.losses.send_modify(|losses| *losses += 1);
        }
        is_new
    }

    /// Watches a node that works on a request of this node.
    pub fn watch(self: &Arc<ClusterHandle>, node: &NodeId) -> NodeWatch {
        NodeWatch {
            losses: self.losses.subscribe(),
            cluster: Arc::clone(self),
            node: node.clone(),
            // It may have been lost a moment ago.
            alarmed: true,
        }
    }

    /// Returns when a request without a granted permit is lost at a node.
    pub async fn lost_while_queued(&self, node: &NodeId, progress: &ForwardProgress) {
        let silence_max = Duration::from_millis(SILENCE_MAX.0);
        let mut pause = silence_max;
        loop {
            sleep(pause).await;
            let silent = progress.silence();
            let liveness = self.liveness(node);
            if liveness.is_queued_forward_lost(silent, progress.is_connected()) {
                return;
            }
            // A sign came meanwhile, or the rest of the evidence is still to come.
            let rest = silence_max.saturating_sub(Duration::from_millis(silent.0));
            pause = rest.max(LIVENESS_EVERY);
        }
    }

    /// Returns whether a node of this name and generation is a member, as far as gossip has shown.
    pub fn is_member(&self, name: &str, generation: u64) -> bool {
        let node = NodeId {
            name: name.into(),
            generation,
        };
        !self.liveness(&node).is_lost
    }

    /// Returns whether a node's peers listener has answered, which proves its certificate.
    pub fn is_proven(&self, node: &NodeId) -> bool {
        self.liveness(node).since_response < Millis::MAX
    }

    /// Forgets a node until gossip reports it again. False when nothing was.
    pub fn forget(&self, name: &str) -> bool {
        let is_known = self.changed(|view, _| view.forget(name));
        self.draining_nodes.lock().remove(name);
        if is_known {
            self.losses.send_modify(|losses| *losses += 1);
        }
        is_known
    }

    fn liveness(&self, node: &NodeId) -> Liveness {
        let now = self.clock.now();
        self.view.lock().liveness(node, now)
    }

    /// Records that a node has announced draining. False when it is not known, or that was.
    pub fn record_draining(&self, name: &str, generation: u64) -> bool {
        let is_new = self.changed(|view, _| view.mark_draining(name, generation));
        if is_new {
            self.draining_nodes.lock().insert(name.into(), generation);
        }
        is_new
    }

    /// Corrects a report that was made before its node announced draining and arrived later.
    pub fn corrected(&self, mut report: NodeReport) -> NodeReport {
        let goers = self.draining_nodes.lock();
        report.draining |= goers.get(&report.node.name) == Some(&report.node.generation);
        report
    }

    /// Records the round trip of a ping that a node's peers listener has answered.
    pub fn record_ping(&self, name: &str, rtt_us: u32) {
        let now = self.clock.now();
        let mut view = self.view.lock();
        view.record_rtt(name, rtt_us);
        let is_first = view.record_ping_response(name, now);
        drop(view);
        if is_first {
            // Who waits may go there from now on.
            self.notify_all();
        }
    }

    /// Forgets nodes that were silent for long. To be called about once a second.
    pub fn sweep(&self) -> Vec<NodeId> {
        let swept = self.changed(ClusterView::sweep);
        let mut goers = self.draining_nodes.lock();
        for id in &swept {
            goers.remove(&id.name);
            self.drifts.forget(&id.name);
        }
        swept
    }

    /// Every other node, by name.
    pub fn nodes(&self) -> Vec<NodeView> {
        self.view.lock().nodes(self.clock.now())
    }

    /// The other sites, by name.
    pub fn sites(&self) -> Vec<Arc<str>> {
        let mut sites: Vec<Arc<str>> = self.nodes().into_iter().map(|node| node.site).collect();
        sites.retain(|site| *site != self.site);
        sites.sort_unstable();
        sites.dedup();
        sites
    }

    /// The sites that serve a model beside this node, as a policy ranks them.
    pub fn site_candidates(&self, model: &ModelId) -> Vec<(Arc<str>, Candidate)> {
        if self.is_alone() {
            return Vec::new();
        }
        let now = self.clock.now();
        self.view.lock().site_candidates(model.as_str(), now)
    }

    /// Nodes that have reported a model, with the reason why one is skipped. The first `most` of
    /// them, and how many more there are.
    pub fn explain(&self, query: &NodeQuery<'_>, most: usize) -> (Vec<NodeView>, usize) {
        self.view.lock().explain(query, most, self.clock.now())
    }

    /// Registers a waiting request that looks for a permit elsewhere, until the guard is dropped. A
    /// request of an own client counts as unmet demand of this node.
    pub fn watch_capacity(&self, model: &ModelId, of_own_client: bool) -> CapacityWatch {
        let wakeup = self.notifier(model);
        wakeup.watchers.fetch_add(1, Ordering::Relaxed);
        let waiting = u32::from(of_own_client);
        wakeup.waiting.fetch_add(waiting, Ordering::Relaxed);
        let passed = AtomicU64::new(wakeup.sequence.load(Ordering::Relaxed));
        CapacityWatch {
            notifier: wakeup,
            waiting,
            passed,
        }
    }

    /// Counts a request of an own client that was refused for want of room, here and elsewhere.
    pub fn record_refusal(&self, model: &ModelId) {
        if !self.is_alone() {
            self.notifier(model).refused.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Unmet demand by model: requests of own clients that wait, and those refused since the last
    /// call.
    pub fn take_demand(&self) -> Vec<(ModelId, u32)> {
        let bells = self.notifiers.lock();
        let wanting = |(model, wakeup): (&ModelId, &Arc<CapacityNotifier>)| {
            let refused = wakeup.refused.swap(0, Ordering::Relaxed);
            let waiting = wakeup.waiting.load(Ordering::Relaxed);
            (model.clone(), waiting.saturating_add(refused))
        };
        bells.iter().map(wanting).collect()
    }

    /// Notifies every waiter to look again, after the shares of scarce permits have changed.
    pub fn notify_all(&self) {
        for wakeup in self.notifiers.lock().values() {
            wakeup.notify();
        }
    }

    /// Notifies waiters for which there may be capacity now.
    fn notify(&self) {
        let wakes = self.view.lock().take_wakes();
        let bells = self.notifiers.lock();
        for wakeup in wakes.iter().filter_map(|model| bells.get(model)) {
            wakeup.notify();
        }
    }

    fn notifier(&self, model: &ModelId) -> Arc<CapacityNotifier> {
        let mut bells = self.notifiers.lock();
        Arc::clone(bells.entry(model.clone()).or_default())
    }

    fn changed<T>(&self, change: impl FnOnce(&mut ClusterView, Millis) -> T) -> T {
        let now = self.clock.now();
        let mut view = self.view.lock();
        let changed = change(&mut view, now);
        self.known.store(view.len(), Ordering::Relaxed);
        changed
    }
}

impl CapacityNotifier {
    fn notify(&self) {
        // A notification without a watcher would wake the next one that comes for nothing.
        if self.watchers.load(Ordering::Relaxed) > 0 {
            self.sequence.fetch_add(1, Ordering::Relaxed);
            self.signal.notify_one();
        }
    }
}

/// Waiting request that looks for a permit elsewhere.
pub struct CapacityWatch {
    notifier: Arc<CapacityNotifier>,
    /// Its share of `waiting`: 1 for an own client's request.
    waiting: u32,
    /// Number of the last notification that it has passed on.
    passed: AtomicU64,
}

impl CapacityWatch {
    /// Returns when the request should look again. Waiters that came first are notified first.
    pub async fn changed(&self) {
        self.notifier.signal.notified().await;
    }

    /// Passes the notification on to those behind it: it leaves, or its turn here is near. Each
    /// notification is passed on once, or two that stay would notify each other without end.
    pub fn pass_on(&self) {
        let order = Ordering::Relaxed;
        let number = self.notifier.sequence.load(order);
        let is_new = self.passed.swap(number, order) != number;
        if is_new && self.notifier.watchers.load(order) > 1 {
            self.notifier.signal.notify_one();
        }
    }
}

impl Drop for CapacityWatch {
    fn drop(&mut self) {
        self.notifier
            .waiting
            .fetch_sub(self.waiting, Ordering::Relaxed);
        self.notifier.watchers.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Watches the node that works on a request of this node.
pub struct NodeWatch {
    cluster: Arc<ClusterHandle>,
    node: NodeId,
    losses: watch::Receiver<u64>,
    /// A node was lost since the last look.
    alarmed: bool,
}

impl NodeWatch {
    /// Returns when the request is lost there, counting silence from the call on. Dropping the future
    /// loses nothing.
    pub async fn lost(&mut self) {
        let began = self.cluster.clock.now();
        loop {
            if !self.alarmed {
                // The sender lives as long as the others do.
                let _ = self.losses.changed().await;
                self.alarmed = true;
            }
            let liveness = self.cluster.liveness(&self.node);
            self.alarmed = liveness.is_lost;
            if liveness.is_granted_forward_lost(self.cluster.clock.now().since(began)) {
                return;
            }
            if liveness.is_lost {
                sleep(LIVENESS_EVERY).await;
            }
        }
    }
}

/// Request forwarded to another node. Dropping it without an outcome means that it was cut off
/// here.
pub struct ForwardGuard {
    cluster: Arc<ClusterHandle>,
    ticket: ForwardTicket,
    ended: ForwardOutcome,
}

impl ForwardGuard {
    /// Records that the node has begun to respond, so that all is well there.
    pub fn record_response(&self) {
        self.cluster.view.lock().record_response_start(self.ticket);
    }

    /// Sets how the request ended there.
    pub fn finish(mut self, ended: ForwardOutcome) {
        self.ended = ended;
    }
}

impl Drop for ForwardGuard {
    fn drop(&mut self) {
        let now = self.cluster.clock.now();
        let mut view = self.cluster.view.lock();
        view.finish_forward(self.ticket, self.ended, now);
        drop(view);
        self.cluster.notify();
    }
}

#[cfg(test)]
mod tests {
    use infergate_core::routing::cluster::{ModelLoad, Need};

    use super::*;

    fn others() -> Arc<ClusterHandle> {
        let here = NodeId {
            name: "a".into(),
            generation: 1,
        };
        ClusterHandle::new(here, "fra".into(), Clock::start())
    }

    fn report(version: u64, free: u32) -> NodeReport {
        let load = ModelLoad {
            permits: 4,
            free,
            ..ModelLoad::default()
        };
        NodeReport {
            node: NodeId {
                name: "b".into(),
                generation: 1,
            },
            site: "fra".into(),
            address: "127.0.0.1:1".into(),
            draining: false,
            models: vec![("m".into(), load)],
            version,
            made: Millis(version),
        }
    }

    /// A report of a node that has shown its certificate.
    fn record_proven(others: &ClusterHandle, report: &NodeReport) {
        others.record_report(report);
        others.record_ping("b", 100);
    }

    fn query() -> NodeQuery<'static> {
        NodeQuery {
            model: "m",
            visited: &[],
            forced_site: None,
            site_order: None,
            need: Need::Permit,
        }
    }

    #[test]
    fn a_forward_that_is_dropped_is_not_there_any_more() {
        let others = others();
        assert!(others.next_target(&query()).is_none());
        record_proven(&others, &report(1, 1));
        let chosen = others.next_target(&query()).unwrap();
        let sent = others.begin_forward(&chosen);
        assert_eq!(others.explain(&query(), 1).0[0].in_flight, 1);
        drop(sent);
        assert_eq!(others.explain(&query(), 1).0[0].in_flight, 0);
    }

    #[test]
    fn a_report_from_before_a_node_said_that_it_drains_does_not_bring_it_back() {
        let others = others();
        record_proven(&others, &report(1, 1));
        assert!(others.record_draining("b", 1));
        others.record_report(&others.corrected(report(2, 1)));
        assert!(others.next_target(&query()).is_none() && others.nodes()[0].draining);
        let mut restarted = report(1, 1);
        restarted.node.generation = 2;
        record_proven(&others, &others.corrected(restarted));
        assert!(others.next_target(&query()).is_some());
    }

    #[tokio::test]
    async fn one_that_waits_alone_does_not_ring_for_itself() {
        let others = others();
        record_proven(&others, &report(1, 0));
        assert!(others.next_target(&query()).is_none());
        let alone = others.watch_capacity(&"m".into(), true);
        others.record_report(&report(2, 1));
        assert!(futures_util::poll!(Box::pin(alone.changed())).is_ready());
        alone.pass_on();
        assert!(futures_util::poll!(Box::pin(alone.changed())).is_pending());
    }

    #[tokio::test]
    async fn who_came_first_is_told_first_and_passes_it_on() {
        let others = others();
        record_proven(&others, &report(1, 0));
        assert!(others.next_target(&query()).is_none());
        let (first, second) = (
            others.watch_capacity(&"m".into(), true),
            others.watch_capacity(&"m".into(), false),
        );
        let (mut first_look, mut second_look) =
            (Box::pin(first.changed()), Box::pin(second.changed()));
        assert!(futures_util::poll!(&mut first_look).is_pending());
        assert!(futures_util::poll!(&mut second_look).is_pending());
        others.record_report(&report(2, 1));
        assert!(futures_util::poll!(&mut second_look).is_pending());
        assert!(futures_util::poll!(&mut first_look).is_ready());
        first.pass_on();
        assert!(futures_util::poll!(&mut second_look).is_ready());
        assert_eq!(others.take_demand(), [("m".into(), 1)]);
        // Both stay: neither notifies again for the same change.
        second.pass_on();
        drop(first_look);
        let mut first_look = Box::pin(first.changed());
        assert!(futures_util::poll!(&mut first_look).is_ready());
        first.pass_on();
        drop(second_look);
        let mut second_look = Box::pin(second.changed());
        assert!(futures_util::poll!(&mut second_look).is_pending());
        drop((first_look, second_look));
        drop((first, second));
        others.record_refusal(&"m".into());
        assert_eq!(others.take_demand(), [("m".into(), 1)]);
        assert_eq!(others.take_demand(), [("m".into(), 0)]);
    }
}
