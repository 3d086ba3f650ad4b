//! The Anthropic API in front of OpenAI-style servers.

use serde_json::{Value, json};

use crate::support::{
    ANSWER, Node, STREAM_HEAD, ScriptedServer, SimulatedServer, TestResponse, accounts, chunk,
    eventually, json_answer, one_model,
};

const MESSAGES: &str = "/v1/messages";
const KEY: &str = "x-api-key: key-a\r\nanthropic-version: 2023-06-01\r\n";
const DONE: &str = "data: [DONE]\n\n";

fn question(more: &str) -> String {
    format!(
        r#"{{"model":"m","max_tokens":9,"system":"be kind","messages":[{{"role":"user","content":"hi"}}]{more}}}"#
    )
}

fn delta(delta: &str, finish_reason: &str) -> String {
    chunk(&format!(
        "data: {{\"id\":\"c\",\"model\":\"m\",\"choices\":[{{\"index\":0,\"delta\":{delta},\"finish_reason\":{finish_reason}}}]}}\n\n"
    ))
}

fn kinds(answer: &TestResponse) -> Vec<String> {
    let kind = |event: &String| {
        let event: Value = serde_json::from_str(event).unwrap();
        event["type"].as_str().unwrap().to_owned()
    };
    answer.events().iter().map(kind).collect()
}

#[tokio::test]
async fn a_message_is_a_chat_to_the_server_and_an_event_of_its_own_api() {
    let server = ScriptedServer::new(&[&json_answer(ANSWER)]).await;
    let config = format!("{}{}", accounts(""), one_model(server.address, 1, ""));
    let node = Node::start(&config).await;
    let answer = node.post_as(KEY, MESSAGES, &question("")).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.header("request-id"), answer.header("x-request-id"));
    let message = answer.json();
    assert_eq!(message["content"], json!([{ "type": "text", "text": "a" }]));
    assert_eq!(message["stop_reason"], "end_turn");
    assert_eq!(message["usage"]["input_tokens"], 3);
    let sent = &server.requests()[0];
    assert!(sent.starts_with("POST /v1/chat/completions "), "{sent}");
    assert!(!sent.contains("key-a"), "{sent}");
    let body: Value = serde_json::from_str(sent.split_once("\r\n\r\n").unwrap().1).unwrap();
    let messages = json!([
        { "role": "system", "content": "be kind" },
        { "role": "user", "content": "hi" },
    ]);
    assert_eq!(
        body,
        json!({ "model": "m", "max_tokens": 9, "messages": messages })
    );
    let event = node.event_of(&answer).await;
    assert_eq!(event["face"], "anthropic");
    assert_eq!(event["metrics"]["output_tokens"], 1);
}

