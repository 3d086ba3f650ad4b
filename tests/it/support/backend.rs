//! Model servers in this process: the simulator, and one whose every byte a test scripts.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use infergate::simulate;
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::{TestClient, eventually};

/// A simulated model server, ended with the value.
pub struct SimulatedServer {
    /// Address at which it listens.
    pub address: SocketAddr,
    _tasks: JoinSet<()>,
}

impl SimulatedServer {
    /// A fast server of the OpenAI dialect.
    pub async fn fast() -> SimulatedServer {
        SimulatedServer::start(simulate::Config {
            ttft_ms: 0,
            tokens_per_sec: 0.0,
            ..Default::default()
        })
        .await
    }

    /// A server that needs `ttft_ms` for an answer and takes any number of requests at once.
    pub async fn taking(ttft_ms: u64) -> SimulatedServer {
        SimulatedServer::start(simulate::Config {
            ttft_ms,
            ..simulate::Config::instant()
        })
        .await
    }

    /// A server with options.
    pub async fn start(config: simulate::Config) -> SimulatedServer {
        SimulatedServer::on(TcpListener::bind("127.0.0.1:0").await.unwrap(), config)
    }

    /// A server with options at an address that another one had.
    pub async fn start_at(address: SocketAddr, config: simulate::Config) -> SimulatedServer {
        let listener = eventually("the address is free", async || {
            TcpListener::bind(address).await.ok()
        });
        SimulatedServer::on(listener.await, config)
    }

    fn on(listener: TcpListener, config: simulate::Config) -> SimulatedServer {
        let address = listener.local_addr().unwrap();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            simulate::serve(config, listener, std::future::pending())
                .await
                .unwrap();
        });
        SimulatedServer {
            address,
            _tasks: tasks,
        }
    }

    /// `/sim/stats`.
    pub async fn stats(&self) -> serde_json::Value {
        TestClient::try_get(self.address, "/sim/stats")
            .await
            .unwrap()
            .json()
    }

    /// Sets or, with `{"fault":null}`, ends what the server does wrong.
    pub async fn fault(&self, json: &str) {
        let mut client = TestClient::connect(self.address).await;
        let length = json.len();
        client
            .send(format!(
                "PUT /sim/fault HTTP/1.1\r\nHost: s\r\nContent-Length: {length}\r\n\r\n{json}"
            ))
            .await;
        assert_eq!(client.response().await.status, 200);
    }

    /// Count `name` of `/sim/stats`.
    pub async fn count(&self, name: &str) -> u64 {
        self.stats().await[name].as_u64().unwrap()
    }
}

/// An address at which connections are refused for as long as the value lives.
pub struct RefusingServer {
    /// Address at which connections are refused.
    pub address: SocketAddr,
    socket: TcpSocket,
}

impl RefusingServer {
    /// Takes a free address.
    pub fn new() -> RefusingServer {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = socket.local_addr().unwrap();
        RefusingServer { address, socket }
    }

    /// From now on a fast server listens there.
    pub fn serve(self) -> SimulatedServer {
        let listener = self.socket.listen(64).unwrap();
        SimulatedServer::on(listener, simulate::Config::instant())
    }
}

/// An address for servers that come and go: while none is there connections are refused, and nobody
/// else on the machine is given the port.
pub struct KeepAliveServer {
    /// Address at which they listen.
    pub address: SocketAddr,
    /// Bound, and never listening.
    _socket: TcpSocket,
}

impl KeepAliveServer {
    /// Takes a free address.
    pub fn new() -> KeepAliveServer {
        let socket = KeepAliveServer::bound("127.0.0.1:0".parse().unwrap());
        let address = socket.local_addr().unwrap();
        KeepAliveServer {
            address,
            _socket: socket,
        }
    }

    /// A fast server that listens there until it is dropped.
    pub fn serve(&self) -> SimulatedServer {
        let listener = KeepAliveServer::bound(self.address).listen(64).unwrap();
        SimulatedServer::on(listener, simulate::Config::instant())
    }

