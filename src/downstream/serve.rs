//! A connection from its first byte to its close: one request after the other.
//!
//! Not the reading of requests; only the two timers around them. Between requests the keep-alive timer runs;
//! the first byte starts the header timer (in `DownstreamServer::serve`). So an idle client is not cut early and a slow
//! sender is not kept.

use std::sync::Arc;
use std::time::Duration;

use infergate_core::Millis;
use pingora_core::protocols::http::ServerSession;
use pingora_core::server::ShutdownWatch;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::connection::DownstreamConnection;
use super::server::DownstreamServer;
use crate::peer::PeerStream;

/// After so long a connection between nodes ends with its next request. Certificates are looked at when
/// it begins: a busy one would outlive any. A handshake an hour costs nothing.
const PEER_AGE_MAX: Millis = Millis::from_secs(60 * 60);

/// Serves a connection until either side ends it. `drained` turns true when idle connections are
/// to be closed.
pub async fn serve_connection(edge: Arc<DownstreamServer>, tcp: TcpStream, drained: ShutdownWatch) {
    // Small writes must not wait for an acknowledgement (RFC 896): every event is one.
    if tcp.set_nodelay(true).is_err() {
        return;
    }
    let wire = DownstreamConnection::new(tcp, stall_max(&edge));
    serve(edge, wire, drained).await;
}

/// Serves the connection of another node likewise.
pub async fn serve_peer(edge: Arc<DownstreamServer>, peer: PeerStream, drained: ShutdownWatch) {
    let wire = DownstreamConnection::of_peer(peer, stall_max(&edge));
    serve(edge, wire, drained).await;
}

fn stall_max(edge: &DownstreamServer) -> Duration {
    Duration::from_secs(edge.shared.snapshot.load().timeouts.stream_idle_secs)
}

/// Returns whether the connection was authenticated under a replaced CA and must reconnect.
fn is_outdated(edge: &DownstreamServer, wire: &DownstreamConnection) -> bool {
    wire.peer_stream().is_some_and(|peer| {
        !edge
            .shared
            .peer_client
            .is_current(peer.proof().credentials_digest)
    })
}

async fn serve(
    edge: Arc<DownstreamServer>,
    wire: DownstreamConnection,
    mut drained: ShutdownWatch,
) {
    let mut wire = Box::new(wire);
    let clock = edge.shared.clock;
    let old_at = wire.peer_stream().map(|_| clock.now() + PEER_AGE_MAX);
    loop {
        let keepalive = {
            let snapshot = edge.shared.snapshot.load();
            Duration::from_secs(snapshot.timeouts.keepalive_secs)
        };
        let began = tokio::select! {
            biased;
            began = timeout(keepalive, wire.first_byte()) => began.unwrap_or(false),
            _ = drained.wait_for(|drained| *drained) => false,
        };
        if !began || is_outdated(&edge, &wire) {
            return;
        }
        let mut session = ServerSession::new_http1(wire);
        let is_last = old_at.is_some_and(|old_at| clock.now() >= old_at);
        session.set_keepalive((!is_last).then_some(keepalive.as_secs()));
        session.set_pipelining_enabled(true);
        // Boxed so that an idle connection holds no room for a request (4 KB), and written where it
        // lies: a copy of it is a tenth of what a small request costs.
        let request = Box::write(Box::new_uninit(), Arc::clone(&edge).serve_next(session));
        let Some(kept) = Box::into_pin(request).await else {
            return;
        };
        wire = kept;
    }
}