#[tokio::test]
async fn a_stream_is_translated_event_by_event_with_pings_as_signs_of_life() {
    let usage =
        chunk("data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":2}}\n\n");
    let first = format!("{STREAM_HEAD}{}", delta(r#"{"content":"t1"}"#, "null"));
    let rest = format!(
        "{}{}{usage}{}0\r\n\r\n",
        delta(r#"{"content":"t2"}"#, "null"),
        delta("{}", "\"length\""),
        chunk(DONE)
    );
    let server = ScriptedServer::new(&["", &first, &rest]).await;
    let more = "    queue_heartbeat_secs: 1\n    progress_comments: true\n";
    let node = Node::start(&one_model(server.address, 1, more)).await;
    let mut client = node.client().await;
    client
        .post("", MESSAGES, &question(r#","stream":true"#))
        .await;
    client.saw("event: ping\n").await;
    server.next();
    client.saw("event: content_block_delta\n").await;
    client.saw("\"t1\"").await;
    server.next();
    let answer = client.response().await;
    assert!(answer.is_event_stream() && !answer.broken);
    assert!(answer.header("request-id").is_some());
    let events = kinds(&answer);
    let events: Vec<_> = events.iter().filter(|kind| *kind != "ping").collect();
    assert_eq!(
        events,
        [
            "message_start",
            "content_block_start",
            "content_block_delta",
            "content_block_delta",
            "content_block_stop",
            "message_delta",
            "message_stop",
        ]
    );
    let last: Value = serde_json::from_str(&answer.events()[answer.events().len() - 2]).unwrap();
    assert_eq!(last["delta"]["stop_reason"], "max_tokens");
    assert_eq!(last["usage"]["output_tokens"], 2);
    let event = node.event_of(&answer).await;
    assert_eq!(event["outcome"], "completed");
    assert_eq!(event["metrics"]["input_tokens"], 7);
}

#[tokio::test]
async fn a_stream_that_breaks_off_ends_with_an_error_event() {
    let first = format!("{STREAM_HEAD}{}", delta(r#"{"content":"t1"}"#, "null"));
    let server = ScriptedServer::closing(&[&first]).await;
    let node = Node::start(&one_model(server.address, 1, "")).await;
    let answer = node.post(MESSAGES, &question(r#","stream":true"#)).await;
    assert!(
        answer.text().contains("event: error\n"),
        "{}",
        answer.text()
    );
    assert_eq!(kinds(&answer).last().unwrap(), "error");
    assert_eq!(node.event_of(&answer).await["outcome"], "cut-by-backend");
}

#[tokio::test]
async fn errors_have_the_form_and_the_status_of_the_api() {
    let server = ScriptedServer::held().await;
    let more = "    queue: { algorithm: fifo, capacity: 0 }\n";
    let config = format!("{}{}", accounts(""), one_model(server.address, 1, more));
    let node = Node::start(&config).await;
    let kind = |answer: &TestResponse, status: u16, expected: &str| {
        assert_eq!(answer.status, status, "{}", answer.text());
        let error = answer.json();
        assert_eq!(error["type"], "error");
        assert_eq!(error["error"]["type"], expected, "{error}");
        assert_eq!(error["request_id"].as_str(), answer.header("request-id"));
    };
    let refused = node.post(MESSAGES, &question("")).await;
    kind(&refused, 401, "authentication_error");
    let counted = format!("{MESSAGES}/count_tokens");
    let refused = node.post_as(KEY, &counted, &question("")).await;
    kind(&refused, 404, "not_found_error");
    let odd = r#"{"model":"m","messages":[{"role":"user","content":[{"type":"document"}]}]}"#;
    let refused = node.post_as(KEY, MESSAGES, odd).await;
    kind(&refused, 400, "invalid_request_error");
    assert!(refused.text().contains("/messages/0/content/0/type: "));
    let mut holder = node.client().await;
    holder.post(KEY, MESSAGES, &question("")).await;
    eventually("the permit is taken", async || {
        (server.open() == 1).then_some(())
    })
    .await;
    let refused = node.post_as(KEY, MESSAGES, &question("")).await;
    kind(&refused, 529, "overloaded_error");
    assert!(refused.header("retry-after").is_some());
    server.next();
    assert_eq!(holder.response().await.status, 200);
}

#[tokio::test]
async fn messages_are_answered_below_an_account_as_well() {
    let server = SimulatedServer::fast().await;
    let node = Node::start(&one_model(server.address, 1, "")).await;
    let answer = node.post(MESSAGES, &question("")).await;
    assert_eq!(answer.json()["type"], "message", "{}", answer.text());
    let answer = node.post(MESSAGES, &question(r#","stream":true"#)).await;
    assert_eq!(kinds(&answer).last().unwrap(), "message_stop");
    let below = "/client/v4/accounts/anonymous/ai/v1/messages";
    assert_eq!(node.post(below, &question("")).await.status, 200);
}

#[tokio::test]
async fn a_model_has_the_name_it_was_asked_by_in_whole_messages_too() {
    let served = ANSWER.replace(r#""model":"m""#, r#""model":"/srv/q4.gguf""#);
    let server = ScriptedServer::new(&[&json_answer(&served)]).await;
    let more = "    model_in_answers: asked\n";
    let node = Node::start(&one_model(server.address, 1, more)).await;
    let answer = node.post(MESSAGES, &question("")).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.json()["model"], "m");
    assert_eq!(answer.json()["content"][0]["text"], "a");
}
