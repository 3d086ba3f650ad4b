//! Responses as they go out: status line, the fields of the connection, chunk sizes.
//!
//! Not writing, and not the fields of the message itself.

use std::cell::RefCell;
use std::time::{Duration, UNIX_EPOCH};

use bytes::BytesMut;
use http::StatusCode;

/// End of a chunk's data.
pub const CHUNK_END: &[u8] = b"\r\n";
/// End of a body in chunks, after the end of a chunk's data.
pub const LAST_CHUNK: &[u8] = b"0\r\n\r\n";
/// Both of them.
pub const CHUNK_END_AND_LAST: &[u8] = b"\r\n0\r\n\r\n";

const DIGITS: &[u8; 16] = b"0123456789ABCDEF";

/// Writes the line that begins a chunk of `size` bytes.
pub fn chunk_size(size: usize, out: &mut BytesMut) {
    let mut text = [0_u8; 18];
    text[16..].copy_from_slice(b"\r\n");
    let mut at = 16;
    let mut left = size;
    loop {
        at -= 1;
        text[at] = DIGITS[left & 15];
        left >>= 4;
        if left == 0 {
            break;
        }
    }
    out.extend_from_slice(&text[at..]);
}

/// Writes a number in digits.
pub fn number(number: u64, out: &mut BytesMut) {
    let mut text = [0_u8; 20];
    let mut at = text.len();
    let mut left = number;
    loop {
        at -= 1;
        text[at] = b'0' + (left % 10) as u8;
        left /= 10;
        if left == 0 {
            break;
        }
    }
    out.extend_from_slice(&text[at..]);
}

/// Writes a status line.
pub fn status_line(status: StatusCode, out: &mut BytesMut) {
    if status == StatusCode::OK {
        return out.extend_from_slice(b"HTTP/1.1 200 OK\r\n");
    }
    out.extend_from_slice(b"HTTP/1.1 ");
    out.extend_from_slice(status.as_str().as_bytes());
    out.extend_from_slice(b" ");
    out.extend_from_slice(status.canonical_reason().unwrap_or_default().as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// Writes a field.
pub fn field(name: impl AsRef<[u8]>, value: &[u8], out: &mut BytesMut) {
    let name = name.as_ref();
    out.reserve(name.len() + value.len() + 4);
    out.extend_from_slice(name);
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

thread_local! {
    /// The second that was written last, and its line.
    static DATE: RefCell<(u64, [u8; 37])> = const { RefCell::new((u64::MAX, [0; 37])) };
}

/// Writes the `date` field of a response that is sent at this Unix time, in seconds (RFC 9110 section 6.6.1).
pub fn date(secs: u64, out: &mut BytesMut) {
    DATE.with_borrow_mut(|(written, line)| {
        if *written != secs {
            *written = secs;
            *line = date_line(secs);
        }
        out.extend_from_slice(line);
    });
}

fn date_line(secs: u64) -> [u8; 37] {
    let at = UNIX_EPOCH + Duration::from_secs(secs);
    let text = format!("date: {}\r\n", httpdate::fmt_http_date(at));
    // Years of five digits have another length, and no reader.
    text.as_bytes()
        .try_into()
        .unwrap_or(*b"date: Thu, 01 Jan 1970 00:00:00 GMT\r\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_numbers_and_dates_are_as_their_readers_parse_them() {
        for size in [0, 1, 9, 10, 15, 16, 255, 4096, 65_535, usize::MAX] {
            let (mut hex, mut decimal) = (BytesMut::new(), BytesMut::new());
            chunk_size(size, &mut hex);
            number(size as u64, &mut decimal);
            assert_eq!(hex, format!("{size:X}\r\n"));
            assert_eq!(decimal, size.to_string());
        }
        let line = date_line(784_111_777);
        assert_eq!(&line, b"date: Sun, 06 Nov 1994 08:49:37 GMT\r\n");
    }

    #[test]
    fn a_status_line_has_its_reason() {
        let mut out = BytesMut::new();
        status_line(StatusCode::OK, &mut out);
        status_line(StatusCode::TOO_MANY_REQUESTS, &mut out);
        assert_eq!(out, "HTTP/1.1 200 OK\r\nHTTP/1.1 429 Too Many Requests\r\n");
    }
}
