//! The configuration: one YAML file, read, checked, watched and compared.
//!
//! Applying is the part of `app`: it loads at start and on reload, swaps the snapshot and reports
//! the changes. No task is spawned here. A file is taken whole or not at all; every problem comes
//! with its key path, its line and what to do.
//!
//! ```text
//! text → yaml (tree with lines) → env (${NAME}) → unsupported → structure (JSON Schema)
//!      → check (what takes two keys) → Config
//! ```
//!
//! Bounds: 32 MiB a file, a million values, 32 levels, 200 problems listed.

mod check;
mod diff;
mod document;
mod embedded;
mod env;
mod file;
mod load;
mod positions;
mod problem;
mod redacted;
mod scalar;
mod schema;
mod structure;
mod unsupported;
pub mod watch;
mod yaml;

pub use diff::{KeyDifference, diff, differences};
pub use embedded::{EXAMPLE, QUICKSTART, QUICKSTART_PLUGINS, STARTER};
pub use file::{AdminListener, Anonymous, Config, Listen, NodeConfig};
#[cfg(any(test, fuzzing))]
pub use load::parse;
#[cfg(test)]
pub use load::{FILE_BYTES_MAX, content_hash};
pub use load::{LoadedConfig, load, load_with};
pub use positions::KeyPositions;
pub use problem::Problem;
pub use redacted::{effective, has_secret, redacted};
pub use schema::schema;

#[cfg(test)]
mod tests;
