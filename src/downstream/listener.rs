//! From an accepted connection of a client to its requests: the balancer's word, TLS, and the choice of HTTP/1 or HTTP/2.
//!
//! Sockets are bound and accepted elsewhere. The protocols of a listener may change at a reload, for new connections.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use infergate_core::client_address::ClientAddress;
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::watch;
use tokio::time::{Instant, timeout, timeout_at};

use super::connection::DownstreamConnection;
use super::connections::{ClientConnectionGuard, ConnectionLimit};
use super::handshakes::{HandshakeBounds, Handshakes};
use super::http2::{PREFACE, ReadBefore, serve_http2};
use super::proxy_protocol;
use super::serve::{before_first_request, serve_connection, stall_max};
use super::server::DownstreamServer;
use super::session::Arrival;
use super::settings::{ClientListenerConfig, Http2, ListenAddress, ProxyProtocol};
use super::socket::Socket;
use crate::state::UnsentAnswers;
use crate::tls::ListenerTls;

/// Protocols that a listener speaks.
#[derive(Clone, Debug)]
pub struct ListenerProtocols {
    /// Certificates; none for plain text.
    pub tls: Option<Arc<ListenerTls>>,
    /// Use of HTTP/2.
    pub http2: Http2,
    /// Header of a balancer at the begin of a connection.
    pub proxy_protocol: ProxyProtocol,
    /// `GET /healthz` is answered.
    pub serves_health: bool,
}

impl ListenerProtocols {
    /// Protocols of a configured listener with its certificates.
    pub fn new(config: &ClientListenerConfig, tls: Option<Arc<ListenerTls>>) -> ListenerProtocols {
        ListenerProtocols {
            tls,
            http2: config.http2,
            proxy_protocol: config.proxy_protocol,
            serves_health: config.health,
        }
    }

    /// Returns whether the address of a connection is the client's own.
    pub fn is_direct(&self) -> bool {
        self.proxy_protocol == ProxyProtocol::Off
    }

    /// Returns whether clients speak plain text from the first byte on.
    pub fn is_plain(&self) -> bool {
        self.is_direct() && self.tls.is_none()
    }
}

/// A listener for clients, as it is now.
pub struct ClientListener {
    address: ListenAddress,
    protocols: ArcSwap<ListenerProtocols>,
    handshakes: Arc<Handshakes>,
}

/// A connection that was accepted.
pub enum AcceptedStream {
    /// Connection of the network, with the address it comes from.
    Tcp(TcpStream, IpAddr),
    /// Connection of this machine.
    Unix(UnixStream),
}

impl AcceptedStream {
    /// Address of the other side.
    pub fn other_side(&self) -> ClientAddress {
        match self {
            AcceptedStream::Tcp(_, address) => ClientAddress::of_network(*address),
            AcceptedStream::Unix(_) => ClientAddress::UNIX_SOCKET,
        }
    }
}

/// Failure before the first request.
#[derive(Debug, thiserror::Error)]
pub enum ConnectionFault {
    /// No header of the PROXY protocol, or a malformed one.
    #[error("PROXY protocol: {0}")]
    ProxyProtocol(io::Error),
    /// The client's address, as the balancer tells it, has too many connections.
    #[error("the client has too many connections")]
    Limit(ConnectionLimit),
    /// The handshake failed.
    #[error("TLS: {0}")]
    Tls(io::Error),
    /// The connection had to give way to later ones before its handshake was done.
    #[error("too many handshakes at a time")]
    Evicted,
    /// The turn for its handshake did not come in time.
    #[error("too many handshakes a second")]
    Rate,
}

impl ConnectionFault {
    /// Label in metrics.
    pub fn reason(&self) -> &'static str {
        match self {
            ConnectionFault::ProxyProtocol(_) => "proxy-protocol",
            ConnectionFault::Limit(limit) => limit.reason(),
            ConnectionFault::Tls(_) => "tls",
            ConnectionFault::Evicted => "handshake-limit",
            ConnectionFault::Rate => "handshake-rate",
        }
    }
}

impl ClientListener {
    /// A listener at `address`; all listeners share `handshakes`.
    pub fn new(
        address: ListenAddress,
        protocols: ListenerProtocols,
        handshakes: Arc<Handshakes>,
    ) -> ClientListener {
        ClientListener {
            address,
            protocols: ArcSwap::from_pointee(protocols),
            handshakes,
        }
    }

