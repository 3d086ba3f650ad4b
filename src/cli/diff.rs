//! `infergate config diff`: a configuration file against the one that a gateway runs on.
//!
//! Reading only: nothing is reloaded. The gateway shows secrets as salted digests, and the file's are made the same here:
//! a secret shows as changed or not at all.

use std::path::Path;
use std::process::ExitCode;

use serde_json::{Value, json};

use super::admin::{self, AdminArgs};
use super::output::{print, problem};
use crate::config::{self, Config, KeyDifference, has_secret};

const SAME: u8 = 0;
const DIFFERS: u8 = 1;
const FAILED: u8 = 2;

/// Largest value shown on one line, characters; longer ones are not shown.
const VALUE_CHARS_MAX: usize = 120;

/// Prints the differences. The exit status is 1 when there are any.
pub fn run(file: &Path, admin: &AdminArgs, is_json: bool) -> ExitCode {
    let config = match config::load(file) {
        Ok(loaded) => loaded.config,
        Err(problems) => {
            for one in &problems {
                problem(&format!("{}: error: {one}", file.display()));
            }
            return ExitCode::from(FAILED);
        }
    };
    match compare(&config, file, admin) {
        Ok((differences, generation)) => {
            print(&match is_json {
                true => format!("{}\n", as_json(&differences, &generation)),
                false => in_words(&differences, file, &generation),
            });
            ExitCode::from(if differences.is_empty() {
                SAME
            } else {
                DIFFERS
            })
        }
        Err(why) => {
            problem(&format!("error: {why}"));
            ExitCode::from(FAILED)
        }
    }
}

fn compare(
    config: &Config,
    file: &Path,
    admin: &AdminArgs,
) -> Result<(Vec<KeyDifference>, Value), String> {
    let target = admin.target(&config.listen.admin)?;
    let answer = admin::get(&target, "/config")?;
    let (running, salt) = (&answer.body["config"], answer.body["salt"].as_str());
    let (Some(salt), true) = (salt, answer.status == 200 && running.is_object()) else {
        return Err(format!(
            "{target} does not show its configuration (HTTP {}): it is no gateway of this version",
            answer.status
        ));
    };
    let folder = file.parent().unwrap_or(Path::new(""));
    let wanted = config::redacted(config, folder, salt);
    let generation = answer.body["generation"].clone();
    Ok((config::differences(running, &wanted), generation))
}

fn as_json(differences: &[KeyDifference], generation: &Value) -> Value {
    let hidden = |value: &Option<Value>| value.clone().filter(|value| !has_secret(value));
    let one = |one: &KeyDifference| {
        json!({
            "path": one.path,
            "change": change(one),
            "old": hidden(&one.old),
            "new": hidden(&one.new),
            "needs_restart": one.needs_restart,
        })
    };
    let list: Vec<Value> = differences.iter().map(one).collect();
    json!({ "same": list.is_empty(), "generation": generation, "differences": list })
}

fn in_words(differences: &[KeyDifference], file: &Path, generation: &Value) -> String {
    let file = file.display();
    if differences.is_empty() {
        return format!("{file}: no differences; generation {generation} runs\n");
    }
    let mut text: String = differences.iter().map(line).collect();
    let count = differences.len();
    text.push_str(&format!(
        "{file}: {count} difference(s) from generation {generation}, which runs\n"
    ));
    text
}

fn line(one: &KeyDifference) -> String {
    let values = match (shown(&one.old), shown(&one.new)) {
        (Some(old), Some(new)) => format!(": {old} -> {new}"),
        (None, Some(value)) if one.old.is_none() => format!(": {value}"),
        (Some(value), None) if one.new.is_none() => format!(": {value}"),
        _ => String::new(),
    };
    let restart = if one.needs_restart {
        " (after a restart)"
    } else {
        ""
    };
    format!("{:<8} {}{values}{restart}\n", change(one), one.path)
}

/// A word for what the file does to the key.
fn change(one: &KeyDifference) -> &'static str {
    match (&one.old, &one.new) {
        (None, _) => "added",
        (_, None) => "removed",
        _ => "changed",
    }
}

/// The value where it may be shown and fits on the line.
fn shown(value: &Option<Value>) -> Option<String> {
    let value = value.as_ref().filter(|value| !has_secret(value))?;
    let text = value.to_string();
    (text.chars().count() <= VALUE_CHARS_MAX).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn difference(old: Option<Value>, new: Option<Value>) -> KeyDifference {
        KeyDifference {
            path: "a.b".to_owned(),
            old,
            new,
            needs_restart: false,
        }
    }

    #[test]
    fn a_line_says_what_happens_to_a_key_and_never_a_secret() {
        let secret = || Some(json!("secret:0123456789abcdef"));
        let long = || Some(json!("x".repeat(200)));
        for (old, new, expected) in [
            (Some(json!(1)), Some(json!(2)), "changed  a.b: 1 -> 2\n"),
            (None, Some(json!("x")), "added    a.b: \"x\"\n"),
            (Some(json!([1])), None, "removed  a.b: [1]\n"),
            (secret(), secret(), "changed  a.b\n"),
            (None, secret(), "added    a.b\n"),
            (Some(json!("no")), secret(), "changed  a.b\n"),
            (Some(json!(1)), long(), "changed  a.b\n"),
        ] {
            assert_eq!(line(&difference(old, new)), expected);
        }
        let restart = KeyDifference {
            needs_restart: true,
            ..difference(Some(json!(1)), Some(json!(2)))
        };
        assert_eq!(line(&restart), "changed  a.b: 1 -> 2 (after a restart)\n");
    }
}
