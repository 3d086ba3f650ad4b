//! Close frames: codes that may be sent, and frames of the gateway's own.
//!
//! Codes of endpoints pass through a relay as they are; only those that no endpoint may send are a fault.

use super::frame::{CONTROL_BYTES_MAX, FrameFault};

/// First byte of a whole close frame.
const CLOSE_FRAME: u8 = 0x88;
const MASKED: u8 = 0x80;

/// Code of a close frame (RFC 6455 section 7.4, and the registry of IANA).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CloseCode(pub u16);

impl CloseCode {
    /// The endpoint goes away.
    pub const GOING_AWAY: CloseCode = CloseCode(1001);
    /// A frame breaks the protocol.
    pub const PROTOCOL_ERROR: CloseCode = CloseCode(1002);
    /// The policy of the endpoint is violated.
    pub const POLICY: CloseCode = CloseCode(1008);
    /// The server cannot go on.
    pub const INTERNAL_ERROR: CloseCode = CloseCode(1011);

    /// Returns whether an endpoint may send it: 1004, 1005, 1006 and 1015 stand for what no frame carries.
    pub const fn may_be_sent(self) -> bool {
        matches!(self.0, 1000..=1003 | 1007..=1014 | 3000..=4999)
    }
}

/// Reads the payload of a close frame: none where it has no code.
pub(super) fn read_payload(
    payload: &[u8],
    mask: Option<[u8; 4]>,
) -> Result<Option<CloseCode>, FrameFault> {
    let mask = mask.unwrap_or_default();
    let mut plain = [0; CONTROL_BYTES_MAX];
    for (at, (plain, byte)) in plain.iter_mut().zip(payload).enumerate() {
        *plain = byte ^ mask[at % mask.len()];
    }
    let (code, reason) = match &plain[..payload.len()] {
        [] => return Ok(None),
        [_] => return Err(FrameFault::BadCloseCode),
        [high, low, reason @ ..] => (CloseCode(u16::from_be_bytes([*high, *low])), reason),
    };
    if !code.may_be_sent() {
        return Err(FrameFault::BadCloseCode);
    }
    match std::str::from_utf8(reason) {
        Ok(_) => Ok(Some(code)),
        Err(_) => Err(FrameFault::BadCloseReason),
    }
}

/// Writes a close frame with a reason of ASCII, cut to what fits. `mask` is for a frame towards a server.
pub fn close_frame(code: CloseCode, reason: &str, mask: Option<[u8; 4]>) -> Vec<u8> {
    let reason = &reason.as_bytes()[..reason.len().min(CONTROL_BYTES_MAX - 2)];
    let length = 2 + reason.len() as u8;
    let mut frame = vec![CLOSE_FRAME, length];
    if let Some(mask) = mask {
        frame[1] |= MASKED;
        frame.extend_from_slice(&mask);
    }
    let mask = mask.unwrap_or_default();
    let payload = code
        .0
        .to_be_bytes()
        .into_iter()
        .chain(reason.iter().copied());
    frame.extend(
        payload
            .enumerate()
            .map(|(at, byte)| byte ^ mask[at % mask.len()]),
    );
    frame
}
