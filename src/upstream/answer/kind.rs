//! Kind of a response's body by its content type.
//!
//! Only the type is read: parameters say nothing of how a body is read.

pub(super) const EVENT_STREAM: &[u8] = b"text/event-stream";
pub(super) const JSON: &[u8] = b"application/json";
const JSON_SUFFIX: &[u8] = b"+json";
/// Kind of a body by its content type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Events,
    Json,
    Other,
}

impl Kind {
    pub(super) fn asked(streams: bool) -> Kind {
        match streams {
            true => Kind::Events,
            false => Kind::Json,
        }
    }

    pub(super) fn told(content_type: Option<&[u8]>) -> Kind {
        let kind = content_type.unwrap_or_default();
        let end = memchr::memchr(b';', kind).unwrap_or(kind.len());
        let kind = kind[..end].trim_ascii();
        let suffix = kind.len().checked_sub(JSON_SUFFIX.len());
        if kind.eq_ignore_ascii_case(EVENT_STREAM) {
            Kind::Events
        } else if kind.eq_ignore_ascii_case(JSON)
            || suffix.is_some_and(|at| kind[at..].eq_ignore_ascii_case(JSON_SUFFIX))
        {
            Kind::Json
        } else {
            Kind::Other
        }
    }
}
