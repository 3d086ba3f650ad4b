//! Bound of a response that is held whole.
//!
//! Events have a bound of their own, in the core.

/// The longest answer that is collected to be converted: 100 vectors of 4,096 dimensions, written
/// with all digits, are 9 MB.
pub const RESPONSE_BYTES_MAX: usize = 16 << 20;
