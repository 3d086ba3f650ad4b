//! Metrics of the connections of clients.
//!
//! Not of their requests. Reasons are words of this program, so that no client adds a series.

use prometheus::core::Collector;
use prometheus::{IntCounter, IntCounterVec, IntGauge, Opts, Registry};

/// Counts of connections.
pub(super) struct ConnectionMetrics {
    /// Open connections.
    pub open: IntGauge,
    /// Accepted since the start.
    pub accepted: IntCounter,
    /// Closed unread, by reason.
    pub refused: IntCounterVec,
    /// Requests of trusted proxies whose `x-forwarded-for` tells no address.
    pub malformed_forwarded_for: IntCounter,
}

impl ConnectionMetrics {
    /// Registers them.
    pub fn new(registry: &Registry) -> ConnectionMetrics {
        let open = IntGauge::new("infergate_connections", "open client connections");
        let accepted = IntCounter::new(
            "infergate_connections_accepted_total",
            "client connections accepted",
        );
        let refused = IntCounterVec::new(
            Opts::new(
                "infergate_connections_refused_total",
                "connections closed before a request was read, by reason",
            ),
            &["reason"],
        );
        let malformed = IntCounter::new(
            "infergate_forwarded_for_malformed_total",
            "requests of trusted proxies whose x-forwarded-for was ignored",
        );
        let metrics = ConnectionMetrics {
            open: open.expect("the name is a metric's"),
            accepted: accepted.expect("the name is a metric's"),
            refused: refused.expect("the names are a metric's and a label's"),
            malformed_forwarded_for: malformed.expect("the name is a metric's"),
        };
        for collector in [
            Box::new(metrics.open.clone()) as Box<dyn Collector>,
            Box::new(metrics.accepted.clone()),
            Box::new(metrics.refused.clone()),
            Box::new(metrics.malformed_forwarded_for.clone()),
        ] {
            let registered = registry.register(collector);
            registered.expect("the name is registered once");
        }
        metrics
    }
}
