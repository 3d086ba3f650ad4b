//! Configuration files that are part of the binary.
//!
//! Not read at start: `init`, `example` and `demo` write or use them.

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
