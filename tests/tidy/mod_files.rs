//! `mod.rs` files hold docs, declarations and re-exports only.

use crate::tokens::{Token, item_length};
use crate::tree::Tree;

/// Adds an offence for each `mod.rs` with code that is not on the list.
pub fn mod_files(tree: &Tree, allowed: &[&str], found: &mut Vec<String>) {
    for path in with_code(tree) {
        if !allowed.contains(&path.as_str()) {
            found.push(format!(
                "{path}: holds code: only docs, `mod` and `use` belong here"
            ));
        }
    }
}

/// The `mod.rs` files of the production code with any item besides `mod` and `use`.
pub fn with_code(tree: &Tree) -> Vec<String> {
    tree.code
        .iter()
        .filter(|(path, tokens)| path.ends_with("/mod.rs") && has_code(tokens))
        .map(|(path, _)| path.clone())
        .collect()
}

fn has_code(mut tokens: &[Token]) -> bool {
    while let Some(first) = tokens.first() {
        // What a brace list leaves of its `use`.
        if first.is(";") {
            tokens = &tokens[1..];
            continue;
        }
        let length = item_length(tokens);
        let item = &tokens[..length];
        let keyword = item.iter().find(|token| {
            [
                "mod",
                "use",
                "fn",
                "struct",
                "enum",
                "impl",
                "trait",
                "type",
                "const",
                "static",
                "macro_rules",
            ]
            .contains(&token.text.as_str())
        });
        if !keyword.is_some_and(|keyword| keyword.is("mod") || keyword.is("use")) {
            return true;
        }
        tokens = &tokens[length..];
    }
    false
}
