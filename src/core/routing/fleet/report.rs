//! What nodes tell each other about themselves.
//!
//! Values only; how they travel is the shell's. A report is whole: what it does not name is not
//! there any more.

use std::sync::Arc;

use crate::{Millis, ModelId};

/// A node of the fleet. One that was started again is a new one of the same name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NodeId {
    /// `node.id` of its configuration.
    pub name: Arc<str>,
    /// Rises with each start, for example the wall clock at start.
    pub generation: u64,
}

/// How busy one model is at one node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ModelLoad {
    /// Permits of its usable endpoints; 0 where the node does not serve the model itself and only
    /// tells that requests want it.
    pub permits: u32,
    /// Those that are free.
    pub free: u32,
    /// Requests that wait.
    pub queued: u32,
    /// Requests that may still join the line.
    pub queue_room: u32,
    /// Expected wait of a request that comes now, milliseconds.
    pub wait_ms: u32,
    /// Requests of its own clients that wait, and those it has refused for want of room since its
    /// last report: who has any looks for permits elsewhere.
    pub wanting: u32,
    /// Time to the first token, smoothed, microseconds; 0 when not measured.
    pub ttft_us: u32,
}

impl ModelLoad {
    /// It cannot serve all its own requests and looks for permits elsewhere.
    pub(super) fn is_hungry(&self) -> bool {
        self.free == 0 && self.wanting > 0
    }
}

/// Everything a node tells about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeReport {
    /// Who.
    pub node: NodeId,
    /// `node.site` of its configuration.
    pub site: Arc<str>,
    /// Its peers listener, `host:port`.
    pub address: Arc<str>,
    /// It takes no further requests and finishes those it has.
    pub draining: bool,
    /// Every model it serves or has waiters for.
    pub models: Vec<(ModelId, ModelLoad)>,
    /// Rises with each report of a generation.
    pub version: u64,
    /// When it was made, by the clock of the node itself. Only differences between reports of one
    /// generation mean something elsewhere.
    pub made: Millis,
}

/// What a report changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A node that was not known.
    Appeared(NodeId),
    /// A known node was started again: whatever was on its way to it is lost.
    Restarted(NodeId),
    /// It takes no further requests from now on.
    Draining(NodeId),
    /// It is back after it was lost, or after it drained.
    Returned(NodeId),
    /// Nothing but loads, models, site or address.
    Changed(NodeId),
}
