//! Number of subschemas that a schema stands for, once every reference and combinator is written out.
//!
//! Validates nothing. A few lines of `allOf` and `$ref` can stand for 2^40 subschemas, which a validator
//! would visit one by one. References must stay inside the schema and name their target plainly, so that the
//! count is sound. A reference into itself counts once where each round of it looks at a deeper value, since
//! those are bounded; any other is refused.

use std::collections::HashMap;

use serde_json::{Map, Value};

use crate::plugin::json::pointer;

/// Subschemas a schema may stand for. The largest we ship stands for 130.
pub const EXPANSION_MAX: u64 = 10_000;
/// Nesting of a schema's own text, far below what JSON readers take.
const NESTING_MAX: usize = 100;

/// Keywords whose value is a subschema.
const ONE: &[&str] = &[
    "additionalItems",
    "additionalProperties",
    "contains",
    "contentSchema",
    "else",
    "if",
    "items",
    "not",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
];
/// Keywords whose value is a list of subschemas.
const MANY: &[&str] = &["allOf", "anyOf", "items", "oneOf", "prefixItems"];
/// Keywords whose value holds subschemas by name.
const NAMED: &[&str] = &[
    "dependencies",
    "dependentSchemas",
    "patternProperties",
    "properties",
];
/// Keywords whose subschemas look at the same value as the schema itself.
const IN_PLACE: &[&str] = &[
    "allOf",
    "anyOf",
    "dependencies",
    "dependentSchemas",
    "else",
    "if",
    "not",
    "oneOf",
    "then",
];
/// Keywords that refer to another subschema.
const REFERENCES: &[&str] = &["$ref", "$dynamicRef", "$recursiveRef"];

/// Counts the subschemas that `root` stands for, itself included.
///
/// # Errors
/// A sentence with the place of the smallest part that is too large, or of a reference that cannot
/// be followed.
pub fn count(root: &Value) -> Result<u64, String> {
    let mut counter = SubschemaCounter {
        root,
        anchors: HashMap::new(),
        known: HashMap::new(),
        under_way: Vec::new(),
    };
    counter.find_anchors(root, "", 0)?;
    let sum = counter.count(root, "", 0)?;
    let mut places: Vec<String> = counter.known.drain().map(|(place, _)| place).collect();
    places.sort();
    for place in places {
        counter.count_in_place(&place)?;
    }
    Ok(sum)
}

struct SubschemaCounter<'a> {
    root: &'a Value,
    /// Places of subschemas by their plain name.
    anchors: HashMap<&'a str, String>,
    /// Counts by place.
    known: HashMap<String, u64>,
    /// Places that references are being followed from.
    under_way: Vec<String>,
}

impl<'a> SubschemaCounter<'a> {
    fn find_anchors(&mut self, value: &'a Value, at: &str, depth: usize) -> Result<(), String> {
        if depth > NESTING_MAX {
            return Err(format!(
                "it is nested more than {NESTING_MAX} deep at `{at}`"
            ));
        }
        match value {
            Value::Object(object) => {
                for key in ["$anchor", "$dynamicAnchor"] {
                    if let Some(name) = object.get(key).and_then(Value::as_str) {
                        self.anchors.insert(name, at.to_owned());
                    }
                }
                if depth > 0 && object.get("$id").is_some_and(Value::is_string) {
                    return Err(format!(
                        "`{at}/$id`: an `$id` below the root is not taken; use `$defs` and `#/$defs/…`"
                    ));
                }
                for (key, value) in object {
                    // Values to compare with are no schemas.
                    if !matches!(key.as_str(), "const" | "enum" | "default" | "examples") {
                        let below = format!("{at}/{}", pointer::escape(key));
                        self.find_anchors(value, &below, depth + 1)?;
                    }
                }
                Ok(())
            }
            Value::Array(list) => list.iter().enumerate().try_for_each(|(index, value)| {
                self.find_anchors(value, &format!("{at}/{index}"), depth + 1)
            }),
            _ => Ok(()),
        }
    }

