//! Accepting connections: bound before anything else starts, counted, and each served by a task.
//!
//! No byte of a connection is read here. Accepting here, and not in the framework's server, has
//! three reasons. A taken address becomes an exit code, the drain ends with the last request, and a
//! client's connection limit applies before its first byte. See
//! `docs/decisions/004-own-accept-loop.md`.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use infergate_core::client_address::ClientAddress;
use tokio::net::{TcpListener, TcpSocket, TcpStream, UnixListener, UnixSocket, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::activation;
use super::upgrade::{NamedSocket, SocketName, SocketSet, Turn};
use crate::config::Listen;
use crate::downstream::{
    AcceptedStream, ClientConnections, ClientListener, ClientListenerConfig, ConnectionFault,
    DownstreamServer, HandshakeBounds, Handshakes, ListenAddress, ListenerProtocols,
    serve_callbacks, serve_peer,
};
use crate::state::Shared;
use crate::telemetry::{Clock, watched};
use crate::tls::ListenerTls;

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
    pub clients: Vec<ClientSocket>,
    /// For operators.
    pub admin: TcpListener,
    /// For other nodes; none without `listen.peers`.
    pub peers: Option<TcpListener>,
    /// For containers of models; none without `listen.callbacks`.
    pub callbacks: Option<TcpListener>,
    /// For datagrams of the cluster, where a predecessor had it; bound elsewhere where not.
    pub gossip: Option<OwnedFd>,
    /// All of them once more, with their names in the configuration, for a successor.
    pub doubles: Vec<NamedSocket>,
    /// Another process has the sockets too: their files stay.
    pub handed_over: Arc<AtomicBool>,
}

impl Listeners {
    /// Binds everything that is configured, or nothing. Sockets of a predecessor, or of a service manager, are used as they
    /// are.
    ///
    /// # Errors
    /// A sentence that names the address and what to do.
    pub async fn bind(
        listen: &Listen,
        gossip: Option<SocketAddr>,
        turn: Option<&mut Turn>,
    ) -> Result<Listeners, String> {
        // Those of a predecessor are its own until this process serves.
        let handed_over = Arc::new(AtomicBool::new(turn.is_some()));
        let mut inherited = match turn {
            Some(turn) => turn.take_sockets(),
            None => activation::take(listen)?,
        };
        let mut clients = Vec::with_capacity(listen.clients.len());
        for listener in &listen.clients {
            let socket = ClientSocket::open(&listener.address, &mut inherited, &handed_over);
            clients.push(socket.await?);
        }
        let mut open =
            |name: fn(SocketAddr) -> SocketName, address| match inherited.take(&name(address)) {
                Some(socket) => take_tcp(socket, address),
                None => bind(address),
            };
        let peers = listen.peers.as_ref();
        let peers = peers.map(|peers| open(SocketName::Peers, peers.address));
        let callbacks = listen.callbacks.as_ref();
        let callbacks = callbacks.map(|it| open(SocketName::Callbacks, it.address));
        let mut listeners = Listeners {
            clients,
            admin: open(SocketName::Admin, listen.admin.address)?,
            peers: peers.transpose()?,
            callbacks: callbacks.transpose()?,
            gossip: gossip.and_then(|address| inherited.take(&SocketName::Gossip(address))),
            doubles: Vec::new(),
            handed_over,
        };
        let doubles = listeners.duplicate(listen);
        listeners.doubles = doubles.map_err(undoubled)?;
        Ok(listeners)
    }

    /// Adds another socket to what a successor gets.
    ///
    /// # Errors
    /// A sentence: no descriptor is free.
    pub fn add_double(&mut self, name: SocketName, socket: BorrowedFd<'_>) -> Result<(), String> {
        let double = NamedSocket::duplicate(name, socket);
        self.doubles.push(double.map_err(undoubled)?);
        Ok(())
    }

