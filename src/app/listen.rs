//! Accepting connections: bound before anything else starts, counted, and each served by a task.
//!
//! No byte of a connection is read here. Accepting here, and not in the framework's server, has
//! three reasons. A taken address becomes an exit code, the drain ends with the last request, and a
//! client's connection limit applies before its first byte. See
//! `docs/decisions/004-own-accept-loop.md`.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use pingora_core::apps::HttpServerApp;
use pingora_core::protocols::http::ServerSession;
use pingora_core::protocols::l4::stream::Stream as L4Stream;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::admin::Admin;
use crate::app::handshakes::Handshakes;
use crate::config::Listen;
use crate::downstream::{
    ClientConnections, DownstreamServer, serve_callbacks, serve_connection, serve_peer,
};
use crate::state::Shared;
use crate::telemetry::{Clock, watched};

/// Connections the kernel holds while every worker is busy.
const BACKLOG: u32 = 4096;
/// After a failed accept (no file descriptors left, usually) so that the loop does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Answer to a connection over a limit, which is closed unread.
const TOO_MANY_CONNECTIONS: &str = concat!(
    "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nContent-Length: 99\r\n",
    "Retry-After: 1\r\nConnection: close\r\n\r\n",
    r#"{"error":{"message":"too many connections","type":"server_error","param":null,"code":"overloaded"}}"#,
);

/// Connections of other nodes: each carries one forwarded request at a time.
const PEER_CONNECTIONS_MAX: usize = 16 * 1024;
/// Connections of containers, each for a download at a time.
const CALLBACK_CONNECTIONS_MAX: usize = 4096;
/// Between two log lines about failed handshakes.
const FAILURES_LOG_INTERVAL_MS: u64 = 10_000;

/// All sockets of the node, bound.
pub struct Listeners {
    /// For clients.
    pub clients: Vec<TcpListener>,
    /// For operators.
    pub admin: TcpListener,
    /// For other nodes; none without `listen.peers`.
    pub peers: Option<TcpListener>,
    /// For containers of models; none without `listen.callbacks`.
    pub callbacks: Option<TcpListener>,
}

impl Listeners {
    /// Binds everything that is configured, or nothing.
    ///
    /// # Errors
    /// A sentence that names the address and what to do.
    pub async fn bind(listen: &Listen) -> Result<Listeners, String> {
        let clients = listen
            .clients
            .iter()
            .map(|l| bind(l.address))
            .collect::<Result<_, _>>()?;
        let peers = listen.peers.as_ref().map(|peers| bind(peers.address));
        let callbacks = listen.callbacks.as_ref();
        let callbacks = callbacks.map(|callbacks| bind(callbacks.address));
        Ok(Listeners {
            clients,
            admin: bind(listen.admin.address)?,
            peers: peers.transpose()?,
            callbacks: callbacks.transpose()?,
        })
    }
}

fn bind(address: SocketAddr) -> Result<TcpListener, String> {
    let open = || {
        let socket = if address.is_ipv4() {
            TcpSocket::new_v4()?
        } else {
            TcpSocket::new_v6()?
        };
        // A restart must not wait for the last life's connections to time out.
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        socket.listen(BACKLOG)
    };
    open().map_err(|e| {
        format!("cannot listen on {address}: {e}; is another process using it? change `listen`")
    })
}

async fn accept(listener: &TcpListener) -> Option<(TcpStream, SocketAddr)> {
    match listener.accept().await {
        Ok(accepted) => Some(accepted),
        Err(error) => {
            tracing::warn!(%error, "a connection could not be accepted");
            tokio::time::sleep(ACCEPT_PAUSE).await;
            None
        }
    }
}

/// Serves clients until `closed`, then what is still open. Dropping the future cuts that off.
pub async fn accept_clients(
    listener: TcpListener,
    edge: Arc<DownstreamServer>,
    shared: Arc<Shared>,
    connections: Arc<ClientConnections>,
    mut closed: watch::Receiver<bool>,
) {
    let mut open = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = accept(&listener) => accepted,
            Some(_) = open.join_next() => continue,
            _ = closed.wait_for(|closed| *closed) => break,
        };
        let Some((tcp, address)) = accepted else {
            continue;
        };
        let opened = connections.open(address.ip(), &shared.snapshot.load().limits);
        let connection = match opened {
            Ok(connection) => connection,
            Err(too_many) => {
                shared.metrics.record_refused_connection(too_many.reason());
                // Best effort: a socket that takes nothing at once is closed all the same.
                let _ = tcp.try_write(TOO_MANY_CONNECTIONS.as_bytes());
                continue;
            }
        };
        shared.metrics.record_accepted_connection();
        let (edge, closed) = (Arc::clone(&edge), closed.clone());
        let metrics = Arc::clone(&shared.metrics);
        open.spawn(watched(
            async move {
                serve_connection(edge, tcp, closed).await;
                drop(connection);
            },
            move |held_ms| metrics.record_blocked_worker(held_ms),
        ));
    }
    // Closed first, so that no client connects and waits in vain.
    drop(listener);
    while open.join_next().await.is_some() {}
}

