//! The JSON Schema of the file, made from the same structs that serde fills.
//!
//! No file is validated here. Editors read it (`infergate config schema`), and so does the
//! structural check. The schema is draft-07 without references, which every YAML editor
//! understands.

use std::sync::LazyLock;

use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use super::Config;
use crate::gpu::presets::{PRESETS, Preset};
use crate::upstream::{BACKENDS, Backend};

/// The JSON Schema of the configuration file: descriptions, defaults, bounds and allowed words.
pub fn schema() -> Value {
    SCHEMA.clone()
}

pub(super) static SCHEMA: LazyLock<Value> = LazyLock::new(|| {
    let settings = SchemaSettings::draft07().with(|s| s.inline_subschemas = true);
    let mut schema = settings
        .into_generator()
        .into_root_schema_for::<Config>()
        .to_value();
    polish(&mut schema, None);
    let model = &mut schema["properties"]["models"]["items"]["properties"];
    if let Value::Object(backend) = &mut model["backend"] {
        backend.shift_remove("type");
        backend.insert("oneOf".into(), backends());
    }
    let preset = &mut model["process"]["properties"]["preset"];
    if let Value::Object(preset) = preset {
        preset.shift_remove("type");
        preset.insert("oneOf".into(), presets());
    }
    schema
});

/// The words a schema allows, with their descriptions where they have one.
pub(super) fn words(schema: &Value) -> Vec<String> {
    let mut words = Vec::new();
    if let Some(word) = schema.get("const").and_then(Value::as_str) {
        words.push(word.to_owned());
    }
    for word in schema
        .get("enum")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
    {
        words.push(match word.as_str() {
            Some(text) => text.to_owned(),
            None => word.to_string(),
        });
    }
    for alternative in schema
        .get("oneOf")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
    {
        words.extend(self::words(alternative));
    }
    words
}

/// Narrows the generated schema to what the file may hold: no nulls (an absent key is the default),
/// integer formats as bounds, a title for each key.
fn polish(schema: &mut Value, key: Option<&str>) {
    let Value::Object(object) = schema else {
        return;
    };
    if let Some(inner) = nullable(object) {
        merge(object, inner);
    }
    if let Some(Value::Array(types)) = object.get("type") {
        let kept: Vec<Value> = types
            .iter()
            .filter(|t| **t != json!("null"))
            .cloned()
            .collect();
        let single = if kept.len() == 1 {
            kept[0].clone()
        } else {
            Value::Array(kept)
        };
        object.insert("type".into(), single);
    }
    if object.get("default") == Some(&Value::Null) {
        object.shift_remove("default");
    }
    bound_number(object);
    if let Some(key) = key {
        object.insert("title".into(), key.into());
    }
    if let Some(Value::Object(properties)) = object.get_mut("properties") {
        for (key, property) in properties.iter_mut() {
            polish(property, Some(key));
        }
    }
    for inner in ["items", "additionalProperties"] {
        if let Some(inner) = object.get_mut(inner) {
            polish(inner, None);
        }
    }
}

/// The other alternative of `anyOf: [X, null]`.
fn nullable(object: &Map<String, Value>) -> Option<Map<String, Value>> {
    let alternatives = object.get("anyOf")?.as_array()?;
    let null = |schema: &&Value| schema.get("type") == Some(&json!("null"));
    alternatives.iter().find(null)?;
    alternatives
        .iter()
        .find(|schema| !null(schema))?
        .as_object()
        .cloned()
}

/// Puts `inner` in place of the alternatives; the key's own keywords stay.
fn merge(object: &mut Map<String, Value>, inner: Map<String, Value>) {
    object.shift_remove("anyOf");
    for (key, value) in inner {
        object.entry(key).or_insert(value);
    }
}

/// Bounds instead of formats: `uint32` means nothing to an editor or to the validator. `double` has
/// no bound.
fn bound_number(object: &mut Map<String, Value>) {
    let maximum = match object.get("format").and_then(Value::as_str) {
        Some("uint8") => u64::from(u8::MAX),
        Some("uint16") => u64::from(u16::MAX),
        Some("uint32") => u64::from(u32::MAX),
        Some("uint64" | "uint") => u64::MAX,
        Some("double") => {
            object.shift_remove("format");
            return;
        }
        _ => return,
    };
    object.shift_remove("format");
    object.entry("maximum").or_insert(maximum.into());
}

/// The backends of the table, each with its description.
fn backends() -> Value {
    let word = |backend: &&Backend| {
        let description = format!("{}.", backend.about);
        json!({ "const": backend.name, "description": description, "type": "string" })
    };
    BACKENDS.iter().map(word).collect()
}

/// The presets of the table, each with its description.
fn presets() -> Value {
    let word = |preset: &&Preset| {
        let description = format!("{}.", preset.about);
        json!({ "const": preset.name, "description": description, "type": "string" })
    };
    PRESETS.iter().map(word).collect()
}
