//! Tests of the plugin host with good guests and with hostile ones.

mod capturing;
mod checks;
mod compiling;
mod crowd;
mod evil;
pub(crate) mod guests;
mod isolation;
mod loading;
mod pricing;
mod rows;
mod sessions;
mod shipped;
mod sizes;
pub(crate) mod stand;

/// Interfaces that the guests are written against; the bench has the same from outside.
mod room {
    pub use crate::plugin::{World, wit};
}
