//! Architecture rules, held by a test: allowed imports, places of foreign libraries, length of functions.
//!
//! Not a second rustfmt or clippy: style that those judge is left to them. Every check is a function over a
//! list of (path, text), so that `tidy/planted.rs` can plant an offence and see the check turn red.
//! The tables below are the rules; the prose is in ARCHITECTURE.md.

#[path = "tidy/ceilings.rs"]
mod ceilings;
#[path = "tidy/checks.rs"]
mod checks;
#[path = "tidy/dead_items.rs"]
mod dead_items;
#[path = "tidy/file_cycles.rs"]
mod file_cycles;
#[path = "tidy/glossary.rs"]
mod glossary;
#[path = "tidy/layers.rs"]
mod layers;
#[path = "tidy/lengths.rs"]
mod lengths;
#[path = "tidy/mod_files.rs"]
mod mod_files;
#[path = "tidy/modules.rs"]
mod modules;
#[path = "tidy/names.rs"]
mod names;
#[path = "tidy/paths.rs"]
mod paths;
#[path = "tidy/places.rs"]
mod places;
#[path = "tidy/planted.rs"]
mod planted;
#[path = "tidy/planted_language.rs"]
mod planted_language;
#[path = "tidy/prose.rs"]
mod prose;
#[path = "tidy/ratchets.rs"]
mod ratchets;
#[path = "tidy/tokens.rs"]
mod tokens;
#[path = "tidy/tree.rs"]
mod tree;

use std::fs;
use std::path::Path;

use checks::offences;
use tree::Source;

/// The shell's modules in layers: a module imports from layers above its own line, never from its own.
const SHELL_LAYERS: &[&[&str]] = &[
    &["http1", "telemetry", "regular_file"],
    &["tls"],
    &["plugin"],
    &["upstream"],
    &["peer"],
    &["trace"],
    &["state"],
    &["pipeline"],
    &["files"],
    &["jobs", "gpu"],
    &["downstream", "scaling"],
    &["config"],
    &["admin"],
    &["app"],
    &["cli"],
    &["main"],
];

/// Folders of a module in layers: a folder imports from folders before it, never from those behind.
const INNER_LAYERS: &[(&str, &[&str])] = &[("src/plugin", &["runtime", "roles", "loading"])];

/// `simulate` stands beside the layers: it is a model server, not a part of the gateway.
const SIMULATE: &str = "simulate";
const SIMULATE_USERS: &[&str] = &["app", "cli", "main"];

/// The core's modules, in layers as above.
const CORE_LAYERS: &[&[&str]] = &[
    &["time", "network"],
    &[
        "id",
        "deadline",
        "refusal",
        "trace_context",
        "client_address",
        "websocket",
    ],
    &["model"],
    &[
        "api",
        "admission",
        "routing",
        "job",
        "vram",
        "billing",
        "scaling",
        "task",
    ],
];

/// The modules of `infergate-tasks`, in layers as above.
const TASKS_LAYERS: &[&[&str]] = &[
    &["base64", "json"],
    &["estimate", "policy", "price", "task"],
];

/// All that `infergate-tasks` may depend on: every plugin contains it.
const TASKS_DEPENDENCIES: &[&str] = &["serde", "serde_json"];

/// Names that never occur in the core: no clock, socket, file, thread or source of randomness.
const CORE_NEVER: &[&str] = &[
    "tokio",
    "Instant",
    "SystemTime",
    "rand",
    "fastrand",
    "getrandom",
    "infergate",
];
const CORE_NEVER_OF_STD: &[&str] = &["net", "fs", "thread", "process", "env", "os"];

/// All that the core may depend on.
const CORE_DEPENDENCIES: &[&str] = &[
    "bytes",
    "fearless_simd",
    "hashbrown",
    "infergate-tasks",
    "memchr",
    "percent-encoding",
    "schemars",
    "serde",
    "serde_json",
    "simdutf8",
    "thiserror",
];

