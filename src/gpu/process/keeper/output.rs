//! Output of an instance: read as it comes, kept in a ring file, its last lines in memory too.
//!
//! The process never waits for a disk that is full. Reading stops at [`READ_BYTES_MAX`] bytes at a time, so that a flood
//! delays no command.

use std::io::{self, PipeReader, Read};
use std::os::fd::{AsFd, BorrowedFd};

use crate::gpu::process::logs::LogWriter;

/// Bytes that are read before commands are looked at again.
const READ_BYTES_MAX: usize = 256 * 1024;
/// Bytes of one read: what a pipe holds.
const CHUNK_BYTES: usize = 16 * 1024;
/// Bytes of the last lines, as in reports of a start.
const RECENT_BYTES: usize = 20 * 1024;

/// Output of an instance.
#[derive(Debug)]
pub struct InstanceOutput {
    /// None once every process has closed it.
    pipe: Option<PipeReader>,
    ring: LogWriter,
    recent: Vec<u8>,
}

impl InstanceOutput {
    /// Takes the reading end of a pipe that does not block.
    pub fn new(pipe: PipeReader, ring: LogWriter) -> InstanceOutput {
        InstanceOutput {
            pipe: Some(pipe),
            ring,
            recent: Vec::new(),
        }
    }

    /// The pipe, unless it has ended.
    pub fn pipe(&self) -> Option<BorrowedFd<'_>> {
        self.pipe.as_ref().map(PipeReader::as_fd)
    }

    /// Bytes that could not be kept.
    pub fn dropped(&self) -> u64 {
        self.ring.dropped()
    }

    /// Reads what is there.
    pub fn read(&mut self) {
        let mut chunk = [0; CHUNK_BYTES];
        for _ in 0..READ_BYTES_MAX / CHUNK_BYTES {
            let Some(pipe) = &mut self.pipe else {
                return;
            };
            match pipe.read(&mut chunk) {
                Ok(0) => self.pipe = None,
                Ok(count) => self.keep(&chunk[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => self.pipe = None,
            }
        }
    }

    fn keep(&mut self, bytes: &[u8]) {
        self.ring.append(bytes);
        self.recent.extend_from_slice(bytes);
        if self.recent.len() > 2 * RECENT_BYTES {
            self.recent.drain(..self.recent.len() - RECENT_BYTES);
        }
    }

    /// Returns the last lines, from the beginning of a line on, with what is no text replaced.
    pub fn last_lines(&self) -> String {
        let cut = self.recent.len().saturating_sub(RECENT_BYTES);
        let mut text = &self.recent[cut..];
        if cut > 0 {
            text = memchr::memchr(b'\n', text).map_or(text, |end| &text[end + 1..]);
        }
        String::from_utf8_lossy(text).into_owned()
    }
}
