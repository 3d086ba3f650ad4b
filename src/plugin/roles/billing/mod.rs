//! Billing: the worlds `billing-formula` and `billing-estimator`.

pub(crate) mod guest;
pub(crate) mod pricing;
pub(crate) mod repeat;
pub(crate) mod slot;
