//! Request parameters that an operator sets for a model: the keys of `models[].parameters`.
//!
//! It does not touch a body; `api::body` does. Names are members of the request's JSON body, values are
//! sent as they stand here.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Members the gateway reads itself and writes for the server: they cannot be set.
pub const RESERVED: [&str; 4] = ["model", "stream", "stream_options", "options"];

/// Bounds on tokens, of which a negative one says that there is none.
const TOKEN_BOUNDS: [&str; 5] = [
    "max_tokens",
    "max_completion_tokens",
    "max_output_tokens",
    "max_new_tokens",
    "n_predict",
];

/// What becomes of the parameters of each request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Parameters {
    /// Sent where the request does not say, or says `null`.
    pub default: Map<String, Value>,
    /// Sent whatever the request says.
    pub force: Map<String, Value>,
    /// Largest numbers: a larger one in the request is lowered to it, and so is what is not a number, or an
    /// unlimited number of tokens (-1). What the request does not say is not capped.
    pub max: Map<String, Value>,
}

impl Parameters {
    /// Whether no request is changed.
    pub fn is_empty(&self) -> bool {
        self.default.is_empty() && self.force.is_empty() && self.max.is_empty()
    }

    /// What takes the place of `sent`, the value of `name` in a request; none where it stays.
    pub fn replacement(&self, name: &str, sent: &[u8]) -> Option<&Value> {
        if let Some(forced) = self.force.get(name) {
            return Some(forced);
        }
        if sent == b"null" {
            return self.default.get(name);
        }
        let max = self.max.get(name)?;
        let text = std::str::from_utf8(sent).ok();
        // Servers read "100" as a number too.
        let Some(number) = text.and_then(|text| text.parse::<f64>().ok()) else {
            return Some(max);
        };
        let has_no_bound = number < 0.0 && TOKEN_BOUNDS.contains(&name);
        (has_no_bound || number > max.as_f64()?).then_some(max)
    }

    /// What is added to a request in which `has` finds no such name.
    pub fn missing(&self, has: impl Fn(&str) -> bool) -> impl Iterator<Item = (&str, &Value)> {
        let unforced = |name: &&String| !self.force.contains_key(*name);
        let defaults = self.default.iter().filter(move |(name, _)| unforced(name));
        let all = self.force.iter().chain(defaults);
        all.map(|(name, value)| (name.as_str(), value))
            .filter(move |(name, _)| !has(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cap_holds_against_numbers_in_texts_and_tokens_without_a_bound() {
        let parameters: Parameters =
            serde_json::from_str(r#"{"max":{"max_tokens":9,"n":2,"penalty":1}}"#).unwrap();
        let becomes = |name: &str, sent: &str| {
            let value = parameters.replacement(name, sent.as_bytes());
            value.and_then(Value::as_u64)
        };
        assert_eq!(becomes("max_tokens", "-1"), Some(9));
        assert_eq!(becomes("max_tokens", "1e2"), Some(9));
        assert_eq!(becomes("max_tokens", "9"), None);
        assert_eq!(becomes("n", r#""100""#), Some(2));
        assert_eq!(becomes("n", "null"), None);
        assert_eq!(becomes("penalty", "-2.0"), None);
        assert_eq!(becomes("other", "100"), None);
    }
}
