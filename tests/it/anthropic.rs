//! The Anthropic API in front of OpenAI-style servers.

use serde_json::{Value, json};

use crate::nodes::{member, wait_until_serving_known};
use crate::support::{
    ANSWER, Cluster, Node, RefusingServer, STREAM_HEAD, ScriptedServer, SimulatedServer,
    TestResponse, accounts, chunk, endpoint, eventually, json_answer, model, one_model,
};

const MESSAGES: &str = "/v1/messages";
const KEY: &str = "x-api-key: key-a\r\nanthropic-version: 2023-06-01\r\n";
const DONE: &str = "data: [DONE]\n\n";
const STREAM: &str = r#","stream":true"#;

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

/// Checks that an error has the form of the API, with this status and type.
fn is_error(answer: &TestResponse, status: u16, expected: &str) {
    assert_eq!(answer.status, status, "{}", answer.text());
    let error = answer.json();
    assert_eq!(error["type"], "error");
    assert_eq!(error["error"]["type"], expected, "{error}");
    assert_eq!(error["request_id"].as_str(), answer.header("request-id"));
}

/// A stream of one text from the model server.
fn stream_of(text: &str) -> String {
    format!(
        "{STREAM_HEAD}{}{}{}0\r\n\r\n",
        delta(&format!("{{\"content\":\"{text}\"}}"), "null"),
        delta("{}", "\"stop\""),
        chunk(DONE)
    )
}

/// Events of a stream but for its signs of life.
fn messages(answer: &TestResponse) -> Vec<Value> {
    let events = answer.events();
    let events = events.iter().map(|event| serde_json::from_str(event));
    let events = events.map(|event: Result<Value, _>| event.unwrap());
    events.filter(|event| event["type"] != "ping").collect()
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
    client.post("", MESSAGES, &question(STREAM)).await;
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
    let answer = node.post(MESSAGES, &question(STREAM)).await;
    assert!(
        answer.text().contains("event: error\n"),
        "{}",
        answer.text()
    );
    assert_eq!(kinds(&answer).last().unwrap(), "error");
    assert_eq!(node.event_of(&answer).await["outcome"], "cut-by-backend");
}