/// Serves containers of models until its future is dropped: also while draining, when jobs still run.
pub async fn accept_callbacks(
    listener: TcpListener,
    edge: Arc<DownstreamServer>,
    shared: Arc<Shared>,
) {
    let mut open = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = accept(&listener) => accepted,
            Some(_) = open.join_next() => continue,
        };
        let Some((tcp, _)) = accepted else {
            continue;
        };
        if open.len() >= CALLBACK_CONNECTIONS_MAX {
            shared.metrics.record_refused_connection("callback-limit");
            continue;
        }
        let metrics = Arc::clone(&shared.metrics);
        let serving = serve_callbacks(Arc::clone(&edge), tcp);
        open.spawn(watched(serving, move |held_ms| {
            metrics.record_blocked_worker(held_ms)
        }));
    }
}

/// Serves other nodes until `closed`, then what is still open.
pub async fn accept_peers(
    listener: TcpListener,
    edge: Arc<DownstreamServer>,
    shared: Arc<Shared>,
    mut closed: watch::Receiver<bool>,
) {
    let mut open = JoinSet::new();
    let handshakes = Arc::new(Handshakes::default());
    let strangers = Arc::new(HandshakeFailures::default());
    loop {
        let accepted = tokio::select! {
            accepted = accept(&listener) => accepted,
            Some(_) = open.join_next() => continue,
            _ = closed.wait_for(|closed| *closed) => break,
        };
        let Some((tcp, address)) = accepted else {
            continue;
        };
        if open.len() >= PEER_CONNECTIONS_MAX {
            shared.metrics.record_refused_connection("peer-limit");
            continue;
        }
        let pending = handshakes.enter(address.ip());
        let (edge, shared) = (Arc::clone(&edge), Arc::clone(&shared));
        let (strangers, closed) = (Arc::clone(&strangers), closed.clone());
        let metrics = Arc::clone(&shared.metrics);
        let serving = async move {
            // Every event of a stream is a small write.
            if tcp.set_nodelay(true).is_err() {
                return;
            }
            let accepted = tokio::select! {
                accepted = shared.peer_client.accept(tcp) => accepted,
                () = pending.evicted() => return shared.metrics.record_refused_connection("peer-limit"),
            };
            drop(pending);
            let peer = match accepted {
                Ok(peer) => peer,
                Err(error) => {
                    shared.metrics.record_refused_connection("peer-not-trusted");
                    return strangers.log(shared.clock, address, &error);
                }
            };
            serve_peer(edge, peer, closed).await;
        };
        open.spawn(watched(serving, move |held_ms| {
            metrics.record_blocked_worker(held_ms)
        }));
    }
    drop(listener);
    while open.join_next().await.is_some() {}
}

/// Connections to the peers listener that failed to prove themselves, for the log: one line in
/// [`FAILURES_LOG_INTERVAL_MS`], with their count since the last line.
#[derive(Default)]
struct HandshakeFailures {
    unheard: AtomicU64,
    /// Time from which the next line may be logged.
    quiet_until_ms: AtomicU64,
}

impl HandshakeFailures {
    fn log(&self, clock: Clock, address: SocketAddr, error: &std::io::Error) {
        let order = Ordering::Relaxed;
        let more = self.unheard.fetch_add(1, order);
        let now_ms = clock.now().0;
        let quiet = self.quiet_until_ms.fetch_update(order, order, |until| {
            (until <= now_ms).then_some(now_ms + FAILURES_LOG_INTERVAL_MS)
        });
        if quiet.is_ok() {
            self.unheard.store(0, order);
            tracing::warn!(
                %address,
                %error,
                more,
                "a connection to the peers listener was refused: it did not prove to be a node of the cluster"
            );
        }
    }
}

/// The operators' listener on a thread and a runtime of its own, so that operators get a response
/// whatever holds the workers.
pub struct AdminThread {
    /// Ends the listener by its drop.
    running: watch::Sender<()>,
    thread: JoinHandle<()>,
}

impl AdminThread {
    /// Serves operators from now on, also while draining.
    ///
    /// # Errors
    /// The operating system gives no thread or takes the socket back.
    pub fn start(
        listener: TcpListener,
        admin: Arc<Admin>,
        closed: watch::Receiver<bool>,
    ) -> std::io::Result<AdminThread> {
        let listener = listener.into_std()?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let (running, mut ended) = watch::channel(());
        let serve = move || {
            runtime.block_on(async {
                let listener = match TcpListener::from_std(listener) {
                    Ok(listener) => listener,
                    Err(error) => return tracing::error!(%error, "operators cannot be served"),
                };
                tokio::select! {
                    () = accept_admin(listener, admin, closed) => {}
                    // Nothing is ever sent: it ends with the sender.
                    _ = ended.changed() => {}
                }
            });
        };
        Ok(AdminThread {
            running,
            thread: std::thread::Builder::new()
                .name("admin".into())
                .spawn(serve)?,
        })
    }

    /// Ends it; connections are cut.
    pub fn stop(self) {
        let AdminThread { running, thread } = self;
        drop(running);
        // A panic of the thread has been reported by the panic hook.
        let _ = thread.join();
    }
}

async fn accept_admin(listener: TcpListener, admin: Arc<Admin>, closed: watch::Receiver<bool>) {
    let mut open = JoinSet::new();
    loop {
        while open.try_join_next().is_some() {}
        let Some((tcp, _)) = accept(&listener).await else {
            continue;
        };
        let admin = Arc::clone(&admin);
        let closed = closed.clone();
        open.spawn(async move {
            let mut stream = Box::new(L4Stream::from(tcp)) as _;
            loop {
                let session = ServerSession::new_http1(stream);
                let Some(reused) = admin.process_new_http(session, &closed).await else {
                    return;
                };
                stream = reused.consume().0;
            }
        });
    }
}
