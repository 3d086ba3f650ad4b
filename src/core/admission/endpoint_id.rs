//! Identity of an endpoint within its model. Not its state, which `endpoints.rs` holds.

/// An endpoint of one model: an index that stays the same while its URL is configured and is not
/// used again before its last permit has come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EndpointId(pub u32);

impl EndpointId {
    /// Place in the list of endpoints.
    pub(super) fn index(self) -> usize {
        self.0 as usize
    }
}
