//! Acceptance in one pass against the validator: where the pass accepts, the validator does, and for plain
//! bodies the pass leaves nothing open.

use bytes::Bytes;
use serde_json::{Map, Value, json};

use super::*;
use crate::plugin::json::schema::{Schema, SchemaError};
use crate::plugin::json::{DEPTH_MAX, Outline, PARTS_MAX};

fn schema(value: &Value) -> Schema {
    Schema::compile(&value.to_string()).unwrap()
}

/// The verdict on a body without the pass.
fn is_accepted(schema: &Schema, text: &str) -> bool {
    let outline = Outline::read(Bytes::copy_from_slice(text.as_bytes()));
    outline.is_ok_and(|body| body.duplicate().is_none() && schema.check(&body).is_ok())
}

fn shipped() -> Schema {
    let text = include_str!("../../../tasks/schemas/text-generation/input.schema.json");
    Schema::compile(text).unwrap()
}

/// Numbers that look random, the same each time.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        ((self.0 >> 33) as usize) % end
    }

    fn one_of<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }

    fn happens(&mut self, one_in: usize) -> bool {
        self.below(one_in) == 0
    }
}

const NAMES: &[&str] = &["a", "b", "prompt", "messages", "max_completion_tokens"];
const TYPES: &[&str] = &[
    "null", "boolean", "integer", "number", "string", "array", "object",
];
const TEXTS: &[&str] = &[
    "",
    "a",
    "small",
    "é🦀",
    "twelve bytes",
    "a text of more than four words of eight bytes",
];
const NUMBERS: &[&str] = &[
    "0",
    "-0",
    "1",
    "2",
    "7",
    "-3",
    "1.0",
    "1.5",
    "2e0",
    "0.1",
    "-2.5e-1",
    "999999999999999",
    "1e400",
];

fn random_scalar(random: &mut Random) -> Value {
    match random.below(5) {
        0 => Value::Null,
        1 => Value::Bool(random.happens(2)),
        2 => json!(*random.one_of(TEXTS)),
        _ => json!(random.below(9) as i64 - 3),
    }
}

/// A schema of supported keywords. One in four subschemas is empty or a boolean.
fn random_schema(random: &mut Random, depth: usize) -> Value {
    if random.happens(6) {
        return json!(!random.happens(4));
    }
    let mut schema = Map::new();
    for _ in 0..=random.below(3) {
        add_keyword(&mut schema, random, depth);
    }
    Value::Object(schema)
}

fn add_keyword(schema: &mut Map<String, Value>, random: &mut Random, depth: usize) {
    let kinds = if depth == 0 { 8 } else { 15 };
    let size = random.below(4);
    let (key, value) = match random.below(kinds) {
        0 => ("type", json!(*random.one_of(TYPES))),
        1 => {
            let mut types = vec!["object", *random.one_of(TYPES), *random.one_of(TYPES)];
            types.sort_unstable();
            types.dedup();
            ("type", json!(types))
        }
        2 => match random.happens(2) {
            true => ("const", random_scalar(random)),
            false => {
                let mut options: Vec<Value> = (0..4).map(|_| random_scalar(random)).collect();
                options.sort_by_key(Value::to_string);
                options.dedup();
                ("enum", Value::Array(options))
            }
        },
        3 => (*random.one_of(&["minLength", "maxLength"]), json!(size * 4)),
        4 => {
            let limits = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"];
            let limit = random
                .one_of(&[json!(0), json!(1), json!(1.5), json!(-3)])
                .clone();
            (*random.one_of(&limits), limit)
        }
        5 => {
            let bounds = ["minItems", "maxItems", "minProperties", "maxProperties"];
            (*random.one_of(&bounds), json!(size))
        }
        6 => ("required", json!([*random.one_of(NAMES)])),
        7 => ("format", json!("date-time")),
        8 | 9 => {
            let mut members = Map::new();
            for _ in 0..=size {
                let name = *random.one_of(NAMES);
                members.insert(name.to_owned(), random_schema(random, depth - 1));
            }
            ("properties", Value::Object(members))
        }
        10 => ("additionalProperties", random_schema(random, depth - 1)),
        11 => ("items", random_schema(random, depth - 1)),
        12 => {
            let lists = ["allOf", "anyOf", "oneOf"];
            let combinator = *random.one_of(&lists);
            let list = (0..=random.below(3)).map(|_| random_schema(random, depth - 1));
            (combinator, list.collect())
        }
        13 => (
            *random.one_of(&["not", "if", "then", "else"]),
            random_schema(random, depth - 1),
        ),
        _ => ("$ref", json!(*random.one_of(&["#/$defs/x", "#/$defs/y"]))),
    };
    schema.insert(key.to_owned(), value);
}

