//! WebSockets of one model: those that are open, and how others ended.
//!
//! Series of ends exist from the first one on: a model without WebSockets has none.

use prometheus::{IntCounterVec, IntGauge, Opts, Registry};

/// End of a WebSocket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionEnd {
    /// The client closed it.
    Client,
    /// The model server closed it.
    Server,
    /// The client left without a close frame.
    ClientGone,
    /// The model server left without a close frame.
    ServerGone,
    /// A frame of the client broke the protocol.
    ClientFault,
    /// A frame of the model server broke the protocol.
    ServerFault,
    /// No byte came for `websocket_idle_secs`.
    Idle,
    /// The connection lasted for `max_connection_duration_secs`.
    Duration,
    /// The account's neurons of the day were used up.
    Quota,
    /// The process ends.
    Drain,
}

impl ConnectionEnd {
    /// Returns its name in metrics and events.
    pub const fn name(self) -> &'static str {
        match self {
            ConnectionEnd::Client => "client",
            ConnectionEnd::Server => "server",
            ConnectionEnd::ClientGone => "client_gone",
            ConnectionEnd::ServerGone => "server_gone",
            ConnectionEnd::ClientFault => "client_fault",
            ConnectionEnd::ServerFault => "server_fault",
            ConnectionEnd::Idle => "idle",
            ConnectionEnd::Duration => "duration",
            ConnectionEnd::Quota => "quota",
            ConnectionEnd::Drain => "drain",
        }
    }
}

/// Metrics of the WebSockets of one model.
pub(super) struct WebSocketMetrics {
    open: IntGauge,
    closed: IntCounterVec,
}

impl WebSocketMetrics {
    pub(super) fn new(registry: &Registry) -> WebSocketMetrics {
        let open = IntGauge::new("infergate_websockets", "WebSockets that are open")
            .expect("the name is a well-formed constant");
        let closed = Opts::new(
            "infergate_websockets_closed_total",
            "WebSockets that were open, by how they ended",
        );
        let closed = IntCounterVec::new(closed, &["reason"])
            .expect("the name and labels are well-formed constants");
        for family in [
            Box::new(open.clone()) as Box<dyn prometheus::core::Collector>,
            Box::new(closed.clone()),
        ] {
            registry
                .register(family)
                .expect("each name is registered once, in a registry made for it");
        }
        WebSocketMetrics { open, closed }
    }

    /// Counts one more as open.
    pub(super) fn open(&self) -> OpenWebSocket {
        self.open.inc();
        OpenWebSocket(self.open.clone())
    }

    pub(super) fn record_end(&self, end: ConnectionEnd) {
        self.closed.with_label_values(&[end.name()]).inc();
    }
}

/// Counts a WebSocket as open; until the drop.
pub struct OpenWebSocket(IntGauge);

impl Drop for OpenWebSocket {
    fn drop(&mut self) {
        self.0.dec();
    }
}
