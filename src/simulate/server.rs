//! The listener and its connections: accept, serve, reset, end. Responses are made elsewhere.
//!
//! Every connection is one task; a client that leaves ends it, which drops whatever the request
//! held. Connections are bounded by [`MAX_CONNECTIONS`].

use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::Response;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::body::SimulatorBody;
use super::cog_runs::CogRuns;
use super::concurrency::ConcurrencyLimit;
use super::config::{Config, Dialect, OverLimit};
use super::connection::{ConnectionCut, FaultableConnection};
use super::control;
#[cfg(test)]
use super::fault::ServerFault;
use super::fault::{FaultPoint, Faults};
use super::handler;
use super::loopback::Loopback;
use super::state::SimulatorState;
use super::stats::{Stats, StatsSnapshot};
use super::{vram, websocket};

/// Connections open at once; beyond it, the kernel's backlog holds newcomers. Above what a load
/// test opens, below what the usual descriptor limit of a tuned host allows.
const MAX_CONNECTIONS: usize = 65_536;

/// Wait after a failed accept (out of descriptors): long enough not to spin, short to recover.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// Time for a refusing server to see whether a new connection is for its own routes, which end the
/// fault. A client sends its head with the connect, so this is never a real wait.
const CONTROL_PEEK: Duration = Duration::from_millis(20);

/// A simulated server: many may run in one process.
#[derive(Clone)]
pub struct Simulator {
    shared: Arc<SimulatorState>,
}

impl Simulator {
    /// Not listening yet.
    pub fn new(config: Config) -> Simulator {
        // The one reading of the wall clock: `created` in responses counts on from it.
        #[allow(clippy::disallowed_methods, reason = "simulate imports no telemetry")]
        let now = SystemTime::now();
        let stats = Arc::new(Stats::default());
        // Cog has no line before its slots.
        let over_limit = match config.dialect {
            Dialect::Cog => OverLimit::Refuse,
            _ => config.over_limit,
        };
        let shared = SimulatorState {
            gate: ConcurrencyLimit::new(config.concurrency, over_limit, Arc::clone(&stats)),
            faults: Faults::new(config.seed),
            stats,
            started: Instant::now(),
            started_unix_secs: now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
            ordinal: AtomicU64::new(0),
            has_vram: AtomicBool::new(config.vram.vram_card.is_empty()),
            is_asleep: watch::Sender::new(false),
            vram_settled: watch::Sender::new(0),
            work_started: Notify::new(),
            weights: Default::default(),
            loopback: Loopback::new(config.finish_ms),
            runs: CogRuns::default(),
            config,
        };
        Simulator {
            shared: Arc::new(shared),
        }
    }

    /// The counts now.
    pub fn stats(&self) -> StatsSnapshot {
        self.shared.stats.snapshot()
    }

    /// Begin counting anew.
    #[cfg(test)]
    pub fn reset_stats(&self) {
        self.shared.stats.reset();
    }

    /// Set or take back the fault of the whole server.
    #[cfg(test)]
    pub fn set_fault(&self, fault: Option<ServerFault>) {
        self.shared.faults.set(fault);
    }

    /// Serve on `listener` until `shutdown` resolves; open connections are then closed.
    ///
    /// # Errors
    /// The memory that is configured cannot be taken: of kind `OutOfMemory` when the card is full.
    pub async fn serve(
        &self,
        listener: TcpListener,
        shutdown: impl Future<Output = ()>,
    ) -> io::Result<()> {
        let mut shutdown = pin!(shutdown);
        // Keeps the memory of the server until it is dropped.
        let mut vram = pin!(vram::hold(&self.shared));
        let mut later = pin!(self.shared.loopback.run());
        // Dropping the set ends its tasks, so none outlives this call.
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                () = &mut shutdown => break,
                error = &mut vram => return Err(error),
                () = &mut later => {}
                Some(_ended) = connections.join_next() => {}
                accepted = listener.accept(), if connections.len() < MAX_CONNECTIONS => {
                    match accepted {
                        Ok((stream, _)) => {
                            connections.spawn(connection(Arc::clone(&self.shared), stream));
                        }
                        Err(_) => sleep(ACCEPT_PAUSE).await,
                    }
                }
            }
        }
        drop(connections);
        let release_time = self.shared.config.vram.release_time();
        if !release_time.is_zero() {
            sleep(release_time).await;
        }
        Ok(())
    }
}

/// Counts a connection while it is open.
struct OpenConnection(Arc<Stats>);

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Relaxed);
    }
}

async fn connection(shared: Arc<SimulatorState>, stream: TcpStream) {
    shared.stats.connections.fetch_add(1, Relaxed);
    let _open = OpenConnection(Arc::clone(&shared.stats));
    // Each event of a stream must leave at once.
    let _ = stream.set_nodelay(true);
    if shared.faults.is_refusing() && !is_control(&stream).await {
        if shared.faults.draw(FaultPoint::Accept).is_some() {
            shared.stats.faulted.fetch_add(1, Relaxed);
        }
        return;
    }
    let wire = Arc::new(FaultableConnection::default());
    let service = {
        let (shared, wire) = (Arc::clone(&shared), Arc::clone(&wire));
        service_fn(move |request| -> ResponseFuture {
            Box::pin(handler::answer(
                Arc::clone(&shared),
                Arc::clone(&wire),
                request,
            ))
        })
    };
    let mut http = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
    // A client that leaves and a fault both end in an error here: the client has left.
    let _ = poll_fn(|cx| http.poll_without_shutdown(cx)).await;
    let parts = http.into_parts();
    let mut stream = parts.io.into_inner();
    if let Some(accepted) = wire.take_websocket() {
        let ends = (&mut stream, parts.read_buf);
        Box::pin(websocket::serve(&shared, accepted, ends, &wire)).await;
    }
    if wire.reset.load(Relaxed) {
        let _ = stream.set_zero_linger();
    }
}

type ResponseFuture =
    Pin<Box<dyn Future<Output = Result<Response<SimulatorBody>, ConnectionCut>> + Send>>;

/// Returns true when the first bytes ask for a route under `/sim/`.
async fn is_control(stream: &TcpStream) -> bool {
    let mut head = [0; 16];
    match timeout(CONTROL_PEEK, stream.peek(&mut head)).await {
        Ok(Ok(read)) => {
            let head = &head[..read];
            let path = head
                .iter()
                .position(|byte| *byte == b' ')
                .map(|at| &head[at + 1..]);
            path.is_some_and(|path| path.starts_with(control::PREFIX.as_bytes()))
        }
        _ => false,
    }
}

/// Serve on `listener` until `shutdown` resolves; connections still open are then closed.
///
/// A test that wants to read the counts while it runs builds a [`Simulator`] itself.
pub async fn serve(
    config: Config,
    listener: TcpListener,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    Simulator::new(config).serve(listener, shutdown).await
}
