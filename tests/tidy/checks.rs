//! The checks together, and the short ones: headers, unfinished work, dead files.
//!
//! Each check is a function that adds a sentence for every offence. The rules are the tables in
//! `tests/tidy.rs`.

use crate::layers::{core_is_pure, imports, inner_layers, tasks_are_pure};
use crate::lengths::lengths;
use crate::places::{foreign_libraries, names_at_home, spawns, unsafety};
use crate::tree::{Source, Tree};
use crate::{INNER_LAYERS, LONG_FUNCTIONS, UNFINISHED};

/// Offences found in `sources`, a sentence each.
pub fn offences(sources: &[Source]) -> Vec<String> {
    let tree = Tree::of(sources);
    let mut found = Vec::new();
    headers(sources, &mut found);
    unfinished(sources, &mut found);
    dead_files(&tree, sources, &mut found);
    imports(&tree, &mut found);
    inner_layers(&tree, INNER_LAYERS, &mut found);
    core_is_pure(&tree, sources, &mut found);
    tasks_are_pure(sources, &mut found);
    foreign_libraries(&tree, &mut found);
    names_at_home(&tree, &mut found);
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
