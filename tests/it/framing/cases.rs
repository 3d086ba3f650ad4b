//! The requests of these tests, as bytes: a table of what is refused and one of what is served.
//!
//! Data only, no I/O. Each name describes the oddity of its request.

/// Path of the requests.
pub const CHAT: &str = "/v1/chat/completions";
/// The body of all of them.
pub const BODY: &str = r#"{"model":"m","messages":[]}"#;

/// A request with these header lines instead of a length, and this after its head.
pub fn post(lines: &str, after: &str) -> Vec<u8> {
    format!("POST {CHAT} HTTP/1.1\r\nHost: h\r\n{lines}\r\n{after}").into_bytes()
}

/// A well-framed request, but for `lines` in its head.
pub fn with(lines: &str) -> Vec<u8> {
    post(&format!("{lines}Content-Length: {}\r\n", BODY.len()), BODY)
}

/// A request whose body is these chunks as they stand.
pub fn chunked(after: &str) -> Vec<u8> {
    post("Transfer-Encoding: chunked\r\n", after)
}

pub fn whole_chunk() -> String {
    format!("{:x}\r\n{BODY}\r\n0\r\n\r\n", BODY.len())
}

fn line(text: &str) -> Vec<u8> {
    format!(
        "{text}\r\nHost: h\r\nContent-Length: {}\r\n\r\n{BODY}",
        BODY.len()
    )
    .into_bytes()
}

