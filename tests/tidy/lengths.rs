//! Lengths of functions and files, with the exceptions that are listed.

use std::collections::BTreeSet;

use crate::tokens::{Token, item_length};
use crate::tree::Tree;
use crate::{FILE_LINES_MAX, FUNCTION_LINES_MAX};

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
