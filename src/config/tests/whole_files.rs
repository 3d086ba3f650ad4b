//! Files that are no configuration at all, and files with many mistakes.

use super::*;

#[test]
fn files_that_are_no_configuration_are_refused_as_a_whole() {
    let only = |text: &str, message: &str| {
        let found = problems(text);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].path, "");
        assert!(found[0].message.contains(message), "{found:?}");
    };
    only("", "the file is empty");
    only("# nothing but a comment\n", "the file is empty");
    only("---\n", "the file is empty");
    only("- a\n- b\n", "must be a mapping");
    only("hello", "must be a mapping");

    let deep = format!("node: {}", "[".repeat(200));
    assert!(problems(&deep)[0].message.contains("nested deeper than 32"));
    let deep = format!("node:\n  {}x", "- ".repeat(100_000));
    assert!(problems(&deep)[0].message.contains("nested deeper than 32"));
    let wide: String = (0..100_000).map(|n| format!("key_{n}: 1\n")).collect();
    assert!(problems(&wide)[0].message.contains("more than 1000 keys"));
    let mut bomb = "node:\n  a: &a [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for (name, earlier) in ["b", "c", "d", "e", "f", "g"]
        .iter()
        .zip(["a", "b", "c", "d", "e", "f"])
    {
        let many = vec![format!("*{earlier}"); 10].join(", ");
        bomb += &format!("  {name}: &{name} [{many}]\n");
    }
    assert!(
        problems(&bomb)[0]
            .message
            .contains("more than 1000000 values")
    );
}

#[test]
fn a_damaged_file_is_refused_or_loaded_but_never_stops_the_process() {
    const ROUNDS: usize = 3_000;
    const SCRAPS: &[&str] = &[
        "\t", "\n", "  ", ":", "- ", "[", "}", "\"", "*", "&a ", "|", "? ", "${", "\u{0}", "é",
        "---\n", "#", "!!int ",
    ];
    let mut rng = fastrand::Rng::with_seed(7);
    for _ in 0..ROUNDS {
        let mut text: Vec<char> = EXAMPLE.chars().collect();
        for _ in 0..rng.usize(1..6) {
            let at = rng.usize(..=text.len());
            match rng.u8(..3) {
                0 => drop(text.splice(at..at, rng.choice(SCRAPS).unwrap().chars())),
                1 => drop(text.drain(at..text.len().min(at + rng.usize(1..40)))),
                _ => text.truncate(at),
            }
        }
        let text: String = text.into_iter().collect();
        if let Err(found) = parse(&text, &env) {
            assert!(!found.is_empty());
            // Every fault has a sentence of its own; this one is for faults nobody thought of.
            let unforeseen = found
                .iter()
                .find(|p| p.message.contains("does not fit the schema"));
            assert_eq!(unforeseen, None, "{text}");
            let lines = u32::try_from(text.lines().count()).unwrap() + 1;
            assert!(
                found.iter().all(|problem| problem.line <= lines),
                "{text}\n{found:?}"
            );
        }
    }
}

#[test]
fn files_that_cannot_be_read_are_named_without_a_line() {
    let dir = tempfile::tempdir().unwrap();
    let missing = load(&dir.path().join("none.yaml")).unwrap_err();
    assert!(
        missing[0].message.contains("cannot read") && missing[0].line == 0,
        "{missing:?}"
    );
    assert!(
        load(dir.path()).unwrap_err()[0]
            .message
            .contains("cannot read")
    );

    let latin = dir.path().join("latin.yaml");
    std::fs::write(&latin, b"node:\n  id: caf\xe9\n").unwrap();
    let found = load(&latin).unwrap_err();
    assert_eq!(
        (found[0].line, &*found[0].message),
        (2, "not UTF-8 here: save the file as UTF-8")
    );

    let large = dir.path().join("large.yaml");
    std::fs::File::create(&large)
        .unwrap()
        .set_len(FILE_BYTES_MAX + 1)
        .unwrap();
    assert!(
        load(&large).unwrap_err()[0]
            .message
            .contains("larger than 32 MiB")
    );
}

