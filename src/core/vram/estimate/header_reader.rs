//! Bounded reader of a binary header: numbers of either byte order, texts, and bytes that are passed over.
//!
//! Knows no format. A length is believed only as far as bytes follow it and the bound of the header allows; nothing
//! that is passed over is kept. Memory: one buffer of [`BUFFER_BYTES`].

use std::io::{BufRead, BufReader, Read};

use super::header_error::HeaderError;

/// Bytes of a header that are read at most: ten times the largest vocabularies with their merges.
pub const HEADER_BYTES_MAX: u64 = 64 << 20;
/// Bytes read at once.
const BUFFER_BYTES: usize = 64 << 10;

/// Order of the bytes of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ByteOrder {
    /// Least significant byte first.
    Little,
    /// Most significant byte first.
    Big,
}

/// Reader of one header.
pub(super) struct HeaderReader<R: Read> {
    inner: BufReader<R>,
    /// Bytes read so far.
    position: u64,
    order: ByteOrder,
}

impl<R: Read> HeaderReader<R> {
    pub(super) fn new(inner: R) -> Self {
        HeaderReader {
            inner: BufReader::with_capacity(BUFFER_BYTES, inner),
            position: 0,
            order: ByteOrder::Little,
        }
    }

    pub(super) fn set_order(&mut self, order: ByteOrder) {
        self.order = order;
    }

    /// Returns how many bytes were read.
    pub(super) fn position(&self) -> u64 {
        self.position
    }

    /// Reads `N` bytes as they are.
    pub(super) fn bytes<const N: usize>(&mut self) -> Result<[u8; N], HeaderError> {
        let mut bytes = [0; N];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, HeaderError> {
        let bytes = self.bytes()?;
        Ok(match self.order {
            ByteOrder::Little => u32::from_le_bytes(bytes),
            ByteOrder::Big => u32::from_be_bytes(bytes),
        })
    }

    pub(super) fn u64(&mut self) -> Result<u64, HeaderError> {
        let bytes = self.bytes()?;
        Ok(match self.order {
            ByteOrder::Little => u64::from_le_bytes(bytes),
            ByteOrder::Big => u64::from_be_bytes(bytes),
        })
    }

    /// Reads an unsigned number of 1, 2, 4 or 8 bytes.
    pub(super) fn unsigned(&mut self, width: u64) -> Result<u64, HeaderError> {
        Ok(match width {
            1 => u64::from(self.bytes::<1>()?[0]),
            2 => {
                let bytes = self.bytes()?;
                u64::from(match self.order {
                    ByteOrder::Little => u16::from_le_bytes(bytes),
                    ByteOrder::Big => u16::from_be_bytes(bytes),
                })
            }
            4 => u64::from(self.u32()?),
            _ => self.u64()?,
        })
    }

    /// Reads a text with its length before it. Longer than `max`: passed over, and none.
    pub(super) fn text(&mut self, max: usize) -> Result<Option<String>, HeaderError> {
        let length = self.u64()?;
        match usize::try_from(length).ok().filter(|length| *length <= max) {
            Some(length) => {
                let mut bytes = vec![0; length];
                self.fill(&mut bytes)?;
                Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
            }
            None => {
                self.skip(length)?;
                Ok(None)
            }
        }
    }

    /// Passes over bytes, which have to be there.
    pub(super) fn skip(&mut self, count: u64) -> Result<(), HeaderError> {
        let mut left = count;
        self.take(count)?;
        while left > 0 {
            let present = match self.inner.fill_buf() {
                Ok(buffer) => buffer.len(),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(HeaderError::Unreadable(error.kind())),
            };
            if present == 0 {
                return Err(HeaderError::HeaderCut(self.position - left));
            }
            let step = left.min(present as u64);
            // At most what the buffer holds, so it fits.
            self.inner.consume(step as usize);
            left -= step;
        }
        Ok(())
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), HeaderError> {
        let before = self.position;
        self.take(bytes.len() as u64)?;
        self.inner
            .read_exact(bytes)
            .map_err(|error| match error.kind() {
                std::io::ErrorKind::UnexpectedEof => HeaderError::HeaderCut(before),
                kind => HeaderError::Unreadable(kind),
            })
    }

    /// Counts bytes as read, unless they are too many.
    fn take(&mut self, count: u64) -> Result<(), HeaderError> {
        let position = self.position.saturating_add(count);
        if position > HEADER_BYTES_MAX {
            return Err(HeaderError::HeaderTooLong);
        }
        self.position = position;
        Ok(())
    }
}
