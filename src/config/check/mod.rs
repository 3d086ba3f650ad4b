//! Semantic check: rules that the schema cannot express, as they take two keys or a second look.
//!
//! Checking does not stop at the first finding and does not need the file to be well-formed
//! elsewhere. Values of the wrong type are skipped (the structural check names them), and absent
//! keys have their defaults. Warnings do not keep a file from being used.

mod accounts;
mod billing;
mod cluster;
mod discovery;
mod endpoints;
mod fallbacks;
mod limits;
mod listen;
mod models;
mod plugins;

use infergate_core::AccountId;

use super::document::{Cursor, DocumentNode};
use super::problem::Problems;
use crate::telemetry::log;

/// Reports what cannot work to `problems` and what probably is not meant to `warnings`.
pub(super) fn check(root: &DocumentNode, problems: &mut Problems, warnings: &mut Problems) {
    let root = Cursor::root(root);
    listen::check(&root, problems, warnings);
    cluster::check(&root, problems);
    limits::check(&root, problems);
    check_log(&root, problems);
    let accounts = accounts::check(&root, problems, warnings);
    let models = models::check(&root, &accounts, problems, warnings);
    accounts::check_models(&root, &models, warnings);
    check_readiness(&root, &models, problems);
    fallbacks::check(&root, &models, problems, warnings);
    let plugins = plugins::check(&root, problems, warnings);
    plugins::check_models(&root, &plugins, problems, warnings);
    billing::check(&root, problems, warnings);
}

fn check_log(root: &Cursor<'_>, problems: &mut Problems) {
    if let Some(level) = root.key("log").and_then(|log| log.key("level"))
        && let Some(text) = level.text()
        && let Err(bad) = log::check_level(text)
    {
        problems.add(level.problem(bad.to_string()));
    }
}

fn check_readiness(root: &Cursor<'_>, models: &models::ModelNames, problems: &mut Problems) {
    let Some(readiness) = root.key("readiness") else {
        return;
    };
    for entry in readiness.list("require_models") {
        let Some(id) = entry.text().filter(|id| *id != "*" && !models.has(id)) else {
            continue;
        };
        problems.add(entry.problem(match models.id_of_alias(id) {
            Some(of) => format!("`{id}` is another name of `{of}`: write the id"),
            None => format!("no model has the id {id:?}: correct it, or write \"*\" for all"),
        }));
    }
}

/// Returns true when requests without a key are served.
fn anonymous_allowed(root: &Cursor<'_>) -> bool {
    root.text_of("anonymous") == Some("allow")
}

fn is_anonymous(id: &str) -> bool {
    id == AccountId::ANONYMOUS
}

/// A name travels in URLs, header values, metric labels and log lines.
const NAME_BYTES_MAX: usize = 256;

/// Fault that makes `name` unfit as a name, if any.
fn name_fault(name: &str, unfit: &[char]) -> Option<String> {
    if name.is_empty() {
        return Some("must not be empty".to_owned());
    }
    if name.len() > NAME_BYTES_MAX {
        return Some(format!("longer than {NAME_BYTES_MAX} bytes"));
    }
    if let Some(bad) = name
        .chars()
        .find(|c| !c.is_ascii_graphic() || unfit.contains(c))
    {
        return Some(format!(
            "{bad:?} cannot stand in a name: use letters, digits and -_.@:/"
        ));
    }
    None
}
