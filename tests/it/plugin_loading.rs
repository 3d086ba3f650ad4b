//! Plugins are loaded with the configuration that names them: as a whole, or nothing changes.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use serde_json::Value;

use sha2::{Digest, Sha256};

use crate::support::{Node, SimulatedServer, chat, eventually, flat_price, one_model};

/// A plugin whose file is no component.
const NO_COMPONENT: &str =
    "plugins:\n  - name: p\n    world: billing-formula\n    file: p.wasm\n    dev: true\n";

fn with(server: &SimulatedServer, more: &str) -> String {
    let model = "    tariff: { cost_per_infer: 1 }\n    plugins: { billing: p }\n";
    let text = one_model(server.address, 1, model);
    format!("{text}{NO_COMPONENT}{more}")
}

#[tokio::test]
async fn a_plugin_that_cannot_be_loaded_leaves_everything_as_it_was() {
    let server = SimulatedServer::fast().await;
    let node = Node::start(&one_model(server.address, 1, "")).await;
    std::fs::write(node.dir().join("p.wasm"), "no component").unwrap();
    let answer = node.reload(&with(&server, "")).await;
    assert_eq!(answer.status, 422, "{}", answer.text());
    let problems = answer.json()["problems"].as_array().unwrap().clone();
    let text = std::fs::read_to_string(node.config_path()).unwrap();
    let line_of = |key: &str| 1 + text.lines().position(|line| line.contains(key)).unwrap();
    let found = problems
        .iter()
        .find(|problem| problem["path"] == "plugins[0].file");
    let problem = found.unwrap_or_else(|| panic!("{problems:?}"));
    assert_eq!(problem["line"], line_of("file: p.wasm"));
    assert!(!problem["message"].as_str().unwrap().is_empty());

    let state = node.state().await;
    assert_eq!(state["config"]["generation"], 1);
    assert_eq!(
        state["config"]["last_reload_error"]["problems"],
        Value::Array(problems)
    );
    assert_eq!(state["plugins"], Value::Array(Vec::new()));
    let served = node.post("/v1/chat/completions", &chat("m", "")).await;
    assert_eq!(served.status, 200);
}

