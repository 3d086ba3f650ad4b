//! Clients: keep-alive connections taken from a pool, one request each, and a count of what was sent.
//! Not a benchmark's load generator: it favours exact books over speed.
//!
//! Every request whose last byte was written counts as sent; item 9 compares that with the event file.
//! Called by the crowds and by the disconnect trials.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::backend::now_ms;
use crate::kit::Fallible;
use crate::kit::gateway::key_of;
use crate::kit::request::Chat;
use crate::kit::wire::ResponseReader;

/// An idle connection older than this is not used again, well before the gateway would close it.
const IDLE_LIMIT: Duration = Duration::from_secs(20);
/// Connections kept idle; the largest crowd is a little above this at worst.
const IDLE_CONNECTIONS: usize = 2_048;
/// Longest wait for an answer: the longest deadline of the gateway and a little.
const ANSWER_LIMIT: Duration = Duration::from_secs(260);

/// A request, in the terms of the acceptance backend.
#[derive(Clone)]
pub struct ChatRequest {
    pub account: String,
    pub model: &'static str,
    pub service_ms: u64,
    pub tokens: u64,
    /// Pause between events of a stream; absent for a plain answer.
    pub event_ms: Option<u64>,
    /// Sent as `x-infergate-timeout-ms`.
    pub deadline_ms: Option<u64>,
}

impl ChatRequest {
    pub fn plain(account: &str, model: &'static str, service_ms: u64) -> Self {
        Self {
            account: account.to_owned(),
            model,
            service_ms,
            tokens: 1,
            event_ms: None,
            deadline_ms: None,
        }
    }

    /// The request's bytes; the deadline in them counts from now.
    pub fn bytes(&self) -> Vec<u8> {
        let (late_after_ms, header) = match self.deadline_ms {
            Some(deadline_ms) => (
                (now_ms() + deadline_ms).to_string(),
                format!("x-infergate-timeout-ms: {deadline_ms}\r\n"),
            ),
            None => (String::new(), String::new()),
        };
        let fields = format!(
            "\"user\":\"{}\",\"max_tokens\":{},\"stream\":{},\"metadata\":{{\"service_ms\":\"{}\",\
             \"event_ms\":\"{}\",\"late_after_ms\":\"{late_after_ms}\"}}",
            self.account,
            self.tokens,
            self.event_ms.is_some(),
            self.service_ms,
            self.event_ms.unwrap_or(0),
        );
        Chat {
            model: self.model,
            key: Some(&key_of(&self.account)),
            body_bytes: 512,
            fields: &fields,
            headers: &header,
        }
        .bytes()
    }
}

/// Outcome of a request.
#[derive(Clone, Copy)]
pub struct Outcome {
    /// 0 when the connection broke before a whole answer.
    pub status: u16,
    pub sent_at: Instant,
    pub done_at: Instant,
}

impl Outcome {
    pub fn took(&self) -> Duration {
        self.done_at - self.sent_at
    }
}

/// Clients of one address.
#[derive(Clone)]
pub struct Client(Arc<Shared>);

struct Shared {
    target: SocketAddr,
    sent: AtomicU64,
    idle: Mutex<Vec<(TcpStream, Instant)>>,
}

impl Client {
    pub fn new(target: SocketAddr) -> Self {
        Self(Arc::new(Shared {
            target,
            sent: AtomicU64::new(0),
            idle: Mutex::new(Vec::new()),
        }))
    }

    /// Requests sent whole so far.
    pub fn sent(&self) -> u64 {
        self.0.sent.load(Ordering::Relaxed)
    }

    /// Sends and reads the whole answer.
    pub async fn send(&self, ask: &ChatRequest) -> Outcome {
        let sent_at = Instant::now();
        let result = tokio::time::timeout(ANSWER_LIMIT, self.exchange(ask)).await;
        let status = match result {
            Ok(Ok(status)) => status,
            Ok(Err(_)) | Err(_) => 0,
        };
        Outcome {
            status,
            sent_at,
            done_at: Instant::now(),
        }
    }

    /// Sends on a connection of its own and hands that over: its owner decides how it ends.
    pub async fn open(&self, ask: &ChatRequest) -> Fallible<TcpStream> {
        let mut stream = self.connect().await?;
        stream.write_all(&ask.bytes()).await?;
        self.0.sent.fetch_add(1, Ordering::Relaxed);
        Ok(stream)
    }

    async fn exchange(&self, ask: &ChatRequest) -> Fallible<u16> {
        let mut stream = match self.take_idle() {
            Some(stream) => stream,
            None => self.connect().await?,
        };
        stream.write_all(&ask.bytes()).await?;
        self.0.sent.fetch_add(1, Ordering::Relaxed);
        let mut answer = ResponseReader::new();
        let mut buffer = [0_u8; 8 * 1024];
        while !answer.is_done() {
            match stream.read(&mut buffer).await? {
                0 => answer.close()?,
                count => answer.feed(&buffer[..count])?,
            }
        }
        if answer.keep_alive {
            self.give_idle(stream);
        }
        Ok(answer.status)
    }

    async fn connect(&self) -> Fallible<TcpStream> {
        let stream = TcpStream::connect(self.0.target).await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    /// A connection the gateway has not closed meanwhile.
    fn take_idle(&self) -> Option<TcpStream> {
        let mut idle = self.0.idle.lock();
        while let Some((stream, since)) = idle.pop() {
            let quiet = matches!(
                stream.try_read(&mut [0_u8; 1]),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock
            );
            if quiet && since.elapsed() < IDLE_LIMIT {
                return Some(stream);
            }
        }
        None
    }

    fn give_idle(&self, stream: TcpStream) {
        let mut idle = self.0.idle.lock();
        if idle.len() < IDLE_CONNECTIONS {
            idle.push((stream, Instant::now()));
        }
    }
}
