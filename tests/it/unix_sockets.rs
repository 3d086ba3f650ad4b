//! Model servers at sockets in the file system: asked, checked, kept and named like those at an address.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::future::join_all;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpStream, UnixListener, UnixSocket, UnixStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::support::websocket::{RecordingServer, WebSocketClient, plain};
use crate::support::{
    ANSWER, LIMIT, Node, ScriptedServer, SimulatedServer, chat, endpoint, eventually, json_answer,
    model,
};

/// Socket in the file system before a server at an address.
struct SocketFront {
    path: PathBuf,
    accepted: Arc<AtomicUsize>,
    /// Connections that may be accepted from now on.
    may_accept: Arc<Semaphore>,
    _tasks: JoinSet<()>,
}

impl SocketFront {
    fn start(folder: &Path, server: SocketAddr) -> SocketFront {
        let path = folder.join("Model.sock");
        let listener = UnixListener::bind(&path).unwrap();
        SocketFront::over(listener, path, server, Semaphore::MAX_PERMITS)
    }

    fn over(
        listener: UnixListener,
        path: PathBuf,
        server: SocketAddr,
        accepts: usize,
    ) -> SocketFront {
        let accepted = Arc::new(AtomicUsize::new(0));
        let may_accept = Arc::new(Semaphore::new(accepts));
        let (counter, places) = (Arc::clone(&accepted), Arc::clone(&may_accept));
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                places.acquire().await.unwrap().forget();
                let (mut unix, _) = listener.accept().await.unwrap();
                counter.fetch_add(1, Ordering::SeqCst);
                connections.spawn(async move {
                    let mut tcp = TcpStream::connect(server).await.unwrap();
                    let _ = copy_bidirectional(&mut unix, &mut tcp).await;
                });
            }
        });
        SocketFront {
            path,
            accepted,
            may_accept,
            _tasks: tasks,
        }
    }

    fn url(&self) -> String {
        format!("unix:{}", self.path.display())
    }
}

/// A model `m` at a socket, with a prefix and further keys of the endpoint.
fn one_model(front: &SocketFront, prefix: &str, more: &str) -> String {
    let endpoint = format!("url: \"{}{prefix}\", {more}", front.url());
    format!("models:\n{}", model("m", &[endpoint], ""))
}

/// Posts a chat to a gateway that listens at a socket, and returns the whole answer.
async fn ask(path: &Path, more: &str) -> String {
    let mut client = UnixStream::connect(path).await.unwrap();
    let body = chat("m", more);
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    client.write_all((head + &body).as_bytes()).await.unwrap();
    let mut answer = String::new();
    timeout(LIMIT, client.read_to_string(&mut answer))
        .await
        .unwrap()
        .unwrap();
    answer
}

#[tokio::test]
async fn requests_go_from_a_socket_to_a_socket_over_connections_that_are_kept() {
    let dir = TempDir::new().unwrap();
    let server = SimulatedServer::fast().await;
    let front = SocketFront::start(dir.path(), server.address);
    let path = dir.path().join("api.sock");
    let listener = format!(
        "  listener: health: false }}, {{ address: \"unix:{}\"\n",
        path.display()
    );
    let config = listener + &one_model(&front, "", "max_concurrent_requests: 1");
    let node = Node::start(&config).await;
    for more in [r#","stream":true"#, ""] {
        for _ in 0..5 {
            let answer = ask(&path, more).await;
            assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
            assert_eq!(answer.contains("[DONE]"), !more.is_empty(), "{answer}");
        }
    }
    assert_eq!(server.count("served").await, 10);
    // One of the requests, and those of checks.
    assert!(front.accepted.load(Ordering::SeqCst) < 8);
    let state = node.state().await;
    let shown = &state["models"][0]["endpoints"][0];
    assert_eq!(shown["url"], front.url(), "{state}");
    let answer = node.posting("", "").await.answer().await;
    assert_eq!(answer.status, 200);
    let event = node.event_of(&answer).await;
    assert_eq!(event["upstream"], front.url(), "{event}");
    let id = answer.header("x-request-id").unwrap();
    let explained = node.explain(id).await.to_string();
    assert!(explained.contains(&front.url()), "{explained}");
    node.idle().await;
}

