//! The tools for plugin authors: what they find, what they say to do, and their exit codes.
//!
//! Guests are written as text and need no toolchain; the shipped ones are looked at where they are built.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};
use tempfile::TempDir;
use wit_component::{StringEncoding, embed_component_metadata};
use wit_parser::Resolve;

/// A charge of 1 neuron, all of it base.
const ONE: &str = "(call $one) (i32.const 1024)";
/// The same, and one more with every call.
const COUNTING: &str = "(global.set $calls (f64.add (global.get $calls) (f64.const 1)))
    (call $one) (f64.store (i32.const 1032) (global.get $calls))
    (f64.store (i32.const 1040) (global.get $calls)) (i32.const 1024)";
/// Traps over more than four metrics, in a function with a name.
const FRAGILE: &str = "(if (i32.gt_u (local.get $count) (i32.const 4)) (then (call $too_many))) (call $one) (i32.const 1024)";

/// A component of the world `billing-formula` whose `price` is this.
fn formula(imports: &str, price: &str) -> Vec<u8> {
    let text = format!(
        "(module {imports} (memory (export \"memory\") 2)
        (global $heap (mut i32) (i32.const 4096)) (global $calls (mut f64) (f64.const 0))
        (func $one (memory.fill (i32.const 1024) (i32.const 0) (i32.const 64))
          (f64.store (i32.const 1032) (f64.const 1)) (f64.store (i32.const 1040) (f64.const 1)))
        (func $too_many unreachable)
        (func (export \"cabi_realloc\") (param i32 i32 i32) (param $size i32) (result i32) (local $at i32)
          (local.set $at (i32.and (i32.add (global.get $heap) (i32.const 15)) (i32.const -16)))
          (global.set $heap (i32.add (local.get $at) (local.get $size)))
          (local.get $at))
        (func (export \"infergate:plugin/lifecycle@1.1.0#configure\") (param i32 i32) (result i32)
          (i32.store8 (i32.const 1024) (i32.const 0)) (i32.const 1024))
        (func (export \"infergate:plugin/billing@1.1.0#price\")
          (param f64 i32 i32 i32 i32) (param i32 i32 i32 i32 i32) (param i32) (param $count i32)
          (param i64 i64) (result i32)
          (global.set $heap (i32.const 4096)) {price}))"
    );
    let mut module = wat::parse_str(text).unwrap();
    let folder = TempDir::new().unwrap();
    infergate::parts::wit::write(folder.path()).unwrap();
    let mut resolve = Resolve::default();
    let (package, _) = resolve.push_dir(folder.path()).unwrap();
    let world = "package test:guest; world guest { include infergate:plugin/billing-formula@1.1.0;
        include infergate:plugin/grants@1.1.0; }";
    let world = match imports.is_empty() {
        true => resolve.select_world(&[package], Some("billing-formula")),
        false => {
            let guest = resolve.push_source("guest.wit", world).unwrap();
            resolve.select_world(&[guest], Some("guest"))
        }
    };
    embed_component_metadata(&mut module, &resolve, world.unwrap(), StringEncoding::UTF8).unwrap();
    infergate::parts::encode_component(&module).unwrap()
}

/// A folder with a component and its fixtures, as `plugin build` leaves them.
struct PluginProject {
    dir: TempDir,
}

impl PluginProject {
    fn with(price: &str) -> PluginProject {
        let dir = TempDir::new().unwrap();
        fs::write(dir.path().join("p.wasm"), formula("", price)).unwrap();
        PluginProject { dir }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn write(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.file(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path
    }

    /// A fixture of `price` below `fixtures`, with these keys besides hook and arguments.
    fn fixture(&self, name: &str, metrics: usize, more: Value) {
        let metric = |n| json!({ "name": format!("m{n}"), "value": 1, "source": "model-reported" });
        let metrics: Vec<Value> = (0..metrics).map(metric).collect();
        let mut fixture = json!({ "hook": "price", "args": {
            "tariff": { "cost-per-infer": 1, "coefficients": [], "criteria": [] },
            "usage": { "model": "m", "trust": "trust", "outcome": "completed", "streamed": false,
                       "metrics": metrics, "queue-ms": 0, "infer-ms": 0 } } });
        for (key, value) in more.as_object().unwrap() {
            fixture[key] = value.clone();
        }
        self.write(&format!("fixtures/{name}.json"), fixture.to_string());
    }

    fn run(&self, arguments: &[&str]) -> (i32, String) {
        let output = Command::new(env!("CARGO_BIN_EXE_infergate"))
            .arg("plugin")
            .args(arguments)
            .current_dir(self.dir.path())
            .env("XDG_CACHE_HOME", self.file("cache"))
            .output()
            .unwrap();
        exit_and_output(&output)
    }
}

fn exit_and_output(output: &Output) -> (i32, String) {
    let text = [output.stdout.clone(), output.stderr.clone()].concat();
    (
        output.status.code().unwrap(),
        String::from_utf8(text).unwrap(),
    )
}

#[test]
fn a_good_component_passes_the_check_and_tells_what_it_is() {
    let bench = PluginProject::with(ONE);
    let (code, text) = bench.run(&["check", "p.wasm"]);
    assert_eq!(code, 0, "{text}");
    for expected in [
        "billing-formula",
        "imports   none",
        "good: a gateway takes it",
    ] {
        assert!(text.contains(expected), "no {expected:?} in:\n{text}");
    }
    bench.fixture("one", 1, json!({ "expect": { "total": 1 } }));
    let (code, text) = bench.run(&["inspect", "p.wasm", "--json"]);
    assert_eq!(code, 0, "{text}");
    let report: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(report["world"], "billing-formula");
    assert_eq!(
        report["memories"],
        json!([{ "min_pages": 2, "max_pages": null }])
    );
    assert_eq!(report["hooks"], json!(["price"]));
    assert!(report["fixtures"]["one"]["fuel"].as_u64().unwrap() > 0);
    assert!(report["instance"].as_str().unwrap().starts_with("auto"));
}

#[test]
fn what_is_no_plugin_is_told_apart_each_with_what_to_do() {
    let bench = PluginProject::with(ONE);
    bench.write("text.wasm", "#!/bin/sh");
    bench.write("core.wasm", wat::parse_str("(module)").unwrap());
    let wasi = "(component (import \"wasi:cli/stdout@0.2.6\" (instance)))";
    bench.write("wasi.wasm", wat::parse_str(wasi).unwrap());
    bench.write("empty.wasm", wat::parse_str("(component)").unwrap());
    let log = "(import \"infergate:host/log@1.0.0\" \"enabled\" (func $enabled (param i32) (result i32)))";
    let price = "(drop (call $enabled (i32.const 0))) (call $one) (i32.const 1024)";
    bench.write("logs.wasm", formula(log, price));
    let large = fs::File::create(bench.file("large.wasm")).unwrap();
    large.set_len((32 << 20) + 1).unwrap();
    for (arguments, words) in [
        (&["text.wasm"][..], &["not WebAssembly", "plugin build"][..]),
        (
            &["core.wasm"],
            &["core module", "`infergate plugin build` makes a component"],
        ),
        (
            &["wasi.wasm"],
            &[
                "wasi:cli/stdout",
                "build for wasm32-unknown-unknown or pass --stub-wasi",
            ],
        ),
        (
            &["empty.wasm"],
            &[
                "no plugin of any world",
                "exports nothing",
                "infergate plugin new",
            ],
        ),
        (&["large.wasm"], &["larger than 32 MiB"]),
        (
            &["logs.wasm"],
            &[
                "infergate:host/log@1.0.0, which is not granted",
                "add `log` to its grants",
            ],
        ),
        (
            &["p.wasm", "--world", "routing-policy"],
            &[
                "infergate:plugin/routing@1.0.0",
                "it is a `billing-formula`",
            ],
        ),
        (&["none.wasm"], &["there is no such file"]),
    ] {
        let (code, text) = bench.run(&[&["check"], arguments].concat());
        assert_eq!(code, 1, "{arguments:?}: {text}");
        for word in words {
            assert!(
                text.contains(word),
                "{arguments:?}: no {word:?} in:\n{text}"
            );
        }
    }
    let (code, text) = bench.run(&["check", "logs.wasm", "--grant", "log"]);
    assert_eq!(code, 0, "{text}");
    let (code, text) = bench.run(&["check", "core.wasm", "--json"]);
    assert_eq!(code, 1);
    let report: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        (&report["ok"], &report["findings"][0]["level"]),
        (&json!(false), &json!("fail"))
    );
}

#[test]
fn check_and_test_hold_a_component_to_the_limits_of_a_gateway() {
    let large = "(if (i32.lt_u (memory.size) (i32.const 300)) (then
        (if (i32.eq (memory.grow (i32.const 300)) (i32.const -1)) (then unreachable))))
        (call $one) (i32.const 1024)";
    let bench = PluginProject::with(large);
    bench.fixture("one", 1, json!({ "expect": { "total": 1 } }));
    for command in ["check", "test"] {
        let (code, text) = bench.run(&[command, "p.wasm"]);
        assert_eq!(code, 1, "{command}: {text}");
        assert!(text.contains("memory"), "{command}: {text}");
        let (code, text) = bench.run(&[command, "p.wasm", "--limits", "{\"memory_mib\": 32}"]);
        assert_eq!(code, 0, "{command}: {text}");
    }
    let endless = PluginProject::with("(loop $on (br $on)) unreachable");
    endless.fixture("one", 1, json!({ "expect": { "total": 1 } }));
    let (code, text) = endless.run(&["check", "p.wasm"]);
    assert_eq!(code, 1, "{text}");
    assert!(
        text.contains("`one`") && text.contains("deadline"),
        "{text}"
    );
}

