//! Frames of one direction: which bytes are well-formed, and may pass to the other side.
//!
//! Not a codec: payloads are neither kept, unmasked nor put together, and text is not checked to be UTF-8, which is the
//! receiver's business. The caller keeps the bytes; a header, or a control frame of at most [`CONTROL_BYTES_MAX`] bytes
//! of payload, passes once it is whole and well-formed. So no byte of a broken frame reaches the other side.

use super::close::{CloseCode, read_payload};

/// Payload of a control frame, bytes (RFC 6455 section 5.5).
pub const CONTROL_BYTES_MAX: usize = 125;

const FIN: u8 = 0x80;
const RESERVED: u8 = 0x70;
const OPCODE: u8 = 0x0f;
const MASKED: u8 = 0x80;
const LENGTH: u8 = 0x7f;
/// Value of the length that announces two more bytes of it.
const LENGTH_OF_2: u8 = 126;
/// Value of the length that announces eight more bytes of it.
const LENGTH_OF_8: u8 = 127;
const MASK_BYTES: usize = 4;
/// First opcode of control frames.
const CONTROL: u8 = 0x8;
const CLOSE: u8 = 0x8;

/// Side that sends the frames of a direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameSender {
    /// Sends masked frames.
    Client,
    /// Sends frames without a mask.
    Server,
}

/// Rule that a frame breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameFault {
    /// A frame of a client has no mask.
    NotMasked,
    /// A frame of a server has a mask.
    Masked,
    /// A reserved bit is set, and no extension was agreed on.
    ReservedBit,
    /// The opcode has no meaning.
    UnknownOpcode,
    /// A control frame is one of several fragments.
    FragmentedControl,
    /// A control frame has more than 125 bytes.
    LongControl,
    /// A continuation without a message to continue.
    StrayContinuation,
    /// A message begins within another one.
    InterruptedMessage,
    /// The length has its most significant bit set.
    LengthTooLarge,
    /// The length is not written in its shortest form.
    LengthNotMinimal,
    /// A close frame with one byte, or with a code that nobody may send.
    BadCloseCode,
    /// The reason of a close frame is not UTF-8.
    BadCloseReason,
}

impl FrameFault {
    /// Returns the reason that both sides are given.
    pub const fn reason(self) -> &'static str {
        match self {
            FrameFault::NotMasked => "frame of a client without a mask",
            FrameFault::Masked => "frame of a server with a mask",
            FrameFault::ReservedBit => "reserved bit without an extension",
            FrameFault::UnknownOpcode => "unknown opcode",
            FrameFault::FragmentedControl => "fragmented control frame",
            FrameFault::LongControl => "control frame over 125 bytes",
            FrameFault::StrayContinuation => "continuation without a message",
            FrameFault::InterruptedMessage => "message within another one",
            FrameFault::LengthTooLarge => "frame length over 63 bits",
            FrameFault::LengthNotMinimal => "frame length not in its shortest form",
            FrameFault::BadCloseCode => "close code that may not be sent",
            FrameFault::BadCloseReason => "close reason that is not UTF-8",
        }
    }
}

/// Bytes that may pass, and the close frame at their end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CheckedFrames {
    /// Bytes at the front that may pass.
    pub passed: usize,
    /// Code of the close frame that they end with; the inner one is none where the frame names no code.
    pub close: Option<Option<CloseCode>>,
}

/// Header of a frame.
struct FrameHeader {
    bytes: usize,
    opcode: u8,
    is_final: bool,
    mask: Option<[u8; MASK_BYTES]>,
    payload: u64,
}

/// Checker of the frames of one direction.
#[derive(Clone, Debug)]
pub struct FrameChecker {
    sender: FrameSender,
    /// Bytes of the present frame's payload that have not passed.
    payload_left: u64,
    is_in_message: bool,
    /// A close frame has passed; nothing may follow.
    is_closed: bool,
}

impl FrameChecker {
    /// Creates the checker of frames from this side.
    pub fn new(sender: FrameSender) -> FrameChecker {
        FrameChecker {
            sender,
            payload_left: 0,
            is_in_message: false,
            is_closed: false,
        }
    }

    /// Returns whether all that has passed ends with the end of a frame: another one may be put in behind it.
    pub fn is_between_frames(&self) -> bool {
        self.payload_left == 0
    }

