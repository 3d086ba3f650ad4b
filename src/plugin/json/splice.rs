//! Edits of a JSON text at JSON Pointers, as splices of text.
//!
//! Builds no tree: an edit's value goes into the body as it is written. Objects on the way are made where
//! they are missing or null, lists grow by one at `-` or at their end. An edit has at most [`EDITS_MAX`]
//! places; containers and members of all its values together are bounded by [`PARTS_MAX`].

use bytes::Bytes;
use infergate_core::task::BodyField;

use super::node::OutlineItems;
use super::outline::Container;
use super::{DEPTH_MAX, Outline, OutlineError, OutlineNode, PARTS_MAX};
use crate::plugin::json::pointer::{EDITS_MAX, is_pointer, unescape};

/// Change of one place.
#[derive(Default)]
struct Patch {
    /// The value put there.
    value: Option<Outline>,
    /// Edits inside of it, made after `value` was put there; of lists by index.
    inside: Vec<(String, Patch)>,
}

/// The text with every place set.
///
/// # Errors
/// The rule that an edit breaks.
pub fn splice(body: &Outline, fields: Vec<BodyField>) -> Result<Bytes, &'static str> {
    if fields.len() > EDITS_MAX {
        return Err("edit-count");
    }
    body.refill(u32::MAX);
    let mut root = Patch::default();
    let mut parts_left = PARTS_MAX;
    let mut bytes = body.text().len();
    for field in fields {
        let parts: Vec<String> = field.pointer.split('/').skip(1).map(unescape).collect();
        if !is_pointer(&field.pointer) || parts.len() > DEPTH_MAX {
            return Err("edit-pointer");
        }
        bytes += field.pointer.len() + field.json.len() + parts.len() * 5;
        let value = Outline::read_within(field.json.into(), &mut parts_left);
        let value = value.map_err(|unreadable| match unreadable {
            OutlineError::Syntax(_) => "edit-json",
            OutlineError::TooComplex => "edit-parts",
        })?;
        root.put(Some(body.root()), &parts, value)?;
    }
    let mut out = Vec::with_capacity(bytes);
    root.write(Some(body.root()), &mut out);
    Ok(out.into())
}

