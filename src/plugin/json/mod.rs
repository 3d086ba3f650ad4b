//! JSON bodies without a tree: an index of containers and members over the text, and edits as splices.
//!
//! Not a general JSON library. Numbers and texts in a list are never stored, so that a list of 15 MiB of
//! bytes costs its text alone. Containers and members together are bounded by [`PARTS_MAX`], nesting by
//! [`DEPTH_MAX`]. Called by the task session and the schemas.

mod node;
mod outline;
mod splice;
#[cfg(test)]
mod tests;

pub use node::{OutlineJson, OutlineNode};
pub use outline::{DEPTH_MAX, Outline, OutlineError, PARTS_MAX, bytes_max};
pub use splice::splice;

/// True when the bytes are one JSON value. Stores nothing.
pub fn is_json(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_ok()
        && serde_json::from_slice::<serde::de::IgnoredAny>(bytes).is_ok()
}
