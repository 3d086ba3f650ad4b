//! Generated texts within the JSON of an event, counted where they stand.
//!
//! Not a parser: a text is found by its key, and decoded without memory of its own. A string that a parser would
//! refuse is counted in no part.

use std::ops::Range;
use std::sync::LazyLock;

use infergate_core::billing::TextCount;
use memchr::memmem::Finder;

/// Keys of generated text, in each kind of stream.
static TEXTS: LazyLock<[Finder<'static>; 5]> = LazyLock::new(|| {
    [
        "\"content\":",
        "\"text\":",
        "\"response\":",
        "\"reasoning_content\":",
        "\"reasoning\":",
    ]
    .map(Finder::new)
});

/// Bytes looked at one by one before a vector search: tokens are short.
const NEAR_BYTES: usize = 12;

/// Index of the known place of a text that is not empty.
pub(super) fn place_of_text(data: &[u8]) -> Option<usize> {
    (0..TEXTS.len()).find(|place| has_text(data, *place))
}

/// Returns whether a text that is not empty stands at this place. A text that only speaks of such a
/// place has its quotes escaped.
fn has_text(data: &[u8], place: usize) -> bool {
    let finder = &TEXTS[place];
    finder.find(data).is_some_and(|at| {
        let value = data[at + finder.needle().len()..].trim_ascii_start();
        matches!(value, [b'"', first, ..] if *first != b'"')
    })
}

/// Texts of an event at one place.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct CountedTexts {
    /// One that is not empty was counted.
    pub(super) has_text: bool,
    /// Range of the text, where no other value stands at such a place.
    pub(super) only: Option<Range<usize>>,
}

/// Counts every text at this place, one for each choice.
pub(super) fn count_texts(data: &[u8], place: usize, count: &mut TextCount) -> CountedTexts {
    let finder = &TEXTS[place];
    let mut counted = CountedTexts::default();
    let mut values = 0;
    let mut from = 0;
    while let Some(at) = finder.find(&data[from..]) {
        values += 1;
        from += at + finder.needle().len();
        from = data.len() - data[from..].trim_ascii_start().len();
        if data.get(from) != Some(&b'"') {
            continue;
        }
        let text = from + 1;
        let Some(length) = text_end(&data[text..]) else {
            break;
        };
        let range = text..text + length;
        if !count_text(&data[range.clone()], count) {
            break;
        }
        counted.has_text |= length > 0;
        from = range.end;
        counted.only = (values == 1).then_some(range);
    }
    if values > 1 {
        counted.only = None;
    }
    counted
}

/// Length of a JSON string behind its opening quote.
pub(super) fn text_end(text: &[u8]) -> Option<usize> {
    let is_end = |byte: &u8| matches!(byte, b'"' | b'\\');
    let near = &text[..text.len().min(NEAR_BYTES)];
    let mut at = near.iter().position(is_end).unwrap_or(near.len());
    loop {
        match text.get(at)? {
            b'"' => return Some(at),
            // Whatever is escaped is no end.
            b'\\' => at += 2,
            _ => at += memchr::memchr2(b'"', b'\\', &text[at..])?,
        }
    }
}

/// Counts what a JSON string says, given without its quotes. Returns false, and counts nothing, where a parser
/// would refuse it.
pub(super) fn count_text(json: &[u8], count: &mut TextCount) -> bool {
    let Ok(text) = std::str::from_utf8(json) else {
        return false;
    };
    if !json.contains(&b'\\') {
        count.push(text);
        return true;
    }
    // A parser looks at these only where it decodes.
    if json.iter().any(|byte| *byte < b' ') {
        return false;
    }
    let mut decoded = *count;
    let mut rest = text;
    while let Some((plain, escaped)) = rest.split_once('\\') {
        decoded.push(plain);
        let Some((character, after)) = unescape(escaped) else {
            return false;
        };
        decoded.push(character.encode_utf8(&mut [0; 4]));
        rest = after;
    }
    decoded.push(rest);
    *count = decoded;
    true
}

