//! The fast model server behind every proxy of the bench: raw HTTP/1.1 keep-alive on one thread.
//! Not a simulator: it has no limits and no faults, and it spends as little as an answer can cost.
//!
//! The standard field `seed` of a streaming request carries the pause between events in microseconds,
//! so every proxy passes it on unchanged. Run as a child process: `upstream PORT`.

use std::net::Ipv4Addr;
use std::time::Duration;

use memchr::memmem;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::kit::Fallible;

/// Body of a plain answer.
const COMPLETION_BYTES: usize = 612;
/// Events of a stream, before the usage event and `[DONE]`.
pub const EVENTS: usize = 64;
/// Length of an event with its blank line.
const EVENT_BYTES: usize = 190;
/// Longest request head accepted.
const HEAD_LIMIT: usize = 64 * 1024;
/// Length of the beginning and of the end of a body that are searched for fields. The load writes them
/// at the end and a gateway appends there, so a megabyte of conversation is not searched.
const FIELDS_BYTES: usize = 1024;

const STREAM_HEAD: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\
    cache-control: no-cache\r\ntransfer-encoding: chunked\r\n\r\n";
const LENGTH_REQUIRED: &[u8] =
    b"HTTP/1.1 411 Length Required\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";

/// Answers until the process is killed.
pub fn run(port: u16) -> Fallible<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let tasks = tokio::task::LocalSet::new();
    tasks.block_on(&runtime, async {
        // Every loopback address: a configuration with a thousand endpoints needs a thousand of them.
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).await?;
        let canned: &'static Canned = Box::leak(Box::new(Canned::new()));
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            tokio::task::spawn_local(async move {
                // A connection that ends in the middle is the other side's right.
                let _ = serve(stream, canned).await;
            });
        }
    })
}

/// Answers made once.
struct Canned {
    completion: Vec<u8>,
    health: Vec<u8>,
    event: Vec<u8>,
    usage: Vec<u8>,
    done: Vec<u8>,
}

impl Canned {
    fn new() -> Self {
        Self {
            completion: json_answer(&padded_completion()),
            health: json_answer(
                r#"{"object":"list","data":[{"id":"bench","object":"model","created":1,"owned_by":"bench"}]}"#,
            ),
            event: chunk(&padded_event()),
            usage: chunk(
                "data: {\"id\":\"chatcmpl-bench\",\"object\":\"chat.completion.chunk\",\"created\":1,\
                 \"model\":\"bench\",\"choices\":[],\"usage\":{\"prompt_tokens\":400,\
                 \"completion_tokens\":64,\"total_tokens\":464}}\n\n",
            ),
            done: [chunk("data: [DONE]\n\n"), b"0\r\n\r\n".to_vec()].concat(),
        }
    }
}

async fn serve(mut stream: TcpStream, canned: &Canned) -> Fallible<()> {
    let mut buffer = Vec::with_capacity(16 * 1024);
    loop {
        let Some(head) = read_head(&mut stream, &mut buffer).await? else {
            return Ok(());
        };
        let Some(body_bytes) = content_length(&buffer[..head]) else {
            if buffer.starts_with(b"GET ") {
                buffer.drain(..head);
                stream.write_all(&canned.health).await?;
                continue;
            }
            stream.write_all(LENGTH_REQUIRED).await?;
            return Ok(());
        };
        while buffer.len() < head + body_bytes {
            if stream.read_buf(&mut buffer).await? == 0 {
                return Ok(());
            }
        }
        let wish = ResponseSpec::read(&buffer[head..head + body_bytes]);
        buffer.drain(..head + body_bytes);
        match wish.stream {
            false => stream.write_all(&canned.completion).await?,
            true => send_stream(&mut stream, canned, &wish).await?,
        }
    }
}

