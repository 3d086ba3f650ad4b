//! Parsers of what strangers send, fed with seeds that are changed at random: none panics, and none reads the same bytes
//! differently when they come in pieces.
//!
//! Some thousands of inputs each; `INFERGATE_FUZZ_SECS` asks for so many seconds each instead, by other random numbers every
//! time (`just fuzz`). The seed is printed, and `INFERGATE_FUZZ_SEED` repeats it. Parsers of the core have such tests beside
//! them.

use bytes::BytesMut;
use futures_util::FutureExt;
use infergate_core::Millis;
use infergate_core::api::open_inference::edit_answer;
use infergate_core::api::scan::MemberScanner;
use infergate_core::api::sse::EventSplitter;

use crate::config;
use crate::downstream::{FormReader, PartEvent, read_proxy_header};
use crate::http1::{BodyDecoder, BodyStep, ParsedRequest, ParsedResponse, framing};
use crate::peer::ForwardedHead;
use crate::telemetry::Clock;

/// Inputs of each parser in a usual run.
const INPUTS: usize = 20_000;
/// Longest input: what grows without a bound would show with less.
const INPUT_BYTES_MAX: usize = 4_096;
/// Changes of one input.
const CHANGES_MAX: u64 = 6;

/// Pieces that parsers look for, put in anywhere.
const WORDS: &[&[u8]] = &[
    b"\r\n",
    b"\r\n\r\n",
    b"\n\n",
    b"\0",
    b"\"",
    b"\\u0000",
    b"{}",
    b"[[[[",
    b": ",
    b"0\r\n\r\n",
    b"ffffffffffffffff",
    b"18446744073709551616",
    b"-1",
    b"--",
    b";",
    b"Transfer-Encoding: chunked\r\n",
    b"Content-Length: 3\r\n",
    b"data: ",
    b"\xef\xbb\xbf",
    b"\xff\xfe",
    b"&a *a",
];

/// Random numbers (xorshift64*, <https://doi.org/10.1145/2845077>).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let number = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32;
        number as usize % bound.max(1)
    }

    fn change(&mut self, bytes: &mut Vec<u8>, other: &[u8]) {
        let at = self.below(bytes.len() + 1);
        let rest = bytes.len() - at;
        let some = self.below(rest.min(16) + 1);
        match self.below(8) {
            0 if rest > 0 => bytes[at] ^= 1 << self.below(8),
            1 if rest > 0 => bytes[at] = self.below(256) as u8,
            2 => bytes.truncate(at),
            3 => drop(bytes.drain(at..at + some)),
            4 => {
                let again = bytes[at..at + some].to_vec();
                bytes.splice(at..at, again);
            }
            5 => {
                let from = self.below(other.len() + 1);
                bytes.splice(at.., other[from..].iter().copied());
            }
            _ => {
                let word = WORDS[self.below(WORDS.len())];
                bytes.splice(at..at, word.iter().copied());
            }
        }
        bytes.truncate(INPUT_BYTES_MAX);
    }
}

/// Input that is being parsed, printed if that fails.
struct Input<'a>(&'a [u8], usize);

impl Drop for Input<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("cut at {}: \"{}\"", self.1, self.0.escape_ascii());
        }
    }
}

/// Feeds a parser with each seed, then with changed ones.
fn feed(seeds: &[&[u8]], parse: fn(&[u8], usize)) {
    let variable = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    let clock = Clock::start();
    let limit = variable("INFERGATE_FUZZ_SECS").map(Millis::from_secs);
    let by_time = limit.map(|_| clock.unix_secs());
    let seed = variable("INFERGATE_FUZZ_SEED").or(by_time).unwrap_or(1);
    println!("INFERGATE_FUZZ_SEED={seed}");
    let mut random = Random(seed);
    for seed in seeds {
        for cut in 0..=seed.len() {
            let _shown = Input(seed, cut);
            parse(seed, cut);
        }
    }
    let start = clock.now();
    let mut inputs = 0;
    while limit.map_or(inputs < INPUTS, |limit| clock.now() < start + limit) {
        let mut input = seeds[random.below(seeds.len())].to_vec();
        let other = seeds[random.below(seeds.len())];
        for _ in 0..=random.below(CHANGES_MAX as usize) {
            random.change(&mut input, other);
        }
        let cut = random.below(input.len() + 1);
        let _shown = Input(&input, cut);
        parse(&input, cut);
        inputs += 1;
    }
    println!("{inputs} inputs");
}