    /// Its address in the configuration.
    pub fn address(&self) -> &ListenAddress {
        &self.address
    }

    /// New connections speak these from now on. Sessions of clients that were here before are resumed.
    pub fn configure(&self, mut protocols: ListenerProtocols) {
        let former = self.protocols.load();
        if let (Some(tls), Some(former)) = (&protocols.tls, &former.tls) {
            protocols.tls = Some(Arc::new(tls.with_tickets_of(former)));
        }
        self.protocols.store(Arc::new(protocols));
    }

    /// Protocols of connections that are accepted now.
    pub fn protocols(&self) -> Arc<ListenerProtocols> {
        self.protocols.load_full()
    }

    /// Serves a connection until either side ends it, by the protocols at the time it was accepted. `drained` turns true
    /// when idle connections are to be closed.
    ///
    /// # Errors
    /// The connection did not come to a request, and is closed.
    pub async fn serve(
        &self,
        edge: Arc<DownstreamServer>,
        (accepted, protocols): (AcceptedStream, Arc<ListenerProtocols>),
        mut guard: ClientConnectionGuard,
        drained: (watch::Receiver<bool>, Option<UnsentAnswers>),
    ) -> Result<(), ConnectionFault> {
        let is_bare = protocols.is_plain();
        let mut arrival = Arrival {
            client: accepted.other_side(),
            serves_health: protocols.serves_health,
            is_secure: protocols.tls.is_some(),
        };
        let client = &mut arrival.client;
        let (socket, is_http2) = match accepted {
            AcceptedStream::Unix(unix) if is_bare => (Socket::Unix(unix), false),
            AcceptedStream::Unix(mut unix) => {
                // Whoever is on this machine has no address, but the clients of a balancer do.
                let opening = read_proxy_header(&edge, &mut unix, &protocols, (client, &mut guard));
                let opening = before_first_request(&drained.0, opening);
                match Box::pin(opening).await {
                    Some(opened) => opened?,
                    None => return Ok(()),
                }
                (Socket::Unix(unix), false)
            }
            AcceptedStream::Tcp(tcp, _) => {
                // Small writes must not wait for an acknowledgement (RFC 896): every event is one.
                if tcp.set_nodelay(true).is_err() {
                    return Ok(());
                }
                match is_bare {
                    true => (Socket::Tcp(tcp), false),
                    // Boxed: a connection in plain text has no room for it.
                    false => {
                        let opening = self.open(&edge, tcp, &protocols, (client, &mut guard));
                        let opening = before_first_request(&drained.0, opening);
                        match Box::pin(opening).await {
                            Some(opened) => opened?,
                            None => return Ok(()),
                        }
                    }
                }
            }
        };
        let connection = DownstreamConnection::new(socket, stall_max(&edge));
        let may_be_http2 = protocols.http2 == Http2::Clear && protocols.tls.is_none();
        if is_http2 || may_be_http2 {
            return Box::pin(serve_either(edge, connection, is_http2, arrival, drained)).await;
        }
        serve_connection(&edge, connection, arrival, drained).await;
        Ok(())
    }

    /// Reads what comes before the first request.
    async fn open(
        &self,
        edge: &DownstreamServer,
        mut tcp: TcpStream,
        protocols: &ListenerProtocols,
        (client, guard): (&mut ClientAddress, &mut ClientConnectionGuard),
    ) -> Result<(Socket, bool), ConnectionFault> {
        let limits = &edge.shared.snapshot.load_full().limits;
        let limit = Duration::from_secs(limits.handshake_timeout_secs);
        read_proxy_header(edge, &mut tcp, protocols, (client, guard)).await?;
        let Some(tls) = &protocols.tls else {
            return Ok((Socket::Tcp(tcp), false));
        };
        let pending = client.ip.map(|address| {
            let bounds = HandshakeBounds::of_clients(limits.handshakes);
            self.handshakes.enter(address, bounds)
        });
        let evicted = async {
            match &pending {
                Some(pending) => pending.evicted().await,
                None => std::future::pending().await,
            }
        };
        let per_second = limits.handshakes_per_second;
        let accepting = async {
            if per_second > 0 {
                let turn = (client.ip, per_second);
                let until = Instant::now() + limit;
                self.wait_for_turn(edge, &tcp, turn, until).await?;
            }
            let accepted = tls.accept(tcp, limit).await;
            accepted.map_err(ConnectionFault::Tls)
        };
        let tls = tokio::select! {
            accepted = accepting => accepted?,
            () = evicted => return Err(ConnectionFault::Evicted),
        };
        let is_http2 = tls.proof().is_http2;
        Ok((Socket::Tls(Box::new(tls)), is_http2))
    }
}

