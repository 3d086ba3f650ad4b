//! The file as a small tree in which every node knows where it stands.
//!
//! The tree is not YAML any more (anchors are resolved, scalars have types) and not yet the typed
//! configuration. Checks walk it with a [`Cursor`], so that path and line come with each finding.

use serde_json::{Number, Value};

use super::problem::{FilePosition, Problem, path_of_item, path_of_key};

/// A value and where it begins.
#[derive(Clone, Debug)]
pub(super) struct DocumentNode {
    pub place: FilePosition,
    pub data: NodeData,
}

/// Content of a node.
#[derive(Clone, Debug)]
pub(super) enum NodeData {
    Null,
    Bool(bool),
    Number(Number),
    Text(ScalarText),
    List(Vec<DocumentNode>),
    Map(Vec<MapEntry>),
}

/// Text, and its source in the file where `${NAME}` was replaced: only the source may be shown.
#[derive(Clone, Debug)]
pub(super) struct ScalarText {
    pub value: String,
    pub source: Option<String>,
}

/// A key of a mapping with its value.
#[derive(Clone, Debug)]
pub(super) struct MapEntry {
    pub key: String,
    pub place: FilePosition,
    pub value: DocumentNode,
}

impl DocumentNode {
    /// The value of `key`, when this is a mapping that has it.
    pub fn get_mut(&mut self, key: &str) -> Option<&mut DocumentNode> {
        match &mut self.data {
            NodeData::Map(entries) => entries
                .iter_mut()
                .find(|entry| entry.key == key)
                .map(|entry| &mut entry.value),
            _ => None,
        }
    }

    /// The items, when this is a list.
    pub fn items_mut(&mut self) -> &mut [DocumentNode] {
        match &mut self.data {
            NodeData::List(items) => items,
            _ => &mut [],
        }
    }

    /// The value `true`.
    pub fn is_true(&self) -> bool {
        matches!(self.data, NodeData::Bool(true))
    }

    pub fn is_empty_list(&self) -> bool {
        matches!(&self.data, NodeData::List(items) if items.is_empty())
    }

    /// The same tree without places.
    pub fn to_value(&self) -> Value {
        match &self.data {
            NodeData::Null => Value::Null,
            NodeData::Bool(yes) => Value::Bool(*yes),
            NodeData::Number(number) => Value::Number(number.clone()),
            NodeData::Text(text) => Value::String(text.value.clone()),
            NodeData::List(items) => {
                Value::Array(items.iter().map(DocumentNode::to_value).collect())
            }
            NodeData::Map(entries) => Value::Object(
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
    pub node: &'a DocumentNode,
    pub path: String,
    /// Position of its key, or of the node itself in a list.
    pub place: FilePosition,
}

impl<'a> Cursor<'a> {
    pub fn root(node: &'a DocumentNode) -> Cursor<'a> {
        Cursor {
            node,
            path: String::new(),
            place: node.place,
        }
    }

    /// The value of `key`, when this is a mapping that has it.
    pub fn key(&self, key: &str) -> Option<Cursor<'a>> {
        let NodeData::Map(entries) = &self.node.data else {
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
        let NodeData::List(items) = &list.node.data else {
            return Vec::new();
        };
        let item = |(index, node): (usize, &'a DocumentNode)| Cursor {
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
        let NodeData::Map(entries) = &map.node.data else {
            return Vec::new();
        };
        let entry = |entry: &'a MapEntry| {
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
                NodeData::List(items) => {
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
            NodeData::Text(text) => Some(&text.value),
            _ => None,
        }
    }

    /// A mapping stands here.
    pub fn is_map(&self) -> bool {
        matches!(self.node.data, NodeData::Map(_))
    }

    /// The text of `key`.
    pub fn text_of(&self, key: &str) -> Option<&'a str> {
        self.key(key)?.text()
    }

    /// The whole number of `key`.
    pub fn number_of(&self, key: &str) -> Option<u64> {
        match &self.key(key)?.node.data {
            NodeData::Number(number) => number.as_u64(),
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
            NodeData::Null => "nothing".to_owned(),
            NodeData::Bool(yes) => yes.to_string(),
            NodeData::Number(number) => number.to_string(),
            NodeData::List(_) => "a list".to_owned(),
            NodeData::Map(_) => "a mapping".to_owned(),
            NodeData::Text(text) => match &text.source {
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
            || self.path.contains(".webhooks.secret")
            || self.path.contains(".previous_secrets")
            || self.path.ends_with(".access_key")
            || self.path.ends_with(".secret_key")
            || self.path.contains("].headers")
            || self.path.contains(".process.environment")
    }
}

fn quoted(text: &str, chars_max: usize) -> String {
    match text.char_indices().nth(chars_max) {
        Some((cut, _)) => format!("{:?}…", &text[..cut]),
        None => format!("{text:?}"),
    }
}
