//! JSON Pointers (RFC 6901) into a body: places that a task selects, and places that it sets.
//!
//! Keeps nothing and edits nothing (`json/splice.rs` does). A pointer has at most [`POINTER_MAX_BYTES`], an
//! edit at most [`EDITS_MAX`] places.

use infergate_core::task::BodyField;

use super::json::Outline;

/// Deeper or longer ones have no use.
pub const POINTER_MAX_BYTES: usize = 1024;
/// Places one edit may set, and one task may select.
pub const EDITS_MAX: usize = 256;

/// A key as a part of a pointer.
pub fn escape(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

/// A part of a pointer as a key.
pub fn unescape(part: &str) -> String {
    part.replace("~1", "/").replace("~0", "~")
}

/// True when the text is a JSON Pointer. A `~` stands for nothing by itself, so that one place has one name.
pub fn is_pointer(text: &str) -> bool {
    let is_written_out = || {
        let escapes = text.split('~').skip(1);
        escapes.into_iter().all(|rest| rest.starts_with(['0', '1']))
    };
    let is_path = text.is_empty() || text.starts_with('/');
    text.len() <= POINTER_MAX_BYTES && is_path && is_written_out()
}

/// True when one of the pointers names a place twice, or one inside another's. Each must be one
/// ([`is_pointer`]).
pub fn overlap(pointers: &[String]) -> bool {
    let holds = |outer: &str, inner: &str| {
        let rest = inner.strip_prefix(outer);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    pointers.iter().enumerate().any(|(at, one)| {
        let others = &pointers[at + 1..];
        others
            .iter()
            .any(|other| holds(one, other) || holds(other, one))
    })
}

/// Selected places that exist, as they are written. Where places do not [`overlap`], the result is at most
/// as long as the body.
pub fn pick(body: &Outline, wants: &[String]) -> Vec<BodyField> {
    body.refill(u32::MAX);
    let found = |pointer: &String| {
        let json = body.root().pointer(pointer)?.raw();
        Some(BodyField {
            pointer: pointer.clone(),
            json: String::from_utf8_lossy(json).into_owned(),
        })
    };
    wants.iter().filter_map(found).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn outline(value: serde_json::Value) -> Outline {
        Outline::read(value.to_string().into()).unwrap()
    }

    fn field(pointer: &str, json: &str) -> BodyField {
        BodyField {
            pointer: pointer.into(),
            json: json.into(),
        }
    }

    #[test]
    fn only_wanted_places_that_exist_are_picked() {
        let body = json!({ "a": { "b/c": [1, 2] }, "secret": "x" });
        let wants = ["/a/b~1c/1".to_owned(), "/missing".to_owned()];
        assert_eq!(pick(&outline(body), &wants), [field("/a/b~1c/1", "2")]);
    }

    #[test]
    fn what_is_picked_is_at_most_the_body() {
        let body = json!({ "a": "x".repeat(100), "b": ["y".repeat(50), 1] });
        let wants = ["/a", "/b/0", "/b/1"].map(str::to_owned);
        assert!(!overlap(&wants));
        let picked: usize = pick(&outline(body.clone()), &wants)
            .iter()
            .map(|f| f.json.len())
            .sum();
        assert!(picked <= body.to_string().len());
    }

    #[test]
    fn a_place_has_one_name_so_that_overlaps_are_seen() {
        let names = |all: &[&str]| all.iter().map(|one| (*one).to_owned()).collect::<Vec<_>>();
        assert!(is_pointer("") && is_pointer("/a~0b/c~1d") && is_pointer("/~01"));
        // The same key as "/a~0b", by readers that let it pass.
        assert!(!is_pointer("/a~b") && !is_pointer("/a~") && !is_pointer("/~2"));
        assert!(!is_pointer("a"));
        assert!(overlap(&names(&["/a~1b", "/c", "/a~1b/0"])));
        assert!(!overlap(&names(&["/a~1b", "/a/b", "/a~0b", "/ab"])));
        assert!(overlap(&names(&["/messages", "/messages/0"])));
        assert!(overlap(&names(&["/x", "/x"])));
    }
}