/// Foreign libraries that belong to modules: (name or beginning of the crate's name, where it may
/// stand).
const FOREIGN: &[(&str, &[&str])] = &[
    ("redis", &["src/queue/stream.rs"]),
    ("nvml", &["src/gpu/device/nvml.rs", "src/gpu/device/mod.rs"]),
    ("rusqlite", &["src/jobs/embedded"]),
    ("object_store", &["src/files/s3"]),
    ("wasmtime", &["src/plugin", "src/cli/tooling"]),
    (
        "pingora",
        &[
            "src/upstream/target.rs",
            "src/upstream/dial.rs",
            "src/admin",
            "src/app",
        ],
    ),
    ("httparse", &["src/http1"]),
    ("httpdate", &["src/http1"]),
    (
        "h2",
        &[
            "src/downstream/http2",
            "src/downstream/http2_stream.rs",
            "src/upstream/http2",
            "src/upstream/http2_stream.rs",
        ],
    ),
    ("rustls", &["src/tls"]),
    ("tokio_rustls", &["src/tls"]),
    ("webpki", &["src/tls"]),
    ("prometheus", &["src/telemetry"]),
    ("prost", &["src/telemetry/otlp"]),
    ("tracing_subscriber", &["src/telemetry/log"]),
    ("hyper", &["src/simulate", "src/http1/tests.rs"]),
    ("clap", &["src/cli", "src/main", "src/simulate"]),
    ("notify", &["src/config"]),
    ("saphyr", &["src/config"]),
    ("fearless_simd", &["src/core/api/body"]),
    ("jsonschema", &["src/config", "src/plugin"]),
    ("wit_", &["src/cli/tooling", "src/plugin/tests"]),
    ("chitchat", &["src/peer/gossip"]),
    ("anyhow", &["src/peer/gossip/datagram.rs"]),
];

/// Type names that may be written in a few places only: (name, modules or files).
const NAMES_AT_HOME: &[(&str, &[&str])] = &[
    // Built at the end of a request: a step that could name it could be steered by it.
    (
        "InferenceEvent",
        // A job's event is taken from its context at the end, and completed with what the store knows.
        &[
            "src/telemetry",
            "src/pipeline/context/event.rs",
            "src/jobs/events.rs",
        ],
    ),
    ("ServerSession", &["src/admin", "src/app/admin_thread.rs"]),
    // A dialect is known by its row alone.
    ("Anthropic", &["src/core/api"]),
    ("BackendName", &["src/core/model", "src/upstream/backends"]),
];

/// Files that may start threads and long tasks, so that shutdown is a list that can be read.
///
/// Each thread has an owner that joins it: the event file's writer its handle (`close`), the plugin
/// ticker its drop. A compiler's thread is joined by the function that starts it.
const SPAWNERS: &[&str] = &[
    "src/app",
    "src/simulate",
    "src/telemetry/event_sink.rs",
    "src/telemetry/event_sink/socket.rs",
    "src/telemetry/log/queue.rs",
    "src/plugin/runtime/ticker.rs",
    "src/plugin/loading/compile.rs",
    "src/plugin/runtime/background.rs",
    "src/config/watch",
    // Two threads that end with the handle, one that ends with the process that had the store before, and the set of slots that a drain waits for.
    "src/jobs/embedded/handle.rs",
    "src/jobs/worker.rs",
    // Processes of models: a keeper, which ends when its connection does, and the process that it is the parent of.
    "src/gpu/monitor.rs",
    "src/gpu/device/card_looks.rs",
    "src/gpu/process/instance.rs",
    "src/gpu/process/keeper/child.rs",
    // Streams of one connection, in a set that ends with it.
    "src/downstream/http2_work.rs",
    // Connections to model servers, in a set that ends with their client.
    "src/upstream/http2.rs",
    // Reads and writes of blobs, each as long as the disk takes for one piece.
    "src/files/disk.rs",
    "src/upstream/gate/interleavings.rs",
];

