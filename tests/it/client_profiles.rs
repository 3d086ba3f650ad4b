//! Client profiles over servers by URL: model, parameters, priority and time by the `x_client_id` of a request.

use serde_json::{Value, json};

use crate::support::{
    ANSWER, Cluster, ClusterMember, Node, ScriptedServer, TestResponse, accounts, endpoint,
    eventually, json_answer, model, one_model,
};

const CHAT: &str = "/v1/chat/completions";
const KEY_A: &str = "authorization: Bearer key-a\r\n";
const KEY_B: &str = "authorization: Bearer key-b\r\n";

fn body(client: &str, name: &str) -> String {
    json!({ "model": name, "x_client_id": client, "messages": [{ "role": "user", "content": "hi" }] })
        .to_string()
}

async fn ask(node: &Node, headers: &str, client: &str, name: &str) -> TestResponse {
    node.post_as(headers, CHAT, &body(client, name)).await
}

async fn answering() -> ScriptedServer {
    ScriptedServer::new(&[&json_answer(ANSWER)]).await
}

/// Body of the latest request that a server has got.
fn sent_to(server: &ScriptedServer) -> Value {
    let request = server.requests().pop().unwrap();
    serde_json::from_str(request.split("\r\n\r\n").nth(1).unwrap()).unwrap()
}

#[tokio::test]
async fn a_profile_puts_a_model_in_the_place_of_a_name_on_each_api_and_says_so() {
    let (small, large) = (answering().await, answering().await);
    let models = [
        model("small", &[endpoint(small.address, 1)], ""),
        model("large", &[endpoint(large.address, 1)], ""),
    ]
    .concat();
    let rest = |target: &str| {
        format!(
            "models:\n{models}tasks: [{{ id: chat, candidates: [large] }}]\nclients:\n  \
             - {{ client_id: \"tagger*\", model: {{ gpt-4: {target}, large: small, x/y: chat }} }}\n"
        )
    };
    let node = Node::start(&rest("small")).await;
    for name in ["gpt-4", "large"] {
        let answer = ask(&node, "", "tagger-7", name).await;
        assert_eq!(answer.status, 200, "{name}: {}", answer.text());
        assert_eq!(answer.header("x-infergate-model"), Some("small"), "{name}");
        let event = node.event_of(&answer).await;
        assert_eq!(
            (
                &event["model_id"],
                &event["asked_model_id"],
                &event["client_id"]
            ),
            (&"small".into(), &name.into(), &"tagger-7".into())
        );
        let trace = node.explain(answer.header("x-request-id").unwrap()).await;
        assert_eq!(
            (
                &trace["client_profile"],
                &trace["requested_model"],
                &trace["model"]
            ),
            (&"tagger*".into(), &name.into(), &"small".into())
        );
    }
    let messages =
        json!({ "messages": [{ "role": "user", "content": "hi" }], "x_client_id": "tagger" });
    let in_path = node.post("/ai/run/gpt-4", &messages.to_string()).await;
    assert_eq!(in_path.status, 200, "{}", in_path.text());
    assert_eq!(sent_to(&small).get("x_client_id"), None);
    // A task takes the place of a name as a model does.
    let of_task = ask(&node, "", "tagger", "x/y").await;
    let event = node.event_of(&of_task).await;
    assert_eq!(
        (&event["model_id"], &event["asked_model_id"]),
        (&"large".into(), &"x/y".into())
    );

    // Another client means what it says.
    assert_eq!(ask(&node, "", "chat", "gpt-4").await.status, 404);
    let anonymous = r#"{"messages":[{"role":"user","content":"hi"}]}"#;
    let unknown = node.post("/ai/run/gpt-4", anonymous).await;
    assert_eq!(node.event_of(&unknown).await["reason"], "model_not_found");
    let own = ask(&node, "", "chat", "large").await;
    assert_eq!((own.status, own.header("x-infergate-model")), (200, None));
    let trace = node.explain(own.header("x-request-id").unwrap()).await;
    assert!(trace["client_profile"].is_null(), "{trace}");

    assert_eq!(node.reload(&rest("large")).await.status, 200);
    let answer = ask(&node, "", "tagger-7", "gpt-4").await;
    assert_eq!(answer.header("x-infergate-model"), Some("large"));
}

#[tokio::test]
async fn a_model_in_the_place_of_a_name_is_refused_as_if_it_were_asked_for() {
    let server = answering().await;
    let models = [
        model("own", &[endpoint(server.address, 1)], ""),
        model("denied", &[endpoint(server.address, 1)], ""),
        model(
            "hidden",
            &[endpoint(server.address, 1)],
            "    allowed_accounts: [b]\n",
        ),
    ]
    .concat();
    let clients = "clients: [{ client_id: t, model: { x: denied, y: hidden, denied: own } }]\n";
    let accounts = accounts(", models: [own]");
    let node = Node::start(&format!("{accounts}models:\n{models}{clients}")).await;
    for (name, status) in [("x", 403), ("y", 404), ("denied", 200)] {
        let answer = ask(&node, KEY_A, "t", name).await;
        assert_eq!(answer.status, status, "{name}: {}", answer.text());
    }
    for name in ["x", "y"] {
        assert_eq!(ask(&node, KEY_B, "t", name).await.status, 200, "{name}");
    }
}

