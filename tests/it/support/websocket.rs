//! WebSockets of tests: a client that writes raw frames, and a strict server that records every byte.
//!
//! Frames are read by a parser of their own, not by the one that is tested.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use infergate_core::websocket::accept_for;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::{LIMIT, eventually};

/// Key of all handshakes here.
pub const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";
const MASK: [u8; 4] = [0x37, 0xfa, 0x21, 0x3d];

/// The fields of a good handshake.
pub fn upgrade_fields() -> String {
    format!(
        "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {KEY}\r\n"
    )
}

/// A frame as clients send it.
pub fn masked(first: u8, payload: &[u8]) -> Vec<u8> {
    frame(first, payload, Some(MASK))
}

/// A frame as servers send it.
pub fn plain(first: u8, payload: &[u8]) -> Vec<u8> {
    frame(first, payload, None)
}

fn frame(first: u8, payload: &[u8], mask: Option<[u8; 4]>) -> Vec<u8> {
    let flag = if mask.is_some() { 0x80 } else { 0 };
    let mut frame = vec![first];
    match payload.len() {
        short @ ..126 => frame.push(flag | short as u8),
        medium @ ..65_536 => {
            frame.push(flag | 126);
            frame.extend_from_slice(&(medium as u16).to_be_bytes());
        }
        long => {
            frame.push(flag | 127);
            frame.extend_from_slice(&(long as u64).to_be_bytes());
        }
    }
    frame.extend(mask.iter().flatten());
    let mask = mask.unwrap_or_default();
    frame.extend(
        payload
            .iter()
            .enumerate()
            .map(|(at, byte)| byte ^ mask[at % 4]),
    );
    frame
}

/// Payload of a close frame.
pub fn close_payload(code: u16, reason: &str) -> Vec<u8> {
    [&code.to_be_bytes()[..], reason.as_bytes()].concat()
}

/// Takes the first frame: its first byte and its payload, unmasked.
pub fn take_frame(bytes: &mut Vec<u8>) -> Option<(u8, Vec<u8>)> {
    let [first, second, ..] = bytes[..] else {
        return None;
    };
    let (extended, short) = match second & 0x7f {
        126 => (2, 0),
        127 => (8, 0),
        short => (0, usize::from(short)),
    };
    let length = bytes.get(2..2 + extended)?.iter();
    let length = length.fold(short, |sum, byte| sum << 8 | usize::from(*byte));
    let mask_bytes = if second & 0x80 == 0 { 0 } else { 4 };
    let header = 2 + extended + mask_bytes;
    if bytes.len() < header + length {
        return None;
    }
    let mut mask = [0; 4];
    mask[..mask_bytes].copy_from_slice(&bytes[header - mask_bytes..header]);
    let payload = &bytes[header..header + length];
    let payload = payload
        .iter()
        .enumerate()
        .map(|(at, byte)| byte ^ mask[at % 4])
        .collect();
    bytes.drain(..header + length);
    Some((first, payload))
}

/// A client behind the 101.
pub struct WebSocketClient<S = TcpStream> {
    stream: S,
    read: Vec<u8>,
    /// Head of the response.
    pub head: String,
}

impl WebSocketClient {
    /// Opens a WebSocket with further fields; the whole answer where that is no 101.
    pub async fn open(
        address: SocketAddr,
        path: &str,
        fields: &str,
    ) -> Result<WebSocketClient, String> {
        let tcp = TcpStream::connect(address).await.unwrap();
        tcp.set_nodelay(true).unwrap();
        WebSocketClient::over(tcp, path, fields, b"").await
    }

    /// Opens one that is expected to open.
    pub async fn connect(address: SocketAddr, path: &str) -> WebSocketClient {
        let opened = WebSocketClient::open(address, path, "").await;
        opened.unwrap_or_else(|answer| panic!("no WebSocket: {answer}"))
    }

