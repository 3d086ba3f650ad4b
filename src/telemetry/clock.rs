//! The one place that reads the clocks.
//!
//! Schedules nothing. The monotonic clock counts from the moment the [`Clock`] was made and becomes
//! [`Millis`] for the core; the wall clock is read only to print a time for people. A `Clock` is
//! one word: copy it to where a request needs the time, and read it once per step.

use std::cell::Cell;
use std::time::{Duration, Instant, SystemTime};

use infergate_core::Millis;
use infergate_core::vram::HostTime;
use rustix::time::{ClockId, clock_gettime};
use time::OffsetDateTime;
use time::format_description::BorrowedFormatItem;
use time::macros::format_description;

/// RFC 3339 in UTC with three decimals: fixed width, so that lines sort as text.
const RFC3339_MILLIS: &[BorrowedFormatItem<'static>] =
    format_description!("[year]-[month]-[day]T[hour]:[minute]:[second].[subsecond digits:3]Z");

/// A deadline beyond this is never reached; keeps `Instant` arithmetic from overflowing.
const FAR_FUTURE: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// Reading of the clock that the steps of one poll share.
#[derive(Clone, Copy)]
enum PollReading {
    /// No poll of a watched task is under way on this thread.
    Outside,
    /// None has been made in the present poll.
    Unread,
    /// The last one in the present poll.
    Read(Instant),
}

thread_local! {
    static READING: Cell<PollReading> = const { Cell::new(PollReading::Outside) };
}

/// A poll of a task whose steps share readings of the clock; ended by drop.
pub(super) struct PollClock(());

impl PollClock {
    /// Begins a poll.
    pub fn begin() -> PollClock {
        READING.set(PollReading::Unread);
        PollClock(())
    }

    /// The poll has done long work: what follows reads the clock anew.
    pub fn expire() {
        if !matches!(READING.get(), PollReading::Outside) {
            READING.set(PollReading::Unread);
        }
    }
}

impl Drop for PollClock {
    fn drop(&mut self) {
        READING.set(PollReading::Outside);
    }
}

/// Time since the process started, and the time of day.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Instant,
}

impl Clock {
    /// A clock whose zero is now. The process makes one, at start, and copies it.
    #[expect(
        clippy::disallowed_methods,
        reason = "this is the one place that reads the clock"
    )]
    pub fn start() -> Clock {
        Clock {
            start: Instant::now(),
        }
    }

    /// Milliseconds since the start.
    pub fn now(self) -> Millis {
        Millis(self.elapsed().as_millis() as u64)
    }

    /// Microseconds since the start, for durations that go into events and histograms.
    pub fn micros(self) -> u64 {
        self.elapsed().as_micros() as u64
    }

    /// Milliseconds since the start, as of the last reading in the present poll of a request's task. Steps of one
    /// poll lie microseconds apart, and a reading costs as much as a step. Work that takes longer reads the clock
    /// itself, or is `off_the_worker`.
    pub fn recent(self) -> Millis {
        Millis(self.recent_elapsed().as_millis() as u64)
    }

    /// Microseconds since the start, likewise.
    pub fn recent_micros(self) -> u64 {
        self.recent_elapsed().as_micros() as u64
    }

    /// The first whole millisecond that is not before `micros`: what is reckoned from it is never a
    /// part of a millisecond short of what was asked for.
    pub fn millis_ceil(micros: u64) -> Millis {
        Millis(micros.div_ceil(1000))
    }

    /// The moment `at` for timers that want an `Instant`.
    pub fn instant(self, at: Millis) -> Instant {
        self.start + Duration::from_millis(at.0).min(FAR_FUTURE)
    }

    /// The time of day in UTC.
    #[expect(
        clippy::disallowed_methods,
        reason = "this is the one place that reads the clock"
    )]
    pub fn wall(self) -> OffsetDateTime {
        OffsetDateTime::from(SystemTime::now())
    }

    /// Unix time in whole seconds.
    #[expect(
        clippy::disallowed_methods,
        reason = "this is the one place that reads the clock"
    )]
    pub fn unix_secs(self) -> u64 {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        since.map_or(0, |since| since.as_secs())
    }

    /// The time of day when `micros` stood on this clock, as the wall clock sees it now: a stepped
    /// wall clock moves the response with it.
    pub fn wall_at(self, micros: u64) -> OffsetDateTime {
        let ago = Duration::from_micros(self.micros().saturating_sub(micros));
        self.wall() - ago
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "this is the one place that reads the clock"
    )]
    fn elapsed(self) -> Duration {
        let now = Instant::now();
        if !matches!(READING.get(), PollReading::Outside) {
            READING.set(PollReading::Read(now));
        }
        now.saturating_duration_since(self.start)
    }

    fn recent_elapsed(self) -> Duration {
        match READING.get() {
            PollReading::Read(at) => at.saturating_duration_since(self.start),
            PollReading::Unread | PollReading::Outside => self.elapsed(),
        }
    }
}

/// Offset between a [`Clock`] and Unix time at one moment: everything converted with one offset keeps its order
/// and its distances.
#[derive(Clone, Copy, Debug)]
pub struct UnixOffset {
    /// Unix time when the clock stood at zero, nanoseconds.
    zero_unix_nano: u64,
}

