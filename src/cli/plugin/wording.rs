//! Text form of numbers, findings and steps of long work, for people. Decides nothing.

use std::io::Write;

use serde::Serialize;

use crate::telemetry::{Clock, printable};

/// Finding of a check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// `ok`, `note`, or `FAIL`.
    pub level: FindingLevel,
    /// Subject of the check.
    pub about: &'static str,
    /// The finding, and for a failure its remedy.
    pub message: String,
}

/// Level of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FindingLevel {
    /// As it should be.
    Ok,
    /// To be known.
    Note,
    /// The gateway would not take it.
    Fail,
}

impl FindingLevel {
    /// As it stands at the head of a line.
    pub const fn word(self) -> &'static str {
        match self {
            FindingLevel::Ok => "ok",
            FindingLevel::Note => "note",
            FindingLevel::Fail => "FAIL",
        }
    }
}

/// A step of work that takes a while: printed to standard error when it begins and, with how long it took,
/// when the value is dropped.
pub struct ProgressStep {
    began: Clock,
}

impl ProgressStep {
    /// Prints the step that begins.
    pub fn begin(what: &str) -> ProgressStep {
        let _ = writeln!(std::io::stderr(), "{} …", printable(what));
        ProgressStep {
            began: Clock::start(),
        }
    }
}

impl Drop for ProgressStep {
    fn drop(&mut self) {
        let _ = writeln!(std::io::stderr(), "  {}", seconds(self.began.micros()));
    }
}

/// `36.2 s`
pub fn seconds(us: u64) -> String {
    format!("{:.1} s", us as f64 / 1e6)
}

/// `38.1 KiB`
pub fn size(bytes: u64) -> String {
    const UNITS: [(&str, u32); 2] = [("MiB", 20), ("KiB", 10)];
    for (unit, shift) in UNITS {
        if bytes >= 1 << shift {
            let whole = 1_u64 << shift;
            return format!("{:.1} {unit}", bytes as f64 / whole as f64);
        }
    }
    format!("{bytes} B")
}

/// `1 234 567`
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

/// `18 µs`, `2.4 ms`
pub fn micros(us: u64) -> String {
    match us {
        0..=999 => format!("{us} µs"),
        _ => format!("{:.1} ms", us as f64 / 1000.0),
    }
}

/// Number and word with the right ending: `1 fixture`, `2 fixtures`.
pub fn some(number: usize, word: &str) -> String {
    let ending = if number == 1 { "" } else { "s" };
    format!("{number} {word}{ending}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_with_their_units() {
        assert_eq!(size(39_014), "38.1 KiB");
        assert_eq!(size(12), "12 B");
        assert_eq!(count(1_234_567), "1 234 567");
        assert_eq!(count(123), "123");
        assert_eq!(seconds(36_240_000), "36.2 s");
        assert_eq!(micros(18), "18 µs");
        assert_eq!(micros(2_430), "2.4 ms");
        assert_eq!(some(1, "fixture") + &some(2, "run"), "1 fixture2 runs");
    }
}
