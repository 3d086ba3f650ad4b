//! Files that load, and what they then say.

use std::net::SocketAddr;
use std::path::Path;

use infergate_core::model::{Algorithm, MetricMode, QueueSpec, Secret, Task, Trust};

use super::*;
use crate::plugin::OnFailure;
use crate::state::{Limits, Timeouts};
use crate::telemetry::log::LogConfig;

fn config(text: &str) -> Config {
    match parse(text, &env) {
        Ok(loaded) => loaded.config,
        Err(problems) => panic!("{text}\n{problems:#?}"),
    }
}

fn warnings(text: &str) -> Vec<String> {
    let loaded = parse(text, &env).unwrap_or_else(|problems| panic!("{text}\n{problems:#?}"));
    loaded.warnings.iter().map(ToString::to_string).collect()
}

#[test]
fn the_minimal_file_loads_with_every_default_and_no_warning() {
    let text = include_str!("../../../config/minimal.yaml");
    let found = config(text);
    assert_eq!(
        found.listen.admin.address,
        "127.0.0.1:9090".parse::<SocketAddr>().unwrap()
    );
    assert_eq!(found.limits, Limits::default());
    assert_eq!(found.timeouts, Timeouts::default());
    assert_eq!(found.log, LogConfig::default());
    assert_eq!(found.models[0].queue, QueueSpec::default());
    assert_eq!(found.events.file, None);
    assert_eq!((&*found.node.id, &*found.node.site), ("node", "local"));
    assert_eq!(warnings(text), [""; 0]);
}

#[test]
fn the_quickstart_serves_two_models_to_everyone_and_knows_the_demo_key() {
    let found = config(QUICKSTART);
    assert_eq!(warnings(QUICKSTART), [""; 0]);
    let key = infergate_core::model::KeyHash(content_hash(b"demo-key"));
    let demo = found
        .accounts
        .iter()
        .find(|a| a.api_keys_sha256.contains(&key));
    assert_eq!(demo.unwrap().id.as_str(), "demo");
    assert_eq!(found.anonymous, Anonymous::Allow);
    let llama = &found.models[0];
    assert_eq!(llama.aliases[0].as_str(), "llama-3.1-8b");
    assert_eq!(
        (llama.task, llama.backend.as_str()),
        (Task::TextGeneration, "openai")
    );
    assert_eq!(llama.permits(), 8);
    assert_eq!(found.models[1].id.as_str(), "@cf/baai/bge-base-en-v1.5");
}

#[test]
fn the_example_has_the_defaults_under_limits_timeouts_queue_and_log() {
    let found = config(EXAMPLE);
    assert_eq!(found.limits, Limits::default());
    assert_eq!(found.timeouts, Timeouts::default());
    assert_eq!(found.models[0].queue, QueueSpec::default());
    assert_eq!(found.log, LogConfig::default());
    let events = found.events.file.unwrap();
    assert_eq!((events.max_size_mib, events.keep), (256, 8));
    let key = found.models[0].endpoints[0]
        .api_key
        .as_ref()
        .map(Secret::reveal);
    assert_eq!(key, Some("sk-from-the-environment"));
    let found = warnings(EXAMPLE);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains("jobs live on the node"), "{found:?}");
    assert!(EXAMPLE.starts_with("# yaml-language-server: $schema="));
}