#[test]
fn fixtures_pass_or_are_told_with_every_difference_and_can_be_taken_over() {
    let bench = PluginProject::with(ONE);
    bench.fixture("good", 1, json!({ "expect": { "total": 1 } }));
    let (code, text) = bench.run(&["test", "p.wasm"]);
    assert_eq!(code, 0, "{text}");
    assert!(
        text.contains("ok    good  fuel ") && text.contains("1 passed, 0 failed"),
        "{text}"
    );

    bench.fixture("other", 1, json!({ "expect": { "total": 2, "base": 3 } }));
    bench.fixture(
        "greedy",
        1,
        json!({ "expect": { "total": 1 }, "max-fuel": 1 }),
    );
    bench.fixture("nothing", 1, json!({}));
    bench.fixture(
        "failing",
        1,
        json!({ "expect-error": { "class": "trapped" } }),
    );
    let (code, text) = bench.run(&["test", "p.wasm"]);
    assert_eq!(code, 1);
    for expected in [
        "      /total\n        expected  2\n        got       1.0\n      /base\n        expected  3",
        "`max-fuel` is 1",
        "--update takes that",
        "expected the error {\"class\":\"trapped\"}",
        "1 passed, 4 failed",
    ] {
        assert!(text.contains(expected), "no {expected:?} in:\n{text}");
    }
    let (code, text) = bench.run(&["test", "p.wasm", "--update"]);
    assert_eq!(code, 1, "max-fuel is raised by hand only: {text}");
    fs::remove_file(bench.file("fixtures/greedy.json")).unwrap();
    let (code, text) = bench.run(&["test", "p.wasm", "--json"]);
    assert_eq!(code, 0, "{text}");
    let report: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(report["fixtures"].as_array().unwrap().len(), 4);
}