    fn duplicate(&self, listen: &Listen) -> io::Result<Vec<NamedSocket>> {
        let mut all = Vec::new();
        for (socket, config) in self.clients.iter().zip(&listen.clients) {
            let name = SocketName::Clients(config.address.to_string());
            all.push(NamedSocket::duplicate(name, socket.as_fd())?);
        }
        let name = SocketName::Admin(listen.admin.address);
        all.push(NamedSocket::duplicate(name, self.admin.as_fd())?);
        if let (Some(socket), Some(peers)) = (&self.peers, &listen.peers) {
            let name = SocketName::Peers(peers.address);
            all.push(NamedSocket::duplicate(name, socket.as_fd())?);
        }
        if let (Some(socket), Some(callbacks)) = (&self.callbacks, &listen.callbacks) {
            let name = SocketName::Callbacks(callbacks.address);
            all.push(NamedSocket::duplicate(name, socket.as_fd())?);
        }
        Ok(all)
    }
}

fn undoubled(error: io::Error) -> String {
    format!("sockets cannot be doubled: {error}")
}

/// A bound socket for clients.
pub enum ClientSocket {
    /// Socket of the network.
    Tcp(TcpListener),
    /// In the file system.
    Unix {
        /// Its path, removed before the socket closes: then nobody takes it for one that was left over.
        _path: UnixPath,
        /// The bound socket.
        listener: UnixListener,
    },
}

/// Path of a socket in the file system, removed by drop unless another process listens there.
pub struct UnixPath {
    path: PathBuf,
    handed_over: Arc<AtomicBool>,
}

