//! Photos and sounds as clients send them pass every task, built in and shipped, under default limits.

use std::fmt::Write as _;

use super::*;
use crate::plugins::fixtures::shipped;

const MIB: usize = 1 << 20;

/// Member in which each task takes a file, whether it takes a list of bytes too, and what else the
/// task needs. A task of texts takes the photo for a text, and a list in a member of no meaning.
const FILES: [(&str, &str, bool, &str); 14] = [
    ("text-generation", "prompt", false, ""),
    ("text-classification", "text", false, ""),
    ("text-embeddings", "text", false, ""),
    ("text-to-image", "image", true, r#","prompt":"x""#),
    ("text-to-speech", "text", false, ""),
    ("automatic-speech-recognition", "audio", true, ""),
    ("image-classification", "image", true, ""),
    ("image-to-text", "image", true, ""),
    ("image-text-to-text", "image", true, r#","prompt":"x""#),
    ("object-detection", "image", true, ""),
    ("translation", "text", false, r#","target_lang":"fr""#),
    ("summarization", "input_text", false, ""),
    ("multimodal-embeddings", "image", true, ""),
    ("dumb-pipe", "image", true, ""),
];
const STREAMING: [&str; 3] = ["text-generation", "image-to-text", "image-text-to-text"];

/// A gateway with two models a task, `builtin-SLUG` and `wasm-SLUG`, both on one server.
async fn photo_servers() -> (Node, Vec<SimulatedServer>) {
    let mut models = String::new();
    let mut plugins = String::new();
    let mut servers = Vec::new();
    for (slug, task) in TASKS {
        let server = SimulatedServer::start(config(task)).await;
        let world = match STREAMING.contains(&slug) {
            true => "task-schema-streaming",
            false => "task-schema",
        };
        models += &model_of(&format!("builtin-{slug}"), slug, "http", server.address);
        models += &model_of(&format!("wasm-{slug}"), slug, "http", server.address);
        let _ = writeln!(models, "    plugins: {{ task: wasm-{slug} }}");
        let _ = writeln!(
            plugins,
            "  - {{ name: wasm-{slug}, world: {world}, file: \"{}\", dev: true }}",
            shipped(slug, world).file.display()
        );
        servers.push(server);
    }
    let node = Node::start(&format!("models:\n{models}plugins:\n{plugins}")).await;
    (node, servers)
}

/// Base64 of a photo of so many bytes.
fn photo(bytes: usize) -> String {
    let text = "iVBORw0KGgoAAAANSUhEUgAA+/".chars().cycle();
    let text: String = text.take(bytes.div_ceil(3) * 4).collect();
    format!("\"{text}\"")
}

/// A list of bytes as JSON, of about so much text.
fn list_of_bytes(text_bytes: usize) -> String {
    let some = "137,80,78,71,13,10,26,10,255,0,";
    format!("[{}7]", some.repeat(text_bytes / some.len()))
}

#[tokio::test]
async fn photos_of_3_and_11_mib_and_15_mib_of_numbers_pass_every_shipped_task() {
    let (node, _servers) = photo_servers().await;
    let photos = [photo(3 * MIB), photo(11 * MIB)];
    let (long, short) = (list_of_bytes(15 * MIB), list_of_bytes(MIB));
    for (task, member, takes_list, more) in FILES {
        for way in ["builtin", "wasm"] {
            // A debug build takes seconds to read millions of numbers: there it does so once a task.
            let is_long = !cfg!(debug_assertions) || (way == "wasm" && takes_list);
            let list = if is_long { &long } else { &short };
            let list = match takes_list {
                true => format!(r#"{{"{member}":{list}{more}}}"#),
                false => format!(r#"{{"{member}":"x","pad":{list}{more}}}"#),
            };
            let bodies = photos
                .iter()
                .map(|photo| format!(r#"{{"{member}":{photo}{more}}}"#));
            for body in bodies.chain([list]) {
                let model = format!("{way}-{task}");
                let answer = run(&node, &model, "application/json", body.as_bytes()).await;
                let mib = body.len() / MIB;
                assert_eq!(answer.status, 200, "{model}, {mib} MiB: {}", answer.text());
            }
        }
    }
    // The shipped ones were asked, and none of them has failed.
    let plugins = node.state().await["plugins"].clone();
    for plugin in plugins.as_array().unwrap() {
        let failures = plugin["failures"].as_object().unwrap();
        assert!(failures.values().all(|count| *count == 0), "{plugin:#}");
    }
    assert_eq!(plugins.as_array().map(Vec::len), Some(FILES.len()));
}
