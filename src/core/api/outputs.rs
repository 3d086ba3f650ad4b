//! Number of outputs that one request asks for: `n` and `best_of`, for each prompt.
//!
//! Not a validation: a value that is no count is 1 here, and the server refuses it. Called when a body
//! is parsed, for the reservation of an account's quota and for the end of streams.

use std::fmt;

use serde::de::{Deserializer as _, IgnoredAny, SeqAccess, Visitor};

use super::Operation;

/// Returns the outputs to generate, and those of them in the response; `value` looks up a member of the
/// body.
pub(super) fn count<'a>(
    operation: Operation,
    value: impl Fn(&str) -> Option<&'a [u8]>,
) -> (u32, u32) {
    let count = |key| {
        let text = value(key).and_then(|value| std::str::from_utf8(value).ok());
        let count = text.and_then(|text| text.parse().ok());
        count.unwrap_or(1_u32).max(1)
    };
    let prompts = match (operation, value("prompt")) {
        (Operation::Completions, Some(prompt)) => prompts(prompt),
        _ => 1,
    };
    let (n, best_of) = (count("n"), count("best_of"));
    let each = |count: u32| count.saturating_mul(prompts);
    (each(n.max(best_of)), each(n))
}

/// Prompts of a completion: a list of texts or of lists of tokens is several, any other value one.
fn prompts(value: &[u8]) -> u32 {
    let inner = value.strip_prefix(b"[").map(<[u8]>::trim_ascii_start);
    if !matches!(inner, Some([b'"' | b'[', ..])) {
        return 1;
    }
    struct PromptCount;
    impl<'de> Visitor<'de> for PromptCount {
        type Value = u32;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<u32, A::Error> {
            let mut count: u32 = 0;
            while list.next_element::<IgnoredAny>()?.is_some() {
                count = count.saturating_add(1);
            }
            Ok(count)
        }
    }
    let mut list = serde_json::Deserializer::from_slice(value);
    list.deserialize_seq(PromptCount).unwrap_or(1).max(1)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use crate::api::body::parse;
    use crate::api::{ApiDialect, Operation};

    #[test]
    fn outputs_are_counted_by_n_best_of_and_prompts() {
        let outputs = |operation, members: &str| {
            let body = Bytes::from(format!(r#"{{"model":"m"{members}}}"#));
            let call = parse(ApiDialect::OpenAi, operation, None, body).unwrap();
            (call.outputs, call.choices)
        };
        for (members, expected) in [
            ("", (1, 1)),
            (r#","n":128"#, (128, 128)),
            (r#","n":0"#, (1, 1)),
            (r#","n":"7""#, (1, 1)),
            (r#","n":2,"best_of":5"#, (5, 2)),
            (r#","prompt":"a""#, (1, 1)),
            (r#","prompt":[1,2,3]"#, (1, 1)),
            (r#","prompt":[]"#, (1, 1)),
            (r#","prompt":["a","b,[","c"],"n":2"#, (6, 6)),
            (r#","prompt":[[1,2],[3]]"#, (2, 2)),
            (
                r#","prompt":["a","b"],"n":4294967295"#,
                (u32::MAX, u32::MAX),
            ),
        ] {
            assert_eq!(
                outputs(Operation::Completions, members),
                expected,
                "{members}"
            );
        }
        assert_eq!(
            outputs(Operation::Chat, r#","prompt":["a","b"],"n":3"#),
            (3, 3)
        );
    }

    #[test]
    fn continuous_usage_is_asked_for_where_the_endpoint_has_it() {
        let sent = |members: &str| {
            let body = format!(r#"{{"model":"m","stream":true{members}}}"#);
            let body = Bytes::from(body);
            let mut call = parse(ApiDialect::OpenAi, Operation::Chat, None, body).unwrap();
            call.continuous_usage = true;
            String::from_utf8(call.openai_body("m").to_vec()).unwrap()
        };
        let asked = r#""stream_options":{"include_usage":true,"continuous_usage_stats":true}"#;
        assert!(sent("").contains(asked), "{}", sent(""));
        let own = sent(r#","stream_options":{"include_usage":true}"#);
        assert!(own.contains(asked), "{own}");
    }
}
