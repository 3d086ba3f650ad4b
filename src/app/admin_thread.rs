//! The operators' listener: a thread of its own, in plain text or under TLS.
//!
//! Answers are the admin module's. A reload changes the certificates, for new connections. At most
//! [`CONNECTIONS_MAX`] connections are open at a time.

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use pingora_core::apps::HttpServerApp;
use pingora_core::protocols::Stream;
use pingora_core::protocols::http::ServerSession;
use pingora_core::protocols::l4::stream::Stream as L4Stream;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::listen::accept;
use crate::admin::{Admin, AdminTlsStream};
use crate::state::Shared;
use crate::telemetry::WarningLimit;
use crate::tls::ListenerTls;

/// Connections at a time, those that have not made their handshake included. Operators, their tools and scrapers have
/// a few; strangers are to leave the process's descriptors to clients.
const CONNECTIONS_MAX: usize = 256;

/// Time for an operator's handshake.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(5);

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
        (listener, admin, tls): (TcpListener, Arc<Admin>, Arc<ArcSwapOption<ListenerTls>>),
        shared: Arc<Shared>,
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
                    () = accept_admin(listener, (admin, shared), closed, tls) => {}
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

async fn accept_admin(
    listener: TcpListener,
    (admin, shared): (Arc<Admin>, Arc<Shared>),
    closed: watch::Receiver<bool>,
    tls: Arc<ArcSwapOption<ListenerTls>>,
) {
    let warnings = WarningLimit::default();
    let mut open = JoinSet::new();
    loop {
        let Some((tcp, address)) = accept(&listener).await else {
            continue;
        };
        while open.try_join_next().is_some() {}
        if open.len() >= CONNECTIONS_MAX {
            shared.metrics.record_refused_connection("admin-limit");
            // Anybody who reaches the listener can cause it, and then no operator gets an answer.
            if let Some(repeated) = warnings.due(shared.clock.now()) {
                tracing::warn!(
                    %address,
                    repeated,
                    open = CONNECTIONS_MAX,
                    "a connection to the operators' listener is closed: there are too many"
                );
            }
            continue;
        }
        let admin = Arc::clone(&admin);
        let closed = closed.clone();
        let tls = tls.load_full();
        open.spawn(async move {
            let opened: Option<Stream> = match tls {
                None => Some(Box::new(L4Stream::from(tcp))),
                Some(tls) => handshake(&tls, tcp, address).await,
            };
            let Some(mut stream) = opened else { return };
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

/// Makes the handshake of an operator's connection; none where it fails, which anybody can cause.
async fn handshake(tls: &ListenerTls, tcp: TcpStream, address: SocketAddr) -> Option<Stream> {
    match tls.accept(tcp, HANDSHAKE_LIMIT).await {
        Ok(tls) => Some(Box::new(AdminTlsStream::new(tls))),
        Err(error) => {
            tracing::debug!(%address, %error, "an operator's connection failed its handshake");
            None
        }
    }
}
