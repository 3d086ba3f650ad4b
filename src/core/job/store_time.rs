//! Time of a store of jobs: milliseconds since 1970 by the store's own clock.
//!
//! Not comparable with a node's clock or with [`Millis`] since its start.

use std::ops::Add;

use serde::{Deserialize, Serialize};

use crate::Millis;

/// A moment by the store's clock, milliseconds since 1970. Arithmetic saturates.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct StoreTime(pub u64);

impl StoreTime {
    /// Later than anything that happens.
    pub const MAX: StoreTime = StoreTime(u64::MAX);

    /// The span from `earlier` to `self`; zero when `earlier` is later.
    pub const fn since(self, earlier: StoreTime) -> Millis {
        Millis(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Millis> for StoreTime {
    type Output = StoreTime;
    fn add(self, span: Millis) -> StoreTime {
        StoreTime(self.0.saturating_add(span.0))
    }
}
