//! Text to tree: YAML 1.2 with every key's line, all duplicate keys, and bounds.
//!
//! The meaning of the keys is unknown here. No other file names the YAML parser. The parser's
//! events are read instead of its tree, because a tree keeps no lines of keys, stops at the first
//! duplicate and has no bound on depth.

use std::collections::HashMap;

use saphyr_parser::{Event, Marker, Parser, ScalarStyle, ScanError, Tag};

use super::document::{DocumentNode, MapEntry, NodeData, ScalarText};
use super::problem::{FilePosition, Problem, Problems, path_of_item, path_of_key};
use super::scalar::resolve;

/// Deeper than any key of the configuration, and shallow enough to walk recursively.
const DEPTH_MAX: usize = 32;

/// Values in the file after aliases are put in: room for 100,000 accounts, and an end to a
/// handful of aliases that multiply.
const NODES_MAX: usize = 1_000_000;

/// Keys of one mapping: far more than the configuration has, few enough to search one by one.
const KEYS_MAX: usize = 1_000;

/// The tree of the only document in `text`; without one, `problems` has the reason. Duplicate keys are
/// problems too, and the tree then holds the first value.
pub(super) fn read(text: &str, problems: &mut Problems) -> Option<DocumentNode> {
    let mut builder = TreeBuilder::default();
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    for event in Parser::new_from_str(text) {
        let step = match event {
            Ok((event, span)) => builder.take(event, place(&span.start), problems),
            Err(error) => Err(builder.unreadable(&error)),
        };
        if let Err(problem) = step {
            problems.add(problem);
            return None;
        }
    }
    match builder.root {
        Some(DocumentNode {
            data: NodeData::Null,
            ..
        })
        | None => {
            problems.add(Problem::of_file(
                "the file is empty: `infergate config example` prints one to begin with",
            ));
            None
        }
        Some(
            root @ DocumentNode {
                data: NodeData::Map(_),
                ..
            },
        ) => Some(root),
        Some(other) => {
            problems.add(Problem::new(
                "",
                other.place,
                "the file must be a mapping that begins with keys such as `listen:`",
            ));
            None
        }
    }
}

/// A list or a mapping that is still open.
struct OpenCollection {
    node: DocumentNode,
    anchor: usize,
    /// The key whose value comes next, in a mapping.
    key: Option<(String, FilePosition)>,
    /// Lines of the keys so far, in a mapping.
    seen: HashMap<String, u32>,
}

#[derive(Default)]
struct TreeBuilder {
    open: Vec<OpenCollection>,
    anchors: HashMap<usize, DocumentNode>,
    documents: usize,
    nodes: usize,
    root: Option<DocumentNode>,
}

impl TreeBuilder {
    fn take(
        &mut self,
        event: Event<'_>,
        place: FilePosition,
        problems: &mut Problems,
    ) -> Result<(), Problem> {
        match event {
            Event::DocumentStart(_) => {
                self.documents += 1;
                if self.documents > 1 {
                    return Err(Problem::new(
                        "",
                        place,
                        "a second document begins here: one file holds one document, remove the `---`",
                    ));
                }
            }
            Event::Scalar(text, style, anchor, tag) => {
                if self.key_comes_next() {
                    self.take_key(text.into_owned(), place)?;
                } else {
                    let data = scalar(&text, style, tag.as_deref())
                        .ok_or_else(|| self.problem(place, UNFIT_TAG))?;
                    self.keep(DocumentNode { place, data }, anchor, problems)?;
                }
            }
            Event::SequenceStart(anchor, tag) => {
                self.begin(NodeData::List(Vec::new()), place, anchor, tag.as_deref())?;
            }
            Event::MappingStart(anchor, tag) => {
                self.begin(NodeData::Map(Vec::new()), place, anchor, tag.as_deref())?;
            }
            Event::SequenceEnd | Event::MappingEnd => {
                if let Some(done) = self.open.pop() {
                    self.keep(done.node, done.anchor, problems)?;
                }
            }
            Event::Alias(anchor) => {
                if self.key_comes_next() {
                    return Err(self.problem(place, "an alias cannot be a key: write the key out"));
                }
                let Some(node) = self.anchors.get(&anchor).cloned() else {
                    return Err(self.problem(place, "this alias stands inside its own anchor"));
                };
                self.count(nodes_in(&node) - 1, place)?;
                self.keep(DocumentNode { place, ..node }, 0, problems)?;
            }
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentEnd => {}
        }
        Ok(())
    }

