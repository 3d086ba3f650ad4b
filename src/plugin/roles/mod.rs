//! Roles of a plugin: task, billing and routing, one folder each.
//!
//! A role is a trait ([`traits`]) with two implementations: the built-in one, and a Wasm revision whose
//! answers are validated before use. A slot of a model calls the candidates of its fallback chain in order.

pub(crate) mod billing;
pub(crate) mod builtin;
pub(crate) mod captured_args;
pub(crate) mod chain;
pub(crate) mod guest;
pub(crate) mod routing;
pub(crate) mod task;
pub(crate) mod traits;
pub(crate) mod validate_output;
