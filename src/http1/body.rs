//! Bodies as they arrive: announced by a length, in chunks (RFC 9112 section 7.1), or up to the close.
//!
//! Data comes out as slices of the connection's buffer. Chunk extensions and trailers are dropped, once they are
//! lines that no reader can end elsewhere. Not reading, and not the choice of a framing.

use bytes::{Buf, Bytes, BytesMut};
use memchr::memchr;

/// The longest line of a chunk's size with its extension.
const CHUNK_LINE_BYTES_MAX: usize = 8 * 1024;
/// Trailers of one body, in all.
const TRAILER_BYTES_MAX: usize = 16 * 1024;

/// Broken framing of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the body's chunked encoding is broken")]
pub struct BrokenBody;

/// Result of a look at the buffer.
#[derive(Debug, PartialEq, Eq)]
pub enum BodyStep {
    /// A part of the body.
    Data(Bytes),
    /// Nothing before more bytes come.
    Partial,
    /// The body has ended; what is left in the buffer is not its.
    End,
}

/// Framing of a body, and how much of it has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BodyDecoder {
    /// No more of it comes.
    #[default]
    Done,
    /// Bytes that are still to come.
    Length(u64),
    /// Chunks.
    Chunked(ChunkPosition),
    /// All until the connection closes.
    UntilClose,
}

/// Position in a chunked body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkPosition {
    /// Before the line of a size.
    Size,
    /// Within a chunk with bytes to come.
    Data(u64),
    /// After its data, before the line end.
    DataEnd,
    /// After the last chunk, and so many bytes of trailers.
    Trailers(u16),
}

impl BodyDecoder {
    /// A body in chunks, from its begin.
    pub const CHUNKED: BodyDecoder = BodyDecoder::Chunked(ChunkPosition::Size);

    /// A body of this length.
    pub fn with_length(length: u64) -> BodyDecoder {
        match length {
            0 => BodyDecoder::Done,
            length => BodyDecoder::Length(length),
        }
    }

    /// Returns whether the body has ended.
    pub fn is_done(&self) -> bool {
        *self == BodyDecoder::Done
    }

    /// Takes what there is of the body from the begin of `buffer`.
    ///
    /// # Errors
    /// [`BrokenBody`]; nothing can be read after it.
    pub fn decode(&mut self, buffer: &mut BytesMut) -> Result<BodyStep, BrokenBody> {
        match self {
            BodyDecoder::Done => Ok(BodyStep::End),
            _ if buffer.is_empty() => Ok(BodyStep::Partial),
            BodyDecoder::UntilClose => Ok(BodyStep::Data(buffer.split().freeze())),
            BodyDecoder::Length(left) => {
                let data = take(buffer, left);
                if *left == 0 {
                    *self = BodyDecoder::Done;
                }
                Ok(BodyStep::Data(data))
            }
            BodyDecoder::Chunked(_) => self.decode_chunked(buffer),
        }
    }

    /// Bytes that are announced and have not come, as far as the framing tells.
    pub fn announced(&self) -> u64 {
        match self {
            BodyDecoder::Length(left) | BodyDecoder::Chunked(ChunkPosition::Data(left)) => *left,
            _ => 0,
        }
    }

    /// Records bytes of a body with a length that were read past the buffer.
    pub fn record_taken(&mut self, bytes: u64) {
        if let BodyDecoder::Length(left) = self {
            *self = BodyDecoder::with_length(left.saturating_sub(bytes));
        }
    }

    fn decode_chunked(&mut self, buffer: &mut BytesMut) -> Result<BodyStep, BrokenBody> {
        while let BodyDecoder::Chunked(position) = self {
            match position {
                ChunkPosition::Size => {
                    let Some(line) = line(buffer, CHUNK_LINE_BYTES_MAX)? else {
                        return Ok(BodyStep::Partial);
                    };
                    let size = chunk_size(&buffer[..line])?;
                    buffer.advance(line + 2);
                    *position = match size {
                        0 => ChunkPosition::Trailers(0),
                        size => ChunkPosition::Data(size),
                    };
                }
                ChunkPosition::Data(_) if buffer.is_empty() => return Ok(BodyStep::Partial),
                ChunkPosition::Data(left) => {
                    let data = take(buffer, left);
                    if *left == 0 {
                        *position = ChunkPosition::DataEnd;
                        // The line end has come with the data, nearly always: the next look is at a size.
                        if buffer.starts_with(b"\r\n") {
                            buffer.advance(2);
                            *position = ChunkPosition::Size;
                        }
                    }
                    return Ok(BodyStep::Data(data));
                }
                ChunkPosition::DataEnd => match &buffer[..] {
                    [b'\r', b'\n', ..] => {
                        buffer.advance(2);
                        *position = ChunkPosition::Size;
                    }
                    [] | [b'\r'] => return Ok(BodyStep::Partial),
                    _ => return Err(BrokenBody),
                },
                ChunkPosition::Trailers(read) => {
                    let left = TRAILER_BYTES_MAX - usize::from(*read);
                    let Some(line) = line(buffer, left)? else {
                        return Ok(BodyStep::Partial);
                    };
                    if line + 2 > left {
                        return Err(BrokenBody);
                    }
                    buffer.advance(line + 2);
                    *read += (line + 2) as u16;
                    if line == 0 {
                        *self = BodyDecoder::Done;
                    }
                }
            }
        }
        Ok(BodyStep::End)
    }
}

fn take(buffer: &mut BytesMut, left: &mut u64) -> Bytes {
    let length = usize::try_from(*left).unwrap_or(usize::MAX);
    let length = length.min(buffer.len());
    *left -= length as u64;
    buffer.split_to(length).freeze()
}

