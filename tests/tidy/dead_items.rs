//! Public items that the production code, the benches and the simulation never name.
//!
//! Not the compiler's own check, which sees no dead code in a library's public items. By name: an item
//! that shares its name with a living one is not found.

use std::collections::BTreeMap;

use crate::ceilings::UNUSED_ITEMS_ALLOWED;
use crate::tokens::Token;
use crate::tree::Tree;

const KEYWORDS: &[&str] = &["fn", "struct", "enum", "trait", "type", "const", "static"];

/// Adds an offence for each public item without a use.
pub fn dead_items(tree: &Tree, max: usize, found: &mut Vec<String>) {
    let dead = dead(tree);
    if dead.len() > max {
        found.push(format!(
            "{} public items are used nowhere, over {max}: {}",
            dead.len(),
            dead.join(", ")
        ));
    }
}

/// Public items without a use, each with its place.
pub fn dead(tree: &Tree) -> Vec<String> {
    let mut named: BTreeMap<&str, usize> = BTreeMap::new();
    for tokens in tree.code.values().chain(tree.drivers.values()) {
        for token in tokens {
            for name in names_in(&token.text) {
                *named.entry(name).or_default() += 1;
            }
        }
    }
    let mut dead = Vec::new();
    for (path, tokens) in &tree.code {
        for at in 0..tokens.len() {
            if let Some(name) = public_item(tokens, at)
                && named[name.text.as_str()] == 1
                && !UNUSED_ITEMS_ALLOWED.contains(&name.text.as_str())
            {
                dead.push(format!("{path}:{}: `{}`", name.line, name.text));
            }
        }
    }
    dead
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
