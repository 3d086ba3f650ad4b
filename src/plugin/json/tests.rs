//! Outlines against `serde_json`, which builds the tree that they stand in for.

use bytes::Bytes;
use infergate_core::task::BodyField;
use jsonschema::json::{Array, Node as _, Object};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn outline(text: &str) -> Outline {
    Outline::read(Bytes::copy_from_slice(text.as_bytes())).unwrap()
}

/// The tree, made from an outline's own walk.
fn tree(node: &OutlineNode<'_>) -> Value {
    if let Some(members) = node.as_object() {
        let members = members.members();
        return Value::Object(
            members
                .map(|(key, value)| (key.to_owned(), tree(&value)))
                .collect(),
        );
    }
    if let Some(items) = node.as_array() {
        assert_eq!(Array::len(&items), items.elements().count());
        return Value::Array(items.elements().map(|item| tree(&item)).collect());
    }
    if let Some(text) = node.as_string() {
        return Value::from(text.into_owned());
    }
    serde_json::from_slice(node.raw()).unwrap()
}

fn value() -> impl Strategy<Value = Value> {
    let scalar = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        (-1e9..1e9).prop_map(Value::from),
        "[a-c\"\\\\/~ é\n]{0,6}".prop_map(Value::from),
    ];
    scalar.prop_recursive(5, 80, 12, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..12).prop_map(Value::from),
            prop::collection::btree_map("[a-e\"~/]{0,2}", inner, 0..14)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn an_outline_holds_what_the_text_holds(value in value(), pretty in any::<bool>()) {
        let text = match pretty {
            true => serde_json::to_string_pretty(&value).unwrap(),
            false => value.to_string(),
        };
        let outline = outline(&text);
        prop_assert_eq!(tree(&outline.root()), value.clone());
        prop_assert!(outline.root().equals_value(&value));
        prop_assert_eq!(outline.duplicate(), None);
    }

    #[test]
    fn an_edit_does_to_the_text_what_it_does_to_the_tree(
        value in value(),
        edits in prop::collection::vec(("(/([a-e]|0|1|2|-)){0,3}", value()), 0..5),
    ) {
        let fields: Vec<BodyField> = edits
            .iter()
            .map(|(pointer, json)| BodyField { pointer: pointer.clone(), json: json.to_string() })
            .collect();
        let mut expected = value.clone();
        let applied = set_all(&mut expected, &fields);
        let outline = outline(&value.to_string());
        match splice(&outline, fields) {
            Ok(text) => {
                prop_assert_eq!(applied, Ok(()));
                prop_assert_eq!(serde_json::from_slice::<Value>(&text).unwrap(), expected);
            }
            Err(rule) => prop_assert_eq!(applied, Err(rule)),
        }
    }

    #[test]
    fn no_text_makes_it_panic(text in "[\\[\\]{}:,\"\\\\a0-9 .e-]{0,40}") {
        let read = Outline::read(Bytes::from(text.clone()));
        prop_assert_eq!(read.is_ok(), serde_json::from_str::<serde::de::IgnoredAny>(&text).is_ok());
    }
}

/// The meaning of an edit, on a tree.
fn set_all(root: &mut Value, fields: &[BodyField]) -> Result<(), &'static str> {
    for field in fields {
        let mut here = &mut *root;
        for part in field.pointer.split('/').skip(1) {
            if here.is_null() {
                *here = json!({});
            }
            here = match here {
                Value::Object(object) => object.entry(part).or_insert(Value::Null),
                Value::Array(list) => {
                    let at = match part {
                        "-" => list.len(),
                        index => index.parse().map_err(|_| "edit-pointer")?,
                    };
                    if at == list.len() {
                        list.push(Value::Null);
                    }
                    list.get_mut(at).ok_or("edit-pointer")?
                }
                _ => return Err("edit-pointer"),
            };
        }
        *here = serde_json::from_str(&field.json).unwrap();
    }
    Ok(())
}

fn edited(body: &str, edits: &[(&str, &str)]) -> Result<String, &'static str> {
    let field = |(pointer, json): &(&str, &str)| BodyField {
        pointer: (*pointer).into(),
        json: (*json).into(),
    };
    let text = splice(&outline(body), edits.iter().map(field).collect())?;
    Ok(String::from_utf8(text.to_vec()).unwrap())
}

