//! Selection of places in a body, for a task that does not read all of it.
//!
//! Edits nothing (`splice.rs` does).

use infergate_core::task::BodyField;

use crate::plugin::json::Outline;

/// Selected places that exist, as they are written. The result is at most as long as the body if no places
/// [`overlap`](crate::plugin::json::pointer::overlap).
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
    use serde_json::json;

    use super::*;
    use crate::plugin::json::pointer::overlap;

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
}