    /// The subschemas that the one at `at` stands for.
    fn count(&mut self, schema: &'a Value, at: &str, depth: usize) -> Result<u64, String> {
        let Value::Object(object) = schema else {
            return Ok(1);
        };
        if let Some(known) = self.known.get(at) {
            return Ok(*known);
        }
        if depth > NESTING_MAX * 2 {
            return Err(format!("references lead too deep at `{at}`"));
        }
        let mut sum = 1_u64;
        for (below, value) in children(object, at) {
            sum = sum.saturating_add(self.count(value, &below, depth + 1)?);
        }
        for key in REFERENCES {
            if let Some(reference) = object.get(*key).and_then(Value::as_str) {
                sum = sum.saturating_add(self.follow(reference, at, key, depth)?);
            }
        }
        if sum > EXPANSION_MAX {
            return Err(too_many(at));
        }
        self.known.insert(at.to_owned(), sum);
        Ok(sum)
    }

    /// The subschemas that look at the same value as the one at `at`. Exact, since there are no
    /// circles among them.
    fn count_in_place(&mut self, at: &str) -> Result<u64, String> {
        let Some(Value::Object(object)) = self.root.pointer(at) else {
            return Ok(1);
        };
        if let Some(known) = self.known.get(at) {
            return Ok(*known);
        }
        if self.under_way.iter().any(|place| place == at) || self.under_way.len() > NESTING_MAX * 2
        {
            return Err(format!(
                "`{at}` refers to itself without looking at a deeper value"
            ));
        }
        self.under_way.push(at.to_owned());
        let mut sum = 1_u64;
        for (below, _) in children(object, at) {
            let keyword = below[at.len() + 1..].split('/').next().unwrap_or_default();
            if IN_PLACE.contains(&keyword) {
                sum = sum.saturating_add(self.count_in_place(&below)?);
            }
        }
        for key in REFERENCES {
            if let Some(reference) = object.get(*key).and_then(Value::as_str) {
                let place = self.place_of(reference, at, key)?;
                sum = sum.saturating_add(self.count_in_place(&place)?);
            }
        }
        self.under_way.pop();
        if sum > EXPANSION_MAX {
            return Err(too_many(at));
        }
        self.known.insert(at.to_owned(), sum);
        Ok(sum)
    }

    fn follow(
        &mut self,
        reference: &str,
        at: &str,
        key: &str,
        depth: usize,
    ) -> Result<u64, String> {
        let place = self.place_of(reference, at, key)?;
        // Being inside the target, or on the way from it, the reference closes a circle.
        let is_around = |outer: &str| {
            let rest = at.strip_prefix(outer);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        if is_around(&place) || self.under_way.contains(&place) {
            return Ok(1);
        }
        let root = self.root;
        let target = root.pointer(&place).unwrap_or(&Value::Null);
        self.under_way.push(place.clone());
        let counted = self.count(target, &place, depth + 1);
        self.under_way.pop();
        counted
    }

    /// The place that a reference at `at` names.
    fn place_of(&self, reference: &str, at: &str, key: &str) -> Result<String, String> {
        let unknown = || {
            format!(
                "`{at}/{key}` refers to `{reference}`: only `#`, `#/…` and `#name` inside the schema \
                 are taken"
            )
        };
        let own = self.root.get("$id").and_then(Value::as_str).unwrap_or("");
        let inside = reference.strip_prefix(own.trim_end_matches('#'));
        let inside = inside.unwrap_or(reference);
        let fragment = inside.strip_prefix('#').ok_or_else(unknown)?;
        let place = match self.anchors.get(fragment) {
            Some(place) => place.clone(),
            None if fragment.is_empty() || fragment.starts_with('/') => unpercent(fragment),
            None => return Err(unknown()),
        };
        match self.root.pointer(&place) {
            Some(_) => Ok(place),
            None => Err(unknown()),
        }
    }
}

fn too_many(at: &str) -> String {
    let place = if at.is_empty() { "the root" } else { at };
    format!(
        "`{place}` stands for more than {EXPANSION_MAX} subschemas once its `$ref` and combinators are \
         written out: refer to fewer from one place"
    )
}

/// Subschemas of one, with their places.
fn children<'a>(object: &'a Map<String, Value>, at: &str) -> Vec<(String, &'a Value)> {
    let mut all = Vec::new();
    for (key, value) in object {
        match value {
            Value::Object(_) if ONE.contains(&key.as_str()) => {
                all.push((format!("{at}/{key}"), value));
            }
            Value::Array(list) if MANY.contains(&key.as_str()) => {
                let places = list.iter().enumerate();
                all.extend(places.map(|(index, value)| (format!("{at}/{key}/{index}"), value)));
            }
            Value::Object(named) if NAMED.contains(&key.as_str()) => {
                all.extend(
                    named.iter().map(|(name, value)| {
                        (format!("{at}/{key}/{}", pointer::escape(name)), value)
                    }),
                );
            }
            _ => {}
        }
    }
    all
}

