//! A model server that counts: how many requests it serves at once, for whom, and whether one came too late.
//! Not `infergate simulate`: it lives in this program, so that its figures owe nothing to the gateway.
//!
//! Instructions stand in the request: `metadata.service_ms` before the first byte, `max_tokens` tokens,
//! `metadata.event_ms` between them when streaming, `user` as the account. Times are milliseconds since the
//! program began. Each stand has a backend of its own.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde::Deserialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;

use crate::kit::Fallible;

/// Tolerance for a start after the deadline by the client's clock: the gateway's own deadline
/// begins when the request arrives there, later by its time of travel.
const TRAVEL_MS: u64 = 5;
/// Longest request head accepted.
const HEAD_LIMIT: usize = 64 * 1024;

static PROGRAM_START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Milliseconds since the program began: client and backend share this clock.
pub fn now_ms() -> u64 {
    PROGRAM_START.elapsed().as_millis() as u64
}

/// Work that a request asks of the backend.
#[derive(Deserialize)]
struct BackendWork {
    #[serde(default)]
    stream: bool,
    #[serde(default = "one")]
    max_tokens: u64,
    #[serde(default)]
    user: String,
    #[serde(default)]
    metadata: Metadata,
}

fn one() -> u64 {
    1
}

/// Strings, as the standard field is defined.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Metadata {
    service_ms: String,
    event_ms: String,
    /// After this time nobody waits for the answer; empty when there is no deadline.
    late_after_ms: String,
}

fn number(text: &str) -> Option<u64> {
    text.parse().ok()
}

/// The backend's own counts.
#[derive(Default)]
struct Counts {
    in_flight: u64,
    high_water: u64,
    started: u64,
    started_late: u64,
    tokens: HashMap<String, u64>,
}

#[derive(Clone, Default)]
pub struct RequestCounts(Arc<Mutex<Counts>>);

impl RequestCounts {
    pub fn in_flight(&self) -> u64 {
        self.0.lock().in_flight
    }

    /// The most requests served at once so far.
    pub fn high_water(&self) -> u64 {
        self.0.lock().high_water
    }

    pub fn started(&self) -> u64 {
        self.0.lock().started
    }

    /// Requests that reached the backend after their deadline.
    pub fn started_late(&self) -> u64 {
        self.0.lock().started_late
    }

    /// Tokens finished for an account so far.
    pub fn tokens(&self, account: &str) -> u64 {
        self.0.lock().tokens.get(account).copied().unwrap_or(0)
    }

    fn start(&self, wish: &BackendWork) -> InFlight {
        let mut counts = self.0.lock();
        counts.started += 1;
        counts.in_flight += 1;
        counts.high_water = counts.high_water.max(counts.in_flight);
        if let Some(late_after_ms) = number(&wish.metadata.late_after_ms) {
            counts.started_late += u64::from(now_ms() > late_after_ms + TRAVEL_MS);
        }
        InFlight(self.clone())
    }

    fn made(&self, account: &str, tokens: u64) {
        *self.0.lock().tokens.entry(account.to_owned()).or_default() += tokens;
    }
}

/// A request being served; dropping the value ends the request.
struct InFlight(RequestCounts);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.0.lock().in_flight -= 1;
    }
}

/// Serves until the program ends.
pub fn start(runtime: &Runtime) -> Fallible<(SocketAddr, RequestCounts)> {
    LazyLock::force(&PROGRAM_START);
    let book = RequestCounts::default();
    let served = book.clone();
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0"))?;
    let address = listener.local_addr()?;
    runtime.spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let book = served.clone();
            tokio::spawn(async move {
                // A connection that ends in the middle is what some of the trials are about.
                let _ = serve(stream, &book).await;
            });
        }
    });
    Ok((address, book))
}

