//! HTTP/2 towards model servers: requests share a connection, and what a server did not begin is sent again.

use std::net::SocketAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::support::{
    ANSWER, Authority, Certificate, Http2Server, LARGE_BYTES, Node, SimulatedServer, TestResponse,
    TlsFront, eventually, model, server_config,
};

/// Permits of the endpoint.
const PERMITS: usize = 16;

/// A gateway in front of an https endpoint with `http2: auto`.
struct Fixture {
    node: Node,
    _ca: tempfile::TempDir,
}

impl Fixture {
    async fn start(authority: &Authority, address: SocketAddr) -> Fixture {
        let ca = tempfile::tempdir().unwrap();
        let endpoint = format!(
            "url: \"https://localhost:{}\", max_concurrent_requests: {PERMITS}, api_key: sk-secret, \
             http2: auto, ca_file: \"{}\"",
            address.port(),
            authority.write(ca.path())
        );
        let text = format!("models:\n{}", model("m", &[endpoint], ""));
        let node = Node::start(&text).await;
        Fixture { node, _ca: ca }
    }

    async fn ask(&self, user: &str) -> TestResponse {
        self.node.posting("", &as_user(user)).await.answer().await
    }

    /// Sends as many requests as there are permits, and has them answered once all are at work.
    async fn fill(&self, server: &Http2Server) {
        let mut held = Vec::new();
        for _ in 0..PERMITS {
            held.push(self.node.posting("", &as_user("hold")).await);
        }
        eventually("all are at work", async || {
            (server.at_work() == PERMITS).then_some(())
        })
        .await;
        server.release();
        for answer in held {
            assert_eq!(answer.answer().await.status, 200);
        }
    }
}

