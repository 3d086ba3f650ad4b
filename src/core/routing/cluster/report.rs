//! Reports that nodes exchange about themselves.
//!
//! Values only; transport is the shell's. A report is complete: a model it does not name is not
//! there any more.

use std::sync::Arc;

use crate::{Millis, ModelId};

/// A node of the cluster. A restarted node has a new generation under the same name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NodeId {
    /// `node.id` of its configuration.
    pub name: Arc<str>,
    /// Rises with each start, for example the wall clock at start.
    pub generation: u64,
}

/// Load of one model at one node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ModelLoad {
    /// Permits of its usable endpoints; 0 where the node does not serve the model itself and only
    /// reports unmet demand.
    pub permits: u32,
    /// Free permits.
    pub free: u32,
    /// Requests that wait.
    pub queued: u32,
    /// Requests that may still join the queue.
    pub queue_room: u32,
    /// Expected wait of a request that comes now, milliseconds.
    pub wait_ms: u32,
    /// Unmet demand: waiting requests of its own clients, and those refused for lack of capacity
    /// since its last report. A node with any looks for permits elsewhere.
    pub unmet_demand: u32,
    /// Time to the first token, smoothed, microseconds; 0 when not measured.
    pub ttft_us: u32,
}

impl ModelLoad {
    /// Returns whether the node cannot serve all its own requests and looks for permits elsewhere.
    pub(super) fn has_unmet_demand(&self) -> bool {
        self.free == 0 && self.unmet_demand > 0
    }
}

/// Report of a node about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeReport {
    /// Identity of the node.
    pub node: NodeId,
    /// `node.site` of its configuration.
    pub site: Arc<str>,
    /// Its peers listener, `host:port`.
    pub address: Arc<str>,
    /// The node takes no further requests and finishes those in flight.
    pub draining: bool,
    /// Every model it serves or has waiters for.
    pub models: Vec<(ModelId, ModelLoad)>,
    /// Rises with each report of a generation.
    pub version: u64,
    /// Time of the report, by the clock of the node itself. Only differences between reports of one
    /// generation mean something elsewhere.
    pub made: Millis,
}

/// Change of membership by a report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MembershipChange {
    /// A node that was not known.
    Appeared(NodeId),
    /// A known node was started again: whatever was on its way to it is lost.
    Restarted(NodeId),
    /// Draining: the node takes no further requests.
    Draining(NodeId),
    /// Back after it was lost, or after it drained.
    Returned(NodeId),
    /// Only loads, models, site or address changed.
    Changed(NodeId),
}