impl Drop for UnixPath {
    fn drop(&mut self) {
        if !self.handed_over.load(Ordering::Acquire) {
            // Another process may have removed it, or bound its own there: then its file is lost with it at the next start.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

impl ClientSocket {
    /// Takes the inherited socket of the address, or binds one.
    async fn open(
        address: &ListenAddress,
        inherited: &mut SocketSet,
        handed_over: &Arc<AtomicBool>,
    ) -> Result<ClientSocket, String> {
        let socket = inherited.take(&SocketName::Clients(address.to_string()));
        // The file of a manager's socket is the manager's, also after this process.
        let handed_over = match socket.is_some() && activation::is_activated() {
            true => Arc::new(AtomicBool::new(true)),
            false => Arc::clone(handed_over),
        };
        match (address, socket) {
            (ListenAddress::Ip(address), None) => bind(*address).map(ClientSocket::Tcp),
            (ListenAddress::Ip(address), Some(socket)) => {
                take_tcp(socket, *address).map(ClientSocket::Tcp)
            }
            (ListenAddress::Unix(path), socket) => {
                let listener = match socket {
                    Some(socket) => take_unix(socket, path)?,
                    None => bind_unix(path).await?,
                };
                let path = path.clone();
                let _path = UnixPath { path, handed_over };
                Ok(ClientSocket::Unix { listener, _path })
            }
        }
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            ClientSocket::Tcp(listener) => listener.as_fd(),
            ClientSocket::Unix { listener, .. } => listener.as_fd(),
        }
    }

    async fn accept(&self) -> Option<AcceptedStream> {
        let accepted = match self {
            ClientSocket::Tcp(listener) => listener
                .accept()
                .await
                .map(|(tcp, address)| AcceptedStream::Tcp(tcp, address.ip())),
            ClientSocket::Unix { listener, .. } => listener
                .accept()
                .await
                .map(|(unix, _)| AcceptedStream::Unix(unix)),
        };
        take_accepted(accepted).await
    }
}

/// Binds a socket in the file system. A file that nobody listens at any more is replaced.
async fn bind_unix(path: &Path) -> Result<UnixListener, String> {
    // Not waited for: where the queue of whoever listens is full, the kernel refuses with another error.
    let listened_at = UnixStream::connect(path).await;
    // A file of another kind refuses connections too, and is not ours to remove.
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|it| it.file_type().is_socket());
    let is_left_over = is_socket
        && matches!(
            &listened_at,
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused
        );
    if is_left_over {
        // Binding tells what is wrong where it cannot be removed.
        let _ = std::fs::remove_file(path);
    }
    let open = || {
        let socket = UnixSocket::new_stream()?;
        socket.bind(path)?;
        socket.listen(BACKLOG)
    };
    open().map_err(|error| {
        format!(
            "cannot listen on {}: {error}; is another process using it, and does its folder exist? change `listen`",
            path.display()
        )
    })
}

/// Uses a listening socket of another process as it is.
fn take_tcp(socket: OwnedFd, address: SocketAddr) -> Result<TcpListener, String> {
    let listener = std::net::TcpListener::from(socket);
    let taken = listener.set_nonblocking(true);
    taken
        .and_then(|()| TcpListener::from_std(listener))
        .map_err(|error| format!("the socket at {address} cannot be taken over: {error}"))
}

fn take_unix(socket: OwnedFd, path: &Path) -> Result<UnixListener, String> {
    let listener = std::os::unix::net::UnixListener::from(socket);
    let taken = listener.set_nonblocking(true);
    taken
        .and_then(|()| UnixListener::from_std(listener))
        .map_err(|error| {
            format!(
                "the socket at {} cannot be taken over: {error}",
                path.display()
            )
        })
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
    open().map_err(|error| {
        let advice = match error.kind() {
            io::ErrorKind::PermissionDenied => {
                "a port below 1024 takes the capability CAP_NET_BIND_SERVICE"
            }
            _ => "is another process using it? change `listen`",
        };
        format!("cannot listen on {address}: {error}; {advice}")
    })
}

/// Accepts a connection of the network; none where that failed, after a pause.
pub(super) async fn accept(listener: &TcpListener) -> Option<(TcpStream, SocketAddr)> {
    take_accepted(listener.accept().await).await
}

/// Logs a failed accept and waits a moment.
async fn take_accepted<T>(accepted: io::Result<T>) -> Option<T> {
    match accepted {
        Ok(accepted) => Some(accepted),
        Err(error) => {
            tracing::warn!(%error, "a connection could not be accepted");
            tokio::time::sleep(ACCEPT_PAUSE).await;
            None
        }
    }
}

/// Serves clients until `closed`, then what is still open. Dropping the future cuts that off. `accepting` is dropped with
/// the socket.
pub async fn accept_clients(
    (socket, listener, accepting): (ClientSocket, Arc<ClientListener>, watch::Receiver<()>),
    edge: Arc<DownstreamServer>,
    connections: Arc<ClientConnections>,
    mut closed: watch::Receiver<bool>,
) {
    let shared = Arc::clone(edge.shared());
    let mut open = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = socket.accept() => accepted,
            Some(_) = open.join_next() => continue,
            _ = closed.wait_for(|closed| *closed) => break,
        };
        let Some(stream) = accepted else {
            continue;
        };
        let protocols = listener.protocols();
        let other_side = stream.other_side();
        let snapshot = shared.snapshot.load();
        // Behind a balancer or a trusted proxy are many clients.
        let is_client = protocols.is_direct() && !snapshot.is_trusted_proxy(other_side);
        let address = other_side.ip.filter(|_| is_client);
        let opened = connections.open(address, &snapshot.limits);
        let connection = match opened {
            Ok(connection) => connection,
            Err(too_many) => {
                shared.metrics.record_refused_connection(too_many.reason());
                refuse(&stream, &protocols);
                continue;
            }
        };
        shared.metrics.record_accepted_connection();
        let (edge, closed) = (Arc::clone(&edge), closed.clone());
        let (listener, shared) = (Arc::clone(&listener), Arc::clone(&shared));
        let metrics = Arc::clone(&shared.metrics);
        let unused = Some(shared.drain.hold());
        let serving = async move {
            let accepted = (stream, protocols);
            let served = listener
                .serve(edge, accepted, connection, (closed, unused))
                .await;
            if let Err(fault) = served {
                log_fault(&shared, &listener, (other_side, &fault));
            }
        };
        open.spawn(watched(serving, move |held_ms| {
            metrics.record_blocked_worker(held_ms)
        }));
    }
    // Closed first, so that no client connects and waits in vain.
    drop((socket, accepting));
    while open.join_next().await.is_some() {}
}

/// Tells a client in plain text that there are too many connections.
fn refuse(stream: &AcceptedStream, protocols: &ListenerProtocols) {
    if protocols.is_plain() {
        // Best effort: a socket that takes nothing at once is closed all the same.
        let _ = match stream {
            AcceptedStream::Tcp(tcp, _) => tcp.try_write(TOO_MANY_CONNECTIONS.as_bytes()),
            AcceptedStream::Unix(unix) => unix.try_write(TOO_MANY_CONNECTIONS.as_bytes()),
        };
    }
}

