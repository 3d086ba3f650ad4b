//! Usage objects of responses, in the OpenAI form that several dialects share.
//!
//! Not how tokens are counted: callers pass the numbers.

/// A `usage` object.
pub(super) fn usage(prompt: u64, output: u64) -> String {
    format!(
        r#"{{"prompt_tokens":{prompt},"completion_tokens":{output},"total_tokens":{},"prompt_tokens_details":{{"cached_tokens":0}}}}"#,
        prompt + output
    )
}
