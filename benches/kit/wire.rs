//! Reading HTTP/1.1 answers from bytes: head, length or chunks, and server-sent events.
//! Not a parser for strangers: it reads what the upstreams and proxies of a bench send, and is quick about it.
//!
//! The caller owns the socket and feeds what it read. Called by both load generators.

use super::Fallible;

/// Longest head accepted.
const HEAD_LIMIT: usize = 64 * 1024;

/// Bytes kept of a body whose reader wants to look at its end (`[DONE]`, an error event, a code).
const TAIL_BYTES: usize = 2048;

/// Bytes kept of a body whose reader wants all of it: `/state` with a thousand models fits.
const WHOLE_BYTES: usize = 16 * 1024 * 1024;

/// A response, read piece by piece.
pub struct ResponseReader {
    state: State,
    /// A head or chunk line that is not complete yet.
    pending: Vec<u8>,
    pub status: u16,
    /// True when the connection may carry another request.
    pub keep_alive: bool,
    /// Server-sent events seen so far; the blank line that ends one counts it.
    pub events: u64,
    last_byte_was_newline: bool,
    /// The last `keep_bytes` of the body.
    kept: Vec<u8>,
    keep_bytes: usize,
}

enum State {
    Head,
    Length(usize),
    ChunkSize,
    Chunk(usize),
    /// The line end after a chunk's data.
    ChunkEnd,
    Trailer,
    UntilClose,
    Done,
}

impl ResponseReader {
    pub fn new() -> Self {
        Self {
            state: State::Head,
            pending: Vec::new(),
            status: 0,
            keep_alive: true,
            events: 0,
            last_byte_was_newline: false,
            kept: Vec::new(),
            keep_bytes: 0,
        }
    }

    /// Also keeps the last bytes of the body.
    pub fn keeping_tail() -> Self {
        Self {
            keep_bytes: TAIL_BYTES,
            ..Self::new()
        }
    }

    /// Also keeps the body.
    pub fn collecting() -> Self {
        Self {
            keep_bytes: WHOLE_BYTES,
            ..Self::new()
        }
    }

    pub fn is_done(&self) -> bool {
        matches!(self.state, State::Done)
    }

    /// Returns whether any byte of the response has been read.
    pub fn has_started(&self) -> bool {
        !matches!(self.state, State::Head) || !self.pending.is_empty()
    }

    /// Returns the part of the body that was kept.
    pub fn into_body(self) -> Vec<u8> {
        self.kept
    }

    /// The server closed; only a body without a length may end so.
    pub fn close(&mut self) -> Fallible<()> {
        self.keep_alive = false;
        match self.state {
            State::Done => Ok(()),
            State::UntilClose => {
                self.state = State::Done;
                Ok(())
            }
            _ => Err("the connection closed in the middle of an answer".into()),
        }
    }

    /// Takes the next bytes from the socket.
    pub fn feed(&mut self, mut bytes: &[u8]) -> Fallible<()> {
        while !bytes.is_empty() {
            match self.state {
                State::Head => match self.complete(bytes, b"\r\n\r\n")? {
                    Some((head, rest)) => {
                        bytes = rest;
                        self.read_head(&head)?;
                    }
                    None => return Ok(()),
                },
                State::Length(left) => {
                    let (data, rest) = bytes.split_at(left.min(bytes.len()));
                    self.body(data);
                    bytes = rest;
                    self.state = match left - data.len() {
                        0 => State::Done,
                        left => State::Length(left),
                    };
                }
                State::ChunkSize => match self.complete(bytes, b"\r\n")? {
                    Some((line, rest)) => {
                        bytes = rest;
                        self.state = match chunk_size(&line)? {
                            0 => State::Trailer,
                            size => State::Chunk(size),
                        };
                    }
                    None => return Ok(()),
                },
                State::Chunk(left) => {
                    let (data, rest) = bytes.split_at(left.min(bytes.len()));
                    self.body(data);
                    bytes = rest;
                    self.state = match left - data.len() {
                        0 => State::ChunkEnd,
                        left => State::Chunk(left),
                    };
                }
                State::ChunkEnd => match self.complete(bytes, b"\r\n")? {
                    Some((_, rest)) => {
                        bytes = rest;
                        self.state = State::ChunkSize;
                    }
                    None => return Ok(()),
                },
                State::Trailer => match self.complete(bytes, b"\r\n")? {
                    Some((line, rest)) => {
                        bytes = rest;
                        if line.is_empty() {
                            self.state = State::Done;
                        }
                    }
                    None => return Ok(()),
                },
                State::UntilClose => {
                    self.body(bytes);
                    return Ok(());
                }
                State::Done => return Err("bytes after the end of an answer".into()),
            }
        }
        Ok(())
    }

    /// The text up to `end`, joined with what earlier pieces left, and the bytes after it.
    fn complete<'b>(
        &mut self,
        bytes: &'b [u8],
        end: &[u8],
    ) -> Fallible<Option<(Vec<u8>, &'b [u8])>> {
        let had = self.pending.len();
        self.pending.extend_from_slice(bytes);
        // The end may straddle two pieces, so the search begins a little before the new one.
        let from = had.saturating_sub(end.len() - 1);
        let Some(at) = memchr::memmem::find(&self.pending[from..], end) else {
            if self.pending.len() > HEAD_LIMIT {
                return Err("a head or chunk line without end".into());
            }
            return Ok(None);
        };
        let consumed = from + at + end.len() - had;
        let mut text = std::mem::take(&mut self.pending);
        text.truncate(from + at);
        Ok(Some((text, &bytes[consumed..])))
    }

    fn read_head(&mut self, head: &[u8]) -> Fallible<()> {
        let text = std::str::from_utf8(head)?;
        let mut lines = text.split("\r\n");
        let status_line = lines.next().unwrap_or_default();
        let status = status_line
            .split(' ')
            .nth(1)
            .ok_or("an answer without status")?;
        self.status = status.parse()?;
        if self.status == 100 {
            return Ok(());
        }
        let mut length = None;
        let mut chunked = false;
        for line in lines {
            let Some((name, value)) = line.split_once(':') else {
                continue;
            };
            let value = value.trim();
            if name.eq_ignore_ascii_case("content-length") {
                length = Some(value.parse::<usize>()?);
            } else if name.eq_ignore_ascii_case("transfer-encoding") {
                chunked = value.eq_ignore_ascii_case("chunked");
            } else if name.eq_ignore_ascii_case("connection") {
                self.keep_alive = !value.eq_ignore_ascii_case("close");
            }
        }
        self.state = match (chunked, length) {
            (true, _) => State::ChunkSize,
            (false, Some(0)) => State::Done,
            (false, Some(length)) => State::Length(length),
            (false, None) if matches!(self.status, 204 | 304) => State::Done,
            (false, None) => State::UntilClose,
        };
        Ok(())
    }

    fn body(&mut self, data: &[u8]) {
        for at in memchr::memchr_iter(b'\n', data) {
            let after_newline = match at {
                0 => self.last_byte_was_newline,
                _ => data[at - 1] == b'\n',
            };
            self.events += u64::from(after_newline);
        }
        self.last_byte_was_newline = data.last() == Some(&b'\n');
        if self.keep_bytes > 0 {
            self.kept.extend_from_slice(data);
            let excess = self.kept.len().saturating_sub(self.keep_bytes);
            self.kept.drain(..excess);
        }
    }
}

fn chunk_size(line: &[u8]) -> Fallible<usize> {
    let text = std::str::from_utf8(line)?;
    let digits = text.split(';').next().unwrap_or_default().trim();
    Ok(usize::from_str_radix(digits, 16)?)
}
