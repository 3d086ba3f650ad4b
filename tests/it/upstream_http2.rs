//! HTTP/2 towards model servers: requests share a connection, and what a server did not begin is sent again.

use std::net::SocketAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
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
    let server = GoodbyeServer::start(&authority.certify("localhost")).await;
    let at = Fixture::start(&authority, server.address).await;
    // Both requests take the connection that is there.
    eventually("a check has come", async || {
        (server.counts.lock().probes > 0).then_some(())
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

/// A server that says goodbye at the second `POST` of its first connection, of which it has begun the first.
struct GoodbyeServer {
    address: SocketAddr,
    counts: Arc<Mutex<Counts>>,
    _tasks: JoinSet<()>,
}

/// Requests that have come, those that were not begun included.
#[derive(Default)]
struct Counts {
    posts: usize,
    probes: usize,
}

// Frames and flags (RFC 9113 section 6).
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;
const ACK: u8 = 1;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const PREFACE_BYTES: usize = 24;
/// `:method: GET` in the static table of HPACK (RFC 7541 appendix A), with the bit of an indexed field.
const METHOD_GET: u8 = 0x82;

impl GoodbyeServer {
    async fn start(certificate: &Certificate) -> GoodbyeServer {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(server_config(certificate, &["h2"])));
        let counts: Arc<Mutex<Counts>> = Arc::default();
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
                        let _ = speak(tls, &seen).await;
                    }
                });
            }
        });
        GoodbyeServer {
            address,
            counts,
            _tasks: tasks,
        }
    }

    fn posts(&self) -> usize {
        self.counts.lock().posts
    }
}

async fn speak(mut tls: TlsStream<TcpStream>, counts: &Mutex<Counts>) -> std::io::Result<()> {
    let mut preface = [0; PREFACE_BYTES];
    tls.read_exact(&mut preface).await?;
    send(&mut tls, (SETTINGS, 0, 0), &[]).await?;
    let mut held = None;
    loop {
        let mut head = [0; 9];
        tls.read_exact(&mut head).await?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
        let mut payload = vec![0; length];
        tls.read_exact(&mut payload).await?;
        match (head[3], head[4]) {
            (SETTINGS, flags) if flags & ACK == 0 => {
                send(&mut tls, (SETTINGS, ACK, 0), &[]).await?;
            }
            (HEADERS, _) if payload[0] == METHOD_GET => {
                counts.lock().probes += 1;
                reply(&mut tls, stream, b"{}").await?;
            }
            (HEADERS, _) => {
                let number = {
                    let mut counts = counts.lock();
                    counts.posts += 1;
                    counts.posts
                };
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
