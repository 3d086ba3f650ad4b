//! The command line: exit codes, and text that a person or a tool can go on with.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::support::{Authority, eventually};

const GOOD: &str = "\
listen: { clients: [ { address: \"127.0.0.1:0\" } ], admin: { address: \"127.0.0.1:0\" } }
anonymous: allow
models:
  - id: m
    task: text-generation
    backend: openai
    endpoints: [ { url: \"http://127.0.0.1:9001\" } ]
";

fn infergate(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_infergate"))
        .args(args)
        .env_remove("INFERGATE_TEST_UNSET")
        .output()
        .unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn file(dir: &Path, content: &str) -> String {
    let path = dir.join("infergate.yaml");
    std::fs::write(&path, content).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn a_good_file_checks_with_0_and_a_bad_one_with_1_and_all_its_problems() {
    let dir = tempfile::tempdir().unwrap();
    let good = infergate(&["check", &file(dir.path(), GOOD)]);
    assert_eq!(good.status.code(), Some(0), "{}", stdout(&good));
    assert!(stdout(&good).contains("good"));

    let bad = GOOD.replace("allow", "alow").replace("http://", "ftp://")
        + "limits: { request_body_mib: 0 }\nno_such_key: 1\nthreads: \"${INFERGATE_TEST_UNSET}\"\n";
    let path = file(dir.path(), &bad);
    let output = infergate(&["check", &path]);
    assert_eq!(output.status.code(), Some(1));
    let printed = stdout(&output);
    for expected in [
        "line 2: anonymous",
        "line 7: models[0].endpoints[0].url",
        "line 8: limits.request_body_mib",
        "line 9: no_such_key",
        "INFERGATE_TEST_UNSET",
    ] {
        assert!(printed.contains(expected), "no {expected:?} in:\n{printed}");
    }

    let output = infergate(&["check", "--json", &path]);
    assert_eq!(output.status.code(), Some(1));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["ok"], false);
    assert!(report["problems"].as_array().unwrap().len() >= 5);
}

#[test]
fn what_comes_later_is_refused_as_not_supported_yet() {
    let dir = tempfile::tempdir().unwrap();
    let text = GOOD.to_owned() + "tls: {}\n";
    let output = infergate(&["check", &file(dir.path(), &text)]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stdout(&output).contains("not supported yet"),
        "{}",
        stdout(&output)
    );
}

#[test]
fn the_schema_is_a_json_schema_and_the_example_passes_the_check() {
    let schema = infergate(&["config", "schema"]);
    assert_eq!(schema.status.code(), Some(0));
    let schema: Value = serde_json::from_slice(&schema.stdout).unwrap();
    assert!(schema["$schema"].is_string() && schema["properties"]["models"].is_object());

    let example = stdout(&infergate(&["config", "example"]));
    assert!(example.contains("yaml-language-server: $schema="));
    let dir = tempfile::tempdir().unwrap();
    let path = file(dir.path(), &example);
    let fleet = Authority::new();
    let ca = fleet.write(dir.path());
    std::fs::rename(ca, dir.path().join("fleet-ca.pem")).unwrap();
    let revoked = dir.path().join("fleet-crl.pem");
    std::fs::write(revoked, fleet.revocation_list()).unwrap();
    let own = rcgen::generate_simple_self_signed(["gpu-2".to_owned()]).unwrap();
    std::fs::write(dir.path().join("own-ca.pem"), own.cert.pem()).unwrap();
    std::fs::write(
        dir.path().join("fleet-crl.pem"),
        fleet.empty_revocation_list(),
    )
    .unwrap();
    let (certificate, key) = fleet.certify("a1").pem();
    std::fs::write(dir.path().join("node.pem"), certificate).unwrap();
    std::fs::write(dir.path().join("node-key.pem"), key).unwrap();
    for name in ["api", "eu", "admin", "admin-eu"] {
        let (certificate, key) = fleet.certify(&format!("{name}.example")).pem();
        std::fs::write(dir.path().join(format!("{name}.pem")), certificate).unwrap();
        std::fs::write(dir.path().join(format!("{name}-key.pem")), key).unwrap();
    }
    for name in ["clients-ca.pem", "operators-ca.pem"] {
        std::fs::write(dir.path().join(name), own.cert.pem()).unwrap();
    }
    let names = example
        .split("${")
        .skip(1)
        .filter_map(|rest| rest.split('}').next());
    let check = Command::new(env!("CARGO_BIN_EXE_infergate"))
        .args(["check", &path])
        .envs(names.map(|name| (name, "x-of-thirty-two-bytes-everywhere")))
        .output()
        .unwrap();
    assert_eq!(check.status.code(), Some(0), "{}", stdout(&check));
}

#[test]
fn the_example_passes_a_check_that_allows_what_is_missing_and_names_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = file(dir.path(), &stdout(&infergate(&["config", "example"])));
    assert_eq!(infergate(&["check", &path]).status.code(), Some(1));
    let check = infergate(&["check", "--allow-missing", &path]);
    let printed = stdout(&check);
    assert_eq!(check.status.code(), Some(0), "{printed}");
    for missing in ["CLUSTER_SECRET", "node.pem", "fleet-crl.pem", "own-ca.pem"] {
        let named = |line: &str| line.contains("warning") && line.contains(missing);
        assert!(printed.lines().any(named), "no {missing} in:\n{printed}");
    }

    // Everything else is judged as ever.
    let bad = GOOD.replace("http://", "ftp://") + "state_dir: \"${INFERGATE_TEST_UNSET}\"\n";
    let check = infergate(&["check", "--allow-missing", &file(dir.path(), &bad)]);
    assert_eq!(check.status.code(), Some(1));
    assert!(stdout(&check).contains("line 7"), "{}", stdout(&check));
}

#[test]
fn a_starter_is_written_once_and_passes_the_check_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("infergate.yaml");
    let path = path.to_str().unwrap();
    let made = infergate(&["config", "init", path]);
    assert_eq!(made.status.code(), Some(0), "{}", stderr(&made));
    assert!(stdout(&made).contains(path), "{}", stdout(&made));
    let checked = infergate(&["check", path]);
    assert_eq!(checked.status.code(), Some(0), "{}", stdout(&checked));
    assert_eq!(stdout(&checked), format!("{path}: good\n"));

    std::fs::write(path, "mine").unwrap();
    let again = infergate(&["config", "init", path]);
    assert_eq!(again.status.code(), Some(1));
    assert!(stderr(&again).contains("exists"), "{}", stderr(&again));
    assert_eq!(std::fs::read_to_string(path).unwrap(), "mine");
}

#[tokio::test]
async fn a_demo_takes_other_ports_shows_its_first_event_and_leaves_nothing() {
    // Taken by us, or by somebody else already.
    let _taken = TcpListener::bind("127.0.0.1:8080");
    let dir = tempfile::tempdir().unwrap();
    let mut demo = Command::new(env!("CARGO_BIN_EXE_infergate"))
        .arg("demo")
        .current_dir(dir.path())
        .env("TMPDIR", dir.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(demo.stdout.take().unwrap()).lines();
    let mut next = |wanted: &str| {
        let found = lines.find(|line| line.as_ref().unwrap().contains(wanted));
        found.unwrap().unwrap()
    };
    let banner = next("infergate demo: the gateway on ");
    let address = banner.split_whitespace().nth(5).unwrap().to_owned();
    assert_ne!(address, "127.0.0.1:8080");
    assert!(next("An event for each request").contains(dir.path().to_str().unwrap()));

    let body = r#"{"model":"llama-3.1-8b","messages":[{"role":"user","content":"hello"}]}"#;
    let request = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: demo\r\nConnection: close\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let answer = eventually("the demo answers", async || {
        let mut stream = TcpStream::connect(&address).ok()?;
        stream.write_all(request.as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        Some(answer)
    })
    .await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(next("The first event: ").contains(r#""outcome":"completed""#));

    let end = Command::new("kill").arg(demo.id().to_string()).status();
    assert!(end.unwrap().success());
    assert_eq!(demo.wait().unwrap().code(), Some(0));
    let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn the_version_names_its_commit() {
    let output = infergate(&["--version"]);
    assert_eq!(output.status.code(), Some(0));
    let printed = stdout(&output);
    let rest = printed
        .strip_prefix(concat!("infergate ", env!("CARGO_PKG_VERSION"), " ("))
        .unwrap();
    let hash = rest.trim_end().strip_suffix(')').unwrap();
    let is_hash = hash.len() >= 7 && hash.chars().take(7).all(|c| c.is_ascii_hexdigit());
    assert!(is_hash || hash == "no-git", "{printed}");
}

#[test]
fn help_is_complete_and_completions_are_there() {
    let help = stdout(&infergate(&["--help"]));
    for command in [
        "serve",
        "check",
        "config",
        "demo",
        "simulate",
        "completions",
        "man",
    ] {
        assert!(help.contains(command), "no {command} in:\n{help}");
        let output = infergate(&[command, "--help"]);
        assert_eq!(output.status.code(), Some(0));
    }
    assert!(help.contains("Examples:"));
    for shell in ["bash", "zsh", "fish"] {
        let script = stdout(&infergate(&["completions", shell]));
        assert!(
            script.contains("infergate") && script.contains("serve"),
            "{shell}"
        );
    }
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("man1");
    let written = infergate(&["man", folder.to_str().unwrap()]);
    assert_eq!(written.status.code(), Some(0), "{}", stderr(&written));
    let page = std::fs::read_to_string(folder.join("infergate-gpu-sweep.1")).unwrap();
    assert!(page.contains("ExecStopPost"), "{page}");
    assert!(
        folder.join("infergate.1").exists() && !folder.join("infergate-plugin-compiler.1").exists()
    );
    let wrong = infergate(&["no-such-command"]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(stderr(&wrong).contains("Usage"));
}

#[test]
fn a_taken_address_is_named_and_exits_with_2() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let dir = tempfile::tempdir().unwrap();
    for (key, other) in [("clients", "admin"), ("admin", "clients")] {
        let text = match key {
            "clients" => GOOD.replacen("127.0.0.1:0", &address, 1),
            _ => GOOD.replace(
                "admin: { address: \"127.0.0.1:0\"",
                &format!("admin: {{ address: \"{address}\""),
            ),
        };
        let output = infergate(&["serve", "--config", &file(dir.path(), &text)]);
        assert_eq!(output.status.code(), Some(2), "{key}, {other} free");
        assert!(stderr(&output).contains(&address), "{}", stderr(&output));
    }
}

#[test]
fn a_configuration_that_does_not_load_exits_with_2_and_says_why() {
    let missing = infergate(&["serve", "--config", "/nowhere/infergate.yaml"]);
    assert_eq!(missing.status.code(), Some(2));
    assert!(stderr(&missing).contains("/nowhere/infergate.yaml"));

    let dir = tempfile::tempdir().unwrap();
    let path = file(dir.path(), &(GOOD.to_owned() + "one: 1\ntwo: 2\n"));
    let bad = infergate(&["serve", "--config", &path]);
    assert_eq!(bad.status.code(), Some(2));
    let printed = stderr(&bad);
    assert!(
        printed.contains("line 8: one") && printed.contains("line 9: two"),
        "{printed}"
    );
    assert_eq!(stdout(&bad), "");

    let missing = infergate(&["check", "/nowhere/infergate.yaml"]);
    assert_eq!(missing.status.code(), Some(1));
}

#[test]
fn a_reader_that_closes_early_is_no_failure() {
    let shell = format!(
        "{} config example | head -1 >/dev/null; echo ${{PIPESTATUS[0]}}",
        env!("CARGO_BIN_EXE_infergate")
    );
    let output = Command::new("bash").args(["-c", &shell]).output().unwrap();
    assert_eq!(stdout(&output).trim(), "0", "{}", stderr(&output));
    assert_eq!(stderr(&output), "");
}