#[tokio::test]
async fn a_refused_plugin_is_looked_at_again_when_its_file_changes() {
    let server = SimulatedServer::fast().await;
    let node = Node::start(&one_model(server.address, 1, "")).await;
    assert_eq!(node.reload(&with(&server, "")).await.status, 422);
    let refused = node.state().await["config"]["last_reload_error"].clone();
    std::fs::write(node.dir().join("p.wasm"), "still no component").unwrap();
    eventually("it was tried again", async || {
        let now = node.state().await["config"]["last_reload_error"].clone();
        (now["at"] != refused["at"]).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_gateway_does_not_start_and_a_check_does_not_pass_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("infergate.yaml");
    let text = format!(
        "listen:\n  clients: [{{ address: \"127.0.0.1:0\" }}]\n  admin: {{ address: \"127.0.0.1:0\" }}\n\
         anonymous: allow\nstate_dir: {}\n{NO_COMPONENT}",
        dir.path().join("state").display()
    );
    std::fs::write(&file, text).unwrap();
    std::fs::write(dir.path().join("p.wasm"), "no component").unwrap();
    for (arguments, code) in [(["check"].as_slice(), 1), (&["serve", "--config"], 2)] {
        let output = Command::new(env!("CARGO_BIN_EXE_infergate"))
            .args(arguments)
            .arg(&file)
            .output()
            .unwrap();
        let printed = [output.stdout, output.stderr].concat();
        let printed = String::from_utf8_lossy(&printed);
        assert_eq!(output.status.code(), Some(code), "{printed}");
        assert!(printed.contains("line 9: plugins[0].file: "), "{printed}");
    }
}

#[tokio::test]
async fn the_state_directory_is_made_for_its_owner_and_only_where_it_is_needed() {
    let server = SimulatedServer::fast().await;
    let node = Node::start(&one_model(server.address, 1, "")).await;
    let state = node.dir().join("state");
    assert!(!state.exists());
    std::fs::write(node.dir().join("p.wasm"), "no component").unwrap();
    node.reload(&with(&server, "")).await;
    let mode = std::fs::metadata(&state).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
}

/// A plugin that is there, with a table, in a folder of its own.
struct PluginFile {
    dir: tempfile::TempDir,
}

impl PluginFile {
    fn new(code: &[u8]) -> PluginFile {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("table.json"), r#"{ "a": 1 }"#).unwrap();
        let plugin = PluginFile { dir };
        plugin.write(code);
        plugin
    }

    fn write(&self, code: &[u8]) {
        // Replaced, as a deployment does it: half a file is never there.
        let beside = self.dir.path().join("next");
        std::fs::write(&beside, code).unwrap();
        std::fs::rename(beside, self.dir.path().join("p.wasm")).unwrap();
    }

    fn config(&self, server: &SimulatedServer, keys: &str) -> String {
        let dir = self.dir.path().display();
        let model = "    tariff: { cost_per_infer: 1 }\n    plugins: { billing: p }\n";
        format!(
            "{}plugins:\n  - name: p\n    world: billing-formula\n    file: {dir}/p.wasm\n    \
             grants: [\"tables:t\"]\n    tables: {{ t: {dir}/table.json }}\n{keys}",
            one_model(server.address, 1, model)
        )
    }
}

fn digest(code: &[u8]) -> String {
    hex::encode(Sha256::digest(code))
}

async fn until(node: &Node, generation: u64, code: &[u8]) {
    eventually(&format!("generation {generation}"), async || {
        let state = node.state().await;
        let now = state["config"]["generation"] == generation;
        (now && state["plugins"][0]["sha256"] == digest(code)).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_plugin_under_development_is_followed_as_it_is_written() {
    let server = SimulatedServer::fast().await;
    let (one, two) = (flat_price(1.0), flat_price(2.0));
    let plugin = PluginFile::new(&one);
    let node = Node::start(&plugin.config(&server, "    dev: true\n")).await;
    until(&node, 1, &one).await;
    let state = node.state().await["plugins"][0].clone();
    assert_eq!(
        (&state["name"], &state["world"]),
        (&"p".into(), &"billing-formula".into())
    );
    assert_eq!(state["breaker"], "closed");
    assert_eq!(
        (&state["instance"], &state["mode"]),
        (&"warm".into(), &Value::Null)
    );
    let loaded_at = |state: &Value| state["loaded_at"].as_str().unwrap().to_owned();
    let first = loaded_at(&state);
    let started_at = node.state().await["node"]["started_at"].clone();
    assert_eq!(first.len(), started_at.as_str().unwrap().len(), "{first}");

    plugin.write(&two);
    until(&node, 2, &two).await;
    assert!(loaded_at(&node.state().await["plugins"][0]) >= first);

    plugin.write(b"no component");
    eventually("it is refused", async || {
        let error = node.state().await["config"]["last_reload_error"].clone();
        (error["problems"][0]["path"] == "plugins[0].file").then_some(())
    })
    .await;
    until(&node, 2, &two).await;
    let refused = r#"infergate_plugin_reload_failed_total{plugin="p",stage="component"}"#;
    assert!(node.metric(refused).await.unwrap() >= 1.0);
    let open = r#"infergate_plugin_breaker_open{plugin="p"}"#;
    assert_eq!(node.metric(open).await, Some(0.0));

    plugin.write(&one);
    until(&node, 3, &one).await;
    assert_eq!(
        node.state().await["config"]["last_reload_error"],
        Value::Null
    );

    std::fs::write(plugin.dir.path().join("table.json"), r#"{ "a": 2 }"#).unwrap();
    until(&node, 4, &one).await;

    let without = node.reload(&one_model(server.address, 1, "")).await;
    assert_eq!(without.status, 200, "{}", without.text());
    assert_eq!(node.state().await["plugins"], Value::Array(Vec::new()));
    assert_eq!(node.metric(open).await, None);
}

#[tokio::test]
async fn a_plugin_with_a_digest_stays_what_it_is() {
    let server = SimulatedServer::fast().await;
    let (one, two) = (flat_price(1.0), flat_price(2.0));
    let plugin = PluginFile::new(&one);
    let pinned = |code: &[u8]| format!("    sha256: {}\n", digest(code));
    let node = Node::start(&plugin.config(&server, &pinned(&one))).await;
    until(&node, 1, &one).await;

    let answer = node.reload(&plugin.config(&server, &pinned(&two))).await;
    assert_eq!(answer.status, 422, "{}", answer.text());
    assert_eq!(answer.json()["problems"][0]["path"], "plugins[0].sha256");
    assert!(answer.json()["problems"][0]["line"].is_u64());
    until(&node, 1, &one).await;

    // The refused configuration is right about the code that comes.
    plugin.write(&two);
    until(&node, 2, &two).await;
    assert_eq!(
        node.post_reload().await.json()["changed"],
        Value::Array(Vec::new())
    );
}

#[tokio::test]
async fn an_optional_plugin_that_is_not_there_is_left_out_until_it_comes() {
    let server = SimulatedServer::fast().await;
    let one = flat_price(1.0);
    let plugin = PluginFile::new(&one);
    let file = plugin.dir.path().join("p.wasm");
    std::fs::remove_file(&file).unwrap();
    let keys = format!("    sha256: {}\n    optional: true\n", digest(&one));
    let node = Node::start(&plugin.config(&server, &keys)).await;
    assert_eq!(node.state().await["plugins"], Value::Array(Vec::new()));
    assert!(node.log().contains("optional"), "{}", node.log());
    plugin.write(&one);
    until(&node, 2, &one).await;
}

#[tokio::test]
async fn a_reload_takes_an_optional_plugin_whose_file_is_the_same_and_whose_fixtures_are_right_now()
{
    let server = SimulatedServer::fast().await;
    let one = flat_price(1.0);
    let plugin = PluginFile::new(&one);
    let fixtures = plugin.dir.path().join("p.tests");
    std::fs::create_dir(&fixtures).unwrap();
    let expect = |total: f64| {
        let fixture = serde_json::json!({ "hook": "price",
            "args": { "tariff": { "cost-per-infer": 1.0, "coefficients": [], "criteria": [] },
                      "usage": { "model": "m", "trust": "trust", "outcome": "completed", "streamed": false,
                                 "metrics": [], "queue-ms": 0, "infer-ms": 0 } },
            "expect": { "total": total } });
        std::fs::write(fixtures.join("one.json"), fixture.to_string()).unwrap();
    };
    expect(9.0);
    let keys = format!("    sha256: {}\n    optional: true\n", digest(&one));
    let node = Node::start(&plugin.config(&server, &keys)).await;
    assert_eq!(node.state().await["plugins"], Value::Array(Vec::new()));
    expect(1.0);
    let report = node.post_reload().await.json();
    assert_eq!(report["changed"], serde_json::json!(["plugins[p]"]));
    until(&node, 2, &one).await;
}
