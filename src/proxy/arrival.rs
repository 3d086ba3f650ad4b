//! A request that another node forwards, as it arrives: taken, or handed back at once.
//!
//! Not the body. An accepted request goes through the pipeline like a client's.

use pingora_core::protocols::http::ServerSession;

use super::call::Trip;
use super::head::{self, NotTaken};
use super::{Edge, interim, respond};

/// Why a connection was of no use, in the metrics.
const NOT_OF_FLEET: &str = "peer-not-of-fleet";

impl Edge {
    /// Reads what the node says of the request, and says that it is here. Where the request is not taken,
    /// whether the connection may carry another one. A client's passes.
    pub(super) async fn arrives(
        &self,
        session: &mut ServerSession,
        trip: &mut Trip,
    ) -> Option<bool> {
        if !head::is_from_node(session) {
            return None;
        }
        let read = head::read_visit(&self.shared.others, session, trip);
        let Err(not_taken) = read else {
            let heard = interim::queued(&self.shared, session, trip).await;
            return heard.is_err().then_some(false);
        };
        let came_back = match not_taken {
            NotTaken::NotRead(error) => {
                tracing::warn!(error, "another node forwards what cannot be read");
                None
            }
            NotTaken::NotOfFleet(node) => {
                self.shared.metrics.connection_refused(NOT_OF_FLEET);
                tracing::debug!(node = &*node, "a forward of a node that was not heard of");
                // To a node that was just started, or whose gossip is late, this is a node without room.
                trip.comes_back_at_once()
            }
        };
        trip.forget();
        let sent = match came_back {
            Some(came_back) => respond::came_back(session, &came_back).await,
            None => respond::no_visit(session).await,
        };
        Some(sent.is_ok())
    }
}
