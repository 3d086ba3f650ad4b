//! Commands that ask a running gateway: `config diff` and `explain`.

use std::process::{Command, Output};

use serde_json::Value;

use crate::support::{
    Node, ScriptedServer, SimulatedServer, accounts, endpoint, eventually, free_address, model,
    one_model,
};

const NO_ROOM: &str = "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n";

async fn infergate(args: &[&str]) -> (Option<i32>, String, String) {
    let args: Vec<String> = args.iter().map(ToString::to_string).collect();
    let run = move || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_infergate"));
        command.args(args).output().unwrap()
    };
    let Output {
        status,
        stdout,
        stderr,
    } = tokio::task::spawn_blocking(run).await.unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code(), text(stdout), text(stderr))
}

#[tokio::test]
async fn a_file_is_compared_with_what_runs_by_key_paths_and_without_secrets() {
    let server = SimulatedServer::fast().await;
    let with = |limit: &str, key: &str, more: &str| {
        let keyed = format!("{}, api_key: {key}", endpoint(server.address, 2));
        accounts(limit) + "models:\n" + &model("m", &[keyed], "") + more
    };
    let node = Node::start(&with(", neurons_per_day: 5", "first-secret", "")).await;
    let same = node.config_path();
    let (status, printed, _) = infergate(&["config", "diff", same.to_str().unwrap()]).await;
    assert_eq!(status, Some(0), "{printed}");
    assert!(printed.contains("no differences"), "{printed}");

    let next = node.dir().join("next.yaml");
    let more = "threads: 3\ntimeouts: { ceiling_secs: 77 }\n";
    let text = node.config_text(&with(", neurons_per_day: 9", "second-secret", more));
    std::fs::write(&next, text.replace("- { id: b,", "- { id: c,")).unwrap();
    let (status, printed, _) = infergate(&["config", "diff", next.to_str().unwrap()]).await;
    assert_eq!(status, Some(1), "{printed}");
    for expected in [
        "changed  accounts[a].neurons_per_day: 5 -> 9",
        "added    accounts[c]",
        "removed  accounts[b]",
        &format!(
            "changed  models[m].endpoints[http://{}].api_key\n",
            server.address
        ),
        "-> 77",
        "changed  threads: 0 -> 3 (after a restart)",
        "6 difference(s) from generation 1",
    ] {
        assert!(printed.contains(expected), "no {expected:?} in:\n{printed}");
    }
    let shown = node.get("/config").await.text();
    for secret in ["first-secret", "second-secret"] {
        assert!(!printed.contains(secret) && !shown.contains(secret));
    }

    // What was loaded but takes a restart does not run yet.
    std::fs::rename(&next, node.config_path()).unwrap();
    assert_eq!(node.post_reload().await.status, 200);
    let (status, printed, _) =
        infergate(&["config", "diff", "--json", same.to_str().unwrap()]).await;
    assert_eq!(status, Some(1), "{printed}");
    let report: Value = serde_json::from_str(&printed).unwrap();
    let differences = report["differences"].as_array().unwrap();
    assert_eq!(differences.len(), 1, "{printed}");
    assert_eq!(differences[0]["path"], "threads");
    assert_eq!(
        (&report["generation"], &report["same"]),
        (&2.into(), &false.into())
    );
}

#[tokio::test]
async fn a_comparison_that_cannot_be_made_exits_with_2_and_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("infergate.yaml");
    let admin = free_address();
    let text = format!(
        "listen: {{ clients: [ {{ address: \"127.0.0.1:1\" }} ], admin: {{ address: \"{admin}\" }} }}\n"
    );
    std::fs::write(&file, &text).unwrap();
    let path = file.to_str().unwrap();
    let (status, _, printed) = infergate(&["config", "diff", path]).await;
    assert_eq!(status, Some(2));
    assert!(printed.contains(&admin.to_string()), "{printed}");
    std::fs::write(&file, text + "no_such_key: 1\n").unwrap();
    let (status, _, printed) = infergate(&["config", "diff", path]).await;
    assert_eq!(status, Some(2));
    assert!(printed.contains("line 2: no_such_key"), "{printed}");
}

