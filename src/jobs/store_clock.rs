//! Clock of the embedded store: the wall clock as it was at the start, moved on by the monotonic one.
//!
//! A wall clock that jumps changes nothing until the next start.

use infergate_core::job::StoreTime;
use time::OffsetDateTime;

use crate::telemetry::Clock;

/// Store time of one process.
#[derive(Clone, Copy, Debug)]
pub struct StoreClock {
    clock: Clock,
    /// Store time when the process's clock stood at zero, milliseconds since 1970.
    zero_ms: u64,
}

impl StoreClock {
    /// Sets the clock by the present wall clock.
    pub fn start(clock: Clock) -> StoreClock {
        let wall = clock.wall().unix_timestamp_nanos() / 1_000_000;
        let wall = u64::try_from(wall).unwrap_or(0);
        let zero_ms = wall.saturating_sub(clock.now().0);
        StoreClock { clock, zero_ms }
    }

    /// Returns the present moment.
    pub fn now(&self) -> StoreTime {
        StoreTime(self.zero_ms.saturating_add(self.clock.now().0))
    }

    /// Lead of the present wall clock over this one, milliseconds.
    pub fn wall_ahead_ms(&self) -> i64 {
        let wall = self.clock.wall().unix_timestamp_nanos() / 1_000_000;
        let ahead = wall - i128::from(self.now().0);
        i64::try_from(ahead).unwrap_or(i64::MAX)
    }

    /// Returns microseconds of the process's clock, to measure spans.
    pub fn micros(&self) -> u64 {
        self.clock.micros()
    }
}

/// Formats a moment as RFC 3339 in UTC with six decimals.
pub fn rfc3339_micros(at: StoreTime) -> String {
    let nanos = i128::from(at.0) * 1_000_000;
    let at = OffsetDateTime::from_unix_timestamp_nanos(nanos);
    let at = at.unwrap_or(OffsetDateTime::UNIX_EPOCH);
    let mut text = crate::telemetry::clock::rfc3339(at);
    // Milliseconds are all that stores keep; clients want six digits.
    text.truncate(text.len() - 1);
    text.push_str("000Z");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_have_six_decimals_and_end_in_z() {
        let text = rfc3339_micros(StoreTime(1_700_000_000_123));
        assert_eq!(text, "2023-11-14T22:13:20.123000Z");
    }
}
