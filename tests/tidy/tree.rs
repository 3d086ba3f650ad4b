//! The tree of a repository: which file is which module, which are reached, which are test code.
//!
//! Not a check. Roots come from the manifests, the rest from `mod` declarations.

use std::collections::{BTreeMap, BTreeSet};

use crate::tokens::{Token, tokens, without_tests};

/// A file of the repository: a `.rs` file or a `Cargo.toml`.
#[derive(Clone, Debug)]
pub struct Source {
    pub path: String,
    pub text: String,
}

/// Production code as tokens, and which files are reached at all.
pub struct Tree {
    /// Path → tokens with test code taken out. Only files under `src`, not reached through tests
    /// alone.
    pub code: BTreeMap<String, Vec<Token>>,
    /// The same of every reached file, with its test code.
    pub with_tests: BTreeMap<String, Vec<Token>>,
    /// Every file some root names, tests included.
    pub reached: BTreeSet<String>,
}

impl Tree {
    pub fn of(sources: &[Source]) -> Tree {
        let all: BTreeMap<&str, Vec<Token>> = sources
            .iter()
            .filter(|source| source.path.ends_with(".rs"))
            .map(|source| (source.path.as_str(), tokens(&source.text)))
            .collect();
        let roots: Vec<String> = sources
            .iter()
            .filter(|source| source.path.ends_with("Cargo.toml"))
            .flat_map(|manifest| roots(&manifest.path, &manifest.text))
            .collect();
        let reached = reach(&all, &roots, |tokens| tokens.to_vec());
        let production = reach(&all, &roots, without_tests);
        let code = production
            .into_iter()
            .filter(|path| path.starts_with("src/"))
            .map(|path| (path.clone(), without_tests(&all[path.as_str()])))
            .collect();
        let with_tests = reached
            .iter()
            .filter_map(|path| Some((path.clone(), all.get(path.as_str())?.clone())))
            .collect();
        Tree {
            code,
            with_tests,
            reached,
        }
    }

    pub fn core(&self) -> impl Iterator<Item = (&String, &Vec<Token>)> {
        self.code
            .iter()
            .filter(|(path, _)| package(path) == "src/core")
    }

    pub fn tasks(&self) -> impl Iterator<Item = (&String, &Vec<Token>)> {
        self.code
            .iter()
            .filter(|(path, _)| package(path) == "src/tasks")
    }

    pub fn shell(&self) -> impl Iterator<Item = (&String, &Vec<Token>)> {
        self.code.iter().filter(|(path, _)| package(path) == "src")
    }
}

/// Folders of the packages; the root package is `src` without the others.
const PACKAGES: &[&str] = &["src/core", "src/tasks"];

/// The package of a file.
pub fn package(path: &str) -> &'static str {
    let is_inside = |root: &&&str| {
        path.strip_prefix(**root)
            .is_some_and(|rest| rest.starts_with('/'))
    };
    PACKAGES.iter().find(is_inside).copied().unwrap_or("src")
}

/// The module of a file: the first part of its path below its package.
pub fn module(path: &str) -> &str {
    let below = path
        .strip_prefix(package(path))
        .map_or(path, |below| below.trim_start_matches('/'));
    let end = below.find('/').unwrap_or(below.len());
    below[..end].trim_end_matches(".rs")
}

/// The files of `all` that `mod` declarations lead to from `roots`.
fn reach(
    all: &BTreeMap<&str, Vec<Token>>,
    roots: &[String],
    view: impl Fn(&[Token]) -> Vec<Token>,
) -> BTreeSet<String> {
    let mut reached = BTreeSet::new();
    let mut pending: Vec<(String, bool)> = roots.iter().map(|root| (root.clone(), true)).collect();
    while let Some((path, is_root)) = pending.pop() {
        let Some(tokens) = all.get(path.as_str()) else {
            continue;
        };
        if !reached.insert(path.clone()) {
            continue;
        }
        for child in child_files(&path, is_root, &view(tokens)) {
            pending.push((child, false));
        }
    }
    reached
}

/// Files in which the modules that `path` declares may be.
fn child_files(path: &str, is_root: bool, tokens: &[Token]) -> Vec<String> {
    let (directory, stem) = match path.rsplit_once('/') {
        Some((directory, name)) => (directory, name.trim_end_matches(".rs")),
        None => ("", path.trim_end_matches(".rs")),
    };
    let beside = if is_root || stem == "mod" {
        directory.to_owned()
    } else {
        joined(directory, stem)
    };
    let mut children = Vec::new();
    for (at, window) in tokens.windows(3).enumerate() {
        if !(window[0].is("mod") && window[1].is_word() && window[2].is(";")) {
            continue;
        }
        match path_attribute(&tokens[..at]) {
            Some(named) => children.push(joined(directory, &named)),
            None => {
                children.push(joined(&beside, &format!("{}.rs", window[1].text)));
                children.push(joined(&beside, &format!("{}/mod.rs", window[1].text)));
            }
        }
    }
    children
}

/// `#[path = "…"]` right before a `mod`, or before its `pub`.
fn path_attribute(before: &[Token]) -> Option<String> {
    let visibility = ["pub", "(", ")", "crate", "super"];
    let end = before
        .iter()
        .rposition(|token| !visibility.iter().any(|text| token.is(text)))?;
    let attribute = before.get(end.checked_sub(5)?..=end)?;
    let shape = ["#", "[", "path", "="];
    let fits = shape
        .iter()
        .zip(attribute)
        .all(|(text, token)| token.is(text));
    fits.then(|| attribute[4].text.trim_matches('"').to_owned())
}

/// The crate roots a manifest names: `path` of each target, or where cargo looks by default.
fn roots(manifest_path: &str, manifest: &str) -> Vec<String> {
    let directory = manifest_path
        .trim_end_matches("Cargo.toml")
        .trim_end_matches('/');
    let mut roots = vec![joined(directory, "build.rs")];
    let mut target: Option<(String, Option<String>, Option<String>)> = None;
    let mut close = |target: &mut Option<(String, Option<String>, Option<String>)>| {
        let Some((kind, name, path)) = target.take() else {
            return;
        };
        let path = match (path, name, kind.as_str()) {
            (Some(path), _, _) => path,
            (None, Some(name), "bench") => format!("benches/{name}.rs"),
            (None, Some(name), "test") => format!("tests/{name}.rs"),
            _ => return,
        };
        roots.push(joined(directory, &path));
    };
    for line in manifest.lines().map(str::trim) {
        if line.starts_with('[') {
            close(&mut target);
            let kind = line.trim_matches(['[', ']']);
            if ["lib", "bin", "test", "bench", "example"].contains(&kind) {
                target = Some((kind.to_owned(), None, None));
            }
        } else if let (Some(target), Some((key, value))) = (&mut target, line.split_once('=')) {
            let value = value.trim().trim_matches('"').to_owned();
            match key.trim() {
                "name" => target.1 = Some(value),
                "path" => target.2 = Some(value),
                _ => {}
            }
        }
    }
    close(&mut target);
    roots
}

/// `directory/path`, with `..` resolved.
fn joined(directory: &str, path: &str) -> String {
    let mut parts: Vec<&str> = directory
        .split('/')
        .filter(|part| !part.is_empty())
        .collect();
    for part in path.split('/') {
        match part {
            ".." => drop(parts.pop()),
            "." | "" => {}
            part => parts.push(part),
        }
    }
    parts.join("/")
}
