//! Routing: the world `routing-policy`.

pub(crate) mod guest;
pub(crate) mod slot;
