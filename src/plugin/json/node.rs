//! Values of an outline as the schema validator sees them.
//!
//! Values are not built: a number or a text is read where it stands. Each look at a value is a step of its
//! outline; without steps left, a value has no type and no content, so that a validation ends.

use std::borrow::Cow;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

use jsonschema::JsonType;
use jsonschema::json::{self, Array, Json, JsonNumber, NodeIdentity, Object};
use serde_json::{Number as SerdeNumber, Value};

use super::outline::{Container, Outline, ValueSpan};

/// Bytes of a text that are read in one step.
const STRING_BYTES_PER_STEP: u64 = 4;

/// The representation of instances that schemas are compiled for.
pub struct OutlineJson;

/// JSON value, read in place.
#[derive(Clone)]
pub enum OutlineNode<'a> {
    /// An object or a list.
    Container(&'a Outline, Container),
    /// Anything else, as it is written.
    Scalar(&'a Outline, &'a [u8]),
    /// The name of a member.
    Name(&'a str),
}

impl Json for OutlineJson {
    type Node<'a> = OutlineNode<'a>;
    type PreparedKey = String;
    type StringBuffer = String;

    fn prepare_key(key: &str) -> String {
        key.to_owned()
    }

    fn with_string_node<T>(
        buffer: &mut String,
        string: &str,
        f: impl FnOnce(OutlineNode<'_>) -> T,
    ) -> T {
        buffer.clear();
        buffer.push_str(string);
        f(OutlineNode::Name(buffer))
    }
}

impl Outline {
    /// The whole value.
    pub fn root(&self) -> OutlineNode<'_> {
        OutlineNode::at(self, self.root)
    }
}

impl<'a> OutlineNode<'a> {
    pub(crate) fn at(outline: &'a Outline, place: ValueSpan) -> OutlineNode<'a> {
        match place.container() {
            Some(at) => OutlineNode::Container(outline, outline.container(at)),
            None => {
                let bytes = &outline.text()[place.start as usize..place.end as usize];
                OutlineNode::Scalar(outline, bytes)
            }
        }
    }

    /// The value as it is written.
    pub fn raw(&self) -> &'a [u8] {
        match self {
            OutlineNode::Container(outline, of) => {
                &outline.text()[of.start as usize..of.end as usize]
            }
            OutlineNode::Scalar(_, raw) => raw,
            OutlineNode::Name(name) => name.as_bytes(),
        }
    }

    /// The value at a JSON Pointer.
    pub fn pointer(&self, pointer: &str) -> Option<OutlineNode<'a>> {
        let mut here = self.clone();
        for part in pointer.split('/').skip(1) {
            let key = crate::plugin::json::pointer::unescape(part);
            let OutlineNode::Container(outline, of) = &here else {
                return None;
            };
            here = match of.is_object {
                true => {
                    let member = outline.member(*of, &key)?;
                    OutlineNode::at(outline, member.value)
                }
                false => {
                    let is_index = key == "0" || !key.starts_with(['0', '+']);
                    let at: usize = is_index.then(|| key.parse().ok())??;
                    OutlineItems::of(outline, *of).nth(at)?
                }
            };
        }
        Some(here)
    }

    /// Counts a look; false when there are no steps left.
    fn look(&self) -> bool {
        match self {
            OutlineNode::Container(outline, _) | OutlineNode::Scalar(outline, _) => {
                outline.spend(1)
            }
            OutlineNode::Name(_) => true,
        }
    }

    fn first(&self) -> u8 {
        match self {
            OutlineNode::Container(_, of) if of.is_object => b'{',
            OutlineNode::Container(..) => b'[',
            OutlineNode::Scalar(_, raw) => raw.first().copied().unwrap_or(b'n'),
            OutlineNode::Name(_) => b'"',
        }
    }

    fn hash(&self, with: &RandomState) -> u64 {
        match (self, self.first()) {
            (OutlineNode::Container(outline, of), b'{') => {
                let members = OutlineMembers::of(outline, *of);
                // The order of members does not matter.
                members.fold(with.hash_one('{'), |sum, (key, value)| {
                    sum.wrapping_add(with.hash_one((key, value.hash(with))))
                })
            }
            (OutlineNode::Container(outline, of), _) => {
                let items = OutlineItems::of(outline, *of);
                items.fold(with.hash_one('['), |sum, item| {
                    with.hash_one((sum, item.hash(with)))
                })
            }
            (_, b'"') => with.hash_one(json::Node::as_string(self).unwrap_or_default()),
            (_, b'-' | b'0'..=b'9') => OutlineNumber(self.raw()).hash(with),
            (_, other) => with.hash_one(other),
        }
    }
}

