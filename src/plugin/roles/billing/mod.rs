//! Billing: the worlds `billing-formula` and `billing-estimator`.

pub(crate) mod guest;
pub(crate) mod repeat;
pub(crate) mod slot;
