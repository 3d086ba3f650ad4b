//! A client that writes raw bytes and reads strictly: what does not frame is a failed test.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

use super::LIMIT;

/// A client connection.
pub struct TestClient {
    tcp: TcpStream,
    read: Vec<u8>,
}

/// A whole answer.
#[derive(Debug)]
pub struct TestResponse {
    /// Status code.
    pub status: u16,
    /// Header lines, names in lower case.
    pub headers: Vec<(String, String)>,
    /// Body with its framing taken off.
    pub body: Vec<u8>,
    /// The connection ended before the framing said so.
    pub broken: bool,
}

impl TestResponse {
    /// A header's value.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(n, _)| n == name)
            .map(|(_, value)| value.as_str())
    }

    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The body as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|e| panic!("{e}: {} {}", self.status, self.text()))
    }

    /// Returns whether `content-type` announces a stream of server-sent events.
    pub fn is_event_stream(&self) -> bool {
        self.header("content-type")
            .is_some_and(|kind| kind.starts_with("text/event-stream"))
    }

    /// The `data:` payloads of an event stream.
    pub fn events(&self) -> Vec<String> {
        let text = self.text();
        text.lines()
            .filter_map(|line| line.strip_prefix("data: "))
            .map(str::to_owned)
            .collect()
    }
}

impl TestClient {
    /// Connects.
    pub async fn connect(address: SocketAddr) -> TestClient {
        let tcp = TcpStream::connect(address).await.unwrap();
        tcp.set_nodelay(true).unwrap();
        TestClient {
            tcp,
            read: Vec::new(),
        }
    }

    /// Connects from an address of this machine's own.
    pub async fn connect_from(own: Ipv4Addr, address: SocketAddr) -> TestClient {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((own, 0).into()).unwrap();
        let tcp = socket.connect(address).await.unwrap();
        TestClient {
            tcp,
            read: Vec::new(),
        }
    }

    /// `GET` on a fresh connection; none when nobody answers.
    pub async fn try_get(address: SocketAddr, path: &str) -> Option<TestResponse> {
        let tcp = TcpStream::connect(address).await.ok()?;
        let mut client = TestClient {
            tcp,
            read: Vec::new(),
        };
        client
            .send(&format!(
                "GET {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
            ))
            .await;
        let response = client.response().await;
        (!response.broken).then_some(response)
    }