    fn begin(
        &mut self,
        data: NodeData,
        place: FilePosition,
        anchor: usize,
        tag: Option<&Tag>,
    ) -> Result<(), Problem> {
        if self.key_comes_next() {
            return Err(self.problem(place, "a key must be plain text, not a list or a mapping"));
        }
        if tag.is_some_and(|tag| !tag.is_yaml_core_schema()) {
            return Err(self.problem(place, "tags (`!…`) are not used in this file: remove it"));
        }
        if self.open.len() >= DEPTH_MAX {
            return Err(self.problem(place, format!("nested deeper than {DEPTH_MAX} levels")));
        }
        let node = DocumentNode { place, data };
        self.open.push(OpenCollection {
            node,
            anchor,
            key: None,
            seen: HashMap::new(),
        });
        Ok(())
    }

    fn key_comes_next(&self) -> bool {
        matches!(
            self.open.last(),
            Some(OpenCollection {
                node: DocumentNode {
                    data: NodeData::Map(_),
                    ..
                },
                key: None,
                ..
            })
        )
    }

    fn take_key(&mut self, key: String, place: FilePosition) -> Result<(), Problem> {
        if key == "<<" {
            return Err(self.problem(
                place,
                "merge keys (`<<`) are not part of YAML 1.2: repeat the keys, or use an alias for a whole value",
            ));
        }
        match self.open.last_mut() {
            Some(open) if open.seen.len() < KEYS_MAX => open.key = Some((key, place)),
            _ => {
                let message = format!("more than {KEYS_MAX} keys in one mapping");
                return Err(self.problem(place, message));
            }
        }
        Ok(())
    }

