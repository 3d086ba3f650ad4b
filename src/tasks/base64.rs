//! Base64 (RFC 4648, section 4): files in JSON.
//!
//! Encodes, and validates encoded text; does not decode, which is left to the receiver of the file.

use alloc::borrow::Cow;
use alloc::string::String;

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// The bytes as base64, with padding.
pub(crate) fn encode(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let at = |at: usize| u32::from(group.get(at).copied().unwrap_or(0));
        let bits = at(0) << 16 | at(1) << 8 | at(2);
        for digit in 0..4 {
            let character = ALPHABET[(bits >> (18 - 6 * digit)) as usize & 63];
            out.push(if digit <= group.len() {
                char::from(character)
            } else {
                '='
            });
        }
    }
    out
}

/// A validated file in base64.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EncodedFile<'a> {
    /// Base64 with padding, without spaces.
    pub(crate) base64: Cow<'a, str>,
    /// Bytes of the file; at least 1.
    pub(crate) bytes: usize,
}

/// Reads base64 with or without padding, broken into lines or not, alone or in a data URI. None when
/// the text is anything else, or empty.
pub(crate) fn read(text: &str) -> Option<EncodedFile<'_>> {
    let text = match text.strip_prefix("data:") {
        // The header is short, and a comma is no character of base64.
        Some(uri) => uri.split_once(";base64,")?.1,
        None => text,
    };
    let mut base64 = Cow::Borrowed(text);
    if text.contains(|character: char| character.is_ascii_whitespace()) {
        base64 = Cow::Owned(text.split_ascii_whitespace().collect());
    }
    let digits = base64.trim_end_matches('=').len();
    let padding = base64.len() - digits;
    let is_digit = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'+' || byte == b'/';
    let is_whole = match digits % 4 {
        0 => padding == 0,
        1 => false,
        left => padding == 0 || padding == 4 - left,
    };
    if digits == 0 || !is_whole || !base64.as_bytes()[..digits].iter().copied().all(is_digit) {
        return None;
    }
    if padding == 0 && digits % 4 > 0 {
        let missing = 4 - digits % 4;
        base64.to_mut().push_str(&"=="[..missing]);
    }
    Some(EncodedFile {
        base64,
        bytes: digits * 3 / 4,
    })
}
