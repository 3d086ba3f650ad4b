//! A model server that speaks HTTP/2 behind TLS. What it does with a request is what its `user` says.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use h2::server::{Builder, SendResponse};
use h2::{Ping, Reason, RecvStream};
use http::{Request, Response};
use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::tls::server_config;
use super::{ANSWER, Certificate};

/// Bytes of a large answer.
pub const LARGE_BYTES: usize = 1 << 20;

/// The server; ended with the value.
pub struct Http2Server {
    /// Address at which it listens.
    pub address: SocketAddr,
    seen: Arc<Seen>,
    release: watch::Sender<bool>,
    _tasks: JoinSet<()>,
}

/// Requests and connections so far.
#[derive(Default)]
struct Seen {
    connections: AtomicUsize,
    probes: AtomicUsize,
    settled: AtomicUsize,
    posts: AtomicUsize,
    canceled: AtomicUsize,
    refused: AtomicUsize,
    at_work: AtomicUsize,
    heads: Mutex<Vec<http::request::Parts>>,
}

impl Http2Server {
    /// Listens with `certificate`; a connection carries `streams_max` requests at a time.
    pub async fn start(certificate: &Certificate, streams_max: u32) -> Http2Server {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(server_config(certificate, &["h2"])));
        let seen: Arc<Seen> = Arc::default();
        let (release, released) = watch::channel(false);
        let mut tasks = JoinSet::new();
        let shared = Arc::clone(&seen);
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (tcp, _) = listener.accept().await.unwrap();
                let (acceptor, seen) = (acceptor.clone(), Arc::clone(&shared));
                let released = released.clone();
                connections.spawn(async move {
                    // Health checks and ends of tests break handshakes off.
                    if let Ok(tls) = acceptor.accept(tcp).await {
                        serve(tls, streams_max, seen, released).await;
                    }
                });
            }
        });
        Http2Server {
            address,
            seen,
            release,
            _tasks: tasks,
        }
    }

    /// Connections that have carried a `POST`.
    pub fn connections(&self) -> usize {
        self.seen.connections.load(Ordering::SeqCst)
    }

    /// Waits for a health check: its connection is shared from then on.
    pub async fn probed(&self) {
        let seen = &self.seen;
        super::eventually("a check has come", async || {
            let counts = [&seen.probes, &seen.settled];
            let has_come = |count: &AtomicUsize| count.load(Ordering::SeqCst) > 0;
            counts.into_iter().all(has_come).then_some(())
        })
        .await;
    }

    /// Requests that are no probes, those included whose bodies have not come.
    pub fn posts(&self) -> usize {
        self.seen.posts.load(Ordering::SeqCst)
    }

    /// Streams that were reset by their client.
    pub fn canceled(&self) -> usize {
        self.seen.canceled.load(Ordering::SeqCst)
    }

    /// Streams that were refused.
    pub fn refused(&self) -> usize {
        self.seen.refused.load(Ordering::SeqCst)
    }

    /// Requests that are held.
    pub fn at_work(&self) -> usize {
        self.seen.at_work.load(Ordering::SeqCst)
    }

    /// Answers what is held, and holds nothing any more.
    pub fn release(&self) {
        self.release.send_replace(true);
    }

    /// Heads of the `POST`s that were read whole.
    pub fn heads(&self) -> Vec<http::request::Parts> {
        self.seen.heads.lock().clone()
    }
}

async fn serve(
    tls: TlsStream<TcpStream>,
    streams_max: u32,
    seen: Arc<Seen>,
    released: watch::Receiver<bool>,
) {
    let mut builder = Builder::new();
    builder.max_concurrent_streams(streams_max);
    let Ok(mut connection) = builder.handshake::<_, Bytes>(tls).await else {
        return;
    };
    let (mut streams, mut is_counted) = (JoinSet::new(), false);
    let (mut pings, settled) = (connection.ping_pong().unwrap(), Arc::clone(&seen));
    streams.spawn(async move {
        // Its answer follows the settings: they are known there.
        if pings.ping(Ping::opaque()).await.is_ok() {
            settled.settled.fetch_add(1, Ordering::SeqCst);
        }
    });
    while let Some(Ok((request, respond))) = connection.accept().await {
        if request.method() == "POST" && !is_counted {
            is_counted = true;
            seen.connections.fetch_add(1, Ordering::SeqCst);
        }
        streams.spawn(answer(
            request,
            respond,
            Arc::clone(&seen),
            released.clone(),
        ));
    }
    // Each learns itself how its request ended.
    while streams.join_next().await.is_some() {}
}

async fn answer(
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
    seen: Arc<Seen>,
    mut released: watch::Receiver<bool>,
) {
    let (parts, mut body) = request.into_parts();
    let is_post = parts.method == "POST";
    seen.posts.fetch_add(usize::from(is_post), Ordering::SeqCst);
    let mut text = Vec::new();
    while let Some(part) = body.data().await {
        let Ok(part) = part else {
            seen.canceled.fetch_add(1, Ordering::SeqCst);
            return;
        };
        body.flow_control().release_capacity(part.len()).unwrap();
        text.extend_from_slice(&part);
    }
    match is_post {
        true => seen.heads.lock().push(parts),
        false => drop(seen.probes.fetch_add(1, Ordering::SeqCst)),
    }
    let text = String::from_utf8_lossy(&text);
    let asks_to = |word: &str| is_post && text.contains(&format!(r#""user":"{word}""#));
    if asks_to("refuse-once") && seen.refused.fetch_add(1, Ordering::SeqCst) == 0 {
        return respond.send_reset(Reason::REFUSED_STREAM);
    }
    if asks_to("break") {
        return respond.send_reset(Reason::INTERNAL_ERROR);
    }
    if asks_to("stream") {
        return stream(respond, &seen).await;
    }
    if asks_to("hold") {
        seen.at_work.fetch_add(1, Ordering::SeqCst);
        released.wait_for(|released| *released).await.unwrap();
    }
    let content = match asks_to("large") {
        true => ANSWER.replace(
            "\"content\":\"a\"",
            &format!("\"content\":\"{}\"", "a".repeat(LARGE_BYTES)),
        ),
        false => ANSWER.to_owned(),
    };
    let head = Response::builder().header("content-type", "application/json");
    // The client may be gone.
    if let Ok(mut body) = respond.send_response(head.body(()).unwrap(), false) {
        let _ = body.send_data(content.into(), true);
    }
}

/// Begins a stream of events that has no end.
async fn stream(mut respond: SendResponse<Bytes>, seen: &Seen) {
    let head = Response::builder().header("content-type", "text/event-stream");
    let mut body = respond
        .send_response(head.body(()).unwrap(), false)
        .unwrap();
    let event = r#"{"id":"x","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":"a"}}]}"#;
    let event = format!("data: {event}\n\n");
    body.send_data(Bytes::from(event), false).unwrap();
    if std::future::poll_fn(|cx| body.poll_reset(cx)).await.is_ok() {
        seen.canceled.fetch_add(1, Ordering::SeqCst);
    }
}