    /// Resets the connection.
    pub fn reset(self) {
        #[allow(deprecated)] // the zero linger is exactly what makes a reset
        self.stream
            .set_linger(Some(std::time::Duration::ZERO))
            .unwrap();
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> WebSocketClient<S> {
    /// Opens a WebSocket over a stream, with bytes that are sent together with the head.
    pub async fn over(
        mut stream: S,
        path: &str,
        fields: &str,
        early: &[u8],
    ) -> Result<WebSocketClient<S>, String> {
        let head = format!(
            "GET {path} HTTP/1.1\r\nHost: h\r\n{}{fields}\r\n",
            upgrade_fields()
        );
        let bytes = [head.as_bytes(), early].concat();
        stream.write_all(&bytes).await.unwrap();
        let mut client = WebSocketClient {
            stream,
            read: Vec::new(),
            head: String::new(),
        };
        let end = loop {
            let end = client
                .read
                .windows(4)
                .position(|bytes| bytes == b"\r\n\r\n");
            if let Some(end) = end {
                break end + 4;
            }
            if !client.more().await {
                return Err(String::from_utf8_lossy(&client.read).into_owned());
            }
        };
        let head: Vec<u8> = client.read.drain(..end).collect();
        client.head = String::from_utf8(head).unwrap();
        if client.head.starts_with("HTTP/1.1 101 ") {
            return Ok(client);
        }
        client.read_body().await;
        Err(format!(
            "{}{}",
            client.head,
            String::from_utf8_lossy(&client.read)
        ))
    }

    /// Reads the body of an answer that announces its length, or closes.
    async fn read_body(&mut self) {
        let head = self.head.to_ascii_lowercase();
        let length = head.split("content-length: ").nth(1);
        let length = length.and_then(|rest| rest.split("\r\n").next()?.parse().ok());
        while self.read.len() < length.unwrap_or(usize::MAX) && self.more().await {}
    }

    async fn more(&mut self) -> bool {
        let reading = timeout(LIMIT, self.stream.read_buf(&mut self.read));
        matches!(reading.await.expect("the gateway says something"), Ok(read) if read > 0)
    }

    /// Writes raw bytes. The gateway may close meanwhile; reading tells.
    pub async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        let _ = self.stream.write_all(bytes.as_ref()).await;
        let _ = self.stream.flush().await;
    }

    /// Sends a text.
    pub async fn send_text(&mut self, text: &str) {
        self.send(masked(0x81, text.as_bytes())).await;
    }

    /// Sends a close frame.
    pub async fn send_close(&mut self, code: u16, reason: &str) {
        self.send(masked(0x88, &close_payload(code, reason))).await;
    }

    /// The next frame: its first byte and its payload; none at the end of the connection.
    pub async fn frame(&mut self) -> Option<(u8, Vec<u8>)> {
        loop {
            if let Some(frame) = take_frame(&mut self.read) {
                return Some(frame);
            }
            if !self.more().await {
                return None;
            }
        }
    }

    /// The next bytes as they came, at least so many; they are read again by what follows, but for those.
    pub async fn raw(&mut self, count: usize) -> Vec<u8> {
        while self.read.len() < count && self.more().await {}
        let count = count.min(self.read.len());
        self.read.drain(..count).collect()
    }

    /// The next text.
    pub async fn text(&mut self) -> String {
        let (first, payload) = self.frame().await.expect("a text");
        assert_eq!(first, 0x81, "{payload:?}");
        String::from_utf8(payload).unwrap()
    }

    /// Code and reason of the next close frame; 1006 where the connection ends without one.
    pub async fn closed(&mut self) -> (u16, String) {
        while let Some((first, payload)) = self.frame().await {
            if first == 0x88 {
                let code = payload
                    .first_chunk()
                    .map_or(1005, |code| u16::from_be_bytes(*code));
                let reason = payload.get(2..).unwrap_or_default();
                return (code, String::from_utf8(reason.to_vec()).unwrap());
            }
        }
        (1006, String::new())
    }
}

/// Connection that a [`RecordingServer`] has upgraded.
pub struct RecordedSocket {
    /// Head of the handshake.
    pub head: String,
    received: Mutex<Vec<u8>>,
    is_gone: watch::Sender<bool>,
    commands: mpsc::Sender<SocketCommand>,
}

enum SocketCommand {
    Send(Vec<u8>),
    Close,
}

impl RecordedSocket {
    /// Bytes that came behind the head.
    pub fn received(&self) -> Vec<u8> {
        self.received.lock().clone()
    }

    /// Waits until at least so many bytes have come.
    pub async fn until_received(&self, count: usize) -> Vec<u8> {
        eventually("the server has the bytes", async || {
            let received = self.received();
            (received.len() >= count).then_some(received)
        })
        .await
    }

    /// Waits until the gateway has closed its connection; returns all that has come.
    pub async fn until_gone(&self) -> Vec<u8> {
        let mut gone = self.is_gone.subscribe();
        timeout(LIMIT, gone.wait_for(|gone| *gone))
            .await
            .expect("the gateway closes")
            .unwrap();
        self.received()
    }

    /// Sends raw bytes.
    pub fn send(&self, bytes: &[u8]) {
        // One that is closed takes nothing.
        let _ = self.commands.try_send(SocketCommand::Send(bytes.to_vec()));
    }