impl<'a> json::Node<'a, OutlineJson> for OutlineNode<'a> {
    type Object = OutlineMembers<'a>;
    type Array = OutlineItems<'a>;
    type Number = OutlineNumber<'a>;

    fn as_object(&self) -> Option<OutlineMembers<'a>> {
        match self {
            OutlineNode::Container(outline, of) if of.is_object && self.look() => {
                Some(OutlineMembers::of(outline, *of))
            }
            _ => None,
        }
    }

    fn as_array(&self) -> Option<OutlineItems<'a>> {
        match self {
            OutlineNode::Container(outline, of) if !of.is_object && self.look() => {
                Some(OutlineItems::of(outline, *of))
            }
            _ => None,
        }
    }

    fn as_string(&self) -> Option<Cow<'a, str>> {
        let raw = match self {
            OutlineNode::Name(name) => return Some(Cow::Borrowed(name)),
            OutlineNode::Scalar(outline, raw) if raw.first() == Some(&b'"') => {
                let steps = 1 + raw.len() as u64 / STRING_BYTES_PER_STEP;
                if !outline.spend(steps) {
                    return None;
                }
                std::str::from_utf8(raw).unwrap_or_default()
            }
            _ => return None,
        };
        let inner = raw.get(1..raw.len() - 1).unwrap_or_default();
        if memchr::memchr(b'\\', inner.as_bytes()).is_none() {
            return Some(Cow::Borrowed(inner));
        }
        // Half a surrogate pair is no text: it stands for itself.
        let text = serde_json::from_str(raw).map(Cow::Owned);
        Some(text.unwrap_or(Cow::Borrowed(inner)))
    }

    fn as_number(&self) -> Option<OutlineNumber<'a>> {
        match self {
            OutlineNode::Scalar(_, raw) if self.is_number() => Some(OutlineNumber(raw)),
            _ => None,
        }
    }

    fn as_boolean(&self) -> Option<bool> {
        match self.first() {
            b't' => self.look().then_some(true),
            b'f' => self.look().then_some(false),
            _ => None,
        }
    }

    fn is_null(&self) -> bool {
        self.first() == b'n'
    }

    fn is_number(&self) -> bool {
        matches!(self.first(), b'-' | b'0'..=b'9') && self.look()
    }

    fn json_type(&self) -> JsonType {
        if !self.look() {
            return JsonType::Null;
        }
        match self.first() {
            b'{' => JsonType::Object,
            b'[' => JsonType::Array,
            b'"' => JsonType::String,
            b't' | b'f' => JsonType::Boolean,
            b'n' => JsonType::Null,
            _ => JsonType::Number,
        }
    }

    fn equals_value(&self, expected: &Value) -> bool {
        match expected {
            Value::Null => self.is_null(),
            Value::Bool(expected) => self.as_boolean() == Some(*expected),
            Value::String(expected) => {
                // A name, a text: compared without decoding where the lengths rule it out.
                let could = self.raw().len() >= expected.len();
                could && self.as_string().is_some_and(|text| text == *expected)
            }
            Value::Number(expected) => self
                .as_number()
                .is_some_and(|number| json::cmp::equal_numbers(&number, expected)),
            Value::Array(expected) => self.as_array().is_some_and(|items| {
                Array::len(&items) == expected.len()
                    && items
                        .zip(expected)
                        .all(|(item, expected)| item.equals_value(expected))
            }),
            Value::Object(expected) => self.as_object().is_some_and(|members| {
                Object::len(&members) == expected.len()
                    && expected.iter().all(|(key, expected)| {
                        let own = Object::get(&members, key);
                        own.is_some_and(|own| own.equals_value(expected))
                    })
            }),
        }
    }

    /// For the instance that an error holds, which has no reader: messages never repeat a value.
    fn to_value(&self) -> Cow<'a, Value> {
        if let OutlineNode::Container(outline, _) | OutlineNode::Scalar(outline, _) = self {
            outline.count_error();
        }
        Cow::Owned(Value::Null)
    }

    fn identity(&self) -> Option<NodeIdentity> {
        Some(NodeIdentity::new(self.raw().as_ptr() as usize))
    }
}

/// A number as it is written.
pub struct OutlineNumber<'a>(&'a [u8]);