/// Counts a connection that came to no request. Anybody can make such connections: their reasons are told at the level
/// `debug`, and their number by the metrics.
fn log_fault(
    shared: &Shared,
    listener: &ClientListener,
    (other_side, fault): (ClientAddress, &ConnectionFault),
) {
    shared.metrics.record_refused_connection(fault.reason());
    tracing::debug!(
        listener = %listener.address(),
        from = other_side.ip.map(tracing::field::display),
        %fault,
        "a client's connection ended before its first request"
    );
}

/// The listeners for clients, by the order of the file at start.
#[derive(Default)]
pub struct ClientListeners {
    all: Vec<Arc<ClientListener>>,
}

impl ClientListeners {
    /// Listeners of a first configuration with its certificates.
    pub fn start(listen: &Listen, tls: Vec<Option<Arc<ListenerTls>>>) -> ClientListeners {
        let handshakes = Arc::new(Handshakes::default());
        let listener = |(config, tls): (&ClientListenerConfig, _)| {
            let protocols = ListenerProtocols::new(config, tls);
            let address = config.address.clone();
            Arc::new(ClientListener::new(
                address,
                protocols,
                Arc::clone(&handshakes),
            ))
        };
        ClientListeners {
            all: listen.clients.iter().zip(tls).map(listener).collect(),
        }
    }

    /// All of them.
    pub fn all(&self) -> &[Arc<ClientListener>] {
        &self.all
    }

    /// Puts another configuration into effect. Addresses that are new or gone take a restart. Listeners with one address,
    /// each at a free port, are told apart by their order.
    pub fn configure(&self, listen: &Listen, tls: Vec<Option<Arc<ListenerTls>>>) {
        let mut left: Vec<_> = self.all.iter().collect();
        for (config, tls) in listen.clients.iter().zip(tls) {
            let found = left.iter().position(|one| *one.address() == config.address);
            if let Some(at) = found {
                left.remove(at)
                    .configure(ListenerProtocols::new(config, tls));
            }
        }
    }
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
        let pending = handshakes.enter(address.ip(), HandshakeBounds::OF_NODES);
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

#[cfg(test)]
mod tests {
    use super::*;

    fn listen(listeners: &str) -> Listen {
        serde_json::from_str(&format!(r#"{{ "clients": [{listeners}] }}"#)).unwrap()
    }

    #[test]
    fn listeners_at_one_address_are_told_apart_by_their_order() {
        let at_free_port = |keys: &str| format!(r#"{{ "address": "127.0.0.1:0"{keys} }}"#);
        let balanced = at_free_port(r#", "proxy_protocol": "required""#);
        let direct = at_free_port("");
        let two = format!("{direct}, {direct}");
        let listeners = ClientListeners::start(&listen(&two), vec![None, None]);
        for (text, are_direct) in [
            (format!("{balanced}, {direct}"), [false, true]),
            (format!("{direct}, {balanced}"), [true, false]),
            (two, [true, true]),
        ] {
            listeners.configure(&listen(&text), vec![None, None]);
            let found: Vec<bool> = listeners
                .all()
                .iter()
                .map(|one| one.protocols().is_direct())
                .collect();
            assert_eq!(found, are_direct, "{text}");
        }
    }

    #[tokio::test]
    async fn a_socket_whose_queue_is_full_is_neither_waited_for_nor_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("full.sock");
        let socket = UnixSocket::new_stream().unwrap();
        socket.bind(&path).unwrap();
        let _full = socket.listen(1).unwrap();
        let mut waiting = Vec::new();
        let refused = loop {
            match UnixStream::connect(&path).await {
                Ok(client) => waiting.push(client),
                Err(error) => break error,
            }
        };
        assert_eq!(refused.kind(), io::ErrorKind::WouldBlock);
        let fault = bind_unix(&path).await.expect_err("it is in use");
        assert!(fault.contains("is another process using it"), "{fault}");
        assert!(path.exists());
        drop(waiting);
    }
}
