//! Accepting connections: bound before anything else starts, counted, and each served by a task.
//!
//! It reads no byte of a connection. Accepting here, and not in the framework's server, makes a
//! taken address an exit code, the drain end with the last request, and a client's connection
//! limit apply before its first byte: `docs/decisions/004-own-accept-loop.md`.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use pingora_core::apps::HttpServerApp;
use pingora_core::protocols::http::ServerSession;
use pingora_core::protocols::l4::stream::Stream as L4Stream;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::admin::Admin;
use crate::config::Listen;
use crate::proxy::{Connections, Edge, Shared, serve_connection};

/// Connections the kernel holds while every worker is busy.
const BACKLOG: u32 = 4096;
/// After a failed accept (no file descriptors left, usually) so that the loop does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// All sockets of the node, bound.
pub struct Listeners {
    /// For clients.
    pub clients: Vec<TcpListener>,
    /// For operators.
    pub admin: TcpListener,
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
        Ok(Listeners {
            clients,
            admin: bind(listen.admin.address)?,
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
    edge: Arc<Edge>,
    shared: Arc<Shared>,
    connections: Arc<Connections>,
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
        let limit = shared.world.load().limits.connections_per_client;
        let Some(connection) = connections.open(address.ip(), limit) else {
            shared.metrics.connection_refused("per-client-limit");
            continue;
        };
        shared.metrics.connection_accepted();
        let serving = serve_connection(Arc::clone(&edge), tcp, closed.clone());
        open.spawn(async move {
            serving.await;
            drop(connection);
        });
    }
    // Nobody is to connect and then wait for nothing.
    drop(listener);
    while open.join_next().await.is_some() {}
}

/// Serves operators, also while draining, until the set of tasks is ended.
pub async fn accept_admin(listener: TcpListener, admin: Arc<Admin>, closed: watch::Receiver<bool>) {
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