#[test]
fn a_node_of_a_fleet_may_serve_models_that_only_others_have() {
    let fleet = "  peers: { address: \"127.0.0.1:7070\", tls: { certificate: c, private_key: k, client_ca: a } }\nnode: { id: a1 }\ncluster: { gossip: \"127.0.0.1:7071\" }\nanonymous:";
    let text = GOOD
        .replace("anonymous:", fleet)
        .replace(r#"    endpoints: [{ url: "http://127.0.0.1:9001" }]"#, "");
    let found = config(&text);
    assert_eq!(warnings(&text), [""; 0]);
    assert!(found.models[0].endpoints.is_empty());
    let cluster = found.cluster.unwrap();
    assert_eq!(cluster.advertised(), cluster.gossip);
    let elsewhere = text.replace(
        r#""127.0.0.1:7071""#,
        r#""0.0.0.0:7071", advertise: "10.0.0.1:7071", secret: 0123456789abcdef, seeds: ["[::1]:7", "a2:7"]"#,
    );
    let cluster = config(&elsewhere).cluster.unwrap();
    assert_eq!(cluster.advertised().to_string(), "10.0.0.1:7071");
    assert!(!format!("{cluster:?}").contains("0123456789"));
}

#[test]
fn variables_are_replaced_in_quoted_and_plain_text() {
    let text = GOOD.replace(
        r#"[{ url: "http://127.0.0.1:9001" }]"#,
        "\n      - url: http://${HOST}:${PORT}\n        api_key: ${VLLM_KEY}\n        backend_model: '$${PORT}'",
    );
    let endpoint = &config(&text).models[0].endpoints[0];
    assert_eq!(&*endpoint.url, "http://127.0.0.1:9001");
    assert_eq!(
        endpoint.api_key.as_ref().map(Secret::reveal),
        Some("sk-from-the-environment")
    );
    assert_eq!(endpoint.backend_model.as_deref(), Some("${PORT}"));
}

#[test]
fn anchors_and_aliases_repeat_a_value() {
    let text = format!(
        "{GOOD}    queue: &q {{ algorithm: fifo, capacity: 3 }}\n  - id: other\n    task: text-generation\n    backend: tgi\n    endpoints: [{{ url: \"http://h:1/v1\" }}]\n    queue: *q\n"
    );
    let found = config(&text);
    assert_eq!(found.models[1].queue, found.models[0].queue);
    assert_eq!(found.models[1].queue.algorithm, Algorithm::Fifo);
}

#[test]
fn both_spellings_of_a_number_and_every_line_end_are_accepted() {
    for whole in ["8", "8.0", "8e0", "0x8", "0o10", "+8", "!!int 8"] {
        assert_eq!(
            config(&format!("{GOOD}threads: {whole}\n")).threads,
            8,
            "{whole}"
        );
    }
    let windows = GOOD.replace('\n', "\r\n");
    assert_eq!(config(&windows), config(GOOD));
    assert_eq!(config(&format!("\u{feff}---\n{GOOD}...\n")), config(GOOD));
}

#[test]
fn small_and_exact_floats_have_two_spellings_with_one_meaning() {
    let float = |text: &str| {
        let mut found = problem::Problems::default();
        let root = yaml::read(&format!("value: {text}"), &mut found).unwrap();
        root.to_value()["value"].clone()
    };
    assert_eq!(float("1e-06"), float("1.0e-6"));
    assert_eq!(float("1e-06"), serde_json::json!(0.000001));
    assert_eq!(float("0.02561"), serde_json::json!(0.02561));
    assert_eq!(float("1.5E+3"), serde_json::json!(1500));
    assert_eq!(float(".inf"), serde_json::json!(".inf"));
    assert_eq!(float("infinity"), serde_json::json!("infinity"));
    assert_eq!(float("1.2.3"), serde_json::json!("1.2.3"));
}

#[test]
fn free_ports_and_one_port_on_two_addresses_do_not_collide() {
    let listen = |text: &str| GOOD.replace(r#"[{ address: "127.0.0.1:8080" }]"#, text);
    config(&listen(
        r#"[{ address: "127.0.0.1:0" }, { address: "127.0.0.1:0" }]"#,
    ));
    config(&listen(
        r#"[{ address: "127.0.0.1:80" }, { address: "127.0.0.2:80" }]"#,
    ));
    config(&listen(
        r#"[{ address: "[::]:80" }, { address: "127.0.0.2:80" }]"#,
    ));
}

#[test]
fn what_is_probably_not_meant_is_a_warning() {
    let warned = |text: &str, fragment: &str| {
        let found = warnings(text);
        assert!(
            found.iter().any(|w| w.contains(fragment)),
            "{fragment}: {found:?}"
        );
    };
    warned(
        &GOOD.replace("allow", "deny"),
        "line 3: accounts: nobody can call",
    );
    let hash = "ab".repeat(32);
    let account = |keys: &str| format!("{GOOD}accounts: [{{ id: a, {keys} }}]\n");
    warned(
        &account("weight: 2"),
        "line 9: accounts[0]: nobody can use this account",
    );
    let listed = account(&format!("api_keys_sha256: [{hash}], models: [lama]"));
    warned(
        &listed,
        "accounts[0].models[0]: no model is called \"lama\"",
    );
    let alias = GOOD.replace("task:", "aliases: [l]\n    task:");
    let alias = format!("{alias}accounts: [{{ id: a, api_keys_sha256: [{hash}], models: [l] }}]\n");
    warned(&alias, "is an alias");
    warned(
        &GOOD.replace("[{ url: \"http://127.0.0.1:9001\" }]", "[]"),
        "no endpoints",
    );
    warned(
        &GOOD.replace("task:", "timeout_secs: 300\n    task:"),
        "above timeouts.ceiling_secs",
    );
    warned(
        &GOOD.replace(
            "anonymous:",
            "  admin: { address: \"0.0.0.0:9090\" }\nanonymous:",
        ),
        "asks for no key",
    );
    warned(
        "listen: { clients: [{ address: \"127.0.0.1:1\" }] }",
        "no models",
    );
}

#[test]
fn a_file_is_loaded_from_disk_with_the_hash_of_its_content() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("infergate.yaml");
    std::fs::write(&path, GOOD).unwrap();
    let loaded = load(&path).unwrap();
    assert_eq!(loaded.config, config(GOOD));
    assert_eq!(loaded.content, content_hash(GOOD.as_bytes()));
}

/// A model with a tariff and a plugin for each of its roles.
const DECIDED: &str = r#"    plugins: { task: checker, billing: tiered, routing: latency }
    routing: { step_ms: 5, sites: [1, 2] }
    tariff:
      cost_per_infer: 1e-06
      coefficients: { input_tokens: 0.02561, output_tokens: 1.0e-6 }
      criteria: { resolution: 1080p }
    metrics_trust: compare
    metrics: { image_steps: incremental }
plugins:
  - { name: checker, world: task-schema-streaming, file: "${HOST}.wasm", dev: true, on_failure: cut }
  - name: tiered
    world: billing-formula
    file: plugins/tiered.wasm
    sha256: ABABABABABABABABABABABABABABABABABABABABABABABABABABABABABABABAB
    grants: [log, counters, "tables:prices"]
    counters: [unknown_metric]
    tables: { prices: prices.json }
    settings: { round: up, steps: [1, { to: 2 }] }
    limits: { memory_mib: 32 }
"#;

#[test]
fn a_model_says_who_decides_about_it_and_what_it_costs() {
    let found = config(&format!("{GOOD}{DECIDED}"));
    let model = &found.models[0];
    assert_eq!(model.plugins.task.as_deref(), Some("checker"));
    assert_eq!(model.routing["step_ms"], 5);
    let tariff = model.tariff.as_ref().unwrap();
    assert_eq!(tariff.cost_per_infer, 1e-6);
    assert_eq!(tariff.coefficients["output_tokens"], 1e-6);
    assert_eq!(&*tariff.criteria["resolution"], "1080p");
    assert_eq!(model.metrics_trust, Trust::Compare);
    assert_eq!(model.metrics["image_steps"], MetricMode::Incremental);
    let [checker, tiered] = &found.plugins[..] else {
        panic!("two plugins")
    };
    assert_eq!(checker.file, Path::new("127.0.0.1.wasm"));
    assert_eq!(checker.failure_policy(), OnFailure::Cut);
    assert_eq!(tiered.bounds().memory_bytes, 32 << 20);
    assert_eq!(tiered.settings["steps"][1]["to"], 2);
    assert_eq!(warnings(&format!("{GOOD}{DECIDED}")), [""; 0]);
}

#[test]
fn files_of_plugins_are_looked_for_beside_the_configuration() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("infergate.yaml");
    let text = format!("{GOOD}{DECIDED}").replace("${HOST}", "/opt/checker");
    std::fs::write(&path, text).unwrap();
    let found = load(&path).unwrap().config;
    assert_eq!(found.plugins[0].file, Path::new("/opt/checker.wasm"));
    let tiered = &found.plugins[1];
    assert_eq!(tiered.file, dir.path().join("plugins/tiered.wasm"));
    assert_eq!(tiered.tables["prices"], dir.path().join("prices.json"));
}

