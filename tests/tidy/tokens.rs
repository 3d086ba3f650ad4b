//! Rust as tokens: comments gone, each string one token, so that no word in them counts as code.
//!
//! Not a parser: enough to find names, braces and items under `#[cfg(test)]`.

#[derive(Clone, Debug, PartialEq)]
pub struct Token {
    pub text: String,
    pub line: usize,
}

impl Token {
    pub fn is(&self, text: &str) -> bool {
        self.text == text
    }

    pub fn is_word(&self) -> bool {
        self.text
            .starts_with(|c: char| c.is_alphanumeric() || c == '_')
    }
}

pub fn tokens(text: &str) -> Vec<Token> {
    let bytes = text.as_bytes();
    let mut tokens = Vec::new();
    let (mut at, mut line) = (0, 1);
    while at < bytes.len() {
        let length = token_length(&bytes[at..]);
        let piece = &text[at..at + length];
        let is_space = piece.starts_with(char::is_whitespace);
        let is_comment = piece.starts_with("//") || piece.starts_with("/*");
        if !is_space && !is_comment {
            tokens.push(Token {
                text: piece.to_owned(),
                line,
            });
        }
        line += piece.matches('\n').count();
        at += length;
    }
    tokens
}

/// Bytes of the token, space or comment that `rest` begins with; at least one, never half a
/// character.
fn token_length(rest: &[u8]) -> usize {
    let until = |end: &[u8], from: usize| {
        rest[from..]
            .windows(end.len())
            .position(|window| window == end)
    };
    match rest {
        [b'/', b'/', ..] => until(b"\n", 0).unwrap_or(rest.len()),
        [b'/', b'*', ..] => block_comment_length(rest),
        [b':', b':', ..] => 2,
        [b'"', ..] => quoted_length(rest, 0),
        [b'b' | b'c', b'"', ..] => quoted_length(rest, 1),
        [b'r', b'"' | b'#', ..] | [b'b' | b'c', b'r', b'"' | b'#', ..] => raw_length(rest),
        [b'\'', b'\\', ..] => until(b"'", 3).map_or(rest.len(), |end| end + 4),
        [b'\'', ..] => char_or_lifetime_length(rest),
        [first, ..] if is_word_byte(*first) => rest
            .iter()
            .position(|byte| !is_word_byte(*byte))
            .unwrap_or(rest.len()),
        _ => 1,
    }
}

fn is_word_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80
}

fn block_comment_length(rest: &[u8]) -> usize {
    let (mut at, mut depth) = (2, 1);
    while depth > 0 && at < rest.len() {
        match &rest[at..] {
            [b'/', b'*', ..] => (at, depth) = (at + 2, depth + 1),
            [b'*', b'/', ..] => (at, depth) = (at + 2, depth - 1),
            _ => at += 1,
        }
    }
    at
}

fn quoted_length(rest: &[u8], prefix: usize) -> usize {
    let mut at = prefix + 1;
    while at < rest.len() && rest[at] != b'"' {
        at += if rest[at] == b'\\' { 2 } else { 1 };
    }
    (at + 1).min(rest.len())
}

/// `r"…"`, `br#"…"#` and the like; a raw name such as `r#type` is one byte and a word.
fn raw_length(rest: &[u8]) -> usize {
    let prefix = if rest[0] == b'r' { 1 } else { 2 };
    let hashes = rest[prefix..]
        .iter()
        .take_while(|byte| **byte == b'#')
        .count();
    if rest.get(prefix + hashes) != Some(&b'"') {
        return 1;
    }
    let end: Vec<u8> = [b"\"".as_slice(), &vec![b'#'; hashes]].concat();
    let from = prefix + hashes + 1;
    rest[from..]
        .windows(end.len())
        .position(|window| window == end)
        .map_or(rest.len(), |at| from + at + end.len())
}

fn char_or_lifetime_length(rest: &[u8]) -> usize {
    let character = 1 + rest[1..]
        .iter()
        .skip(1)
        .take_while(|byte| **byte & 0xC0 == 0x80)
        .count();
    match rest.get(character + 1) {
        Some(b'\'') => character + 2,
        _ => 1,
    }
}

/// Leaves out every item under `#[cfg(test)]`, alone, with further conditions, or with fuzzing.
pub fn without_tests(tokens: &[Token]) -> Vec<Token> {
    const CFG_TEST: &[&[&str]] = &[
        &["#", "[", "cfg", "(", "test", ")", "]"],
        &["#", "[", "cfg", "(", "all", "(", "test", ","],
        &["#", "[", "cfg", "(", "any", "(", "test", ","],
    ];
    let mut kept = Vec::with_capacity(tokens.len());
    let mut at = 0;
    while at < tokens.len() {
        let rest = &tokens[at..];
        let begins = |with: &&[&str]| {
            rest.len() >= with.len() && with.iter().zip(rest).all(|(text, token)| token.is(text))
        };
        if CFG_TEST.iter().any(begins) {
            at += item_length(rest);
        } else {
            kept.push(tokens[at].clone());
            at += 1;
        }
    }
    kept
}

/// Tokens of the item that begins here, attributes included: up to its `;` or closing brace.
pub fn item_length(tokens: &[Token]) -> usize {
    let mut depth = 0usize;
    for (at, token) in tokens.iter().enumerate() {
        match token.text.as_str() {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" => depth = depth.saturating_sub(1),
            "}" => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return at + 1;
                }
            }
            ";" if depth == 0 => return at + 1,
            _ => {}
        }
    }
    tokens.len()
}
