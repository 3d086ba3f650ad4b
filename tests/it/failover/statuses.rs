//! Meaning of a server's status and body for the client, for the retry and for the endpoint's health.

use std::time::Duration;

use serde_json::json;
use tokio::time::timeout;

use super::{ask, endpoint_state, until_health};
use crate::support::{
    ANSWER, Node, RefusingServer, ScriptedServer, SimulatedServer, accounts, chat, endpoint,
    eventually, json_answer, model, one_model,
};

const BODIES: &str = r#"{"error":{"message":"key sk-oper***4321 of http://10.9.8.7","type":"x","param":null,"code":"invalid_api_key"}}"#;

/// An answer with a status, further header lines and a body.
fn answer(status: &str, headers: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\n{headers}Content-Length: {length}\r\n\r\n{body}"
    )
}

/// Two servers of the same rank.
fn two(first: std::net::SocketAddr, second: std::net::SocketAddr) -> String {
    let endpoints = [endpoint(first, 4), endpoint(second, 4)];
    format!("models:\n{}", model("m", &endpoints, ""))
}

#[tokio::test]
async fn one_server_of_two_that_does_not_serve_costs_no_request_however_few_there_are() {
    let redirect = "Location: http://10.9.8.7:8000/\r\n";
    for (status, headers) in [
        ("503 Unavailable", ""),
        ("429 Too Many Requests", ""),
        ("401 Unauthorized", ""),
        ("404 Not Found", ""),
        ("307 Temporary Redirect", redirect),
    ] {
        let bad = ScriptedServer::new(&[&answer(status, headers, BODIES)]).await;
        let good = SimulatedServer::fast().await;
        let node = Node::start(&two(bad.address, good.address)).await;
        for _ in 0..20 {
            let answer = ask(&node).await;
            assert_eq!(answer.status, 200, "{status}: {}", answer.text());
        }
        assert!(!bad.requests().is_empty(), "{status}: both are asked");
        assert_eq!(good.count("served").await, 20, "{status}");
    }
    let (gone, good) = (RefusingServer::new(), SimulatedServer::fast().await);
    let node = Node::start(&two(gone.address, good.address)).await;
    for _ in 0..20 {
        assert_eq!(ask(&node).await.status, 200);
    }
}

#[tokio::test]
async fn a_refused_key_or_path_is_the_operators_to_mend_and_the_servers_words_stay_here() {
    let redirect = "Location: http://10.9.8.7:8000/\r\nWWW-Authenticate: Bearer realm=inside\r\n";
    for status in [
        "401 Unauthorized",
        "403 Forbidden",
        "404 Not Found",
        "308 Permanent Redirect",
    ] {
        let server = ScriptedServer::new(&[&answer(status, redirect, BODIES)]).await;
        let node = Node::start(&one_model(server.address, 2, "")).await;
        for _ in 0..3 {
            let answer = ask(&node).await;
            assert_eq!(answer.status, 502, "{status}: {}", answer.text());
            assert_eq!(answer.json()["error"]["code"], "upstream_rejected");
            assert_eq!(answer.header("x-should-retry"), Some("false"));
            assert_eq!(answer.header("location"), None);
            assert_eq!(answer.header("www-authenticate"), None);
            assert!(!answer.text().contains("sk-oper"), "{}", answer.text());
            let event = node.event_of(&answer).await;
            assert_eq!(event["error_code"], "3054");
            assert_eq!(event["outcome"], "failed");
            assert_eq!(event["attempts"], 1, "the same server says the same again");
        }
        let log = node.log();
        let lines = log.matches("does not accept this gateway").count();
        assert_eq!(lines, 1, "{log}");
        let state = endpoint_state(&node, server.address).await;
        let code = status.split(' ').next().unwrap();
        assert_eq!(state["last_error"]["cause"], format!("status {code}"));
    }
}

#[tokio::test]
async fn a_server_that_refuses_the_operators_key_is_ejected_and_the_next_model_takes_over() {
    let bad = ScriptedServer::new(&[&answer("401 Unauthorized", "", BODIES)]).await;
    let good = SimulatedServer::fast().await;
    let node = Node::start(&two(bad.address, good.address)).await;
    eventually("the server is ejected", async || {
        assert_eq!(ask(&node).await.status, 200);
        let state = endpoint_state(&node, bad.address).await;
        (state["health"] == "ejected").then_some(())
    })
    .await;
    let log = node.log();
    let reported = |to: &str| {
        log.lines()
            .any(|line| line.contains(to) && line.contains("status 401"))
    };
    assert!(reported("ejected"), "{log}");

    let models = [
        model("m", &[endpoint(bad.address, 2)], "    fallbacks: [n]\n"),
        model("n", &[endpoint(good.address, 2)], ""),
    ];
    let node = Node::start(&format!("models:\n{}", models.concat())).await;
    let answer = ask(&node).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.header("x-infergate-model"), Some("n"));
}

