//! A model server that answers at once; the events of a stream after its first are written by the test.
//!
//! Not a simulator: it has no limits and no faults. One thread serves one connection.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

const STREAM_HEAD: &[u8] =
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
const EVENT: &str = "data: {\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"bench\",\
    \"choices\":[{\"index\":0,\"delta\":{\"content\":\"token \"},\"finish_reason\":null}]}\n\n";
const USAGE_EVENT: &str = "data: {\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":1,\
    \"model\":\"bench\",\"choices\":[],\"usage\":{\"prompt_tokens\":400,\"completion_tokens\":64,\"total_tokens\":464}}\n\n";

/// Streams that were begun and not taken yet; further ones wait.
const STREAMS_MAX: usize = 4;

/// A listening server; its threads end with the process.
pub struct ModelServer {
    pub address: SocketAddr,
    streams: Receiver<EventStream>,
}

impl ModelServer {
    pub fn start() -> ModelServer {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port of the loopback");
        let address = listener.local_addr().expect("a bound address");
        let (begun_streams, streams) = sync_channel(STREAMS_MAX);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let streams = begun_streams.clone();
                std::thread::spawn(move || serve(stream, &streams));
            }
        });
        ModelServer { address, streams }
    }

    /// The oldest stream that was begun and not taken yet.
    pub fn take_stream(&self) -> EventStream {
        self.streams
            .recv()
            .expect("the server lives as long as the process")
    }
}

/// A response whose head and first event are written.
pub struct EventStream(TcpStream);

impl EventStream {
    pub fn write_event(&mut self) {
        let written = self.0.write_all(chunk(EVENT).as_bytes());
        written.expect("the gateway reads");
    }

    /// Writes usage and end. The connection then waits for its next request.
    pub fn finish(mut self) {
        let rest = chunk(USAGE_EVENT) + &chunk("data: [DONE]\n\n") + "0\r\n\r\n";
        self.0
            .write_all(rest.as_bytes())
            .expect("the gateway reads");
    }
}

/// Serves a connection until the gateway closes it.
fn serve(mut connection: TcpStream, streams: &SyncSender<EventStream>) -> Option<()> {
    connection.set_nodelay(true).ok()?;
    let whole = whole_response();
    let mut unread = Vec::new();
    loop {
        let body = read_request(&mut connection, &mut unread)?;
        if find(&body, br#""stream":true"#).is_none() {
            connection.write_all(&whole).ok()?;
            continue;
        }
        let start = [STREAM_HEAD, chunk(EVENT).as_bytes()].concat();
        connection.write_all(&start).ok()?;
        streams
            .send(EventStream(connection.try_clone().ok()?))
            .ok()?;
    }
}

/// Reads a request and returns its body; `None` at the end of the connection.
fn read_request(stream: &mut TcpStream, unread: &mut Vec<u8>) -> Option<Vec<u8>> {
    let mut buffer = [0; 16 << 10];
    loop {
        if let Some(end) = find(unread, b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&unread[..end]).to_lowercase();
            let length = head
                .lines()
                .find_map(|line| line.strip_prefix("content-length: "))
                .map_or(0, |length| length.parse().expect("a length is a number"));
            let request_end = end + 4 + length;
            if unread.len() >= request_end {
                let body = unread[end + 4..request_end].to_vec();
                unread.drain(..request_end);
                return Some(body);
            }
        }
        match stream.read(&mut buffer) {
            Ok(count) if count > 0 => unread.extend_from_slice(&buffer[..count]),
            _ => return None,
        }
    }
}

fn find(bytes: &[u8], part: &[u8]) -> Option<usize> {
    bytes.windows(part.len()).position(|window| window == part)
}

fn chunk(data: &str) -> String {
    format!("{:x}\r\n{data}\r\n", data.len())
}

/// A chat completion of about 600 bytes.
fn whole_response() -> Vec<u8> {
    let content = "x".repeat(360);
    let body = format!(
        "{{\"id\":\"chatcmpl-1\",\"object\":\"chat.completion\",\"created\":1,\"model\":\"bench\",\
         \"choices\":[{{\"index\":0,\"message\":{{\"role\":\"assistant\",\"content\":\"{content}\"}},\
         \"finish_reason\":\"stop\"}}],\
         \"usage\":{{\"prompt_tokens\":400,\"completion_tokens\":90,\"total_tokens\":490}}}}"
    );
    format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}
