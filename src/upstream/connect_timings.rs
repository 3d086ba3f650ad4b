//! Progress of one attempt at its model server, for the trace of its request.
//!
//! For information only: no decision or wait depends on it. Moments are microseconds on the [`Clock`]; 0 is "not
//! yet". The default has no clock and stays empty: health checks have no trace.

use crate::telemetry::Clock;

/// Moments of one attempt.
#[derive(Clone, Copy, Debug, Default)]
pub struct ConnectTimings {
    clock: Option<Clock>,
    /// A new connection was there. Zero for a connection from the pool.
    pub connected_us: u64,
    /// The connection had served others before.
    pub reused: bool,
    /// A kept connection was found closed after the request was written: sent once more on a new one.
    pub replaced: bool,
    /// The whole request was handed to the kernel.
    pub sent_us: u64,
}

impl ConnectTimings {
    /// Timings of an attempt that has not begun, measured on `clock`.
    pub fn with_clock(clock: Clock) -> ConnectTimings {
        ConnectTimings {
            clock: Some(clock),
            ..ConnectTimings::default()
        }
    }

    /// A connection was there on which the head of the request has gone out.
    pub fn is_head_sent(&self) -> bool {
        match self.replaced {
            true => !self.reused,
            false => self.reused || self.connected_us > 0,
        }
    }

    pub(super) fn record_connected(&mut self, reused: bool) {
        self.reused = reused;
        if !reused {
            self.connected_us = self.now();
        }
    }

    pub(super) fn record_replaced(&mut self) {
        self.replaced = true;
        self.sent_us = 0;
    }

    /// The request was written whole `ago_us` ago.
    pub(super) fn record_sent(&mut self, ago_us: u64) {
        self.sent_us = self.now().saturating_sub(ago_us);
    }

    fn now(&self) -> u64 {
        self.clock.map_or(0, Clock::micros)
    }
}
