//! Connections of HTTP/2 to model servers, each shared by many requests (RFC 9113).
//!
//! Frames and windows are h2's, a request and its response [`http2_stream`](super::http2_stream)'s. HTTP/2 is offered by
//! ALPN for endpoints with `http2: auto`; a server that declines has connections of HTTP/1. Bounds: [`STREAMS_MAX`]
//! requests on a connection, [`CONNECTIONS_MAX`] connections kept, and the idle time and age of those of HTTP/1.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use h2::client::{Builder, SendRequest};
use hashbrown::HashMap;
use infergate_core::Millis;
use infergate_core::routing::connection_reuse::{CONNECTION_AGE_MAX, IDLE_MAX_TLS};
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::telemetry::Clock;
use crate::tls::{ProvedIdentity, ServerIdentity, TlsConnection};

/// Requests on one connection at a time, where the server allows as many.
const STREAMS_MAX: u32 = 100;
/// Connections kept in all; one beyond carries one request.
const CONNECTIONS_MAX: usize = 256;
/// Bytes of one response that the server may send before they are read.
const STREAM_WINDOW_BYTES: u32 = 64 * 1024;
/// The same of all responses of a connection: a client that reads slowly holds up nobody else.
const CONNECTION_WINDOW_BYTES: u32 = STREAMS_MAX * STREAM_WINDOW_BYTES;
/// Requests on a connection whose server has not said how many it takes. A second one would wait behind the first, and
/// not go to another connection, where the server then takes only one.
const STREAMS_BEFORE_SETTINGS: usize = 1;
/// Longest head of a response, bytes as RFC 9113 section 6.5.2 counts them.
const HEAD_BYTES_MAX: u32 = 256 * 1024;

/// Connections of one process to all servers that speak HTTP/2.
#[derive(Default)]
pub(super) struct SharedConnections {
    /// Guards the lists by address and identity; held for a look-up, never across a wait.
    by_key: Mutex<HashMap<u64, Vec<SharedConnection>>>,
    /// Read and write the connections; each ends with its connection.
    drivers: Mutex<JoinSet<()>>,
}

/// A connection that takes further requests.
struct SharedConnection {
    requests: SendRequest<Bytes>,
    proof: ProvedIdentity,
    usage: Arc<SharedUse>,
}

/// Use of a connection, as its streams and its driver tell it.
struct SharedUse {
    opened: Millis,
    /// Requests at work.
    streams: AtomicUsize,
    /// Moment at which the last of them ended, milliseconds.
    idle_since: AtomicU64,
    /// The connection is closed, or takes no request any more.
    has_ended: AtomicBool,
}

impl SharedUse {
    fn new(now: Millis) -> Arc<SharedUse> {
        Arc::new(SharedUse {
            opened: now,
            streams: AtomicUsize::new(0),
            idle_since: AtomicU64::new(now.0),
            has_ended: AtomicBool::new(false),
        })
    }

    /// Returns whether the connection may carry another request at `now`.
    fn may_serve(&self, now: Millis) -> bool {
        let idle_since = Millis(self.idle_since.load(Ordering::Acquire));
        let is_idle = self.streams.load(Ordering::Acquire) == 0;
        !self.has_ended.load(Ordering::Acquire)
            && now.since(self.opened) < CONNECTION_AGE_MAX
            && !(is_idle && now.since(idle_since) >= IDLE_MAX_TLS)
    }

    /// Takes a place among `limit` requests, or none while all are taken.
    fn take_place(&self, limit: usize) -> bool {
        let next = |streams: usize| (streams < limit).then_some(streams + 1);
        let (set, fetch) = (Ordering::AcqRel, Ordering::Acquire);
        self.streams.fetch_update(set, fetch, next).is_ok()
    }
}

