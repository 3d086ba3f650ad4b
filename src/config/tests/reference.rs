//! The schema, the example file and the reference page name the same keys.

use std::collections::BTreeSet;
use std::fmt::Write;

use serde_json::Value;

use super::*;
use crate::config::diff::needs_restart;
use crate::config::schema::words;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/configuration.md");
const BEGIN: &str = "<!-- keys: made from the schema -->\n";
const END: &str = "<!-- end of keys -->\n";

#[test]
fn every_key_of_the_schema_stands_in_the_example_and_no_other() {
    let mut found = problem::Problems::default();
    // Alternatives to what stands there.
    let whole = EXAMPLE.replace("#~ ", "");
    let example = yaml::read(&whole, &mut found).unwrap().to_value();
    let mut in_example = BTreeSet::new();
    keys_of_value(&example, "", &mut in_example);
    let mut in_schema = BTreeSet::new();
    let mut free = Vec::new();
    keys_of_schema(&schema(), "", &mut |path, key, _| {
        in_schema.insert(path.to_owned());
        if is_free(key) {
            free.push(format!("{path}."));
        }
    });
    // What stands in a mapping without keys of its own is the operator's.
    in_example.retain(|path| !free.iter().any(|free| path.starts_with(free.as_str())));
    assert_eq!(in_example, in_schema);
}

#[test]
fn the_schema_describes_and_bounds_every_key_and_keeps_quiet_about_what_is_not_supported() {
    keys_of_schema(&schema(), "", &mut |path, key, _| {
        let text = key["description"].as_str().unwrap_or_default();
        assert!(text.len() > 5, "{path} has a description");
        assert_eq!(
            key["title"].as_str(),
            path.rsplit(['.', ']']).next(),
            "{path}"
        );
        if key["type"] == "integer" {
            assert!(
                key["maximum"].is_u64() && key["minimum"].is_i64(),
                "{path} is bounded"
            );
        }
        assert!(
            !key.get("default").is_some_and(Value::is_null),
            "{path} has no null for a default"
        );
    });
    let text = schema().to_string();
    for absent in ["$ref", "\"null\""] {
        assert!(!text.contains(absent), "{absent}");
    }
    assert_eq!(
        schema()["properties"]["limits"]["properties"]["request_body_mib"]["default"],
        32
    );
    assert_eq!(schema()["additionalProperties"], false);
}

#[test]
fn the_schema_is_a_schema() {
    assert!(jsonschema::draft7::meta::is_valid(&schema()));
}

/// `INFERGATE_BLESS=1 cargo test --lib config` writes the tables anew.
#[test]
fn the_reference_page_has_the_tables_that_the_schema_makes() {
    let page = std::fs::read_to_string(PAGE).unwrap();
    let (before, rest) = page
        .split_once(BEGIN)
        .expect("the page has the opening mark");
    let (tables, after) = rest.split_once(END).expect("the page has the closing mark");
    let made = reference();
    if std::env::var_os("INFERGATE_BLESS").is_some() {
        std::fs::write(PAGE, format!("{before}{BEGIN}{made}{END}{after}")).unwrap();
    } else {
        assert_eq!(
            tables, made,
            "docs/configuration.md is out of date: run with INFERGATE_BLESS=1"
        );
    }
}

/// The tables of the reference page: one for each key of the first level that has keys below it,
/// and one for the rest.
fn reference() -> String {
    let mut groups: Vec<(String, String)> = Vec::new();
    keys_of_schema(&schema(), "", &mut |path, key, required| {
        let below = key["properties"].is_object() || key["items"]["properties"].is_object();
        let (group, _) = path.split_once(['.', '[']).unwrap_or((path, ""));
        if group == path && below {
            groups.push((format!("`{path}`"), format!("{}\n\n", sentence(key))));
            return;
        }
        let group = if group == path {
            "other keys".to_owned()
        } else {
            format!("`{group}`")
        };
        if !groups.iter().any(|(name, _)| *name == group) {
            groups.push((group.clone(), String::new()));
        }
        let (_, rows) = groups.iter_mut().find(|(name, _)| *name == group).unwrap();
        let _ = writeln!(
            rows,
            "| `{path}` | {} | {} | {} | {} |",
            kind(key),
            default(key, required),
            if needs_restart(path) {
                "restart"
            } else {
                "live"
            },
            sentence(key)
        );
    });
    let head = "| Key | Value | Default | Change | Meaning |\n|---|---|---|---|---|\n";
    let mut page = String::new();
    groups.sort_by_key(|(name, _)| name == "other keys");
    for (name, rows) in groups {
        let (intro, rows) = match rows.split_once("\n\n") {
            Some((intro, rows)) => (format!("{intro}\n\n"), rows),
            None => (String::new(), &*rows),
        };
        let _ = write!(page, "\n### {name}\n\n{intro}{head}{rows}");
    }
    page + "\n"
}

