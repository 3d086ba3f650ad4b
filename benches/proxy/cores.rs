//! Assignment of processes to CPUs.
//! Not the pinning itself: `kit::process`.

use crate::kit::procfs;

/// Assignment of processes to CPUs.
pub struct Cores {
    /// Everything that is measured, its load and the upstream.
    pub shared: String,
    /// The bench itself; load and upstream of the open loops.
    pub other: String,
    pub two_threads: String,
    pub all: String,
}

impl Cores {
    pub fn plan() -> Self {
        let count = procfs::cores();
        let (other, two_threads) = match count {
            1 => ("0", "0"),
            2 | 3 => ("1", "0,1"),
            _ => ("1", "0,2"),
        };
        Self {
            shared: "0".into(),
            other: other.into(),
            two_threads: two_threads.into(),
            all: format!("0-{}", count - 1),
        }
    }
}
