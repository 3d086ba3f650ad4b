//! End of both connections of a WebSocket: what may still pass, a close frame, and the close.
//!
//! The server's comes first and briefly, because the permit is held meanwhile. A frame that is half sent cannot be
//! ended: such a connection is closed without a close frame.

use std::time::Duration;

use infergate_core::websocket::close_frame;
use tokio::io::AsyncWriteExt;
use tokio::time::timeout;

use super::end::WebSocketEnd;
use super::lane::Lane;
use crate::telemetry::ConnectionEnd;
use crate::upstream::Duplex;

/// For the server to take its last bytes.
const SERVER_TIMEOUT: Duration = Duration::from_millis(100);
/// For the client to take its last bytes, and again for its close frame: without that it may see a reset instead of the
/// reason.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(1);
/// Bytes of the client that are discarded meanwhile.
const DISCARD_BYTES_MAX: usize = 1024 * 1024;

/// Ends the connection to the server; `upward` is the lane towards it.
pub(super) async fn leave_server(end: WebSocketEnd, upward: &mut Lane, server: &mut dyn Duplex) {
    let mask = fastrand::u32(..).to_ne_bytes();
    let (_, goodbye) = end.goodbyes();
    let frame = goodbye.map(|(code, reason)| close_frame(code, reason, Some(mask)));
    let last = upward.take_last(frame.as_deref());
    let leaving = async {
        server.write_all(&last).await?;
        server.shutdown().await
    };
    // Whatever it takes, the connection is closed behind it.
    let _ = timeout(SERVER_TIMEOUT, leaving).await;
}

/// Closes the connection to the client, which needs not wait for what is left to do.
pub(super) async fn close_client(client: &mut dyn Duplex) {
    let _ = timeout(CLIENT_TIMEOUT, client.shutdown()).await;
}

/// Gives the client its last bytes and waits a moment for its close frame; its connection is closed by the session.
pub(super) async fn leave_client(
    end: WebSocketEnd,
    (upward, downward): (&mut Lane, &mut Lane),
    client: &mut dyn Duplex,
) {
    let (goodbye, _) = end.goodbyes();
    let frame = goodbye.map(|(code, reason)| close_frame(code, reason, None));
    let last = downward.take_last(frame.as_deref());
    let leaving = async {
        client.write_all(&last).await?;
        match end.end {
            // Whose frames are broken sends no close frame that could be found.
            ConnectionEnd::ClientFault => client.shutdown().await,
            _ => client.flush().await,
        }
    };
    let is_sent = matches!(timeout(CLIENT_TIMEOUT, leaving).await, Ok(Ok(())));
    if is_sent && frame.is_some() {
        let reading = upward.discard(client, DISCARD_BYTES_MAX);
        let _ = timeout(CLIENT_TIMEOUT, reading).await;
    }
}
