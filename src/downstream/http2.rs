//! A connection of HTTP/2: its streams, each served like a request of HTTP/1, and its end.
//!
//! Frames, windows and header compression are h2's, and so are the bounds on floods of frames (rapid resets,
//! CONTINUATION, SETTINGS, PING). Here are the number of streams at work, the time of an idle connection, and the drain.

use std::io::IoSlice;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use h2::RecvStream;
use h2::server::{Builder, Connection, SendResponse};
use tokio::io::{self, AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use super::http2_stream::Http2Stream;
use super::http2_work::StreamsAtWork;
use super::serve::{before_first_request, keepalive, stall_max};
use super::server::DownstreamServer;
use super::session::{Arrival, Session};
use super::socket::Socket;
use crate::http1::ParsedRequest;
use crate::state::UnsentAnswers;

/// First bytes of a client of HTTP/2 (RFC 9113 section 3.4).
pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Requests of one connection at a time, told to the client and held to.
const STREAMS_MAX: u32 = 128;
/// Bytes of one body that a client may send before they are read.
const STREAM_WINDOW_BYTES: u32 = 256 * 1024;
/// The same of all streams of a connection. Bodies are read as they come, out of the memory for bodies or in order to
/// discard them, so that these bytes do not stay.
const CONNECTION_WINDOW_BYTES: u32 = 1024 * 1024;
/// Bytes of one response that wait in the connection: a frame of the usual size. What follows waits in the backlog.
const SEND_BUFFER_BYTES: usize = 16 * 1024;
/// Bytes of all responses that wait in a connection whose client opens its windows and reads nothing.
const CONNECTION_SEND_BYTES_MAX: usize = 2 * 1024 * 1024;
const _: () = assert!(STREAMS_MAX as usize * SEND_BUFFER_BYTES <= CONNECTION_SEND_BYTES_MAX);
/// Time for the client to answer a goodbye before the connection is cut.
const GOODBYE_TIMEOUT: Duration = Duration::from_secs(1);

type AcceptedRequest = Option<Result<(http::Request<RecvStream>, SendResponse<Bytes>), h2::Error>>;

/// A socket of which some bytes were read before.
pub(super) struct ReadBefore {
    /// Bytes that were read, which come first.
    pub read: BytesMut,
    /// The socket.
    pub socket: Socket,
}

impl AsyncRead for ReadBefore {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let ReadBefore { read, socket } = self.get_mut();
        if read.is_empty() {
            return Pin::new(socket).poll_read(cx, buf);
        }
        let taken = read.len().min(buf.remaining());
        buf.put_slice(&read[..taken]);
        read.advance(taken);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for ReadBefore {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write_vectored(cx, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}

/// Serves a connection until either side ends it. `drained` turns true when clients are to go elsewhere.
pub(super) async fn serve_http2(
    edge: Arc<DownstreamServer>,
    socket: ReadBefore,
    arrival: Arrival,
    (mut drained, unused): (watch::Receiver<bool>, Option<UnsentAnswers>),
) {
    let (builder, limit) = settings(&edge);
    let opening = timeout(limit, builder.handshake(socket));
    let Some(Ok(Ok(mut connection))) = before_first_request(&drained, opening).await else {
        return;
    };
    drop(unused);
    let mut streams = StreamsAtWork::new(&edge.shared.metrics);
    let mut drained = pin!(drained.wait_for(|drained| *drained));
    let mut timer = pin!(sleep(keepalive(&edge)));
    let (mut is_leaving, mut is_read_slowly) = (false, false);
    // A stream's work ends when its answer is in the connection: a drain waits until it has left that.
    let mut unsent = None;
    loop {
        let is_full = streams.len() >= STREAMS_MAX as usize;
        let at_work = is_leaving || !streams.is_empty();
        tokio::select! {
            biased; // What a stream puts into the connection is sent in the same turn.
            () = streams.one_ended() => {
                if streams.is_empty() {
                    let rest = match is_leaving {
                        true => GOODBYE_TIMEOUT,
                        false => keepalive(&edge),
                    };
                    timer.as_mut().reset(Instant::now() + rest);
                }
            }
            accepted = accept(&mut connection, is_full, &mut unsent, at_work) => {
                let Some(Ok((request, respond))) = accepted else {
                    break;
                };
                unsent.get_or_insert_with(|| edge.shared.drain.hold());
                is_read_slowly = false;
                let mut head = ParsedRequest::default();
                let stream = Http2Stream::new(request, respond, stall_max(&edge), &mut head);
                let serving = serve_stream(Arc::clone(&edge), stream, head, arrival);
                streams.begin(serving);
            }
            _ = &mut drained, if !is_leaving => {
                is_leaving = true;
                unsent.get_or_insert_with(|| edge.shared.drain.hold());
                connection.graceful_shutdown();
                timer.as_mut().reset(Instant::now() + GOODBYE_TIMEOUT);
            }
            () = timer.as_mut(), if streams.is_empty() => {
                if connection.has_streams() && !is_read_slowly {
                    // The last answers are still read.
                    is_read_slowly = true;
                    timer.as_mut().reset(Instant::now() + stall_max(&edge));
                    continue;
                }
                if is_leaving {
                    break;
                }
                is_leaving = true;
                connection.graceful_shutdown();
                timer.as_mut().reset(Instant::now() + GOODBYE_TIMEOUT);
            }
        }
    }
    // What is still at work learns from its stream that nobody waits, and ends by itself.
    drop(connection);
    streams.all_ended().await;
}

/// Settings of a connection, and the time for its preface.
fn settings(edge: &DownstreamServer) -> (Builder, Duration) {
    let snapshot = edge.shared.snapshot.load();
    let header_bytes = u32::try_from(snapshot.limits.request_headers_bytes()).unwrap_or(u32::MAX);
    let mut builder = Builder::new();
    builder
        .max_concurrent_streams(STREAMS_MAX)
        .initial_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_send_buffer_size(SEND_BUFFER_BYTES)
        .max_header_list_size(header_bytes);
    let limit = Duration::from_secs(snapshot.limits.header_timeout_secs);
    (builder, limit)
}

/// Waits for the next request; keeps the connection going, and takes none, while all places are taken. Releases `unsent`
/// once every answer has left a connection that is not `at_work`.
async fn accept(
    connection: &mut Connection<ReadBefore, Bytes>,
    is_full: bool,
    unsent: &mut Option<UnsentAnswers>,
    at_work: bool,
) -> AcceptedRequest {
    std::future::poll_fn(|cx| {
        if is_full {
            // The connection has ended, whatever the reason.
            return connection.poll_closed(cx).map(|_| None);
        }
        let accepted = connection.poll_accept(cx);
        if accepted.is_pending() && !at_work && !connection.has_streams() {
            *unsent = None;
        }
        accepted
    })
    .await
}

async fn serve_stream(
    edge: Arc<DownstreamServer>,
    stream: Http2Stream,
    head: ParsedRequest,
    arrival: Arrival,
) {
    let mut session = Session::of_stream(stream, head, arrival, edge.shared.clock);
    // Nothing follows on a stream, whether its response is whole or not.
    edge.serve_next(&mut session, false).await;
}
