//! A host with one simulated card of 24,000 MiB, and models on it whose processes are real.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use super::{Node, TestClient, TestResponse, eventually};

const CHAT: &str = "/v1/chat/completions";
/// Memory of the card.
pub const CARD_MIB: u64 = 24_000;

/// A host with one card, and the models in these lines. Its ports are none of those that tests listen on.
pub fn host(dir: &Path, models: &[String]) -> String {
    host_with(dir, "", models)
}

/// The same, with more lines of its `gpu` section.
pub fn host_with(dir: &Path, more: &str, models: &[String]) -> String {
    let (cards, ledger) = (dir.join("cards"), dir.join("ledger"));
    format!(
        "gpu:\n  devices: simulated\n  ports: 11000-11999\n  reserve_mib: 0\n{more}  ledger: {{ directory: {} }}\n  \
         simulated: {{ directory: {}, cards: [{{ name: sim0, total_mib: {CARD_MIB} }}] }}\nmodels:\n{}",
        ledger.display(),
        cards.display(),
        models.concat()
    )
}

/// A model that takes its lease of a simulated card, with more settings of its process and of itself.
pub fn model(id: &str, mib: u64, process: &str, more: &str) -> String {
    format!(
        "  - {{ id: {id}, task: text-generation, backend: openai, vram: {{ mib: {mib} }}, \
         process: {{ preset: simulate, arguments: [\"--ttft-ms\", \"1\", \"--tokens-per-sec\", \"0\"]{process} }}{more} }}\n"
    )
}

/// A model with a server of its own.
pub fn command(id: &str, mib: u64, argv: &str, more: &str) -> String {
    format!(
        "  - {{ id: {id}, task: text-generation, backend: openai, vram: {{ mib: {mib} }}, process: {{ command: {argv}{more} }} }}\n"
    )
}

/// Asks a model for a word.
pub async fn ask_as(node: &Node, headers: &str, model: &str) -> TestResponse {
    let body = json!({ "model": model, "messages": [{ "role": "user", "content": "hi" }] });
    node.post_as(headers, CHAT, &body.to_string()).await
}

/// Asks a model, which answers.
pub async fn serve(node: &Node, model: &str) {
    let response = ask_as(node, "", model).await;
    assert_eq!(response.status, 200, "{}", response.text());
    assert_eq!(response.json()["model"], model);
}

/// Returns the answer of `GET /gpu`.
pub async fn gpu(node: &Node) -> Value {
    let shown = node.get("/gpu").await;
    assert_eq!(shown.status, 200, "{}", shown.text());
    shown.json()
}

/// The slot of a model, as `GET /gpu` shows it once the host has reported its slots.
pub async fn slot(node: &Node, model: &str) -> Value {
    eventually(&format!("{model} is shown"), async || {
        slot_in(&gpu(node).await, model)
    })
    .await
}

fn slot_in(report: &Value, model: &str) -> Option<Value> {
    let mut slots = report["slots"].as_array().unwrap().iter();
    slots.find(|slot| slot["model"] == model).cloned()
}

/// Waits until the slot of a model is in a state; the host may not have reported its slots yet.
pub async fn becomes(node: &Node, model: &str, state: &str) -> Value {
    eventually(&format!("{model} is {state}"), async || {
        let slot = slot_in(&gpu(node).await, model)?;
        (slot["state"] == state).then_some(slot)
    })
    .await
}

/// Processes of the card's memory, by the kernel's locks on its pages.
pub fn pages_held(dir: &Path) -> usize {
    let pages = std::fs::read_dir(dir.join("cards/sim0")).unwrap();
    let held = pages.filter(|page| {
        let path = page.as_ref().unwrap().path();
        let is_page = path
            .file_name()
            .unwrap()
            .to_string_lossy()
            .starts_with("page-");
        is_page && std::fs::File::open(path).unwrap().try_lock().is_err()
    });
    held.count()
}

/// File of the ledger.
pub fn ledger_path(dir: &Path) -> PathBuf {
    let files = std::fs::read_dir(dir.join("ledger")).unwrap();
    let mut paths = files.map(|file| file.unwrap().path());
    let path = paths.find(|path| path.extension().is_some_and(|it| it == "json"));
    path.expect("a ledger")
}

/// The ledger as its file has it.
pub fn ledger(dir: &Path) -> Value {
    let text = std::fs::read(ledger_path(dir)).unwrap();
    serde_json::from_slice(&text).unwrap()
}

/// Waits until nothing has memory of the card.
pub async fn card_is_free(dir: &Path) {
    eventually("no page is held", async || {
        (pages_held(dir) == 0).then_some(())
    })
    .await;
}

/// Gives an order for a model.
pub async fn order(node: &Node, model: &str, order: &str) {
    let response = post_admin(node, &format!("/gpu/models/{model}/{order}")).await;
    assert_eq!(response.status, 200, "{}", response.text());
}

/// Posts to a path of the admin listener.
pub async fn post_admin(node: &Node, path: &str) -> TestResponse {
    let mut client = TestClient::connect(node.admin).await;
    client.post("", path, "").await;
    client.response().await
}

/// Sends a signal to the process of a slot, as `GET /gpu` shows it.
pub fn signal(slot: &Value, signal: &str) {
    let pid = slot["pid"].as_u64().unwrap().to_string();
    let sent = Command::new("kill").args([signal, &pid]).status();
    assert!(sent.unwrap().success());
}