fn kind(key: &Value) -> String {
    let words = words(key);
    if !words.is_empty() {
        return words
            .iter()
            .map(|word| format!("`{word}`"))
            .collect::<Vec<_>>()
            .join(", ");
    }
    let bounds = || match (key["minimum"].as_i64(), key["maximum"].as_u64()) {
        (Some(min), Some(max)) if max < u64::from(u32::MAX) => format!(" {min}–{max}"),
        (Some(min), _) if min > 0 => format!(" ≥ {min}"),
        _ => String::new(),
    };
    match key["type"].as_str() {
        Some("integer") => format!("number{}", bounds()),
        Some("number") if key["minimum"].as_f64() == Some(0.0) => "number ≥ 0".to_owned(),
        Some("number") => "number".to_owned(),
        Some("object") if is_free(key) => match kind(&key["additionalProperties"]) {
            what if what == "mapping" => what,
            what => format!("mapping to {what}"),
        },
        Some("boolean") => "`true`, `false`".to_owned(),
        Some("string") => "text".to_owned(),
        Some("array") if key["items"]["properties"].is_object() => "list of mappings".to_owned(),
        Some("array") => "list of texts".to_owned(),
        None if key["type"].is_array() => "text or number".to_owned(),
        None if key["anyOf"].is_array() => {
            let forms = key["anyOf"].as_array().into_iter().flatten();
            forms.map(kind).collect::<Vec<String>>().join(", ")
        }
        _ => "mapping".to_owned(),
    }
}

/// A mapping whose keys are not ours.
fn is_free(key: &Value) -> bool {
    key["type"] == "object" && !key["properties"].is_object()
}

fn default(key: &Value, required: bool) -> String {
    match &key["default"] {
        _ if required => "**required**".to_owned(),
        Value::Null => "none".to_owned(),
        _ if is_free(key) => "`{}`".to_owned(),
        _ if key["type"] == "object" => "as below".to_owned(),
        Value::String(text) if text.is_empty() => "empty".to_owned(),
        Value::String(text) => format!("`{text}`"),
        other => format!("`{other}`"),
    }
}

/// The description on one line, with the meaning of each word.
fn sentence(key: &Value) -> String {
    let mut text = key["description"]
        .as_str()
        .unwrap_or_default()
        .replace('\n', " ");
    for word in key["oneOf"].as_array().into_iter().flatten() {
        if let (Some(name), Some(meaning)) = (word["const"].as_str(), word["description"].as_str())
        {
            let _ = write!(text, " `{name}`: {}", meaning.replace('\n', " "));
        }
    }
    text.replace('|', "\\|")
}

fn keys_of_value(value: &Value, path: &str, keys: &mut BTreeSet<String>) {
    match value {
        Value::Object(object) => {
            for (key, value) in object {
                let path = problem::path_of_key(path, key);
                keys_of_value(value, &path, keys);
                keys.insert(path);
            }
        }
        Value::Array(items) => {
            items
                .iter()
                .for_each(|item| keys_of_value(item, &format!("{path}[]"), keys));
        }
        _ => {}
    }
}

fn keys_of_schema(schema: &Value, path: &str, see: &mut dyn FnMut(&str, &Value, bool)) {
    let required = |key: &str| {
        schema["required"]
            .as_array()
            .is_some_and(|keys| keys.iter().any(|other| other == key))
    };
    for (key, property) in schema["properties"].as_object().into_iter().flatten() {
        let path = problem::path_of_key(path, key);
        see(&path, property, required(key));
        keys_of_schema(property, &path, see);
        keys_of_schema(&property["items"], &format!("{path}[]"), see);
    }
}