async fn serve(mut stream: TcpStream, book: &RequestCounts) -> Fallible<()> {
    stream.set_nodelay(true)?;
    let mut buffer = Vec::new();
    while let Some(body) = read_request(&mut stream, &mut buffer).await? {
        if body.is_empty() {
            stream
                .write_all(&answer(r#"{"object":"list","data":[]}"#))
                .await?;
            continue;
        }
        let wish: BackendWork = serde_json::from_slice(&body)?;
        let in_flight = book.start(&wish);
        let (mut reader, mut writer) = stream.split();
        let finished = tokio::select! {
            result = work(&mut writer, &wish) => result?,
            _ = gone(&mut reader) => return Ok(()),
        };
        // The place is free before the last byte is read, so a gateway that grants the next permit at once
        // is not blamed for the order in which two tasks run.
        drop(in_flight);
        book.made(&wish.user, wish.max_tokens);
        writer.write_all(&finished).await?;
    }
    Ok(())
}

/// Does all but the last write, whose bytes it returns.
async fn work(writer: &mut (impl AsyncWriteExt + Unpin), wish: &BackendWork) -> Fallible<Vec<u8>> {
    let service = Duration::from_millis(number(&wish.metadata.service_ms).unwrap_or(0));
    tokio::time::sleep(service).await;
    let tokens = wish.max_tokens;
    let usage = format!(
        "\"usage\":{{\"prompt_tokens\":10,\"completion_tokens\":{tokens},\"total_tokens\":{}}}",
        tokens + 10
    );
    if !wish.stream {
        return Ok(answer(&format!(
            "{{\"id\":\"chatcmpl-accept\",\"object\":\"chat.completion\",\"created\":1,\"model\":\"m\",\
             \"choices\":[{{\"index\":0,\"message\":{{\"role\":\"assistant\",\"content\":\"yes\"}},\
             \"finish_reason\":\"stop\"}}],{usage}}}"
        )));
    }
    writer
        .write_all(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n",
        )
        .await?;
    let event_pause = Duration::from_millis(number(&wish.metadata.event_ms).unwrap_or(0));
    for _ in 0..tokens {
        writer
            .write_all(&event(
                "{\"id\":\"chatcmpl-accept\",\"object\":\"chat.completion.chunk\",\"created\":1,\
                 \"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"yes \"},\
                 \"finish_reason\":null}]}",
            ))
            .await?;
        tokio::time::sleep(event_pause).await;
    }
    let last = event(&format!(
        "{{\"id\":\"chatcmpl-accept\",\"object\":\"chat.completion.chunk\",\"created\":1,\
         \"model\":\"m\",\"choices\":[],{usage}}}"
    ));
    Ok([last, event("[DONE]"), b"0\r\n\r\n".to_vec()].concat())
}

/// Returns when the other side closes.
async fn gone(reader: &mut (impl AsyncReadExt + Unpin)) {
    let mut byte = [0_u8; 1];
    while !matches!(reader.read(&mut byte).await, Ok(0) | Err(_)) {}
}

/// The next request's body (empty for a request without one); None when the connection is closed.
async fn read_request(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Fallible<Option<Vec<u8>>> {
    let head = loop {
        if let Some(at) = memchr::memmem::find(buffer, b"\r\n\r\n") {
            break at + 4;
        }
        if buffer.len() > HEAD_LIMIT {
            return Err("a request head without end".into());
        }
        if stream.read_buf(buffer).await? == 0 {
            return Ok(None);
        }
    };
    let text = std::str::from_utf8(&buffer[..head])?.to_ascii_lowercase();
    let length = text
        .split("\r\n")
        .find_map(|line| line.strip_prefix("content-length:"))
        .map_or(Ok(0), |value| value.trim().parse::<usize>())?;
    while buffer.len() < head + length {
        if stream.read_buf(buffer).await? == 0 {
            return Ok(None);
        }
    }
    let body = buffer[head..head + length].to_vec();
    buffer.drain(..head + length);
    Ok(Some(body))
}

fn answer(body: &str) -> Vec<u8> {
    format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

fn event(data: &str) -> Vec<u8> {
    let text = format!("data: {data}\n\n");
    format!("{:x}\r\n{text}\r\n", text.len()).into_bytes()
}