impl OutlineNumber<'_> {
    fn text(&self) -> &str {
        std::str::from_utf8(self.0).unwrap_or_default()
    }

    /// Equal for numbers that are equal, however they are written.
    fn hash(&self, with: &RandomState) -> u64 {
        let float = self.as_f64().unwrap_or(f64::NAN);
        match (self.as_u64(), self.as_i64()) {
            (Some(whole), _) => with.hash_one(i128::from(whole)),
            (None, Some(whole)) => with.hash_one(i128::from(whole)),
            (None, None) if float.fract() == 0.0 && float.abs() < 1e30 => {
                with.hash_one(float as i128)
            }
            (None, None) => with.hash_one(float.to_bits()),
        }
    }
}

impl JsonNumber for OutlineNumber<'_> {
    fn as_u64(&self) -> Option<u64> {
        self.text().parse().ok()
    }

    fn as_i64(&self) -> Option<i64> {
        self.text().parse().ok()
    }

    fn as_f64(&self) -> Option<f64> {
        self.text().parse().ok()
    }

    fn as_str(&self) -> Cow<'_, str> {
        Cow::Borrowed(self.text())
    }

    fn to_number(&self) -> Cow<'_, SerdeNumber> {
        let largest = || SerdeNumber::from_f64(f64::MAX);
        let number = serde_json::from_str(self.text()).ok().or_else(largest);
        Cow::Owned(number.unwrap_or_else(|| SerdeNumber::from(0)))
    }

    fn is_integer(&self) -> bool {
        self.is_written_as_integer() || self.as_f64().is_some_and(|float| float.fract() == 0.0)
    }

    fn is_written_as_integer(&self) -> bool {
        memchr::memchr3(b'.', b'e', b'E', self.0).is_none()
    }
}

/// Members of an object, in the order of the text.
pub struct OutlineMembers<'a> {
    outline: &'a Outline,
    of: Container,
    given: usize,
}

impl<'a> OutlineMembers<'a> {
    fn of(outline: &'a Outline, of: Container) -> OutlineMembers<'a> {
        OutlineMembers {
            outline,
            of,
            given: 0,
        }
    }
}

impl<'a> Iterator for OutlineMembers<'a> {
    type Item = (&'a str, OutlineNode<'a>);

    fn next(&mut self) -> Option<(&'a str, OutlineNode<'a>)> {
        let member = self.outline.members_of(self.of).get(self.given)?;
        self.given += 1;
        let goes_on = self.outline.may_continue();
        goes_on.then(|| {
            let key = self.outline.key(member);
            (key, OutlineNode::at(self.outline, member.value))
        })
    }
}

impl<'a> Object<'a, OutlineJson> for OutlineMembers<'a> {
    type Node = OutlineNode<'a>;
    type MemberName = &'a str;
    type MembersIter = OutlineMembers<'a>;

    fn len(&self) -> usize {
        self.of.len as usize
    }

    fn get(&self, key: &String) -> Option<OutlineNode<'a>> {
        self.outline.spend(1).then_some(())?;
        let member = self.outline.member(self.of, key)?;
        Some(OutlineNode::at(self.outline, member.value))
    }

    fn members(&self) -> OutlineMembers<'a> {
        OutlineMembers::of(self.outline, self.of)
    }
}

/// Items of a list, read from the text one by one.
pub struct OutlineItems<'a> {
    outline: &'a Outline,
    of: Container,
    /// Earliest offset at which the next item may begin.
    at: u32,
    /// The next container behind `at`.
    next: u32,
}

impl<'a> OutlineItems<'a> {
    pub(crate) fn of(outline: &'a Outline, of: Container) -> OutlineItems<'a> {
        OutlineItems {
            outline,
            of,
            at: of.start + 1,
            next: of.inner,
        }
    }
}

impl<'a> Iterator for OutlineItems<'a> {
    type Item = OutlineNode<'a>;

    fn next(&mut self) -> Option<OutlineNode<'a>> {
        if !self.outline.may_continue() {
            return None;
        }
        let place = self.outline.item(self.at, self.next)?;
        self.at = place.end;
        if let Some(container) = place.container() {
            self.next = self.outline.container(container).next;
        }
        Some(OutlineNode::at(self.outline, place))
    }
}

impl<'a> Array<'a, OutlineJson> for OutlineItems<'a> {
    type Node = OutlineNode<'a>;
    type ElementsIter = OutlineItems<'a>;

    fn len(&self) -> usize {
        self.of.len as usize
    }

    fn elements(&self) -> OutlineItems<'a> {
        OutlineItems::of(self.outline, self.of)
    }

    fn is_unique(&self) -> bool {
        let with = RandomState::new();
        let mut seen: Vec<u64> = self.elements().map(|item| item.hash(&with)).collect();
        seen.sort_unstable();
        seen.windows(2).all(|pair| pair[0] != pair[1])
    }
}
