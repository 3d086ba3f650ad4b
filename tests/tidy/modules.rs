//! Resolution of a path to its file, within one package.
//!
//! Not a compiler: inline modules and macros count as their file, foreign paths as nothing.

use std::collections::{BTreeMap, BTreeSet};

use crate::paths::{NamedPath, paths};
use crate::tokens::Token;

/// Re-exports that are followed from file to file.
const REEXPORTS_MAX: usize = 6;

/// The files of one package.
pub struct Modules<'a> {
    /// Module path → file.
    files: BTreeMap<Vec<String>, &'a str>,
    /// File → module path, its paths and the names of its items.
    contents: BTreeMap<&'a str, Contents>,
}

struct Contents {
    module: Vec<String>,
    paths: Vec<NamedPath>,
    items: BTreeSet<String>,
}

impl<'a> Modules<'a> {
    /// Reads the files below `root`, such as `src/core/`.
    pub fn of(root: &str, files: impl Iterator<Item = (&'a String, &'a Vec<Token>)>) -> Self {
        let mut modules = Modules {
            files: BTreeMap::new(),
            contents: BTreeMap::new(),
        };
        for (path, tokens) in files {
            let module = module_of(path.strip_prefix(root).unwrap_or(path));
            modules.files.insert(module.clone(), path);
            let contents = Contents {
                module,
                paths: paths(tokens),
                items: items(tokens),
            };
            modules.contents.insert(path, contents);
        }
        modules
    }

    /// Returns every pair (file, other file of the package that it uses). Re-exports are no use.
    pub fn uses(&self) -> BTreeSet<(&'a str, &'a str)> {
        let mut uses = BTreeSet::new();
        for (file, contents) in &self.contents {
            for path in contents.paths.iter().filter(|path| !path.is_reexport) {
                if let Some(target) = self.target(&contents.module, &path.segments, REEXPORTS_MAX)
                    && target != *file
                {
                    uses.insert((*file, target));
                }
            }
        }
        uses
    }

    /// The file that defines what `segments` names, seen from `module`.
    fn target(&self, module: &[String], segments: &[String], depth: usize) -> Option<&'a str> {
        let mut base = module.to_vec();
        let mut rest = segments;
        match rest.first()?.as_str() {
            "crate" => base.clear(),
            "self" => {}
            "super" => drop(base.pop()?),
            child => base.push(child.to_owned()),
        }
        rest = &rest[1..];
        while let [first, tail @ ..] = rest {
            let below = [base.as_slice(), std::slice::from_ref(first)].concat();
            if first == "super" {
                base.pop()?;
            } else if self.files.contains_key(&below) {
                base = below;
            } else {
                break;
            }
            rest = tail;
        }
        let file = *self.files.get(&base)?;
        match rest.first() {
            Some(item) if depth > 0 => self.definition(file, item, depth).or(Some(file)),
            _ => Some(file),
        }
    }

    /// The file that `item` of `file` comes from: itself, or one that it re-exports from.
    fn definition(&self, file: &'a str, item: &str, depth: usize) -> Option<&'a str> {
        let contents = &self.contents[file];
        if contents.items.contains(item) {
            return Some(file);
        }
        let reexports = contents.paths.iter().filter(|path| path.is_reexport);
        reexports
            .filter_map(|path| match path.segments.split_last()? {
                (last, before) if last == "*" => {
                    let source = self.target(&contents.module, before, 0)?;
                    self.definition(source, item, depth - 1)
                }
                _ if path.alias == item => self.target(&contents.module, &path.segments, depth - 1),
                _ => None,
            })
            .next()
    }
}

/// `gate/mod.rs` and `gate.rs` → `[gate]`; a root → `[]`.
fn module_of(path: &str) -> Vec<String> {
    let mut parts: Vec<String> = path
        .trim_end_matches(".rs")
        .split('/')
        .map(str::to_owned)
        .collect();
    if matches!(parts.last().map(String::as_str), Some("mod" | "lib")) {
        parts.pop();
    }
    parts
}

/// Names that the file defines, nested ones included.
fn items(tokens: &[Token]) -> BTreeSet<String> {
    const KEYWORDS: &[&str] = &[
        "struct",
        "enum",
        "trait",
        "type",
        "fn",
        "const",
        "static",
        "union",
        "macro_rules",
    ];
    tokens
        .windows(3)
        .filter(|window| KEYWORDS.contains(&window[0].text.as_str()))
        .map(|window| &window[1 + usize::from(window[1].is("!"))])
        .filter(|name| name.is_word())
        .map(|name| name.text.clone())
        .collect()
}