#[tokio::test]
async fn the_host_of_a_socket_is_localhost_and_its_prefix_stands_before_every_path() {
    let dir = TempDir::new().unwrap();
    let server = ScriptedServer::new(&[&json_answer(ANSWER)]).await;
    let front = SocketFront::start(dir.path(), server.address);
    let node = Node::start(&one_model(&front, ":/base/", "api_key: sk-secret")).await;
    let answer = node.posting("", "").await.answer().await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let request = server.requests().remove(0);
    let begin = "POST /base/v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n";
    assert!(request.starts_with(begin), "{request}");
    assert!(
        request.contains("authorization: Bearer sk-secret\r\n"),
        "{request}"
    );
    let probe = eventually("it is checked", async || server.probes().pop()).await;
    assert!(probe.starts_with("GET /base/"), "{probe}");
    assert!(probe.contains("host: localhost\r\n"), "{probe}");
}

#[tokio::test]
async fn a_request_that_finds_no_socket_goes_to_another_server_until_one_listens() {
    let dir = TempDir::new().unwrap();
    let (local, other) = (SimulatedServer::fast().await, SimulatedServer::fast().await);
    let path = dir.path().join("Model.sock");
    let url = format!("url: \"unix:{}\"", path.display());
    let second = format!("{}, priority: 1", endpoint(other.address, 4));
    let config = format!("models:\n{}", model("m", &[url, second], ""));
    let node = Node::start(&config).await;
    for _ in 0..5 {
        assert_eq!(node.posting("", "").await.answer().await.status, 200);
    }
    assert_eq!(other.count("served").await, 5);
    eventually("the log names the cause", async || {
        node.log().contains("no such socket").then_some(())
    })
    .await;
    // Left over by a process that was killed.
    drop(UnixListener::bind(&path).unwrap());
    assert_eq!(node.posting("", "").await.answer().await.status, 200);
    std::fs::remove_file(&path).unwrap();
    let _front = SocketFront::start(dir.path(), local.address);
    eventually("requests go to the socket", async || {
        assert_eq!(node.posting("", "").await.answer().await.status, 200);
        (local.count("served").await > 0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_server_without_room_for_another_connection_is_waited_for() {
    const REQUESTS: usize = 12;
    let dir = TempDir::new().unwrap();
    let server = SimulatedServer::taking(0).await;
    let path = dir.path().join("Model.sock");
    let socket = UnixSocket::new_stream().unwrap();
    socket.bind(&path).unwrap();
    // Two wait in the kernel; the third is refused at once.
    let front = SocketFront::over(socket.listen(1).unwrap(), path, server.address, 0);
    let health = "max_concurrent_requests: 12";
    let node = Node::start(&one_model(&front, "", health)).await;
    let posted = join_all((0..REQUESTS).map(|_| node.posting("", ""))).await;
    node.settles(REQUESTS as u64, 0).await;
    front.may_accept.add_permits(1000);
    for answer in join_all(posted.into_iter().map(|posted| posted.answer())).await {
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    let refused = "infergate_retries_total{model=\"m\",reason=\"connect\"}";
    assert_eq!(node.metric(refused).await.unwrap_or(0.0), 0.0);
}

#[tokio::test]
async fn a_websocket_goes_to_a_socket() {
    let dir = TempDir::new().unwrap();
    let server = RecordingServer::start().await;
    let front = SocketFront::start(dir.path(), server.address);
    let node = Node::start(&format!(
        "models:\n  - id: ws\n    task: dumb-pipe\n    backend: http\n    endpoints: [{{ url: \"{}\" }}]\n",
        front.url()
    ))
    .await;
    let mut client = WebSocketClient::connect(node.clients, "/ai/run/ws").await;
    let socket = server.socket(0).await;
    let head = socket.head.to_ascii_lowercase();
    assert!(head.contains("host: localhost\r\n"), "{head}");
    socket.send(&plain(0x81, b"from the server"));
    assert_eq!(client.text().await, "from the server");
    client.send_close(1000, "").await;
    node.settles(1, 0).await;
}