/// The length of the next request's head, once it is all in `buffer`.
async fn read_head(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Fallible<Option<usize>> {
    loop {
        if let Some(at) = memmem::find(buffer, b"\r\n\r\n") {
            return Ok(Some(at + 4));
        }
        if buffer.len() > HEAD_LIMIT {
            return Err("a request head without end".into());
        }
        if stream.read_buf(buffer).await? == 0 {
            return Ok(None);
        }
    }
}

fn content_length(head: &[u8]) -> Option<usize> {
    let text = std::str::from_utf8(head).ok()?;
    let line = text.split("\r\n").find(|line| {
        line.get(..15)
            .is_some_and(|name| name.eq_ignore_ascii_case("content-length:"))
    })?;
    line[15..].trim().parse().ok()
}

/// Response that a request asks for.
struct ResponseSpec {
    stream: bool,
    usage: bool,
    pause: Duration,
}

impl ResponseSpec {
    fn read(body: &[u8]) -> Self {
        let first = &body[..body.len().min(FIELDS_BYTES)];
        let last = &body[body.len().saturating_sub(FIELDS_BYTES)..];
        let has_field = |name: &str, value: &[u8]| {
            [first, last]
                .iter()
                .any(|part| field(part, name).is_some_and(|found| found.starts_with(value)))
        };
        let pause_us = [last, first]
            .iter()
            .find_map(|part| leading_number(field(part, "\"seed\"")?))
            .unwrap_or(0);
        Self {
            stream: has_field("\"stream\"", b"true"),
            usage: has_field("\"include_usage\"", b"true"),
            pause: Duration::from_micros(pause_us),
        }
    }
}

/// The bytes of a field's value and what follows it.
fn field<'b>(body: &'b [u8], name: &str) -> Option<&'b [u8]> {
    let at = memmem::find(body, name.as_bytes())? + name.len();
    Some(
        body[at..]
            .trim_ascii_start()
            .strip_prefix(b":")?
            .trim_ascii_start(),
    )
}

fn leading_number(bytes: &[u8]) -> Option<u64> {
    let digits = bytes
        .iter()
        .take_while(|byte| byte.is_ascii_digit())
        .count();
    std::str::from_utf8(&bytes[..digits]).ok()?.parse().ok()
}

/// Sends a stream with a write per event, as a model server flushes one token at a time.
async fn send_stream(stream: &mut TcpStream, canned: &Canned, wish: &ResponseSpec) -> Fallible<()> {
    stream.write_all(STREAM_HEAD).await?;
    for number in 0..EVENTS {
        if number > 0 && !wish.pause.is_zero() {
            tokio::time::sleep(wish.pause).await;
        }
        stream.write_all(&canned.event).await?;
    }
    if wish.usage {
        stream.write_all(&canned.usage).await?;
    }
    stream.write_all(&canned.done).await?;
    Ok(())
}

fn json_answer(body: &str) -> Vec<u8> {
    format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

fn chunk(data: &str) -> Vec<u8> {
    format!("{:x}\r\n{data}\r\n", data.len()).into_bytes()
}

fn padded_completion() -> String {
    let frame = |text: &str| {
        format!(
            "{{\"id\":\"chatcmpl-bench\",\"object\":\"chat.completion\",\"created\":1,\"model\":\"bench\",\
             \"choices\":[{{\"index\":0,\"message\":{{\"role\":\"assistant\",\"content\":\"{text}\"}},\
             \"finish_reason\":\"stop\"}}],\"usage\":{{\"prompt_tokens\":400,\"completion_tokens\":64,\
             \"total_tokens\":464}}}}"
        )
    };
    pad(frame, COMPLETION_BYTES)
}

fn padded_event() -> String {
    let frame = |text: &str| {
        format!(
            "data: {{\"id\":\"chatcmpl-bench\",\"object\":\"chat.completion.chunk\",\"created\":1,\
             \"model\":\"bench\",\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"{text}\"}},\
             \"finish_reason\":null}}]}}\n\n"
        )
    };
    pad(frame, EVENT_BYTES)
}

/// `frame` around as much text as makes it `total` bytes.
fn pad(frame: impl Fn(&str) -> String, total: usize) -> String {
    let text = "a".repeat(total.saturating_sub(frame("").len()));
    let padded = frame(&text);
    debug_assert_eq!(padded.len(), total);
    padded
}
