//! What a request used, as far as the backend said.
//!
//! It does not price anything: usage comes in counts, and from whichever report came last.

mod usage;

pub use usage::Usage;