    /// Closes the connection without a close frame.
    pub fn close(&self) {
        // One that is closed already is closed.
        let _ = self.commands.try_send(SocketCommand::Close);
    }
}

/// Server that answers handshakes as a test says, and records what comes behind them.
pub struct RecordingServer {
    /// Address at which it listens.
    pub address: SocketAddr,
    sockets: Arc<Mutex<Vec<Arc<RecordedSocket>>>>,
    handshakes: Arc<AtomicUsize>,
    _tasks: JoinSet<()>,
}

/// Commands to one connection that may wait.
const COMMANDS_MAX: usize = 1024;

type Answer = dyn Fn(&str) -> Vec<u8> + Send + Sync;

/// The 101 that fits a handshake, with further fields.
pub fn accepting(fields: &str) -> String {
    let accept = accept_for(KEY.as_bytes());
    format!(
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: {accept}\r\n{fields}\r\n"
    )
}

impl RecordingServer {
    /// A server that accepts each handshake.
    pub async fn start() -> RecordingServer {
        RecordingServer::answering(|_| accepting("")).await
    }

    /// A server that answers the head of a handshake with these bytes.
    pub async fn answering<A: Into<Vec<u8>>>(
        answer: impl Fn(&str) -> A + Send + Sync + 'static,
    ) -> RecordingServer {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let sockets: Arc<Mutex<Vec<Arc<RecordedSocket>>>> = Arc::default();
        let handshakes = Arc::new(AtomicUsize::new(0));
        let answer: Arc<Answer> = Arc::new(move |head| answer(head).into());
        let mut tasks = JoinSet::new();
        let (kept, counted) = (Arc::clone(&sockets), Arc::clone(&handshakes));
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (tcp, _) = listener.accept().await.unwrap();
                tcp.set_nodelay(true).unwrap();
                let (kept, counted) = (Arc::clone(&kept), Arc::clone(&counted));
                connections.spawn(serve(tcp, Arc::clone(&answer), kept, counted));
            }
        });
        RecordingServer {
            address,
            sockets,
            handshakes,
            _tasks: tasks,
        }
    }

    /// The connection with this number, once it is upgraded.
    pub async fn socket(&self, number: usize) -> Arc<RecordedSocket> {
        eventually("the server is reached", async || {
            self.sockets.lock().get(number).cloned()
        })
        .await
    }

    /// Handshakes that have come.
    pub fn handshakes(&self) -> usize {
        self.handshakes.load(Ordering::SeqCst)
    }
}

async fn serve(
    mut tcp: TcpStream,
    answer: Arc<Answer>,
    sockets: Arc<Mutex<Vec<Arc<RecordedSocket>>>>,
    handshakes: Arc<AtomicUsize>,
) {
    let mut read = Vec::new();
    let end = loop {
        if let Some(end) = read.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
            break end + 4;
        }
        if !matches!(tcp.read_buf(&mut read).await, Ok(read) if read > 0) {
            return;
        }
    };
    let head = String::from_utf8(read.drain(..end).collect()).unwrap();
    if head.starts_with("GET /health ") {
        let ok = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok";
        let _ = tcp.write_all(ok.as_bytes()).await;
        return;
    }
    handshakes.fetch_add(1, Ordering::SeqCst);
    let answer = answer(&head);
    let is_open = answer.starts_with(b"HTTP/1.1 101 ");
    let (commands, mut next) = mpsc::channel(COMMANDS_MAX);
    let socket = Arc::new(RecordedSocket {
        head,
        received: Mutex::new(read),
        is_gone: watch::Sender::new(false),
        commands,
    });
    if is_open {
        // Before the answer: a client that has the 101 finds it.
        sockets.lock().push(Arc::clone(&socket));
    }
    let _ = tcp.write_all(&answer).await;
    if !is_open {
        // The gateway may read on until the end.
        let _ = tcp.read_buf(&mut Vec::new()).await;
        return;
    }
    let (mut reader, mut writer) = tcp.into_split();
    let reading = async {
        let mut buffer = Vec::new();
        while matches!(reader.read_buf(&mut buffer).await, Ok(read) if read > 0) {
            socket.received.lock().append(&mut buffer);
        }
    };
    // Beside it: a client that takes nothing may still send.
    let writing = async {
        while let Some(SocketCommand::Send(bytes)) = next.recv().await {
            let _ = writer.write_all(&bytes).await;
        }
    };
    tokio::select! {
        () = reading => {}
        () = writing => {}
    }
    socket.is_gone.send_replace(true);
}
