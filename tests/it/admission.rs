//! Admission under overload: which requests get a permit, and the refusals of the others.

use std::time::Duration;

use tokio::task::JoinSet;

use crate::support::{
    ANSWER, Node, PendingPost, RefusingServer, ScriptedServer, SimulatedServer, TestClient,
    TestResponse, accounts, chat, endpoint, eventually, json_answer, model, one_model,
};

/// A configuration with accounts `a` and `b` and one model `m`.
fn two_accounts(more_for_a: &str, server: &ScriptedServer, permits: u32, more: &str) -> String {
    accounts(more_for_a) + &one_model(server.address, permits, more)
}

/// A chat of one of the two accounts, findable at the server by its tag.
async fn tagged(node: &Node, account: &str, tag: &str, more: &str) -> PendingPost {
    let key = format!("Authorization: Bearer key-{account}\r\n");
    node.posting(&key, &format!(r#","user":"{tag}"{more}"#))
        .await
}

/// The tags of the requests a server has got, in order.
fn tags(server: &ScriptedServer) -> Vec<String> {
    let tag = |request: &String| {
        let rest = request.split_once(r#""user":""#).unwrap().1;
        rest.split_once('"').unwrap().0.to_owned()
    };
    server.requests().iter().map(tag).collect()
}

fn assert_out_of_capacity(answer: &TestResponse) {
    assert_eq!(answer.status, 429, "{}", answer.text());
    let error = &answer.json()["error"];
    assert_eq!(error["code"], "out_of_capacity");
    assert_eq!(error["type"], "rate_limit_error");
}

/// Lets a one-permit server answer everybody, one after the other.
async fn serve_all(server: &ScriptedServer, waiting: Vec<PendingPost>) {
    let all = waiting.len() + 1;
    for served in 1..=all {
        eventually("the next request is at the server", async || {
            (server.requests().len() >= served).then_some(())
        })
        .await;
        server.next();
    }
    for posted in waiting {
        assert_eq!(posted.answer().await.status, 200);
    }
}

#[tokio::test]
async fn no_algorithm_gives_out_more_permits_than_there_are_to_200_clients_at_once() {
    let server = SimulatedServer::taking(5).await;
    let config = |algorithm: &str| {
        let queue = format!("    queue: {{ algorithm: {algorithm}, capacity: 100 }}\n");
        // A slow machine may need minutes for them all.
        let patience = "timeouts: { model_floor_secs: 600, ceiling_secs: 600 }\n";
        accounts("") + patience + &one_model(server.address, 4, &queue)
    };
    let node = Node::start(&config("fifo")).await;
    for algorithm in ["fifo", "fair", "priority", "token-fair"] {
        assert_eq!(node.reload(&config(algorithm)).await.status, 200);
        let mut clients = JoinSet::new();
        for index in 0..200 {
            let address = node.clients;
            clients.spawn(async move {
                let mut client = TestClient::connect(address).await;
                let key = ["a", "b"][index % 2];
                let key = format!("Authorization: Bearer key-{key}\r\n");
                let body = chat("m", &format!(r#","x_priority":{}"#, index % 10));
                client.post(&key, "/v1/chat/completions", &body).await;
                client.response().await.status
            });
        }
        let statuses = clients.join_all().await;
        let others: Vec<&u16> = statuses.iter().filter(|status| **status != 200).collect();
        assert!(others.is_empty(), "{algorithm}: {others:?}");
        assert_eq!(server.count("high_water").await, 4, "{algorithm}");
        node.settles(0, 0).await;
    }
    assert_eq!(server.count("served").await, 800);
}

#[tokio::test]
async fn who_finds_permit_and_queue_taken_is_told_so_at_once_and_when_to_come_back() {
    let server = ScriptedServer::held().await;
    let queue = "    queue: { algorithm: fifo, capacity: 1 }\n";
    let node = Node::start(&one_model(server.address, 1, queue)).await;
    let holder = node.posting("", "").await;
    node.settles(1, 0).await;
    let waiter = node.posting("", "").await;
    node.settles(1, 1).await;

    let refused = node.posting("", "").await.answer().await;
    assert_out_of_capacity(&refused);
    let retry_after: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=30).contains(&retry_after), "{retry_after}");
    let event = node.event_of(&refused).await;
    assert_eq!(event["error_code"], "3040");
    assert_eq!(event["outcome"], "refused");
    assert_eq!(event["attempts"], 0);

    let refused = node.post("/ai/run/m", r#"{"prompt":"hi"}"#).await;
    assert_eq!(refused.status, 429);
    assert_eq!(refused.json()["errors"][0]["code"], 3040);
    assert!(refused.header("retry-after").is_some());

    for posted in [holder, waiter] {
        server.next();
        let answer = posted.answer().await;
        assert_eq!((answer.status, answer.text().as_str()), (200, ANSWER));
    }
    node.settles(0, 0).await;
}

#[tokio::test]
async fn who_asks_not_to_wait_is_refused_while_the_queue_is_still_empty() {
    let server = ScriptedServer::held().await;
    let node = Node::start(&one_model(server.address, 1, "")).await;
    let holder = node.posting("", "").await;
    node.settles(1, 0).await;
    let by_header = node.posting("X-Infergate-Queue: reject\r\n", "").await;
    assert_out_of_capacity(&by_header.answer().await);
    let by_body = node
        .posting("", r#","options":{"rejectIfBusy":true}"#)
        .await;
    assert_out_of_capacity(&by_body.answer().await);
    let run = r#"{"prompt":"hi","options":{"rejectIfBusy":true}}"#;
    let on_the_other_face = node.post("/ai/run/m", run).await;
    assert_eq!(on_the_other_face.json()["errors"][0]["code"], 3040);
    server.next();
    assert_eq!(holder.answer().await.status, 200);
    for (outcome, cause, count) in [
        ("leased", "none", 1.0),
        ("queued", "none", 0.0),
        ("no_slots", "busy", 3.0),
    ] {
        let series = format!(
            r#"infergate_admissions_total{{model="m",outcome="{outcome}",cause="{cause}"}}"#
        );
        assert_eq!(node.metric(&series).await, Some(count), "{series}");
    }
    let full = r#"infergate_admissions_total{model="m",outcome="no_slots",cause="queue-full"}"#;
    assert_eq!(node.metric(full).await, None);
    let healthy = r#"infergate_endpoint_requests_total{model="m",health="healthy"}"#;
    assert_eq!(node.metric(healthy).await, Some(1.0));
}

#[tokio::test]
async fn an_accounts_requests_per_minute_are_its_own_and_cost_nothing_when_refused_for_capacity() {
    let server = ScriptedServer::held().await;
    let limit = ", requests_per_minute: 3";
    let node = Node::start(&two_accounts(limit, &server, 1, "")).await;
    let holder = tagged(&node, "a", "1", "").await;
    node.settles(1, 0).await;
    for _ in 0..5 {
        let reject = "Authorization: Bearer key-a\r\nX-Infergate-Queue: reject\r\n";
        assert_out_of_capacity(&node.posting(reject, "").await.answer().await);
    }
    server.next();
    assert_eq!(holder.answer().await.status, 200);
    for tag in ["2", "3"] {
        let posted = tagged(&node, "a", tag, "").await;
        server.next();
        assert_eq!(posted.answer().await.status, 200, "{tag}");
    }
    let refused = tagged(&node, "a", "4", "").await.answer().await;
    assert_eq!(refused.status, 429);
    assert_eq!(refused.json()["error"]["code"], "rate_limit_exceeded");
    let retry_after: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=20).contains(&retry_after), "{retry_after}");
    assert_eq!(node.event_of(&refused).await["error_code"], "971");

    let of_another = tagged(&node, "b", "5", "").await;
    server.next();
    assert_eq!(of_another.answer().await.status, 200);
}

#[tokio::test]
async fn lower_priorities_go_first_but_nobody_jumps_the_queue_unasked() {
    let server = ScriptedServer::held().await;
    let queue = "    queue: { algorithm: priority, capacity: 9 }\n";
    let node = Node::start(&two_accounts(", max_priority: 0", &server, 1, queue)).await;
    let _holder = tagged(&node, "a", "holder", "").await;
    node.settles(1, 0).await;
    let mut waiting = Vec::new();
    for (account, tag, priority) in [
        ("b", "b0 counts as 5", 0),
        ("a", "a9", 9),
        ("a", "a6", 6),
        ("a", "a4", 4),
        ("a", "a0", 0),
    ] {
        let more = format!(r#","x_priority":{priority}"#);
        waiting.push(tagged(&node, account, tag, &more).await);
        node.settles(1, waiting.len() as u64).await;
    }
    serve_all(&server, waiting).await;
    let order = ["holder", "a0", "a4", "b0 counts as 5", "a6", "a9"];
    assert_eq!(tags(&server), order);
    assert!(server.requests().iter().all(|r| !r.contains("x_priority")));
}

#[tokio::test]
async fn under_fair_an_account_with_one_request_does_not_wait_behind_one_with_many() {
    let server = ScriptedServer::held().await;
    let queue = "    queue: { algorithm: fair, capacity: 9 }\n";
    let node = Node::start(&two_accounts("", &server, 1, queue)).await;
    let _holder = tagged(&node, "a", "holder", "").await;
    node.settles(1, 0).await;
    let mut waiting = Vec::new();
    for (account, tag) in [
        ("a", "a1"),
        ("a", "a2"),
        ("a", "a3"),
        ("a", "a4"),
        ("b", "b1"),
        ("b", "b2"),
    ] {
        waiting.push(tagged(&node, account, tag, "").await);
        node.settles(1, waiting.len() as u64).await;
    }
    serve_all(&server, waiting).await;
    let order = tags(&server);
    let place = |tag: &str| order.iter().position(|t| t == tag).unwrap();
    assert!(place("b1") <= 2 && place("b2") <= 4, "{order:?}");
    assert!(place("a1") < place("a2") && place("a2") < place("a3"));
}

#[tokio::test]
async fn token_fair_goes_by_what_the_server_reports_and_not_by_what_was_charged_ahead() {
    for durability in ["buffered", "before-last-byte"] {
        let many = ANSWER.replace("\"completion_tokens\":1", "\"completion_tokens\":9000");
        let server = ScriptedServer::new(&["", &json_answer(&many)]).await;
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("e");
        let events = format!(
            "events: {{ file: {{ path: \"{}\" }}, durability: {durability} }}\n",
            file.display()
        );
        let queue = "    queue: { algorithm: token-fair, capacity: 9 }\n";
        let node = Node::start(&(events + &two_accounts("", &server, 1, queue))).await;
        let mut waiting = vec![tagged(&node, "a", "holder", "").await];
        node.settles(1, 0).await;
        for (account, tag) in [("a", "a1"), ("a", "a2"), ("b", "b1")] {
            let queued = waiting.len() as u64;
            waiting.push(tagged(&node, account, tag, "").await);
            node.settles(1, queued).await;
        }
        let holder = waiting.remove(0);
        serve_all(&server, waiting).await;
        assert_eq!(holder.answer().await.status, 200);
        let order = tags(&server);
        assert_eq!(order, ["holder", "b1", "a1", "a2"], "{durability}");
    }
}

#[tokio::test]
async fn token_fair_does_not_charge_an_image_by_its_bytes() {
    let silent = ANSWER.replace("\"usage\"", "\"unused\"");
    let server = ScriptedServer::new(&["", &json_answer(&silent)]).await;
    let queue = "    queue: { algorithm: token-fair, capacity: 9 }\n";
    let node = Node::start(&two_accounts("", &server, 1, queue)).await;
    // 262,144 tokens, were it text.
    let image = format!(r#","image":"{}""#, "AAAA".repeat(256 << 10));
    let page = format!(r#","input_text":"{}""#, "x".repeat(4000));
    let mut waiting = vec![tagged(&node, "b", "holder", "").await];
    node.settles(1, 0).await;
    for (account, tag, more) in [
        ("a", "image", &*image),
        ("a", "a2", ""),
        ("b", "b1", &page),
        ("b", "b2", &page),
        ("b", "b3", &page),
    ] {
        let queued = waiting.len() as u64;
        waiting.push(tagged(&node, account, tag, more).await);
        node.settles(1, queued).await;
    }
    let holder = waiting.remove(0);
    serve_all(&server, waiting).await;
    assert_eq!(holder.answer().await.status, 200);
    // The image costs a little more than one page, not more than all of them. The holder has used
    // less than was charged ahead for it, so its account is first.
    let order = ["holder", "b1", "image", "b2", "a2", "b3"];
    assert_eq!(tags(&server), order);
}

#[tokio::test]
async fn state_tells_who_waits_and_for_how_long() {
    let server = ScriptedServer::held().await;
    let queue = "    queue: { algorithm: fair, capacity: 8 }\n";
    let node = Node::start(&two_accounts("", &server, 1, queue)).await;
    let holder = tagged(&node, "a", "holder", "").await;
    node.settles(1, 0).await;
    let mut waiting = Vec::new();
    for account in ["a", "a", "b"] {
        waiting.push(tagged(&node, account, "w", "").await);
        node.settles(1, waiting.len() as u64).await;
    }
    let queue = node.state().await["models"][0]["queue"].clone();
    assert_eq!(queue["algorithm"], "fair");
    assert_eq!(
        (&queue["depth"], &queue["capacity"]),
        (&3.into(), &8.into())
    );
    assert_eq!(queue["accounts"], serde_json::json!({ "a": 2, "b": 1 }));
    eventually("a wait is expected", async || {
        let state = node.state().await;
        let wait = state["models"][0]["queue"]["expected_wait_ms"].as_u64()?;
        (wait > 0).then_some(())
    })
    .await;
    waiting.insert(0, holder);
    for left in (0..waiting.len() as u64).rev() {
        server.next();
        eventually("one has gone", async || {
            let now = node.permits_used().await + node.queue_depth().await;
            (now == left).then_some(())
        })
        .await;
    }
    for posted in waiting {
        assert_eq!(posted.answer().await.status, 200);
    }
    let queue = node.state().await["models"][0]["queue"].clone();
    assert_eq!(queue["expected_wait_ms"], 0);
    assert_eq!(queue["accounts"], serde_json::json!({}));
}

#[tokio::test]
async fn who_cannot_start_in_time_is_refused_at_once_and_who_can_is_served() {
    let server = ScriptedServer::held().await;
    let queue = "    queue: { algorithm: fifo, capacity: 4 }\n";
    let node = Node::start(&one_model(server.address, 16, queue)).await;
    let all_busy = async || {
        let mut busy = Vec::new();
        for _ in 0..16 {
            busy.push(node.posting("", "").await);
        }
        eventually("all are at the server", async || {
            (server.open() == 16).then_some(())
        })
        .await;
        busy
    };
    let answered = async |busy: Vec<PendingPost>| {
        busy.iter().for_each(|_| server.next());
        for posted in busy {
            assert_eq!(posted.answer().await.status, 200);
        }
    };
    // Sixteen that took two seconds are what the gateway goes by.
    let mut busy = all_busy().await;
    let work = Duration::from_secs(2);
    assert!(!busy[0].0.closes_within(work).await);
    answered(busy).await;
    node.settles(0, 0).await;
    busy = all_busy().await;
    let refused = node.posting("X-Infergate-Timeout-Ms: 1500\r\n", "").await;
    let refused = refused.answer().await;
    assert_out_of_capacity(&refused);
    let event = node.event_of(&refused).await;
    assert_eq!(
        (&event["attempts"], &event["queued"]),
        (&0.into(), &false.into())
    );
    let served = node.posting("X-Infergate-Timeout-Ms: 30000\r\n", "").await;
    node.settles(16, 1).await;
    answered(busy).await;
    eventually("it is at the server", async || {
        (server.requests().len() == 33).then_some(())
    })
    .await;
    answered(vec![served]).await;
}

#[tokio::test]
async fn a_deadline_that_passes_in_the_queue_leaves_no_place_behind() {
    let server = ScriptedServer::held().await;
    let node = Node::start(&one_model(server.address, 1, "")).await;
    let holder = node.posting("", "").await;
    node.settles(1, 0).await;
    let late = node.posting("X-Infergate-Timeout-Ms: 2000\r\n", "").await;
    let late = late.answer().await;
    assert_eq!(late.status, 408, "{}", late.text());
    assert_eq!(late.header("x-should-retry"), Some("false"));
    let event = node.event_of(&late).await;
    assert_eq!(event["outcome"], "cut-by-deadline");
    assert_eq!(
        (&event["queued"], &event["attempts"]),
        (&true.into(), &0.into())
    );
    let waited = event["queuing_time_ms"].as_u64().unwrap();
    assert!(waited > 0, "{event}");
    node.settles(1, 0).await;
    server.next();
    assert_eq!(holder.answer().await.status, 200);
}

#[tokio::test]
async fn while_no_endpoint_is_healthy_requests_wait_or_are_refused_as_configured() {
    let gone = RefusingServer::new();
    let models = |wait: &str, refuse: &str| {
        let one = |id: &str, what: &str| {
            let queue =
                format!("    queue: {{ when_unhealthy: {what}, when_unhealthy_wait_secs: 60 }}\n");
            model(id, &[endpoint(gone.address, 1)], &queue)
        };
        format!("models:\n{}{}", one("m", wait), one("n", refuse))
    };
    let node = Node::start(&models("wait", "refuse")).await;
    eventually("the endpoint is found down by both models", async || {
        let state = node.state().await;
        let down = |index: usize| state["models"][index]["endpoints"][0]["health"] == "down";
        (down(0) && down(1)).then_some(())
    })
    .await;
    let waiter = node.posting("", "").await;
    node.settles(0, 1).await;
    let refused = node.post("/v1/chat/completions", &chat("n", "")).await;
    assert_eq!(refused.status, 503, "{}", refused.text());
    assert_eq!(refused.json()["error"]["code"], "no_healthy_endpoint");
    assert!(refused.header("retry-after").is_some());
    let server = gone.serve();
    assert_eq!(waiter.answer().await.status, 200);
    assert_eq!(server.count("served").await, 1);
}

#[tokio::test]
async fn a_models_permits_do_not_depend_on_another_models_load() {
    let (busy, idle) = (ScriptedServer::held().await, SimulatedServer::fast().await);
    let node = Node::start(&format!(
        "models:\n{}{}",
        model("m", &[endpoint(busy.address, 1)], ""),
        model("n", &[endpoint(idle.address, 1)], "")
    ))
    .await;
    let holder = node.posting("", "").await;
    node.settles(1, 0).await;
    let other = node.post("/v1/chat/completions", &chat("n", "")).await;
    assert_eq!(other.status, 200);
    busy.next();
    assert_eq!(holder.answer().await.status, 200);
}

#[tokio::test]
async fn models_on_one_server_get_no_more_permits_than_it_has() {
    let server = SimulatedServer::taking(2).await;
    let models = ["m", "n"].map(|id| model(id, &[endpoint(server.address, 2)], ""));
    let node = Node::start(&format!("models:\n{}", models.concat())).await;
    let mut clients = JoinSet::new();
    for index in 0..40 {
        let address = node.clients;
        clients.spawn(async move {
            let mut client = TestClient::connect(address).await;
            let body = chat(["m", "n"][index % 2], "");
            client.post("", "/v1/chat/completions", &body).await;
            client.response().await.status
        });
    }
    let statuses = clients.join_all().await;
    let served = statuses.iter().filter(|status| **status == 200).count();
    assert!(served >= 2, "{statuses:?}");
    assert!(statuses.iter().all(|status| [200, 429].contains(status)));
    assert_eq!(server.count("high_water").await, 2);
}

#[tokio::test]
async fn an_account_at_its_limits_is_told_so_and_how_much_is_left() {
    let server = ScriptedServer::held().await;
    let limits = ", max_concurrent: 1, requests_per_minute: 6, tokens_per_minute: 6000";
    let node = Node::start(&two_accounts(limits, &server, 4, "")).await;
    let holder = tagged(&node, "a", "first", "").await;
    node.settles(1, 0).await;
    let refused = tagged(&node, "a", "second", "").await.answer().await;
    assert_eq!(refused.status, 429, "{}", refused.text());
    assert_eq!(refused.json()["error"]["code"], "rate_limit_exceeded");
    assert!(refused.header("retry-after").is_some());
    server.next();
    let answer = holder.answer().await;
    assert_eq!(answer.status, 200);
    let reported = |name: &str| answer.header(name).unwrap_or_default().to_owned();
    assert_eq!(reported("x-ratelimit-limit-requests"), "6");
    // One comes back in ten seconds.
    let left = reported("x-ratelimit-remaining-requests");
    assert!(
        left == "5" || left == "6",
        "the refused one is not counted: {left}"
    );
    assert_eq!(reported("x-ratelimit-limit-tokens"), "6000");
    assert!(reported("x-ratelimit-reset-tokens").ends_with('s'));
    node.settles(0, 0).await;
    // What it really used was 4 tokens.
    let next = tagged(&node, "a", "third", "").await;
    node.settles(1, 0).await;
    server.next();
    let left: u32 = next
        .answer()
        .await
        .header("x-ratelimit-remaining-tokens")
        .unwrap()
        .parse()
        .unwrap();
    assert!(left > 5000, "{left}");
    // The other account has no limits and hears of none.
    let other = tagged(&node, "b", "other", "").await;
    node.settles(1, 0).await;
    server.next();
    assert!(
        other
            .answer()
            .await
            .header("x-ratelimit-limit-requests")
            .is_none()
    );
}

#[tokio::test]
async fn who_has_its_answer_may_ask_again_at_once_over_another_connection() {
    let server = SimulatedServer::fast().await;
    let account = accounts(", max_concurrent: 1");
    let node = Node::start(&(account + &one_model(server.address, 1, ""))).await;
    let key = "Authorization: Bearer key-a\r\n";
    for number in 0..300 {
        let more = if number % 2 == 0 {
            ""
        } else {
            r#","stream":true"#
        };
        let answer = node
            .post_as(key, "/v1/chat/completions", &chat("m", more))
            .await;
        assert_eq!(answer.status, 200, "{number}: {}", answer.text());
    }
}

#[tokio::test]
async fn what_an_account_has_seen_of_a_stream_it_leaves_counts_among_its_tokens() {
    let event = |text: &str| {
        format!("data: {{\"choices\":[{{\"delta\":{{\"content\":\"{text}\"}}}}]}}\n\n")
    };
    let event = event(&"word ".repeat(4000));
    let head =
        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
    let started = format!("{head}{:x}\r\n{event}\r\n", event.len());
    let server = ScriptedServer::new(&[&started, "never"]).await;
    let node = Node::start(&two_accounts(", tokens_per_minute: 6000", &server, 1, "")).await;
    let body = chat("m", r#","stream":true"#);
    let mut client = node.client().await;
    let key = "Authorization: Bearer key-a\r\n";
    client.post(key, "/v1/chat/completions", &body).await;
    client.saw("word").await;
    client.close();
    node.idle().await;
    // About 5,300 tokens, of which a hundred come back each second.
    let mut client = node.client().await;
    client.post(key, "/v1/chat/completions", &body).await;
    client.saw("word").await;
    let answer = String::from_utf8_lossy(client.pending()).to_lowercase();
    let line = answer.split("x-ratelimit-remaining-tokens: ").nth(1);
    let left: u32 = line.unwrap().split("\r\n").next().unwrap().parse().unwrap();
    assert!(left < 3000, "{left}");
}

#[tokio::test]
async fn what_servers_fail_to_do_uses_up_none_of_an_accounts_tokens() {
    let failing = json_answer("{}").replacen("200 OK", "500 Internal", 1);
    let server = ScriptedServer::new(&[&failing]).await;
    // Each may use some 260: three would be too many.
    let node = Node::start(&two_accounts(", tokens_per_minute: 600", &server, 1, "")).await;
    let body = chat("m", "");
    for turn in 0..4 {
        let mut client = node.client().await;
        let key = "Authorization: Bearer key-a\r\n";
        client.post(key, "/v1/chat/completions", &body).await;
        assert_eq!(client.response().await.status, 500, "{turn}");
    }
}

#[tokio::test]
async fn parameters_of_a_model_reach_its_server_filled_in_set_and_capped() {
    let server = ScriptedServer::new(&[&json_answer(ANSWER)]).await;
    let parameters =
        "    parameters: { default: { seed: 7 }, force: { user: gw }, max: { max_tokens: 9 } }\n";
    let node = Node::start(&one_model(server.address, 1, parameters)).await;
    let body = chat("m", r#","user":"me","max_tokens":100"#);
    assert_eq!(node.post("/v1/chat/completions", &body).await.status, 200);
    let sent = server.requests().remove(0);
    for member in [r#""seed":7"#, r#""user":"gw""#, r#""max_tokens":9"#] {
        assert!(sent.contains(member), "{sent}");
    }
}
