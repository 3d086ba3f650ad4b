//! JSON without a tree: the members of an object, each value as it stands in the text.
//!
//! Validates the text and copies nothing but names with escapes. An image of a few megabytes, as base64 or as a
//! list of bytes, stays one piece of text until it is needed. [`scan_members`] is the only reader of objects;
//! the gateway reads request bodies with it too. In [`Members`] the last value of a repeated name counts, as it
//! does for the schema's validator. So no value passes the check in one form and reaches the server in another.

use alloc::borrow::{Cow, ToOwned};
use alloc::collections::BTreeMap;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

use serde::de::{Deserialize, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

/// Reads the members of a JSON object in the order of the text and passes each name with its value to `each`.
/// Repeated names are passed each time. A value is a piece of `json`.
///
/// # Errors
/// The text is not one JSON object, or `each` has refused a member.
pub fn scan_members<'a>(
    json: &'a str,
    each: impl FnMut(Cow<'a, str>, &'a RawValue) -> Result<(), &'static str>,
) -> Result<(), serde_json::Error> {
    let mut reader = serde_json::Deserializer::from_str(json);
    reader.deserialize_any(MembersVisitor(each))?;
    reader.end()
}

struct MembersVisitor<F>(F);

impl<'a, F> Visitor<'a> for MembersVisitor<F>
where
    F: FnMut(Cow<'a, str>, &'a RawValue) -> Result<(), &'static str>,
{
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'a>>(mut self, mut map: A) -> Result<(), A::Error> {
        while let Some(Name(name)) = map.next_key()? {
            (self.0)(name, map.next_value()?).map_err(A::Error::custom)?;
        }
        Ok(())
    }
}

/// A name, borrowed unless it has escapes.
struct Name<'a>(Cow<'a, str>);

impl<'de> Deserialize<'de> for Name<'de> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct NameVisitor;
        impl<'de> Visitor<'de> for NameVisitor {
            type Value = Cow<'de, str>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }
            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(Cow::Borrowed(text))
            }
            fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Cow::Owned(text.to_owned()))
            }
        }
        from.deserialize_str(NameVisitor).map(Name)
    }
}

/// The members of an object, in the order of their first mention.
#[derive(Clone, Debug, Default)]
pub struct Members<'a> {
    members: Vec<(Cow<'a, str>, Cow<'a, str>)>,
}

impl<'a> Members<'a> {
    /// Reads an object; none when the text is something else.
    pub fn parse(json: &'a [u8]) -> Option<Members<'a>> {
        Members::of(core::str::from_utf8(json).ok()?)
    }

    fn of(json: &'a str) -> Option<Members<'a>> {
        let mut members: Vec<(Cow<'a, str>, Cow<'a, str>)> = Vec::new();
        let mut indices: BTreeMap<Cow<'a, str>, usize> = BTreeMap::new();
        scan_members(json, |name, value| {
            let value = Cow::Borrowed(value.get());
            match indices.get(&name) {
                Some(&index) => members[index].1 = value,
                None => {
                    indices.insert(name.clone(), members.len());
                    members.push((name, value));
                }
            }
            Ok(())
        })
        .ok()?;
        Some(Members { members })
    }

    /// The value under a name, as JSON. Null counts as absent.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.get_raw(name).filter(|json| *json != "null")
    }

    /// The value under a name, as JSON, null included.
    pub fn get_raw(&self, name: &str) -> Option<&str> {
        let (_, json) = self.members.iter().find(|(member, _)| member == name)?;
        Some(json)
    }

    /// Every name and its value, nulls included.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.members.iter().map(|(name, json)| (&**name, &**json))
    }

    /// The first of these names that has a value.
    pub fn first_of(&self, names: &[&str]) -> Option<&str> {
        names.iter().find_map(|name| self.get(name))
    }

    /// Replaces a value in its place, or adds it at the end.
    pub fn set(&mut self, name: &str, json: impl Into<Cow<'a, str>>) {
        let json = json.into();
        match self.members.iter_mut().find(|(member, _)| member == name) {
            Some((_, value)) => *value = json,
            None => self.members.push((Cow::Owned(name.to_owned()), json)),
        }
    }

    /// Moves the value of `alias` under `name`, unless there is one already.
    pub fn rename(&mut self, alias: &str, name: &str) {
        if self.get(name).is_none()
            && let Some((_, json)) = self.members.iter().find(|(member, _)| member == alias)
        {
            let json = json.clone();
            self.set(name, json);
        }
        self.retain(|member| member != alias);
    }

    /// Keeps the members with these names.
    pub fn retain(&mut self, keep: impl Fn(&str) -> bool) {
        self.members.retain(|(name, _)| keep(name));
    }

    /// Leaves out the nulls.
    pub fn drop_nulls(&mut self) {
        self.members.retain(|(_, json)| json != "null");
    }

