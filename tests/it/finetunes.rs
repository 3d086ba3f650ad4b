//! Finetunes of models: what `lora` of a request asks the servers for, who may use which, and their list.

use infergate::simulate;
use serde_json::{Value, json};

use crate::nodes::{member, wait_until_serving_known};
use crate::support::{
    ANSWER, Cluster, Node, ScriptedServer, SimulatedServer, TestClient, TestResponse, accounts,
    eventually, json_answer, model_of,
};

const KEY_A: &str = "Authorization: Bearer key-a\r\n";
const KEY_B: &str = "Authorization: Bearer key-b\r\n";

/// A finetune for everyone, one of `a`, and one whose file is not there at first.
const FINETUNES: &str = r#"    finetunes:
      - { id: f-1, name: sql, adapter: sql-v2 }
      - { id: f-2, name: tone, accounts: [a] }
      - { id: f-3, name: filed, adapter: filed-lora, files: [adapter.safetensors] }
"#;

/// A gateway with one model in front of a server that answers each request with `answer`.
async fn scripted(backend: &str, task: &str, answer: &str) -> (Node, ScriptedServer) {
    let server = ScriptedServer::new(&[&json_answer(answer)]).await;
    let model = model_of("m", task, backend, server.address) + FINETUNES;
    let node = Node::start(&format!("{}models:\n{model}", accounts(""))).await;
    (node, server)
}

/// Path and body of the last request that a server got.
fn last(server: &ScriptedServer) -> (String, Value) {
    let requests = server.requests();
    let (head, body) = requests.last().unwrap().split_once("\r\n\r\n").unwrap();
    let path = head.split(' ').nth(1).unwrap().to_owned();
    (path, serde_json::from_str(body).unwrap())
}

async fn served(node: &Node, server: &ScriptedServer, path: &str, body: Value) -> (String, Value) {
    let answer = node.post_as(KEY_A, path, &body.to_string()).await;
    assert_eq!(answer.status, 200, "{path} {body}: {}", answer.text());
    last(server)
}

fn assert_refused(answer: &TestResponse, code: u32) {
    let text = answer.text();
    assert_eq!(answer.status, 400, "{text}");
    assert_eq!(answer.json()["errors"][0]["code"], code, "{text}");
}

#[tokio::test]
async fn an_adapter_is_a_model_of_servers_with_the_openai_paths() {
    let messages = json!([{ "role": "user", "content": "hi" }]);
    for (backend, more) in [
        ("vllm", json!({})),
        ("openai", json!({})),
        ("sglang", json!({ "lora_path": "sql-v2" })),
    ] {
        let (node, server) = scripted(backend, "text-generation", ANSWER).await;
        for lora in ["sql", "f-1"] {
            let mut expected = json!({ "model": "sql-v2", "messages": messages });
            for (name, value) in more.as_object().unwrap() {
                expected[name] = value.clone();
            }
            let chat = json!({ "model": "m", "x_priority": 7, "lora": lora, "messages": messages });
            let chat = served(&node, &server, "/v1/chat/completions", chat).await;
            assert_eq!(chat, ("/v1/chat/completions".to_owned(), expected.clone()));
            let run = json!({ "lora": lora, "prompt": "hi", "model": "other" });
            assert_eq!(served(&node, &server, "/ai/run/m", run).await.1, expected);
            let claude =
                json!({ "model": "m", "max_tokens": 9, "messages": messages, "lora": lora });
            let (_, sent) = served(&node, &server, "/v1/messages", claude).await;
            assert_eq!(
                (&sent["model"], &sent["lora"]),
                (&json!("sql-v2"), &Value::Null)
            );
        }
        // The next request without `lora` is for the model itself.
        let run = json!({ "prompt": "hi", "lora": null });
        let (_, sent) = served(&node, &server, "/ai/run/m", run).await;
        assert_eq!(sent, json!({ "model": "m", "messages": messages }));
    }
}

