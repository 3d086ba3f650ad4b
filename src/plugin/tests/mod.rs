//! The room against guests that mean it well and guests that do not.

mod capturing;
mod compiling;
mod crowd;
mod evil;
mod examining;
mod guests;
mod isolation;
mod loading;
mod rows;
mod sessions;
mod shipped;
mod sizes;
mod stand;

/// What the guests are written against; the bench has the same from outside.
mod room {
    pub use crate::plugin::{World, wit};
}
