//! An order of endpoints for one request, as a routing policy ranked them; it replaces the tiers.
//!
//! Fitness is decided elsewhere: an endpoint that is full, unusable or avoided is passed over.

use super::endpoint_id::EndpointId;

/// Endpoints by step: equal steps share load, a later step is used only when the earlier ones have
/// no free permit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndpointOrder {
    /// Sorted by step; within a step as given.
    ranked: Vec<(u8, EndpointId)>,
}

impl EndpointOrder {
    /// An order of `ranked`, whose sequence counts only within a step.
    pub fn new(ranked: impl IntoIterator<Item = (u8, EndpointId)>) -> EndpointOrder {
        let mut ranked: Vec<_> = ranked.into_iter().collect();
        ranked.sort_by_key(|&(step, _)| step);
        EndpointOrder { ranked }
    }

    /// The endpoints with their steps, the best one first.
    pub fn ranked(&self) -> &[(u8, EndpointId)] {
        &self.ranked
    }

    /// The endpoints of each step, the best one first.
    pub(super) fn steps(&self) -> impl Iterator<Item = &[(u8, EndpointId)]> {
        self.ranked.chunk_by(|one, other| one.0 == other.0)
    }
}
