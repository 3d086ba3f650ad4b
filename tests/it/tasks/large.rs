//! Large bodies: lists of bytes pass every task that takes a file, trees of containers none, and
//! neither costs the other requests anything.

use std::time::Duration;

use tokio::time::Instant;

use super::*;

const MIB: usize = 1 << 20;

/// A list of bytes as JSON, of about so much text.
fn list_of_bytes(text_bytes: usize) -> String {
    let mut list = String::with_capacity(text_bytes + 8);
    list.push('[');
    while list.len() < text_bytes {
        list.push_str("137,80,78,71,13,10,26,10,255,0,");
    }
    list.push_str("7]");
    list
}

#[tokio::test]
async fn a_list_of_15_mib_of_bytes_passes_every_task_that_takes_a_file() {
    let hall = TaskServers::start().await;
    let list = list_of_bytes(15 * MIB);
    for (task, member, more) in [
        ("image-classification", "image", ""),
        ("object-detection", "image", ""),
        ("image-to-text", "image", ""),
        ("image-text-to-text", "image", r#","prompt":"x""#),
        ("automatic-speech-recognition", "audio", ""),
        ("text-to-image", "image", r#","prompt":"x""#),
    ] {
        // The first of them in full length; the others take as long each in a debug build.
        let list = match task {
            "image-classification" => list.clone(),
            _ if cfg!(debug_assertions) => list_of_bytes(MIB),
            _ => list.clone(),
        };
        let body = format!(r#"{{"{member}":{list}{more}}}"#);
        let answer = run(&hall.node, task, "application/json", body.as_bytes()).await;
        assert_eq!(answer.status, 200, "{task}: {}", answer.text());
    }
}

#[tokio::test]
async fn a_body_of_millions_of_containers_is_refused_while_others_are_served() {
    let hall = TaskServers::start().await;
    let before = hall.node.resident_bytes();
    let unit = format!("{}0{}", r#"{"":"#.repeat(120), "}".repeat(120));
    for unit in [unit.as_str(), r#"{"":0}"#] {
        let units = vec![unit; 30 * MIB / (unit.len() + 1)].join(",");
        let body = format!(r#"{{"image":"aGk=","pad":[{units}]}}"#);
        let node = &hall.node;
        let large = run(node, "image-to-text", "application/json", body.as_bytes());
        let others = async {
            let mut slowest = Duration::ZERO;
            for _ in 0..20 {
                let began = Instant::now();
                let answer = hall
                    .run("text-classification", json!({ "text": "x" }))
                    .await;
                assert_eq!(answer.status, 200);
                assert_eq!(node.get("/healthz").await.status, 200);
                slowest = slowest.max(began.elapsed());
            }
            slowest
        };
        let (refused, slowest) = tokio::join!(large, others);
        assert_eq!(refused.status, 413, "{}", refused.text());
        assert_eq!(refused.json()["errors"][0]["code"], 3006);
        // It took seconds; a busy machine gets as much.
        assert!(slowest < Duration::from_secs(5), "{slowest:?}");
    }
    let grown = hall.node.resident_bytes().saturating_sub(before);
    assert!(grown < 400 * MIB as u64, "{grown}");
}

#[tokio::test]
async fn a_large_body_passes_a_schema_or_breaks_it_as_a_small_one_does() {
    let backend = ScriptedServer::new(&[&json_answer("{}")]).await;
    let file = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/config/quickstart/text-generation.wasm"
    );
    let plugin = format!(
        "plugins: [{{ name: text, world: task-schema-streaming, file: {file}, dev: true, settings: {{ shape: false }} }}]\n"
    );
    let model = one_model(backend.address, 1, "    plugins: { task: text }\n");
    let node = Node::start(&format!("{plugin}{model}")).await;
    let pad = "word ".repeat(40 * 1024);
    // Many parts take longer than a worker has: these are checked in a slot.
    let many = r#"{"role":"user","content":"x"},"#.repeat(20_000);
    for length in ["x", &pad] {
        for (more, status) in [("", 200), (r#","temperature":9"#, 400)] {
            let body = chat("m", &format!(r#","user":"{length}"{more}"#));
            let answer = node.post("/v1/chat/completions", &body).await;
            assert_eq!(answer.status, status, "{more}: {}", answer.text());
            if status == 400 {
                assert_eq!(answer.json()["error"]["param"], "/temperature");
            } else {
                let request = backend.requests().pop().unwrap();
                assert!(request.ends_with(&body), "it goes on as it came");
            }
        }
    }
    for (more, status) in [("", 200), (r#","temperature":9"#, 400)] {
        let last = r#"{"role":"user","content":"x"}"#;
        let body = format!(r#"{{"model":"m","messages":[{many}{last}]{more}}}"#);
        let answer = node.post("/v1/chat/completions", &body).await;
        assert_eq!(answer.status, status, "{more}: {}", answer.text());
    }
}