const FALLBACKS: &str = r#"    fallbacks: [near, cloud]
    pin_primary: true
  - id: near
    task: text-generation
    backend: tgi
    fallbacks: [cloud]
    endpoints: [{ url: "https://10.0.0.1", ca_file: own.pem }]
  - id: cloud
    task: text-generation
    backend: openai
    endpoints: [{ url: "https://api.example.com/v1", api_key: "${VLLM_KEY}" }]
"#;

#[test]
fn a_model_may_fall_back_to_external_servers() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("infergate.yaml");
    std::fs::write(
        &path,
        format!("{GOOD}{FALLBACKS}").replace("${VLLM_KEY}", "k"),
    )
    .unwrap();
    let loaded = load(&path).unwrap();
    assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
    let [top, near, cloud] = &loaded.config.models[..] else {
        panic!("three models")
    };
    assert_eq!(top.fallbacks, ["near".into(), "cloud".into()]);
    assert!(top.pin_primary && !near.pin_primary);
    let file = near.endpoints[0].ca_file.as_ref().unwrap();
    assert_eq!(file.path, dir.path().join("own.pem"));
    let external = [top, near, cloud].map(|model| model.is_external());
    assert_eq!(external, [false, false, true]);
}

#[test]
fn a_model_may_have_its_endpoints_found_and_none_configured() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("infergate.yaml");
    let text = GOOD.replace(
        r#"endpoints: [{ url: "http://127.0.0.1:9001" }]"#,
        "discovery: { file: found/llama.json, api_key: k }",
    );
    std::fs::write(&path, text).unwrap();
    let loaded = load(&path).unwrap();
    assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
    let model = &loaded.config.models[0];
    assert!(model.endpoints.is_empty());
    let discovery = model.discovery.as_ref().unwrap();
    let file = discovery.file.as_deref();
    assert_eq!(file, Some(&*dir.path().join("found/llama.json")));
    assert_eq!(
        (discovery.every_secs, discovery.max_concurrent_requests),
        (5, 4)
    );
    assert_eq!(discovery.api_key.as_ref().map(Secret::reveal), Some("k"));
    assert!(!format!("{:?}", loaded.config).contains("\"k\""));
}