    /// Writes raw bytes. The peer may close meanwhile; reading tells.
    pub async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        let _ = self.tcp.write_all(bytes.as_ref()).await;
    }

    /// Writes a `POST` with a JSON body; `headers` are whole lines.
    pub async fn post(&mut self, headers: &str, path: &str, body: &str) {
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n{headers}\
             Content-Length: {}\r\n\r\n",
            body.len()
        );
        self.send(head + body).await;
    }

    /// Sends raw bytes on a fresh connection and reads what is answered; status 0 when nothing is.
    pub async fn exchange(address: SocketAddr, bytes: impl AsRef<[u8]>) -> TestResponse {
        let mut client = TestClient::connect(address).await;
        client.send(bytes).await;
        client.response().await
    }

    /// Reads an interim answer's head (1xx): its status.
    pub async fn interim(&mut self) -> u16 {
        let head = timeout(LIMIT, self.until(b"\r\n\r\n"))
            .await
            .expect("a head in time");
        let head = String::from_utf8(head.expect("a whole head")).unwrap();
        head.split(' ').nth(1).unwrap().parse().unwrap()
    }

    /// Reads and discards up to `count` bytes; how many came before the end.
    pub async fn discard(&mut self, count: usize) -> usize {
        let mut taken = self.read.len();
        self.read.clear();
        while taken < count && timeout(LIMIT, self.more()).await.expect("bytes in time") {
            taken += self.read.len();
            self.read.clear();
        }
        taken
    }

    /// Reads a whole answer, or what of it comes before the connection ends.
    pub async fn response(&mut self) -> TestResponse {
        timeout(LIMIT, self.read_response())
            .await
            .expect("an answer in time")
    }

    async fn read_response(&mut self) -> TestResponse {
        let mut response = TestResponse {
            status: 0,
            headers: Vec::new(),
            body: Vec::new(),
            broken: true,
        };
        let Some(head) = self.until(b"\r\n\r\n").await else {
            return response;
        };
        let head = String::from_utf8(head).unwrap();
        let mut lines = head.split("\r\n");
        response.status = lines
            .next()
            .unwrap()
            .split(' ')
            .nth(1)
            .unwrap()
            .parse()
            .unwrap();
        for line in lines.filter(|line| !line.is_empty()) {
            let (name, value) = line.split_once(": ").unwrap();
            response
                .headers
                .push((name.to_ascii_lowercase(), value.to_owned()));
        }
        if response.status == 204 {
            response.broken = false;
        } else if response.header("transfer-encoding") == Some("chunked") {
            response.broken = !self.chunks(&mut response.body).await;
        } else if let Some(length) = response.header("content-length") {
            let length: usize = length.parse().unwrap();
            response.broken = !self.exactly(length, &mut response.body).await;
        } else {
            while self.more().await {}
            response.body = std::mem::take(&mut self.read);
            response.broken = false;
        }
        response
    }

    async fn chunks(&mut self, body: &mut Vec<u8>) -> bool {
        loop {
            let Some(size) = self.until(b"\r\n").await else {
                return false;
            };
            let size = std::str::from_utf8(&size).unwrap().trim_end();
            let size = usize::from_str_radix(size, 16).unwrap();
            let mut chunk = Vec::new();
            let whole = self.exactly(size, &mut chunk).await;
            body.extend(chunk);
            if !whole || self.until(b"\r\n").await.is_none() {
                return false;
            }
            if size == 0 {
                return true;
            }
        }
    }

    /// Reads until the answer so far contains `text`; the bytes stay for [`Client::response`].
    pub async fn saw(&mut self, text: &str) {
        let seeing = async {
            while !String::from_utf8_lossy(&self.read).contains(text) {
                assert!(self.more().await, "the connection ended before {text:?}");
            }
        };
        timeout(LIMIT, seeing)
            .await
            .unwrap_or_else(|_| panic!("never saw {text:?}"));
    }

    /// Returns whether the peer closes the connection within `limit`.
    pub async fn closes_within(&mut self, limit: Duration) -> bool {
        timeout(limit, async { while self.more().await {} })
            .await
            .is_ok()
    }

    /// Bytes received and not yet taken.
    pub fn pending(&self) -> &[u8] {
        &self.read
    }

    /// Ends the sending direction only.
    pub async fn half_close(&mut self) {
        self.tcp.shutdown().await.unwrap();
    }

    /// Closes with FIN.
    pub fn close(self) {}

    /// Closes with RST.
    pub fn reset(self) {
        #[allow(deprecated)] // the zero linger is exactly what makes a reset
        self.tcp.set_linger(Some(Duration::ZERO)).unwrap();
    }

    async fn more(&mut self) -> bool {
        matches!(self.tcp.read_buf(&mut self.read).await, Ok(read) if read > 0)
    }

    async fn until(&mut self, mark: &[u8]) -> Option<Vec<u8>> {
        loop {
            if let Some(at) = self.read.windows(mark.len()).position(|w| w == mark) {
                let rest = self.read.split_off(at + mark.len());
                return Some(std::mem::replace(&mut self.read, rest));
            }
            if !self.more().await {
                return None;
            }
        }
    }

    async fn exactly(&mut self, length: usize, into: &mut Vec<u8>) -> bool {
        while self.read.len() < length {
            if !self.more().await {
                into.append(&mut self.read);
                return false;
            }
        }
        let rest = self.read.split_off(length);
        into.extend(std::mem::replace(&mut self.read, rest));
        true
    }
}
