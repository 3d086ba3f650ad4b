//! Modes in which the body of a response is read.
//!
//! Not the reading itself: each mode holds the state of its reader.

use bytes::BytesMut;
use infergate_core::api::scan::MemberScanner;

use super::body_kind::BodyKind;
use super::convert::{self, FormatDecoder};
use super::passthrough;

/// Protocol of the response.
#[derive(Clone, Copy, Debug)]
pub(super) enum ResponseSource {
    /// The client's dialect.
    Pass,
    /// A protocol that is converted.
    Run(&'static FormatDecoder),
    /// A plain HTTP server's: JSON is the result, anything else the client's as it is.
    Posted,
    /// A plain HTTP server's, passed unread.
    Pipe,
}

#[derive(Debug)]
pub(super) enum BodyMode {
    PassBytes,
    PassJson(MemberScanner),
    PassEvents(passthrough::PassedEvents),
    RunJson(BytesMut),
    RunEvents(convert::ConvertedEvents),
    Posted {
        body: BytesMut,
        content_type: String,
    },
}

/// Returns how a body of this kind is read.
pub(super) fn body_mode(source: ResponseSource, kind: BodyKind) -> BodyMode {
    match (source, kind) {
        (ResponseSource::Pipe, _) => BodyMode::PassBytes,
        (ResponseSource::Posted, BodyKind::Other) => BodyMode::PassBytes,
        (ResponseSource::Posted, BodyKind::Json) => BodyMode::Posted {
            body: BytesMut::new(),
            content_type: String::new(),
        },
        (ResponseSource::Pass | ResponseSource::Posted, BodyKind::Events) => {
            BodyMode::PassEvents(passthrough::PassedEvents::default())
        }
        (ResponseSource::Pass, BodyKind::Json | BodyKind::Other) => {
            BodyMode::PassJson(MemberScanner::new("usage"))
        }
        (ResponseSource::Run(reader), BodyKind::Events) => {
            BodyMode::RunEvents(convert::ConvertedEvents::new(reader))
        }
        (ResponseSource::Run(_), BodyKind::Json | BodyKind::Other) => {
            BodyMode::RunJson(BytesMut::new())
        }
    }
}
