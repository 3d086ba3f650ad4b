//! Meaning of an unquoted word: nothing, true, a number, or just text.
//!
//! The rules are the core schema of YAML 1.2, so `yes` is text. Quotes and tags are handled
//! elsewhere.

use serde_json::Number;

use super::document::NodeData;

/// Value of a plain scalar when it is not text.
pub(super) fn resolve(text: &str) -> Option<NodeData> {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Some(NodeData::Null),
        "true" | "True" | "TRUE" => return Some(NodeData::Bool(true)),
        "false" | "False" | "FALSE" => return Some(NodeData::Bool(false)),
        _ => {}
    }
    let based = |digits: &str, base| u64::from_str_radix(digits, base).ok();
    let whole = match text.get(..2) {
        Some("0x") => based(&text[2..], 16),
        Some("0o") => based(&text[2..], 8),
        _ => text.parse::<u64>().ok(),
    };
    if let Some(whole) = whole {
        return Some(NodeData::Number(whole.into()));
    }
    if let Ok(whole) = text.parse::<i64>() {
        return Some(NodeData::Number(whole.into()));
    }
    // Rust also reads `inf`, `nan` and `infinity` as floats; YAML does not.
    let digits = |c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '.' | 'e' | 'E');
    if !text.chars().all(digits) || !text.contains(|c: char| c.is_ascii_digit()) {
        return None;
    }
    let float = text.parse::<f64>().ok()?;
    // `8.0` is as good a whole number as `8`.
    if float.fract() == 0.0 && (0.0..=9e15).contains(&float) {
        return Some(NodeData::Number((float as u64).into()));
    }
    Number::from_f64(float).map(NodeData::Number)
}