#[tokio::test]
async fn defaults_of_the_profile_come_before_those_of_task_and_model_and_after_the_request() {
    let server = answering().await;
    let models = model(
        "m",
        &[endpoint(server.address, 1)],
        "    parameters: { default: { top_p: 3, seed: 3, n: 3, stop: c } }\n",
    );
    let rest = format!(
        "models:\n{models}tasks: [{{ id: chat, candidates: [m], defaults: {{ seed: 2, n: 2, top_p: 2 }} }}]\n\
         clients: [{{ client_id: t, defaults: {{ n: 1, top_p: 1 }} }}]\n"
    );
    let node = Node::start(&rest).await;
    let asked = r#"{"model":"chat","x_client_id":"t","top_p":0,"messages":[{"role":"user","content":"hi"}]}"#;
    assert_eq!(node.post(CHAT, asked).await.status, 200);
    let sent = sent_to(&server);
    let members = ["top_p", "n", "seed", "stop"].map(|name| sent[name].clone());
    assert_eq!(
        members,
        [json!(0), json!(1), json!(2), json!("c")],
        "{sent}"
    );
}

#[tokio::test]
async fn the_time_of_a_profile_shortens_that_of_model_and_caller_and_never_lengthens_it() {
    let silent = ScriptedServer::held().await;
    let models = model("m", &[endpoint(silent.address, 9)], "");
    let clients = "clients:\n  - { client_id: brief, timeout_secs: 1 }\n  - { client_id: long, timeout_secs: 200 }\n";
    let node = Node::start(&format!("models:\n{models}{clients}")).await;
    for (client, header, after_ms, from) in [
        ("brief", "", 1000, "profile"),
        ("brief", "x-infergate-timeout-ms: 300\r\n", 300, "caller"),
        ("brief", "x-infergate-timeout-ms: 9000\r\n", 1000, "profile"),
        ("long", "x-infergate-timeout-ms: 300\r\n", 300, "caller"),
    ] {
        let answer = ask(&node, header, client, "m").await;
        assert!([408, 504].contains(&answer.status), "{}", answer.text());
        let trace = node.explain(answer.header("x-request-id").unwrap()).await;
        let deadline = &trace["deadline"];
        assert_eq!(
            (&deadline["after_ms"], &deadline["from"]),
            (&after_ms.into(), &from.into()),
            "{client} {header}: {deadline}"
        );
        assert_eq!(
            deadline["profile_secs"],
            if client == "brief" { 1 } else { 200 }
        );
    }
}

#[tokio::test]
async fn the_priority_of_a_profile_is_that_of_requests_that_name_none_within_the_accounts() {
    let server = ScriptedServer::held().await;
    let queue = "    queue: { algorithm: priority, capacity: 9 }\n";
    let clients = "clients:\n  - { client_id: background, priority: 9 }\n  - { client_id: urgent, priority: 0 }\n";
    let accounts = accounts(", max_priority: 0");
    let config = accounts + &one_model(server.address, 1, queue) + clients;
    let node = Node::start(&config).await;
    let post = async |key: &str, tag: &str, more: &str| {
        let more = format!(r#","user":"{tag}"{more}"#);
        node.posting(key, &more).await
    };
    let mut waiting = vec![post(KEY_A, "holder", "").await];
    node.settles(1, 0).await;
    for (key, tag, more) in [
        (KEY_A, "background", r#","x_client_id":"background""#),
        (KEY_B, "urgent of b is 5", r#","x_client_id":"urgent""#),
        (
            KEY_A,
            "own word",
            r#","x_client_id":"background","x_priority":4"#,
        ),
        (KEY_A, "urgent", r#","x_client_id":"urgent""#),
    ] {
        waiting.push(post(key, tag, more).await);
        node.settles(1, waiting.len() as u64 - 1).await;
    }
    for served in 1..=waiting.len() {
        eventually("the next request is at the server", async || {
            (server.requests().len() >= served).then_some(())
        })
        .await;
        server.next();
    }
    for posted in waiting {
        assert_eq!(posted.answer().await.status, 200);
    }
    let tag = |request: &String| {
        let rest = request.split_once(r#""user":""#).unwrap().1;
        rest.split_once('"').unwrap().0.to_owned()
    };
    let order: Vec<String> = server.requests().iter().map(tag).collect();
    let expected = [
        "holder",
        "urgent",
        "own word",
        "urgent of b is 5",
        "background",
    ];
    assert_eq!(order, expected);
}

#[tokio::test]
async fn a_request_that_another_node_serves_has_its_profile_there_and_its_model_once() {
    let server = answering().await;
    let profile = "clients: [{ client_id: t, model: { x: m, m: e }, defaults: { seed: 7 } }]\n";
    let elsewhere = |id: &str| {
        format!("  - {{ id: {id}, task: text-generation, backend: openai, endpoints: [] }}\n")
    };
    let rest = |m: String| format!("models:\n{m}{}{profile}", elsewhere("e"));
    let member = |name, rest| ClusterMember {
        name,
        site: "fra",
        rest,
    };
    let here = rest(elsewhere("m"));
    let there = rest(model("m", &[endpoint(server.address, 1)], ""));
    let fleet = Cluster::start(&[member("edge", here), member("gpu", there)]).await;
    let (edge, gpu) = (&fleet.nodes[0], &fleet.nodes[1]);
    eventually("what the other node serves is known", async || {
        let known = edge.state().await["nodes"][0]["models"].as_u64();
        known.filter(|models| *models > 0)
    })
    .await;
    let answer = ask(edge, "", "t", "x").await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.header("x-infergate-model"), Some("m"));
    let event = gpu.event_of(&answer).await;
    assert_eq!(
        (&event["model_id"], &event["asked_model_id"], &event["node"]),
        (&"m".into(), &"x".into(), &"gpu".into())
    );
    assert_eq!(sent_to(&server)["seed"], 7);
}
