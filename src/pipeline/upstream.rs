//! Upstream of a request: a model server of this node, or another node of the cluster.
//!
//! A value from the grant of a permit to the end of the relay. First the right to send the request there, then
//! the response that has started. The choice between the two is made by admission.

use crate::pipeline::forwarding::ForwardPlan;
use crate::upstream::Permit;

/// Side that serves a request.
#[allow(
    clippy::large_enum_variant,
    reason = "moved a few times a request; a box would cost requests that stay here an allocation"
)]
pub enum Upstream<L, P> {
    /// A model server of this node.
    Local(L),
    /// Another node.
    Peer(P),
}

/// Upstream that admission has granted; nothing was sent yet.
pub type GrantedUpstream = Upstream<Permit, ForwardPlan>;

impl<L, P> Upstream<L, P> {
    /// Returns the value of a model server of this node; none of another node.
    pub fn local(&self) -> Option<&L> {
        match self {
            Upstream::Local(local) => Some(local),
            Upstream::Peer(_) => None,
        }
    }
}
