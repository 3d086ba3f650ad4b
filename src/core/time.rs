//! Time in the core: milliseconds since the process started.
//!
//! Not wall-clock time, and monotonic. Printable, storable in a seed, replayable. The shell converts
//! from `Instant` where it calls the core.

use std::ops::{Add, Sub};

/// A moment, or a span, in milliseconds. Arithmetic saturates: a deadline never wraps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Millis(pub u64);

impl Millis {
    /// The start of time, and the span of nothing.
    pub const ZERO: Millis = Millis(0);
    /// Later than anything that happens.
    pub const MAX: Millis = Millis(u64::MAX);

    /// A span of whole seconds.
    pub const fn from_secs(secs: u64) -> Millis {
        Millis(secs.saturating_mul(1000))
    }

    /// The span from `earlier` to `self`; zero when `earlier` is later.
    pub const fn since(self, earlier: Millis) -> Millis {
        Millis(self.0.saturating_sub(earlier.0))
    }
}

impl Add for Millis {
    type Output = Millis;
    fn add(self, span: Millis) -> Millis {
        Millis(self.0.saturating_add(span.0))
    }
}

impl Sub for Millis {
    type Output = Millis;
    fn sub(self, span: Millis) -> Millis {
        Millis(self.0.saturating_sub(span.0))
    }
}
