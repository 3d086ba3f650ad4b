//! A JSON object written member by member from values that are JSON already.
//!
//! Values are not checked: they come from a parser or are constants. Called by the backends to
//! shape request bodies without building a tree.

/// An object being written.
pub(super) struct JsonObject(String);

impl JsonObject {
    /// An empty one, with room for `capacity` bytes.
    pub(super) fn with_capacity(capacity: usize) -> JsonObject {
        let mut json = String::with_capacity(capacity);
        json.push('{');
        JsonObject(json)
    }

    /// Adds a member; `json` is the value as it shall stand there.
    pub(super) fn member(&mut self, name: &str, json: &str) {
        if self.0.len() > 1 {
            self.0.push(',');
        }
        self.0.push_str(&quoted(name));
        self.0.push(':');
        self.0.push_str(json);
    }

    /// The object as text.
    pub(super) fn finish(mut self) -> String {
        self.0.push('}');
        self.0
    }
}

/// A JSON list of values that are JSON already.
pub(super) fn list<'a>(values: impl IntoIterator<Item = &'a str>) -> String {
    let mut list = String::from("[");
    for value in values {
        if list.len() > 1 {
            list.push(',');
        }
        list.push_str(value);
    }
    list.push(']');
    list
}

/// A text as a JSON string.
pub(super) fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_separated_and_names_quoted() {
        assert_eq!(JsonObject::with_capacity(0).finish(), "{}");
        let mut object = JsonObject::with_capacity(0);
        object.member("a\"", "1");
        object.member("b", &list(["1", "2"]));
        object.member("c", &list([]));
        assert_eq!(object.finish(), r#"{"a\"":1,"b":[1,2],"c":[]}"#);
    }
}