/// The only files where `unsafe` is allowed: the door for compiled code, the bindings that wasmtime's
/// macro makes, sockets of a service manager, the allocator's settings, and a test's allocator. docs/decisions/006-unsafe-files.md
const UNSAFE: &[&str] = &[
    "src/plugin/runtime/code_cache.rs",
    "src/plugin/runtime/bindings.rs",
    "src/app/activation.rs",
    "src/app/heap.rs",
    "tests/allocations/counter.rs",
];

/// Lines a function may have. Longer ones are named in [`LONG_FUNCTIONS`].
const FUNCTION_LINES_MAX: usize = 70;

/// (path, function, lines it may have): it may shrink, not grow, and leaves the list once short.
const LONG_FUNCTIONS: &[(&str, &str, usize)] = &[];

/// Lines a file may have: beyond it there is a second idea in it. Tests are not counted.
const FILE_LINES_MAX: usize = 600;

/// Marks of unfinished work, put together here so that this file does not bear them.
const UNFINISHED: &[&str] = &[
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("todo", "!("),
    concat!("unimplemented", "!("),
    concat!("#[ig", "nore"),
];

/// Every `.rs` file and manifest of the two packages.
fn repository() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut sources = Vec::new();
    for path in ["Cargo.toml", "build.rs"] {
        read_into(root, path, &mut sources);
    }
    for directory in ["src", "tests", "benches"] {
        walk(root, directory, &mut sources);
    }
    sources
}

fn walk(root: &Path, directory: &str, sources: &mut Vec<Source>) {
    let Ok(entries) = fs::read_dir(root.join(directory)) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = format!("{directory}/{name}");
        let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
        // What a test run fetches and builds stands below dot names and in node_modules.
        if is_directory && !name.starts_with('.') && name != "node_modules" {
            walk(root, &path, sources);
        } else if name.ends_with(".rs") || name == "Cargo.toml" {
            read_into(root, &path, sources);
        }
    }
}

fn read_into(root: &Path, path: &str, sources: &mut Vec<Source>) {
    if let Ok(text) = fs::read_to_string(root.join(path)) {
        sources.push(Source {
            path: path.to_owned(),
            text,
        });
    }
}

#[test]
fn the_repository_is_tidy() {
    let sources = repository();
    assert!(
        sources
            .iter()
            .any(|source| source.path == "src/core/lib.rs"),
        "the tree is not found"
    );
    let found = offences(&sources);
    assert!(found.is_empty(), "\n{}\n", found.join("\n"));
}

/// Figures may shrink; `cargo test --test tidy ratchets -- --nocapture` prints them.
#[test]
fn the_ratchets_hold() {
    let sources = repository();
    let tree = tree::Tree::of(&sources);
    let mut plugins = Vec::new();
    walk(
        Path::new(env!("CARGO_MANIFEST_DIR")),
        "plugins",
        &mut plugins,
    );
    ratchets::print_figures(&tree, &sources, &plugins);
    let mut found = Vec::new();
    ratchets::ratchets(&tree, &sources, &plugins, &mut found);
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/glossary.md");
    let page = fs::read_to_string(page).expect("the glossary is read");
    println!(
        "types without a line in the glossary: {:?}",
        glossary::missing(&tree, &page)
    );
    glossary::glossary(&tree, &page, ceilings::GLOSSARY_MISSING_MAX, &mut found);
    assert!(found.is_empty(), "\n{}\n", found.join("\n"));
}

/// Two branches that take the next number at once would both keep it.
#[test]
fn decisions_are_numbered_without_a_gap_and_say_their_number() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/decisions");
    let mut files: Vec<_> = fs::read_dir(&folder)
        .expect("the decisions are listed")
        .map(|entry| entry.expect("an entry is read").path())
        .collect();
    files.sort();
    for (nth, file) in files.iter().enumerate() {
        let number = format!("{:03}", nth + 1);
        let name = file
            .file_name()
            .and_then(|name| name.to_str())
            .expect("a name");
        let text = fs::read_to_string(file).expect("a decision is read");
        assert!(
            name.starts_with(&format!("{number}-")),
            "{name} is not {number}"
        );
        assert!(
            text.starts_with(&format!("# {number}: ")),
            "{name} calls itself otherwise"
        );
    }
}
