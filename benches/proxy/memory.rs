//! Resident memory: idle, per open stream, per idle connection, and after a million requests.
//! Not a leak finder: it reads totals before and after.
//!
//! Called by the driver on a gateway nobody else uses, so that what earlier scenarios left is not counted.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crate::contest::load;
use crate::kit::request::Chat;
use crate::kit::wire::ResponseReader;
use crate::kit::{Fallible, procfs};
use crate::load::Plan;

/// Streams opened to divide memory by; enough that a stray megabyte does not show.
const STREAMS: usize = 1_000;
/// Idle connections opened to divide memory by.
const CONNECTIONS: usize = 2_000;
/// Pause between events of an open stream: 64 events last a minute.
const HELD_PAUSE_US: u64 = 1_000_000;
/// Requests after which memory is read first; growth until 10^6 requests counts from here.
pub const SETTLED_AFTER: u64 = 100_000;
pub const MILLION: u64 = 1_000_000;
/// Requests are made in runs of this length until there are enough.
const SLICE: Duration = Duration::from_secs(5);
/// A million requests take well under a minute on the slowest machine worth judging.
const LONGEST: Duration = Duration::from_secs(180);

/// KiB per stream, from opening `STREAMS` of them.
pub fn per_stream_kib(address: SocketAddr, pid: u32, model: &str, key: &str) -> Fallible<f64> {
    let before = procfs::rss_kib(pid)?;
    let streams: Vec<TcpStream> = (0..STREAMS)
        .map(|_| open_stream(address, model, key))
        .collect::<Fallible<_>>()?;
    let growth = procfs::rss_kib(pid)?.saturating_sub(before);
    Ok(growth as f64 / streams.len() as f64)
}

/// KiB per connection that has had one answer and waits, from opening `CONNECTIONS` of them.
pub fn per_connection_kib(address: SocketAddr, pid: u32, model: &str, key: &str) -> Fallible<f64> {
    let request = chat(model, key, "\"temperature\":0.7");
    // What the first requests of a process allocate once is not a connection's.
    for _ in 0..CONNECTIONS / 10 {
        drop(used_connection(address, &request)?);
    }
    let before = procfs::rss_kib(pid)?;
    let connections: Vec<TcpStream> = (0..CONNECTIONS)
        .map(|_| used_connection(address, &request))
        .collect::<Fallible<_>>()?;
    let growth = procfs::rss_kib(pid)?.saturating_sub(before);
    Ok(growth as f64 / connections.len() as f64)
}

fn used_connection(address: SocketAddr, request: &[u8]) -> Fallible<TcpStream> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    stream.write_all(request)?;
    let mut answer = ResponseReader::new();
    let mut buffer = [0_u8; 4096];
    while !answer.is_done() {
        match stream.read(&mut buffer)? {
            0 => answer.close()?,
            count => answer.feed(&buffer[..count])?,
        }
    }
    match (answer.status, answer.keep_alive) {
        (200, true) => Ok(stream),
        (status, _) => Err(format!("a connection that should stay open got {status}").into()),
    }
}

fn chat(model: &str, key: &str, fields: &str) -> Vec<u8> {
    Chat {
        model,
        key: Some(key),
        body_bytes: 2_048,
        fields,
        headers: "",
    }
    .bytes()
}

/// Opens a slow stream and reads its first event; it stays open while the socket lives.
pub fn open_stream(address: SocketAddr, model: &str, key: &str) -> Fallible<TcpStream> {
    let request = chat(
        model,
        key,
        &format!("\"stream\":true,\"seed\":{HELD_PAUSE_US}"),
    );
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    stream.write_all(&request)?;
    let mut text = Vec::new();
    let mut buffer = [0_u8; 4096];
    while memchr::memmem::find(&text, b"data: ").is_none() {
        match stream.read(&mut buffer)? {
            0 => return Err("a held stream closed before its first event".into()),
            count => text.extend_from_slice(&buffer[..count]),
        }
    }
    if !text.starts_with(b"HTTP/1.1 200") {
        return Err("a held stream was refused".into());
    }
    Ok(stream)
}

/// Resident MiB after so many more requests; None when they do not fit into the time there is.
pub fn after_requests(plan: &Plan, pid: u32, requests: u64) -> Fallible<Option<f64>> {
    let began = Instant::now();
    let mut made = 0;
    while made < requests {
        if began.elapsed() > LONGEST {
            eprintln!("only {made} of {requests} requests fit into {LONGEST:?}");
            return Ok(None);
        }
        let slice = Plan {
            window_ms: SLICE.as_millis() as u64,
            ..plan.clone()
        };
        made += load(&slice)?.answers;
    }
    let mib = settled_mib(pid)?;
    eprintln!("after {made} more requests: {mib:.1} MB");
    Ok(Some(mib))
}

/// Resident MiB once it has stopped falling, or after two seconds.
pub fn settled_mib(pid: u32) -> Fallible<f64> {
    let began = Instant::now();
    let mut last = procfs::rss_kib(pid)?;
    while began.elapsed() < Duration::from_secs(2) {
        std::thread::sleep(Duration::from_millis(200));
        let now = procfs::rss_kib(pid)?;
        if now >= last {
            break;
        }
        last = now;
    }
    Ok(procfs::rss_kib(pid)? as f64 / 1024.0)
}