impl ClientListener {
    /// Waits until a handshake may begin: nothing was taken of it, and no key was used. A client that sends nothing takes
    /// no turn.
    async fn wait_for_turn(
        &self,
        edge: &DownstreamServer,
        tcp: &TcpStream,
        (address, per_second): (Option<IpAddr>, u32),
        until: Instant,
    ) -> Result<(), ConnectionFault> {
        let turns = &self.handshakes.turns;
        let clock = edge.shared.clock;
        // That it is readable would be a guess of the runtime.
        let peeked = timeout_at(until, tcp.peek(&mut [0])).await;
        match peeked {
            Ok(Ok(1..)) => {}
            Ok(Ok(0)) => return Err(ConnectionFault::Tls(io::ErrorKind::UnexpectedEof.into())),
            Ok(Err(error)) => return Err(ConnectionFault::Tls(error)),
            Err(_) => return Err(ConnectionFault::Tls(io::ErrorKind::TimedOut.into())),
        }
        let address = address.unwrap_or(IpAddr::from([0, 0, 0, 0]));
        if timeout_at(until, turns.wait(address, per_second, clock))
            .await
            .is_ok()
        {
            return Ok(());
        }
        if let Some(repeated) = turns.warnings.due(clock.now()) {
            tracing::warn!(
                listener = %self.address,
                reason = ConnectionFault::Rate.reason(),
                repeated,
                "connections of clients are closed before their handshake: there are more than `limits.handshakes_per_second`"
            );
        }
        Err(ConnectionFault::Rate)
    }
}

/// Reads the balancer's word where there has to be one, and counts the connection by the address that it tells.
async fn read_proxy_header(
    edge: &DownstreamServer,
    stream: &mut (impl tokio::io::AsyncRead + Unpin),
    protocols: &ListenerProtocols,
    (client, guard): (&mut ClientAddress, &mut ClientConnectionGuard),
) -> Result<(), ConnectionFault> {
    if protocols.is_direct() {
        return Ok(());
    }
    let snapshot = edge.shared.snapshot.load_full();
    let limit = Duration::from_secs(snapshot.limits.handshake_timeout_secs);
    let read = timeout(limit, proxy_protocol::read(stream)).await;
    let read = read.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
    let Some(address) = read.map_err(ConnectionFault::ProxyProtocol)? else {
        return Ok(());
    };
    *client = client.named(address);
    // A proxy that is trusted carries many clients: its requests are counted.
    if let Some(address) = client.ip.filter(|_| !snapshot.is_trusted_proxy(*client)) {
        let counted = guard.record_address(address, &snapshot.limits);
        counted.map_err(ConnectionFault::Limit)?;
    }
    Ok(())
}

/// Serves HTTP/2, or HTTP/1 where the client does not begin with HTTP/2.
async fn serve_either(
    edge: Arc<DownstreamServer>,
    mut connection: DownstreamConnection,
    is_http2: bool,
    arrival: Arrival,
    drained: (watch::Receiver<bool>, Option<UnsentAnswers>),
) -> Result<(), ConnectionFault> {
    let limit = edge.shared.snapshot.load().limits.header_timeout_secs;
    let limit = Duration::from_secs(limit);
    let is_http2 = is_http2 || {
        let preface = timeout(limit, begins_with_preface(&mut connection));
        let read = before_first_request(&drained.0, preface).await;
        matches!(read, Some(Ok(true)))
    };
    if !is_http2 {
        serve_connection(&edge, connection, arrival, drained).await;
        return Ok(());
    }
    let (read, socket) = connection.into_parts();
    serve_http2(edge, ReadBefore { read, socket }, arrival, drained).await;
    Ok(())
}

/// Looks at the first bytes, as many as it takes: any request of HTTP/1 differs from the preface by its fourth.
async fn begins_with_preface(connection: &mut DownstreamConnection) -> bool {
    loop {
        let received = connection.received();
        let length = received.len().min(PREFACE.len());
        if received[..length] != PREFACE[..length] {
            return false;
        }
        if length == PREFACE.len() {
            return true;
        }
        if !matches!(connection.fill().await, Ok(read) if read > 0) {
            return false;
        }
    }
}
