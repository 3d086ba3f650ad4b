//! The file as a small tree in which every node knows where it stands.
//!
//! The tree is not YAML any more (anchors are resolved, scalars have types) and not yet the typed
//! configuration. Checks walk it with a [`Cursor`], so that path and line come with each finding.

use serde_json::{Number, Value};

use super::problem::{Place, Problem, path_of_item, path_of_key};

/// A value and where it begins.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub place: Place,
    pub data: Data,
}

/// Content of a node.
#[derive(Clone, Debug)]
pub(super) enum Data {
    Null,
    Bool(bool),
    Number(Number),
    Text(Text),
    List(Vec<Node>),
    Map(Vec<Entry>),
}

/// Text, and its source in the file where `${NAME}` was replaced: only the source may be shown.
#[derive(Clone, Debug)]
pub(super) struct Text {
    pub value: String,
    pub written: Option<String>,
}

/// A key of a mapping with its value.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub key: String,
    pub place: Place,
    pub value: Node,
}

impl Node {
    /// The value of `key`, when this is a mapping that has it.
    pub fn get_mut(&mut self, key: &str) -> Option<&mut Node> {
        match &mut self.data {
            Data::Map(entries) => entries
                .iter_mut()
                .find(|entry| entry.key == key)
                .map(|entry| &mut entry.value),
            _ => None,
        }
    }

    /// The items, when this is a list.
    pub fn items_mut(&mut self) -> &mut [Node] {
        match &mut self.data {
            Data::List(items) => items,
            _ => &mut [],
        }
    }

    /// The value `true`.
    pub fn is_true(&self) -> bool {
        matches!(self.data, Data::Bool(true))
    }

    pub fn is_empty_list(&self) -> bool {
        matches!(&self.data, Data::List(items) if items.is_empty())
    }

    /// The same tree without places.
    pub fn to_value(&self) -> Value {
        match &self.data {
            Data::Null => Value::Null,
            Data::Bool(yes) => Value::Bool(*yes),
            Data::Number(number) => Value::Number(number.clone()),
            Data::Text(text) => Value::String(text.value.clone()),
            Data::List(items) => Value::Array(items.iter().map(Node::to_value).collect()),
            Data::Map(entries) => Value::Object(
                entries
                    .iter()
                    .map(|entry| (entry.key.clone(), entry.value.to_value()))
                    .collect(),
            ),
        }
    }
}

/// A node together with its key path.
#[derive(Clone, Debug)]
pub(super) struct Cursor<'a> {
    pub node: &'a Node,
    pub path: String,
    /// Where its key stands, or the node itself in a list.
    pub place: Place,
}

impl<'a> Cursor<'a> {
    pub fn root(node: &'a Node) -> Cursor<'a> {
        Cursor {
            node,
            path: String::new(),
            place: node.place,
        }
    }

    /// The value of `key`, when this is a mapping that has it.
    pub fn key(&self, key: &str) -> Option<Cursor<'a>> {
        let Data::Map(entries) = &self.node.data else {
            return None;
        };
        let entry = entries.iter().find(|entry| entry.key == key)?;
        let path = path_of_key(&self.path, key);
        Some(Cursor {
            node: &entry.value,
            path,
            place: entry.place,
        })
    }

    /// The items of the list under `key`; none when there is no such list.
    pub fn list(&self, key: &str) -> Vec<Cursor<'a>> {
        let Some(list) = self.key(key) else {
            return Vec::new();
        };
        let Data::List(items) = &list.node.data else {
            return Vec::new();
        };
        let item = |(index, node): (usize, &'a Node)| Cursor {
            node,
            path: path_of_item(&list.path, index),
            place: node.place,
        };
        items.iter().enumerate().map(item).collect()
    }

    /// Keys and values of the mapping under `key`; none when there is no such mapping.
    pub fn entries(&self, key: &str) -> Vec<(&'a str, Cursor<'a>)> {
        let Some(map) = self.key(key) else {
            return Vec::new();
        };
        let Data::Map(entries) = &map.node.data else {
            return Vec::new();
        };
        let entry = |entry: &'a Entry| {
            let cursor = Cursor {
                node: &entry.value,
                path: path_of_key(&map.path, &entry.key),
                place: entry.place,
            };
            (&*entry.key, cursor)
        };
        entries.iter().map(entry).collect()
    }

    /// The node at a JSON pointer.
    pub fn at(&self, pointer: &str) -> Option<Cursor<'a>> {
        let mut here = self.clone();
        for segment in pointer.split('/').skip(1) {
            here = match &here.node.data {
                Data::List(items) => {
                    let index = segment.parse::<usize>().ok()?;
                    let node = items.get(index)?;
                    Cursor {
                        node,
                        path: path_of_item(&here.path, index),
                        place: node.place,
                    }
                }
                _ => here.key(&segment.replace("~1", "/").replace("~0", "~"))?,
            };
        }
        Some(here)
    }

    pub fn text(&self) -> Option<&'a str> {
        match &self.node.data {
            Data::Text(text) => Some(&text.value),
            _ => None,
        }
    }

    /// A mapping stands here.
    pub fn is_map(&self) -> bool {
        matches!(self.node.data, Data::Map(_))
    }

    /// The text of `key`.
    pub fn text_of(&self, key: &str) -> Option<&'a str> {
        self.key(key)?.text()
    }

    /// The whole number of `key`.
    pub fn number_of(&self, key: &str) -> Option<u64> {
        match &self.key(key)?.node.data {
            Data::Number(number) => number.as_u64(),
            _ => None,
        }
    }

    /// A finding here.
    pub fn problem(&self, message: impl Into<String>) -> Problem {
        Problem::new(self.path.clone(), self.place, message)
    }

    /// Rendering of the node for a message: short, and never a secret.
    pub fn shown(&self) -> String {
        const SHOWN_CHARS_MAX: usize = 60;
        match &self.node.data {
            Data::Null => "nothing".to_owned(),
            Data::Bool(yes) => yes.to_string(),
            Data::Number(number) => number.to_string(),
            Data::List(_) => "a list".to_owned(),
            Data::Map(_) => "a mapping".to_owned(),
            Data::Text(text) => match &text.written {
                Some(written) => quoted(written, SHOWN_CHARS_MAX),
                None if self.is_secret() => {
                    format!("a text of {} characters", text.value.chars().count())
                }
                None => quoted(&text.value, SHOWN_CHARS_MAX),
            },
        }
    }

    /// Keys and hashes are not repeated in messages: those reach logs and `/state`.
    fn is_secret(&self) -> bool {
        self.path.contains("api_key")
            || self.path.ends_with(".token")
            || self.path.contains("].headers")
    }
}

fn quoted(text: &str, chars_max: usize) -> String {
    match text.char_indices().nth(chars_max) {
        Some((cut, _)) => format!("{:?}…", &text[..cut]),
        None => format!("{text:?}"),
    }
}