/// A head and a body, as far as they can be read: whether the head is one, and what the body has.
fn read_message(
    pieces: [&[u8]; 2],
    head: &mut dyn FnMut(&mut BytesMut) -> Option<bool>,
    body: &mut dyn FnMut() -> Option<BodyDecoder>,
) -> Option<(bool, Vec<u8>)> {
    let mut buffer = BytesMut::new();
    let mut decoder = None;
    let mut data = Vec::new();
    for piece in pieces {
        buffer.extend_from_slice(piece);
        if decoder.is_none() && head(&mut buffer)? {
            decoder = Some(body()?);
        }
        let Some(decoder) = &mut decoder else {
            continue;
        };
        loop {
            let before = buffer.len();
            match decoder.decode(&mut buffer).ok()? {
                BodyStep::Data(more) => {
                    assert!(!more.is_empty() && buffer.len() < before);
                    data.extend_from_slice(&more);
                }
                BodyStep::Partial | BodyStep::End => break,
            }
        }
    }
    Some((decoder.is_some(), data))
}

#[test]
fn requests_of_http1() {
    fn parse(bytes: &[u8], cut: usize) {
        let read = |pieces| {
            // The decoder is asked for with the head at hand.
            let parsed = std::cell::RefCell::new(ParsedRequest::default());
            read_message(
                pieces,
                &mut |buffer| parsed.borrow_mut().parse(buffer).ok(),
                &mut || framing::of_request(&parsed.borrow()).ok(),
            )
        };
        let (first, second) = bytes.split_at(cut);
        assert_eq!(read([first, second]), read([bytes, b""]));
        let mut head = ParsedRequest::default();
        if head.parse(&mut BytesMut::from(bytes)) == Ok(true) {
            let _ = ForwardedHead::read(&head.fields);
            let _ = framing::path_of(head.target());
            let _ = framing::expects_continue(&head);
        }
    }
    feed(
        &[
            b"POST /v1/chat/completions?a=b HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello",
            b"POST /x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n5;a=b\r\nhello\r\n0\r\nX-T: 1\r\n\r\n",
            b"GET / HTTP/1.0\r\nhost: [::1]:80\r\nConnection: keep-alive\r\nExpect: 100-continue\r\n\r\n",
            b"POST /v1/x HTTP/1.1\r\nHost: h\r\nx-infergate-hops: 3;1;2;3;4;5;6;7;1:a1:b1:c\r\nContent-Length: 0\r\n\r\n",
        ],
        parse,
    );
}

#[test]
fn responses_of_http1() {
    fn parse(bytes: &[u8], cut: usize) {
        let read = |pieces| {
            let parsed = std::cell::RefCell::new(ParsedResponse::default());
            read_message(
                pieces,
                &mut |buffer| parsed.borrow_mut().parse(buffer).ok(),
                &mut || framing::of_response(&parsed.borrow()).ok(),
            )
        };
        let (first, second) = bytes.split_at(cut);
        assert_eq!(read([first, second]), read([bytes, b""]));
    }
    feed(
        &[
            b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Type: application/json\r\n\r\n{}",
            b"HTTP/1.1 200 \r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
            b"HTTP/1.0 503 Service Unavailable\r\n\r\nfull",
            b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n",
        ],
        parse,
    );
}

#[test]
fn events_of_servers() {
    fn parse(bytes: &[u8], cut: usize) {
        let events = |pieces: [&[u8]; 2]| {
            let mut found = Vec::new();
            let mut splitter = EventSplitter::default();
            for piece in pieces {
                let split = splitter.push(piece, &mut |event| found.push(event.to_vec()));
                split.expect("within the bound");
            }
            found
        };
        let (first, second) = bytes.split_at(cut);
        let whole = events([bytes, b""]);
        assert_eq!(events([first, second]), whole);
        assert!(bytes.starts_with(&whole.concat()));
        let mut bounded = EventSplitter::with_limit(8);
        bounded.push_parts(first, &mut |_| {});
        bounded.push_parts(second, &mut |_| {});
    }
    feed(
        &[
            b"data: {\"a\":1}\n\ndata: [DONE]\n\n",
            b": comment\r\nevent: x\r\ndata: a\r\ndata: b\r\nid: 1\r\n\r\n",
            b"data:a\rdata:b\n\r\n\n\n",
        ],
        parse,
    );
}