    /// Returns whether a close frame has passed. Bytes behind it are nobody's.
    pub fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Checks the bytes behind those that have passed. Bytes that have not passed are to be given again, with those that
    /// follow: a header of up to 14 bytes, or a control frame.
    ///
    /// # Errors
    /// The rule that is broken. Bytes before the broken frame may pass: they are in the first part.
    pub fn check(&mut self, bytes: &[u8]) -> (CheckedFrames, Option<FrameFault>) {
        let mut checked = CheckedFrames::default();
        while !self.is_closed {
            let rest = &bytes[checked.passed..];
            if self.payload_left > 0 {
                let part = rest
                    .len()
                    .min(usize::try_from(self.payload_left).unwrap_or(usize::MAX));
                self.payload_left -= part as u64;
                checked.passed += part;
                if self.payload_left > 0 {
                    break;
                }
                continue;
            }
            let passed = match self.next_frame(rest, &mut checked.close) {
                Ok(0) => break,
                Ok(passed) => passed,
                Err(fault) => return (checked, Some(fault)),
            };
            checked.passed += passed;
        }
        (checked, None)
    }

    /// Takes a header, or a whole control frame; returns its bytes, 0 before all of them have come.
    fn next_frame(
        &mut self,
        bytes: &[u8],
        close: &mut Option<Option<CloseCode>>,
    ) -> Result<usize, FrameFault> {
        let Some(header) = self.header(bytes)? else {
            return Ok(0);
        };
        if header.opcode < CONTROL {
            self.is_in_message = !header.is_final;
            self.payload_left = header.payload;
            return Ok(header.bytes);
        }
        // At most 125, as the header was checked.
        let end = header.bytes + header.payload as usize;
        let Some(payload) = bytes.get(header.bytes..end) else {
            return Ok(0);
        };
        if header.opcode == CLOSE {
            *close = Some(read_payload(payload, header.mask)?);
            self.is_closed = true;
        }
        Ok(end)
    }

    /// Reads a header; none before all of it has come. Its first bytes are judged as soon as they are there.
    fn header(&self, bytes: &[u8]) -> Result<Option<FrameHeader>, FrameFault> {
        let Some(&first) = bytes.first() else {
            return Ok(None);
        };
        let (opcode, is_final) = (first & OPCODE, first & FIN != 0);
        self.check_first(first, opcode, is_final)?;
        let Some(&second) = bytes.get(1) else {
            return Ok(None);
        };
        let is_masked = second & MASKED != 0;
        match (self.sender, is_masked) {
            (FrameSender::Client, false) => return Err(FrameFault::NotMasked),
            (FrameSender::Server, true) => return Err(FrameFault::Masked),
            _ => {}
        }
        let length = second & LENGTH;
        if opcode >= CONTROL && usize::from(length) > CONTROL_BYTES_MAX {
            return Err(FrameFault::LongControl);
        }
        let extended = match length {
            LENGTH_OF_2 => 2,
            LENGTH_OF_8 => 8,
            _ => 0,
        };
        let Some(extension) = bytes.get(2..2 + extended) else {
            return Ok(None);
        };
        let payload = match extended {
            0 => u64::from(length),
            _ => extended_length(extension)?,
        };
        let mut header = FrameHeader {
            bytes: 2 + extended,
            opcode,
            is_final,
            mask: None,
            payload,
        };
        if is_masked {
            let Some(mask) = bytes.get(header.bytes..).and_then(<[u8]>::first_chunk) else {
                return Ok(None);
            };
            header.mask = Some(*mask);
            header.bytes += MASK_BYTES;
        }
        Ok(Some(header))
    }

    fn check_first(&self, first: u8, opcode: u8, is_final: bool) -> Result<(), FrameFault> {
        if first & RESERVED != 0 {
            return Err(FrameFault::ReservedBit);
        }
        match opcode {
            0x0 if !self.is_in_message => Err(FrameFault::StrayContinuation),
            0x1 | 0x2 if self.is_in_message => Err(FrameFault::InterruptedMessage),
            0x0..=0x2 => Ok(()),
            0x8..=0xa if is_final => Ok(()),
            0x8..=0xa => Err(FrameFault::FragmentedControl),
            _ => Err(FrameFault::UnknownOpcode),
        }
    }
}

/// Reads a length of two or eight bytes.
fn extended_length(bytes: &[u8]) -> Result<u64, FrameFault> {
    let length = bytes
        .iter()
        .fold(0, |sum, byte| sum << 8 | u64::from(*byte));
    let least = match bytes.len() {
        2 => 126,
        _ => 1 << 16,
    };
    match length {
        _ if length >> 63 == 1 => Err(FrameFault::LengthTooLarge),
        _ if length < least => Err(FrameFault::LengthNotMinimal),
        length => Ok(length),
    }
}
