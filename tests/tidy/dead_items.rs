//! Public items that neither production code nor a plugin names.
//!
//! Not the compiler's own check, which finds them in the shell, whose modules are private, and sees none in
//! the core and in the tasks. By name: an item that shares its name with a living one is not found. A use
//! in a test, a bench or the simulation is none.

use std::collections::BTreeMap;

use crate::ceilings::UNUSED_ITEMS_ALLOWED;
use crate::tokens::{Token, item_length, tokens, without_tests};
use crate::tree::{Source, Tree};

const KEYWORDS: &[&str] = &["fn", "struct", "enum", "trait", "type", "const", "static"];

/// Adds an offence for each public item without a use.
pub fn dead_items(tree: &Tree, plugins: &[Source], max: usize, found: &mut Vec<String>) {
    let dead = dead(tree, plugins);
    if dead.len() > max {
        found.push(format!(
            "{} public items are used nowhere, over {max}: {}",
            dead.len(),
            dead.join(", ")
        ));
    }
}

/// Public items without a use, each with its place.
pub fn dead(tree: &Tree, plugins: &[Source]) -> Vec<String> {
    let mut named: BTreeMap<&str, usize> = BTreeMap::new();
    let plugins: Vec<_> = plugins
        .iter()
        .map(|plugin| without_tests(&tokens(&plugin.text)))
        .collect();
    for tokens in tree.code.values().chain(&plugins) {
        for token in without_reexports(tokens) {
            for name in names_in(&token.text) {
                *named.entry(name).or_default() += 1;
            }
        }
    }
    let mut dead = Vec::new();
    for (path, tokens) in &tree.code {
        for at in 0..tokens.len() {
            if let Some(name) = public_item(tokens, at)
                && named.get(name.text.as_str()) == Some(&1)
                && !UNUSED_ITEMS_ALLOWED.contains(&name.text.as_str())
            {
                dead.push(format!("{path}:{}: `{}`", name.line, name.text));
            }
        }
    }
    dead
}

/// Leaves out `pub use` and `pub(crate) use`, by which nothing is used yet.
fn without_reexports(tokens: &[Token]) -> Vec<&Token> {
    let mut kept = Vec::with_capacity(tokens.len());
    let mut at = 0;
    while at < tokens.len() {
        let is_public = at > 0 && (tokens[at - 1].is("pub") || tokens[at - 1].is(")"));
        if is_public && tokens[at].is("use") {
            at += item_length(&tokens[at..]);
        } else {
            kept.push(&tokens[at]);
            at += 1;
        }
    }
    kept
}

/// The token itself, or the names of a path in a string, as serde's attributes have them.
fn names_in(text: &str) -> impl Iterator<Item = &str> {
    let is_sentence = text.contains(char::is_whitespace);
    text.split(|c: char| !c.is_alphanumeric() && c != '_')
        .filter(move |name| !is_sentence && !name.is_empty())
}

/// The name of the public item whose keyword stands at `at`.
fn public_item(tokens: &[Token], at: usize) -> Option<&Token> {
    let is_keyword = KEYWORDS.contains(&tokens[at].text.as_str());
    let name = tokens
        .get(at + 1)
        .filter(|name| is_keyword && name.is_word())?;
    let modifiers = ["async", "const", "unsafe", "extern"];
    let before = tokens[..at]
        .iter()
        .rev()
        .find(|token| !modifiers.contains(&token.text.as_str()))?;
    // `pub(crate)` ends with a bracket; a plain parenthesis never stands before a keyword.
    (before.is("pub") || before.is(")")).then_some(name)
}
