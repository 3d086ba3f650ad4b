//! Words in a JSON Schema that no version of it knows: a validator passes over them in silence, so that
//! `requierd` checks nothing.
//!
//! Checks words only. Names of properties, values of `enum`, examples and words with `x-` are the author's.

use serde_json::Value;

/// Keywords of JSON Schema 2020-12, and those of draft 7 that have become others.
const KNOWN: &[&str] = &[
    "$anchor",
    "$comment",
    "$defs",
    "$dynamicAnchor",
    "$dynamicRef",
    "$id",
    "$recursiveAnchor",
    "$recursiveRef",
    "$ref",
    "$schema",
    "$vocabulary",
    "additionalItems",
    "additionalProperties",
    "allOf",
    "anyOf",
    "const",
    "contains",
    "contentEncoding",
    "contentMediaType",
    "contentSchema",
    "default",
    "definitions",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "deprecated",
    "description",
    "else",
    "enum",
    "examples",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "format",
    "if",
    "items",
    "maxContains",
    "maxItems",
    "maxLength",
    "maxProperties",
    "maximum",
    "minContains",
    "minItems",
    "minLength",
    "minProperties",
    "minimum",
    "multipleOf",
    "not",
    "oneOf",
    "pattern",
    "patternProperties",
    "prefixItems",
    "properties",
    "propertyNames",
    "readOnly",
    "required",
    "then",
    "title",
    "type",
    "unevaluatedItems",
    "unevaluatedProperties",
    "uniqueItems",
    "writeOnly",
];
/// Below them every value is a schema of its own.
const NAMED: [&str; 6] = [
    "$defs",
    "definitions",
    "dependentSchemas",
    "patternProperties",
    "properties",
    "dependencies",
];
/// Their value is no schema, whatever it looks like.
const VALUES: [&str; 5] = ["const", "default", "enum", "examples", "required"];
/// A screen of them; where there are more, something else is wrong.
const FOUND_MAX: usize = 20;

/// Unknown words of a schema: a sentence each, with the place.
pub fn unknown_keywords(schema: &Value) -> Vec<String> {
    let mut found = Vec::new();
    walk(schema, "", &mut found);
    found.truncate(FOUND_MAX);
    found
}

fn walk(schema: &Value, at: &str, found: &mut Vec<String>) {
    if let Value::Array(schemas) = schema {
        for (nth, schema) in schemas.iter().enumerate() {
            walk(schema, &format!("{at}/{nth}"), found);
        }
        return;
    }
    for (word, value) in schema.as_object().into_iter().flatten() {
        let below = format!("{at}/{word}");
        if NAMED.contains(&word.as_str()) {
            for (name, schema) in value.as_object().into_iter().flatten() {
                walk(schema, &format!("{below}/{name}"), found);
            }
        } else if !KNOWN.contains(&word.as_str()) && !word.starts_with("x-") {
            found.push(format!(
                "`{word}` at {below} is no keyword of JSON Schema and checks nothing{}",
                suggestion(word)
            ));
        } else if !VALUES.contains(&word.as_str()) {
            walk(value, &below, found);
        }
    }
}

/// `: is "required" meant?`
fn suggestion(word: &str) -> String {
    let near = KNOWN
        .iter()
        .map(|known| (strsim::osa_distance(known, word), known))
        .min_by_key(|(distance, _)| *distance)
        .filter(|(distance, _)| *distance <= 2);
    near.map_or(String::new(), |(_, known)| format!(": is `{known}` meant?"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_slip_is_found_wherever_it_is_and_names_of_properties_are_none() {
        let schema = json!({
            "type": "object", "requierd": ["prompt"], "x-note": 1,
            "properties": { "tempo": { "type": "string", "enum": [{ "odd": 1 }], "default": { "odd": 1 } } },
            "anyOf": [{ "properties": { "a": { "maxLenght": 3 } } }, true],
        });
        assert_eq!(
            unknown_keywords(&schema),
            [
                "`requierd` at /requierd is no keyword of JSON Schema and checks nothing: is `required` meant?",
                "`maxLenght` at /anyOf/0/properties/a/maxLenght is no keyword of JSON Schema and checks nothing: is `maxLength` meant?",
            ]
        );
        assert!(unknown_keywords(&json!(true)).is_empty());
    }
}
