//! `plugin watch`: a change of the source goes through build, check and tests into a gateway.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use crate::support::{Node, SimulatedServer, eventually, flat_price, one_model, refusing_settings};

/// Output of the command, written to a file among the sources.
const LOG: &str = "watch.log";

/// A project whose compiler, in the place of componentize-qjs, copies `source.wasm`.
fn project(component: &[u8]) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let manifest = r#"{"name":"p","main":"plugin.js","infergate":{"world":"billing-formula"}}"#;
    fs::write(dir.path().join("package.json"), manifest).unwrap();
    fs::write(dir.path().join("source.wasm"), component).unwrap();
    let tools = dir.path().join("node_modules/.bin");
    fs::create_dir_all(&tools).unwrap();
    let tool = tools.join("componentize-qjs");
    let script = "#!/bin/sh\ncp source.wasm node_modules/.infergate/plugin.wasm\n";
    fs::write(&tool, script).unwrap();
    fs::set_permissions(&tool, fs::Permissions::from_mode(0o755)).unwrap();
    dir
}

fn watch(dir: &Path, more: &[&str]) -> Child {
    let log = fs::File::create(dir.join(LOG)).unwrap();
    Command::new(env!("CARGO_BIN_EXE_infergate"))
        .args(["plugin", "watch"])
        .args(more)
        .current_dir(dir)
        .env("XDG_CACHE_HOME", dir.join(".cache"))
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

fn log(dir: &Path) -> String {
    fs::read_to_string(dir.join(LOG)).unwrap()
}

async fn rounds(dir: &Path, count: usize) -> String {
    eventually(&format!("round {count}"), async || {
        let log = log(dir);
        (log.matches("waits for a change").count() >= count).then_some(log)
    })
    .await
}

#[tokio::test]
async fn a_change_is_built_checked_and_reloaded_and_a_bad_one_is_not() {
    let server = SimulatedServer::fast().await;
    let node = Node::start(&one_model(server.address, 1, "")).await;
    let project = project(&flat_price(1.0));
    let dir = project.path();
    let mut child = watch(dir, &["--reload", &node.admin.to_string()]);
    let output = rounds(dir, 1).await;
    for word in [
        "dist/p.wasm",
        "good: a gateway takes it",
        "reloaded: generation",
        "good after",
    ] {
        assert!(output.contains(word), "no {word} in {output}");
    }
    let source = dir.join("source.wasm");
    fs::write(&source, flat_price(2.0)).unwrap();
    rounds(dir, 2).await;
    assert_eq!(fs::read(dir.join("dist/p.wasm")).unwrap(), flat_price(2.0));
    fs::write(&source, refusing_settings()).unwrap();
    let output = rounds(dir, 3).await;
    assert!(output.contains("not good after"), "{output}");
    assert_eq!(output.matches("reloaded:").count(), 2, "{output}");

    let interrupt = Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status();
    assert!(interrupt.unwrap().success());
    let ended = eventually("it ends", async || child.try_wait().unwrap()).await;
    assert_eq!(ended.code(), Some(0));
    assert!(log(dir).ends_with("ended\n"));
}
