//! Messages made at random: the same in any pieces, and as hyper reads them.
//!
//! `INFERGATE_FUZZ_SECS=600 cargo test --lib http1::tests` runs each of them for so long; without it, for the same
//! messages every time.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::AsyncWriteExt;

use super::*;

/// Messages of each test at least.
const MESSAGES_MIN: u64 = 20_000;

/// A request as a reader understands it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Message {
    method: String,
    target: String,
    fields: Vec<(String, Vec<u8>)>,
    body: Vec<u8>,
}

/// Runs `check` with seeds until the time is over.
#[expect(clippy::disallowed_methods, reason = "a test says how long it runs")]
fn for_a_while(mut check: impl FnMut(&mut fastrand::Rng)) {
    let secs = std::env::var("INFERGATE_FUZZ_SECS").ok();
    let secs = secs.and_then(|secs| secs.parse().ok()).unwrap_or(0);
    let began = Instant::now();
    let mut seed = 0;
    while began.elapsed() < Duration::from_secs(secs) || seed < MESSAGES_MIN {
        check(&mut fastrand::Rng::with_seed(seed));
        seed += 1;
    }
}

fn pick<'a>(random: &mut fastrand::Rng, from: &[&'a str]) -> &'a str {
    from[random.usize(..from.len())]
}

/// A request that is mostly well formed: parts that readers differ on are likely.
fn request(random: &mut fastrand::Rng) -> Vec<u8> {
    let mut text = Vec::new();
    let end = |random: &mut fastrand::Rng| match random.u8(..60) {
        0 => "\n",
        1 => "\r",
        _ => "\r\n",
    };
    text.extend_from_slice(pick(random, &["", "", "", "\r\n"]).as_bytes());
    text.extend_from_slice(pick(random, &["POST", "GET", "PUT", "post", "P(ST"]).as_bytes());
    text.extend_from_slice(pick(random, &[" ", " ", " ", "  ", "\t"]).as_bytes());
    let targets = [
        "/v1/x",
        "/",
        "/a?b=c",
        "*",
        "http://h/x",
        "/a b",
        "/\u{e9}",
        "/a#b",
    ];
    text.extend_from_slice(pick(random, &targets).as_bytes());
    let versions = [
        " HTTP/1.1",
        " HTTP/1.1",
        " HTTP/1.1",
        " HTTP/1.0",
        " HTTP/2.0",
        "",
    ];
    text.extend_from_slice(pick(random, &versions).as_bytes());
    text.extend_from_slice(end(random).as_bytes());
    let body = &b"hello, world"[..random.usize(..13)];
    let mut is_chunked = false;
    for _ in 0..random.usize(..8) {
        let lengths = [
            body.len().to_string(),
            format!("0{}", body.len()),
            "3, 3".into(),
        ];
        let line = match random.u8(..14) {
            0..4 => "Host: h".to_owned(),
            4..7 => format!("Content-Length: {}", lengths[random.usize(..3)]),
            7 | 8 => {
                is_chunked = true;
                let codings = [
                    "chunked",
                    "Chunked",
                    "gzip, chunked",
                    "chunked, identity",
                    "x",
                ];
                format!("Transfer-Encoding: {}", pick(random, &codings))
            }
            9 => pick(random, &["X-A : b", " folded", "X A: b", ": b", "X-A"]).to_owned(),
            10 => pick(random, &["X-A:\tb \t", "X-A:", "X-A: \u{e9}", "X-A: a\0b"]).to_owned(),
            11 => "Connection: close".to_owned(),
            _ => "X-B: c".to_owned(),
        };
        text.extend_from_slice(line.as_bytes());
        text.extend_from_slice(end(random).as_bytes());
    }
    text.extend_from_slice(end(random).as_bytes());
    match is_chunked {
        true => chunks(random, body, &mut text),
        false => text.extend_from_slice(body),
    }
    if random.u8(..4) == 0 {
        text.extend_from_slice(b"GET / HTTP/1.1\r\nHost: next\r\n\r\n");
    }
    // And sometimes a byte is another one.
    if random.u8(..4) == 0 && !text.is_empty() {
        let at = random.usize(..text.len());
        text[at] = random.u8(..);
    }
    text
}

fn chunks(random: &mut fastrand::Rng, body: &[u8], text: &mut Vec<u8>) {
    let mut left = body;
    while !left.is_empty() {
        let (piece, rest) = left.split_at(random.usize(1..=left.len()));
        let extension = pick(random, &["", "", ";a=b", " ", ";\n"]);
        text.extend_from_slice(format!("{:x}{extension}\r\n", piece.len()).as_bytes());
        text.extend_from_slice(piece);
        text.extend_from_slice(b"\r\n");
        left = rest;
    }
    text.extend_from_slice(
        pick(random, &["0\r\n\r\n", "0\r\nT: x\r\n\r\n", "00\r\n\r\n"]).as_bytes(),
    );
}