fn random_root(random: &mut Random) -> Value {
    let mut root = Map::new();
    for _ in 0..=random.below(4) {
        add_keyword(&mut root, random, 3);
    }
    let (x, y) = (
        random_schema(random, 0),
        json!({ "items": { "$ref": "#" }, "properties": { "a": { "$ref": "#" } } }),
    );
    root.insert("$defs".to_owned(), json!({ "x": x, "y": y }));
    Value::Object(root)
}

/// Writes a body; now and then with spaces and, where `is_odd`, with escapes and names that stand twice.
fn write_body(random: &mut Random, depth: usize, is_odd: bool, out: &mut String) {
    let kind = random.below(if depth == 0 { 5 } else { 10 });
    if random.happens(8) {
        out.push_str(" \n");
    }
    match kind {
        0 => {
            let word = random.one_of(&["null", "true", "false"]);
            out.push_str(word);
        }
        1 | 2 => {
            let number = random.one_of(NUMBERS);
            out.push_str(number);
        }
        3 | 4 => write_text(random, TEXTS, is_odd, out),
        5 | 6 => {
            out.push('[');
            for index in 0..random.below(4) {
                out.push_str(if index > 0 { "," } else { "" });
                write_body(random, depth - 1, is_odd, out);
            }
            out.push(']');
        }
        _ => {
            out.push('{');
            let mut left: Vec<&str> = [NAMES, &["other", "a name of its own"]].concat();
            for index in 0..random.below(5) {
                out.push_str(if index > 0 { ", " } else { "" });
                let at = random.below(left.len());
                let name = if is_odd {
                    left[at]
                } else {
                    left.swap_remove(at)
                };
                write_text(random, &[name], is_odd, out);
                out.push(':');
                write_body(random, depth - 1, is_odd, out);
            }
            out.push('}');
        }
    }
    if random.happens(8) {
        out.push('\t');
    }
}

