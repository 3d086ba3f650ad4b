//! The name of the model in answers of the OpenAI API, put back to what the client asked for.
//!
//! No tree is built: the value of the top-level `model` is found and replaced as text. Bytes that
//! cannot be read stay as they are. A whole response is held until it has come, up to
//! [`RESPONSE_BYTES_MAX`].

use std::borrow::Cow;
use std::ops::Range;

use bytes::{Bytes, BytesMut};
use infergate_core::api::{Call, sse};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::bounds::RESPONSE_BYTES_MAX;

/// The name that answers carry.
#[derive(Debug)]
pub struct ModelNameRewriter {
    /// As JSON, as the client wrote it.
    name: Bytes,
    /// A whole response as far as it has come.
    held: BytesMut,
    /// True once the response is too long to be held, and passes.
    passes: bool,
}

impl ModelNameRewriter {
    /// The name in the body of `call`, where there is one.
    pub(super) fn of(call: &Call) -> Option<ModelNameRewriter> {
        Some(ModelNameRewriter {
            name: call.model_in_body()?,
            held: BytesMut::new(),
            passes: false,
        })
    }

    /// Takes a piece of a whole response. Returns whether it passes as it is, now that the response
    /// is too long to be held; what was held is in `out` then.
    pub(super) fn take(&mut self, piece: &[u8], out: &mut BytesMut) -> bool {
        if !self.passes && self.held.len() + piece.len() <= RESPONSE_BYTES_MAX {
            self.held.extend_from_slice(piece);
            return false;
        }
        let is_first = !std::mem::replace(&mut self.passes, true);
        if is_first {
            out.unsplit(std::mem::take(&mut self.held));
            out.extend_from_slice(piece);
        }
        !is_first
    }

    /// Appends the whole response that was held.
    pub(super) fn finish(&mut self, out: &mut BytesMut) {
        let held = std::mem::take(&mut self.held);
        self.write(&held, place_of_value(&held, &held), out);
    }

    /// The name as JSON.
    pub(super) fn as_json(&self) -> &[u8] {
        &self.name
    }

    /// Range of the name that an event carries, where it is replaced.
    pub(super) fn place(&self, event: &[u8]) -> Option<Range<usize>> {
        let Some(Cow::Borrowed(data)) = sse::data(event) else {
            return None;
        };
        place_of_value(event, data)
    }

    /// Appends a whole event.
    pub(super) fn event(&self, event: &[u8], out: &mut BytesMut) {
        self.write(event, self.place(event), out);
    }

    /// Appends `bytes` with another name in this place.
    fn write(&self, bytes: &[u8], place: Option<Range<usize>>, out: &mut BytesMut) {
        let Some(place) = place else {
            out.extend_from_slice(bytes);
            return;
        };
        out.reserve(bytes.len() + self.name.len());
        out.extend_from_slice(&bytes[..place.start]);
        out.extend_from_slice(&self.name);
        out.extend_from_slice(&bytes[place.end..]);
    }
}

/// Range in `bytes` of the top-level `model` of the `json` that stands there.
fn place_of_value(bytes: &[u8], json: &[u8]) -> Option<Range<usize>> {
    let value = model(json)?;
    let at = value.as_ptr() as usize - bytes.as_ptr() as usize;
    Some(at..at + value.len())
}

/// The value of the top-level `model`, where it is a text.
fn model(json: &[u8]) -> Option<&str> {
    #[derive(Deserialize)]
    struct ModelMember<'a> {
        #[serde(borrow)]
        model: Option<&'a RawValue>,
    }
    let answer: ModelMember<'_> = serde_json::from_slice(json).ok()?;
    let value = answer.model?.get();
    value.starts_with('"').then_some(value)
}