#[tokio::test]
async fn a_server_of_another_kind_gets_the_name_where_it_looks_for_it() {
    let generated = r#"{"generated_text":"a","details":{"generated_tokens":1,"prefill":[]}}"#;
    let (node, server) = scripted("tgi", "text-generation", generated).await;
    let run = json!({ "prompt": "hi", "lora": "sql" });
    let (path, sent) = served(&node, &server, "/ai/run/m", run.clone()).await;
    assert_eq!(
        (path.as_str(), &sent["parameters"]["adapter_id"]),
        ("/generate", &json!("sql-v2"))
    );

    let (node, server) = scripted("http", "text-generation", r#"{"response":"a"}"#).await;
    let (_, sent) = served(&node, &server, "/ai/run/m", run.clone()).await;
    assert_eq!(
        (&sent["lora"], &sent["prompt"]),
        (&json!("sql-v2"), &json!("hi"))
    );

    let (node, server) = scripted("triton", "text-generation", r#"{"text_output":"a"}"#).await;
    let (path, sent) = served(&node, &server, "/ai/run/m", run).await;
    assert_eq!(path, "/v2/models/m/generate");
    assert_eq!(sent, json!({ "text_input": "hi", "lora_name": "sql-v2" }));
    let file = node.dir().join("adapter.safetensors");
    std::fs::write(&file, "").unwrap();
    let run = json!({ "prompt": "hi", "lora": "filed" });
    let (_, sent) = served(&node, &server, "/ai/run/m", run).await;
    assert_eq!(sent["lora_name"], "filed-lora");
    let config: Value = serde_json::from_str(sent["lora_config"].as_str().unwrap()).unwrap();
    assert_eq!(
        config,
        json!({ "id": "f-3", "name": "filed", "files": [file.to_str().unwrap()] })
    );
}

#[tokio::test]
async fn unknown_foreign_and_missing_file_are_3039_and_reach_no_server() {
    let server = SimulatedServer::start(simulate::Config {
        // The server has the adapter, and no other name.
        model: Some("filed-lora".to_owned()),
        ..simulate::Config::instant()
    })
    .await;
    let model = model_of("m", "text-generation", "vllm", server.address) + FINETUNES;
    let node = Node::start(&format!("{}models:\n{model}", accounts(""))).await;
    let run = |lora: &str| json!({ "prompt": "hi", "lora": lora }).to_string();
    for (key, lora) in [
        (KEY_A, "nothing"),
        (KEY_B, "tone"),
        (KEY_B, "f-2"),
        // What the servers call it is no name of it.
        (KEY_A, "sql-v2"),
        (KEY_A, "filed"),
    ] {
        let answer = node.post_as(key, "/ai/run/m", &run(lora)).await;
        assert_refused(&answer, 3039);
        let event = node.event_of(&answer).await;
        assert_eq!(
            (&event["error_code"], &event["outcome"]),
            (&json!("3039"), &json!("refused"))
        );
    }
    // Those of others are as those that do not exist.
    let foreign = node.post_as(KEY_B, "/ai/run/m", &run("tone")).await;
    let unknown = node.post_as(KEY_B, "/ai/run/m", &run("nothing")).await;
    assert_eq!(foreign.json()["errors"], unknown.json()["errors"]);
    assert_eq!(server.count("served").await, 0);
    assert!(
        node.log().contains("adapter.safetensors is not there"),
        "{}",
        node.log()
    );

    let file = node.dir().join("adapter.safetensors");
    std::fs::write(&file, "weights").unwrap();
    for key in [KEY_A, KEY_B] {
        let answer = node.post_as(key, "/ai/run/m", &run("filed")).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    assert_eq!(server.count("served").await, 2);
    std::fs::remove_file(&file).unwrap();
    let answer = node.post_as(KEY_A, "/ai/run/m", &run("filed")).await;
    assert_refused(&answer, 3039);
    assert!(answer.text().contains("files of this finetune are missing"));
}

#[tokio::test]
async fn each_api_refuses_in_its_own_form() {
    let (node, _server) = scripted("vllm", "text-generation", ANSWER).await;
    let chat = r#"{"model":"m","max_tokens":5,"messages":[{"role":"user","content":"hi"}],"lora":"nothing"}"#;
    let openai = node.post_as(KEY_A, "/v1/chat/completions", chat).await;
    let error = &openai.json()["error"];
    assert_eq!(openai.status, 400);
    assert_eq!(
        (&error["code"], &error["param"], &error["type"]),
        (
            &json!("finetune_not_found"),
            &json!("/lora"),
            &json!("invalid_request_error")
        )
    );
    let anthropic = node.post_as(KEY_A, "/v1/messages", chat).await;
    assert_eq!(anthropic.status, 400);
    assert_eq!(anthropic.json()["error"]["type"], "invalid_request_error");
    let odd = node
        .post_as(KEY_A, "/ai/run/m", r#"{"prompt":"hi","lora":7}"#)
        .await;
    assert_refused(&odd, 5006);
}

#[tokio::test]
async fn no_member_of_a_server_leads_past_the_finetunes() {
    let generated = r#"{"generated_text":"a"}"#;
    for (backend, answer, member) in [
        ("sglang", ANSWER, "lora_path"),
        ("openai", ANSWER, "lora_path"),
        ("tgi", generated, "adapter_id"),
        ("triton", r#"{"text_output":"a"}"#, "lora_name"),
        ("triton", r#"{"text_output":"a"}"#, "lora_config"),
    ] {
        let (node, server) = scripted(backend, "text-generation", answer).await;
        // Escapes are read as the servers read them.
        let escaped = format!("\\u{:04x}{}", member.as_bytes()[0], &member[1..]);
        let body = format!(r#"{{"prompt":"hi","{escaped}":"tone"}}"#);
        let answer = node.post_as(KEY_B, "/ai/run/m", &body).await;
        assert_refused(&answer, 5006);
        assert_eq!(server.requests(), [""; 0], "{backend} {member}");
    }
    // Of a member that stands twice a server may take the first.
    let (node, server) = scripted("tgi", "text-generation", generated).await;
    let twice = r#"{"prompt":"hi","lora":"tone","lora":null}"#;
    assert_refused(&node.post_as(KEY_B, "/ai/run/m", twice).await, 5006);
    assert_eq!(server.requests(), [""; 0]);
    let (node, server) = scripted("triton", "text-to-image", "{}").await;
    let infer = |name: &str| {
        let input = json!({ "name": name, "shape": [1, 1], "datatype": "BYTES", "data": ["tone"] });
        json!({ "inputs": [{ "name": "x", "shape": [1], "datatype": "INT64", "data": [1] }, input] })
    };
    let path = "/v2/models/m/infer";
    let mut with_parameters = infer("lora");
    with_parameters["parameters"] = json!({ "lora_name": "tone" });
    let mut with_text = infer("sampling_parameters");
    with_text["inputs"][1]["data"] = json!([r#"{"lora_name":"tone"}"#]);
    for body in [infer("lora_name"), with_parameters, with_text] {
        let refused = node.post_as(KEY_B, path, &body.to_string()).await;
        assert_eq!(refused.status, 400, "{}", refused.text());
        assert_eq!(server.requests(), [""; 0]);
    }
    let _ = node.post_as(KEY_B, path, &infer("lora").to_string()).await;
    assert_eq!(server.requests().len(), 1);
}

#[tokio::test]
async fn a_model_without_finetunes_has_no_adapter_to_name() {
    let server = ScriptedServer::new(&[&json_answer(r#"{"image":"AAAA"}"#)]).await;
    let text = model_of("text", "text-generation", "vllm", server.address);
    let image = model_of("image", "text-to-image", "http", server.address);
    let llama = model_of("llama", "text-generation", "llama-server", server.address);
    let node = Node::start(&format!("models:\n{text}{image}{llama}")).await;
    let body = r#"{"prompt":"hi","lora":"x"}"#;
    for model in ["text", "llama"] {
        assert_refused(&node.post(&format!("/ai/run/{model}"), body).await, 3039);
    }
    // A member of the model's own, of a task without adapters.
    let answer = node.post("/ai/run/image", body).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(last(&server).1["lora"], "x");
}

async fn get(node: &Node, key: &str, path: &str) -> TestResponse {
    let mut client = TestClient::connect(node.clients).await;
    client
        .send(format!("GET {path} HTTP/1.1\r\nHost: h\r\n{key}\r\n"))
        .await;
    client.response().await
}

#[tokio::test]
async fn finetunes_of_an_account_are_listed() {
    let (node, server) = scripted("vllm", "text-generation", ANSWER).await;
    let names = |answer: &TestResponse| -> Vec<String> {
        assert_eq!(answer.status, 200, "{}", answer.text());
        let result = answer.json()["result"].clone();
        let found = result.as_array().unwrap().iter();
        found
            .map(|one| one["name"].as_str().unwrap().to_owned())
            .collect()
    };
    let path =
        |account: &str, rest: &str| format!("/client/v4/accounts/{account}/ai/finetunes{rest}");
    let all = get(&node, KEY_A, &path("a", "")).await;
    assert_eq!(names(&all), ["sql", "tone", "filed"]);
    let first = all.json()["result"][0].clone();
    assert_eq!(
        (&first["id"], &first["model"], &first["public"]),
        (&json!("f-1"), &json!("m"), &json!(true))
    );
    assert!(first["created_at"].as_str().unwrap().ends_with('Z'));
    assert_eq!(
        names(&get(&node, KEY_B, &path("b", "/")).await),
        ["sql", "filed"]
    );
    assert_eq!(
        names(&get(&node, KEY_A, &path("a", "/public")).await),
        ["sql", "filed"]
    );
    for (key, path, status) in [
        ("", path("a", ""), 401),
        (KEY_B, path("a", ""), 403),
        (KEY_A, path("a", "/nothing"), 404),
        (KEY_A, path("a", "s"), 404),
        (KEY_A, "/ai/finetunes".to_owned(), 404),
    ] {
        assert_eq!(get(&node, key, &path).await.status, status, "{path}");
    }
    // The account may use the model no more, and so none of its finetunes.
    let model = model_of("m", "text-generation", "vllm", server.address) + FINETUNES;
    let accounts = accounts(", models: [other]");
    let reloaded = node.reload(&format!("{accounts}models:\n{model}")).await;
    assert_eq!(reloaded.status, 200, "{}", reloaded.text());
    assert_eq!(names(&get(&node, KEY_A, &path("a", "")).await), [""; 0]);
}

/// Waits for the request that a job sends.
async fn sent_by_job(server: &ScriptedServer, requests: usize) -> Value {
    eventually("the job has run", async || {
        (server.requests().len() == requests).then_some(())
    })
    .await;
    last(server).1
}

#[tokio::test]
async fn a_job_names_an_adapter_as_a_request_does_and_is_refused_when_it_is_made() {
    const PREDICTIONS: &str = "/v1/models/acme/m/predictions";
    let server = ScriptedServer::new(&[&json_answer(ANSWER)]).await;
    let model = model_of("acme/m", "text-generation", "vllm", server.address) + FINETUNES;
    let config = format!("{}jobs: {{}}\nmodels:\n{model}", accounts(""));
    let node = Node::start(&config).await;
    let create = async |key: &str, lora: &str| {
        let body = json!({ "input": { "prompt": "hi", "lora": lora } });
        node.post_as(key, PREDICTIONS, &body.to_string()).await
    };
    for (key, lora) in [(KEY_A, "none"), (KEY_B, "tone"), (KEY_A, "filed")] {
        let refused = create(key, lora).await;
        assert_eq!(refused.status, 400, "{lora}: {}", refused.text());
        assert!(refused.text().contains("finetune"), "{}", refused.text());
    }
    assert_eq!(server.requests().len(), 0);
    for (number, (lora, adapter)) in [("sql", "sql-v2"), ("tone", "tone")].iter().enumerate() {
        let created = create(KEY_A, lora).await;
        assert_eq!(created.status, 201, "{}", created.text());
        let sent = sent_by_job(&server, number + 1).await;
        assert_eq!(
            (&sent["model"], &sent["lora"]),
            (&json!(adapter), &Value::Null)
        );
    }
}

#[tokio::test]
async fn a_fallback_serves_its_own_finetune_of_that_name_or_not_at_all() {
    const BUSY: &str = "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n";
    let (busy, second) = (
        ScriptedServer::new(&[BUSY]).await,
        ScriptedServer::new(&[&json_answer(ANSWER)]).await,
    );
    let of = |name: &str, server: &ScriptedServer| {
        model_of(name, "text-generation", "vllm", server.address)
    };
    let config = format!(
        "{}models:\n{}{FINETUNES}    fallbacks: [n]\n{}    finetunes: [{{ id: n-1, name: sql, adapter: sql-of-n }}]\n",
        accounts(""),
        of("m", &busy),
        of("n", &second),
    );
    let node = Node::start(&config).await;
    let ask = async |lora: &str| {
        let messages = json!([{ "role": "user", "content": "hi" }]);
        let body = json!({ "model": "m", "lora": lora, "messages": messages }).to_string();
        let answer = node.post_as(KEY_A, "/v1/chat/completions", &body).await;
        answer.status
    };
    assert_eq!(ask("sql").await, 200);
    assert_eq!(last(&second).1["model"], "sql-of-n");
    assert_eq!(last(&busy).1["model"], "sql-v2");
    // The other model has no finetune of this name: what it would say without is not what was asked for.
    let status = ask("tone").await;
    assert!(matches!(status, 502 | 503), "{status}");
    assert_eq!(second.requests().len(), 1);
}

#[tokio::test]
async fn a_node_without_servers_sends_the_adapter_with_the_request() {
    let server = ScriptedServer::new(&[&json_answer(ANSWER)]).await;
    let serving = model_of("m", "text-generation", "vllm", server.address) + FINETUNES;
    let nothing = "  - id: m\n    task: text-generation\n    backend: vllm\n    endpoints: []\n";
    let models = |model: &str| format!("{}models:\n{model}", accounts(""));
    let fleet = Cluster::start(&[
        member("edge", "fra", &models(&format!("{nothing}{FINETUNES}"))),
        member("gpu0", "ams", &models(&serving)),
    ])
    .await;
    let edge = &fleet.nodes[0];
    wait_until_serving_known(edge, "gpu0").await;
    let ask = async |key: &str, lora: &str| {
        let body = json!({ "lora": lora, "prompt": "hi" });
        edge.post_as(key, "/ai/run/m", &body.to_string()).await
    };
    let answer = ask(KEY_A, "tone").await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let (_, sent) = last(&server);
    assert_eq!(
        (&sent["model"], &sent["lora"]),
        (&json!("tone"), &Value::Null)
    );
    // Another account's, none at all, and one whose file that node has not.
    for (key, lora) in [(KEY_B, "tone"), (KEY_A, "none"), (KEY_A, "filed")] {
        assert_refused(&ask(key, lora).await, 3039);
    }
    assert_eq!(server.requests().len(), 1);
}

#[tokio::test]
async fn a_node_with_the_files_serves_what_another_one_lacks() {
    let (lacking, having) = (
        ScriptedServer::new(&[&json_answer(ANSWER)]).await,
        ScriptedServer::new(&[&json_answer(ANSWER)]).await,
    );
    let models = |model: &str| format!("{}models:\n{model}", accounts(""));
    let of = |server: &ScriptedServer| model_of("m", "text-generation", "vllm", server.address);
    let whole = of(&having) + "    finetunes: [{ id: f-3, name: filed, adapter: filed-lora }]\n";
    let nothing = "  - id: m\n    task: text-generation\n    backend: vllm\n    endpoints: []\n";
    let fleet = Cluster::start(&[
        member("edge", "fra", &models(&format!("{nothing}{FINETUNES}"))),
        member("gpu0", "ams", &models(&(of(&lacking) + FINETUNES))),
        member("gpu1", "ams", &models(&whole)),
    ])
    .await;
    let edge = &fleet.nodes[0];
    for name in ["gpu0", "gpu1"] {
        wait_until_serving_known(edge, name).await;
    }
    // Of two nodes with room either is asked first.
    let body = json!({ "lora": "filed", "prompt": "hi" }).to_string();
    for _ in 0..8 {
        let answer = edge.post_as(KEY_A, "/ai/run/m", &body).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!(last(&having).1["model"], "filed-lora");
    }
    assert_eq!(lacking.requests().len(), 0);
}
