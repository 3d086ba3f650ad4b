//! The scanner against serde_json, and at its bounds.

use proptest::prelude::*;
use serde_json::{Map, Value};

use super::*;

fn scanned<'a>(chunks: impl IntoIterator<Item = &'a [u8]>) -> Option<Vec<u8>> {
    let mut scan = MemberScanner::new("usage");
    let mut last = None;
    for chunk in chunks {
        last = scan.push(chunk).map(<[u8]>::to_vec).or(last);
    }
    last
}

fn found(json: &str) -> Option<String> {
    let whole = scanned([json.as_bytes()]);
    for cut in 0..=json.len() {
        let (left, right) = json.as_bytes().split_at(cut);
        assert_eq!(scanned([left, right]), whole, "{json} cut at {cut}");
    }
    assert_eq!(
        scanned(json.as_bytes().chunks(1)),
        whole,
        "{json} byte by byte"
    );
    whole.map(|value| String::from_utf8(value).unwrap())
}

#[test]
fn a_top_level_member_is_found_wherever_it_stands() {
    assert_eq!(
        found(r#"{"usage":{"a":1},"data":[]}"#).unwrap(),
        r#"{"a":1}"#
    );
    assert_eq!(
        found(r#" { "data" : [ ] , "usage" : { "a" : [1,{}] } } "#).unwrap(),
        r#"{ "a" : [1,{}] }"#
    );
    assert_eq!(found(r#"{"usage":null}"#).unwrap(), "null");
    assert_eq!(found(r#"{"usage":-1.5e3 }"#).unwrap(), "-1.5e3");
    assert_eq!(found(r#"{"usage":"a\"}\\"}"#).unwrap(), r#""a\"}\\""#);
    assert_eq!(found(r#"{"us\u0061ge":true}"#).unwrap(), "true");
    assert_eq!(found(r#"{"usage":1,"usage":2}"#).unwrap(), "2");
}

#[test]
fn a_value_is_returned_once_and_again_where_its_name_is_repeated() {
    let mut scan = MemberScanner::new("usage");
    let mut taken = Vec::new();
    for chunk in [
        r#"{"usage":{"a":1}"#,
        r#","data":[1"#,
        ",2",
        "]",
        r#","usage":2,"#,
        r#""x":1}"#,
    ] {
        taken.extend(scan.push(chunk.as_bytes()).map(<[u8]>::to_vec));
    }
    assert_eq!(taken, [&b"{\"a\":1}"[..], b"2"]);
}

#[test]
fn names_and_brackets_elsewhere_do_not_count() {
    assert_eq!(
        found(r#"{"a":{"usage":1},"b":[{"usage":2}],"c":"\"usage\":3"}"#),
        None
    );
    assert_eq!(
        found(r#"{"a":"}]{[\\","b":["]",{"x":"[{\""}],"usage":4}"#).unwrap(),
        "4"
    );
    assert_eq!(found(r#"{"usag":1,"usages":2,"\\usage":3,"":4}"#), None);
}

#[test]
fn a_member_is_found_below_the_one_that_is_looked_into_and_no_deeper() {
    let found = |json: &str| {
        let scanned = |size: usize| {
            let mut scan = MemberScanner::new("usage").within("response");
            let mut all = Vec::new();
            for chunk in json.as_bytes().chunks(size) {
                all.extend(scan.push(chunk).map(<[u8]>::to_vec));
            }
            (String::from_utf8(all.concat()).unwrap(), scan.is_over())
        };
        for size in 1..json.len() {
            assert_eq!(scanned(size), scanned(1), "{json} in pieces of {size}");
        }
        scanned(1)
    };
    let (yes, no) = (
        [
            (
                r#"{"response":{"usage":{"a":1}},"x":{"usage":2}}"#,
                r#"{"a":1}"#,
            ),
            (r#"{ "respons\u0065" : { "a":[], "usage" : 1 } }"#, "1"),
            (r#"{"response":{"a":1,"b":{}},"usage":2}"#, "2"),
            (r#"{"response":{},"usage":2}"#, "2"),
        ],
        [
            r#"{"response":{"response":{"usage":1}}}"#,
            r#"{"response":[{"usage":1}],"a":{"usage":2}}"#,
            r#"{"a":{"response":{"usage":1}}}"#,
            r#"{"response":"{","a":{"usage":1}}"#,
        ],
    );
    for (json, value) in yes {
        assert_eq!(found(json), (value.to_owned(), true), "{json}");
    }
    for json in no {
        assert_eq!(found(json), (String::new(), true), "{json}");
    }
}

#[test]
fn what_is_not_a_whole_object_has_no_member() {
    for json in [
        "",
        "[]",
        "null",
        "{}",
        "x{\"usage\":1}",
        r#"{"usage":{"a":1"#,
        r#"{"usage":12"#,
    ] {
        assert_eq!(found(json), None, "{json}");
    }
}

#[test]
fn a_value_over_the_bound_is_let_go() {
    let just = format!(r#"{{"usage":"{}","z":0}}"#, "x".repeat(VALUE_BYTES_MAX - 2));
    let over = format!(r#"{{"usage":"{}","z":0}}"#, "x".repeat(VALUE_BYTES_MAX - 1));
    assert_eq!(scanned([just.as_bytes()]).unwrap().len(), VALUE_BYTES_MAX);
    assert_eq!(scanned([over.as_bytes()]), None);
    assert_eq!(scanned(over.as_bytes().chunks(1000)), None);
}

#[test]
fn a_key_over_the_bound_is_not_the_one() {
    let json = format!(r#"{{"{}":1,"usage":2}}"#, "k".repeat(2 * KEY_BYTES_MAX));
    assert_eq!(scanned([json.as_bytes()]).unwrap(), b"2");
}

fn any_json() -> impl Strategy<Value = Value> {
    let text = proptest::collection::vec(
        prop_oneof![
            Just("usage"),
            Just("\""),
            Just("\\"),
            Just("{"),
            Just("]"),
            Just("é\n"),
            Just(":")
        ],
        0..4,
    )
    .prop_map(|parts| parts.concat());
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        text.clone().prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 32, 5, move |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            proptest::collection::vec((text.clone(), inner), 0..5)
                .prop_map(|members| Value::Object(members.into_iter().collect::<Map<_, _>>())),
        ]
    })
}

/// Result of the scanner, by a walk that looks at every byte: places of the top-level keys and of the bytes
/// between which their values stand.
fn walked(json: &[u8], name: &[u8]) -> Option<Vec<u8>> {
    let (mut depth, mut in_text, mut escaped) = (0, false, false);
    let (mut from, mut key, mut value, mut found) = (0, None, None, None);
    for (at, &byte) in json.iter().enumerate() {
        if in_text {
            match byte {
                _ if escaped => escaped = false,
                b'\\' => escaped = true,
                b'"' => {
                    in_text = false;
                    if depth == 1 && value.is_none() {
                        key = Some(&json[from + 1..at]);
                    }
                }
                _ => {}
            }
            continue;
        }
        match byte {
            b'"' => (in_text, from) = (true, at),
            b'{' | b'[' => depth += 1,
            b':' if depth == 1 => value = Some(at + 1),
            b',' | b'}' if depth == 1 => {
                if let (Some(key), Some(value)) = (key.take(), value.take())
                    && key == name
                {
                    found = Some(json[value..at].trim_ascii().to_vec());
                }
                depth -= usize::from(byte == b'}');
            }
            b'}' | b']' => depth -= 1,
            _ => {}
        }
    }
    found
}

proptest! {
    #[test]
    fn a_walk_over_every_byte_finds_the_same(
        members in proptest::collection::vec((0..5usize, 0..60usize, 0..60usize, 0..7usize), 0..6),
        size in 1..90usize,
    ) {
        let member = |&(key, before, after, kind): &(usize, usize, usize, usize)| {
            let key = ["usage", "usages", "error", "a", "choices"][key];
            let text = format!("{}\\\"{}\\\\", "x".repeat(before), "{[".repeat(after));
            let value = match kind {
                0 => format!("\"{text}\""),
                1 => format!("{{ \"usage\" :\t{{\"{text}\":[\"]\",{{}}]}} }}"),
                2 => format!("[[\"{text}\"],{{\"usage\":\"}}\"}},1]"),
                3 => "12.5e3".to_owned(),
                4 => " null".to_owned(),
                5 => "{ }".to_owned(),
                _ => format!("\"{}\"", "y".repeat(before)),
            };
            format!("\"{key}\":{value}")
        };
        let members: Vec<String> = members.iter().map(member).collect();
        let json = format!("{{{}}}", members.join(","));
        let walk = walked(json.as_bytes(), b"usage");
        prop_assert_eq!(scanned(json.as_bytes().chunks(size)), walk.clone(), "{}", json);
        prop_assert_eq!(scanned([json.as_bytes()]), walk);
        let mut scan = MemberScanner::new("usage").watching("error");
        json.as_bytes().chunks(size).for_each(|chunk| drop(scan.push(chunk).map(<[u8]>::to_vec)));
        prop_assert_eq!(scan.has_watched(), walked(json.as_bytes(), b"error").is_some());
        prop_assert!(scan.is_over());
    }

    #[test]
    fn the_scanner_agrees_with_a_parsed_tree(
        json in any_json(), pretty in any::<bool>(), size in 1..40usize,
    ) {
        let bytes = if pretty { serde_json::to_vec_pretty(&json) } else { serde_json::to_vec(&json) }.unwrap();
        let value = scanned(bytes.chunks(size));
        let value = value.map(|value| serde_json::from_slice::<Value>(&value).unwrap());
        prop_assert_eq!(value.as_ref(), json.as_object().and_then(|object| object.get("usage")));
    }

    #[test]
    fn no_bytes_make_the_scanner_fail(bytes in proptest::collection::vec(any::<u8>(), 0..80), size in 1..9usize) {
        let _ = scanned(bytes.chunks(size));
        let member = [&b"{\"usage\":"[..], &bytes].concat();
        prop_assert_eq!(scanned(member.chunks(size)), scanned([&member[..]]));
    }
}