/// The character that an escape stands for, given without its backslash, and what follows.
fn unescape(escaped: &str) -> Option<(char, &str)> {
    let after = escaped.get(1..)?;
    let character = match escaped.as_bytes()[0] {
        byte @ (b'"' | b'\\' | b'/') => char::from(byte),
        b'b' => '\u{8}',
        b'f' => '\u{c}',
        b'n' => '\n',
        b'r' => '\r',
        b't' => '\t',
        b'u' => return unescape_unicode(after),
        _ => return None,
    };
    Some((character, after))
}

/// One code point of four hexadecimal digits, or of a pair of surrogates.
fn unescape_unicode(digits: &str) -> Option<(char, &str)> {
    let (first, after) = code_unit(digits)?;
    if let Some(character) = char::from_u32(first) {
        return Some((character, after));
    }
    let (second, after) = code_unit(after.strip_prefix("\\u")?)?;
    let mut decoded = char::decode_utf16([first, second].map(|unit| unit as u16));
    Some((decoded.next()?.ok()?, after))
}

fn code_unit(digits: &str) -> Option<(u32, &str)> {
    let (unit, after) = digits.split_at_checked(4)?;
    let is_hex = unit.bytes().all(|byte| byte.is_ascii_hexdigit());
    let unit = is_hex.then(|| u32::from_str_radix(unit, 16).ok())?;
    Some((unit?, after))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The count by a parser; none where it refuses the string.
    fn parsed(json: &[u8]) -> Option<TextCount> {
        let mut count = TextCount::default();
        match std::str::from_utf8(json) {
            Ok(plain) if !plain.contains('\\') => count.push(plain),
            _ => {
                let quoted = [b"\"", json, b"\""].concat();
                count.push(&serde_json::from_slice::<String>(&quoted).ok()?);
            }
        }
        Some(count)
    }

    const PARTS: [&str; 20] = [
        "a",
        " b",
        "é",
        "語",
        "\\n",
        "\\\"",
        "\\\\",
        "\\/",
        "\\u0041",
        "\\u00e9",
        "\\ud83d",
        "\\ude00",
        "\\uD83D\\uDE00",
        "\\u12",
        "\\x",
        "\\t \\r",
        "\t",
        "\\u00E9x",
        "\u{a0}",
        "\\b\\f",
    ];

    proptest! {
        #[test]
        fn a_text_counts_as_it_does_decoded(picks in proptest::collection::vec(0..PARTS.len(), 0..8), cut in 0..3usize) {
            let json: String = picks.iter().map(|&pick| PARTS[pick]).collect();
            // Cut within a character, the text is no text.
            let json = &json.as_bytes()[..json.len().saturating_sub(cut)];
            // As a text ends before its quote, never with half an escape.
            prop_assume!(text_end(&[json, b"\""].concat()) == Some(json.len()));
            let mut count = TextCount::default();
            let counted = count_text(json, &mut count).then_some(count);
            prop_assert_eq!(counted, parsed(json));
        }
    }

    #[test]
    fn the_only_text_of_an_event_is_known_by_its_place() {
        for (data, only, has_text) in [
            (r#"{"content":"ab"}"#, Some(12..14), true),
            (r#"{"content": "ab"}"#, Some(13..15), true),
            (r#"{"content":""}"#, Some(12..12), false),
            (r#"{"content":"a","content":"b"}"#, None, true),
            (r#"{"content":null,"content":"b"}"#, None, true),
            (r#"{"content":"b","content":null}"#, None, true),
            (r#"{"content":null}"#, None, false),
            (r#"{"content":"a\x"}"#, None, false),
        ] {
            let counted = count_texts(data.as_bytes(), 0, &mut TextCount::default());
            assert_eq!(counted, CountedTexts { has_text, only }, "{data}");
        }
    }
}
