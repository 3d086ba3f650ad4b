//! Usage objects in the form in which servers write them: whole numbers, nulls, and objects of such.
//!
//! Not a parser of JSON: anything else, an escape or a name that is repeated among it, is left to one. No
//! allocation; objects are followed to a depth of [`DEPTH_MAX`].

use memchr::memchr2;

use super::{OpenAiCounts, TOKENS_MAX};

/// Objects in objects. Details of usage are one deep.
const DEPTH_MAX: u32 = 4;

/// Digits of a number that fits into 64 bits whatever they are.
const DIGITS_MAX: usize = 18;

/// Reads the counts; none where the object has another form.
pub(super) fn counts(json: &[u8]) -> Option<OpenAiCounts> {
    let mut reader = PlainReader {
        rest: json,
        counts: OpenAiCounts::default(),
        seen: 0,
    };
    reader.skip_blanks();
    reader.expect(b'{')?;
    reader.object(Scope::Usage, DEPTH_MAX)?;
    reader.skip_blanks();
    reader.rest.is_empty().then_some(reader.counts)
}

/// Object that is being read.
#[derive(Clone, Copy)]
enum Scope {
    Usage,
    PromptDetails,
    CompletionDetails,
    /// One that has no count of ours.
    Other,
}

/// Member that is known.
#[derive(Clone, Copy)]
enum KnownMember {
    Prompt,
    Completion,
    Input,
    Output,
    PromptDetails,
    CompletionDetails,
    Cached,
    Reasoning,
}

impl KnownMember {
    fn of(scope: Scope, key: &[u8]) -> Option<KnownMember> {
        Some(match (scope, key) {
            (Scope::Usage, b"prompt_tokens") => KnownMember::Prompt,
            (Scope::Usage, b"completion_tokens") => KnownMember::Completion,
            (Scope::Usage, b"input_tokens") => KnownMember::Input,
            (Scope::Usage, b"output_tokens") => KnownMember::Output,
            (Scope::Usage, b"prompt_tokens_details" | b"input_tokens_details") => {
                KnownMember::PromptDetails
            }
            (Scope::Usage, b"completion_tokens_details" | b"output_tokens_details") => {
                KnownMember::CompletionDetails
            }
            (Scope::PromptDetails, b"cached_tokens") => KnownMember::Cached,
            (Scope::CompletionDetails, b"reasoning_tokens") => KnownMember::Reasoning,
            _ => return None,
        })
    }

    /// Scope of the object that is its value; none where the value is a count.
    fn scope(self) -> Option<Scope> {
        match self {
            KnownMember::PromptDetails => Some(Scope::PromptDetails),
            KnownMember::CompletionDetails => Some(Scope::CompletionDetails),
            _ => None,
        }
    }
}

struct PlainReader<'a> {
    rest: &'a [u8],
    counts: OpenAiCounts,
    /// A bit for each known member that was read.
    seen: u8,
}

impl<'a> PlainReader<'a> {
    /// Reads an object behind its opening brace.
    fn object(&mut self, scope: Scope, depth: u32) -> Option<()> {
        self.skip_blanks();
        if self.rest.first() == Some(&b'}') {
            return self.expect(b'}');
        }
        loop {
            self.member(scope, depth)?;
            self.skip_blanks();
            match self.rest.first()? {
                b',' => {
                    self.expect(b',')?;
                    self.skip_blanks();
                }
                _ => return self.expect(b'}'),
            }
        }
    }

    fn member(&mut self, scope: Scope, depth: u32) -> Option<()> {
        let key = self.key()?;
        let known = KnownMember::of(scope, key);
        if known.is_none() && !key.iter().all(|byte| matches!(byte, b' '..=b'~')) {
            return None;
        }
        if let Some(known) = known {
            let bit = 1 << known as u8;
            if self.seen & bit != 0 {
                return None;
            }
            self.seen |= bit;
        }
        self.skip_blanks();
        self.expect(b':')?;
        self.skip_blanks();
        let inner = known.map_or(Some(Scope::Other), KnownMember::scope);
        match self.rest.first()? {
            b'{' => {
                self.expect(b'{')?;
                self.object(inner?, depth.checked_sub(1)?)
            }
            b'n' => {
                self.rest = self.rest.strip_prefix(b"null")?;
                Some(())
            }
            _ => {
                let number = self.number()?;
                match known {
                    Some(known) => self.record(known, number),
                    None => Some(()),
                }
            }
        }
    }

    fn record(&mut self, known: KnownMember, number: u64) -> Option<()> {
        let counts = &mut self.counts;
        let count = match known {
            KnownMember::Prompt => &mut counts.prompt,
            KnownMember::Completion => &mut counts.completion,
            KnownMember::Input => &mut counts.input,
            KnownMember::Output => &mut counts.output,
            KnownMember::Cached => &mut counts.cached,
            KnownMember::Reasoning => &mut counts.reasoning,
            KnownMember::PromptDetails | KnownMember::CompletionDetails => return None,
        };
        *count = (number <= TOKENS_MAX).then_some(number);
        Some(())
    }

