//! The checks: each a function that adds a sentence for every offence it finds.
//!
//! The rules they hold to are the tables in `tests/tidy.rs`.

use std::collections::{BTreeMap, BTreeSet};

use crate::tokens::{Token, item_length, tokens};
use crate::tree::{Source, Tree};
use crate::{
    CORE_DEPENDENCIES, CORE_LAYERS, CORE_NEVER, CORE_NEVER_OF_STD, FILE_LINES_MAX, FOREIGN,
    FUNCTION_LINES_MAX, LONG_FUNCTIONS, SHELL_LAYERS, SIMULATE, SIMULATE_USERS, SPAWNERS,
    UNFINISHED, UNSAFE,
};

/// Offences found in `sources`, a sentence each.
pub fn offences(sources: &[Source]) -> Vec<String> {
    let tree = Tree::of(sources);
    let mut found = Vec::new();
    headers(sources, &mut found);
    unfinished(sources, &mut found);
    dead_files(&tree, sources, &mut found);
    imports(&tree, &mut found);
    core_is_pure(&tree, sources, &mut found);
    foreign_libraries(&tree, &mut found);
    spawns(&tree, &mut found);
    unsafety(sources, &mut found);
    lengths(&tree, LONG_FUNCTIONS, &mut found);
    found
}

fn headers(sources: &[Source], found: &mut Vec<String>) {
    for source in sources.iter().filter(|source| source.path.ends_with(".rs")) {
        if !source.text.starts_with("//! ") {
            found.push(format!(
                "{}: does not begin with `//!` and what it is",
                source.path
            ));
        }
    }
}

fn unfinished(sources: &[Source], found: &mut Vec<String>) {
    for source in sources.iter().filter(|source| source.path.ends_with(".rs")) {
        for (number, line) in source.text.lines().enumerate() {
            if let Some(mark) = UNFINISHED.iter().find(|mark| line.contains(**mark)) {
                found.push(format!(
                    "{}:{}: `{mark}`: finish it or leave it out",
                    source.path,
                    number + 1
                ));
            }
        }
    }
}

fn dead_files(tree: &Tree, sources: &[Source], found: &mut Vec<String>) {
    for source in sources.iter().filter(|source| source.path.ends_with(".rs")) {
        if !tree.reached.contains(&source.path) {
            found.push(format!(
                "{}: no `mod` and no manifest names this file",
                source.path
            ));
        }
    }
}

/// The room of a file: the first part of its path below `src` or `src/core`.
fn module(path: &str) -> &str {
    let below = path
        .strip_prefix("src/core/")
        .or(path.strip_prefix("src/"))
        .unwrap_or(path);
    below
        .split('/')
        .next()
        .unwrap_or(below)
        .trim_end_matches(".rs")
}

/// Import edges against the tables, and the graph against cycles.
fn imports(tree: &Tree, found: &mut Vec<String>) {
    let shell = edges(tree.shell(), &["crate", "infergate"], &BTreeMap::new());
    check_layers("shell", &shell, SHELL_LAYERS, found);
    let exports = exports_of_the_core(tree);
    let core = edges(tree.core(), &["crate"], &exports);
    check_layers("core", &core, CORE_LAYERS, found);
    for (path, tokens) in tree.shell().filter(|(path, _)| module(path) == SIMULATE) {
        for edge in paths_from(tokens, &["infergate_core"], path) {
            let core_room = exports.get(&edge.to).unwrap_or(&edge.to);
            if !["api", "time", "id"].contains(&core_room.as_str()) {
                found.push(format!(
                    "{path}:{}: {SIMULATE} sees the wire only, not core::{core_room}",
                    edge.line
                ));
            }
        }
    }
}

/// An import: a file uses another module.
struct Edge {
    path: String,
    line: usize,
    from: String,
    to: String,
}

/// Re-exports of the core's root: name → module.
fn exports_of_the_core(tree: &Tree) -> BTreeMap<String, String> {
    let mut exports = BTreeMap::new();
    let Some(tokens) = tree.code.get("src/core/lib.rs") else {
        return exports;
    };
    for (at, token) in tokens.iter().enumerate() {
        let (Some(home), Some(sep)) = (tokens.get(at + 1), tokens.get(at + 2)) else {
            break;
        };
        if token.is("use") && sep.is("::") {
            for (name, _) in names_after(tokens, at + 3) {
                exports.insert(name, home.text.clone());
            }
        }
    }
    exports
}

