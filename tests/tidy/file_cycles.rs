//! Cycles of files within a module: the largest set of files that all reach each other.
//!
//! Not the cycles of modules: layers are checked in `layers.rs`.

use std::collections::{BTreeMap, BTreeSet};

use crate::modules::Modules;
use crate::tree::{Tree, module};

/// Files that may import each other in a circle, where no ceiling of its own is listed.
const CYCLE_FILES_MAX: usize = 2;

/// Adds an offence for each module whose largest cycle has too many files.
pub fn file_cycles(tree: &Tree, ceilings: &[(&str, usize)], found: &mut Vec<String>) {
    for (module, cycle) in largest_cycles(tree) {
        let listed = ceilings.iter().find(|(name, _)| *name == module);
        let max = listed.map_or(CYCLE_FILES_MAX, |(_, max)| *max);
        if cycle.len() > max {
            found.push(format!(
                "module `{module}`: {} files import each other in a cycle, over {max}: {}",
                cycle.len(),
                cycle.join(", ")
            ));
        }
    }
}

/// The largest cycle of each module that has one, by the module's name (`core::` and `tasks::` for those of the other packages).
pub fn largest_cycles(tree: &Tree) -> BTreeMap<String, Vec<String>> {
    let mut largest = BTreeMap::new();
    let packages = [
        ("src/core/", "core::", Modules::of("src/core/", tree.core())),
        (
            "src/tasks/",
            "tasks::",
            Modules::of("src/tasks/", tree.tasks()),
        ),
        ("src/", "", Modules::of("src/", tree.shell())),
    ];
    for (root, prefix, modules) in &packages {
        let mut graphs: BTreeMap<&str, BTreeMap<&str, BTreeSet<&str>>> = BTreeMap::new();
        for (from, to) in modules.uses() {
            if module(from) == module(to) && from.starts_with(root) {
                let graph = graphs.entry(module(from)).or_default();
                graph.entry(from).or_default().insert(to);
            }
        }
        for (name, graph) in graphs {
            let cycle = largest_cycle(&graph);
            if cycle.len() > 1 {
                let cycle = cycle.iter().map(|file| (*file).to_owned()).collect();
                largest.insert(format!("{prefix}{name}"), cycle);
            }
        }
    }
    largest
}

fn largest_cycle<'a>(graph: &BTreeMap<&'a str, BTreeSet<&'a str>>) -> Vec<&'a str> {
    let reached: BTreeMap<&str, BTreeSet<&str>> = graph
        .keys()
        .map(|file| (*file, reached_from(graph, file)))
        .collect();
    let cycles = reached.iter().map(|(file, others)| {
        let back = |other: &&&str| reached.get(**other).is_some_and(|from| from.contains(file));
        others.iter().filter(back).copied().collect::<Vec<_>>()
    });
    cycles.max_by_key(Vec::len).unwrap_or_default()
}

fn reached_from<'a>(graph: &BTreeMap<&'a str, BTreeSet<&'a str>>, file: &str) -> BTreeSet<&'a str> {
    let mut reached = BTreeSet::new();
    let mut open: Vec<&str> = graph[file].iter().copied().collect();
    while let Some(next) = open.pop() {
        if reached.insert(next) {
            open.extend(graph.get(next).into_iter().flatten());
        }
    }
    reached
}