    /// The object as JSON.
    pub fn to_json(&self) -> Vec<u8> {
        let size: usize = self
            .members
            .iter()
            .map(|(name, json)| name.len() + json.len() + 4)
            .sum();
        let mut out = Vec::with_capacity(size + 2);
        out.push(b'{');
        for (at, (name, json)) in self.members.iter().enumerate() {
            if at > 0 {
                out.push(b',');
            }
            out.extend_from_slice(to_json_string(name).as_bytes());
            out.push(b':');
            out.extend_from_slice(json.as_bytes());
        }
        out.push(b'}');
        out
    }
}

/// The members of a JSON object.
pub fn parse_object(json: &str) -> Option<Members<'_>> {
    json.starts_with('{').then(|| Members::of(json))?
}

/// A member of a JSON object, for as long as the object's text; null counts as absent.
pub fn member<'a>(json: &'a str, name: &str) -> Option<&'a str> {
    if !json.starts_with('{') {
        return None;
    }
    let mut last = None;
    scan_members(json, |member, value| {
        if member == name {
            last = Some(value.get());
        }
        Ok(())
    })
    .ok()?;
    last.filter(|json| *json != "null")
}

/// The text of a JSON string.
pub fn parse_string(json: &str) -> Option<Cow<'_, str>> {
    let inner = json.strip_prefix('"')?.strip_suffix('"')?;
    if !inner.contains('\\') {
        return Some(Cow::Borrowed(inner));
    }
    serde_json::from_str(json).ok().map(Cow::Owned)
}

/// The values of a JSON array.
pub fn parse_list(json: &str) -> Option<Vec<&str>> {
    let list: Vec<&RawValue> = json
        .starts_with('[')
        .then(|| serde_json::from_str(json).ok())??;
    Some(list.into_iter().map(RawValue::get).collect())
}

/// The first values of a JSON array, at most `max`, and the number of all: a list of bytes has millions, which are
/// not worth a slot each.
pub fn first_of_list(json: &str, max: usize) -> Option<(Vec<&str>, usize)> {
    if !json.starts_with('[') {
        return None;
    }
    let mut reader = serde_json::Deserializer::from_str(json);
    let read = reader.deserialize_seq(FirstOfList { max }).ok()?;
    reader.end().is_ok().then_some(read)
}

struct FirstOfList {
    max: usize,
}

impl<'a> Visitor<'a> for FirstOfList {
    type Value = (Vec<&'a str>, usize);

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'a>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut first = Vec::new();
        while first.len() < self.max {
            match list.next_element::<&RawValue>()? {
                Some(value) => first.push(value.get()),
                None => {
                    let count = first.len();
                    return Ok((first, count));
                }
            }
        }
        let mut count = first.len();
        while list.next_element::<IgnoredAny>()?.is_some() {
            count += 1;
        }
        Ok((first, count))
    }
}

/// Sum of `value` over the elements of a JSON array, none of which is kept: a prompt may be millions of tokens.
/// Any other value has no elements.
pub fn sum_of_list(json: &str, value: impl Fn(&str) -> u64) -> u64 {
    let mut reader = serde_json::Deserializer::from_str(json);
    reader.deserialize_seq(SumOfList(value)).unwrap_or(0)
}

struct SumOfList<F>(F);

impl<'a, F: Fn(&str) -> u64> Visitor<'a> for SumOfList<F> {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'a>>(self, mut list: A) -> Result<u64, A::Error> {
        let mut sum = 0;
        while let Some(element) = list.next_element::<&RawValue>()? {
            sum += (self.0)(element.get());
        }
        Ok(sum)
    }
}

/// A byte as a JSON number. Some clients write floats: 7.0 is whole, as in JSON Schema.
#[derive(Clone, Copy)]
pub struct Byte(pub u8);

impl<'de> Deserialize<'de> for Byte {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Byte, D::Error> {
        struct ByteVisitor;

        impl Visitor<'_> for ByteVisitor {
            type Value = Byte;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a whole number from 0 to 255")
            }

            fn visit_u64<E: Error>(self, number: u64) -> Result<Byte, E> {
                u8::try_from(number).map(Byte).map_err(E::custom)
            }

            fn visit_f64<E: Error>(self, number: f64) -> Result<Byte, E> {
                let byte = number as u8;
                match f64::from(byte) == number {
                    true => Ok(Byte(byte)),
                    false => Err(E::custom("not a whole number from 0 to 255")),
                }
            }
        }

        deserializer.deserialize_any(ByteVisitor)
    }
}

/// A JSON number that is finite.
pub fn parse_number(json: &str) -> Option<f64> {
    let is_number = json.starts_with(|first: char| first == '-' || first.is_ascii_digit());
    let number: f64 = is_number.then(|| json.parse().ok())??;
    number.is_finite().then_some(number)
}

/// A text as JSON.
pub fn to_json_string(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// A text as JSON, of characters that need no escape: base64.
pub fn to_plain_json_string(text: &str) -> String {
    let mut json = String::with_capacity(text.len() + 2);
    json.push('"');
    json.push_str(text);
    json.push('"');
    json
}

/// Returns whether a whole text is one JSON value, and that value without the space around it.
pub fn parse_value(json: &str) -> Option<&str> {
    let whole: &RawValue = serde_json::from_str(json).ok()?;
    Some(whole.get())
}
