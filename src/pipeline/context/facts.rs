//! Facts of a request that only its event shows.
//!
//! Not control state: the context writes them on the way, and the event takes them at the end. No step can
//! read them.

use std::sync::Arc;

use infergate_core::client_address::ClientAddress;
use infergate_core::trace_context::TraceId;

use crate::telemetry::event::PluginUse;

/// Facts for the event.
#[derive(Default)]
pub(super) struct EventFacts {
    /// Address of the client.
    pub client: ClientAddress,
    /// End user named by `x_client_id`.
    pub client_id: Option<Arc<str>>,
    /// Name that the client gave the request.
    pub client_request_id: Option<Arc<str>>,
    /// Code of the latest refusal, or of a model server's own error.
    pub error_code: Option<u32>,
    /// Reason of the latest refusal.
    pub reason: Option<&'static str>,
    /// Endpoint of the latest attempt.
    pub endpoint: Option<Arc<str>>,
    /// Life of the slot that the endpoint is.
    pub instance: Option<Arc<str>>,
    /// The endpoint is operated by another party.
    pub is_external: bool,
    /// Requests that waited for the model on arrival.
    pub queue_length: u32,
    /// Nodes visited; none where this is the only one.
    pub path: Option<Arc<[Arc<str>]>>,
    /// Site of the client's own node; none where that is this one.
    pub source_site: Option<Arc<str>>,
    /// Plugins that took part.
    pub plugins: Vec<PluginUse>,
    /// Distributed trace of the request.
    pub trace_id: Option<TraceId>,
}
