//! Layers of modules: who may import whom, and that the graph has no cycle.
//!
//! Not the files within a module, which `file_cycles.rs` checks.

use std::collections::{BTreeMap, BTreeSet};

use crate::modules::Modules;
use crate::tokens::Token;
use crate::tree::{Source, Tree, module};
use crate::{
    CORE_DEPENDENCIES, CORE_LAYERS, CORE_NEVER, CORE_NEVER_OF_STD, SHELL_LAYERS, SIMULATE,
    SIMULATE_USERS, TASKS_DEPENDENCIES, TASKS_LAYERS,
};

/// Import edges against the tables, and the graph against cycles.
pub fn imports(tree: &Tree, found: &mut Vec<String>) {
    let shell = edges(tree.shell(), &["crate", "infergate"], &BTreeMap::new());
    check_layers("shell", &shell, SHELL_LAYERS, found);
    let exports = exports_of_the_core(tree);
    let core = edges(tree.core(), &["crate"], &exports);
    check_layers("core", &core, CORE_LAYERS, found);
    let tasks = edges(tree.tasks(), &["crate"], &BTreeMap::new());
    check_layers("tasks", &tasks, TASKS_LAYERS, found);
    for (path, tokens) in tree.shell().filter(|(path, _)| module(path) == SIMULATE) {
        for edge in paths_from(tokens, &["infergate_core"], path) {
            let core_module = exports.get(&edge.to).unwrap_or(&edge.to);
            if !["api", "time", "id", "websocket"].contains(&core_module.as_str()) {
                found.push(format!(
                    "{path}:{}: {SIMULATE} sees the wire only, not core::{core_module}",
                    edge.line
                ));
            }
        }
    }
}

/// Folders of a module against their order: a folder imports from folders before it only, and a file beside
/// the folders from none of them.
pub fn inner_layers(tree: &Tree, table: &[(&str, &[&str])], found: &mut Vec<String>) {
    let modules = Modules::of("src/", tree.shell());
    for (from, to) in modules.uses() {
        for (home, folders) in table {
            let layer = |path: &str| {
                let mut parts = path.strip_prefix(home)?.strip_prefix('/')?.split('/');
                let first = parts.next()?;
                match folders.iter().position(|folder| *folder == first) {
                    Some(at) => Some(at + 1),
                    None => (parts.next().is_none() && first != "mod.rs").then_some(0),
                }
            };
            if let (Some(low), Some(high)) = (layer(from), layer(to))
                && high > low
            {
                found.push(format!("{from}: imports {to}, a layer above its own"));
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

/// Number of `super` that lead from the file to the crate's root.
fn module_depth(path: &str) -> usize {
    let below = path
        .strip_prefix("src/core/")
        .or(path.strip_prefix("src/tasks/"))
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
    let layer = |module: &str| layers.iter().position(|layer| layer.contains(&module));
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
                "{path}:{line}: {package} module `{from}` may not import `{to}`; see the table in tests/tidy.rs"
            ));
        }
    }
    let mut graph: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for edge in edges {
        graph.entry(&edge.from).or_default().insert(&edge.to);
    }
    if let Some(cycle) = cycle(&graph) {
        found.push(format!(
            "{package} modules import each other in a cycle: {}",
            cycle.join(" → ")
        ));
    }
}

/// Some cycle of the graph: what is left after taking away, again and again, modules that import
/// nothing that is left, walked until a module comes twice.
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
        if let Some(begin) = walk.iter().position(|name| *name == next) {
            walk.push(next);
            return Some(
                walk[begin..]
                    .iter()
                    .map(|name| (*name).to_owned())
                    .collect(),
            );
        }
        walk.push(next);
    }
}

pub fn core_is_pure(tree: &Tree, sources: &[Source], found: &mut Vec<String>) {
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
    dependencies("src/core/Cargo.toml", CORE_DEPENDENCIES, sources, found);
}

/// `infergate-tasks` has no operating system below it, which `no_std` makes the compiler hold.
pub fn tasks_are_pure(sources: &[Source], found: &mut Vec<String>) {
    let root = sources
        .iter()
        .find(|source| source.path == "src/tasks/lib.rs");
    if root.is_some_and(|root| !root.text.lines().any(|line| line == "#![no_std]")) {
        found.push("src/tasks/lib.rs: is not `no_std`".to_owned());
    }
    dependencies("src/tasks/Cargo.toml", TASKS_DEPENDENCIES, sources, found);
}

/// Checks the dependencies of the manifest `path` against a list.
fn dependencies(path: &str, allowed: &[&str], sources: &[Source], found: &mut Vec<String>) {
    let Some(manifest) = sources.iter().find(|source| source.path == path) else {
        return;
    };
    let mut section = "";
    for line in manifest.text.lines().map(str::trim) {
        if line.starts_with('[') {
            section = line;
        } else if section == "[dependencies]"
            && let Some((name, _)) = line.split_once('=')
            && !allowed.contains(&name.trim())
        {
            found.push(format!(
                "{}: may not depend on `{}`",
                manifest.path,
                name.trim()
            ));
        }
    }
}
