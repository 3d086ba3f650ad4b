//! Time of a host: milliseconds since its boot, the same for all of its processes.
//!
//! Not [`Millis`], which counts from the start of one process. Stops in no suspend (`CLOCK_BOOTTIME`,
//! <https://man7.org/linux/man-pages/man2/clock_gettime.2.html>) and begins again with each boot.

use std::ops::Add;

use serde::{Deserialize, Serialize};

use crate::Millis;

/// Moment since the boot of the host, milliseconds.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct HostTime(pub u64);

impl HostTime {
    /// Returns the span from `earlier`; zero when `earlier` is later.
    pub const fn since(self, earlier: HostTime) -> Millis {
        Millis(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Millis> for HostTime {
    type Output = HostTime;
    fn add(self, span: Millis) -> HostTime {
        HostTime(self.0.saturating_add(span.0))
    }
}
