//! JSON as a task handles it: members of one object, each value as it stands.
//!
//! Builds no tree: an image of a few megabytes, as base64 or as a list of bytes, stays one piece of text
//! until it is needed. The last value of a repeated name counts, as it does for the schema's validator.
//! So no value passes the check in one form and reaches the server in another.

use std::borrow::Cow;
use std::fmt;

use hashbrown::HashMap;
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

/// The members of an object, in the order of their first mention.
#[derive(Clone, Debug, Default)]
pub(super) struct Members<'a> {
    members: Vec<(Cow<'a, str>, Cow<'a, str>)>,
}

impl<'a> Members<'a> {
    /// Reads an object; none when the text is something else.
    pub(super) fn parse(json: &'a [u8]) -> Option<Members<'a>> {
        serde_json::from_slice(json).ok()
    }

    /// The value under a name, as JSON. Null counts as absent.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        let (_, json) = self.members.iter().find(|(member, _)| member == name)?;
        (json != "null").then_some(json)
    }

    /// Every name and its value.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.members.iter().map(|(name, json)| (&**name, &**json))
    }

    /// The first of these names that has a value.
    pub(super) fn first_of(&self, names: &[&str]) -> Option<&str> {
        names.iter().find_map(|name| self.get(name))
    }

    /// Replaces a value in its place, or adds it at the end.
    pub(super) fn set(&mut self, name: &str, json: impl Into<Cow<'a, str>>) {
        let json = json.into();
        match self.members.iter_mut().find(|(member, _)| member == name) {
            Some((_, value)) => *value = json,
            None => self.members.push((Cow::Owned(name.to_owned()), json)),
        }
    }

    /// Moves the value of `alias` under `name`, unless there is one already.
    pub(super) fn rename(&mut self, alias: &str, name: &str) {
        if self.get(name).is_none()
            && let Some((_, json)) = self.members.iter().find(|(member, _)| member == alias)
        {
            let json = json.clone();
            self.set(name, json);
        }
        self.retain(|member| member != alias);
    }

    /// Keeps the members with these names.
    pub(super) fn retain(&mut self, keep: impl Fn(&str) -> bool) {
        self.members.retain(|(name, _)| keep(name));
    }

    /// Leaves out the nulls.
    pub(super) fn drop_nulls(&mut self) {
        self.members.retain(|(_, json)| json != "null");
    }

    /// The object as JSON.
    pub(super) fn to_json(&self) -> Vec<u8> {
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

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct MembersVisitor;
        impl<'de> Visitor<'de> for MembersVisitor {
            type Value = Members<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members: Vec<(Cow<'de, str>, Cow<'de, str>)> = Vec::new();
                let mut places: HashMap<Cow<'de, str>, usize> = HashMap::new();
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
        from.deserialize_map(MembersVisitor)
    }
}

/// A name, borrowed where it has no escapes.
#[derive(Deserialize)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

/// The text of a JSON string.
pub(super) fn parse_string(json: &str) -> Option<Cow<'_, str>> {
    let inner = json.strip_prefix('"')?.strip_suffix('"')?;
    if !inner.contains('\\') {
        return Some(Cow::Borrowed(inner));
    }
    serde_json::from_str(json).ok().map(Cow::Owned)
}

/// The values of a JSON array.
pub(super) fn parse_list(json: &str) -> Option<Vec<&str>> {
    let list: Vec<&RawValue> = json
        .starts_with('[')
        .then(|| serde_json::from_str(json).ok())??;
    Some(list.into_iter().map(RawValue::get).collect())
}

/// The members of a JSON object.
pub(super) fn parse_object(json: &str) -> Option<Members<'_>> {
    json.starts_with('{')
        .then(|| Members::parse(json.as_bytes()))?
}

/// A member of a JSON object, for as long as the object's text; null counts as absent.
pub(super) fn member<'a>(json: &'a str, name: &str) -> Option<&'a str> {
    let members: Members<'a> = parse_object(json)?;
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
pub(super) fn parse_number(json: &str) -> Option<f64> {
    let is_number = json.starts_with(|first: char| first == '-' || first.is_ascii_digit());
    let number: f64 = is_number.then(|| json.parse().ok())??;
    number.is_finite().then_some(number)
}

/// A text as JSON.
pub(super) fn to_json_string(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// A text as JSON, of characters that need no escape: base64.
pub(super) fn to_plain_json_string(text: &str) -> String {
    let mut json = String::with_capacity(text.len() + 2);
    json.push('"');
    json.push_str(text);
    json.push('"');
    json
}
