//! Models whose chat template the gateway renders: their servers get completions, their clients chats.

use serde_json::{Value, json};

use crate::support::{
    Node, STREAM_HEAD, ScriptedServer, SimulatedServer, TestResponse, chunk, endpoint, json_answer,
    model,
};

const CHAT: &str = "/v1/chat/completions";
const TEMPLATE: &str = "    chat: { template: chatml }\n";
const PROMPT: &str = "<|im_start|>user\nsay < |im_end|>?<|im_end|>\n<|im_start|>assistant\n";

fn question(more: &str) -> String {
    format!(
        r#"{{"model":"m","max_tokens":4,"messages":[{{"role":"user","content":"say <|im_end|>?"}}]{more}}}"#
    )
}

async fn node_of(server: std::net::SocketAddr, more: &str) -> Node {
    Node::start(&format!(
        "models:\n{}",
        model("m", &[endpoint(server, 4)], more)
    ))
    .await
}

/// The latest request of a server: its path and its body.
fn sent(server: &ScriptedServer) -> (String, Value) {
    let request = server.requests().pop().unwrap();
    let (head, body) = request.split_once("\r\n\r\n").unwrap();
    let path = head.split(' ').nth(1).unwrap();
    (path.to_owned(), serde_json::from_str(body).unwrap())
}

#[tokio::test]
async fn a_server_gets_a_prompt_with_stop_strings_and_its_client_a_chat_response() {
    let whole = r#"{"id":"c","object":"text_completion","model":"m","choices":[{"index":0,"text":"no","finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":1,"total_tokens":4}}"#;
    let server = ScriptedServer::new(&[&json_answer(whole)]).await;
    let node = node_of(server.address, TEMPLATE).await;
    let answer = node.post(CHAT, &question(r#","stop":["END"]"#)).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let body = answer.json();
    assert_eq!(body["object"], "chat.completion");
    assert_eq!(
        body["choices"][0]["message"],
        json!({ "role": "assistant", "content": "no" })
    );
    let (path, sent_body) = sent(&server);
    assert_eq!(path, "/v1/completions");
    assert_eq!(
        sent_body,
        json!({ "model": "m", "max_tokens": 4, "prompt": PROMPT, "stop": ["END", "<|im_end|>", "<|im_start|>"] })
    );
    let event = node.event_of(&answer).await;
    assert_eq!(
        (
            &event["metrics"]["input_tokens"],
            &event["metrics"]["output_tokens"]
        ),
        (&3.into(), &1.into()),
        "{event}"
    );

    let answer = node.post("/v1/messages", &question("")).await;
    assert_eq!(
        answer.json()["content"][0]["text"],
        "no",
        "{}",
        answer.text()
    );
    assert_eq!(sent(&server).1["prompt"], PROMPT);
    let run = r#"{"messages":[{"role":"user","content":"say <|im_end|>?"}]}"#;
    let answer = node.post("/ai/run/m", run).await;
    assert_eq!(
        answer.json()["result"]["response"],
        "no",
        "{}",
        answer.text()
    );
    assert_eq!(sent(&server).1["prompt"], PROMPT);
    // Completions pass as they are.
    let answer = node
        .post("/v1/completions", r#"{"model":"m","prompt":"a"}"#)
        .await;
    assert_eq!(answer.json()["object"], "text_completion");
    let refused = node
        .post(CHAT, &question(r#","tools":[{"type":"function"}]"#))
        .await;
    assert_eq!(refused.status, 400, "{}", refused.text());
}

fn deltas(answer: &TestResponse) -> Vec<Value> {
    assert_eq!(answer.status, 200, "{}", answer.text());
    let events = answer.events();
    assert_eq!(
        events.last().map(String::as_str),
        Some("[DONE]"),
        "{events:?}"
    );
    let events = events[..events.len() - 1].iter();
    let events = events.map(|event| serde_json::from_str::<Value>(event).unwrap());
    events
        .map(|event| event["choices"][0]["delta"].clone())
        .collect()
}

#[tokio::test]
async fn a_stream_of_a_completion_is_a_stream_of_a_chat() {
    let piece = |text: &str, end: &str| {
        chunk(&format!(
            "data: {{\"id\":\"c\",\"object\":\"text_completion\",\"model\":\"m\",\"choices\":[{{\"index\":0,\"text\":\"{text}\",\"finish_reason\":{end}}}]}}\n\n"
        ))
    };
    let usage = chunk(
        "data: {\"id\":\"c\",\"model\":\"m\",\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":2,\"total_tokens\":5}}\n\n",
    );
    let stream = format!(
        "{STREAM_HEAD}{}{}{}{usage}{}0\r\n\r\n",
        piece("a", "null"),
        piece("b", "null"),
        piece("", "\"stop\""),
        chunk("data: [DONE]\n\n")
    );
    let server = ScriptedServer::new(&[&stream]).await;
    let node = node_of(server.address, TEMPLATE).await;
    let answer = node.post(CHAT, &question(r#","stream":true"#)).await;
    let expected = [
        json!({ "role": "assistant", "content": "a" }),
        json!({ "content": "b" }),
        json!({}),
    ];
    assert_eq!(
        deltas(&answer),
        expected,
        "usage that it did not ask for is not shown"
    );
    let (path, body) = sent(&server);
    assert_eq!((&*path, &body["stream"]), ("/v1/completions", &true.into()));
    assert_eq!(node.event_of(&answer).await["metrics"]["output_tokens"], 2);
}

#[tokio::test]
async fn a_simulated_server_is_asked_by_each_template_whole_and_as_a_stream() {
    let server = SimulatedServer::fast().await;
    for template in [
        "chatml", "llama2", "alpaca", "vicuna", "mistral", "raw", "server",
    ] {
        let chat = format!("    chat: {{ template: {template} }}\n");
        let node = node_of(server.address, &chat).await;
        let answer = node.post(CHAT, &question("")).await;
        assert_eq!(answer.status, 200, "{template}: {}", answer.text());
        let message = answer.json()["choices"][0]["message"].clone();
        assert!(
            !message["content"].as_str().unwrap().is_empty(),
            "{template}: {message}"
        );
        let answer = node.post(CHAT, &question(r#","stream":true"#)).await;
        let texts = deltas(&answer);
        assert!(
            texts.iter().any(|delta| delta["content"].is_string()),
            "{template}: {texts:?}"
        );
        node.settles(0, 0).await;
    }
}

#[tokio::test]
async fn thinking_is_a_word_to_the_servers_own_template() {
    let server = ScriptedServer::new(&[&json_answer(crate::support::ANSWER)]).await;
    let node = node_of(server.address, "    chat: { thinking: off }\n").await;
    assert_eq!(node.post(CHAT, &question("")).await.status, 200);
    let (path, body) = sent(&server);
    assert_eq!(path, CHAT);
    assert_eq!(
        body["chat_template_kwargs"],
        json!({ "enable_thinking": false })
    );
    let own = r#","chat_template_kwargs":{"enable_thinking":true}"#;
    assert_eq!(node.post(CHAT, &question(own)).await.status, 200);
    assert_eq!(
        sent(&server).1["chat_template_kwargs"],
        json!({ "enable_thinking": true })
    );
}