fn edges<'a>(
    files: impl Iterator<Item = (&'a String, &'a Vec<Token>)>,
    crates: &[&str],
    exports: &BTreeMap<String, String>,
) -> Vec<Edge> {
    let mut edges = Vec::new();
    for (path, tokens) in files.filter(|(path, _)| module(path) != "lib") {
        for mut edge in paths_from(tokens, crates, path) {
            if let Some(home) = exports.get(&edge.to) {
                edge.to = home.clone();
            }
            if edge.to != edge.from && edge.to != "self" {
                edges.push(edge);
            }
        }
    }
    edges
}

/// Every first name after `crate::` (or another of `crates`) or after enough `super::` to be there.
fn paths_from(tokens: &[Token], crates: &[&str], path: &str) -> Vec<Edge> {
    let depth = module_depth(path);
    let mut edges = Vec::new();
    let mut supers = 0;
    for (at, token) in tokens
        .iter()
        .enumerate()
        .filter(|(_, token)| !token.is("::"))
    {
        if !tokens.get(at + 1).is_some_and(|next| next.is("::")) {
            supers = 0;
            continue;
        }
        let continues = at > 0 && tokens[at - 1].is("::");
        let at_root = if token.is("super") {
            supers += 1;
            crates.contains(&"crate") && supers == depth
        } else {
            supers = 0;
            !continues && crates.contains(&token.text.as_str())
        };
        if at_root {
            for (to, line) in names_after(tokens, at + 2) {
                edges.push(Edge {
                    path: path.to_owned(),
                    line,
                    from: module(path).to_owned(),
                    to,
                });
            }
        }
    }
    edges
}

/// How many `super` lead from the file to the crate's root.
fn module_depth(path: &str) -> usize {
    let below = path
        .strip_prefix("src/core/")
        .or(path.strip_prefix("src/"))
        .unwrap_or(path);
    below
        .trim_end_matches(".rs")
        .split('/')
        .filter(|part| *part != "mod")
        .count()
}

/// The first names of the use-tree or path at `at`: one, or those of a brace list.
fn names_after(tokens: &[Token], at: usize) -> Vec<(String, usize)> {
    let Some(first) = tokens.get(at) else {
        return Vec::new();
    };
    if !first.is("{") {
        return vec![(first.text.clone(), first.line)];
    }
    let mut names = Vec::new();
    let mut depth = 0;
    for (token, before) in tokens[at..].iter().zip(&tokens[at.saturating_sub(1)..]) {
        match token.text.as_str() {
            "{" => depth += 1,
            "}" => depth -= 1,
            _ if depth == 1 && (before.is("{") || before.is(",")) => {
                names.push((token.text.clone(), token.line));
            }
            _ => {}
        }
        if depth == 0 {
            break;
        }
    }
    names
}

fn check_layers(package: &str, edges: &[Edge], layers: &[&[&str]], found: &mut Vec<String>) {
    let layer = |room: &str| layers.iter().position(|layer| layer.contains(&room));
    for Edge {
        path,
        line,
        from,
        to,
    } in edges
    {
        let allowed = match (layer(from), layer(to)) {
            (Some(from), Some(to)) => to < from,
            (_, _) if package == "shell" && to == SIMULATE => {
                SIMULATE_USERS.contains(&from.as_str())
            }
            _ => false,
        };
        if !allowed {
            found.push(format!(
                "{path}:{line}: {package} room `{from}` may not import `{to}`; see the table in tests/tidy.rs"
            ));
        }
    }
    let mut graph: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for edge in edges {
        graph.entry(&edge.from).or_default().insert(&edge.to);
    }
    if let Some(cycle) = cycle(&graph) {
        found.push(format!(
            "{package} rooms import each other in a cycle: {}",
            cycle.join(" → ")
        ));
    }
}