fn as_user(user: &str) -> String {
    format!(r#","user":"{user}""#)
}

#[tokio::test]
async fn requests_share_a_connection_and_bodies_of_any_size_pass() {
    let authority = Authority::new();
    let server = Http2Server::start(&authority.certify("localhost"), 100).await;
    let at = Fixture::start(&authority, server.address).await;
    server.probed().await;
    assert_eq!(at.ask("first").await.status, 200);
    at.fill(&server).await;
    let large = format!(
        r#","user":"large","metadata":{{"x":"{}"}}"#,
        "x".repeat(LARGE_BYTES)
    );
    let answer = at.node.posting("", &large).await.answer().await;
    assert_eq!(answer.status, 200);
    assert!(answer.text().len() > LARGE_BYTES, "{}", answer.text().len());
    assert_eq!(server.connections(), 1);
    let heads = server.heads();
    let head = &heads[0];
    assert_eq!(head.headers["authorization"], "Bearer sk-secret");
    let authority = format!("localhost:{}", server.address.port());
    assert_eq!(head.uri.authority().unwrap().as_str(), authority);
    assert_eq!(head.uri.path(), "/v1/chat/completions");
    at.node.settles(0, 0).await;
}

#[tokio::test]
async fn a_client_that_leaves_ends_its_stream_and_not_the_connection() {
    let authority = Authority::new();
    let server = Http2Server::start(&authority.certify("localhost"), 100).await;
    let at = Fixture::start(&authority, server.address).await;
    server.probed().await;
    let mut leaving = at
        .node
        .posting("", r#","stream":true,"user":"stream""#)
        .await
        .0;
    leaving.saw("data: ").await;
    leaving.close();
    at.node.settles(0, 0).await;
    eventually("the server sees it", async || {
        (server.canceled() == 1).then_some(())
    })
    .await;
    assert_eq!(at.ask("next").await.status, 200);
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn what_the_server_refused_is_sent_again_and_what_it_may_have_begun_is_not() {
    let authority = Authority::new();
    let server = Http2Server::start(&authority.certify("localhost"), 100).await;
    let at = Fixture::start(&authority, server.address).await;
    server.probed().await;
    assert_eq!(at.ask("first").await.status, 200);
    let answer = at.ask("refuse-once").await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(server.refused(), 2);
    let event = at.node.event_of(&answer).await;
    assert_eq!(event["attempts"], 1, "{event}");
    let before = server.heads().len();
    let answer = at.ask("break").await;
    assert_eq!(answer.status, 502, "{}", answer.text());
    assert_eq!(server.heads().len(), before + 1);
    assert_eq!(at.ask("next").await.status, 200);
}

#[tokio::test]
async fn a_server_with_few_streams_gets_further_connections() {
    let authority = Authority::new();
    let server = Http2Server::start(&authority.certify("localhost"), 2).await;
    let at = Fixture::start(&authority, server.address).await;
    assert_eq!(at.ask("first").await.status, 200);
    at.fill(&server).await;
    assert!(server.connections() >= PERMITS / 2);
}

#[tokio::test]
async fn a_server_that_has_not_said_how_many_it_takes_gets_one_request_on_a_connection() {
    let authority = Authority::new();
    let server = RawServer::start(&authority.certify("localhost"), Manners::LateSettings).await;
    let at = Fixture::start(&authority, server.address).await;
    let first = at.node.posting("", "").await;
    eventually("it is there", async || (server.posts() == 1).then_some(())).await;
    let second = at.node.posting("", "").await;
    for answer in [first, second] {
        let answer = answer.answer().await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
}

#[tokio::test]
async fn a_server_that_declines_is_spoken_to_in_http1() {
    let authority = Authority::new();
    let server = SimulatedServer::fast().await;
    let front = TlsFront::start(&authority.certify("localhost"), server.address).await;
    let at = Fixture::start(&authority, front.address).await;
    for _ in 0..3 {
        assert_eq!(at.ask("x").await.status, 200);
    }
}

#[tokio::test]
async fn a_server_that_restarts_is_reached_by_a_new_connection() {
    let authority = Authority::new();
    let certificate = authority.certify("localhost");
    let first = Http2Server::start(&certificate, 100).await;
    let behind = Arc::new(Mutex::new(first.address));
    let switch = Switch::start(Arc::clone(&behind)).await;
    let at = Fixture::start(&authority, switch.address).await;
    assert_eq!(at.ask("x").await.status, 200);
    let second = Http2Server::start(&certificate, 100).await;
    *behind.lock() = second.address;
    drop(first);
    eventually("the new one answers", async || {
        (at.ask("x").await.status == 200).then_some(())
    })
    .await;
    assert_eq!(second.connections(), 1);
}

#[tokio::test]
async fn a_request_above_the_last_of_a_goodbye_is_sent_again() {
    let authority = Authority::new();
    let server = RawServer::start(&authority.certify("localhost"), Manners::Goodbye).await;
    let at = Fixture::start(&authority, server.address).await;
    // Both requests take the connection that is there.
    eventually("a check has come", async || {
        (*server.counts.settled.borrow() > 0).then_some(())
    })
    .await;
    let first = at.node.posting("", "").await;
    eventually("it is there", async || (server.posts() == 1).then_some(())).await;
    let second = at.node.posting("", "").await;
    for answer in [first, second] {
        let answer = answer.answer().await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    assert_eq!(server.posts(), 3);
}

/// Passes bytes on to a server that can be exchanged; ended with the value.
struct Switch {
    address: SocketAddr,
    _tasks: JoinSet<()>,
}

impl Switch {
    async fn start(behind: Arc<Mutex<SocketAddr>>) -> Switch {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (mut tcp, _) = listener.accept().await.unwrap();
                let to = *behind.lock();
                connections.spawn(async move {
                    let Ok(mut server) = TcpStream::connect(to).await else {
                        return;
                    };
                    let _ = tokio::io::copy_bidirectional(&mut tcp, &mut server).await;
                });
            }
        });
        Switch {
            address,
            _tasks: tasks,
        }
    }
}

/// A server that writes its frames itself.
struct RawServer {
    address: SocketAddr,
    counts: Arc<Counts>,
    _tasks: JoinSet<()>,
}

#[derive(Clone, Copy, PartialEq)]
enum Manners {
    /// Says goodbye at the second `POST`, of which it has begun the first.
    Goodbye,
    /// Sends its settings, which allow one request, with the answers to the first two `POST`s.
    LateSettings,
}

/// Requests that have come, those that were not begun included, and acknowledged settings.
#[derive(Default)]
struct Counts {
    posts: watch::Sender<usize>,
    settled: watch::Sender<usize>,
}

// Frames and flags (RFC 9113 section 6).
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;
const ACK: u8 = 1;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
/// `SETTINGS_MAX_CONCURRENT_STREAMS: 1` (section 6.5.2).
const ONE_STREAM: [u8; 6] = [0, 3, 0, 0, 0, 1];
const PREFACE_BYTES: usize = 24;
/// `:method: GET` in the static table of HPACK (RFC 7541 appendix A), with the bit of an indexed field.
const METHOD_GET: u8 = 0x82;

impl RawServer {
    async fn start(certificate: &Certificate, manners: Manners) -> RawServer {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(server_config(certificate, &["h2"])));
        let counts: Arc<Counts> = Arc::default();
        let mut tasks = JoinSet::new();
        let seen = Arc::clone(&counts);
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (tcp, _) = listener.accept().await.unwrap();
                let (acceptor, seen) = (acceptor.clone(), Arc::clone(&seen));
                connections.spawn(async move {
                    if let Ok(tls) = acceptor.accept(tcp).await {
                        // The client ends it.
                        let _ = match manners {
                            Manners::Goodbye => close_in_between(tls, &seen).await,
                            Manners::LateSettings => settle_late(tls, &seen).await,
                        };
                    }
                });
            }
        });
        RawServer {
            address,
            counts,
            _tasks: tasks,
        }
    }

    fn posts(&self) -> usize {
        *self.counts.posts.borrow()
    }
}

