//! Token counts of one request, read from the reports of model servers.
//!
//! Neither the bill nor an estimate: counts that a server did not report are absent. Counts are tokens; a
//! count that is negative, not a number or above [`TOKENS_MAX`] is treated as absent. Called by the
//! response decoders and by the event of each request.

mod plain;

use serde::Deserialize;
use serde_json::value::RawValue;

/// No request has more tokens; a larger figure is a broken report. Also the largest whole number
/// that every JSON reader agrees on (2^53).
pub const TOKENS_MAX: u64 = 1 << 53;

/// Tokens of one request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Prompt tokens, cached ones included.
    pub input_tokens: u64,
    /// Generated tokens, reasoning included.
    pub output_tokens: u64,
    /// Prompt tokens that came from a prefix cache.
    pub cached_tokens: Option<u64>,
    /// Generated tokens that were reasoning.
    pub reasoning_tokens: Option<u64>,
}

impl Usage {
    /// Reads an OpenAI `usage` object, of chat (`prompt_tokens`) or responses (`input_tokens`)
    /// style. `None` when it reports neither side.
    pub fn from_openai(json: &[u8]) -> Option<Usage> {
        let counts = plain::counts(json).or_else(|| openai_counts(json))?;
        let input = counts.prompt.or(counts.input);
        let output = counts.completion.or(counts.output);
        if input.is_none() && output.is_none() {
            return None;
        }
        Some(Usage {
            input_tokens: input.unwrap_or(0),
            output_tokens: output.unwrap_or(0),
            cached_tokens: counts.cached,
            reasoning_tokens: counts.reasoning,
        })
    }

    /// Reads the `details` of Text Generation Inference: `generated_tokens`, and `input_length`
    /// where the version reports it.
    pub fn from_tgi_details(json: &[u8]) -> Option<Usage> {
        let report: TgiDetails<'_> = serde_json::from_slice(json).ok()?;
        Some(Usage {
            input_tokens: count(report.input_length).unwrap_or(0),
            output_tokens: count(report.generated_tokens)?,
            ..Usage::default()
        })
    }

    /// Reads a prompt token count that stands in a response header.
    pub fn from_input_header(value: &[u8]) -> Option<Usage> {
        let input_tokens = parse_count(std::str::from_utf8(value).ok()?.trim())?;
        Some(Usage {
            input_tokens,
            ..Usage::default()
        })
    }

    /// Joins two reports on one request. Reports are cumulative, so the larger count is the later
    /// one, whatever the order in which they arrive.
    pub fn merge(self, other: Usage) -> Usage {
        Usage {
            input_tokens: self.input_tokens.max(other.input_tokens),
            output_tokens: self.output_tokens.max(other.output_tokens),
            cached_tokens: self.cached_tokens.max(other.cached_tokens),
            reasoning_tokens: self.reasoning_tokens.max(other.reasoning_tokens),
        }
    }

    /// As [`Usage::merge`], where either may be missing.
    pub fn join(one: Option<Usage>, other: Option<Usage>) -> Option<Usage> {
        match (one, other) {
            (Some(one), Some(other)) => Some(one.merge(other)),
            (one, other) => one.or(other),
        }
    }

    /// Writes an OpenAI `usage` object.
    pub fn to_openai(self) -> String {
        let Usage {
            input_tokens,
            output_tokens,
            cached_tokens,
            reasoning_tokens,
        } = self;
        let total_tokens = input_tokens.saturating_add(output_tokens);
        let mut json = format!(
            r#"{{"prompt_tokens":{input_tokens},"completion_tokens":{output_tokens},"total_tokens":{total_tokens}"#
        );
        if let Some(tokens) = cached_tokens {
            json += &format!(r#","prompt_tokens_details":{{"cached_tokens":{tokens}}}"#);
        }
        if let Some(tokens) = reasoning_tokens {
            json += &format!(r#","completion_tokens_details":{{"reasoning_tokens":{tokens}}}"#);
        }
        json + "}"
    }
}

/// Counts of an OpenAI `usage` object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct OpenAiCounts {
    prompt: Option<u64>,
    completion: Option<u64>,
    input: Option<u64>,
    output: Option<u64>,
    cached: Option<u64>,
    reasoning: Option<u64>,
}

/// Counts of an object in any form.
fn openai_counts(json: &[u8]) -> Option<OpenAiCounts> {
    let report: OpenAiUsage<'_> = serde_json::from_slice(json).ok()?;
    let prompt = details(report.prompt_tokens_details.or(report.input_tokens_details));
    let completion = details(
        report
            .completion_tokens_details
            .or(report.output_tokens_details),
    );
    Some(OpenAiCounts {
        prompt: count(report.prompt_tokens),
        completion: count(report.completion_tokens),
        input: count(report.input_tokens),
        output: count(report.output_tokens),
        cached: count(prompt.cached_tokens),
        reasoning: count(completion.reasoning_tokens),
    })
}

/// Counts stay raw: one that is no number must not hide the others.
#[derive(Deserialize)]
struct OpenAiUsage<'a> {
    #[serde(borrow)]
    prompt_tokens: Option<&'a RawValue>,
    #[serde(borrow)]
    completion_tokens: Option<&'a RawValue>,
    #[serde(borrow)]
    input_tokens: Option<&'a RawValue>,
    #[serde(borrow)]
    output_tokens: Option<&'a RawValue>,
    #[serde(borrow)]
    prompt_tokens_details: Option<&'a RawValue>,
    #[serde(borrow)]
    completion_tokens_details: Option<&'a RawValue>,
    #[serde(borrow)]
    input_tokens_details: Option<&'a RawValue>,
    #[serde(borrow)]
    output_tokens_details: Option<&'a RawValue>,
}

