//! The glossary names every type by which the modules of the request path meet.
//!
//! Not a check of its sentences: a type is covered when its name stands there as code.

use std::collections::BTreeSet;

use crate::names::types;
use crate::paths::paths;
use crate::tree::{Tree, module};

/// Modules whose types must be in the glossary once another module uses them.
const MODULES: &[&str] = &["downstream", "peer", "pipeline", "tls", "upstream"];

/// Adds an offence when more than `max` types are missing from `glossary`.
pub fn glossary(tree: &Tree, glossary: &str, max: usize, found: &mut Vec<String>) {
    let missing = missing(tree, glossary);
    if missing.len() > max {
        found.push(format!(
            "docs/glossary.md: {} types are missing, over {max}: {}",
            missing.len(),
            missing.join(", ")
        ));
    }
}

/// Types of [`MODULES`] that another module names and the glossary does not.
pub fn missing(tree: &Tree, glossary: &str) -> Vec<String> {
    let explained: BTreeSet<&str> = glossary.split('`').skip(1).step_by(2).collect();
    let imported = imported(tree);
    let mut missing = Vec::new();
    for (name, files) in types(tree).get("src").into_iter().flatten() {
        let home = module(files[0]);
        if MODULES.contains(&home)
            && !explained.contains(name)
            && imported.contains(&(home, (*name).to_owned()))
        {
            missing.push((*name).to_owned());
        }
    }
    missing
}

/// (module, name) of each path by which a file of another module names an item of [`MODULES`].
fn imported(tree: &Tree) -> BTreeSet<(&'static str, String)> {
    let mut imported = BTreeSet::new();
    for (file, tokens) in tree.shell() {
        for path in paths(tokens) {
            for (at, segment) in path.segments.iter().enumerate() {
                let home = MODULES.iter().find(|home| *home == segment);
                if let Some(home) = home.filter(|home| **home != module(file)) {
                    let below = path.segments[at + 1..].iter();
                    imported.extend(below.map(|name| (*home, name.clone())));
                }
            }
        }
    }
    imported
}