    /// Reads a name without escapes.
    fn key(&mut self) -> Option<&'a [u8]> {
        self.expect(b'"')?;
        let end = memchr2(b'"', b'\\', self.rest)?;
        let (key, after) = self.rest.split_at(end);
        self.rest = after;
        self.expect(b'"')?;
        Some(key)
    }

    /// Reads a whole number; what follows it ends it, or is none of an object's.
    fn number(&mut self) -> Option<u64> {
        let (mut number, mut digits) = (0_u64, 0);
        let begins_with_zero = self.rest.first() == Some(&b'0');
        while let [digit @ b'0'..=b'9', after @ ..] = self.rest
            && digits <= DIGITS_MAX
        {
            number = number * 10 + u64::from(digit - b'0');
            digits += 1;
            self.rest = after;
        }
        let is_number = match digits {
            0 => false,
            1 => true,
            _ => digits <= DIGITS_MAX && !begins_with_zero,
        };
        is_number.then_some(number)
    }

    fn skip_blanks(&mut self) {
        while let [b' ' | b'\t' | b'\r' | b'\n', after @ ..] = self.rest {
            self.rest = after;
        }
    }

    fn expect(&mut self, byte: u8) -> Option<()> {
        let (first, after) = self.rest.split_first()?;
        self.rest = after;
        (*first == byte).then_some(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::billing::usage::openai_counts;

    #[test]
    fn what_servers_write_is_read_without_a_parser() {
        let openai = br#"{"prompt_tokens":7,"completion_tokens":5,"total_tokens":12,"prompt_tokens_details":{"cached_tokens":4,"audio_tokens":0},"completion_tokens_details":{"reasoning_tokens":2}}"#;
        let sglang = br#"{"prompt_tokens": 7, "total_tokens": 12, "completion_tokens": 5, "prompt_tokens_details": null, "reasoning_tokens": 0}"#;
        for json in [&openai[..], sglang, b" { } ", br#"{"x":{"y":{}}}"#] {
            let counts = counts(json);
            assert!(counts.is_some() && counts == openai_counts(json));
        }
    }

    #[test]
    fn every_other_form_is_left_to_the_parser() {
        for json in [
            "",
            "{",
            "null",
            "[]",
            r#"{"prompt_tokens":7"#,
            r#"{"prompt_tokens":7} 1"#,
            r#"{"prompt_tokens":7,}"#,
            r#"{"prompt_tokens":07}"#,
            r#"{"prompt_tokens":7.0}"#,
            r#"{"prompt_tokens":-7}"#,
            r#"{"prompt_tokens":{}}"#,
            r#"{"prompt_tokens":7,"prompt_tokens":8}"#,
            r#"{"prompt_tokens_details":7}"#,
            r#"{"x":1234567890123456789}"#,
            r#"{"x":"text"}"#,
            r#"{"x\u0061":1}"#,
            r#"{"x":{"x":{"x":{"x":{"x":{}}}}}}"#,
        ] {
            assert_eq!(counts(json.as_bytes()), None, "{json}");
        }
    }

    const PARTS: [&str; 30] = [
        "{",
        "}",
        "{",
        "}",
        ",",
        ":",
        ",",
        ":",
        " ",
        "\n",
        "null",
        "7",
        "0",
        "9007199254740993",
        "-1",
        "12.0",
        "1e3",
        "\"a\"",
        "[",
        "]",
        "true",
        "\u{e9}",
        "\\",
        "\"prompt_tokens\":",
        "\"completion_tokens\":",
        "\"input_tokens\":",
        "\"prompt_tokens_details\":{",
        "\"completion_tokens_details\":{",
        "\"cached_tokens\":",
        "\"reasoning_tokens\":",
    ];

    proptest! {
        #[test]
        fn what_is_read_agrees_with_the_parser(picks in proptest::collection::vec(0..PARTS.len(), 0..12)) {
            let inner: String = picks.iter().map(|&pick| PARTS[pick]).collect();
            for json in [inner.clone(), format!("{{{inner}}}"), format!("{{\"output_tokens\":3,{inner}}}")] {
                if let Some(counts) = counts(json.as_bytes()) {
                    prop_assert_eq!(Some(counts), openai_counts(json.as_bytes()), "{}", json);
                }
            }
        }

        #[test]
        fn members_in_any_order_agree_with_the_parser(
            members in proptest::collection::vec((0..9usize, 0..8usize), 0..6), blank in any::<bool>(),
        ) {
            let names = [
                "prompt_tokens", "completion_tokens", "input_tokens", "output_tokens", "total_tokens",
                "prompt_tokens_details", "completion_tokens_details", "cached_tokens", "reasoning_tokens",
            ];
            let values = [
                "1", "20", "null", "9007199254740992", "9007199254740993",
                r#"{"cached_tokens":3,"reasoning_tokens":4}"#, "{}", r#"{"cached_tokens":null,"x":{"y":0}}"#,
            ];
            let member = |&(name, value): &(usize, usize)| format!("\"{}\":{}", names[name], values[value]);
            let members: Vec<String> = members.iter().map(member).collect();
            let json = format!("{{{}}}", members.join(if blank { " ,\n" } else { "," }));
            let counts = counts(json.as_bytes());
            prop_assert!(counts.is_none() || counts == openai_counts(json.as_bytes()), "{}", json);
        }
    }
}
