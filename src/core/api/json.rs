//! Raw JSON read and written member by member, without a tree.
//!
//! Not a validator beyond well-formedness: values stay text and are copied as they stand. Nesting is
//! bounded by the caller's types; a raw value is skipped, not built. Called by the dialects.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

pub(super) use super::json_text::push_text;
use crate::Refusal;

/// Returns the refusal of a value at this JSON Pointer.
pub(super) fn bad(pointer: &str, message: &str) -> Refusal {
    Refusal::BadRequest {
        pointer: pointer.into(),
        message: message.into(),
    }
}

/// Returns `refusal` with its pointer seen from `prefix`.
pub(super) fn within(prefix: &str, refusal: Refusal) -> Refusal {
    match refusal {
        Refusal::BadRequest { pointer, message } => Refusal::BadRequest {
            pointer: format!("{prefix}{pointer}"),
            message,
        },
        other => other,
    }
}

/// Returns whether the value is `null`.
pub(super) fn is_null(value: &RawValue) -> bool {
    value.get() == "null"
}

/// Returns whether the value is a string.
pub(super) fn is_string(value: &RawValue) -> bool {
    value.get().starts_with('"')
}

/// Returns whether the value is a list.
pub(super) fn is_list(value: &RawValue) -> bool {
    value.get().starts_with('[')
}

/// Returns the JSON string `value` without its quotes, its escapes kept.
pub(super) fn unquoted(value: &RawValue) -> &str {
    let text = value.get();
    text.get(1..text.len() - 1).unwrap_or_default()
}

/// Reads the members of a struct from an object.
///
/// # Errors
/// A member of the wrong type, or no object.
pub(super) fn read<'a, T: Deserialize<'a>>(value: &'a RawValue) -> Result<T, Refusal> {
    // A list would be read as a struct too, member by member.
    if !value.get().starts_with('{') {
        return Err(bad("", "expected an object"));
    }
    serde_json::from_str(value.get()).map_err(|_| bad("", "has a member of the wrong type"))
}

/// Calls `each` for each member of the object in `json`, in its order.
///
/// # Errors
/// The first error of `each`, or no object.
pub(super) fn each_member<'a>(
    json: &'a [u8],
    each: impl FnMut(&str, &'a RawValue) -> Result<(), Refusal>,
) -> Result<(), Refusal> {
    let mut refused = None;
    let mut reader = serde_json::Deserializer::from_slice(json);
    let visitor = Each {
        each,
        refused: &mut refused,
    };
    let read = reader.deserialize_map(visitor).and_then(|()| reader.end());
    ended(read, refused, "expected a JSON object")
}

/// Calls `each` for each item of a list, with its index.
///
/// # Errors
/// The first error of `each`, or no list.
pub(super) fn each_item<'a>(
    list: &'a RawValue,
    mut each: impl FnMut(usize, &'a RawValue) -> Result<(), Refusal>,
) -> Result<(), Refusal> {
    let mut refused = None;
    let mut at = 0;
    let visitor = Each {
        each: |_: &str, value| {
            each(at, value)?;
            at += 1;
            Ok(())
        },
        refused: &mut refused,
    };
    let read = serde_json::Deserializer::from_str(list.get()).deserialize_seq(visitor);
    ended(read, refused, "expected a list")
}

fn ended(
    read: serde_json::Result<()>,
    refused: Option<Refusal>,
    message: &str,
) -> Result<(), Refusal> {
    match (refused, read) {
        (Some(refusal), _) => Err(refusal),
        (None, Err(_)) => Err(bad("", message)),
        (None, Ok(())) => Ok(()),
    }
}

/// Visitor of members or items that stops at the first refusal.
struct Each<'r, F> {
    each: F,
    refused: &'r mut Option<Refusal>,
}

impl<F> Each<'_, F> {
    fn stop<E: serde::de::Error>(&mut self, refusal: Refusal) -> E {
        *self.refused = Some(refusal);
        E::custom("refused")
    }
}