impl Patch {
    /// Adds an edit below a place that holds `base` before any edit.
    fn put(
        &mut self,
        base: Option<OutlineNode<'_>>,
        parts: &[String],
        put: Outline,
    ) -> Result<(), &'static str> {
        let Some((part, rest)) = parts.split_first() else {
            self.inside.clear();
            self.value = Some(put);
            return Ok(());
        };
        let Patch { value, inside } = self;
        let here = value.as_ref().map(Outline::root).or(base);
        let (key, base) = match &here {
            Some(OutlineNode::Container(outline, of)) if !of.is_object => {
                let at = index(part, *of, inside).ok_or("edit-pointer")?;
                let found = match at < of.len as usize {
                    true => Some(
                        OutlineItems::of(outline, *of)
                            .nth(at)
                            .ok_or("edit-pointer")?,
                    ),
                    false => None,
                };
                (at.to_string(), found)
            }
            Some(OutlineNode::Container(outline, of)) => {
                let member = outline.member(*of, part);
                let found = member.map(|member| OutlineNode::at(outline, member.value));
                (part.clone(), found)
            }
            Some(other) if other.raw() != b"null" => return Err("edit-pointer"),
            _ => (part.clone(), None),
        };
        let known = inside.iter().position(|(name, _)| *name == key);
        let at = known.unwrap_or(inside.len());
        if known.is_none() {
            inside.push((key, Patch::default()));
        }
        inside[at].1.put(base, rest, put)
    }

    /// Writes the place, which holds `base` before any edit.
    fn write(&self, base: Option<OutlineNode<'_>>, out: &mut Vec<u8>) {
        let here = self.value.as_ref().map(Outline::root).or(base);
        match here {
            Some(here) if self.inside.is_empty() => out.extend_from_slice(here.raw()),
            Some(OutlineNode::Container(outline, of)) => self.write_inside(outline, of, out),
            _ => self.write_new(out),
        }
    }

    /// The container with what changes inside of it; the text between is copied.
    fn write_inside(&self, outline: &Outline, of: Container, out: &mut Vec<u8>) {
        let text = outline.text();
        let mut places = match of.is_object {
            true => self.members(outline, of),
            false => self.items(outline, of),
        };
        places.sort_by_key(|(range, ..)| range.0);
        let mut copied = of.start as usize;
        for ((start, end), base, patch) in places {
            out.extend_from_slice(&text[copied..start as usize]);
            patch.write(Some(base), out);
            copied = end as usize;
        }
        out.extend_from_slice(&text[copied..of.end as usize - 1]);
        let mut is_empty = of.len == 0;
        for (key, patch) in self.added(outline, of) {
            if !std::mem::replace(&mut is_empty, false) {
                out.push(b',');
            }
            if of.is_object {
                write_key(key, out);
            }
            patch.write(None, out);
        }
        out.push(if of.is_object { b'}' } else { b']' });
    }

    /// Edits of members that are there.
    fn members<'a>(&'a self, outline: &'a Outline, of: Container) -> Vec<PatchTarget<'a>> {
        let found = |(key, patch): &'a (String, Patch)| {
            let place = outline.member(of, key)?.value;
            Some((
                (place.start, place.end),
                OutlineNode::at(outline, place),
                patch,
            ))
        };
        self.inside.iter().filter_map(found).collect()
    }

    /// Edits of items that are there, found in one walk.
    fn items<'a>(&'a self, outline: &'a Outline, of: Container) -> Vec<PatchTarget<'a>> {
        let mut wanted: Vec<(usize, &Patch)> = self
            .inside
            .iter()
            .filter_map(|(key, patch)| Some((key.parse().ok()?, patch)))
            .filter(|(at, _)| *at < of.len as usize)
            .collect();
        wanted.sort_by_key(|(at, _)| *at);
        outline.refill(u32::MAX);
        let mut items = OutlineItems::of(outline, of);
        let mut passed = 0;
        let mut found = Vec::new();
        for (at, patch) in wanted {
            if let Some(item) = items.nth(at - passed) {
                let raw = item.raw();
                let start = (raw.as_ptr() as usize - outline.text().as_ptr() as usize) as u32;
                found.push(((start, start + raw.len() as u32), item, patch));
            }
            passed = at + 1;
        }
        found
    }

    /// Members and items that are not there, in the order in which they were first named.
    fn added<'a>(
        &'a self,
        outline: &'a Outline,
        of: Container,
    ) -> impl Iterator<Item = (&'a str, &'a Patch)> {
        let is_new = move |key: &str| match of.is_object {
            true => outline.member(of, key).is_none(),
            false => key.parse().is_ok_and(|at: u32| at >= of.len),
        };
        let inside = self.inside.iter().map(|(key, patch)| (key.as_str(), patch));
        inside.filter(move |(key, _)| is_new(key))
    }

    /// An object of what was put inside of nothing.
    fn write_new(&self, out: &mut Vec<u8>) {
        if self.inside.is_empty() {
            return out.extend_from_slice(b"null");
        }
        out.push(b'{');
        for (at, (key, patch)) in self.inside.iter().enumerate() {
            if at > 0 {
                out.push(b',');
            }
            write_key(key, out);
            patch.write(None, out);
        }
        out.push(b'}');
    }
}

/// A place in the text, what stands there, and what becomes of it.
type PatchTarget<'a> = ((u32, u32), OutlineNode<'a>, &'a Patch);

/// The index that a part of a pointer means in a list to which items may have been added.
fn index(part: &str, of: Container, inside: &[(String, Patch)]) -> Option<usize> {
    let len = of.len as usize;
    let added = |(key, _): &&(String, Patch)| key.parse().is_ok_and(|at: usize| at >= len);
    let behind = len + inside.iter().filter(added).count();
    let at = match part {
        "-" => behind,
        index => index.parse().ok()?,
    };
    (at <= behind).then_some(at)
}

fn write_key(key: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(serde_json::Value::from(key).to_string().as_bytes());
    out.push(b':');
}