#[test]
fn a_plugin_that_remembers_fails_its_tests_and_is_called_so() {
    let bench = PluginProject::with(COUNTING);
    bench.fixture("first", 1, json!({ "expect": { "total": 1 } }));
    let (code, text) = bench.run(&["test", "p.wasm"]);
    assert_eq!(code, 1);
    assert!(text.contains("hidden state"), "{text}");
    let (code, text) = bench.run(&["inspect", "p.wasm"]);
    assert_eq!(code, 0);
    assert!(text.contains("instance: fresh"), "{text}");
    let (code, text) = bench.run(&["fuzz", "p.wasm"]);
    assert_eq!(code, 1);
    assert!(text.contains("a used guest answers otherwise"), "{text}");
}

#[test]
fn figures_are_saved_and_more_fuel_than_before_is_worse() {
    let bench = PluginProject::with(ONE);
    bench.fixture("one", 1, json!({ "expect": { "total": 1 } }));
    let arguments = ["bench", "p.wasm", "--runs", "20", "--save", "b.json"];
    let (code, text) = bench.run(&arguments);
    assert_eq!(code, 0, "{text}");
    let mut saved: Value =
        serde_json::from_slice(&fs::read(bench.file("b.json")).unwrap()).unwrap();
    // Time is compared too; this test is about fuel, on a machine that may have a bad moment.
    assert!(saved["fixtures"]["one"]["p50_us"].is_u64(), "{saved}");
    saved["fixtures"]["one"]["p50_us"] = json!(60_000_000);
    bench.write("b.json", saved.to_string());
    let compare = ["bench", "p.wasm", "--runs", "20", "--compare", "b.json"];
    let (code, text) = bench.run(&compare);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("no worse than before"), "{text}");
    let fuel = saved["fixtures"]["one"]["fuel"].as_u64().unwrap();
    saved["fixtures"]["one"]["fuel"] = json!(fuel * 9 / 10);
    bench.write("b.json", saved.to_string());
    let (code, text) = bench.run(&compare);
    assert_eq!(code, 1);
    assert!(text.contains("WORSE one:"), "{text}");
}

