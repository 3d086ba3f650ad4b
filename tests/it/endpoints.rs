//! Requests as an endpoint receives them: key in the configured form, headers, base path, health checks.

use crate::support::{
    ANSWER, Node, RefusingServer, ScriptedServer, SimulatedServer, endpoint, eventually,
    json_answer, model,
};

const KEY: &str = "sk-key-of-the-operator";

async fn answering() -> ScriptedServer {
    ScriptedServer::new(&[&json_answer(ANSWER)]).await
}

/// A model `m` on one endpoint with `more` keys, at the path `/base` of the server.
fn config(server: &ScriptedServer, more: &str) -> String {
    let url = format!(
        "url: \"http://{}/base\", max_concurrent_requests: 2, {more}",
        server.address
    );
    format!("models:\n{}", model("m", &[url], ""))
}

fn has_line(request: &str, line: &str) -> bool {
    let (head, _) = request.split_once("\r\n\r\n").unwrap_or((request, ""));
    head.lines().any(|found| found.eq_ignore_ascii_case(line))
}

#[tokio::test]
async fn a_key_arrives_in_the_form_that_is_configured_below_the_base_path() {
    let path = "POST /base/v1/chat/completions";
    for (auth, target, line) in [
        ("", path.to_owned(), format!("authorization: Bearer {KEY}")),
        (
            ", auth: api-key",
            path.to_owned(),
            format!("api-key: {KEY}"),
        ),
        (
            ", auth: header, auth_name: X-Goog-Api-Key",
            path.to_owned(),
            format!("x-goog-api-key: {KEY}"),
        ),
        (
            ", auth: query, auth_name: key",
            format!("{path}?key={KEY}"),
            "accept-encoding: identity".to_owned(),
        ),
    ] {
        let server = answering().await;
        let node = Node::start(&config(&server, &format!("api_key: {KEY}{auth}"))).await;
        let answer = node.posting("", "").await.answer().await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        let request = server.requests().remove(0);
        assert!(
            request.starts_with(&format!("{target} HTTP/1.1\r\n")),
            "{request}"
        );
        assert!(has_line(&request, &line), "{request}");
        let in_head = request.matches(KEY).count();
        assert_eq!(in_head, 1, "in this form alone: {request}");
        let state = node.state().await.to_string();
        assert!(!state.contains(KEY) && !node.log().contains(KEY), "{auth}");
    }
}

#[tokio::test]
async fn headers_of_an_endpoint_replace_a_clients_and_stay_secret() {
    let server = answering().await;
    let more = "headers: { x-tenant: hidden-value, User-Agent: the gateway }";
    let node = Node::start(&config(&server, more)).await;
    let client = "User-Agent: curl/8\r\nX-Tenant: forged\r\nAccept: */*\r\n";
    let answer = node.posting(client, "").await.answer().await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let request = server.requests().remove(0);
    for line in [
        "x-tenant: hidden-value",
        "user-agent: the gateway",
        "accept: */*",
    ] {
        assert!(has_line(&request, line), "{line} in {request}");
    }
    assert!(
        !request.contains("curl") && !request.contains("forged"),
        "{request}"
    );
    let state = node.state().await.to_string();
    assert!(!state.contains("hidden-value") && !node.log().contains("hidden-value"));
}

#[tokio::test]
async fn health_is_asked_at_the_endpoints_own_path_with_its_key_as_often_as_it_says() {
    let (often, seldom) = (answering().await, answering().await);
    let endpoints = [(&often, 1), (&seldom, 3600)].map(|(server, secs)| {
        format!(
            "url: \"http://{}/base\", api_key: {KEY}, auth: api-key, headers: {{ x-tenant: t }}, \
             health: {{ path: \"/own?deep=1\", interval_secs: {secs} }}",
            server.address
        )
    });
    let _node = Node::start(&format!("models:\n{}", model("m", &endpoints, ""))).await;
    eventually("the first was asked four times", async || {
        (often.probes().len() >= 4).then_some(())
    })
    .await;
    let seldom = seldom.probes();
    assert_eq!(seldom.len(), 1, "{seldom:?}");
    for probe in often.probes().iter().chain(&seldom) {
        assert!(
            probe.starts_with("GET /base/own?deep=1 HTTP/1.1\r\n"),
            "{probe}"
        );
        assert!(has_line(probe, &format!("api-key: {KEY}")), "{probe}");
        assert!(has_line(probe, "x-tenant: t"), "{probe}");
    }
}

#[tokio::test]
async fn a_node_is_not_ready_while_a_required_model_has_no_healthy_endpoint() {
    let (server, gone) = (SimulatedServer::fast().await, RefusingServer::new());
    let models = [
        model("here", &[endpoint(server.address, 1)], ""),
        model("gone", &[endpoint(gone.address, 1)], ""),
    ];
    let config = |required: &str| {
        let models = models.concat();
        format!("readiness: {{ require_models: [{required}] }}\nmodels:\n{models}")
    };
    let node = Node::start(&config("here")).await;
    eventually("the checks have failed", async || {
        let state = node.state().await;
        (state["models"][1]["endpoints"][0]["health"] == "down").then_some(())
    })
    .await;
    assert_eq!(node.get("/readyz").await.status, 200);
    for required in ["here, gone", "\"*\""] {
        let reloaded = node.reload(&config(required)).await;
        assert_eq!(reloaded.status, 200, "{}", reloaded.text());
        let answer = node.get("/readyz").await;
        assert_eq!(
            (answer.status, answer.text()),
            (
                503,
                "not ready: no healthy endpoint for `gone`\n".to_owned()
            )
        );
    }
}
