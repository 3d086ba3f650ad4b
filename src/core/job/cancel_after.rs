//! The header `Cancel-After`: a span of time such as `90`, `90s`, `5m` or `1h30m45s`.
//!
//! Not a deadline: the span begins when the job is created, and other limits may end the job earlier. Units are
//! hours, minutes and seconds, whole numbers, between [`CANCEL_AFTER_MIN`] and [`CANCEL_AFTER_MAX`]. Called once
//! per create. O(length).

use crate::Millis;

/// Shortest span that is taken: below it, a job would seldom get beyond its queue.
pub const CANCEL_AFTER_MIN: Millis = Millis::from_secs(5);

/// Longest span, 30 days: longer ones count as this. Every job ends earlier by its lifetime.
pub const CANCEL_AFTER_MAX: Millis = Millis::from_secs(30 * 24 * 3600);

/// Units in the order in which they may stand, with the seconds of each.
const UNITS: [(u8, u64); 3] = [(b'h', 3600), (b'm', 60), (b's', 1)];

/// Reason why a `Cancel-After` is refused; its text is meant for the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CancelAfterError {
    /// Not of the grammar.
    #[error("Cancel-After must be a time span such as 90, 90s, 5m or 1h30m45s")]
    Malformed,
    /// Below [`CANCEL_AFTER_MIN`].
    #[error("Cancel-After must be at least 5 seconds")]
    TooShort,
}

/// Returns the span that `text` names; a number without a unit is seconds.
///
/// # Errors
/// [`CancelAfterError::Malformed`] for anything else, signs, fractions, blanks and repeated units included;
/// [`CancelAfterError::TooShort`] below five seconds.
pub fn parse_cancel_after(text: &str) -> Result<Millis, CancelAfterError> {
    let secs = match parse_number(text.as_bytes()) {
        Some((secs, [])) => secs,
        _ => parse_units(text.as_bytes()).ok_or(CancelAfterError::Malformed)?,
    };
    let span = Millis::from_secs(secs).min(CANCEL_AFTER_MAX);
    if span < CANCEL_AFTER_MIN {
        return Err(CancelAfterError::TooShort);
    }
    Ok(span)
}

/// Returns the seconds of numbers with units, each unit at most once and in order.
fn parse_units(mut rest: &[u8]) -> Option<u64> {
    let mut units = UNITS.iter();
    let mut total = None;
    while !rest.is_empty() {
        let (number, after) = parse_number(rest)?;
        let (&unit, after) = after.split_first()?;
        let (_, secs) = units.find(|(letter, _)| *letter == unit)?;
        let span = number.saturating_mul(*secs);
        total = Some(span.saturating_add(total.unwrap_or(0)));
        rest = after;
    }
    total
}

/// Splits a whole number, saturated, from the beginning of `text`.
fn parse_number(text: &[u8]) -> Option<(u64, &[u8])> {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    if digits == 0 {
        return None;
    }
    let (digits, rest) = text.split_at(digits);
    let number = digits.iter().fold(0_u64, |number, digit| {
        let digit = u64::from(digit - b'0');
        number.saturating_mul(10).saturating_add(digit)
    });
    Some((number, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_seconds_or_numbers_with_units_in_order() {
        for (text, secs) in [
            ("90", 90),
            ("90s", 90),
            ("5m", 300),
            ("1h", 3600),
            ("1h30m45s", 5445),
            ("1h45s", 3645),
            ("2m5s", 125),
            ("1h30m", 5400),
            ("0h0m5s", 5),
            ("0005", 5),
            ("5", 5),
            ("90m", 5400),
        ] {
            let span = parse_cancel_after(text);
            assert_eq!(span, Ok(Millis::from_secs(secs)), "{text:?}");
        }
    }

    #[test]
    fn spans_below_five_seconds_are_an_error_of_their_own() {
        for text in ["0", "4", "4s", "0h0m4s", "0m"] {
            let refused = parse_cancel_after(text);
            assert_eq!(refused, Err(CancelAfterError::TooShort), "{text:?}");
        }
    }

    #[test]
    fn other_texts_are_malformed() {
        for text in [
            "",
            " ",
            "s",
            "h5",
            "1h30",
            "30s1h",
            "5m5m",
            "5s5",
            "-5",
            "+5",
            "5.5s",
            "5e3",
            "5 s",
            " 5",
            "5 ",
            "5S",
            "5ms",
            "5d",
            "1H",
            "0x10",
            "5m\n",
            "٥",
            "5\u{ff53}",
            "∞",
            "PT5M",
            "5,5",
        ] {
            let refused = parse_cancel_after(text);
            assert_eq!(refused, Err(CancelAfterError::Malformed), "{text:?}");
        }
    }

    #[test]
    fn absurd_spans_count_as_thirty_days() {
        let nines = "9".repeat(5000);
        for text in [
            "2592001",
            "721h",
            "18446744073709551616",
            "18446744073709551615h59m59s",
            &nines,
        ] {
            assert_eq!(parse_cancel_after(text), Ok(CANCEL_AFTER_MAX), "{text:?}");
        }
        assert_eq!(parse_cancel_after("720h"), Ok(CANCEL_AFTER_MAX));
    }
}