#[test]
fn chance_finds_a_trap_and_its_fixture_is_replayed_with_names() {
    let bench = PluginProject::with(FRAGILE);
    let (code, text) = bench.run(&["fuzz", "p.wasm", "--out", "found"]);
    assert_eq!(code, 1, "{text}");
    assert!(
        text.contains("trapped") && text.contains("too_many"),
        "{text}"
    );
    let again = bench.run(&["fuzz", "p.wasm", "--out", "found"]);
    assert_eq!(again.1, text, "the same seed finds the same");
    let found = fs::read_dir(bench.file("found"))
        .unwrap()
        .next()
        .unwrap()
        .unwrap();
    let (code, text) = bench.run(&["replay", found.path().to_str().unwrap(), "p.wasm"]);
    assert_eq!(code, 1);
    assert!(
        text.contains("trapped: ") && text.contains("too_many"),
        "{text}"
    );
    let (code, text) = bench.run(&["fuzz", "p.wasm", "--hook", "rank"]);
    assert_eq!(code, 1);
    assert!(text.contains("it has price"), "{text}");
}

#[test]
fn a_lock_says_which_bytes_are_meant_and_a_changed_file_is_found() {
    let bench = PluginProject::with(ONE);
    let (code, text) = bench.run(&["lock", ".", "--write"]);
    assert_eq!(code, 0, "{text}");
    let lock = fs::read_to_string(bench.file("plugins.lock")).unwrap();
    assert!(
        lock.ends_with("  p.wasm\n") && lock.len() == 64 + 2 + 7,
        "{lock}"
    );
    assert_eq!(bench.run(&["verify", "."]).0, 0);
    bench.write("infergate.yaml", "listen: { clients: [{ address: \"127.0.0.1:0\" }], admin: { address: \"127.0.0.1:0\" } }
plugins: [{ name: p, world: billing-formula, file: p.wasm, sha256: \"0000000000000000000000000000000000000000000000000000000000000000\" }]\n");
    let (code, text) = bench.run(&["lock", "infergate.yaml"]);
    assert_eq!(code, 0, "{text}");
    assert!(
        text.contains("- name: p\n    sha256: \"") && text.contains(&lock[..64]),
        "{text}"
    );
    let (code, text) = bench.run(&["verify", "infergate.yaml"]);
    assert_eq!(code, 1, "{text}");
    bench.write("q.wasm", formula("", COUNTING));
    bench.write("p.wasm", formula("", COUNTING));
    let (code, text) = bench.run(&["verify"]);
    assert_eq!(code, 1);
    assert!(
        text.contains("it has been changed") && text.contains("is not locked"),
        "{text}"
    );
    fs::remove_file(bench.file("plugins.lock")).unwrap();
    let (code, text) = bench.run(&["verify"]);
    assert_eq!(code, 1);
    assert!(text.contains("lock --write"), "{text}");
}

#[test]
fn a_folder_that_is_not_built_or_has_no_fixtures_is_told_what_to_run() {
    let bench = PluginProject::with(ONE);
    let (code, text) = bench.run(&["new", "my-prices", "--world", "billing-formula"]);
    assert_eq!(code, 0, "{text}");
    let (code, text) = bench.run(&["test", "my-prices"]);
    assert_eq!(code, 1);
    assert!(
        text.contains("`infergate plugin build my-prices`"),
        "{text}"
    );
    let (code, text) = bench.run(&["test", "p.wasm"]);
    assert_eq!(code, 1);
    assert!(text.contains("tests/*.json"), "{text}");
    let (code, text) = bench.run(&[
        "new",
        "other",
        "--world",
        "billing-formula",
        "--lang",
        "python",
    ]);
    assert_eq!(code, 1);
    assert!(text.contains("componentize-py"), "{text}");
}

#[test]
fn every_command_explains_itself_and_a_misunderstood_one_exits_with_2() {
    let bench = PluginProject::with(ONE);
    for command in [
        "new", "build", "check", "inspect", "test", "bench", "replay", "fuzz", "lock", "verify",
        "wit", "doc",
    ] {
        let (code, text) = bench.run(&[command, "--help"]);
        assert_eq!(code, 0);
        assert!(text.contains("Examples:\n  infergate plugin "), "{text}");
    }
    for wrong in [
        &["check", "p.wasm", "--world", "billing"][..],
        &["new", "x"],
        &["bench", "--threshold", "fast"],
    ] {
        assert_eq!(bench.run(wrong).0, 2, "{wrong:?}");
    }
    let (_, text) = bench.run(&["check", "p.wasm", "--world", "billing"]);
    assert!(text.contains("the worlds are task-schema,"), "{text}");
}

#[test]
fn the_reference_in_the_docs_is_what_the_binary_prints() {
    let bench = PluginProject::with(ONE);
    let (_, text) = bench.run(&["doc"]);
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/plugin-interfaces.md");
    assert_eq!(
        fs::read_to_string(page).unwrap(),
        text,
        "infergate plugin doc > docs/plugin-interfaces.md"
    );
    let (_, text) = bench.run(&["wit", "--world", "routing-policy"]);
    assert!(
        text.contains("interface routing") && !text.contains("interface billing"),
        "{text}"
    );
}

#[test]
fn shipped_plugins_that_are_built_pass_check_and_test() {
    let dist = Path::new(env!("CARGO_MANIFEST_DIR")).join("plugins/dist");
    let bench = PluginProject::with(ONE);
    for name in ["neurons", "text-generation", "latency"] {
        let file = dist.join(format!("{name}.wasm"));
        if !file.exists() {
            // scripts/plugins builds them; the formulas written as text stand for them otherwise.
            return;
        }
        for command in ["check", "test"] {
            let (code, text) = bench.run(&[command, file.to_str().unwrap()]);
            assert_eq!(code, 0, "{text}");
        }
    }
}