/// A frame that was read: its type, its flags, its stream and its payload.
type Frame = (u8, u8, u32, Vec<u8>);

async fn next_frame(tls: &mut TlsStream<TcpStream>) -> std::io::Result<Frame> {
    let mut head = [0; 9];
    tls.read_exact(&mut head).await?;
    let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
    let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
    let mut payload = vec![0; length];
    tls.read_exact(&mut payload).await?;
    Ok((head[3], head[4], stream, payload))
}

async fn close_in_between(mut tls: TlsStream<TcpStream>, counts: &Counts) -> std::io::Result<()> {
    let mut preface = [0; PREFACE_BYTES];
    tls.read_exact(&mut preface).await?;
    send(&mut tls, (SETTINGS, 0, 0), &[]).await?;
    let mut held = None;
    loop {
        let (kind, flags, stream, payload) = next_frame(&mut tls).await?;
        match kind {
            SETTINGS if flags & ACK == 0 => send(&mut tls, (SETTINGS, ACK, 0), &[]).await?,
            // The settings are known there, and further requests come on this connection.
            SETTINGS => counts.settled.send_modify(|settled| *settled += 1),
            HEADERS if payload[0] == METHOD_GET => reply(&mut tls, stream, b"{}").await?,
            HEADERS => {
                counts.posts.send_modify(|posts| *posts += 1);
                let number = *counts.posts.borrow();
                match (number, held) {
                    (1, _) => held = Some(stream),
                    (_, Some(first)) => {
                        let goodbye = [first.to_be_bytes(), 0u32.to_be_bytes()].concat();
                        send(&mut tls, (GOAWAY, 0, 0), &goodbye).await?;
                        reply(&mut tls, first, ANSWER.as_bytes()).await?;
                    }
                    _ => reply(&mut tls, stream, ANSWER.as_bytes()).await?,
                }
            }
            _ => {}
        }
    }
}

/// Reads no second request before the settings have gone; probes wait for them too.
async fn settle_late(mut tls: TlsStream<TcpStream>, counts: &Counts) -> std::io::Result<()> {
    let mut preface = [0; PREFACE_BYTES];
    tls.read_exact(&mut preface).await?;
    let mut has_settled = false;
    loop {
        let (HEADERS, _, stream, payload) = next_frame(&mut tls).await? else {
            continue;
        };
        let is_probe = payload[0] == METHOD_GET;
        counts
            .posts
            .send_modify(|posts| *posts += usize::from(!is_probe));
        if !has_settled {
            counts
                .posts
                .subscribe()
                .wait_for(|posts| *posts >= 2)
                .await
                .unwrap();
            send(&mut tls, (SETTINGS, 0, 0), &ONE_STREAM).await?;
            has_settled = true;
        }
        let body = if is_probe { "{}" } else { ANSWER };
        reply(&mut tls, stream, body.as_bytes()).await?;
    }
}

/// Answers 200 with a JSON body.
async fn reply(tls: &mut TlsStream<TcpStream>, stream: u32, body: &[u8]) -> std::io::Result<()> {
    // `:status: 200`, then a literal `content-type` whose name is number 31 of the static table.
    let mut fields = vec![0x88, 0x0f, 0x10, 16];
    fields.extend_from_slice(b"application/json");
    send(tls, (HEADERS, END_HEADERS, stream), &fields).await?;
    send(tls, (DATA, END_STREAM, stream), body).await
}

async fn send(
    tls: &mut TlsStream<TcpStream>,
    (kind, flags, stream): (u8, u8, u32),
    payload: &[u8],
) -> std::io::Result<()> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = vec![length[1], length[2], length[3], kind, flags];
    frame.extend_from_slice(&stream.to_be_bytes());
    frame.extend_from_slice(payload);
    tls.write_all(&frame).await?;
    tls.flush().await
}
