//! `accounts`: names, key hashes and model patterns.
//!
//! Messages give only the place of a key or hash, never its text.

use std::collections::{HashMap, HashSet};

use infergate_core::model::{LIMITED_ID_BYTES_MAX, Task};

use super::models::ModelNames;
use super::names::{anonymous_allowed, is_anonymous, name_fault};
use crate::config::document::Cursor;
use crate::config::problem::{Problem, Problems};

/// Names of all accounts.
pub fn check(
    root: &Cursor<'_>,
    problems: &mut Problems,
    warnings: &mut Problems,
) -> HashSet<String> {
    let allowed = anonymous_allowed(root);
    let mut ids: HashMap<&str, String> = HashMap::new();
    let mut hashes: HashMap<String, String> = HashMap::new();
    for account in root.list("accounts") {
        let Some(id) = account.key("id") else {
            continue;
        };
        let Some(name) = id.text() else { continue };
        // The account stands in Workers AI paths, between two slashes.
        if let Some(fault) = name_fault(name, &['/', '*', '?', '#', '%']) {
            problems.add(id.problem(fault));
        }
        if let Some(first) = ids.get(name) {
            problems.add(id.problem(format!("{name:?} is already the id of `{first}`")));
        } else {
            ids.insert(name, account.path.clone());
        }
        let keys = account.list("api_keys_sha256");
        check_keys(name, allowed, &account, &keys, problems, warnings);
        for key in keys {
            let Some(hash) = key.text() else { continue };
            if let Some(first) = hashes.get(&hash.to_ascii_lowercase()) {
                problems.add(key.problem(format!(
                    "this hash already stands at `{first}`: a key belongs to one account"
                )));
            } else {
                hashes.insert(hash.to_ascii_lowercase(), key.path);
            }
        }
        check_patterns(&account, problems);
        check_task_limits(name, &account, problems);
    }
    if !allowed && hashes.is_empty() {
        let key = root.key("accounts").or_else(|| root.key("anonymous"));
        let place = key.map_or(root.place, |key| key.place);
        warnings.add(Problem::new(
            "accounts",
            place,
            "nobody can call: no account has a key and `anonymous` is deny; add an account or write `anonymous: allow`",
        ));
    }
    ids.into_keys().map(str::to_owned).collect()
}

fn check_keys(
    name: &str,
    allowed: bool,
    account: &Cursor<'_>,
    keys: &[Cursor<'_>],
    problems: &mut Problems,
    warnings: &mut Problems,
) {
    match (is_anonymous(name), keys.first()) {
        (true, Some(key)) => problems.add(key.problem(
            "`anonymous` is the account of requests without a key: remove its keys, or rename it",
        )),
        (true, None) if !allowed => warnings.add(account.problem(
            "never used: requests without a key are refused, write `anonymous: allow` to serve them",
        )),
        (false, None) => warnings.add(
            account.problem("nobody can use this account: add a hash under `api_keys_sha256`"),
        ),
        _ => {}
    }
}

fn check_patterns(account: &Cursor<'_>, problems: &mut Problems) {
    for pattern in account.list("models") {
        let Some(text) = pattern.text() else { continue };
        let stem = text.strip_suffix('*').unwrap_or(text);
        if stem.contains('*') {
            problems.add(pattern.problem(format!(
                "{text:?}: a glob `*` may stand at the end only, as in \"@cf/meta/*\""
            )));
        } else if text.is_empty() {
            problems.add(pattern.problem("must not be empty: \"*\" means every model"));
        }
    }
}

/// Warns about patterns that no model has the name of.
pub fn check_models(root: &Cursor<'_>, models: &ModelNames, warnings: &mut Problems) {
    for account in root.list("accounts") {
        for pattern in account.list("models") {
            let Some(text) = pattern.text() else { continue };
            if text == "*" || models.matches(text) {
                continue;
            }
            match models.id_of_alias(text) {
                Some(id) => warnings.add(pattern.problem(format!(
                    "{text:?} is an alias: the list compares model ids, write {id:?}"
                ))),
                None => warnings.add(pattern.problem(format!("no model is called {text:?}"))),
            }
        }
    }
}
/// Tasks of the limits per minute.
fn check_task_limits(id: &str, account: &Cursor<'_>, problems: &mut Problems) {
    for (name, limit) in account.entries("requests_per_minute_by_task") {
        if Task::of_slug(name).is_none() {
            let known = Task::ALL.map(Task::slug).join(", ");
            problems.add(limit.problem(format!("no task is called {name:?}: use one of {known}")));
        }
        if id.len() > LIMITED_ID_BYTES_MAX {
            problems.add(limit.problem(format!(
                "an account with limits of tasks has an id of at most {LIMITED_ID_BYTES_MAX} bytes: nodes tell each other its name with that of the task"
            )));
        }
    }
}
