//! JSON bodies without a tree: an index over the text, edits as splices, JSON Pointers and JSON Schema.
//!
//! Not a general JSON library. Numbers and texts in a list are never stored, so that a list of 15 MiB of
//! bytes costs its text alone. Containers and members together are bounded by [`PARTS_MAX`], nesting by
//! [`DEPTH_MAX`]. Called by the task session and by the checks of task descriptions.

pub(crate) mod expansion;
pub(crate) mod fast;
pub(crate) mod node;
pub(crate) mod outline;
pub(crate) mod pointer;
pub(crate) mod schema;
pub(crate) mod select;
pub(crate) mod splice;
#[cfg(test)]
mod tests;

pub use node::{OutlineJson, OutlineNode};
pub use outline::{DEPTH_MAX, Outline, OutlineError, PARTS_MAX, bytes_max};
pub use splice::splice;
