//! Kind of a response's body by its content type.
//!
//! Only the type is read: parameters say nothing of how a body is read.

pub(super) const EVENT_STREAM: &[u8] = b"text/event-stream";
pub(super) const JSON: &[u8] = b"application/json";
const JSON_SUFFIX: &[u8] = b"+json";
/// Kind of a body by its content type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyKind {
    Events,
    Json,
    Other,
}

impl BodyKind {
    pub(super) fn expected(streams: bool) -> BodyKind {
        match streams {
            true => BodyKind::Events,
            false => BodyKind::Json,
        }
    }

    /// The kind, or the expected one where the type does not say.
    pub(super) fn or_expected(self, expects_events: bool) -> BodyKind {
        match self {
            BodyKind::Other => BodyKind::expected(expects_events),
            kind => kind,
        }
    }

    pub(super) fn from_content_type(content_type: Option<&[u8]>) -> BodyKind {
        let kind = content_type.unwrap_or_default();
        let end = memchr::memchr(b';', kind).unwrap_or(kind.len());
        let kind = kind[..end].trim_ascii();
        let suffix = kind.len().checked_sub(JSON_SUFFIX.len());
        if kind.eq_ignore_ascii_case(EVENT_STREAM) {
            BodyKind::Events
        } else if kind.eq_ignore_ascii_case(JSON)
            || suffix.is_some_and(|at| kind[at..].eq_ignore_ascii_case(JSON_SUFFIX))
        {
            BodyKind::Json
        } else {
            BodyKind::Other
        }
    }
}