impl UnixOffset {
    /// Readings of the two clocks, of which the closest pair counts: a thread can lose its processor between
    /// them.
    const READINGS: usize = 4;

    /// The offset now.
    pub fn now(clock: Clock) -> UnixOffset {
        let readings = (0..Self::READINGS).map(|_| {
            let before = clock.elapsed();
            let wall = clock.wall().unix_timestamp_nanos();
            let took = clock.elapsed().saturating_sub(before);
            (took, wall - (before + took / 2).as_nanos() as i128)
        });
        let closest = readings.min_by_key(|(took, _)| *took);
        let zero = closest.map_or(0, |(_, zero)| zero);
        UnixOffset {
            zero_unix_nano: u64::try_from(zero).unwrap_or(0),
        }
    }

    /// Nanoseconds of Unix time when the clock stood at `micros`.
    pub fn unix_nano(self, micros: u64) -> u64 {
        self.zero_unix_nano
            .saturating_add(micros.saturating_mul(1000))
    }
}

/// The host's time, which all of its processes share: it counts through a suspend.
pub fn host_time() -> HostTime {
    let since_boot = clock_gettime(ClockId::Boottime);
    let (secs, nanos) = (
        since_boot.tv_sec.cast_unsigned(),
        since_boot.tv_nsec.cast_unsigned(),
    );
    HostTime(secs * 1000 + nanos / 1_000_000)
}

/// Microseconds of the kernel's monotonic clock, which other processes read too.
pub fn monotonic_micros() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let (secs, nanos) = (now.tv_sec.cast_unsigned(), now.tv_nsec.cast_unsigned());
    secs * 1_000_000 + nanos / 1000
}

/// Microseconds that the calling thread has run on a processor: its own clock, which stands still
/// while others run.
pub fn thread_micros() -> u64 {
    let used = clock_gettime(ClockId::ThreadCPUTime);
    let (secs, nanos) = (used.tv_sec.cast_unsigned(), used.tv_nsec.cast_unsigned());
    secs * 1_000_000 + nanos / 1000
}

/// `2026-11-20T10:00:00.000Z`.
pub fn rfc3339(at: OffsetDateTime) -> String {
    at.to_offset(time::UtcOffset::UTC)
        .format(RFC3339_MILLIS)
        .expect("the format names only parts that every date has")
}

/// Writes moments as [`rfc3339`] does, one after the other: the date is worked out once a second,
/// which is most of the cost of an event's line.
#[derive(Debug, Default)]
pub struct TimestampFormatter {
    unix_secs: Option<i64>,
    text: String,
}

impl TimestampFormatter {
    /// The moment as text.
    pub fn text(&mut self, at: OffsetDateTime) -> &str {
        let secs = at.unix_timestamp();
        if self.unix_secs != Some(secs) {
            self.text = rfc3339(at);
            self.unix_secs = Some(secs);
        } else {
            self.text.truncate(self.text.len() - "000Z".len());
            let millis = u32::from(at.millisecond());
            for place in [100, 10, 1] {
                let digit = char::from_digit(millis / place % 10, 10);
                self.text
                    .push(digit.expect("a remainder of ten is a digit"));
            }
            self.text.push('Z');
        }
        &self.text
    }
}

/// A clock of a day that is not about to end: for tests of what is counted by the day.
#[cfg(test)]
pub fn well_before_midnight() -> Clock {
    const DAY_SECS: i64 = 24 * 3600;
    let clock = Clock::start();
    while clock.wall().unix_timestamp().rem_euclid(DAY_SECS) >= DAY_SECS - 10 {
        std::thread::yield_now();
    }
    clock
}

#[cfg(test)]
mod tests {
    use super::*;
    use time::macros::datetime;

    #[test]
    fn wall_time_is_printed_in_utc_with_three_decimals() {
        let at = datetime!(2026-11-20 11:00:00.123456 +01:00);
        assert_eq!(rfc3339(at), "2026-11-20T10:00:00.123Z");
    }

    #[test]
    fn a_moment_in_the_past_is_earlier_on_the_wall_by_as_much() {
        let clock = Clock::start();
        let now = clock.micros();
        let gap = clock.wall_at(now) - clock.wall_at(now.saturating_sub(0));
        assert!(gap.abs() < time::Duration::seconds(60));
        assert!(clock.wall_at(0) <= clock.wall());
    }

    #[test]
    fn a_stamp_writes_what_the_slow_way_writes() {
        let mut stamp = TimestampFormatter::default();
        let mut at = datetime!(2026-11-20 10:00:00.000 UTC);
        for step_ms in [0, 1, 9, 90, 899, 1, 0, 1500, 60_000, 7] {
            at += time::Duration::milliseconds(step_ms);
            assert_eq!(stamp.text(at), rfc3339(at));
        }
    }

    #[test]
    fn a_span_from_a_moment_is_never_short_of_what_was_asked() {
        for micros in [0, 1, 999, 1000, 1001, 1999, 123_456_789] {
            let start = Clock::millis_ceil(micros);
            let late = (start.0 * 1000).checked_sub(micros);
            assert!(late.is_some_and(|late| late < 1000), "{micros}");
        }
    }

    #[test]
    fn the_end_of_time_does_not_overflow() {
        let clock = Clock::start();
        assert!(clock.instant(Millis::MAX) > clock.instant(Millis(1)));
    }
}