/// Reads a request whose bytes come in these pieces. `None`: refused, or not whole.
fn read(pieces: &[&[u8]]) -> Option<(Message, Vec<u8>)> {
    let mut buffer = BytesMut::new();
    let mut head = ParsedRequest::default();
    let mut body = None;
    let mut content = Vec::new();
    for piece in pieces {
        buffer.extend_from_slice(piece);
        if body.is_none() && head.parse(&mut buffer).ok()? {
            body = Some(framing::of_request(&head).ok()?);
        }
        while let Some(body) = &mut body {
            match body.decode(&mut buffer).ok()? {
                BodyStep::Data(data) => content.extend_from_slice(&data),
                BodyStep::Partial | BodyStep::End => break,
            }
        }
    }
    body.filter(BodyDecoder::is_done)?;
    let fields = head.fields.iter();
    let message = Message {
        method: head.method().to_owned(),
        target: head.target().to_owned(),
        fields: fields
            .map(|(name, value)| (name.to_owned(), value.to_vec()))
            .collect(),
        body: content,
    };
    Some((message, buffer.to_vec()))
}

#[test]
fn a_request_is_the_same_in_any_pieces() {
    for_a_while(|random| {
        let text = request(random);
        let whole = read(&[&text]);
        let bytewise: Vec<&[u8]> = text.chunks(1).collect();
        assert_eq!(read(&bytewise), whole, "{}", text.escape_ascii());
        for at in 0..=text.len() {
            let (first, second) = text.split_at(at);
            assert_eq!(
                read(&[first, second]),
                whole,
                "{at} of {}",
                text.escape_ascii()
            );
        }
    });
}

#[test]
fn what_is_accepted_is_read_as_hyper_reads_it() {
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_all().build().unwrap();
    let (mut accepted, mut of_both) = (0, 0);
    for_a_while(|random| {
        let text = request(random);
        let Some((ours, _)) = read(&[&text]) else {
            return;
        };
        accepted += 1;
        // Stricter is allowed in either; two meanings are not.
        if let Some(theirs) = runtime.block_on(read_by_hyper(&text)) {
            of_both += 1;
            let mut ours = ours;
            ours.fields.sort();
            // hyper writes a target in its normal form.
            if let Ok(target) = ours.target.parse::<http::Uri>() {
                ours.target = target.to_string().to_ascii_lowercase();
            }
            assert_eq!(ours, theirs, "{}", text.escape_ascii());
        }
    });
    assert!(
        accepted > 20 && of_both * 2 > accepted,
        "{of_both} of {accepted}"
    );
}

/// The first request in `text`, as hyper's server sees it.
async fn read_by_hyper(text: &[u8]) -> Option<Message> {
    let seen: Arc<Mutex<Option<Message>>> = Arc::default();
    let service = service_fn(|request: http::Request<Incoming>| {
        let seen = Arc::clone(&seen);
        async move {
            let (head, body) = request.into_parts();
            let Ok(body) = body.collect().await else {
                return Ok::<_, Infallible>(http::Response::new(Full::new(Bytes::new())));
            };
            let fields = head.headers.iter();
            let message = Message {
                method: head.method.to_string(),
                target: head.uri.to_string().to_ascii_lowercase(),
                fields: fields
                    .map(|(name, value)| (name.as_str().to_owned(), value.as_bytes().to_vec()))
                    .collect(),
                body: body.to_bytes().to_vec(),
            };
            seen.lock().unwrap().get_or_insert(message);
            Ok(http::Response::new(Full::new(Bytes::new())))
        }
    });
    let (mut client, server) = tokio::io::duplex(64 * 1024);
    client.write_all(text).await.unwrap();
    client.shutdown().await.unwrap();
    let serving = hyper::server::conn::http1::Builder::new();
    // The connection ends with the client's end, or is refused.
    let _ = serving
        .serve_connection(TokioIo::new(server), service)
        .await;
    drop(client);
    let message = seen.lock().unwrap().take();
    // hyper groups the lines of one name; so do we, to compare.
    message.map(|mut message| {
        message.fields.sort();
        message
    })
}

#[test]
fn random_bytes_are_no_panic_and_no_endless_loop() {
    for_a_while(|random| {
        let mut buffer = BytesMut::new();
        for _ in 0..random.usize(..200) {
            let known = b"HTP/1. \r\n\r\n:0a;:contet-lgh";
            buffer.extend_from_slice(&match random.bool() {
                true => [known[random.usize(..known.len())]],
                false => [random.u8(..)],
            });
        }
        let mut response = ParsedResponse::default();
        let _ = response.parse(&mut buffer.clone());
        let mut body = BodyDecoder::CHUNKED;
        let before = buffer.len();
        let mut steps = 0;
        while let Ok(BodyStep::Data(_)) = body.decode(&mut buffer) {
            steps += 1;
            assert!(steps <= before, "{buffer:?}");
        }
    });
}
