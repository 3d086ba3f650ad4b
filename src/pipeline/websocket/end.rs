//! End of a WebSocket: the codes that both sides are given, and what the event and the server's record say.
//!
//! Codes and reasons of endpoints pass as they are; those here are the gateway's own.

use infergate_core::websocket::{CloseCode, FrameFault};

use crate::pipeline::relay::RelayResult;
use crate::telemetry::{ConnectionEnd, RequestOutcome};

/// Close frame of the gateway: code and reason.
pub(super) type Goodbye = (CloseCode, &'static str);

/// End of a WebSocket, with the fault of its frames where it is one.
#[derive(Clone, Copy, Debug)]
pub(super) struct WebSocketEnd {
    pub(super) end: ConnectionEnd,
    pub(super) fault: Option<FrameFault>,
}

impl From<ConnectionEnd> for WebSocketEnd {
    fn from(end: ConnectionEnd) -> WebSocketEnd {
        WebSocketEnd { end, fault: None }
    }
}

impl WebSocketEnd {
    /// Returns the close frames for the client and for the server.
    pub(super) fn goodbyes(self) -> (Option<Goodbye>, Option<Goodbye>) {
        let both = |goodbye| (Some(goodbye), Some(goodbye));
        match self.end {
            ConnectionEnd::Client | ConnectionEnd::Server => (None, None),
            ConnectionEnd::ClientGone => (None, Some((CloseCode::GOING_AWAY, "client is gone"))),
            ConnectionEnd::ServerGone => {
                let goodbye = (CloseCode::INTERNAL_ERROR, "the model server is gone");
                (Some(goodbye), None)
            }
            ConnectionEnd::ClientFault | ConnectionEnd::ServerFault => {
                let reason = self.fault.map_or("broken frame", FrameFault::reason);
                both((CloseCode::PROTOCOL_ERROR, reason))
            }
            ConnectionEnd::Idle => both((CloseCode::GOING_AWAY, "idle for too long")),
            ConnectionEnd::Duration => {
                both((CloseCode::GOING_AWAY, "open for as long as it may be"))
            }
            ConnectionEnd::Quota => {
                let reason = "the account's neurons of the day are used up";
                (
                    Some((CloseCode::POLICY, reason)),
                    Some((CloseCode::GOING_AWAY, "closed by policy")),
                )
            }
            ConnectionEnd::Drain => both((CloseCode::GOING_AWAY, "this node is shutting down")),
        }
    }

    /// Returns the outcome for the event.
    pub(super) fn outcome(self) -> RequestOutcome {
        match self.end {
            ConnectionEnd::ClientGone | ConnectionEnd::ClientFault => RequestOutcome::CutByClient,
            ConnectionEnd::ServerGone | ConnectionEnd::ServerFault => RequestOutcome::CutByBackend,
            _ => RequestOutcome::Completed,
        }
    }

    /// Returns the reason for the event; none where an endpoint has closed as it should.
    pub(super) fn reason(self) -> Option<&'static str> {
        match self.end {
            ConnectionEnd::Client | ConnectionEnd::Server => None,
            end => Some(end.name()),
        }
    }

    /// Returns the result for the record of the server.
    pub(super) fn relayed(self) -> RelayResult {
        match self.end {
            ConnectionEnd::ServerGone | ConnectionEnd::ServerFault => RelayResult::ServerFailed,
            _ => RelayResult::Upgraded,
        }
    }
}
