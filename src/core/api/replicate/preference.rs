//! The wish of a client to wait for a prediction: `Prefer: wait` (<https://www.rfc-editor.org/rfc/rfc7240>).
//!
//! Not the wait itself.

/// Longest wait, seconds.
pub const WAIT_MAX_SECS: u64 = 60;

/// Returns the seconds that a client wants to wait; none where it does not. Without a number it is the longest wait,
/// a number is brought into 1 to 60, and a value that is no number is ignored.
pub fn wait_preference(value: &str) -> Option<u64> {
    value.split(',').find_map(|preference| {
        let preference = preference.split(';').next().unwrap_or_default().trim();
        let (name, value) = match preference.split_once('=') {
            Some((name, value)) => (name.trim(), Some(value.trim().trim_matches('"'))),
            None => (preference, None),
        };
        if !name.eq_ignore_ascii_case("wait") {
            return None;
        }
        match value {
            None => Some(WAIT_MAX_SECS),
            Some(value) if value.bytes().all(|byte| byte.is_ascii_digit()) && !value.is_empty() => {
                // A number that does not fit is a long one.
                let secs = value.parse().unwrap_or(WAIT_MAX_SECS);
                Some(secs.clamp(1, WAIT_MAX_SECS))
            }
            Some(_) => None,
        }
    })
}
