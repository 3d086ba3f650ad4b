//! State that requests share for the life of the process.
//!
//! Not the request: a request's own state is its context.

use std::sync::Arc;

use arc_swap::ArcSwap;
use infergate_core::vram::ClientDemand;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::{
    BacklogBudget, BodyBudget, BodyCheckSlots, ConfigSnapshot, Drain, QuotaStore, RuntimeSwitches,
};
use crate::peer::{ClusterHandle, PeerClient};
use crate::telemetry::otlp::{ExportQueue, GenAiMetrics};
use crate::telemetry::{Clock, EventSink, Metrics};
use crate::trace::{RequestTrace, TraceStore};
use crate::upstream::{HttpClient, LeftWorkQueue};

/// State that all requests share for the life of the process.
pub struct Shared {
    /// The current configuration generation, swapped whole.
    pub snapshot: ArcSwap<ConfigSnapshot>,
    /// Notifies tasks that rest until another snapshot is in effect; its value says nothing.
    pub swapped: watch::Sender<()>,
    /// Time.
    pub clock: Clock,
    /// The way to model servers.
    pub client: HttpClient,
    /// Runs that were left at model servers.
    pub left_work: Arc<LeftWorkQueue>,
    /// Counters.
    pub metrics: Arc<Metrics>,
    /// Sink of the events.
    pub sink: EventSink,
    /// Requests in flight, and whether the process drains.
    pub drain: Arc<Drain>,
    /// Memory of request bodies.
    pub bodies: Arc<BodyBudget>,
    /// Memory of answers that clients have not taken yet.
    pub backlogs: Arc<BacklogBudget>,
    /// The last requests, for operators who ask.
    pub traces: TraceStore,
    /// Recorded requests that wait to be exported.
    pub exports: ExportQueue<Box<RequestTrace>>,
    /// Durations and tokens for OTLP.
    pub gen_ai: GenAiMetrics,
    /// Turns at checking large bodies.
    pub body_checks: BodyCheckSlots,
    /// Neurons of the day.
    pub quota: Arc<QuotaStore>,
    /// Switches that operators change at run time.
    pub runtime: Arc<RuntimeSwitches>,
    /// Demand of the last hour for models with processes, by client. Held to count one request or load.
    pub client_demand: Mutex<ClientDemand>,
    /// The other nodes of the cluster.
    pub cluster: Arc<ClusterHandle>,
    /// The way to them.
    pub peer_client: Arc<PeerClient>,
    /// Start of the process, seconds since 1970: `created` of every model.
    pub started_unix_secs: u64,
}
