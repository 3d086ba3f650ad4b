//! Answers on their way: piece by piece, whole or visibly not, and billed for what was made.

use serde_json::Value;

use crate::support::{
    Node, STREAM_HEAD, ScriptedServer, TestClient, chat, chunk, eventually, json_answer, model_of,
    one_model,
};

const CHAT: &str = "/v1/chat/completions";
const IDLE: &str = "timeouts: { stream_idle_secs: 1 }\n";
const DONE: &str = "data: [DONE]\n\n";
const USAGE: &str =
    "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":2}}\n\n";

fn token(text: &str) -> String {
    format!("data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"{text}\"}}}}]}}\n\n")
}

fn stream_chat() -> String {
    chat("m", r#","stream":true"#)
}

async fn ask_for_stream(node: &Node) -> TestClient {
    let mut client = node.client().await;
    client.post("", CHAT, &stream_chat()).await;
    client
}

#[tokio::test]
async fn every_piece_reaches_the_client_before_the_next_one_is_made() {
    let tokens: Vec<String> = (0..8).map(|n| chunk(&token(&format!("t{n}")))).collect();
    let mut pieces = vec![STREAM_HEAD];
    pieces.extend(tokens.iter().map(String::as_str));
    let done = format!("{}0\r\n\r\n", chunk(DONE));
    pieces.push(&done);
    let backend = ScriptedServer::new(&pieces).await;
    let node = Node::start(&one_model(backend.address, 1, "")).await;
    let mut client = ask_for_stream(&node).await;
    for n in 0..8 {
        backend.next();
        client.saw(&format!("\"t{n}\"")).await;
        assert!(!String::from_utf8_lossy(client.pending()).contains(&format!("\"t{}\"", n + 1)));
        assert_eq!(node.permits_used().await, 1, "held until the last byte");
    }
    backend.next();
    let answer = client.response().await;
    assert_eq!(answer.events().len(), 9);
    assert_eq!(answer.header("cache-control"), None, "the server sent none");
    node.idle().await;
}

#[tokio::test]
async fn workers_ai_pieces_come_one_by_one_too() {
    let (first, second) = (chunk(&token("t1")), chunk(&token("t2")));
    let end = format!("{}{}0\r\n\r\n", chunk(USAGE), chunk(DONE));
    let backend = ScriptedServer::new(&[STREAM_HEAD, &first, &second, &end]).await;
    let node = Node::start(&one_model(backend.address, 1, "")).await;
    let mut client = node.client().await;
    client
        .post("", "/ai/run/m", r#"{"prompt":"hi","stream":true}"#)
        .await;
    backend.next();
    client.saw(r#"data: {"response":"t1"}"#).await;
    backend.next();
    client.saw(r#"data: {"response":"t2"}"#).await;
    backend.next();
    assert_eq!(client.response().await.events().last().unwrap(), "[DONE]");
    assert_eq!(node.events(1).await[0]["metrics"]["output_tokens"], 2);
}

/// Ways a server breaks off after its first token, as what follows the token.
fn breaks() -> [(&'static str, &'static str); 6] {
    [
        ("closes between chunks", ""),
        ("closes within a chunk", "40\r\ndata: {\"choices\""),
        ("closes within a chunk size", "4"),
        ("sends a chunk size that is none", "zz\r\n"),
        ("ends in good order without the end mark", "0\r\n\r\n"),
        (
            "ends in good order within an event",
            "5\r\ndata:\r\n0\r\n\r\n",
        ),
    ]
}

#[tokio::test]
async fn a_stream_that_breaks_off_ends_with_an_error_event_and_never_with_done() {
    for (path, body, code) in [
        (CHAT, stream_chat(), r#""code":"upstream_failed""#),
        (
            "/ai/run/m",
            r#"{"prompt":"hi","stream":true}"#.to_owned(),
            r#""code":3050"#,
        ),
    ] {
        for (how, rest) in breaks() {
            let start = format!("{STREAM_HEAD}{}", chunk(&token("t1")));
            let backend = ScriptedServer::closing(&[&start, rest]).await;
            let node = Node::start(&one_model(backend.address, 1, "")).await;
            let mut client = node.client().await;
            client.post("", path, &body).await;
            client.saw("t1").await;
            backend.next();
            let answer = client.response().await;
            let name = format!("{path}: {how}: {}", answer.text());
            assert_eq!(answer.status, 200, "{name}");
            assert!(!answer.broken, "{name}");
            let last = answer.events().pop().unwrap();
            assert!(last.contains(code), "{name}");
            serde_json::from_str::<Value>(&last).unwrap();
            assert!(!answer.text().contains("[DONE]"), "{name}");
            let event = node.events(1).await.remove(0);
            assert_eq!(event["outcome"], "cut-by-backend", "{name}");
            assert_eq!(event["error_code"], "3050", "{name}");
            assert_eq!(event["status"], 200, "{name}");
            node.idle().await;
        }
    }
}

#[tokio::test]
async fn a_stream_that_breaks_off_together_with_its_first_event_gives_that_event_and_an_error() {
    for (how, rest) in breaks() {
        let all = format!("{STREAM_HEAD}{}{rest}", chunk(&token("t1")));
        let backend = ScriptedServer::closing(&[&all]).await;
        let node = Node::start(&one_model(backend.address, 1, "")).await;
        let answer = node.post(CHAT, &stream_chat()).await;
        assert!(!answer.broken, "{how}");
        assert_eq!(answer.status, 200, "{how}");
        let text = answer.text();
        assert!(
            text.contains("t1") && text.contains("upstream_failed"),
            "{how}: {text}"
        );
        assert!(!text.contains("[DONE]"), "{how}: {text}");
    }
}

#[tokio::test]
async fn events_that_arrive_together_with_the_break_are_passed_on_before_it_is_told() {
    for path in [CHAT, "/ai/run/m"] {
        let start = format!("{STREAM_HEAD}{}", chunk(&token("t1")));
        let rest = format!("{}zz\r\n", chunk(&token("t2")));
        let backend = ScriptedServer::closing(&[&start, &rest]).await;
        let node = Node::start(&one_model(backend.address, 1, "")).await;
        let mut client = node.client().await;
        let body = r#"{"model":"m","prompt":"hi","messages":[],"stream":true}"#;
        let body = if path == CHAT {
            body
        } else {
            r#"{"prompt":"hi","stream":true}"#
        };
        client.post("", path, body).await;
        client.saw("t1").await;
        backend.next();
        let answer = client.response().await;
        let events = answer.events();
        assert_eq!(events.len(), 3, "{path}: {events:?}");
        assert!(events[1].contains("t2"), "{path}: {}", events[1]);
    }
}

#[tokio::test]
async fn a_stream_that_falls_silent_is_cut_after_the_idle_time() {
    let start = format!("{STREAM_HEAD}{}", chunk(&token("t1")));
    let backend = ScriptedServer::new(&[&start, "never"]).await;
    let node = Node::start(&format!("{IDLE}{}", one_model(backend.address, 1, ""))).await;
    let answer = node.post(CHAT, &stream_chat()).await;
    assert!(!answer.broken);
    let events = answer.events();
    assert_eq!(events.len(), 2);
    assert!(events[1].contains("upstream_failed"), "{}", events[1]);
    assert_eq!(node.events(1).await[0]["outcome"], "cut-by-backend");
    eventually("the server is let go", async || {
        (backend.gone() == 1).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_servers_own_error_in_its_stream_is_told_in_the_dialect() {
    let error = "data: {\"error\":{\"message\":\"at /opt/x.py\",\"code\":500}}\n\n";
    let start = format!("{STREAM_HEAD}{}", chunk(&token("t1")));
    let rest = format!("{}{}0\r\n\r\n", chunk(error), chunk(DONE));
    let backend = ScriptedServer::new(&[&start, &rest]).await;
    let node = Node::start(&one_model(backend.address, 1, "")).await;
    let mut client = ask_for_stream(&node).await;
    client.saw("t1").await;
    backend.next();
    let answer = client.response().await;
    let text = answer.text();
    assert!(!answer.broken);
    assert!(
        text.contains("t1") && text.contains("upstream_failed"),
        "{text}"
    );
    assert!(!text.contains("/opt") && !text.contains("[DONE]"), "{text}");
    assert_eq!(node.events(1).await[0]["outcome"], "cut-by-backend");
}

#[tokio::test]
async fn a_whole_answer_cut_short_never_looks_complete() {
    let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n";
    let length = format!("{head}Content-Length: 40\r\n\r\n{{\"object\":\"chat");
    let chunks = format!("{head}Transfer-Encoding: chunked\r\n\r\n10\r\n{{\"object\":\"chat.");
    let garbage = format!("{head}Transfer-Encoding: chunked\r\n\r\n5\r\n{{\"a\":\r\nzz\r\n");
    for start in [&length, &chunks, &garbage] {
        let backend = ScriptedServer::closing(&[start]).await;
        let node = Node::start(&one_model(backend.address, 1, "")).await;
        let answer = node.post(CHAT, &chat("m", "")).await;
        // Either nothing had been sent and it is a failure with a status, or the framing breaks.
        assert!(answer.status == 502 || answer.broken, "{answer:?}");
        let event = node.events(1).await.remove(0);
        let outcome = if answer.broken {
            "cut-by-backend"
        } else {
            "failed"
        };
        assert_eq!(event["outcome"], outcome, "{event}");
        assert_eq!(event["error_code"], "3050", "{event}");
    }
}

#[tokio::test]
async fn a_converted_answer_cut_short_is_a_failure_with_a_status() {
    let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 90\r\n\r\n";
    let backend = ScriptedServer::closing(&[&format!("{head}{{\"choices\":[")]).await;
    let node = Node::start(&one_model(backend.address, 1, "")).await;
    let answer = node.post("/ai/run/m", r#"{"prompt":"hi"}"#).await;
    assert_eq!(answer.status, 502);
    assert_eq!(answer.json()["errors"][0]["code"], 3050);
}

#[tokio::test]
async fn an_answer_of_the_wrong_shape_is_a_failure_with_a_status() {
    for wrong in ["[]", "{}", "not json", r#"{"choices":"x"}"#] {
        let backend = ScriptedServer::new(&[&json_answer(wrong)]).await;
        let node = Node::start(&one_model(backend.address, 1, "")).await;
        let answer = node.post("/ai/run/m", r#"{"prompt":"hi"}"#).await;
        assert_eq!(answer.status, 502, "{wrong}: {}", answer.text());
        assert_eq!(answer.json()["errors"][0]["code"], 3050, "{wrong}");
    }
}

#[tokio::test]
async fn an_answer_that_fits_no_task_is_not_blamed_on_a_plugin_where_there_is_none() {
    let backend = ScriptedServer::new(&[&json_answer("{\"odd\":1}")]).await;
    let node = Node::start(&format!(
        "models:\n{}",
        model_of("m", "text-generation", "http", backend.address)
    ))
    .await;
    let failed = node.post("/ai/run/m", r#"{"prompt":"hi"}"#).await;
    assert_eq!(failed.status, 502, "{}", failed.text());
    let text = failed.text();
    assert!(
        text.contains("does not fit the task") && !text.contains("plugin"),
        "{text}"
    );
    let event = node.event_of(&failed).await;
    assert_eq!(
        (&event["reason"], &event["neurons"]),
        (&"upstream_failed".into(), &serde_json::Value::Null)
    );
}

#[tokio::test]
async fn a_client_that_closes_right_after_the_end_mark_is_a_success_and_billed() {
    let all = format!(
        "{STREAM_HEAD}{}{}{}",
        chunk(&token("t1")),
        chunk(USAGE),
        chunk(DONE)
    );
    // The server says [DONE] and keeps its own end to itself.
    let backend = ScriptedServer::new(&[&all, "0\r\n\r\n"]).await;
    let node = Node::start(&one_model(backend.address, 1, "")).await;
    for leave in [TestClient::close, TestClient::reset] {
        let mut client = ask_for_stream(&node).await;
        client.saw("[DONE]").await;
        leave(client);
        node.idle().await;
    }
    for event in node.events(2).await {
        assert_eq!(event["outcome"], "completed", "{event}");
        assert_eq!(event["error_code"], Value::Null, "{event}");
        assert_eq!(event["metrics"]["input_tokens"], 7, "{event}");
        assert_eq!(event["metrics"]["output_tokens"], 2, "{event}");
        assert_eq!(event["streamed"], true, "{event}");
        assert!(event["time_to_first_token_ms"].is_u64(), "{event}");
    }
}

#[tokio::test]
async fn a_stream_with_its_end_mark_is_whole_however_its_server_ends_it() {
    let all = format!(
        "{STREAM_HEAD}{}{}{}",
        chunk(&token("t1")),
        chunk(USAGE),
        chunk(DONE)
    );
    let silent = ScriptedServer::new(&[&all, "0\r\n\r\n"]).await;
    let closing = ScriptedServer::closing(&[&all]).await;
    let babbling = ScriptedServer::closing(&[&all, "zz\r\n"]).await;
    for server in [silent, closing, babbling] {
        let node = Node::start(&format!("{IDLE}{}", one_model(server.address, 1, ""))).await;
        let mut client = ask_for_stream(&node).await;
        client.saw("[DONE]").await;
        server.next();
        let answer = client.response().await;
        assert!(!answer.broken, "{}", answer.text());
        assert_eq!(answer.events().last().unwrap(), "[DONE]");
        let event = node.event_of(&answer).await;
        assert_eq!(event["outcome"], "completed", "{event}");
        assert_eq!(event["metrics"]["output_tokens"], 2, "{event}");
        node.idle().await;
    }
}

#[tokio::test]
async fn a_client_that_leaves_before_the_end_mark_is_cut_by_client_and_frees_the_server() {
    let start = format!("{STREAM_HEAD}{}", chunk(&token("t1")));
    let backend = ScriptedServer::new(&[&start, "never"]).await;
    let node = Node::start(&one_model(backend.address, 1, "")).await;
    for (left, leave) in [TestClient::close, TestClient::reset]
        .into_iter()
        .enumerate()
    {
        let mut client = ask_for_stream(&node).await;
        client.saw("t1").await;
        leave(client);
        node.idle().await;
        eventually("the server is let go", async || {
            (backend.gone() == left + 1).then_some(())
        })
        .await;
    }
    for event in node.events(2).await {
        assert_eq!(event["outcome"], "cut-by-client", "{event}");
        assert_eq!(event["error_code"], "3008", "{event}");
    }
}

#[tokio::test]
async fn usage_of_a_stream_is_in_its_event_whoever_asked_for_it() {
    let all = format!(
        "{STREAM_HEAD}{}{}{}0\r\n\r\n",
        chunk(&token("t1")),
        chunk(USAGE),
        chunk(DONE)
    );
    let backend = ScriptedServer::new(&[&all]).await;
    let node = Node::start(&one_model(backend.address, 1, "")).await;
    let asked = chat(
        "m",
        r#","stream":true,"stream_options":{"include_usage":true}"#,
    );
    assert!(
        !node
            .post(CHAT, &stream_chat())
            .await
            .text()
            .contains("usage")
    );
    assert!(node.post(CHAT, &asked).await.text().contains("usage"));
    for event in node.events(2).await {
        assert_eq!(event["metrics_source"], "reported");
        assert_eq!(event["metrics"]["output_tokens"], 2);
    }
    for request in backend.requests() {
        let body = request.split_once("\r\n\r\n").unwrap().1;
        let body: Value = serde_json::from_str(body).unwrap();
        assert_eq!(body["stream_options"]["include_usage"], true, "{body}");
    }
}

#[tokio::test]
async fn a_waiting_stream_gets_signs_of_life_and_then_its_answer() {
    let all = format!(
        "{STREAM_HEAD}{}{}0\r\n\r\n",
        chunk(&token("t1")),
        chunk(DONE)
    );
    let backend = ScriptedServer::new(&["", &all]).await;
    let node = Node::start(&one_model(
        backend.address,
        1,
        "    queue_heartbeat_secs: 1\n",
    ))
    .await;
    let mut holder = ask_for_stream(&node).await;
    eventually("the permit is taken", async || {
        (backend.open() == 1).then_some(())
    })
    .await;
    let mut waiting = ask_for_stream(&node).await;
    waiting.saw(": queued\n\n").await;
    assert!(String::from_utf8_lossy(waiting.pending()).starts_with("HTTP/1.1 200"));
    backend.next();
    assert_eq!(holder.response().await.events().last().unwrap(), "[DONE]");
    eventually("it is its turn", async || {
        (backend.requests().len() == 2).then_some(())
    })
    .await;
    backend.next();
    let answer = waiting.response().await;
    assert!(answer.is_event_stream());
    assert!(answer.header("x-request-id").is_some());
    assert!(!answer.broken);
    assert_eq!(answer.events().len(), 2);
    let event = node.event_of(&answer).await;
    assert_eq!(event["outcome"], "completed");
    assert_eq!(event["queued"], true);
    assert_eq!(event["status"], 200);
}

#[tokio::test]
async fn a_stream_of_a_silent_server_has_signs_of_life_before_and_between_its_events() {
    let second = token("t2");
    let (half, rest) = second.split_at(20);
    let pieces = [
        "".to_owned(),
        format!("{STREAM_HEAD}{}", chunk(&token("t1"))),
        chunk(half),
        format!("{}{}0\r\n\r\n", chunk(rest), chunk(DONE)),
    ];
    let backend = ScriptedServer::new(&pieces.each_ref().map(String::as_str)).await;
    let more = "    queue_heartbeat_secs: 1\n    progress_comments: true\n";
    let node = Node::start(&one_model(backend.address, 1, more)).await;
    let mut client = ask_for_stream(&node).await;
    client.saw(": working\n\n").await;
    backend.next();
    // A chunk of its own behind the event's.
    let sign = "B\r\n: working\n\n\r\n";
    client.saw(&format!("t1\"}}}}]}}\n\n\r\n{sign}")).await;
    backend.next();
    // Half an event is kept here, and does not count as a word of the server's to the client.
    client.saw(&format!("{sign}{sign}")).await;
    backend.next();
    let answer = client.response().await;
    assert!(answer.is_event_stream() && !answer.broken);
    let events = [token("t1"), token("t2"), DONE.to_owned()];
    let events = events.map(|event| event["data: ".len()..].trim_end().to_owned());
    assert_eq!(answer.events(), events);
    let event = node.event_of(&answer).await;
    assert_eq!(event["outcome"], "completed");
    assert_eq!(event["queued"], false);
}

#[tokio::test]
async fn a_server_that_breaks_after_signs_of_life_alone_costs_nothing() {
    let backend = ScriptedServer::closing(&["", STREAM_HEAD]).await;
    let more = "    queue_heartbeat_secs: 1\n    progress_comments: true\n    tariff: { cost_per_infer: 3 }\n";
    let node = Node::start(&one_model(backend.address, 1, more)).await;
    let mut client = ask_for_stream(&node).await;
    client.saw(": working\n\n").await;
    backend.next();
    let answer = client.response().await;
    let last = answer.events().pop().unwrap();
    assert!(last.contains("upstream_failed"), "{last}");
    let event = node.event_of(&answer).await;
    assert_eq!(event["status"], 200);
    assert_eq!(event["neurons"], Value::Null);
}

#[tokio::test]
async fn a_json_answer_after_signs_of_life_is_an_event() {
    let backend = ScriptedServer::new(&["", &json_answer("{\"a\":\r\n1}")]).await;
    let more = "    queue_heartbeat_secs: 1\n";
    let node = Node::start(&one_model(backend.address, 1, more)).await;
    let mut holder = ask_for_stream(&node).await;
    eventually("the permit is taken", async || {
        (backend.open() == 1).then_some(())
    })
    .await;
    let mut waiting = ask_for_stream(&node).await;
    waiting.saw(": queued\n\n").await;
    backend.next();
    assert_eq!(holder.response().await.text(), "{\"a\":\r\n1}");
    eventually("it is its turn", async || {
        (backend.requests().len() == 2).then_some(())
    })
    .await;
    backend.next();
    let answer = waiting.response().await;
    assert_eq!(answer.events(), ["{\"a\":  1}", "[DONE]"]);
}

#[tokio::test]
async fn a_stream_refused_after_its_first_sign_of_life_ends_with_an_error_event() {
    let backend = ScriptedServer::new(&["", &json_answer("{}")]).await;
    let node = Node::start(&one_model(
        backend.address,
        1,
        "    queue_heartbeat_secs: 1\n",
    ))
    .await;
    let mut holder = node.client().await;
    holder.post("", CHAT, &chat("m", "")).await;
    eventually("the permit is taken", async || {
        (backend.open() == 1).then_some(())
    })
    .await;
    let wish = "x-infergate-timeout-ms: 4000\r\n";
    let waiting = node.post_as(wish, CHAT, &stream_chat()).await;
    assert_eq!(waiting.status, 200);
    assert!(!waiting.broken, "{waiting:?}");
    assert!(
        waiting.text().starts_with(": queued\n\n"),
        "{}",
        waiting.text()
    );
    let events = waiting.events();
    assert_eq!(events.len(), 1, "{events:?}");
    let error: Value = serde_json::from_str(&events[0]).unwrap();
    assert_eq!(error["error"]["code"], "deadline_exceeded");
    let event = node.events(1).await.remove(0);
    assert_eq!(event["outcome"], "cut-by-deadline");
    assert_eq!(event["status"], 200);
    // A caller of whole answers gets its status, whatever the model's streams get.
    let whole = node
        .post_as("x-infergate-timeout-ms: 100\r\n", CHAT, &chat("m", ""))
        .await;
    assert_eq!(whole.status, 408);
}

#[tokio::test]
async fn a_server_error_after_a_sign_of_life_is_an_error_event() {
    let refusal = "HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\n\
                   Content-Length: 29\r\n\r\n{\"error\":{\"message\":\"wrong\"}}";
    let backend = ScriptedServer::new(&["", refusal]).await;
    let node = Node::start(&one_model(
        backend.address,
        1,
        "    queue_heartbeat_secs: 1\n",
    ))
    .await;
    let mut holder = ask_for_stream(&node).await;
    eventually("the permit is taken", async || {
        (backend.open() == 1).then_some(())
    })
    .await;
    let mut waiting = ask_for_stream(&node).await;
    waiting.saw(": queued\n\n").await;
    backend.next();
    assert_eq!(holder.response().await.status, 400);
    eventually("it is its turn", async || {
        (backend.requests().len() == 2).then_some(())
    })
    .await;
    backend.next();
    let answer = waiting.response().await;
    assert!(!answer.broken);
    let error: Value = serde_json::from_str(&answer.events()[0]).unwrap();
    assert_eq!(error["error"]["message"], "wrong");
}

#[tokio::test]
async fn a_stream_cut_anywhere_on_its_way_arrives_unchanged() {
    let stream = format!(
        ": hello\n\nevent: x\nid: 1\n{}data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"é\\n\"}}}}],\r\n\
         data: \"usage\":null}}\r\n\r\n{DONE}",
        token("t1")
    );
    // A chunk for each character, and one chunk in as many writes.
    let chunks: Vec<String> = stream.chars().map(|c| chunk(&c.to_string())).collect();
    let whole = chunk(&stream);
    let writes: Vec<String> = whole.chars().map(String::from).collect();
    for parts in [chunks, writes] {
        let mut pieces = vec![STREAM_HEAD];
        pieces.extend(parts.iter().map(String::as_str));
        pieces.push("0\r\n\r\n");
        let backend = ScriptedServer::new(&pieces).await;
        let node = Node::start(&one_model(backend.address, 1, "")).await;
        let mut client = ask_for_stream(&node).await;
        let on_and_on = async {
            loop {
                backend.next();
                tokio::task::yield_now().await;
            }
        };
        let answer = tokio::select! {
            answer = client.response() => answer,
            () = on_and_on => unreachable!("it goes on for ever"),
        };
        assert_eq!(answer.text(), stream);
    }
}

#[tokio::test]
async fn an_event_of_megabytes_passes_and_what_else_is_read_is_billed() {
    let long = format!("data: {{\"image\":\"{}\"}}\n\n", "x".repeat(3 << 20));
    let comment = format!(": {}\n\n", "x".repeat(3 << 20));
    let stream = [&long, &token("a"), &comment, USAGE, DONE].concat();
    let chunks: String = stream
        .as_bytes()
        .chunks(100_000)
        .map(|piece| chunk(std::str::from_utf8(piece).unwrap()))
        .collect();
    let backend = ScriptedServer::new(&[&format!("{STREAM_HEAD}{chunks}0\r\n\r\n")]).await;
    let node = Node::start(&one_model(backend.address, 1, "")).await;
    for _ in 0..6 {
        let answer = ask_for_stream(&node).await.response().await;
        assert!(!answer.broken);
        let text = answer.text();
        assert!(
            text == [&long, &token("a"), &comment, DONE].concat(),
            "every byte"
        );
        let event = node.event_of(&answer).await;
        assert_eq!(event["outcome"], "completed", "{event}");
        assert_eq!(event["metrics"]["output_tokens"], 2, "{event}");
    }
    assert!(!node.log().contains("ejected"), "{}", node.log());
}