#[test]
fn an_edit_leaves_the_text_around_it_as_it_is() {
    let edits = [
        ("/b", "[ 9 ]"),
        ("/new/deep", "true"),
        ("/list/-", "8"),
        ("/list/0", "7"),
    ];
    assert_eq!(
        edited(r#"{ "a": 1.50, "b" : {"x": 1}, "list": [1 , 2] }"#, &edits).unwrap(),
        r#"{ "a": 1.50, "b" : [ 9 ], "list": [7 , 2,8] ,"new":{"deep":true}}"#
    );
    assert_eq!(
        edited("[]", &[("", r#"{"a":1}"#), ("/a", "2")]).unwrap(),
        r#"{"a":2}"#
    );
}

#[test]
fn an_edit_of_a_place_that_cannot_be_is_refused() {
    let body = r#"{"number":1,"list":[]}"#;
    for (edit, rule) in [
        (("/number/x", "1"), "edit-pointer"),
        (("/list/5", "1"), "edit-pointer"),
        (("/list/x", "1"), "edit-pointer"),
        (("no-slash", "1"), "edit-pointer"),
        (("/x", "{"), "edit-json"),
    ] {
        assert_eq!(edited(body, &[edit]), Err(rule));
    }
    let many = vec![("/x", "1"); crate::plugin::json::pointer::EDITS_MAX + 1];
    assert_eq!(edited(body, &many), Err("edit-count"));
    let parts = format!("[{}]", vec![r#"{"":0}"#; PARTS_MAX / 3].join(","));
    assert!(edited(body, &[("/x", &parts)]).is_ok());
    assert_eq!(
        edited(body, &[("/x", &parts), ("/y", &parts)]),
        Err("edit-parts")
    );
}

#[test]
fn containers_and_members_are_bounded_and_values_in_lists_are_not() {
    let read = |text: String| Outline::read(Bytes::from(text)).err();
    let objects = |n: usize| format!("[{}]", vec![r#"{"":0}"#; n].join(","));
    assert_eq!(read(objects((PARTS_MAX - 1) / 2)), None);
    assert_eq!(read(objects(PARTS_MAX / 2)), Some(OutlineError::TooComplex));
    assert_eq!(read(format!("[{}]", vec!["7"; 1_000_000].join(","))), None);
    assert_eq!(read("[".repeat(DEPTH_MAX) + &"]".repeat(DEPTH_MAX)), None);
    let deep = "[".repeat(DEPTH_MAX + 1) + &"]".repeat(DEPTH_MAX + 1);
    assert_eq!(read(deep), Some(OutlineError::TooComplex));
}

#[test]
fn the_index_of_a_list_of_numbers_takes_no_memory() {
    let text = format!("[{}]", vec!["255"; 1_000_000].join(","));
    let outline = outline(&text);
    let items = outline.root().as_array().unwrap();
    assert_eq!(Array::len(&items), 1_000_000);
    let last = items.elements().last().unwrap();
    assert_eq!(last.raw(), b"255");
}

#[test]
fn a_name_that_stands_twice_is_found_with_its_place() {
    let found = |text: &str| outline(text).duplicate().map(|found| found.pointer.clone());
    assert_eq!(found(r#"{"a":1,"b":2}"#), None);
    assert_eq!(
        found(r#"{"prompt":5,"prompt":"a"}"#).as_deref(),
        Some("/prompt")
    );
    assert_eq!(
        found(r#"{"prompt":5,"pr\u006fmpt":"a"}"#).as_deref(),
        Some("/prompt")
    );
    let nested = r#"{"x":[0,{"a/b":1},{"y":{"k~":1,"l":2,"k~":3}}]}"#;
    assert_eq!(found(nested).as_deref(), Some("/x/2/y/k~0"));
    assert_eq!(
        outline(r#"{"a":1,"a":2}"#)
            .root()
            .pointer("/a")
            .unwrap()
            .raw(),
        b"2"
    );
}

#[test]
fn items_are_the_same_however_their_numbers_are_written() {
    let unique = |text: &str| Array::is_unique(&outline(text).root().as_array().unwrap());
    assert!(unique(r#"[1,2,"1",{"a":1},{"a":2},[1],[2],true,null]"#));
    assert!(!unique("[1,2,1.0]"));
    assert!(!unique("[0,-0.0]"));
    assert!(!unique("[100,1e2]"));
    assert!(!unique(r#"[{"a":1,"b":2},{"b":2,"a":1.0}]"#));
    assert!(!unique(r#"["é","\u00e9"]"#));
}

#[test]
fn work_over_a_text_is_bounded_by_its_length() {
    let outline = outline(&format!("[{}]", vec!["7"; 1000].join(",")));
    let walk = || outline.root().as_array().unwrap().elements().count();
    while !outline.is_exhausted() {
        if outline.root().as_array().is_some() {
            walk();
        }
    }
    assert_eq!(outline.root().as_array().map(|items| items.count()), None);
    outline.refill(u32::MAX);
    assert_eq!(walk(), 1000);
}
