//! Numbers as they are written in JSON, and their values where a float is exact or rounded once.
//!
//! Checks no grammar. The value is what `f64::from_str` gives.

/// Digits of numbers that are exact as floats.
const EXACT_DIGITS: usize = 15;
/// Powers of ten that are exact as floats, as far as they are needed.
const POWERS: [f64; EXACT_DIGITS + 1] = [
    1.0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15,
];

/// A number in a text.
pub(super) struct WrittenNumber {
    /// Behind its last byte.
    pub(super) end: usize,
    /// Neither a point nor an exponent is in it.
    pub(super) is_whole: bool,
    has_exponent: bool,
    is_negative: bool,
    digits: usize,
    behind_point: usize,
    /// The digits as a whole number, where they are few.
    mantissa: u64,
}

impl WrittenNumber {
    /// The number that begins at `at`.
    pub(super) fn at(text: &[u8], at: usize) -> WrittenNumber {
        let is_negative = text.get(at) == Some(&b'-');
        let mut number = WrittenNumber {
            end: at + usize::from(is_negative),
            is_whole: true,
            has_exponent: false,
            is_negative,
            digits: 0,
            behind_point: 0,
            mantissa: 0,
        };
        number.take_digits(text);
        if text.get(number.end) == Some(&b'.') {
            number.is_whole = false;
            number.end += 1;
            let before = number.digits;
            number.take_digits(text);
            number.behind_point = number.digits - before;
        }
        if let Some(b'e' | b'E') = text.get(number.end) {
            number.is_whole = false;
            number.has_exponent = true;
            let rest = &text[number.end..];
            let is_part = |byte: &&u8| matches!(**byte, b'0'..=b'9' | b'e' | b'E' | b'+' | b'-');
            number.end += rest.iter().take_while(is_part).count();
        }
        number
    }

    #[inline]
    fn take_digits(&mut self, text: &[u8]) {
        while let Some(digit @ b'0'..=b'9') = text.get(self.end) {
            self.mantissa = self
                .mantissa
                .wrapping_mul(10)
                .wrapping_add(u64::from(digit - b'0'));
            self.digits += 1;
            self.end += 1;
        }
    }

    /// The value; none for a whole number that a float may not hold exactly. `raw` is its text.
    pub(super) fn value(&self, raw: &[u8]) -> Option<f64> {
        if self.digits <= EXACT_DIGITS && !self.has_exponent {
            // Both are exact, so that the quotient is rounded once.
            let value = self.mantissa as f64 / POWERS[self.behind_point];
            return Some(if self.is_negative { -value } else { value });
        }
        if self.is_whole {
            return None;
        }
        std::str::from_utf8(raw).ok()?.parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_what_the_standard_library_reads() {
        for raw in [
            "0",
            "-0",
            "7",
            "-12",
            "0.1",
            "-0.7",
            "0.30000000000000004",
            "1e3",
            "1.5E-7",
            "12.50",
            "123456789012345",
            "0.000000000000001",
            "99999999999999.9",
            "1e400",
            "3.141592653589793",
        ] {
            let number = WrittenNumber::at(format!("[{raw},1]").as_bytes(), 1);
            assert_eq!(number.end, 1 + raw.len());
            let value = number.value(raw.as_bytes()).unwrap();
            assert_eq!(
                value.to_bits(),
                raw.parse::<f64>().unwrap().to_bits(),
                "{raw}"
            );
            assert_eq!(number.is_whole, !raw.contains(['.', 'e', 'E']), "{raw}");
        }
        let long = "1234567890123456";
        assert_eq!(
            WrittenNumber::at(long.as_bytes(), 0).value(long.as_bytes()),
            None
        );
    }
}