#[test]
fn a_pin_without_fallbacks_is_warned_about() {
    let pinned = GOOD.replace("task:", "pin_primary: true\n    task:");
    let found = warnings(&pinned);
    assert!(
        found[0].contains("models[0].pin_primary: without `fallbacks`"),
        "{found:?}"
    );
}

#[test]
fn every_task_has_a_backend() {
    for task in Task::ALL {
        let text = GOOD.replace("text-generation", task.slug());
        let found = config(&text.replace("openai", "http"));
        assert_eq!(found.models[0].task, task);
    }
}

#[test]
fn a_plugin_that_changes_is_named_by_its_name() {
    let text = format!("{GOOD}{DECIDED}");
    let old = config(&text);
    let new = config(
        &text
            .replace("round: up", "round: down")
            .replace("step_ms: 5", "step_ms: 6"),
    );
    let changed = diff(&old, &new).changed;
    assert_eq!(
        changed,
        [
            "models[llama].routing.step_ms",
            "plugins[tiered].settings.round"
        ]
    );
}

#[test]
fn plugins_that_do_nothing_are_warned_about() {
    let warned = |text: &str, fragment: &str| {
        let found = warnings(text);
        assert!(
            found.iter().any(|w| w.contains(fragment)),
            "{fragment}: {found:?}"
        );
    };
    let text = format!("{GOOD}{DECIDED}");
    warned(
        &text.replace("task: checker, ", ""),
        "line 18: plugins[0]: never used",
    );
    warned(
        &text.replace("[log, counters,", "[log,"),
        "never counted: add \"counters\"",
    );
    warned(
        &text.replace(", routing: latency", ""),
        "models[0].routing: never used: name the policy",
    );
    let dev = text.replace("    sha256", "    dev: true\n    sha256");
    warned(&dev, "plugins[1].sha256: not compared");
    let free = GOOD.replace("task:", "tariff: {}\n    task:");
    warned(&free, "models[0].tariff: everything is free");
    let unpriced = GOOD.replace("task:", "plugins: { billing: neurons }\n    task:");
    warned(&unpriced, "models[0].plugins.billing: never asked");
    let hash = "ab".repeat(32);
    let account = format!("{{ id: a, api_keys_sha256: [{hash}], neurons_per_day: 1 }}");
    let quota = format!("{GOOD}accounts: [{account}]\n");
    warned(&quota, "accounts[0].neurons_per_day: never used up");
}

#[test]
fn ten_thousand_accounts_load() {
    let accounts: String = (0..10_000)
        .map(|n| format!("  - {{ id: account-{n}, weight: 3, api_keys_sha256: [\"{n:064x}\"] }}\n"))
        .collect();
    let found = config(&format!("{GOOD}accounts:\n{accounts}"));
    assert_eq!(found.accounts.len(), 10_000);
}
