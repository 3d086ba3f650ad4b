//! Request parameters that an operator sets for a model: the keys of `models[].parameters`.
//!
//! Bodies are edited by `api::body`, not here. Names are members of the request's JSON body, values are
//! sent as they stand here.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Members the gateway reads itself and writes for the server: they cannot be set.
pub const RESERVED: [&str; 4] = ["model", "stream", "stream_options", "options"];

/// Bounds on tokens; a negative one means none.
const TOKEN_BOUNDS: [&str; 5] = [
    "max_tokens",
    "max_completion_tokens",
    "max_output_tokens",
    "max_new_tokens",
    "n_predict",
];

/// Names of one bound, in which clients and servers differ: what stands in the configuration for one of them
/// is said of all.
const SAME_BOUND: [&str; 3] = ["max_tokens", "max_completion_tokens", "max_output_tokens"];

/// Rules for the parameters of each request. `max_tokens`, `max_completion_tokens` and
/// `max_output_tokens` are one parameter: a rule for one holds for the others that are not named.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Parameters {
    /// Sent where the request has no such parameter, or `null`.
    pub default: Map<String, Value>,
    /// Sent in place of the request's value.
    pub force: Map<String, Value>,
    /// Largest numbers. A larger one in the request is lowered to it, as is a value that is not a number, or an
    /// unlimited number of tokens (-1). A parameter that the request leaves out is not capped. `max_tokens` caps
    /// `max_completion_tokens` and `max_output_tokens` too.
    pub max: Map<String, Value>,
}

impl Parameters {
    /// Returns whether no request is changed.
    pub fn is_empty(&self) -> bool {
        self.default.is_empty() && self.force.is_empty() && self.max.is_empty()
    }

    /// Returns the replacement of `sent`, the value of `name` in a request; none where it stays. The last
    /// argument returns whether a name has a value there that is not `null`.
    pub fn replacement(
        &self,
        name: &str,
        sent: &[u8],
        is_set: impl Fn(&str) -> bool,
    ) -> Option<&Value> {
        if let Some(forced) = value_of(&self.force, name) {
            return Some(forced);
        }
        if sent == b"null" {
            let is_in_request = same_as(name).any(is_set);
            return value_of(&self.default, name).filter(|_| !is_in_request);
        }
        let max = value_of(&self.max, name)?;
        let text = std::str::from_utf8(sent).ok();
        // Servers read "100" as a number too.
        let Some(number) = text.and_then(|text| text.parse::<f64>().ok()) else {
            return Some(max);
        };
        let has_no_bound = number < 0.0 && TOKEN_BOUNDS.contains(&name);
        (has_no_bound || number > max.as_f64()?).then_some(max)
    }

    /// Returns the members to add to a request, given a test for names that it has.
    pub fn missing(&self, has: impl Fn(&str) -> bool) -> impl Iterator<Item = (&str, &Value)> {
        let unforced = |name: &&String| value_of(&self.force, name).is_none();
        let defaults = self.default.iter().filter(move |(name, _)| unforced(name));
        let all = self.force.iter().chain(defaults);
        all.map(|(name, value)| (name.as_str(), value))
            .filter(move |(name, _)| !has(name) && !same_as(name).any(&has))
    }
}

/// Returns the value of `name` in `values`, under this name or another one of the same bound.
fn value_of<'a>(values: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    let other = || same_as(name).find_map(|same| values.get(same));
    values.get(name).or_else(other)
}

/// The other names of the bound that `name` is.
fn same_as(name: &str) -> impl Iterator<Item = &'static str> {
    let is_one = SAME_BOUND.contains(&name);
    SAME_BOUND
        .into_iter()
        .filter(move |same| is_one && *same != name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cap_holds_against_numbers_in_texts_and_tokens_without_a_bound() {
        let parameters: Parameters =
            serde_json::from_str(r#"{"max":{"max_tokens":9,"n":2,"penalty":1}}"#).unwrap();
        let becomes = |name: &str, sent: &str| {
            let value = parameters.replacement(name, sent.as_bytes(), |_| false);
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

    #[test]
    fn what_is_said_of_one_name_of_the_bound_on_tokens_holds_for_the_others() {
        let parameters = |json: &str| serde_json::from_str::<Parameters>(json).unwrap();
        let capped = parameters(r#"{"max":{"max_tokens":9,"max_output_tokens":5}}"#);
        let becomes = |name: &str| {
            let value = capped.replacement(name, b"100", |_| false);
            value.and_then(Value::as_u64)
        };
        assert_eq!(becomes("max_tokens"), Some(9));
        assert_eq!(becomes("max_completion_tokens"), Some(9));
        assert_eq!(becomes("max_output_tokens"), Some(5));
        assert_eq!(becomes("max_new_tokens"), None);

        let forced = parameters(r#"{"force":{"max_tokens":7}}"#);
        let replaced = forced.replacement("max_completion_tokens", b"100", |_| true);
        assert_eq!(replaced, Some(&Value::from(7)));
        let added = |parameters: &Parameters, has: &str| {
            let missing = parameters.missing(|name| name == has);
            missing.map(|(name, _)| name.to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(added(&forced, "max_completion_tokens"), [""; 0]);
        assert_eq!(added(&forced, "n"), ["max_tokens"]);

        let default = parameters(r#"{"default":{"max_completion_tokens":7}}"#);
        assert_eq!(added(&default, "max_tokens"), [""; 0]);
        assert_eq!(added(&default, "n"), ["max_completion_tokens"]);
        let null = |says: &str| default.replacement("max_tokens", b"null", |name| name == says);
        assert_eq!(null("max_output_tokens"), None);
        assert_eq!(null("n"), Some(&Value::from(7)));
    }
}
