//! A request that another node forwards, as it arrives: taken, or handed back at once.
//!
//! Not the body. An accepted request goes through the pipeline like a client's.

use super::server::DownstreamServer;
use super::session::Session;
use crate::peer::PROTOCOL_VERSION;
use crate::pipeline::RequestContext;
use crate::pipeline::respond;
use crate::pipeline::{ForwardArrivalError, interim, request_head};

/// Reason for a rejected connection, in the metrics.
const NOT_MEMBER: &str = "peer-not-member";
/// The same for a node of another version.
const OTHER_PROTOCOL: &str = "peer-other-protocol";

impl DownstreamServer {
    /// Reads the metadata that the node sends of the request, and confirms its arrival. Returns, for a rejected
    /// request, whether the connection may carry another one. A client's request passes.
    pub(super) async fn accept_forward(
        &self,
        session: &mut Session,
        ctx: &mut RequestContext,
    ) -> Option<bool> {
        let peer = session.peer()?;
        let read = request_head::read_forward(&self.shared.cluster, session.fields(), peer, ctx);
        let Err(not_taken) = read else {
            let queued = interim::send_queued(&self.shared, session, ctx).await;
            return queued.is_err().then_some(false);
        };
        let rejection = match not_taken {
            ForwardArrivalError::OtherProtocol(node) => {
                let metrics = &self.shared.metrics;
                metrics.record_refused_connection(OTHER_PROTOCOL);
                // Membership warns of the node once, not for each of its requests.
                tracing::debug!(
                    node = &*node,
                    here = PROTOCOL_VERSION,
                    "a node of another protocol version forwards a request: it gets no response; run the same version of infergate on all nodes"
                );
                ctx.discard();
                // No version takes a closed connection for a response to its client.
                return Some(false);
            }
            ForwardArrivalError::Malformed(error) => {
                tracing::warn!(error, "another node forwards what cannot be read");
                None
            }
            ForwardArrivalError::NotMember(node) => {
                self.shared.metrics.record_refused_connection(NOT_MEMBER);
                tracing::debug!(node = &*node, "a forward of a node that was not heard of");
                // To a node that was just started, or whose gossip is late, this is a node without room.
                ctx.immediate_rejection()
            }
        };
        ctx.discard();
        let sent = match rejection {
            Some(rejection) => respond::send_rejection(session, &rejection).await,
            None => respond::reject_malformed_forward(session).await,
        };
        Some(sent.is_ok())
    }
}