    /// Puts a finished node where it belongs.
    fn keep(
        &mut self,
        node: DocumentNode,
        anchor: usize,
        problems: &mut Problems,
    ) -> Result<(), Problem> {
        self.count(1, node.place)?;
        if anchor > 0 {
            self.anchors.insert(anchor, node.clone());
        }
        if let Some((first, place)) = self.first_of_this_key() {
            problems.add_beside(self.problem(
                place,
                format!("this key already stands on line {first}: remove one of the two"),
            ));
        }
        let Some(open) = self.open.last_mut() else {
            self.root = Some(node);
            return Ok(());
        };
        match &mut open.node.data {
            NodeData::List(items) => items.push(node),
            NodeData::Map(entries) => {
                let (key, place) = open.key.take().expect("a key came first: `key_comes_next`");
                if !open.seen.contains_key(&key) {
                    open.seen.insert(key.clone(), place.line);
                    entries.push(MapEntry {
                        key,
                        place,
                        value: node,
                    });
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// The line where the current key stood before, and where it stands again.
    fn first_of_this_key(&self) -> Option<(u32, FilePosition)> {
        let open = self.open.last()?;
        let (key, place) = open.key.as_ref()?;
        Some((*open.seen.get(key)?, *place))
    }

    fn count(&mut self, nodes: usize, place: FilePosition) -> Result<(), Problem> {
        self.nodes = self.nodes.saturating_add(nodes);
        if self.nodes > NODES_MAX {
            return Err(self.problem(place, format!("more than {NODES_MAX} values in the file")));
        }
        Ok(())
    }

    /// The path of what is being read.
    fn path(&self) -> String {
        let mut path = String::new();
        for open in &self.open {
            path = match (&open.node.data, &open.key) {
                (NodeData::List(items), _) => path_of_item(&path, items.len()),
                (_, Some((key, _))) => path_of_key(&path, key),
                (_, None) => path,
            };
        }
        path
    }

    fn problem(&self, place: FilePosition, message: impl Into<String>) -> Problem {
        Problem::new(self.path(), place, message)
    }

    /// The parser's complaint in words that say what to do.
    fn unreadable(&self, error: &ScanError) -> Problem {
        let info = error.info();
        let advice = REMEDIES
            .iter()
            .find(|(fragment, _)| info.contains(fragment));
        let message = match advice {
            Some((_, advice)) => format!("not readable as YAML: {advice}"),
            None => format!("not readable as YAML: {info}; look here and at the line above"),
        };
        self.problem(place(error.marker()), message)
    }
}

/// The value itself is not repeated: it may be a secret.
const UNFIT_TAG: &str =
    "this tag (`!…`) does not fit the value: tags are not needed in this file, remove it";

/// Fragments of the parser's messages, and what the person at the keyboard can do.
const REMEDIES: &[(&str, &str)] = &[
    (
        "unexpected character: `@'",
        "a value that begins with `@` needs quotes, as in \"@cf/meta/llama\"",
    ),
    (
        "unexpected character: `%'",
        "a value that begins with `%` needs quotes",
    ),
    (
        "unexpected character: ``'",
        "a value that begins with a backtick needs quotes",
    ),
    (
        "scanning an anchor or alias",
        "a value that begins with `*` or `&` needs quotes, as in \"*\"",
    ),
    (
        "unknown anchor",
        "this `*name` refers to no `&name` above it; a literal `*` needs quotes",
    ),
    ("tab", "a tab stands here: indent with spaces"),
    (
        "mapping values are not allowed",
        "a `:` where none is expected: check the indentation, or quote the value",
    ),
    (
        "did not find expected key",
        "the indentation does not fit the lines above",
    ),
    (
        "did not find expected '-'",
        "the indentation does not fit the list above",
    ),
    (
        "block sequence entries are not allowed",
        "a `-` where none is expected: begin the list on its own line",
    ),
    (
        "invalid indentation",
        "the indentation does not fit the lines above, or a bracket or quote is not closed",
    ),
    (
        "unexpected end of stream",
        "a quote is opened and never closed",
    ),
    (
        "quoted scalar",
        "the quoted text is not closed, or has an escape YAML does not know",
    ),
    ("flow mapping", "a `{` is not closed, or a comma is missing"),
    (
        "flow sequence",
        "a `[` is not closed, or a comma is missing",
    ),
    (
        "misplaced bracket",
        "a closing bracket without an opening one",
    ),
    (
        "simple key expect",
        "a key without its `:`, or a line that belongs to the one above",
    ),
    (
        "unprintable character",
        "an unprintable character stands here: remove it",
    ),
];

/// The value of a scalar by the core schema of YAML 1.2; `None` when its tag does not fit.
fn scalar(text: &str, style: ScalarStyle, tag: Option<&Tag>) -> Option<NodeData> {
    let plain_text = || {
        NodeData::Text(ScalarText {
            value: text.to_owned(),
            source: None,
        })
    };
    match tag {
        Some(tag) if !tag.is_yaml_core_schema() => None,
        Some(tag) => match (tag.suffix.as_ref(), resolve(text)) {
            ("str", _) => Some(plain_text()),
            ("null", Some(data @ NodeData::Null)) => Some(data),
            ("bool", Some(data @ NodeData::Bool(_))) => Some(data),
            ("int" | "float", Some(data @ NodeData::Number(_))) => Some(data),
            _ => None,
        },
        None if style == ScalarStyle::Plain => Some(resolve(text).unwrap_or_else(plain_text)),
        None => Some(plain_text()),
    }
}

fn nodes_in(node: &DocumentNode) -> usize {
    1 + match &node.data {
        NodeData::List(items) => items.iter().map(nodes_in).sum(),
        NodeData::Map(entries) => entries.iter().map(|entry| nodes_in(&entry.value)).sum(),
        _ => 0,
    }
}

fn place(marker: &Marker) -> FilePosition {
    let small = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    FilePosition {
        line: small(marker.line()),
        column: small(marker.col() + 1),
    }
}