#[tokio::test]
async fn a_request_is_explained_in_words_by_its_id_and_as_the_last_one() {
    let (first, second) = (
        ScriptedServer::new(&[NO_ROOM]).await,
        SimulatedServer::fast().await,
    );
    let endpoints = [
        endpoint(first.address, 4),
        format!("{}, priority: 1", endpoint(second.address, 4)),
    ];
    let tariff = "    tariff: { cost_per_infer: 2.5 }\n";
    let node = Node::start(&format!("models:\n{}", model("m", &endpoints, tariff))).await;
    let answer = node.posting("", "").await.answer().await;
    assert_eq!(answer.status, 200);
    let id = answer.header("x-request-id").unwrap();
    node.explain(id).await;
    let config = node.config_path();
    let config = config.to_str().unwrap();
    let admin = node.admin.to_string();
    for args in [
        ["explain", id, "--config", config],
        ["explain", "last", "--admin", &admin],
    ] {
        let (status, printed, _) = infergate(&args).await;
        assert_eq!(status, Some(0), "{printed}");
        for expected in [
            &format!("request   {id}"),
            "account anonymous, model m, openai API",
            "completed, HTTP 200 after",
            "bill      2.5 neurons",
            &format!("{} as m: rejected, HTTP 503", first.address),
            "another attempt: ",
            &format!(
                "http://{}: degraded, has failed this request",
                first.address
            ),
            &format!("{} as m: answered, HTTP 200", second.address),
        ] {
            assert!(printed.contains(expected), "no {expected:?} in:\n{printed}");
        }
    }
    let (status, printed, _) = infergate(&["explain", "--admin", &admin]).await;
    assert_eq!(status, Some(0));
    assert!(
        printed.lines().any(|line| line.starts_with(id)),
        "{printed}"
    );
    let (_, printed, _) = infergate(&["explain", id, "--admin", &admin, "--json"]).await;
    let trace: Value = serde_json::from_str(&printed).unwrap();
    assert_eq!(trace["request_id"], id);

    for unknown in ["0123456789abcdef0123456789abcdef", "../state", ""] {
        let (status, printed, why) = infergate(&["explain", unknown, "--admin", &admin]).await;
        assert_eq!((status, printed.as_str()), (Some(1), ""), "{unknown}");
        assert!(why.starts_with("error: "), "{why}");
    }
    let unused = free_address().to_string();
    let (status, _, why) = infergate(&["explain", "last", "--admin", &unused]).await;
    assert_eq!(status, Some(2));
    assert!(why.contains(&unused), "{why}");
}

#[tokio::test]
async fn a_wait_in_line_is_explained_with_its_length_and_the_endpoint_that_was_full() {
    let server = ScriptedServer::held().await;
    let node = Node::start(&one_model(server.address, 1, "")).await;
    let admin = node.admin.to_string();
    let holder = node.posting("", "").await;
    node.settles(1, 0).await;
    let waiter = node.posting("", "").await;
    node.settles(1, 1).await;
    for posted in [holder, waiter] {
        server.next();
        assert_eq!(posted.answer().await.status, 200);
    }
    let printed = eventually("the wait is told", async || {
        let (_, printed, _) = infergate(&["explain", "last", "--admin", &admin]).await;
        printed.contains("queued at position 1").then_some(printed)
    })
    .await;
    for expected in [
        "ms expected: granted",
        "1 of 1 permits of the model in use, 1 queued, 1 of 1 endpoints usable",
        &format!(
            "http://{}: no permit free; 1 of 1 permits in use",
            server.address
        ),
        "ms in the queue",
    ] {
        assert!(printed.contains(expected), "no {expected:?} in:\n{printed}");
    }
}
