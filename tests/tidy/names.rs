//! Names that the code defines, banned words also in tests, held to the glossary.
//!
//! Not the sentences of comments, which `prose.rs` counts.

use std::collections::{BTreeMap, BTreeSet};

use crate::ceilings::{
    BANNED_IN_SENTENCES, BANNED_NAMES_ALLOWED, BANNED_WORDS, PARTICIPLES, TYPES_THAT_REPEAT,
};
use crate::prose::percent;
use crate::tokens::{Token, item_length};
use crate::tree::{Tree, package};

const TYPE_KEYWORDS: &[&str] = &["struct", "enum", "trait", "type", "union"];
const ITEM_KEYWORDS: &[&str] = &["fn", "const", "static", "mod"];

/// Words from which on a name is a sentence: that of a test.
const SENTENCE_WORDS: usize = 4;

/// Type name → packages and files that define it, once for each definition.
type Definitions<'a> = BTreeMap<&'a str, Vec<&'a str>>;

/// Types of each package that are items of a module: associated types are left out.
pub fn types(tree: &Tree) -> BTreeMap<&'static str, Definitions<'_>> {
    let mut types: BTreeMap<_, Definitions<'_>> = BTreeMap::new();
    for (path, tokens) in &tree.code {
        let of_package = types.entry(package(path)).or_default();
        for name in defined(tokens, TYPE_KEYWORDS) {
            of_package.entry(name).or_default().push(path);
        }
    }
    types
}

/// Names after one of `keywords`, outside of `impl` and `trait` blocks.
fn defined<'a>(tokens: &'a [Token], keywords: &[&str]) -> Vec<&'a str> {
    let mut names = Vec::new();
    let mut at = 0;
    while at + 1 < tokens.len() {
        let (token, next) = (&tokens[at], &tokens[at + 1]);
        if keywords.contains(&token.text.as_str()) && next.is_word() {
            names.push(next.text.as_str());
        }
        let opens_block = ["impl", "trait"].contains(&token.text.as_str());
        let is_item = at == 0
            || [";", "}", "]", "pub", ")", "unsafe"]
                .iter()
                .any(|t| tokens[at - 1].is(t));
        at += if opens_block && is_item {
            item_length(&tokens[at..])
        } else {
            1
        };
    }
    names
}

/// Shares of a package's type names that the ratchets bound.
#[derive(Clone, Debug, Default)]
pub struct TypeNames {
    pub all: usize,
    pub repeated: Vec<String>,
    pub participles: Vec<String>,
}

impl TypeNames {
    pub fn of(definitions: &Definitions<'_>) -> TypeNames {
        let repeated = definitions
            .iter()
            .filter(|(name, files)| files.len() > 1 && !TYPES_THAT_REPEAT.contains(name));
        let participles = definitions.keys().filter(|name| is_participle(name));
        TypeNames {
            all: definitions.len(),
            repeated: repeated.map(|(name, _)| (*name).to_owned()).collect(),
            participles: participles.map(|name| (*name).to_owned()).collect(),
        }
    }

    pub fn repeated_percent(&self) -> f64 {
        percent(self.repeated.len(), self.all)
    }

    pub fn participle_percent(&self) -> f64 {
        percent(self.participles.len(), self.all)
    }
}

/// A single word that is a participle, a particle or a verb: those listed, and regular ones in `-ed`.
fn is_participle(name: &str) -> bool {
    let is_one_word = name.chars().filter(char::is_ascii_uppercase).count() == 1;
    let is_regular = name.ends_with("ed") && !["Feed", "Need", "Seed", "Speed"].contains(&name);
    is_one_word && (is_regular || PARTICIPLES.contains(&name))
}

/// Adds offences for participle names, and for names that are used for several types.
pub fn type_names(
    tree: &Tree,
    participle_percent_max: f64,
    repeated: &[(&str, &str)],
    found: &mut Vec<String>,
) {
    for (package, definitions) in types(tree) {
        let names = TypeNames::of(&definitions);
        if names.participle_percent() > participle_percent_max {
            found.push(format!(
                "{package}: {:.1} % of the type names are participles, over {participle_percent_max} %: {}",
                names.participle_percent(),
                names.participles.join(", ")
            ));
        }
        let listed = |name: &&String| !repeated.contains(&(package, name.as_str()));
        for name in names.repeated.iter().filter(listed) {
            found.push(format!(
                "{package}: type name `{name}` is used twice: {}",
                definitions[name.as_str()].join(", ")
            ));
        }
    }
}

/// Adds an offence for each defined name that has a banned word in it.
pub fn banned_words(tree: &Tree, max: usize, found: &mut Vec<String>) {
    let names = banned(tree);
    if names.len() > max {
        found.push(format!(
            "{} names with banned words, over {max}: {}",
            names.len(),
            names.into_iter().collect::<Vec<_>>().join(", ")
        ));
    }
}

/// Names of items, fields, parameters and variables with a banned word, each with its file. Tests count.
///
/// The name of a test is a sentence: only the images among the words are banned in it.
pub fn banned(tree: &Tree) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let is_production = |path: &str, name: &Token| {
        let tokens = tree.code.get(path);
        tokens.is_some_and(|tokens| tokens.iter().any(|token| token.text == name.text))
    };
    for (path, tokens) in &tree.with_tests {
        for at in 0..tokens.len() {
            let name = &tokens[at];
            if is_definition(tokens, at) && !BANNED_NAMES_ALLOWED.contains(&name.text.as_str()) {
                let words = words(&name.text);
                let is_sentence = words.len() >= SENTENCE_WORDS && !is_production(path, name);
                let banned = if is_sentence {
                    BANNED_IN_SENTENCES
                } else {
                    BANNED_WORDS
                };
                if words.iter().any(|word| banned.contains(&word.as_str())) {
                    names.insert(format!("{path}: `{}`", name.text));
                }
            }
        }
    }
    names
}

/// A name after an item's keyword or `let`, or before the `:` of a field or parameter.
fn is_definition(tokens: &[Token], at: usize) -> bool {
    if !tokens[at].is_word() || tokens[at].text.starts_with('"') {
        return false;
    }
    let before = at.checked_sub(1).map_or("", |at| tokens[at].text.as_str());
    let after = tokens.get(at + 1).map_or("", |token| token.text.as_str());
    TYPE_KEYWORDS.contains(&before)
        || ITEM_KEYWORDS.contains(&before)
        || ["let", "mut"].contains(&before)
        || after == ":" && ["{", "(", ",", "pub", ")", "]", "mut"].contains(&before)
}

/// `set_queueWait` → set, queue, wait.
fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    for c in name.chars() {
        if c == '_' || c.is_ascii_uppercase() {
            words.push(String::new());
        }
        if c != '_'
            && let Some(word) = words.last_mut()
        {
            word.push(c.to_ascii_lowercase());
        }
    }
    words
}