fn write_text(random: &mut Random, of: &[&str], is_odd: bool, out: &mut String) {
    let text = Value::from(*random.one_of(of)).to_string();
    match is_odd && random.happens(4) {
        true => out.push_str(
            &text
                .replacen('a', "\\u0061", 1)
                .replacen("\"\"", r#""\\\"\\""#, 1),
        ),
        false => out.push_str(&text),
    }
}

#[test]
fn a_pass_and_the_validator_agree_on_random_schemas_and_bodies() {
    let mut random = Random(7);
    let (mut pairs, mut accepted, mut open) = (0, 0, 0);
    while pairs < 120_000 {
        let Ok(schema) = Schema::compile(&random_root(&mut random).to_string()) else {
            // A reference to itself, or a type that stands twice.
            continue;
        };
        assert!(schema.has_plan(), "{}", schema.text());
        for round in 0..60 {
            let is_odd = round % 4 == 0;
            let mut body = String::new();
            write_body(&mut random, 3, is_odd, &mut body);
            let (fast, slow) = (schema.accepts(body.as_bytes()), is_accepted(&schema, &body));
            assert!(
                slow || !fast,
                "accepted only by the pass: {} {body}",
                schema.text()
            );
            assert!(
                is_odd || fast == slow,
                "left open: {} {body}",
                schema.text()
            );
            accepted += u32::from(fast);
            open += u32::from(slow && !fast);
            pairs += 1;
        }
    }
    // Neither verdict is rare, and neither are bodies that a pass leaves to the validator.
    assert!(accepted > 20_000 && accepted < 100_000, "{accepted}");
    assert!(open > 500, "{open}");
}

#[test]
fn every_keyword_of_a_plan_accepts_and_refuses_as_the_validator_does() {
    for (schema_text, fitting, misfitting) in [
        (
            r#"{"type":"integer"}"#,
            "[1,1.0,-0,1e2]",
            "[1.5,\"1\",true,null,{},[]]",
        ),
        (r#"{"type":"number"}"#, "[1,1.5]", "[\"1\",null]"),
        (r#"{"type":["string","null"]}"#, "[\"\",null]", "[0,false]"),
        (r#"{"const":2}"#, "[2,2.0]", "[\"2\",3,null,[]]"),
        (
            r#"{"enum":["a",null,true,6]}"#,
            "[\"a\",null,true,6]",
            "[\"b\",false,5,{}]",
        ),
        (
            r#"{"minLength":2}"#,
            "[\"ab\",\"éé\",1]",
            "[\"a\",\"é\",\"\"]",
        ),
        (
            r#"{"maxLength":2}"#,
            "[\"ab\",\"🦀🦀\",\"\"]",
            "[\"abc\",\"ééé\"]",
        ),
        (r#"{"minimum":1.5}"#, "[1.5,2,\"0\"]", "[1,1.4999]"),
        (r#"{"maximum":3}"#, "[3,3.0,-7]", "[3.5,4]"),
        (r#"{"exclusiveMinimum":1}"#, "[1.1,2]", "[1,1.0,0]"),
        (r#"{"exclusiveMaximum":1}"#, "[0.9,0]", "[1,1.0,2]"),
        (r#"{"minItems":1}"#, "[[1],\"\"]", "[[]]"),
        (r#"{"maxItems":1}"#, "[[1],[]]", "[[1,2]]"),
        (r#"{"minProperties":1}"#, "[{\"a\":1}]", "[{}]"),
        (
            r#"{"maxProperties":1}"#,
            "[{\"a\":1},{}]",
            "[{\"a\":1,\"b\":2}]",
        ),
        (
            r#"{"required":["a"]}"#,
            "[{\"a\":null},1]",
            "[{},{\"b\":1}]",
        ),
        (
            r#"{"properties":{"a":{"type":"null"}}}"#,
            "[{\"a\":null},{\"b\":1}]",
            "[{\"a\":1}]",
        ),
        (
            r#"{"properties":{"a":true},"additionalProperties":false}"#,
            "[{\"a\":1},{}]",
            "[{\"a\":1,\"b\":1}]",
        ),
        (
            r#"{"items":{"type":"null"}}"#,
            "[[null,null],[],{\"a\":1}]",
            "[[null,1]]",
        ),
        (r#"{"items":false}"#, "[[]]", "[[1]]"),
        (
            r#"{"allOf":[{"minimum":1},{"maximum":2}]}"#,
            "[1,2]",
            "[0,3]",
        ),
        (
            r#"{"anyOf":[{"type":"null"},{"minimum":2}]}"#,
            "[null,2,\"\"]",
            "[1]",
        ),
        (
            r#"{"oneOf":[{"type":"integer"},{"minimum":2}]}"#,
            "[1,2.5]",
            "[3,1.5]",
        ),
        (r#"{"not":{"type":"integer"}}"#, "[1.5,\"\"]", "[1]"),
        (
            r#"{"if":{"type":"array"},"then":{"minItems":1},"else":{"type":"null"}}"#,
            "[[1],null]",
            "[[],1]",
        ),
        (
            r##"{"$ref":"#/$defs/a~1b","$defs":{"a/b":{"type":"null"}}}"##,
            "[null]",
            "[1]",
        ),
        (
            r##"{"type":["object","null"],"properties":{"next":{"$ref":"#"}}}"##,
            "[{\"next\":{\"next\":null}}]",
            "[{\"next\":{\"next\":1}}]",
        ),
    ] {
        let schema = Schema::compile(schema_text).unwrap();
        assert!(schema.has_plan(), "{schema_text}");
        for (list, expected) in [(fitting, true), (misfitting, false)] {
            let bodies: Vec<&serde_json::value::RawValue> = serde_json::from_str(list).unwrap();
            for body in bodies {
                let verdicts = (
                    schema.accepts(body.get().as_bytes()),
                    is_accepted(&schema, body.get()),
                );
                assert_eq!(verdicts, (expected, expected), "{schema_text} {body}");
            }
        }
    }
}

#[test]
fn a_schema_with_another_keyword_or_of_another_version_has_no_plan() {
    for other in [
        json!({ "pattern": "^a" }),
        json!({ "properties": { "a": { "uniqueItems": true } } }),
        json!({ "multipleOf": 2 }),
        json!({ "enum": [[1]] }),
        json!({ "minimum": 18_446_744_073_709_551_615_u64 }),
        json!({ "$schema": "http://json-schema.org/draft-07/schema#" }),
        json!({ "x-own": 1 }),
    ] {
        let schema = schema(&other);
        assert!(!schema.has_plan() && !schema.accepts(b"1"), "{other}");
    }
}

#[test]
fn the_shipped_schemas_have_plans() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/tasks/schemas");
    for task in std::fs::read_dir(folder).unwrap() {
        let file = task.unwrap().path().join("input.schema.json");
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(
            Schema::compile(&text).unwrap().has_plan(),
            "{}",
            file.display()
        );
    }
}

#[test]
fn a_text_is_skipped_however_its_quotes_are_escaped() {
    let schema = shipped();
    for inner in [
        r#"\""#,
        r#"\\"#,
        r#"\\\""#,
        r#"a long text, and a quote behind more than four words: \" and on"#,
        r#"\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\"#,
    ] {
        let body = format!(r#"{{"messages":[{{"role":"user","content":"{inner}"}}],"n":1}}"#);
        assert!(schema.accepts(body.as_bytes()), "{body}");
        let wrong = body.replace(r#""n":1"#, r#""n":0"#);
        assert!(!schema.accepts(wrong.as_bytes()), "{wrong}");
    }
}

#[test]
fn a_name_that_stands_twice_is_left_to_the_validator() {
    let schema = shipped();
    let member = |inner: &str| schema.accepts(format!(r#"{{"prompt":"a"{inner}}}"#).as_bytes());
    assert!(member(r#","own":1,"other":{"own":1,"others":2}"#));
    assert!(!member(r#","prompt":"b""#));
    assert!(!member(r#","own":1,"own":1"#));
    assert!(!member(r#","own":{"a":1,"b":2,"a":3}"#));
    assert!(!member(r#","\u0070rompt":"b""#));
    let many: String = (0..500).map(|n| format!(r#","member {n}":1"#)).collect();
    assert!(member(&many));
    assert!(!member(&format!(r#"{many},"member 7":1"#)));
}

#[test]
fn the_bounds_of_an_outline_hold_for_a_pass() {
    let deep = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
    assert!(INDEXABLE.accepts(deep(DEPTH_MAX).as_bytes()));
    assert!(!INDEXABLE.accepts(deep(DEPTH_MAX + 1).as_bytes()));
    let objects = |n: usize| format!("[{}]", vec![r#"{"":0}"#; n].join(","));
    assert!(INDEXABLE.accepts(objects((PARTS_MAX - 1) / 2).as_bytes()));
    assert!(!INDEXABLE.accepts(objects(PARTS_MAX / 2).as_bytes()));
    assert!(INDEXABLE.accepts(format!("[{}]", vec!["7"; 300_000].join(",")).as_bytes()));
}

#[test]
fn a_pass_takes_a_bounded_number_of_steps_for_each_byte() {
    // 60 subschemas look at each item of two bytes.
    let all: Vec<Value> = (0..60).map(|n| json!({ "minimum": -n })).collect();
    let costly = schema(&json!({ "items": { "allOf": all } }));
    let list = |n: usize| format!("[{}]", vec!["7"; n].join(","));
    assert!(costly.has_plan() && costly.accepts(list(1_000).as_bytes()));
    assert!(!costly.accepts(list(100_000).as_bytes()));
    let body = Outline::read(list(100_000).into()).unwrap();
    assert_eq!(costly.check(&body), Err(SchemaError::TooCostly));
}

#[test]
fn a_schema_that_doubles_with_each_level_has_a_small_plan_or_none() {
    let doubling = |levels: usize| {
        let below = |n: usize| json!({ "anyOf": [{ "$ref": format!("#/$defs/{n}") }, { "$ref": format!("#/$defs/{n}") }] });
        let defs: Map<String, Value> = (0..levels).map(|n| (n.to_string(), below(n + 1))).collect();
        let mut root = json!({ "$ref": "#/$defs/0", "$defs": defs });
        root["$defs"][levels.to_string()] = json!({ "type": "null" });
        SchemaPlan::of(&root)
    };
    assert!(doubling(5).is_some_and(|plan| plan.accepts(b"null") && !plan.accepts(b"1")));
    assert!(doubling(30).is_none());
    let around = json!({ "properties": { "a": { "allOf": [{ "$ref": "#" }, { "$ref": "#" }] } } });
    let body = r#"{"a":"#.repeat(100) + "1" + &"}".repeat(100);
    assert!(SchemaPlan::of(&around).unwrap().accepts(body.as_bytes()));
}

#[test]
fn bytes_that_are_no_json_end_a_pass() {
    let schema = shipped();
    let mut random = Random(3);
    let alphabet = b"{}[]:,\"\\a0-.e tfn\x80";
    for _ in 0..20_000 {
        let bytes: Vec<u8> = (0..random.below(40))
            .map(|_| *random.one_of(alphabet))
            .collect();
        let _ = (schema.accepts(&bytes), INDEXABLE.accepts(&bytes));
    }
}
