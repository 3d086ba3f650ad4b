//! Text from outside made fit for a terminal and for a line of a log.
//!
//! Drops nothing: a character that could move a cursor, begin a line or change the direction of
//! reading is written as in JSON, `\u001b`, so that JSON stays JSON.

use std::borrow::Cow;
use std::fmt::Write;

/// `text` on one line, as it is where nothing in it is harmful.
pub fn printable(text: &str) -> Cow<'_, str> {
    clean(text, is_harmful)
}

/// `text` of several lines, each fit to be read.
pub fn printable_lines(text: &str) -> Cow<'_, str> {
    clean(text, |c| is_harmful(c) && c != '\n' && c != '\t')
}

fn clean(text: &str, is_harmful: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&is_harmful) {
        return Cow::Borrowed(text);
    }
    let mut cleaned = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            c if !is_harmful(c) => cleaned.push(c),
            '\n' => cleaned.push_str("\\n"),
            '\r' => cleaned.push_str("\\r"),
            '\t' => cleaned.push_str("\\t"),
            // All of them are in the basic plane: four digits. Writing to a string does not fail.
            c => {
                let _ = write!(cleaned, "\\u{:04x}", u32::from(c));
            }
        }
    }
    Cow::Owned(cleaned)
}

/// Controls, separators of lines and paragraphs, and marks of direction (UAX #9).
fn is_harmful(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{2028}' | '\u{2029}' | '\u{200e}' | '\u{200f}' | '\u{61c}'
        )
        || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_moves_the_cursor_or_turns_the_text_is_written_out_and_the_rest_stays() {
        assert!(matches!(printable("Zürich 東京 🚀"), Cow::Borrowed(_)));
        let evil = "\u{1b}[31mFAKE\r\n\u{202e}gnp.exe\u{2028}x\u{9b}0m\u{7f}";
        let cleaned = "\\u001b[31mFAKE\\r\\n\\u202egnp.exe\\u2028x\\u009b0m\\u007f";
        assert_eq!(printable(evil), cleaned);
        assert_eq!(printable_lines("a\tb\n\u{1b}c\n"), "a\tb\n\\u001bc\n");
    }
}