/// Some cycle of the graph: what is left after taking away, again and again, rooms that import
/// nothing that is left, walked until a room comes twice.
fn cycle(graph: &BTreeMap<&str, BTreeSet<&str>>) -> Option<Vec<String>> {
    let mut left = graph.clone();
    loop {
        let inside: BTreeSet<&str> = left.keys().copied().collect();
        let before = left.len();
        left.retain(|_, to| to.iter().any(|to| inside.contains(to)));
        if left.len() == before {
            break;
        }
    }
    let mut walk = vec![*left.keys().next()?];
    loop {
        let here = walk[walk.len() - 1];
        let next = *left[here].iter().find(|to| left.contains_key(**to))?;
        if let Some(begin) = walk.iter().position(|room| *room == next) {
            walk.push(next);
            return Some(
                walk[begin..]
                    .iter()
                    .map(|room| (*room).to_owned())
                    .collect(),
            );
        }
        walk.push(next);
    }
}

fn core_is_pure(tree: &Tree, sources: &[Source], found: &mut Vec<String>) {
    for (path, tokens) in tree.core() {
        for token in tokens
            .iter()
            .filter(|token| CORE_NEVER.contains(&token.text.as_str()))
        {
            found.push(format!(
                "{path}:{}: the core has no `{}`",
                token.line, token.text
            ));
        }
        for edge in paths_from(tokens, &["std"], path) {
            if CORE_NEVER_OF_STD.contains(&edge.to.as_str()) {
                found.push(format!(
                    "{path}:{}: the core has no `std::{}`",
                    edge.line, edge.to
                ));
            }
        }
    }
    let Some(manifest) = sources
        .iter()
        .find(|source| source.path == "src/core/Cargo.toml")
    else {
        return;
    };
    let mut section = "";
    for line in manifest.text.lines().map(str::trim) {
        if line.starts_with('[') {
            section = line;
        } else if section == "[dependencies]"
            && let Some((name, _)) = line.split_once('=')
            && !CORE_DEPENDENCIES.contains(&name.trim())
        {
            found.push(format!(
                "{}: the core may not depend on `{}`",
                manifest.path,
                name.trim()
            ));
        }
    }
}

fn foreign_libraries(tree: &Tree, found: &mut Vec<String>) {
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
                    "{path}:{}: `{}` may be named in {} only: one room per foreign library ({library})",
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

fn spawns(tree: &Tree, found: &mut Vec<String>) {
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
fn unsafety(sources: &[Source], found: &mut Vec<String>) {
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

pub fn lengths(tree: &Tree, long: &[(&str, &str, usize)], found: &mut Vec<String>) {
    let mut needed = BTreeSet::new();
    for (path, tokens) in &tree.code {
        for (name, line, lines) in functions(tokens) {
            let listed = long.iter().find(|(p, n, _)| p == path && *n == name);
            let max = listed.map_or(FUNCTION_LINES_MAX, |(_, _, max)| *max);
            if lines > max {
                found.push(format!(
                    "{path}:{line}: `{name}` has {lines} lines, over {max}: look for the second idea in it"
                ));
            }
            if lines > FUNCTION_LINES_MAX && listed.is_some() {
                needed.insert((path.as_str(), name));
            }
        }
        let last = tokens.last().map_or(0, |token| token.line);
        if last > FILE_LINES_MAX {
            found.push(format!(
                "{path}: {last} lines, over {FILE_LINES_MAX}: two files are in it"
            ));
        }
    }
    for (path, name, _) in long {
        if !needed.contains(&(*path, (*name).to_owned())) {
            found.push(format!(
                "{path}: `{name}` is short now: take it off the list of long functions"
            ));
        }
    }
}

/// Name, first line and number of lines of every function with a body.
fn functions(tokens: &[Token]) -> Vec<(String, usize, usize)> {
    let mut functions = Vec::new();
    for (at, pair) in tokens.windows(2).enumerate() {
        if !(pair[0].is("fn") && pair[1].is_word()) {
            continue;
        }
        let length = item_length(&tokens[at..]);
        let last = &tokens[at + length - 1];
        if last.is("}") {
            functions.push((
                pair[1].text.clone(),
                pair[0].line,
                last.line - pair[0].line + 1,
            ));
        }
    }
    functions
}