#[tokio::test]
async fn an_answer_no_client_can_use_is_a_failure_that_is_not_repeated() {
    let html = "HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: 6\r\n\r\n<html>";
    let cases = [
        html.to_owned(),
        json_answer(r#"{"error":{"message":"CUDA out of memory","code":500}}"#),
        "HTTP/1.1 204 No Content\r\n\r\n".to_owned(),
        json_answer(""),
        "HTTP/1.1 304 Not Modified\r\nETag: x\r\n\r\n".to_owned(),
        answer("600 Odd", "", ANSWER),
    ];
    for case in cases {
        let (bad, good) = (
            ScriptedServer::new(&[&case]).await,
            SimulatedServer::fast().await,
        );
        let endpoints = [
            endpoint(bad.address, 4),
            format!("{}, priority: 1", endpoint(good.address, 4)),
        ];
        let node = Node::start(&format!("models:\n{}", model("m", &endpoints, ""))).await;
        let answer = ask(&node).await;
        assert_eq!(answer.status, 502, "{case}: {}", answer.text());
        assert_eq!(answer.json()["error"]["code"], "upstream_failed");
        assert_eq!(answer.header("x-should-retry"), Some("false"), "{case}");
        assert!(!answer.text().contains("CUDA"), "{}", answer.text());
        assert_eq!(node.event_of(&answer).await["attempts"], 1, "{case}");
        until_health(&node, bad.address, "degraded").await;
        assert_eq!(good.count("served").await, 0, "{case}");
    }
}

#[tokio::test]
async fn an_answer_that_comes_in_pieces_is_whole_and_unchanged() {
    let (head, body) = json_answer(ANSWER)
        .split_once("\r\n\r\n")
        .map(|(head, body)| (format!("{head}\r\n\r\n"), body.to_owned()))
        .unwrap();
    let (first, second) = body.split_at(10);
    let server = ScriptedServer::new(&[&head, first, second]).await;
    let node = Node::start(&one_model(server.address, 1, "")).await;
    let posted = node.posting("", "").await;
    for _ in 0..2 {
        eventually("the request is there", async || {
            (!server.requests().is_empty()).then_some(())
        })
        .await;
        server.next();
    }
    let answer = posted.answer().await;
    assert_eq!((answer.status, answer.text().as_str()), (200, ANSWER));
}

#[tokio::test]
async fn retry_after_is_a_pause_of_the_endpoint_and_with_all_paused_the_shortest_is_told() {
    let server = ScriptedServer::new(&[&answer("429 Busy", "Retry-After: 17\r\n", BODIES)]).await;
    let node = Node::start(&one_model(server.address, 2, "")).await;
    for _ in 0..3 {
        let answer = ask(&node).await;
        assert_eq!(answer.status, 429, "{}", answer.text());
        assert_eq!(answer.json()["error"]["code"], "out_of_capacity");
        let after: u64 = answer.header("retry-after").unwrap().parse().unwrap();
        assert!((10..=17).contains(&after), "{after}");
    }
    assert_eq!(server.requests().len(), 1, "it is left in peace");

    let good = SimulatedServer::fast().await;
    let node = Node::start(&two(server.address, good.address)).await;
    for _ in 0..20 {
        assert_eq!(ask(&node).await.status, 200);
    }
    assert!(server.requests().len() <= 2, "once by each gateway");
}

#[tokio::test]
async fn one_account_does_not_take_a_server_from_the_others() {
    let (first, second) = (SimulatedServer::fast().await, SimulatedServer::fast().await);
    let node = Node::start(&(accounts("") + &two(first.address, second.address))).await;
    let post = async |key: &str, more: &str| {
        let headers = format!("Authorization: Bearer {key}\r\n");
        let path = "/v1/chat/completions";
        node.post_as(&headers, path, &chat("m", more)).await.status
    };
    for _ in 0..8 {
        assert_eq!(post("key-b", "").await, 200);
    }
    let poison = r#","x_sim_fault":"status=500""#;
    for _ in 0..40 {
        let both = futures_util::future::join(post("key-a", poison), post("key-b", ""));
        assert_eq!(both.await, (500, 200));
    }
    for _ in 0..40 {
        assert_eq!(post("key-a", poison).await, 500);
    }
    for server in [&first, &second] {
        let state = endpoint_state(&node, server.address).await;
        assert_ne!(state["health"], "ejected", "{state}");
    }
    assert_eq!(post("key-b", "").await, 200);
    let queued = r#"infergate_admissions_total{model="m",outcome="queued",cause="none"}"#;
    assert_eq!(
        node.metric(queued).await,
        Some(0.0),
        "all permits stay in use"
    );
    let state = node.state().await;
    let errors: Vec<_> = state["models"][0]["endpoints"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|endpoint| endpoint["last_error"]["cause"] == json!("status 500"))
        .collect();
    assert!(!errors.is_empty(), "{state}");
}

#[tokio::test]
async fn a_server_that_changes_the_protocol_has_not_answered_and_is_not_waited_for() {
    let change = "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n";
    let server = ScriptedServer::new(&[change]).await;
    let node = Node::start(&one_model(server.address, 1, "")).await;
    // Long before its deadline, which is half a minute away.
    let answer = timeout(Duration::from_secs(20), ask(&node)).await.unwrap();
    assert_eq!(answer.status, 502, "{}", answer.text());
    assert_eq!(answer.header("x-should-retry"), Some("false"));
    node.idle().await;
}
