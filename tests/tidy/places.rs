//! Places of foreign libraries, of starting tasks, of `unsafe` and of single names.
//!
//! Not layers: each table names the files where a thing may stand.

use crate::tokens::tokens;
use crate::tree::{Source, Tree};
use crate::{FOREIGN, NAMES_AT_HOME, SPAWNERS, UNSAFE};

pub fn foreign_libraries(tree: &Tree, found: &mut Vec<String>) {
    for (path, tokens) in &tree.code {
        for (at, token) in tokens.iter().enumerate() {
            let is_path = tokens.get(at + 1).is_some_and(|next| next.is("::"))
                && !(at > 0 && tokens[at - 1].is("::"));
            let Some((library, homes)) = FOREIGN
                .iter()
                .find(|(library, _)| is_path && belongs(&token.text, library))
            else {
                continue;
            };
            if !homes.iter().any(|home| is_below(path, home)) {
                found.push(format!(
                    "{path}:{}: `{}` may be named in {} only: one module per foreign library ({library})",
                    token.line,
                    token.text,
                    homes.join(", ")
                ));
            }
        }
    }
}

/// `pingora_core` belongs to `pingora`, `redistribute` not to `redis`.
fn belongs(name: &str, library: &str) -> bool {
    name.strip_prefix(library)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('_'))
}

/// `src/app` holds `src/app.rs` and all of `src/app/`.
fn is_below(path: &str, home: &str) -> bool {
    path.strip_prefix(home)
        .is_some_and(|rest| matches!(rest, "" | ".rs") || rest.starts_with('/'))
}

pub fn spawns(tree: &Tree, found: &mut Vec<String>) {
    for (path, tokens) in &tree.code {
        if SPAWNERS.iter().any(|home| is_below(path, home)) {
            continue;
        }
        for pair in tokens.windows(2) {
            let starts =
                ["spawn", "spawn_blocking", "spawn_local"].contains(&pair[0].text.as_str());
            if starts && pair[1].is("(") {
                found.push(format!(
                    "{path}:{}: `{}(`: only {} may start tasks and threads",
                    pair[0].line,
                    pair[0].text,
                    SPAWNERS.join(", ")
                ));
            }
        }
    }
}

/// `unsafe`, and leave for it, stand in the named files only; tests are no exception.
pub fn unsafety(sources: &[Source], found: &mut Vec<String>) {
    let rust = sources.iter().filter(|source| source.path.ends_with(".rs"));
    for source in rust.filter(|source| !UNSAFE.contains(&source.path.as_str())) {
        let tokens = tokens(&source.text);
        for token in tokens
            .iter()
            .filter(|token| token.is("unsafe") || token.is("unsafe_code"))
        {
            found.push(format!(
                "{}:{}: `{}` may stand in {} only",
                source.path,
                token.line,
                token.text,
                UNSAFE.join(", ")
            ));
        }
    }
}

/// Names of types that belong to a few modules only, in imports and in code.
pub fn names_at_home(tree: &Tree, found: &mut Vec<String>) {
    for (path, tokens) in &tree.code {
        for token in tokens {
            if let Some((name, homes)) = NAMES_AT_HOME.iter().find(|(name, _)| token.is(name))
                && !homes.iter().any(|home| is_below(path, home))
            {
                found.push(format!(
                    "{path}:{}: `{name}` may be named in {} only",
                    token.line,
                    homes.join(", ")
                ));
            }
        }
    }
}
