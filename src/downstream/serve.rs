//! A connection from its first byte to its close: one request after the other.
//!
//! Not the reading of requests; only the timers around them. Between requests the keep-alive timer runs;
//! the first byte starts the header timer (in `DownstreamServer::serve`). So an idle client is not cut early and a slow
//! sender is not kept.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use infergate_core::Millis;
use tokio::sync::watch;
use tokio::time::{Instant, Sleep, sleep, timeout};

use super::connection::DownstreamConnection;
use super::server::DownstreamServer;
use super::session::{Arrival, Session};
use super::socket::Socket;
use crate::peer::PeerStream;
use crate::state::UnsentAnswers;

/// After so long a connection between nodes ends with its next request. Certificates are looked at when
/// it begins: a busy one would outlive any. A handshake an hour costs nothing.
const PEER_AGE_MAX: Millis = Millis::from_secs(60 * 60);

/// Time for the first request of a connection whose listener closes, and for what comes before it: a client that has just connected sends one.
const FIRST_REQUEST_GRACE: Duration = Duration::from_secs(1);

/// Serves a client's connection until either side ends it. `drained` turns true when idle connections are
/// to be closed. The drain waits for the first request.
pub(super) async fn serve_connection(
    edge: &DownstreamServer,
    connection: DownstreamConnection,
    arrival: Arrival,
    drained: (watch::Receiver<bool>, Option<UnsentAnswers>),
) {
    let session = Session::new(connection, arrival, edge.shared.clock);
    serve(edge, session, drained).await;
}

/// Serves the connection of another node likewise.
pub async fn serve_peer(
    edge: Arc<DownstreamServer>,
    peer: PeerStream,
    drained: watch::Receiver<bool>,
) {
    let socket = Socket::Peer(Box::new(peer));
    let connection = DownstreamConnection::new(socket, stall_max(&edge));
    let session = Session::new(connection, Arrival::default(), edge.shared.clock);
    serve(&edge, session, (drained, None)).await;
}

pub(super) fn stall_max(edge: &DownstreamServer) -> Duration {
    Duration::from_secs(edge.shared.snapshot.load().timeouts.stream_idle_secs)
}

/// Returns whether the connection was authenticated under a replaced CA and must reconnect.
fn is_outdated(edge: &DownstreamServer, session: &Session) -> bool {
    session.peer_stream().is_some_and(|peer| {
        !edge
            .shared
            .peer_client
            .is_current(peer.proof().credentials_digest)
    })
}

#[expect(
    clippy::manual_async_fn,
    reason = "the future of an `async fn` has room for its arguments twice"
)]
fn serve(
    edge: &DownstreamServer,
    mut session: Session,
    (mut drained, mut unused): (watch::Receiver<bool>, Option<UnsentAnswers>),
) -> impl Future<Output = ()> {
    async move {
        let clock = edge.shared.clock;
        let old_at = session.peer_stream().map(|_| clock.now() + PEER_AGE_MAX);
        let mut drained = pin!(drained.wait_for(|drained| *drained));
        let mut timer = pin!(sleep(keepalive(edge)));
        let mut is_drained = false;
        loop {
            let began = tokio::select! {
                biased;
                began = first_byte(edge, &mut session, timer.as_mut()) => Some(began),
                _ = &mut drained, if !is_drained => None,
            };
            let began = match began {
                Some(began) => began,
                None => {
                    is_drained = true;
                    // Boxed: it comes once in the life of a connection.
                    unused.is_some() && Box::pin(comes_late(&mut session)).await
                }
            };
            if !began || is_outdated(edge, &session) {
                // Boxed: it comes once in the life of a connection.
                return Box::pin(session.end_idle()).await;
            }
            let is_last = old_at.is_some_and(|old_at| clock.now() >= old_at);
            // Boxed so that an idle connection holds no room for a request, and written where it lies: a copy of
            // it is a tenth of what a small request costs.
            let request = Box::write(Box::new_uninit(), edge.serve_next(&mut session, is_last));
            if !Box::into_pin(request).await {
                return;
            }
            unused = None;
            // Before the next bytes come: the buffer is used again only when nothing holds a part of it.
            session.begin();
        }
    }
}

/// Waits for what comes before the first request of a connection; none where it did not come. Once `drained` turns true
/// it waits a moment more, so that who has connected and says nothing does not hold up the end.
pub(super) async fn before_first_request<T>(
    drained: &watch::Receiver<bool>,
    opening: impl Future<Output = T>,
) -> Option<T> {
    let mut drained = drained.clone();
    let mut opening = pin!(opening);
    tokio::select! {
        biased;
        opened = opening.as_mut() => return Some(opened),
        _ = drained.wait_for(|drained| *drained) => {}
    }
    timeout(FIRST_REQUEST_GRACE, opening).await.ok()
}

/// Waits a moment for the first request of a connection that was accepted just before its listener closed.
async fn comes_late(session: &mut Session) -> bool {
    let first = timeout(FIRST_REQUEST_GRACE, session.first_byte());
    first.await.unwrap_or(false)
}

/// Waits for the next request within the keep-alive time. The timer of the connection runs on from wait to
/// wait, so that a busy one seldom sets it: when it fires early it is set anew.
pub(super) async fn first_byte(
    edge: &DownstreamServer,
    session: &mut Session,
    mut timer: Pin<&mut Sleep>,
) -> bool {
    if session.has_received() {
        return true;
    }
    let waits_from = Instant::now();
    loop {
        tokio::select! {
            biased;
            began = session.first_byte() => return began,
            () = timer.as_mut() => {}
        }
        let ends_at = waits_from + keepalive(edge);
        if ends_at <= Instant::now() {
            return false;
        }
        timer.as_mut().reset(ends_at);
    }
}

pub(super) fn keepalive(edge: &DownstreamServer) -> Duration {
    Duration::from_secs(edge.shared.snapshot.load().timeouts.keepalive_secs)
}