#[derive(Default, Deserialize)]
struct OpenAiUsageDetails<'a> {
    #[serde(borrow)]
    cached_tokens: Option<&'a RawValue>,
    #[serde(borrow)]
    reasoning_tokens: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct TgiDetails<'a> {
    #[serde(borrow)]
    generated_tokens: Option<&'a RawValue>,
    #[serde(borrow)]
    input_length: Option<&'a RawValue>,
}

fn details(raw: Option<&RawValue>) -> OpenAiUsageDetails<'_> {
    raw.and_then(|raw| serde_json::from_str(raw.get()).ok())
        .unwrap_or_default()
}

fn count(raw: Option<&RawValue>) -> Option<u64> {
    parse_count(raw?.get())
}

/// Some servers write whole numbers as `12.0`.
fn parse_count(text: &str) -> Option<u64> {
    let tokens = match text.parse::<u64>() {
        Ok(tokens) => tokens,
        Err(_) => {
            let tokens: f64 = text.parse().ok()?;
            if !(0.0..=TOKENS_MAX as f64).contains(&tokens) {
                return None;
            }
            tokens as u64
        }
    };
    (tokens <= TOKENS_MAX).then_some(tokens)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn openai(json: &str) -> Option<Usage> {
        Usage::from_openai(json.as_bytes())
    }

    #[test]
    fn every_usual_shape_of_usage_is_read() {
        let plain = Usage {
            input_tokens: 7,
            output_tokens: 5,
            ..Usage::default()
        };
        assert_eq!(
            openai(r#"{"prompt_tokens":7,"completion_tokens":5,"total_tokens":12}"#),
            Some(plain)
        );
        assert_eq!(
            openai(r#"{"input_tokens":7,"output_tokens":5}"#),
            Some(plain)
        );
        assert_eq!(
            openai(
                r#"{"prompt_tokens":7,"total_tokens":12,"completion_tokens":5,"prompt_tokens_details":null}"#
            ),
            Some(plain),
        );
        let detailed = Usage {
            cached_tokens: Some(4),
            reasoning_tokens: Some(2),
            ..plain
        };
        let json = r#"{"prompt_tokens":7,"completion_tokens":5,"total_tokens":12,"prompt_tokens_details":{"cached_tokens":4},"completion_tokens_details":{"reasoning_tokens":2}}"#;
        assert_eq!(openai(json), Some(detailed));
        let responses = r#"{"input_tokens":7,"output_tokens":5,"input_tokens_details":{"cached_tokens":4},"output_tokens_details":{"reasoning_tokens":2}}"#;
        assert_eq!(openai(responses), Some(detailed));
        assert_eq!(openai(&responses.replace(":7", ":7.0")), Some(detailed));
        assert_eq!(detailed.to_openai(), json);
        let embeddings = Usage {
            output_tokens: 0,
            ..plain
        };
        assert_eq!(
            openai(r#"{"prompt_tokens":7,"total_tokens":7}"#),
            Some(embeddings)
        );
    }

    #[test]
    fn a_broken_count_is_taken_as_not_said() {
        for bad in [
            "-1",
            "null",
            "\"7\"",
            "1e999",
            "1e300",
            "9007199254740993",
            "{}",
            "-0.5",
        ] {
            let json = format!(r#"{{"prompt_tokens":{bad},"completion_tokens":5}}"#);
            assert_eq!(
                openai(&json),
                Some(Usage {
                    output_tokens: 5,
                    ..Usage::default()
                }),
                "{bad}"
            );
        }
        let whole = Usage {
            input_tokens: 12,
            ..Usage::default()
        };
        assert_eq!(
            openai(r#"{"prompt_tokens":12.0,"prompt_tokens_details":[]}"#),
            Some(whole)
        );
    }

    #[test]
    fn a_report_without_counts_is_none() {
        for json in ["null", "{}", "[]", "7", "", r#"{"prompt_tokens":null}"#] {
            assert_eq!(openai(json), None, "{json}");
        }
    }

    #[test]
    fn tgi_reports_what_it_made_and_newer_versions_what_they_read() {
        let old = br#"{"finish_reason":"length","generated_tokens":20,"seed":null,"prefill":[],"tokens":[]}"#;
        assert_eq!(Usage::from_tgi_details(old).unwrap().output_tokens, 20);
        let new =
            br#"{"finish_reason":"length","generated_tokens":20,"seed":null,"input_length":9}"#;
        assert_eq!(Usage::from_tgi_details(new).unwrap().input_tokens, 9);
        assert_eq!(Usage::from_tgi_details(b"null"), None);
        assert_eq!(Usage::from_input_header(b"9").unwrap().input_tokens, 9);
        assert_eq!(Usage::from_input_header(b"many"), None);
    }

    #[test]
    fn merging_cumulative_reports_keeps_the_largest_in_any_order() {
        let first = Usage {
            input_tokens: 9,
            output_tokens: 1,
            ..Usage::default()
        };
        let last = Usage {
            input_tokens: 9,
            output_tokens: 20,
            cached_tokens: Some(3),
            ..Usage::default()
        };
        assert_eq!(first.merge(last), last);
        assert_eq!(last.merge(first), last);
        assert_eq!(Usage::join(Some(first), Some(last)), Some(last));
        assert_eq!(Usage::join(None, Some(last)), Some(last));
        assert_eq!(Usage::join(Some(last), None), Some(last));
    }
}
