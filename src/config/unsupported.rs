//! Keys that are planned, and keys that were renamed: refused by name, not as typing mistakes.
//!
//! The meaning of these keys is unknown here. A refused key is taken out of the tree, so that later
//! checks report nothing more about it.

use serde::Serialize;

use super::document::{Cursor, DocumentNode, NodeData};
use super::problem::Problems;

/// Keys that are not supported, by the mapping they may be in.
const ROOT_KEYS: &[&str] = &["tls"];
const LISTEN_KEYS: &[&str] = &["tls"];

/// Keys of a model that have another name now: the former and the present one.
const RENAMED_MODEL_KEYS: &[(&str, &str)] = &[("ladder", "fallbacks")];

/// The word serde writes for `value`.
pub(super) fn word<T: Serialize>(value: T) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => word,
        _ => String::new(),
    }
}

/// Reports what is not supported and takes it out of the tree.
pub(super) fn refuse(root: &mut DocumentNode, problems: &mut Problems) {
    report(&Cursor::root(root), problems);
    remove(root);
}

fn report(root: &Cursor<'_>, problems: &mut Problems) {
    report_keys(root, ROOT_KEYS, problems);
    if let Some(listen) = root.key("listen") {
        report_keys(&listen, LISTEN_KEYS, problems);
    }
    for model in root.list("models") {
        report_renamed(&model, RENAMED_MODEL_KEYS, problems);
    }
}

fn report_keys(map: &Cursor<'_>, keys: &[&str], problems: &mut Problems) {
    for key in keys {
        if let Some(found) = map.key(key) {
            problems.add(found.problem(format!("`{key}` is not supported yet: remove it")));
        }
    }
}

fn report_renamed(map: &Cursor<'_>, renamed: &[(&str, &str)], problems: &mut Problems) {
    for (former, present) in renamed {
        if let Some(found) = map.key(former) {
            problems.add(found.problem(format!(
                "`{former}` is called `{present}` now: rename the key"
            )));
        }
    }
}

fn remove(root: &mut DocumentNode) {
    remove_keys(root, ROOT_KEYS);
    if let Some(listen) = root.get_mut("listen") {
        remove_keys(listen, LISTEN_KEYS);
    }
    if let Some(models) = root.get_mut("models") {
        for model in models.items_mut() {
            for (former, _) in RENAMED_MODEL_KEYS {
                remove_keys(model, &[former]);
            }
        }
    }
}

fn remove_keys(map: &mut DocumentNode, keys: &[&str]) {
    if let NodeData::Map(entries) = &mut map.data {
        entries.retain(|entry| !keys.contains(&entry.key.as_str()));
    }
}