impl SharedConnection {
    /// A place for a request, where the connection takes one.
    fn place(&self, identity: &ServerIdentity, clock: Clock) -> Option<StreamPlace> {
        if !self.usage.may_serve(clock.recent()) || !self.proof.is(identity) {
            return None;
        }
        let mut requests = self.requests.clone();
        let mut no_task = Context::from_waker(Waker::noop());
        if !matches!(requests.poll_ready(&mut no_task), Poll::Ready(Ok(()))) {
            // The server has said goodbye, or the connection broke.
            self.usage.has_ended.store(true, Ordering::Release);
            return None;
        }
        let limit = requests.current_max_send_streams();
        let is_taken = self.usage.take_place(limit.min(STREAMS_MAX as usize));
        is_taken.then(|| StreamPlace {
            requests,
            usage: Arc::clone(&self.usage),
            clock,
        })
    }
}

/// Place of one request on a connection; free again when it is dropped.
pub(super) struct StreamPlace {
    /// Begins the request.
    pub requests: SendRequest<Bytes>,
    usage: Arc<SharedUse>,
    clock: Clock,
}

impl StreamPlace {
    /// Begins no further request on the connection, of which nothing has come for long: it may lead nowhere.
    pub fn distrust(&self) {
        self.usage.has_ended.store(true, Ordering::Release);
    }

    /// Moment on the clock of the pool.
    pub fn now(&self) -> Millis {
        self.clock.recent()
    }
}

impl Drop for StreamPlace {
    fn drop(&mut self) {
        let now = self.clock.recent();
        self.usage.idle_since.store(now.0, Ordering::Release);
        self.usage.streams.fetch_sub(1, Ordering::AcqRel);
    }
}

impl SharedConnections {
    /// Takes a place on an open connection to a server that has proved `identity`.
    pub fn take(&self, key: u64, identity: &ServerIdentity, clock: Clock) -> Option<StreamPlace> {
        let by_key = self.by_key.lock();
        let open = by_key.get(&key)?;
        // The first with room: what is not needed any more idles, and is closed.
        open.iter()
            .find_map(|connection| connection.place(identity, clock))
    }

    /// Begins HTTP/2 on a connection whose handshake chose it, and takes the first place on it. Other requests may share
    /// the connection where it `is_kept`.
    ///
    /// # Errors
    /// The connection broke, or takes longer than `limit`.
    pub async fn open(
        &self,
        key: u64,
        sealed: TlsConnection<ProvedIdentity>,
        (clock, limit): (Clock, Duration),
        is_kept: bool,
    ) -> std::io::Result<StreamPlace> {
        let proof = sealed.proof().clone();
        let mut builder = Builder::new();
        builder
            .enable_push(false)
            .initial_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .initial_max_send_streams(STREAMS_BEFORE_SETTINGS)
            .max_header_list_size(HEAD_BYTES_MAX);
        let started = timeout(limit, builder.handshake(sealed)).await;
        let (requests, connection) = started
            .map_err(|_| std::io::ErrorKind::TimedOut)?
            .map_err(std::io::Error::other)?;
        let usage = SharedUse::new(clock.recent());
        usage.take_place(1);
        let place = StreamPlace {
            requests: requests.clone(),
            usage: Arc::clone(&usage),
            clock,
        };
        let ended = Arc::clone(&usage);
        self.drivers.lock().spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection of HTTP/2 broke");
            }
            ended.has_ended.store(true, Ordering::Release);
        });
        let mut by_key = self.by_key.lock();
        if is_kept && by_key.values().map(Vec::len).sum::<usize>() < CONNECTIONS_MAX {
            by_key.entry(key).or_default().push(SharedConnection {
                requests,
                proof,
                usage,
            });
        }
        Ok(place)
    }

    /// Forgets connections that take no further request: idle ones close, others with their last stream.
    pub fn sweep(&self, now: Millis) {
        let mut unfit = Vec::new();
        let mut by_key = self.by_key.lock();
        by_key.retain(|_, open| {
            unfit.extend(open.extract_if(.., |connection| !connection.usage.may_serve(now)));
            !open.is_empty()
        });
        drop(by_key);
        drop(unfit);
        let mut drivers = self.drivers.lock();
        while drivers.try_join_next().is_some() {}
    }
}