    /// Sockets that all allow it may share an address as long as one of them listens at most.
    fn bound(address: SocketAddr) -> TcpSocket {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_reuseaddr(true).unwrap();
        socket.bind(address).unwrap();
        socket
    }
}

/// A server that answers every request with the script's bytes, piece by piece. Between two pieces
/// it waits for [`Scripted::next`]; a closed client is counted.
pub struct ScriptedServer {
    /// Address at which it listens.
    pub address: SocketAddr,
    inner: Arc<Inner>,
    _tasks: JoinSet<()>,
}

struct Inner {
    pieces: Vec<Vec<u8>>,
    close_at_end: bool,
    requests: Mutex<Vec<String>>,
    probes: Mutex<Vec<String>>,
    /// Responses to `GET`, in place of `ok`.
    pages: Mutex<Vec<ScriptedPage>>,
    step: Notify,
    open: AtomicUsize,
    gone: AtomicUsize,
}

struct ScriptedPage {
    path: String,
    /// Header lines, each with its end.
    headers: String,
    body: String,
}

impl ScriptedServer {
    /// Answers with these pieces and then keeps the connection.
    pub async fn new(pieces: &[&str]) -> ScriptedServer {
        ScriptedServer::start(pieces, false).await
    }

    /// Answers with these pieces and then closes.
    pub async fn closing(pieces: &[&str]) -> ScriptedServer {
        ScriptedServer::start(pieces, true).await
    }

    async fn start(pieces: &[&str], close_at_end: bool) -> ScriptedServer {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let inner = Arc::new(Inner {
            pieces: pieces
                .iter()
                .map(|piece| piece.as_bytes().to_vec())
                .collect(),
            close_at_end,
            requests: Mutex::new(Vec::new()),
            probes: Mutex::new(Vec::new()),
            pages: Mutex::default(),
            step: Notify::new(),
            open: AtomicUsize::new(0),
            gone: AtomicUsize::new(0),
        });
        let mut tasks = JoinSet::new();
        let accepting = Arc::clone(&inner);
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (tcp, _) = listener.accept().await.unwrap();
                // A piece is a write of its own.
                tcp.set_nodelay(true).unwrap();
                connections.spawn(serve(Arc::clone(&accepting), tcp));
            }
        });
        ScriptedServer {
            address,
            inner,
            _tasks: tasks,
        }
    }

    /// A server that answers each request with this JSON once [`Scripted::next`] lets it.
    pub async fn held() -> ScriptedServer {
        ScriptedServer::new(&["", &json_answer(ANSWER)]).await
    }

    /// Lets one waiting answer go on with its next piece.
    pub fn next(&self) {
        self.inner.step.notify_one();
    }

    /// From now on `GET` of `path` is answered with `body`.
    pub fn set_page(&self, path: &str, body: &str) {
        let plain = "Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n";
        self.set_page_as(path, plain, body);
    }

    /// From now on `GET` of `path` is answered with these header lines and `body`.
    pub fn set_page_as(&self, path: &str, headers: &str, body: &str) {
        let mut pages = self.inner.pages.lock();
        pages.retain(|page| page.path != path);
        pages.push(ScriptedPage {
            path: path.to_owned(),
            headers: headers.to_owned(),
            body: body.to_owned(),
        });
    }

    /// Requests received so far, health probes left out: head and body as text.
    pub fn requests(&self) -> Vec<String> {
        self.inner.requests.lock().clone()
    }

    /// Waits until so many requests have been received. Answers are let go in the order in which requests came.
    pub async fn has_received(&self, count: usize) {
        let all_there = async || (self.requests().len() == count).then_some(());
        eventually(&format!("{count} requests are at the server"), all_there).await;
    }

    /// Health probes received so far: heads as text.
    pub fn probes(&self) -> Vec<String> {
        self.inner.probes.lock().clone()
    }

    /// Requests being answered.
    pub fn open(&self) -> usize {
        self.inner.open.load(Ordering::SeqCst)
    }

    /// Answers whose client left before the end.
    pub fn gone(&self) -> usize {
        self.inner.gone.load(Ordering::SeqCst)
    }
}

