//! Backoff of a model whose processes fail: when it may be loaded again, and when it counts as broken.
//!
//! Not the states of its slots. Running out of device memory is no crash: the estimate grows and the load is repeated
//! at once. A refused request never ends a backoff. At most [`STARTS_MAX`] starts in [`STARTS_SPAN`].

use super::slot::InstanceFailure;
use crate::Millis;

/// First delay, doubled with each failure.
const DELAY_FIRST: Millis = Millis::from_secs(1);
/// Longest delay.
const DELAY_MAX: Millis = Millis::from_secs(300);
/// Part of a delay, as a divisor, by which it is spread to either side: 10 %.
const SPREAD_DIVISOR: u64 = 10;
/// Time of service after which earlier failures are forgotten.
const FORGET_AFTER: Millis = Millis::from_secs(600);
/// Failures after which a model that was never ready is broken.
const BROKEN_AFTER: u32 = 5;
/// Time from one try of a broken model to the next.
const BROKEN_RETRY: Millis = Millis::from_secs(900);
/// Time from one look for missing files to the next.
const WEIGHTS_RETRY: Millis = Millis::from_secs(5);
/// Times that an estimate grows by 15 %: beyond, it is not the estimate that is wrong.
const RAISES_MAX: u8 = 3;
/// Starts of a model that there may be within [`STARTS_SPAN`] after a failure.
pub const STARTS_MAX: usize = 6;
/// Span in which starts are counted.
pub const STARTS_SPAN: Millis = Millis::from_secs(60);

/// Standing of a model between two loads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackoffState {
    /// The model may be loaded.
    Clear,
    /// The model may be loaded from this moment on.
    Waiting(Millis),
    /// The model has never become ready. A load is tried at this moment; requests are refused until one succeeds.
    Broken(Millis),
}

impl BackoffState {
    /// Returns whether a load may begin at `now`.
    pub fn permits_load(self, now: Millis) -> bool {
        self.until().is_none_or(|until| now >= until)
    }

    /// Returns the moment from which on a load may begin; `None` when it may at any time.
    pub fn until(self) -> Option<Millis> {
        match self {
            BackoffState::Clear => None,
            BackoffState::Waiting(until) | BackoffState::Broken(until) => Some(until),
        }
    }
}

/// Failures of a model since its configuration changed, or since it last served for long.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadBackoff {
    /// Failures that lengthen the delay.
    failures: u32,
    /// Failures that are the model's own, while it has never been ready.
    failures_before_ready: u32,
    was_ready: bool,
    /// Times the estimate has grown.
    raises: u8,
    /// The running load repeats one that ran out of memory.
    is_memory_retry: bool,
    retry_at: Option<Millis>,
    /// Latest starts but those whose service ended well, oldest first.
    starts: [Option<Millis>; STARTS_MAX],
}

impl LoadBackoff {
    /// Returns whether and when the model may be loaded.
    pub fn state(&self) -> BackoffState {
        match self.retry_at {
            Some(at) if self.is_broken() => BackoffState::Broken(at),
            Some(at) => BackoffState::Waiting(at),
            None => BackoffState::Clear,
        }
    }

    /// Returns whether the model has failed too often without having been ready.
    pub fn is_broken(&self) -> bool {
        !self.was_ready && self.failures_before_ready >= BROKEN_AFTER
    }

    /// Records the start of a process. Looks for missing files and other ports are none.
    pub fn record_start(&mut self, now: Millis) {
        self.retry_at = None;
        self.starts.rotate_left(1);
        self.starts[STARTS_MAX - 1] = Some(now);
    }

    /// Records that a load has succeeded. Failures stay counted until the service has lasted.
    pub fn record_ready(&mut self) {
        self.was_ready = true;
        self.failures_before_ready = 0;
        self.is_memory_retry = false;
    }

    /// Records a service that ended without a failure: its start is none of a crash loop.
    pub fn record_service(&mut self, ready_for: Millis) {
        self.starts[STARTS_MAX - 1] = None;
        self.starts.rotate_right(1);
        self.forget_after(ready_for);
    }

    fn forget_after(&mut self, ready_for: Millis) {
        if ready_for >= FORGET_AFTER {
            self.forget();
        }
    }

    /// Records a failure. `ready_for`: time that the instance had served; `random` spreads the delay.
    pub fn record_failure(
        &mut self,
        failure: InstanceFailure,
        ready_for: Millis,
        random: u64,
        now: Millis,
    ) -> BackoffState {
        self.forget_after(ready_for);
        let delay = match failure {
            InstanceFailure::OutOfMemory if self.raise_estimate() => Millis::ZERO,
            InstanceFailure::WeightsMissing => WEIGHTS_RETRY,
            _ => {
                self.is_memory_retry = false;
                self.count(failure);
                match self.is_broken() {
                    true => spread(BROKEN_RETRY, random),
                    false => spread(delay_after(self.failures), random),
                }
            }
        };
        self.retry_at = Some((now + delay).max(self.earliest_start()));
        self.state()
    }

    /// Ends the delay, as an operator demands; counts stay.
    pub fn retry(&mut self) {
        self.retry_at = None;
    }

    /// Forgets all: the configuration or the files of the model have changed.
    pub fn reset(&mut self) {
        *self = LoadBackoff::default();
    }

    /// Returns the estimate of a model's memory after loads that ran out of it: 15 % more for each.
    pub fn raise(&self, estimate_mib: u64) -> u64 {
        (0..self.raises).fold(estimate_mib, |mib, _| {
            mib.saturating_add(mib.saturating_mul(15).div_ceil(100))
        })
    }

    /// Forgets failures; that the model has been ready stays known.
    fn forget(&mut self) {
        let (was_ready, starts) = (self.was_ready, self.starts);
        *self = LoadBackoff {
            was_ready,
            starts,
            ..LoadBackoff::default()
        };
    }

    /// Counts a failure. A device that was lost says nothing about the model.
    fn count(&mut self, failure: InstanceFailure) {
        self.failures = self.failures.saturating_add(1);
        if failure != InstanceFailure::DeviceLost && !self.was_ready {
            self.failures_before_ready = self.failures_before_ready.saturating_add(1);
        }
    }

    /// Raises the estimate, once per load; returns whether the load is worth a repeat at once.
    fn raise_estimate(&mut self) -> bool {
        let can_raise = self.raises < RAISES_MAX;
        self.raises += u8::from(can_raise);
        let repeats = can_raise && !self.is_memory_retry;
        self.is_memory_retry = repeats;
        repeats
    }

    /// First moment of a start that keeps the bound on starts.
    fn earliest_start(&self) -> Millis {
        self.starts[0].map_or(Millis::ZERO, |oldest| oldest + STARTS_SPAN)
    }
}

/// Delay after so many failures: 1, 2, 4 … 300 s.
fn delay_after(failures: u32) -> Millis {
    let doublings = failures.saturating_sub(1).min(16);
    Millis(DELAY_FIRST.0 << doublings).min(DELAY_MAX)
}

/// Returns `delay` changed by at most a tenth.
fn spread(delay: Millis, random: u64) -> Millis {
    let part = delay.0 / SPREAD_DIVISOR;
    Millis(delay.0 - part + random % (2 * part + 1))
}

#[cfg(test)]
#[path = "backoff/tests.rs"]
mod tests;
