//! `infergate check` with models that have a process.

use std::process::{Command, Output};

use serde_json::Value;

const HOST: &str = r#"
listen: { clients: [{ address: "127.0.0.1:0" }], admin: { address: "127.0.0.1:0" } }
anonymous: allow
gpu:
  devices: simulated
  simulated: { cards: [{ name: sim0, total_mib: 24576 }] }
models:
  - { id: a, task: text-generation, backend: openai, process: { preset: simulate }, vram: { mib: 14000 }, pin: true }
  - { id: b, task: text-generation, backend: openai, process: { preset: simulate }, vram: { mib: 9000 } }
"#;

fn infergate(arguments: &[&str], content: &str) -> Output {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("infergate.yaml");
    std::fs::write(&path, content).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_infergate"));
    command.args(arguments).arg(&path).output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn check_says_what_fits_where() {
    let checked = infergate(&["check"], HOST);
    assert_eq!(checked.status.code(), Some(0));
    let text = stdout(&checked);
    for part in ["sim0", "14000 MiB by manifest, on sim0, pinned", "a + b"] {
        assert!(text.contains(part), "{part} in {text}");
    }
    let json = infergate(&["check", "--json"], HOST);
    let json: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(json["gpu"]["together"], serde_json::json!([["a", "b"]]));
    assert_eq!(json["ok"], true);
}

#[test]
fn pins_without_room_are_an_error_at_their_key() {
    let both = HOST.replace("vram: { mib: 9000 }", "vram: { mib: 12000 }, pin: true");
    let text = stdout(&infergate(&["check"], &both));
    assert!(
        text.contains("error: line 9: models[1].pin: no device has room"),
        "{text}"
    );
}