/// Length of the line at the begin of `buffer`, without its CRLF; none before that has come. A reader that took a
/// lone CR, LF or another control byte for a line's end would find another body: no line has one.
fn line(buffer: &[u8], max: usize) -> Result<Option<usize>, BrokenBody> {
    let end = memchr(b'\r', buffer);
    let text = &buffer[..end.unwrap_or(buffer.len())];
    let is_control = |byte: &u8| byte.is_ascii_control() && *byte != b'\t';
    if text.len() > max || text.iter().any(is_control) {
        return Err(BrokenBody);
    }
    match end.map(|end| buffer.get(end + 1)) {
        Some(Some(b'\n')) => Ok(end),
        Some(Some(_)) => Err(BrokenBody),
        Some(None) | None => Ok(None),
    }
}

/// Size in the line of a chunk: hexadecimal digits, perhaps white space, and perhaps an extension.
fn chunk_size(line: &[u8]) -> Result<u64, BrokenBody> {
    let mut size: u64 = 0;
    let mut digits = 0;
    for byte in line {
        let digit = match byte {
            b'0'..=b'9' => byte - b'0',
            b'a'..=b'f' => byte - b'a' + 10,
            b'A'..=b'F' => byte - b'A' + 10,
            _ => break,
        };
        // Four bits more must fit.
        if size >> 60 != 0 {
            return Err(BrokenBody);
        }
        size = size << 4 | u64::from(digit);
        digits += 1;
    }
    let mut rest = &line[digits..];
    while let [b' ' | b'\t', after @ ..] = rest {
        rest = after;
    }
    match (digits, rest) {
        (1.., [] | [b';', ..]) => Ok(size),
        _ => Err(BrokenBody),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Decodes `text`, which comes in pieces of `piece` bytes. Returns the body, and what is left.
    fn decode(
        mut body: BodyDecoder,
        text: &[u8],
        piece: usize,
    ) -> Result<(Vec<u8>, Vec<u8>), BrokenBody> {
        let mut buffer = BytesMut::new();
        let mut whole = Vec::new();
        let mut pieces = text.chunks(piece.max(1));
        loop {
            match body.decode(&mut buffer)? {
                BodyStep::Data(data) => {
                    assert!(!data.is_empty());
                    whole.extend_from_slice(&data);
                }
                BodyStep::End => {
                    let rest = pieces.flatten();
                    buffer.extend(rest);
                    return Ok((whole, buffer.to_vec()));
                }
                BodyStep::Partial => match pieces.next() {
                    Some(more) => buffer.extend_from_slice(more),
                    None => return Ok((whole, b"(cut)".to_vec())),
                },
            }
        }
    }

    #[test]
    fn chunks_are_the_same_in_any_pieces() {
        let text = b"5;a=\"\xe9\tb\"\r\nhello\r\n00A \t;x\r\n, chunked \r\n0\r\nX: y\r\n\r\nnext";
        for piece in 1..=text.len() {
            let read = decode(BodyDecoder::CHUNKED, text, piece).unwrap();
            assert_eq!(
                read,
                (b"hello, chunked ".to_vec(), b"next".to_vec()),
                "{piece}"
            );
        }
    }

    #[test]
    fn broken_chunks_are_told_in_any_pieces() {
        let long = format!("5;{}", "a".repeat(CHUNK_LINE_BYTES_MAX));
        let trailers = format!("0\r\n{}", "a: b\r\n".repeat(TRAILER_BYTES_MAX / 5));
        for text in [
            "zz\r\n",
            "-1\r\n",
            "0x5\r\n",
            "+5\r\n",
            "\r\n",
            "5\nhello\r\n",
            " 5\r\n",
            "5 6\r\n",
            "fffffffffffffffff\r\n",
            "3\r\nhello\r\n",
            "5\r\nhello0\r\n",
            "5\r\nhello\n0\r\n",
            "0\r\na\nb\r\n\r\n",
            "0\r\na\rb\r\n\r\n",
            "0\r\na\0b\r\n\r\n",
            "5;a\nb\r\nhello\r\n0\r\n\r\n",
            "5;a\rb\r\nhello\r\n0\r\n\r\n",
            "5;a\r\r\nhello\r\n0\r\n\r\n",
            "5;\x01\r\nhello\r\n0\r\n\r\n",
            "5;\x7f\r\nhello\r\n0\r\n\r\n",
            &long,
            &trailers,
        ] {
            for piece in [1, 2, 3, 7, text.len()] {
                let read = decode(BodyDecoder::CHUNKED, text.as_bytes(), piece);
                assert_eq!(read, Err(BrokenBody), "{piece} of {text:.20}");
            }
        }
    }

    #[test]
    fn a_length_ends_a_body_and_a_close_does() {
        for piece in 1..6 {
            let read = decode(BodyDecoder::with_length(3), b"abcdef", piece).unwrap();
            assert_eq!(read, (b"abc".to_vec(), b"def".to_vec()));
            let read = decode(BodyDecoder::with_length(0), b"abc", piece).unwrap();
            assert_eq!(read, (Vec::new(), b"abc".to_vec()));
            let read = decode(BodyDecoder::UntilClose, b"abcdef", piece).unwrap();
            assert_eq!(read, (b"abcdef".to_vec(), b"(cut)".to_vec()));
        }
    }

    #[test]
    fn bytes_read_past_the_buffer_count() {
        let mut body = BodyDecoder::with_length(10);
        body.record_taken(4);
        assert_eq!(body, BodyDecoder::Length(6));
        body.record_taken(6);
        assert!(body.is_done());
    }
}