#[tokio::test]
async fn an_answer_that_the_server_gave_up_is_an_error() {
    let choice = json!({ "finish_reason": "abort", "message": { "content": "half" } });
    let body = json!({ "choices": [choice] }).to_string();
    let server = ScriptedServer::new(&[&json_answer(&body)]).await;
    let node = Node::start(&one_model(server.address, 1, "")).await;
    let answer = node.post(MESSAGES, &question("")).await;
    is_error(&answer, 502, "api_error");
    assert_eq!(server.requests().len(), 1);
    let text = delta(r#"{"content":"half"}"#, "null");
    let stream = format!(
        "{STREAM_HEAD}{text}{}{}0\r\n\r\n",
        delta("{}", "\"abort\""),
        chunk(DONE)
    );
    let server = ScriptedServer::new(&[&stream]).await;
    let node = Node::start(&one_model(server.address, 1, "")).await;
    let answer = node.post(MESSAGES, &question(STREAM)).await;
    assert!(answer.text().contains("half"), "{}", answer.text());
    assert_eq!(kinds(&answer).last().unwrap(), "error");
    assert_eq!(node.event_of(&answer).await["outcome"], "cut-by-backend");
}

#[tokio::test]
async fn errors_have_the_form_and_the_status_of_the_api() {
    let server = ScriptedServer::held().await;
    let more = "    queue: { algorithm: fifo, capacity: 0 }\n";
    let config = format!("{}{}", accounts(""), one_model(server.address, 1, more));
    let node = Node::start(&config).await;
    let refused = node.post(MESSAGES, &question("")).await;
    is_error(&refused, 401, "authentication_error");
    let counted = format!("{MESSAGES}/count_tokens");
    let refused = node.post_as(KEY, &counted, &question("")).await;
    is_error(&refused, 404, "not_found_error");
    let odd = r#"{"model":"m","messages":[{"role":"user","content":[{"type":"document"}]}]}"#;
    let refused = node.post_as(KEY, MESSAGES, odd).await;
    is_error(&refused, 400, "invalid_request_error");
    assert!(refused.text().contains("/messages/0/content/0/type: "));
    let mut holder = node.client().await;
    holder.post(KEY, MESSAGES, &question("")).await;
    eventually("the permit is taken", async || {
        (server.open() == 1).then_some(())
    })
    .await;
    let refused = node.post_as(KEY, MESSAGES, &question("")).await;
    is_error(&refused, 529, "overloaded_error");
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
    let answer = node.post(MESSAGES, &question(STREAM)).await;
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

#[tokio::test]
async fn the_trace_of_a_message_is_that_of_any_request() {
    let server = ScriptedServer::held().await;
    let more = "    queue: { algorithm: fifo, capacity: 0 }\n    aliases: [n]\n";
    let config = accounts("") + &one_model(server.address, 1, more);
    let node = Node::start(&config).await;
    let mut holder = node.client().await;
    let by_alias = question("").replace("\"m\"", "\"n\"");
    holder.post(KEY, MESSAGES, &by_alias).await;
    node.settles(1, 0).await;
    let refused = node.post_as(KEY, MESSAGES, &question("")).await;
    is_error(&refused, 529, "overloaded_error");
    let trace = node.explain(refused.header("request-id").unwrap()).await;
    assert_eq!(trace["face"], "anthropic");
    assert_eq!(
        (&trace["status"], &trace["outcome"]),
        (&json!(529), &json!("refused"))
    );
    assert_eq!(trace["refusal"]["cause"], "queue-full", "{trace}");
    assert_eq!(
        trace["refusal"]["message"],
        refused.json()["error"]["message"]
    );
    server.next();
    let answer = holder.response().await;
    assert_eq!(answer.status, 200);
    let trace = node.explain(answer.header("request-id").unwrap()).await;
    for (name, value) in [
        ("face", json!("anthropic")),
        ("account", json!("a")),
        ("model", json!("m")),
        ("requested_model", json!("n")),
        ("status", json!(200)),
        ("outcome", json!("completed")),
        ("streamed", json!(false)),
        ("refusal", Value::Null),
    ] {
        assert_eq!(trace[name], value, "{name}");
    }
    let steps = trace["steps"].as_array().unwrap();
    let kinds: Vec<&Value> = steps.iter().map(|step| &step["step"]).collect();
    assert_eq!(kinds, ["admission", "attempt"]);
    assert_eq!(steps[1]["result"], "answered");
    // Neither what was asked nor by which key.
    let text = trace.to_string();
    assert!(
        !text.contains("be kind") && !text.contains("key-a"),
        "{text}"
    );
}

#[tokio::test]
async fn a_fallback_answers_in_the_form_of_the_api_and_is_named() {
    let gone = RefusingServer::new();
    let whole = ANSWER.replace(r#""model":"m""#, r#""model":"/srv/n.gguf""#);
    for (more, answer) in [("", json_answer(&whole)), (STREAM, stream_of("t1"))] {
        let second = ScriptedServer::new(&[&answer]).await;
        let first = model(
            "m",
            &[endpoint(gone.address, 1)],
            "    fallbacks: [n]\n    model_in_answers: asked\n",
        );
        let named = "    model_in_answers: asked\n";
        let below = model("n", &[endpoint(second.address, 1)], named);
        let node = Node::start(&format!("models:\n{first}{below}")).await;
        let answer = node.post(MESSAGES, &question(more)).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!(answer.header("x-infergate-model"), Some("n"));
        assert_eq!(answer.header("request-id"), answer.header("x-request-id"));
        let message = match more.is_empty() {
            true => answer.json(),
            false => {
                let events = messages(&answer);
                assert_eq!(events.last().unwrap()["type"], "message_stop");
                assert_eq!(events[2]["delta"]["text"], "t1", "{events:?}");
                events[0]["message"].clone()
            }
        };
        assert_eq!(message["type"], "message", "{message}");
        assert_eq!(message["model"], "m", "{message}");
        let request = &second.requests()[0];
        assert!(
            request.contains(r#""role":"system","content":"be kind""#),
            "{request}"
        );
        assert!(request.contains(r#""model":"n""#), "{request}");
        let event = node.event_of(&answer).await;
        assert_eq!(event["face"], "anthropic");
        assert_eq!(
            (&event["model_id"], &event["asked_model_id"]),
            (&json!("n"), &json!("m"))
        );
        let trace = node.explain(answer.header("request-id").unwrap()).await;
        let steps = trace["steps"].as_array().unwrap();
        let fallback = steps.iter().find(|step| step["step"] == "fallback");
        assert_eq!(fallback.unwrap()["to"], "n", "{trace}");
    }
}

#[tokio::test]
async fn a_fallback_that_cannot_serve_either_is_an_error_of_the_api() {
    let gone = [RefusingServer::new(), RefusingServer::new()];
    let first = model("m", &[endpoint(gone[0].address, 1)], "    fallbacks: [n]\n");
    let below = model("n", &[endpoint(gone[1].address, 1)], "");
    let node = Node::start(&format!("models:\n{first}{below}")).await;
    for more in ["", STREAM] {
        let refused = node.post(MESSAGES, &question(more)).await;
        let status = refused.status;
        let kind = match status {
            529 => "overloaded_error",
            _ => "api_error",
        };
        assert!([502, 529].contains(&status), "{}", refused.text());
        is_error(&refused, status, kind);
        assert!(!refused.text().contains("127.0.0.1"), "{}", refused.text());
    }
}

/// A node without servers, and one that serves `m` on `server` with one permit and no queue.
async fn edge_before(server: &ScriptedServer) -> Cluster {
    let nowhere = "models:\n  - { id: m, task: text-generation, backend: openai, endpoints: [] }\n";
    let queue = "    queue: { capacity: 0, total_capacity: 0 }\n";
    let members = [
        member("edge", "fra", nowhere),
        member("gpu", "ams", &one_model(server.address, 1, queue)),
    ];
    let cluster = Cluster::start(&members).await;
    wait_until_serving_known(&cluster.nodes[0], "gpu").await;
    cluster
}

#[tokio::test]
async fn another_node_serves_messages_whole_and_streamed() {
    for (more, piece) in [("", json_answer(ANSWER)), (STREAM, stream_of("t1"))] {
        let server = ScriptedServer::new(&[&piece]).await;
        let cluster = edge_before(&server).await;
        let (edge, gpu) = (&cluster.nodes[0], &cluster.nodes[1]);
        let answer = edge.post(MESSAGES, &question(more)).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!(answer.header("request-id"), answer.header("x-request-id"));
        if more.is_empty() {
            let content = json!([{ "type": "text", "text": "a" }]);
            assert_eq!(answer.json()["content"], content);
        } else {
            assert!(answer.is_event_stream() && !answer.broken);
            let events = messages(&answer);
            let kinds: Vec<&Value> = events.iter().map(|event| &event["type"]).collect();
            assert_eq!(
                kinds,
                [
                    "message_start",
                    "content_block_start",
                    "content_block_delta",
                    "content_block_stop",
                    "message_delta",
                    "message_stop",
                ]
            );
        }
        // Translated once, at the node that serves.
        let request = &server.requests()[0];
        assert_eq!(request.matches("be kind").count(), 1, "{request}");
        let event = gpu.event_of(&answer).await;
        assert_eq!(event["face"], "anthropic");
        assert_eq!(event["path"], json!(["fra/edge", "ams/gpu"]));
        let trace = edge.explain(answer.header("request-id").unwrap()).await;
        assert_eq!(trace["face"], "anthropic");
        assert_eq!(trace["nodes"]["gpu"]["face"], "anthropic", "{trace}");
    }
}

#[tokio::test]
async fn errors_of_another_node_have_the_form_of_the_api() {
    let odd = r#"{"error":{"message":"too many images","type":"BadRequestError","code":400}}"#;
    let answer = json_answer(odd).replace("200 OK", "400 Bad Request");
    let server = ScriptedServer::new(&["", &answer]).await;
    let cluster = edge_before(&server).await;
    let edge = &cluster.nodes[0];
    let mut holder = edge.client().await;
    holder.post("", MESSAGES, &question("")).await;
    cluster.nodes[1].settles(1, 0).await;
    let refused = edge.post(MESSAGES, &question(STREAM)).await;
    is_error(&refused, 529, "overloaded_error");
    assert!(refused.header("retry-after").is_some());
    server.next();
    let refused = holder.response().await;
    is_error(&refused, 400, "invalid_request_error");
    assert!(
        refused.text().contains("too many images"),
        "{}",
        refused.text()
    );
}

#[tokio::test]
async fn a_stream_that_breaks_off_at_another_node_ends_with_an_error_event() {
    let first = format!("{STREAM_HEAD}{}", delta(r#"{"content":"t1"}"#, "null"));
    let server = ScriptedServer::closing(&[&first]).await;
    let cluster = edge_before(&server).await;
    let answer = cluster.nodes[0].post(MESSAGES, &question(STREAM)).await;
    let events = messages(&answer);
    assert_eq!(events.last().unwrap()["type"], "error", "{events:?}");
    assert_eq!(
        kinds(&answer)
            .iter()
            .filter(|kind| *kind == "error")
            .count(),
        1
    );
    let event = cluster.nodes[1].event_of(&answer).await;
    assert_eq!(event["outcome"], "cut-by-backend");
}
