//! Problems of a file: one finding with its key path and line, and the bounded list of them.
//!
//! Problems are not looked for here. A message says what is wrong, what is expected and what to do,
//! and never carries a secret.

use std::fmt;

use serde::Serialize;

/// Position in the file; line and column count from 1, 0 is "the file as a whole".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FilePosition {
    /// Line.
    pub line: u32,
    /// Column, in characters.
    pub column: u32,
}

/// A finding. Serialised as in admin responses: `{ path, line, message }`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// Key path such as `models[1].endpoints[0].url`; empty for the file as a whole.
    pub path: String,
    /// Line in the file, from 1; 0 when the file could not be read at all.
    pub line: u32,
    /// Column in the line, from 1; 0 when unknown.
    #[serde(skip)]
    pub column: u32,
    /// The fault, the expected value and the remedy, for a person.
    pub message: String,
}

impl Problem {
    /// A finding at `path`.
    pub fn new(
        path: impl Into<String>,
        place: FilePosition,
        message: impl Into<String>,
    ) -> Problem {
        Problem {
            path: path.into(),
            line: place.line,
            column: place.column,
            message: message.into(),
        }
    }

    /// A finding about the file as a whole.
    pub fn of_file(message: impl Into<String>) -> Problem {
        Problem::new("", FilePosition::default(), message)
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.line > 0 {
            write!(f, "line {}: ", self.line)?;
        }
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.message)
    }
}

/// Findings so far. At most one for a key, and none below a key that already has one: what follows
/// from a mistake is not another mistake.
#[derive(Debug, Default)]
pub(super) struct Problems {
    list: Vec<Problem>,
    /// Findings without any relation to the value at their path, such as a second key of that name.
    beside: Vec<Problem>,
    more: usize,
}

impl Problems {
    /// A person reads them: beyond this many the rest is only counted.
    pub const LIST_MAX: usize = 200;

    pub fn add(&mut self, problem: Problem) {
        if self
            .list
            .iter()
            .any(|earlier| covers(&earlier.path, &problem.path))
        {
            return;
        }
        if self.len() < Self::LIST_MAX {
            self.list.push(problem);
        } else {
            self.more += 1;
        }
    }

    /// Adds a finding that leaves room for others at its path and below.
    pub fn add_beside(&mut self, problem: Problem) {
        if self.len() < Self::LIST_MAX {
            self.beside.push(problem);
        } else {
            self.more += 1;
        }
    }

    fn len(&self) -> usize {
        self.list.len() + self.beside.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All findings in the file's order.
    pub fn into_vec(mut self) -> Vec<Problem> {
        self.list.append(&mut self.beside);
        self.list
            .sort_by_key(|problem| (problem.line, problem.column));
        if self.more > 0 {
            self.list.push(Problem::of_file(format!(
                "{} more problems are not listed: mend these first",
                self.more
            )));
        }
        self.list
    }
}

/// Returns true when `outer` is the same key as `inner`, or one that encloses it.
fn covers(outer: &str, inner: &str) -> bool {
    match inner.strip_prefix(outer) {
        Some(rest) => rest.is_empty() || (!outer.is_empty() && rest.starts_with(['.', '['])),
        None => false,
    }
}

/// The path of `key` in the mapping at `path`.
pub(super) fn path_of_key(path: &str, key: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if key.is_empty() || !key.chars().all(plain) {
        format!("{path}[{key:?}]")
    } else if path.is_empty() {
        key.to_owned()
    } else {
        format!("{path}.{key}")
    }
}

/// The path of the item `index` in the list at `path`.
pub(super) fn path_of_item(path: &str, index: usize) -> String {
    format!("{path}[{index}]")
}
