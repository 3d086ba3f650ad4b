//! A whole JSON answer as one event, for a client whose response head announced events.
//!
//! Written chunk by chunk; no chunk is held. Line ends stand between the tokens of JSON only, and would end
//! the event's line: blanks take their places.

use bytes::{Bytes, BytesMut};

/// The event so far; passes everything unchanged unless it is on.
#[derive(Default)]
pub struct SingleEventBody {
    /// The answer is no stream, and the client expects events.
    pub is_on: bool,
    is_started: bool,
}

impl SingleEventBody {
    /// The next piece as the client gets it; after the last one comes the end mark.
    pub fn wrap(&mut self, piece: Bytes, end: bool) -> Bytes {
        if !self.is_on {
            return piece;
        }
        let mut event = BytesMut::with_capacity(piece.len() + 32);
        if !std::mem::replace(&mut self.is_started, true) {
            event.extend_from_slice(b"data: ");
        }
        let blank = |byte: &u8| match byte {
            b'\r' | b'\n' => b' ',
            other => *other,
        };
        event.extend(piece.iter().map(blank));
        if end {
            event.extend_from_slice(b"\n\ndata: [DONE]\n\n");
        }
        event.freeze()
    }
}
