//! Named tasks over servers by URL: a name on each API, its candidates in turn, its parameters and its time.

use serde_json::{Value, json};

use crate::support::{
    ANSWER, Node, RefusingServer, ScriptedServer, TestResponse, accounts, endpoint, json_answer,
    model,
};

const CHAT: &str = "/v1/chat/completions";
const KEY: &str = "authorization: Bearer key-a\r\n";

fn body(name: &str) -> String {
    json!({ "model": name, "max_tokens": 9, "messages": [{ "role": "user", "content": "hi" }] })
        .to_string()
}

async fn get(node: &Node, key: &str, path: &str) -> TestResponse {
    let mut client = node.client().await;
    client
        .send(format!("GET {path} HTTP/1.1\r\nHost: h\r\n{key}\r\n"))
        .await;
    client.response().await
}

fn listed(answer: &Value) -> Vec<&str> {
    let models = answer["data"].as_array().unwrap().iter();
    models.map(|model| model["id"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn a_task_is_a_model_name_on_each_api_and_its_candidates_serve_in_turn() {
    let (gone, second) = (
        RefusingServer::new(),
        ScriptedServer::new(&[&json_answer(ANSWER)]).await,
    );
    let models = [
        model("first", &[endpoint(gone.address, 1)], ""),
        model(
            "second",
            &[endpoint(second.address, 1)],
            "    parameters: { default: { top_p: 1, seed: 7 } }\n",
        ),
    ]
    .concat();
    let task = "tasks: [{ id: chat, candidates: [first, second], defaults: { temperature: 0, seed: 5, max_tokens: 3 } }]\n";
    let node = Node::start(&format!("models:\n{models}{task}")).await;

    assert_eq!(
        listed(&get(&node, "", "/v1/models").await.json()),
        ["first", "second", "chat"]
    );
    let shown = get(&node, "", "/v1/models/chat").await;
    assert_eq!((shown.status, &shown.json()["id"]), (200, &"chat".into()));
    let found = get(
        &node,
        "",
        "/client/v4/accounts/anonymous/ai/models/search?search=chat",
    )
    .await;
    assert_eq!(
        found.json()["result"][0]["name"],
        "chat",
        "{}",
        found.text()
    );

    let messages =
        json!({ "messages": [{ "role": "user", "content": "hi" }], "max_tokens": 9 }).to_string();
    for (path, body) in [
        (CHAT, body("chat")),
        ("/v1/messages", body("chat")),
        ("/ai/run/chat", messages),
    ] {
        let answer = node.post(path, &body).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        assert_eq!(answer.header("x-infergate-model"), Some("second"), "{path}");
        let event = node.event_of(&answer).await;
        assert_eq!(
            (&event["model_id"], &event["asked_model_id"]),
            (&"second".into(), &"chat".into())
        );
        let sent = second.requests().pop().unwrap();
        let sent: Value = serde_json::from_str(sent.split("\r\n\r\n").nth(1).unwrap()).unwrap();
        assert_eq!(
            (&sent["temperature"], &sent["seed"], &sent["top_p"]),
            (&0.into(), &5.into(), &1.into()),
            "{sent}"
        );
        assert_eq!(sent["max_tokens"], 9, "the request's own");
    }
    let unknown = node.post(CHAT, &body("chats")).await;
    assert_eq!(unknown.status, 404);
}

#[tokio::test]
async fn the_budget_of_a_task_is_below_the_floor_of_models_and_ends_the_request() {
    let silent = ScriptedServer::held().await;
    let models = model("m", &[endpoint(silent.address, 1)], "");
    let task = "tasks: [{ id: brief, candidates: [m], budget_secs: 1 }]\n";
    let node = Node::start(&format!("models:\n{models}{task}")).await;
    let answer = node.post(CHAT, &body("brief")).await;
    assert!([408, 504].contains(&answer.status), "{}", answer.text());
    let id = answer.header("x-request-id").unwrap();
    let deadline = node.explain(id).await["deadline"].clone();
    assert_eq!(
        (&deadline["after_ms"], &deadline["from"]),
        (&1000.into(), &"model".into()),
        "{deadline}"
    );
}

#[tokio::test]
async fn an_account_uses_of_a_task_what_it_may_use() {
    let (own, other) = (
        ScriptedServer::new(&[&json_answer(ANSWER)]).await,
        ScriptedServer::new(&[&json_answer(ANSWER)]).await,
    );
    let models = [
        model("other", &[endpoint(other.address, 1)], ""),
        model("own", &[endpoint(own.address, 1)], ""),
    ]
    .concat();
    let tasks =
        "tasks: [{ id: chat, candidates: [other, own] }, { id: closed, candidates: [other] }]\n";
    let accounts = accounts(", models: [own]");
    let node = Node::start(&format!("{accounts}models:\n{models}{tasks}")).await;
    let answer = node.post_as(KEY, CHAT, &body("chat")).await;
    assert_eq!(
        (answer.status, answer.header("x-infergate-model")),
        (200, Some("own")),
        "{}",
        answer.text()
    );
    assert_eq!(node.post_as(KEY, CHAT, &body("closed")).await.status, 403);
    assert!(other.requests().is_empty());
    assert_eq!(
        listed(&get(&node, KEY, "/v1/models").await.json()),
        ["own", "chat"]
    );
}
