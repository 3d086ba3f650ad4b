//! JSON as a task handles it: members of one object, each value as it stands.
//!
//! No tree is built: an image of a few megabytes, as base64 or as a list of bytes, stays one piece
//! of text until somebody asks for it. Of a repeated name the last value counts, as it does for the
//! schema's validator; so nothing passes the check in one form and reaches the server in another.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

/// The members of an object, in the order of their first mention.
#[derive(Clone, Debug, Default)]
pub struct Members<'a> {
    members: Vec<(Cow<'a, str>, Cow<'a, str>)>,
}

impl<'a> Members<'a> {
    /// Reads an object; none when the text is something else.
    pub fn parse(json: &'a [u8]) -> Option<Members<'a>> {
        serde_json::from_slice(json).ok()
    }

    /// The value under a name, as JSON. A null is as good as absent.
    pub fn get(&self, name: &str) -> Option<&str> {
        let (_, json) = self.members.iter().find(|(member, _)| member == name)?;
        (json != "null").then_some(json)
    }

    /// Every name and its value.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.members.iter().map(|(name, json)| (&**name, &**json))
    }

    /// The first of these names that has a value.
    pub fn first(&self, names: &[&str]) -> Option<&str> {
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
    pub fn write(&self) -> Vec<u8> {
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
            out.extend_from_slice(quoted(name).as_bytes());
            out.push(b':');
            out.extend_from_slice(json.as_bytes());
        }
        out.push(b'}');
        out
    }
}

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Visit;
        impl<'de> Visitor<'de> for Visit {
            type Value = Members<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members: Vec<(Cow<'de, str>, Cow<'de, str>)> = Vec::new();
                let mut places: BTreeMap<Cow<'de, str>, usize> = BTreeMap::new();
                while let Some((Name(name), value)) = map.next_entry::<Name<'de>, &RawValue>()? {
                    let value = Cow::Borrowed(value.get());
                    match places.get(&name) {
                        Some(&place) => members[place].1 = value,
                        None => {
                            places.insert(name.clone(), members.len());
                            members.push((name, value));
                        }
                    }
                }
                Ok(Members { members })
            }
        }
        from.deserialize_map(Visit)
    }
}

/// A name, borrowed where it has no escapes.
#[derive(Deserialize)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

/// The text of a JSON string.
pub fn text(json: &str) -> Option<Cow<'_, str>> {
    let inner = json.strip_prefix('"')?.strip_suffix('"')?;
    if !inner.contains('\\') {
        return Some(Cow::Borrowed(inner));
    }
    serde_json::from_str(json).ok().map(Cow::Owned)
}

/// The values of a JSON array.
pub fn list(json: &str) -> Option<Vec<&str>> {
    let list: Vec<&RawValue> = json
        .starts_with('[')
        .then(|| serde_json::from_str(json).ok())??;
    Some(list.into_iter().map(RawValue::get).collect())
}

/// The first values of a JSON array, at most so many, and how many it has: a list of bytes has millions,
/// which are not worth a place each.
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

/// A byte as a JSON number. Some clients write floats: 7.0 is whole, to a JSON Schema as well.
#[derive(Clone, Copy)]
pub struct Byte(pub u8);

impl<'de> Deserialize<'de> for Byte {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Byte, D::Error> {
        struct Number;

        impl Visitor<'_> for Number {
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

        deserializer.deserialize_any(Number)
    }
}

/// The members of a JSON object.
pub fn object(json: &str) -> Option<Members<'_>> {
    json.starts_with('{')
        .then(|| Members::parse(json.as_bytes()))?
}

/// One member of a JSON object, for as long as the object's text; a null is as good as absent.
pub fn member<'a>(json: &'a str, name: &str) -> Option<&'a str> {
    let members: Members<'a> = object(json)?;
    let found = members
        .members
        .into_iter()
        .find(|(member, _)| member == name);
    match found?.1 {
        Cow::Borrowed(json) if json != "null" => Some(json),
        _ => None,
    }
}

/// A JSON number that is finite.
pub fn number(json: &str) -> Option<f64> {
    let is_number = json.starts_with(|first: char| first == '-' || first.is_ascii_digit());
    let number: f64 = is_number.then(|| json.parse().ok())??;
    number.is_finite().then_some(number)
}

/// A text as JSON.
pub fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// A text as JSON, of characters that need no escape: base64.
pub fn quoted_plain(text: &str) -> String {
    let mut json = String::with_capacity(text.len() + 2);
    json.push('"');
    json.push_str(text);
    json.push('"');
    json
}