impl<'de, F: FnMut(&str, &'de RawValue) -> Result<(), Refusal>> Visitor<'de> for Each<'_, F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object or a list")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<(), A::Error> {
        while let Some((Key(name), value)) = map.next_entry::<Key<'de>, &'de RawValue>()? {
            let visited = (self.each)(&name, value);
            visited.map_err(|refusal| self.stop(refusal))?;
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut list: A) -> Result<(), A::Error> {
        while let Some(value) = list.next_element::<&'de RawValue>()? {
            let visited = (self.each)("", value);
            visited.map_err(|refusal| self.stop(refusal))?;
        }
        Ok(())
    }
}

/// Name of a member, borrowed unless it has escapes.
#[derive(serde::Deserialize)]
struct Key<'a>(#[serde(borrow)] Cow<'a, str>);

/// An object being written.
pub(super) struct Object<'a> {
    out: Out<'a>,
    is_empty: bool,
}

/// A list being written.
pub(super) struct List<'a> {
    out: &'a mut Vec<u8>,
    is_empty: bool,
}

enum Out<'a> {
    Own(Vec<u8>),
    Inner(&'a mut Vec<u8>),
}

impl Out<'_> {
    fn bytes(&mut self) -> &mut Vec<u8> {
        match self {
            Out::Own(bytes) => bytes,
            Out::Inner(bytes) => bytes,
        }
    }
}

impl Object<'_> {
    /// Begins an object of its own.
    pub(super) fn with_capacity(bytes: usize) -> Object<'static> {
        let mut own = Vec::with_capacity(bytes);
        own.push(b'{');
        Object {
            out: Out::Own(own),
            is_empty: true,
        }
    }

    /// Appends a member whose value is this text, or null.
    pub(super) fn text_or_null(&mut self, name: &str, text: Option<&str>) {
        match text {
            Some(text) => self.text(name, text),
            None => self.member(name, "null"),
        }
    }

    /// Appends a member whose value is JSON.
    pub(super) fn member(&mut self, name: &str, json: &str) {
        self.name(name);
        self.out.bytes().extend_from_slice(json.as_bytes());
    }

    /// Appends a member whose value is this text.
    pub(super) fn text(&mut self, name: &str, text: &str) {
        self.name(name);
        push_text(self.out.bytes(), text);
    }

    /// Appends a member whose value is written by `write`, which leaves JSON.
    pub(super) fn raw(&mut self, name: &str, write: impl FnOnce(&mut Vec<u8>)) {
        self.name(name);
        write(self.out.bytes());
    }

    /// Begins a member that is an object; its drop ends it.
    pub(super) fn object(&mut self, name: &str) -> Object<'_> {
        self.name(name);
        let out = self.out.bytes();
        out.push(b'{');
        Object {
            out: Out::Inner(out),
            is_empty: true,
        }
    }

    /// Begins a member that is a list; its drop ends it.
    pub(super) fn list(&mut self, name: &str) -> List<'_> {
        self.name(name);
        let out = self.out.bytes();
        out.push(b'[');
        List {
            out,
            is_empty: true,
        }
    }

    /// Ends an object of its own and returns its text.
    pub(super) fn end(mut self) -> Vec<u8> {
        let mut bytes = std::mem::take(self.out.bytes());
        bytes.push(b'}');
        bytes
    }

    fn name(&mut self, name: &str) {
        let is_first = std::mem::replace(&mut self.is_empty, false);
        let out = self.out.bytes();
        if !is_first {
            out.push(b',');
        }
        push_text(out, name);
        out.push(b':');
    }
}

impl Drop for Object<'_> {
    fn drop(&mut self) {
        if let Out::Inner(bytes) = &mut self.out {
            bytes.push(b'}');
        }
    }
}

impl List<'_> {
    /// Begins an item that is an object; its drop ends it.
    pub(super) fn object(&mut self) -> Object<'_> {
        if !std::mem::replace(&mut self.is_empty, false) {
            self.out.push(b',');
        }
        self.out.push(b'{');
        Object {
            out: Out::Inner(self.out),
            is_empty: true,
        }
    }
}

impl Drop for List<'_> {
    fn drop(&mut self) {
        self.out.push(b']');
    }
}
