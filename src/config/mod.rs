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

pub use diff::{ConfigDiff, KeyDifference, diff, differences};
pub use file::{AdminListener, Anonymous, ClientListener, Config, Listen, NodeConfig};
pub use load::{ContentHash, FILE_BYTES_MAX, LoadedConfig, content_hash, load, load_with, parse};
pub use positions::KeyPositions;
pub use problem::Problem;
pub use redacted::{effective, has_secret, redacted};
pub use schema::schema;

/// The example file: every key with its default or an example, and a comment.
pub const EXAMPLE: &str = include_str!("../../config/example.yaml");

/// The file to begin with: one model server, and comments that say what comes next.
pub const STARTER: &str = include_str!("../../config/starter.yaml");

/// The file `infergate demo` runs on: two simulated GPU containers on ports 9001 and 9002.
pub const QUICKSTART: &str = include_str!("../../config/quickstart.yaml");

/// The plugins it names, by their paths beside it.
pub const QUICKSTART_PLUGINS: [(&str, &[u8]); 3] = [
    (
        "quickstart/text-generation.wasm",
        include_bytes!("../../config/quickstart/text-generation.wasm"),
    ),
    (
        "quickstart/neurons.wasm",
        include_bytes!("../../config/quickstart/neurons.wasm"),
    ),
    (
        "quickstart/latency.wasm",
        include_bytes!("../../config/quickstart/latency.wasm"),
    ),
];

#[cfg(test)]
mod tests;
