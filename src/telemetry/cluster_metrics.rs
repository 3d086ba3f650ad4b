//! Metrics of the other nodes of the cluster: membership, configuration differences and failed
//! forwards.
//!
//! No label can be multiplied by another node: sites beyond [`SITES_MAX`] share one.

use std::sync::Arc;

use parking_lot::Mutex;
use prometheus::{IntCounterVec, IntGaugeVec, Opts, Registry};

use super::metrics::{ForwardResult, NodeLevels, register};

/// Sites with a label of their own; nodes name theirs themselves.
const SITES_MAX: usize = 256;

/// Change of another node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeChange {
    /// First report of the node.
    Appeared,
    /// Restarted.
    Restarted,
    /// Draining.
    Draining,
    /// No more reports.
    Lost,
    /// Back after it was lost, or after it drained.
    Returned,
    /// Lost for so long that it was forgotten.
    Forgotten,
}

impl NodeChange {
    pub(super) const ALL: [NodeChange; 6] = [
        NodeChange::Appeared,
        NodeChange::Restarted,
        NodeChange::Draining,
        NodeChange::Lost,
        NodeChange::Returned,
        NodeChange::Forgotten,
    ];

    /// The word for it in metric labels and log lines.
    pub const fn name(self) -> &'static str {
        match self {
            NodeChange::Appeared => "appeared",
            NodeChange::Restarted => "restarted",
            NodeChange::Draining => "draining",
            NodeChange::Lost => "lost",
            NodeChange::Returned => "returned",
            NodeChange::Forgotten => "forgotten",
        }
    }
}

/// Metrics of the other nodes.
pub(super) struct ClusterMetrics {
    nodes: IntGaugeVec,
    drifted: IntGaugeVec,
    forward_failures: IntCounterVec,
    /// Sites with a label of their own. Guards the list; held for a look-up after a failure.
    sites: Mutex<Vec<Arc<str>>>,
    pub changes: IntCounterVec,
    pub gossip_refused: IntCounterVec,
}

impl ClusterMetrics {
    pub fn new(registry: &Registry) -> ClusterMetrics {
        let by_label = |name, help, label: &str| {
            let opts = Opts::new(name, help);
            register(registry, IntCounterVec::new(opts, &[label]))
        };
        let states = Opts::new("infergate_nodes", "other nodes known, by state");
        let drifted = Opts::new(
            "infergate_nodes_drifted",
            "other nodes that are configured otherwise than this one, by what differs",
        );
        let failures = Opts::new(
            "infergate_forward_failures_total",
            "forwards that no node has answered, by the site they went to and why",
        );
        let metrics = ClusterMetrics {
            nodes: register(registry, IntGaugeVec::new(states, &["state"])),
            drifted: register(registry, IntGaugeVec::new(drifted, &["what"])),
            forward_failures: register(registry, IntCounterVec::new(failures, &["site", "result"])),
            sites: Mutex::default(),
            changes: by_label(
                "infergate_node_events_total",
                "what became of other nodes",
                "event",
            ),
            gossip_refused: by_label(
                "infergate_gossip_refused_total",
                "gossip that was not taken or not sent, by reason",
                "reason",
            ),
        };
        for change in NodeChange::ALL {
            metrics.changes.with_label_values(&[change.name()]);
        }
        metrics
    }

    pub fn set(&self, levels: NodeLevels) {
        for (state, count) in [
            ("live", levels.live),
            ("draining", levels.draining),
            ("lost", levels.lost),
            ("incompatible", levels.incompatible),
        ] {
            self.nodes.with_label_values(&[state]).set(count as i64);
        }
        for (what, count) in [
            ("accounts", levels.other_accounts),
            ("models", levels.other_models),
            ("tariffs", levels.other_tariffs),
        ] {
            self.drifted.with_label_values(&[what]).set(count as i64);
        }
    }

    pub fn record_forward_failure(&self, site: &Arc<str>, result: ForwardResult) {
        let mut sites = self.sites.lock();
        if !sites.contains(site) && sites.len() < SITES_MAX {
            sites.push(Arc::clone(site));
        }
        let named = if sites.contains(site) { site } else { "other" };
        drop(sites);
        let labels = [named, result.name()];
        self.forward_failures.with_label_values(&labels).inc();
    }
}