async fn serve(inner: Arc<Inner>, mut tcp: TcpStream) {
    let mut read = Vec::new();
    while let Some(request) = request(&mut tcp, &mut read).await {
        if request.starts_with("GET ") {
            let path = request.split(' ').nth(1).unwrap_or_default();
            let (headers, page) = {
                let pages = inner.pages.lock();
                let page = pages.iter().find(|page| page.path == path);
                page.map_or((String::new(), "ok".to_owned()), |page| {
                    (page.headers.clone(), page.body.clone())
                })
            };
            inner.probes.lock().push(request);
            // Closed, so that no request finds the probe's connection in a pool.
            let length = page.len();
            let ok = format!(
                "HTTP/1.1 200 OK\r\n{headers}Connection: close\r\nContent-Length: {length}\r\n\r\n{page}"
            );
            // A gateway that ends in the middle of a probe is of no interest here.
            let _ = tcp.write_all(ok.as_bytes()).await;
            return;
        }
        inner.requests.lock().push(request);
        inner.open.fetch_add(1, Ordering::SeqCst);
        let finished = answer(&inner, &mut tcp).await;
        inner.open.fetch_sub(1, Ordering::SeqCst);
        if !finished {
            inner.gone.fetch_add(1, Ordering::SeqCst);
            return;
        }
        if inner.close_at_end {
            return;
        }
    }
}

async fn answer(inner: &Inner, tcp: &mut TcpStream) -> bool {
    for (index, piece) in inner.pieces.iter().enumerate() {
        if index > 0 {
            let mut probe = [0; 1];
            tokio::select! {
                () = inner.step.notified() => {}
                read = tcp.read(&mut probe) => {
                    assert!(!matches!(read, Ok(1..)), "bytes during an answer");
                    return false;
                }
            }
        }
        if tcp.write_all(piece).await.is_err() {
            return false;
        }
    }
    true
}

/// Head and body of the next request; none when the client closed.
pub(super) async fn request(tcp: &mut TcpStream, read: &mut Vec<u8>) -> Option<String> {
    loop {
        if let Some(end) = read.windows(4).position(|w| w == b"\r\n\r\n") {
            let head = String::from_utf8(read[..end + 4].to_vec()).unwrap();
            let length = head
                .lines()
                .find_map(|line| {
                    line.to_ascii_lowercase()
                        .strip_prefix("content-length: ")?
                        .parse()
                        .ok()
                })
                .unwrap_or(0);
            if read.len() >= end + 4 + length {
                let rest = read.split_off(end + 4 + length);
                let whole = std::mem::replace(read, rest);
                return Some(String::from_utf8(whole).unwrap());
            }
        }
        match tcp.read_buf(read).await {
            Ok(0) | Err(_) => return None,
            Ok(_) => {}
        }
    }
}

/// The address of a server that reads no body: it answers once it has read something of a request, and
/// then neither reads nor closes, until the tasks are dropped. Health checks are answered.
pub async fn early(answer: String) -> (SocketAddr, JoinSet<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let mut open = Vec::new();
        while let Ok((mut tcp, _)) = listener.accept().await {
            let mut begin = [0; 4];
            let _ = tcp.read_exact(&mut begin).await;
            let ok = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok";
            let is_probe = &begin == b"GET ";
            let output = if is_probe { ok } else { &*answer };
            let _ = tcp.write_all(output.as_bytes()).await;
            open.push(tcp);
        }
    });
    (address, tasks)
}

/// A whole chat answer of one token.
pub const ANSWER: &str = r#"{"id":"x","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"a"},"finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":1,"total_tokens":4}}"#;

/// An answer for [`Scripted`]: a JSON body with its length.
pub fn json_answer(body: &str) -> String {
    format!(
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// The head of an event stream for [`Scripted`].
pub const STREAM_HEAD: &str =
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";

/// A chunk of a chunked body.
pub fn chunk(data: &str) -> String {
    format!("{:x}\r\n{data}\r\n", data.len())
}