/// Requests that are refused, with the statuses allowed for the refusal.
#[rustfmt::skip] // a table reads as a table
pub fn refused() -> Vec<(&'static str, Vec<u8>, &'static [u16])> {
    let n = BODY.len();
    let cl = |value: &str| post(&format!("Content-Length: {value}\r\n"), BODY);
    let te = |value: &str| post(&format!("Transfer-Encoding: {value}\r\n"), &whole_chunk());
    let many = |count: usize| with(&"X-A: 1\r\n".repeat(count));
    vec![
        ("length and encoding", post(&format!("Content-Length: {n}\r\nTransfer-Encoding: chunked\r\n"), &whole_chunk()), &[400]),
        ("encoding and length", post(&format!("Transfer-Encoding: chunked\r\nContent-Length: {n}\r\n"), &whole_chunk()), &[400]),
        ("a short length and encoding", post("Content-Length: 3\r\nTransfer-Encoding: chunked\r\n", &whole_chunk()), &[400]),
        ("encoding and a length in odd case", post("transfer-encoding: chunked\r\ncOnTeNt-LeNgTh: 3\r\n", &whole_chunk()), &[400]),
        ("two equal lengths", post(&format!("Content-Length: {n}\r\nContent-Length: {n}\r\n"), BODY), &[400]),
        ("two lengths", post(&format!("Content-Length: {n}\r\nContent-Length: 1\r\n"), BODY), &[400]),
        ("a list of equal lengths", cl(&format!("{n}, {n}")), &[400]),
        ("a list of lengths", cl(&format!("{n}, 1")), &[400]),
        ("a length with a plus", cl(&format!("+{n}")), &[400]),
        ("a negative length", cl("-1"), &[400]),
        ("a hexadecimal length", cl("0x1b"), &[400]),
        ("a length with a space", cl("2 7"), &[400]),
        ("an empty length", cl(""), &[400]),
        ("a length with a fraction", cl("27.0"), &[400]),
        ("a length in words", cl("chunked"), &[400]),
        ("a length beyond 64 bits", cl("99999999999999999999999"), &[400]),
        ("the largest length of 64 bits", cl("18446744073709551615"), &[400, 413]),
        ("gzip, chunked", te("gzip, chunked"), &[400]),
        ("chunked, identity", te("chunked, identity"), &[400]),
        ("identity", te("identity"), &[400]),
        ("xchunked", te("xchunked"), &[400]),
        ("chunked twice in one", te("chunked, chunked"), &[400]),
        ("chunked with a parameter", te("chunked;q=1"), &[400]),
        ("chunked after a vertical tab", te("\u{b}chunked"), &[400]),
        ("quoted chunked", te("\"chunked\""), &[400]),
        ("an empty encoding", te(""), &[400]),
        ("two encodings", post("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", &whole_chunk()), &[400]),
        ("an encoding on HTTP/1.0", format!("POST {CHAT} HTTP/1.0\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n{}", whole_chunk() ) .into_bytes(), &[400]),
        ("no Host", format!("POST {CHAT} HTTP/1.1\r\nContent-Length: {n}\r\n\r\n{BODY}").into_bytes(), &[400]),
        ("an empty Host", format!("POST {CHAT} HTTP/1.1\r\nHost: \r\nContent-Length: {n}\r\n\r\n{BODY}") .into_bytes(), &[400]),
        ("two Hosts", with("Host: h\r\n"), &[400]),
        ("two different Hosts", with("Host: other\r\n"), &[400]),
        ("an absolute URI of another host", line(&format!("POST http://other{CHAT} HTTP/1.1")), &[400]),
        ("a bare line feed after a header", format!("POST {CHAT} HTTP/1.1\r\nHost: h\r\nX-A: 1\nContent-Length: {n}\r\n\r\n{BODY}") .into_bytes(), &[400]),
        ("a bare line feed after the request line", format!("POST {CHAT} HTTP/1.1\nHost: h\r\nContent-Length: {n}\r\n\r\n{BODY}") .into_bytes(), &[400]),
        ("bare line feeds only", format!("POST {CHAT} HTTP/1.1\nHost: h\nContent-Length: {n}\n\n{BODY}").into_bytes(), &[400]),
        ("a bare line feed hiding a length", post(&format!("X-A: 1\nContent-Length: 1\r\nContent-Length: {n}\r\n"), BODY), &[400]),
        ("a folded header", with("X-A: 1\r\n folded\r\n"), &[400]),
        ("a header folded by a tab", with("X-A: 1\r\n\tfolded\r\n"), &[400]),
        ("a target with a fragment", format!("POST {CHAT}#x HTTP/1.1\r\nHost: h\r\nContent-Length: {n}\r\n\r\n{BODY}").into_bytes(), &[400]),
        ("NUL in a value", with("X-A: a\0b\r\n"), &[400]),
        ("NUL in a name", with("X\0A: b\r\n"), &[400]),
        ("a bare CR in a value", with("X-A: a\rb\r\n"), &[400]),
        ("a bare CR hiding a length", with("X-A: a\rContent-Length: 1\r\n"), &[400]),
        ("a space before the colon", with("X-A : 1\r\n"), &[400]),
        ("a space before the colon of a length", post(&format!("Content-Length : {n}\r\n"), BODY), &[400]),
        ("a tab before the colon of an encoding", post("Transfer-Encoding\t: chunked\r\n", &whole_chunk()), &[400]),
        ("a space before the first header", format!("POST {CHAT} HTTP/1.1\r\n Host: h\r\nContent-Length: {n}\r\n\r\n{BODY}") .into_bytes(), &[400]),
        ("a header without a colon", with("X-A\r\n"), &[400]),
        ("a header without a name", with(": x\r\n"), &[400]),
        ("a name that is no token", with("X(A): x\r\n"), &[400]),
        ("HTTP/0.9", b"GET /v1/models\r\n\r\n".to_vec(), &[400]),
        ("HTTP/2 by its name", line(&format!("POST {CHAT} HTTP/2.0")), &[400]),
        ("HTTP/1.2", line(&format!("POST {CHAT} HTTP/1.2")), &[400]),
        ("http/1.1", line(&format!("POST {CHAT} http/1.1")), &[400]),
        ("a version with a leading zero", line(&format!("POST {CHAT} HTTP/01.1")), &[400]),
        ("no version", line(&format!("POST {CHAT} ")), &[400]),
        ("the HTTP/2 preface", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(), &[400]),
        ("a TLS hello", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n".to_vec(), &[400]),
        ("CONNECT", b"CONNECT h:443 HTTP/1.1\r\nHost: h:443\r\n\r\n".to_vec(), &[400, 401, 404, 405]),
        ("TRACE", line(&format!("TRACE {CHAT} HTTP/1.1")), &[404]),
        ("257 headers", many(255), &[400, 431]),
        ("a head over 64 KiB", with(&format!("X-A: {}\r\n", "a".repeat(70 * 1024))), &[431]),
        ("a head without an end", with(&"X-A: ".repeat(400 * 1024)), &[431]),
        ("a chunk size that is no number", chunked("zz\r\nhello\r\n0\r\n\r\n"), &[400]),
        ("a negative chunk size", chunked("-1\r\nx\r\n0\r\n\r\n"), &[400]),
        ("a chunk size with 0x", chunked("0x5\r\nhello\r\n0\r\n\r\n"), &[400]),
        ("a chunk size with a plus", chunked("+5\r\nhello\r\n0\r\n\r\n"), &[400]),
        ("no chunk size", chunked("\r\nhello\r\n0\r\n\r\n"), &[400]),
        ("a chunk size beyond 64 bits", chunked("fffffffffffffffff\r\nhello\r\n"), &[400]),
        ("the largest chunk size", chunked("ffffffffffffffff\r\nhello\r\n"), &[400, 413]),
        ("a chunk size over the limit", chunked("7fffffff\r\nhello\r\n"), &[408, 413]),
        ("a chunk longer than its size", chunked("3\r\nhello\r\n0\r\n\r\n"), &[400]),
        ("a chunk without its line end", chunked("5\r\nhello0\r\n\r\n"), &[400]),
        ("a chunk ended by a line feed", chunked("5\r\nhello\n0\r\n\r\n"), &[400]),
        ("a chunk size ended by a line feed", chunked("5\nhello\r\n0\r\n\r\n"), &[400]),
        ("a chunk extension without end", chunked(&format!("5;{}", "a".repeat(20 * 1024))), &[400]),
        ("control bytes in a chunk extension", chunked("5;a=\u{1}\0\u{1b}\u{7f}\r\nhello\r\n0\r\n\r\n"), &[400]),
        ("a lone line feed in a chunk extension", chunked("5;a\nb\r\nhello\r\n0\r\n\r\n"), &[400]),
        ("a lone carriage return in a chunk extension", chunked("5;a\rb\r\nhello\r\n0\r\n\r\n"), &[400]),
        ("a lone line feed in a trailer", chunked("5\r\nhello\r\n0\r\na: 1\nb: 2\r\n\r\n"), &[400]),
        ("trailers without end", chunked(&format!("5\r\nhello\r\n0\r\n{}", "X-A: 1\r\n".repeat(16 * 1024) )), &[400]),
        ("a body cut short", post("Content-Length: 100\r\n", BODY), &[408]),
        ("chunks cut short", chunked("64\r\nhello"), &[408]),
    ]
}

/// Unusual requests that are served.
#[rustfmt::skip]
pub fn served() -> Vec<(&'static str, Vec<u8>)> {
    let n = BODY.len();
    let (first, second) = BODY.split_at(7);
    let pieces = format!(
        "7\r\n{first}\r\n{:x}\r\n{second}\r\n0\r\n\r\n",
        second.len()
    );
    vec![
        ("a length", with("")),
        ("a length with leading zeros", post(&format!("Content-Length: 00{n}\r\n"), BODY)),
        ("names in odd case", post(&format!("cOnTeNt-LeNgTh: {n}\r\n"), BODY)),
        ("values with spaces around", post(&format!("Content-Length:   {n}  \r\n"), BODY)),
        ("one chunk", chunked(&whole_chunk())),
        ("chunks", chunked(&pieces)),
        ("Chunked", post("Transfer-Encoding: Chunked\r\n", &whole_chunk())),
        ("a chunk extension", chunked(&format!("{n:x};a=b\r\n{BODY}\r\n0\r\n\r\n"))),
        ("a chunk size in capitals with zeros", chunked(&format!("00{n:X}\r\n{BODY}\r\n0\r\n\r\n"))),
        ("a trailer", chunked(&format!("{n:x}\r\n{BODY}\r\n0\r\nX-A: 1\r\n\r\n"))),
        ("an empty line before the request", [b"\r\n", &with("")[..]].concat()),
        ("an absolute URI of this host", line(&format!("POST http://h{CHAT} HTTP/1.1"))),
        ("a query", line(&format!("POST {CHAT}?a=b HTTP/1.1"))),
        ("90 headers", with(&"X-A: 1\r\n".repeat(90))),
        ("a head of 60 KiB", with(&format!("X-A: {}\r\n", "a".repeat(60 * 1024)))),
        ("bytes beyond ASCII in a value", with("X-A: \u{e9}\r\n")),
    ]
}