#[test]
fn members_of_json() {
    fn parse(bytes: &[u8], cut: usize) {
        let last = |pieces: [&[u8]; 2]| {
            let mut scanner = MemberScanner::new("usage").watching("error");
            let mut last = None;
            for piece in pieces {
                if let Some(value) = scanner.push(piece) {
                    last = Some(value.to_vec());
                }
            }
            (last, scanner.has_watched())
        };
        let (first, second) = bytes.split_at(cut);
        assert_eq!(last([first, second]), last([bytes, b""]));
        // An answer of the Open Inference Protocol: what is left of it is JSON.
        if let Ok(edit) = edit_answer(bytes, "m", &[]) {
            assert!(serde_json::from_slice::<serde_json::Value>(&edit.json).is_ok());
        }
    }
    feed(
        &[
            br#"{"id":"x","choices":[{"a":"\"}"}],"usage":{"prompt_tokens":1},"error":null}"#,
            br#"{"us\u0061ge":[1,2,[3]],"usage":-1.5e9 ,"x":{"usage":0}}"#,
            br#"{"model_name":"m","outputs":[{"name":"y","datatype":"FP32","shape":[1,2],"parameters":{"binary_data_size":8}},{"name":"COST_METRIC_a","datatype":"INT64","shape":[1],"data":[3]}]}"#,
        ],
        parse,
    );
}

#[test]
fn configurations() {
    fn parse(bytes: &[u8], _: usize) {
        let text = String::from_utf8_lossy(bytes);
        if let Err(problems) = config::parse(&text, &|_| None) {
            assert!(!problems.is_empty());
        }
    }
    feed(
        &[
            b"listen:\n  clients: [{ address: \"127.0.0.1:0\", http2: off }]\nanonymous: allow\nmodels:\n  - id: m\n    task: text-generation\n    backend: openai\n    endpoints: [{ url: \"http://127.0.0.1:1\", max_concurrent_requests: 1 }]\n",
            b"accounts: [{ id: a, api_keys_sha256: [], weight: 1, models: [\"*\"] }]\nlimits: &l { connections: 5 }\ntimeouts: { ceiling_secs: \"${X}\" }\n",
        ],
        parse,
    );
}

#[test]
fn headers_of_balancers() {
    fn parse(bytes: &[u8], _: usize) {
        let mut rest = bytes;
        // A slice has all its bytes at once: nothing is waited for.
        let read = read_proxy_header(&mut rest).now_or_never();
        if read.expect("all bytes are there").is_ok() {
            assert!(rest.len() < bytes.len());
        }
    }
    feed(
        &[
            b"PROXY TCP4 203.0.113.7 10.0.0.1 1 2\r\nGET /",
            b"PROXY UNKNOWN\r\nGET /",
            b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\xcb\0\x71\x07\x0a\0\0\x01\x01\x02\x03\x04GET /",
            b"\r\n\r\n\0\r\nQUIT\n\x21\x21\0\x24aaaaaaaaaaaaaaaabbbbbbbbbbbbbbbb\x01\x02\x03\x04GET /",
        ],
        parse,
    );
}

#[test]
fn forms_of_several_parts() {
    /// Heads, and the data of each part in one piece.
    fn parts(pieces: [&[u8]; 2]) -> Option<Vec<PartEvent>> {
        let mut reader = FormReader::new("multipart/form-data; boundary=b").ok()?;
        let mut found: Vec<PartEvent> = Vec::new();
        for piece in pieces {
            reader.push(piece);
            while let Some(event) = reader.next().ok()? {
                match (event, found.last_mut()) {
                    (PartEvent::End, _) => return Some(found),
                    (PartEvent::Data(more), Some(PartEvent::Data(data))) => {
                        *data = [&data[..], &more[..]].concat().into();
                    }
                    (event, _) => found.push(event),
                }
            }
        }
        Some(found)
    }
    fn parse(bytes: &[u8], cut: usize) {
        let (first, second) = bytes.split_at(cut);
        let (whole, cut) = (parts([bytes, b""]), parts([first, second]));
        assert_eq!(whole.is_some(), cut.is_some());
        let heads = |found: Option<Vec<PartEvent>>| {
            let found = found.into_iter().flatten();
            found
                .filter(|event| matches!(event, PartEvent::Head(_)))
                .collect::<Vec<_>>()
        };
        assert_eq!(heads(whole), heads(cut));
    }
    feed(
        &[
            b"--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a\\\"b.wav\"\r\nContent-Type: audio/wav\r\n\r\nRIFF\r\n--bx\r\n\r\n--b\r\nContent-Disposition: form-data; name=model\r\n\r\nm\r\n--b--\r\n",
            b"preamble\r\n--b\r\ncontent-disposition: form-data; name=\"x\"\r\n\r\n\r\n--b--",
        ],
        parse,
    );
}
