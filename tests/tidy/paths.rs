//! Paths that a file names: use-trees expanded, and paths in expressions and types.
//!
//! Not name resolution: [`crate::modules`] finds the file behind a path.

use crate::tokens::Token;

/// A path such as `super::gate::Permit`, and where it stands.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedPath {
    pub segments: Vec<String>,
    /// Name under which an import makes the last segment known; the segment itself elsewhere.
    pub alias: String,
    /// `pub use`, and `pub(crate) use`.
    pub is_reexport: bool,
}

/// Returns the paths of at least two segments, in order.
pub fn paths(tokens: &[Token]) -> Vec<NamedPath> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        if tokens[at].is("use") {
            let is_reexport = at > 0 && (tokens[at - 1].is("pub") || tokens[at - 1].is(")"));
            let from = found.len();
            at = use_tree(tokens, at + 1, &mut Vec::new(), &mut found);
            for path in &mut found[from..] {
                path.is_reexport = is_reexport;
            }
        } else if tokens[at].is_word() && tokens.get(at + 1).is_some_and(|next| next.is("::")) {
            let mut segments = vec![tokens[at].text.clone()];
            while let (Some(separator), Some(name)) = (tokens.get(at + 1), tokens.get(at + 2))
                && separator.is("::")
                && name.is_word()
            {
                segments.push(name.text.clone());
                at += 2;
            }
            found.push(named(segments));
            at += 1;
        } else {
            at += 1;
        }
    }
    found
}

/// Reads the use-tree at `at` below `prefix`; returns the place after it.
fn use_tree(
    tokens: &[Token],
    mut at: usize,
    prefix: &mut Vec<String>,
    found: &mut Vec<NamedPath>,
) -> usize {
    let depth = prefix.len();
    while let Some(token) = tokens.get(at) {
        match token.text.as_str() {
            "::" => at += 1,
            "{" => {
                at += 1;
                while tokens.get(at).is_some_and(|token| !token.is("}")) {
                    let before = at;
                    at = use_tree(tokens, at, prefix, found);
                    at += usize::from(tokens.get(at).is_some_and(|token| token.is(",")));
                    at = at.max(before + 1);
                }
                prefix.truncate(depth);
                return at + 1;
            }
            "as" => {
                if let (Some(path), Some(alias)) = (found.last_mut(), tokens.get(at + 1)) {
                    path.alias.clone_from(&alias.text);
                }
                at += 2;
            }
            "*" => {
                prefix.push("*".to_owned());
                at += 1;
            }
            _ if token.is_word() => {
                prefix.push(token.text.clone());
                at += 1;
                if !tokens.get(at).is_some_and(|next| next.is("::")) {
                    found.push(named(prefix.clone()));
                }
                continue;
            }
            _ => break,
        }
        if prefix.last().is_some_and(|last| last == "*") {
            found.push(named(prefix.clone()));
        }
    }
    prefix.truncate(depth);
    at
}

fn named(segments: Vec<String>) -> NamedPath {
    let alias = segments.last().cloned().unwrap_or_default();
    NamedPath {
        segments,
        alias,
        is_reexport: false,
    }
}