/// A fragment of a URI as a pointer.
fn unpercent(fragment: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = fragment.as_bytes();
    while let Some((first, behind)) = rest.split_first() {
        let hex = |at: usize| behind.get(at).and_then(|byte| (*byte as char).to_digit(16));
        match (first, hex(0), hex(1)) {
            (b'%', Some(high), Some(low)) => {
                bytes.push((high * 16 + low) as u8);
                rest = &behind[2..];
            }
            _ => {
                bytes.push(*first);
                rest = behind;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// `levels` definitions, each of which refers twice to the next.
    fn doubling(levels: usize, combinator: &str) -> Value {
        let mut defs = Map::new();
        for level in 0..levels {
            let next = json!({ "$ref": format!("#/$defs/x{}", level + 1) });
            defs.insert(
                format!("x{level}"),
                json!({ combinator: [next.clone(), next] }),
            );
        }
        defs.insert(format!("x{levels}"), json!({ "type": "object" }));
        json!({ "$ref": "#/$defs/x0", "$defs": defs })
    }

    #[test]
    fn references_that_double_are_refused_with_their_place() {
        for combinator in ["allOf", "anyOf", "oneOf", "prefixItems"] {
            assert!(count(&doubling(8, combinator)).is_ok());
            let why = count(&doubling(40, combinator)).unwrap_err();
            assert!(why.contains("`/$defs/x28`"), "{why}");
        }
    }

    #[test]
    fn doubling_by_way_of_deeper_values_is_counted_too() {
        let mut defs = Map::new();
        for level in 0..40 {
            let next =
                json!({ "properties": { "a": { "$ref": format!("#/$defs/x{}", level + 1) } } });
            defs.insert(
                format!("x{level}"),
                json!({ "allOf": [next.clone(), next] }),
            );
        }
        defs.insert("x40".into(), json!(true));
        assert!(count(&json!({ "$ref": "#/$defs/x0", "$defs": defs })).is_err());
    }

    #[test]
    fn a_schema_that_refers_to_itself_is_counted_once() {
        let list = json!({ "properties": { "next": { "$ref": "#" }, "value": true } });
        assert_eq!(count(&list), Ok(4));
        let named = json!({ "$anchor": "me", "items": { "$ref": "#me" } });
        assert_eq!(count(&named), Ok(3));
        let two = json!({ "$ref": "#/$defs/a", "$defs": {
            "a": { "items": { "$ref": "#/$defs/b" } },
            "b": { "items": { "$ref": "#/$defs/a" } }
        } });
        assert!(count(&two).is_ok_and(|sum| sum < 10));
    }

    #[test]
    fn schemas_that_go_round_at_one_value_are_refused() {
        let own = json!({ "allOf": [{ "$ref": "#" }] });
        assert!(count(&own).unwrap_err().contains("refers to itself"));
        let all: Vec<Value> = (0..12)
            .map(|n| json!({ "$ref": format!("#/$defs/x{n}") }))
            .collect();
        let defs: Map<String, Value> = (0..12)
            .map(|n| (format!("x{n}"), json!({ "anyOf": all })))
            .collect();
        assert!(
            count(&json!({ "properties": { "a": { "$ref": "#/$defs/x0" } }, "$defs": defs }))
                .is_err()
        );
    }

    #[test]
    fn references_that_cannot_be_counted_are_refused() {
        for schema in [
            json!({ "$ref": "http://127.0.0.1:1/x.json" }),
            json!({ "$ref": "other.json#/a" }),
            json!({ "$ref": "#nowhere" }),
            json!({ "$ref": "#/$defs/absent" }),
            json!({ "$defs": { "a": { "$id": "b.json", "$ref": "#/c" } } }),
        ] {
            assert!(count(&schema).is_err(), "{schema}");
        }
        assert!(count(&json!({ "$ref": "#/%24defs/a", "$defs": { "a": true } })).is_ok());
    }
}