#[test]
fn all_problems_of_a_file_are_reported_at_once_in_its_order() {
    let text = r#"listen:
  clients: [{ address: "localhost:80" }]
anonymous: perhaps
threads: -3
threads: 4
accounts:
  - { id: acme, api_keys_sha256: [short], wieght: 2, neurons_per_day: lots }
models:
  - id: m
    task: translate
    backend: ollama
    endpoints:
      - { url: "ftp://h:1", api_key: "${NO_SUCH}" }
      - { max_concurrent_requests: many }
  - id: m
    task: text-embeddings
    backend: tgi
    allowed_accounts: [acme, emca]
plugins:
  - { name: p, world: task, file: p.wasm, grants: [clock] }
timeouts: { ceiling_secs: 1 }
"#;
    let found: Vec<_> = problems(text)
        .into_iter()
        .map(|p| (p.line, p.path))
        .collect();
    let expected = [
        (2, "listen.clients[0].address"),
        (3, "anonymous"),
        (4, "threads"),
        (5, "threads"),
        (7, "accounts[0].api_keys_sha256[0]"),
        (7, "accounts[0].wieght"),
        (7, "accounts[0].neurons_per_day"),
        (10, "models[0].task"),
        (11, "models[0].backend"),
        (13, "models[0].endpoints[0].url"),
        (13, "models[0].endpoints[0].api_key"),
        (14, "models[0].endpoints[1].url"),
        (14, "models[0].endpoints[1].max_concurrent_requests"),
        (15, "models[1].id"),
        (17, "models[1].backend"),
        (18, "models[1].allowed_accounts[1]"),
        (20, "plugins[0].sha256"),
        (20, "plugins[0].world"),
        (20, "plugins[0].grants[0]"),
        (21, "timeouts.ceiling_secs"),
    ];
    let expected: Vec<_> = expected
        .iter()
        .map(|(l, p)| (*l, (*p).to_owned()))
        .collect();
    assert_eq!(found, expected);
}

#[test]
fn a_message_never_repeats_a_key_or_a_replaced_secret() {
    let text = GOOD.replace(
        "\"http://127.0.0.1:9001\"",
        "\"${VLLM_KEY}\", api_key: [\"${VLLM_KEY}\"]",
    ) + "threads: ${VLLM_KEY}\naccounts: [{ id: a, api_keys_sha256: my-plain-key }]\nanonymous: ${VLLM_KEY}\n";
    let text = text.replacen("anonymous: allow\n", "", 1);
    let found = problems(&text);
    assert_eq!(found.len(), 5, "{found:#?}");
    for problem in found {
        assert!(!problem.message.contains("sk-from"), "{problem}");
        assert!(!problem.message.contains("my-plain-key"), "{problem}");
    }
}

#[test]
fn one_key_hash_belongs_to_one_account_in_either_case() {
    let (lower, upper) = ("ab".repeat(32), "AB".repeat(32));
    let text = format!(
        "{GOOD}accounts:\n  - {{ id: a, api_keys_sha256: [{lower}] }}\n  - {{ id: b, api_keys_sha256: [{upper}] }}\n"
    );
    let found = problems(&text);
    assert_eq!(found.len(), 1);
    assert_eq!(
        (&*found[0].path, found[0].line),
        ("accounts[1].api_keys_sha256[0]", 11)
    );
    assert!(found[0].message.contains("accounts[0].api_keys_sha256[0]"));
    assert!(!found[0].message.to_lowercase().contains("abab"));
}

#[test]
fn a_file_full_of_mistakes_has_a_list_that_ends() {
    let many: String = (0..900).map(|n| format!("nonsense_{n}: 1\n")).collect();
    let found = problems(&format!("{GOOD}{many}"));
    assert_eq!(found.len(), problem::Problems::LIST_MAX + 1);
    assert!(found.last().unwrap().message.contains("700 more problems"));
}

#[test]
fn a_problem_is_serialised_as_path_line_and_message() {
    let found = problems(&format!("{GOOD}threads: x\n"));
    let json = serde_json::to_value(&found[0]).unwrap();
    let keys: Vec<_> = json.as_object().unwrap().keys().collect();
    assert_eq!(keys, ["path", "line", "message"]);
    assert_eq!(
        (&json["path"], &json["line"]),
        (&"threads".into(), &9.into())
    );
    assert!(
        found[0]
            .to_string()
            .starts_with("line 9: threads: expected")
    );
}
