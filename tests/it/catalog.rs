//! The Workers AI catalogue: which models an account may use, and what each takes and gives.

use serde_json::{Value, json};

use crate::support::{Node, SimulatedServer, TestClient, TestResponse, accounts, model_of};

const PATH: &str = "/client/v4/accounts/a/ai/models";

async fn get(node: &Node, key: &str, path: &str) -> TestResponse {
    let mut client = TestClient::connect(node.clients).await;
    client
        .send(format!("GET {path} HTTP/1.1\r\nHost: h\r\n{key}\r\n"))
        .await;
    client.response().await
}

const KEY: &str = "Authorization: Bearer key-a\r\n";

/// Three models, of which `a` may use two.
async fn node() -> (Node, SimulatedServer) {
    let server = SimulatedServer::fast().await;
    let model = |id, task| model_of(id, task, "openai", server.address);
    let models = [
        model("@cf/meta/llama", "text-generation"),
        model("@cf/baai/bge", "text-embeddings"),
        model("@cf/secret/llama", "text-generation"),
    ];
    let accounts = accounts(", models: [\"@cf/meta/*\", \"@cf/baai/*\"]");
    let text = format!("{accounts}models:\n{}", models.concat());
    (Node::start(&text).await, server)
}

fn names(answer: &TestResponse) -> Vec<String> {
    let text = answer.text();
    assert_eq!(answer.status, 200, "{text}");
    let body = answer.json();
    assert_eq!(body["success"], true, "{text}");
    let models = body["result"].as_array().unwrap();
    let name = |model: &Value| model["name"].as_str().unwrap().to_owned();
    models.iter().map(name).collect()
}

#[tokio::test]
async fn an_account_finds_the_models_it_may_use_page_by_page() {
    let (node, _server) = node().await;
    let all = get(&node, KEY, &format!("{PATH}/search")).await;
    assert_eq!(names(&all), ["@cf/meta/llama", "@cf/baai/bge"]);
    let first = &all.json()["result"][0];
    assert_eq!(first["task"]["id"], "text-generation");
    assert_eq!(first["task"]["name"], "Text Generation");
    assert_eq!(
        all.json()["result_info"],
        json!({ "page": 1, "per_page": 50, "count": 2, "total_count": 2 })
    );
    for (query, found) in [
        ("per_page=1", vec!["@cf/meta/llama"]),
        ("per_page=1&page=2", vec!["@cf/baai/bge"]),
        ("per_page=1&page=3", vec![]),
        ("search=llama", vec!["@cf/meta/llama"]),
        ("author=baai", vec!["@cf/baai/bge"]),
        ("task=Text+Embeddings", vec!["@cf/baai/bge"]),
        ("search=secret", vec![]),
    ] {
        let answer = get(&node, KEY, &format!("{PATH}/search?{query}")).await;
        assert_eq!(names(&answer), found, "{query}");
    }
    let event = node.event_of(&all).await;
    assert_eq!(event["outcome"], "completed");
    assert_eq!(
        (&event["face"], &event["account_id"]),
        (&json!("workers-ai"), &json!("a"))
    );
    assert_eq!(event["model_id"], Value::Null);
}

#[tokio::test]
async fn a_model_shows_the_schemas_of_its_task() {
    let (node, _server) = node().await;
    for model in ["@cf/meta/llama", "%40cf%2Fmeta%2Fllama"] {
        let answer = get(&node, KEY, &format!("{PATH}/schema?model={model}")).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        let result = answer.json()["result"].clone();
        for side in ["input", "output"] {
            let schema = result[side].as_object().unwrap();
            assert!(!schema.is_empty(), "{side}: {result}");
        }
    }
}

#[tokio::test]
async fn what_is_wrong_is_told_in_the_envelope() {
    let (node, _server) = node().await;
    for (key, path, status, code) in [
        ("", "/search", 401, 10000),
        ("Authorization: Bearer key-b\r\n", "/search", 403, 5018),
        (KEY, "/search?page=0", 400, 5006),
        (KEY, "/search?per_page=many", 400, 5006),
        (KEY, "/schema", 400, 5006),
        (KEY, "/schema?model=@cf/no/such", 400, 5007),
        (KEY, "/schema?model=@cf/secret/llama", 400, 5007),
        (KEY, "/nothing", 404, 7003),
    ] {
        let answer = get(&node, key, &format!("{PATH}{path}")).await;
        let text = answer.text();
        assert_eq!(answer.status, status, "{path}: {text}");
        assert_eq!(answer.json()["errors"][0]["code"], code, "{path}: {text}");
        assert_eq!(answer.json()["success"], false);
    }
}

#[tokio::test]
async fn the_description_of_the_api_needs_no_key_and_is_json() {
    let (node, _server) = node().await;
    let refused = get(&node, "", "/v1/models").await;
    assert_eq!(refused.status, 401, "{}", refused.text());
    let shown = get(&node, "", "/openapi.json").await;
    assert_eq!(shown.status, 200, "{}", shown.text());
    assert_eq!(shown.header("content-type"), Some("application/json"));
    let document = shown.json();
    assert_eq!(document["info"]["version"], env!("CARGO_PKG_VERSION"));
    assert!(document["paths"]["/v1/chat/completions"]["post"].is_object());
    let wrong = get(&node, KEY, "/openapi.yaml").await;
    assert_eq!(wrong.status, 404, "{}", wrong.text());
}

#[tokio::test]
async fn an_entry_of_the_catalogue_describes_a_model_and_marks_its_events() {
    let server = SimulatedServer::fast().await;
    let entry = "    catalog: { description: \"Chats.\", tags: [chat], properties: { context_window: 8192 }, beta: true }\n";
    let chats = model_of("chats", "text-generation", "openai", server.address) + entry;
    let hidden = model_of("hidden", "text-embeddings", "openai", server.address);
    let accounts = accounts(", models: [chats]");
    let node = Node::start(&format!("{accounts}models:\n{chats}{hidden}")).await;
    let found = get(&node, KEY, &format!("{PATH}/search")).await.json()["result"][0].clone();
    assert_eq!(
        (&found["description"], &found["tags"]),
        (&json!("Chats."), &json!(["chat"]))
    );
    assert_eq!(
        found["properties"],
        json!([{ "property_id": "beta", "value": "true" }, { "property_id": "context_window", "value": 8192 }])
    );
    for path in ["tasks", "tasks/search"] {
        let path = format!("/client/v4/accounts/a/ai/{path}");
        assert_eq!(names(&get(&node, KEY, &path).await), ["Text Generation"]);
        assert_eq!(get(&node, "", &path).await.status, 401);
    }
    let body = r#"{"prompt":"hi"}"#;
    let answer = node.post_as(KEY, "/ai/run/chats", body).await;
    assert_eq!(node.event_of(&answer).await["flags"]["beta"], true);
}
