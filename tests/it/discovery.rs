//! Endpoints that are found serve like configured ones, and what cannot be read changes nothing.

mod kubernetes;

use std::net::SocketAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::support::{Node, STREAM_HEAD, ScriptedServer, SimulatedServer, chat, chunk, eventually};

/// A model `m` without configured endpoints.
fn discovering_config(discovery: &str) -> String {
    format!(
        "models:\n  - id: m\n    task: text-generation\n    backend: openai\n    \
         discovery: {{ {discovery}, every_secs: 1 }}\n"
    )
}

/// URL and source of each endpoint, by URL.
async fn endpoints(node: &Node) -> Vec<(String, Value)> {
    let state = node.state().await;
    let list = state["models"][0]["endpoints"].as_array().unwrap();
    let reported = list.iter().map(|endpoint| {
        let url = endpoint["url"].as_str().unwrap().to_owned();
        (url, endpoint["source"].clone())
    });
    let mut reported: Vec<_> = reported.collect();
    reported.sort_by(|a, b| a.0.cmp(&b.0));
    reported
}

async fn until_endpoints(node: &Node, expected: &[(SocketAddr, Value)]) {
    let mut expected: Vec<_> = expected
        .iter()
        .map(|(address, source)| (format!("http://{address}"), source.clone()))
        .collect();
    expected.sort_by(|a, b| a.0.cmp(&b.0));
    eventually(&format!("the endpoints are {expected:?}"), async || {
        (endpoints(node).await == expected).then_some(())
    })
    .await;
}

async fn until_log(node: &Node, part: &str) {
    eventually(&format!("the log says {part:?}"), async || {
        node.log().contains(part).then_some(())
    })
    .await;
}

async fn status(node: &Node) -> u16 {
    let answer = node.post("/v1/chat/completions", &chat("m", "")).await;
    answer.status
}

/// The file takes the place of the former one as a whole.
fn write_list(node: &Node, text: &str) {
    let beside = node.dir().join("endpoints.json.next");
    std::fs::write(&beside, text).unwrap();
    std::fs::rename(beside, node.dir().join("endpoints.json")).unwrap();
}

fn list(addresses: &[SocketAddr]) -> String {
    let urls: Vec<_> = addresses.iter().map(|at| format!("http://{at}")).collect();
    json!(urls).to_string()
}

/// A server whose stream waits in the middle.
async fn streaming() -> ScriptedServer {
    let delta = |text: &str| {
        chunk(&format!(
            "data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"{text}\"}}}}]}}\n\n"
        ))
    };
    let first = format!("{STREAM_HEAD}{}", delta("one"));
    let rest = format!("{}{}0\r\n\r\n", delta("two"), chunk("data: [DONE]\n\n"));
    ScriptedServer::new(&[&first, &rest]).await
}

#[tokio::test]
async fn endpoints_of_a_file_come_and_go_and_a_stream_at_one_that_went_ends_well() {
    let (old, new) = (streaming().await, SimulatedServer::fast().await);
    let node = Node::start(&discovering_config("file: endpoints.json")).await;
    // Nothing is found yet, and the log says why.
    until_log(&node, "discovery: cannot be read").await;
    assert_eq!(endpoints(&node).await, []);
    assert_eq!(status(&node).await, 429);

    write_list(&node, &list(&[old.address]));
    until_endpoints(&node, &[(old.address, json!("file"))]).await;
    let mut client = node.posting("", r#","stream":true"#).await.0;
    client.saw("one").await;

    write_list(&node, &list(&[new.address]));
    let moved = [(old.address, Value::Null), (new.address, json!("file"))];
    until_endpoints(&node, &moved).await;
    for _ in 0..3 {
        assert_eq!(status(&node).await, 200);
    }
    assert_eq!(old.requests().len(), 1);
    old.next();
    let answer = client.response().await;
    assert!(!answer.broken);
    assert_eq!(answer.events().last().unwrap(), "[DONE]");
    assert_eq!(old.gone(), 0);
    // Forgotten with its last request.
    until_endpoints(&node, &[(new.address, json!("file"))]).await;

    let reported = [
        (r#"infergate_endpoints_discovered{model="m"}"#, 1.0),
        (
            r#"infergate_endpoint_changes_total{model="m",change="appeared"}"#,
            2.0,
        ),
        (
            r#"infergate_endpoint_changes_total{model="m",change="disappeared"}"#,
            1.0,
        ),
    ];
    for (series, expected) in reported {
        eventually(series, async || {
            (node.metric(series).await == Some(expected)).then_some(())
        })
        .await;
    }
    for line in ["endpoint appeared", "endpoint disappeared"] {
        let log = node.log();
        let reported = log
            .lines()
            .find(|reported| reported.contains(line))
            .unwrap();
        let parts = ["model=", "source=", &format!("http://{}", old.address)];
        assert!(
            parts.iter().all(|part| reported.contains(part)),
            "{reported}"
        );
    }
    // It is one configuration all the while.
    assert_eq!(node.state().await["config"]["generation"], 1);
}

#[tokio::test]
async fn a_file_that_cannot_be_used_keeps_what_was_found_and_an_empty_list_empties() {
    let server = SimulatedServer::fast().await;
    let node = Node::start(&discovering_config("file: endpoints.json")).await;
    write_list(&node, &list(&[server.address]));
    let found = [(server.address, json!("file"))];
    until_endpoints(&node, &found).await;

    write_list(&node, "[");
    until_log(&node, "is no JSON list").await;
    until_endpoints(&node, &found).await;
    assert_eq!(status(&node).await, 200);

    // A reload keeps it too, with what the configuration says of found endpoints now.
    let template = "file: endpoints.json, max_concurrent_requests: 7";
    assert_eq!(node.reload(&discovering_config(template)).await.status, 200);
    let endpoint = node.state().await["models"][0]["endpoints"][0].clone();
    assert_eq!(endpoint["permits"]["limit"], 7);
    assert_eq!(status(&node).await, 200);

    let more = format!(
        r#"[{{"url":"http://{}","max_concurrent_requests":9}}]"#,
        server.address
    );
    write_list(&node, &more);
    eventually("the endpoint's own permits count", async || {
        let endpoint = node.state().await["models"][0]["endpoints"][0].clone();
        (endpoint["permits"]["limit"] == 9).then_some(())
    })
    .await;

    write_list(&node, "[]");
    until_endpoints(&node, &[]).await;
    assert_eq!(status(&node).await, 429);
}

/// Consul's HTTP API as far as it is asked, ended with the value.
pub struct Consul {
    pub address: SocketAddr,
    /// Response from now on; `None` closes the connection without one.
    answer: Arc<Mutex<Option<(u16, String)>>>,
    /// Heads of requests.
    pub asked: Arc<Mutex<Vec<String>>>,
    _tasks: JoinSet<()>,
}

impl Consul {
    pub async fn start() -> Consul {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (answer, asked) = (Arc::new(Mutex::new(None)), Arc::default());
        let mut tasks = JoinSet::new();
        tasks.spawn({
            let (answer, asked) = (Arc::clone(&answer), Arc::clone(&asked));
            async move {
                loop {
                    let (tcp, _) = listener.accept().await.unwrap();
                    answer_once(tcp, &answer, &asked).await;
                }
            }
        });
        Consul {
            address,
            answer,
            asked,
            _tasks: tasks,
        }
    }

    /// Answers so from now on.
    pub fn set_response(&self, status: u16, body: impl ToString) {
        *self.answer.lock() = Some((status, body.to_string()));
    }
}

async fn answer_once(
    mut tcp: TcpStream,
    answer: &Mutex<Option<(u16, String)>>,
    asked: &Mutex<Vec<String>>,
) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        if matches!(tcp.read_buf(&mut head).await, Ok(0) | Err(_)) {
            return;
        }
    }
    asked.lock().push(String::from_utf8(head).unwrap());
    let output = answer.lock().clone();
    let Some((status, body)) = output else { return };
    let length = body.len();
    let text = format!(
        "HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nX-Consul-Index: 7\r\n\
         Content-Length: {length}\r\n\r\n{body}"
    );
    // A gateway that has ended needs no answer.
    let _ = tcp.write_all(text.as_bytes()).await;
}

/// An entry of `/v1/health/service/NAME`.
pub fn instance(address: SocketAddr) -> Value {
    json!({
        "Node": { "ID": "n1", "Node": "n1", "Address": "192.0.2.1", "Datacenter": "dc1" },
        "Service": {
            "ID": format!("llama-{}", address.port()),
            "Service": "llama",
            "Tags": ["gpu"],
            "Address": address.ip().to_string(),
            "Port": address.port(),
            "Weights": { "Passing": 1, "Warning": 1 },
        },
        "Checks": [{ "CheckID": "serfHealth", "Status": "passing" }],
    })
}

#[tokio::test]
async fn instances_of_a_consul_service_serve_and_stay_while_consul_is_down() {
    let (first, second) = (SimulatedServer::fast().await, SimulatedServer::fast().await);
    let consul = Consul::start().await;
    consul.set_response(200, json!([instance(first.address)]));
    let config = discovering_config(&format!(
        "consul: {{ url: \"http://{}\", service: llama, tag: gpu, token: a-secret }}",
        consul.address
    ));
    let node = Node::start(&config).await;
    let one = [(first.address, json!("consul"))];
    until_endpoints(&node, &one).await;
    assert_eq!(status(&node).await, 200);
    let head = consul.asked.lock()[0].clone();
    assert!(
        head.starts_with("GET /v1/health/service/llama?passing=1&tag=gpu HTTP/1.1\r\n"),
        "{head}"
    );
    assert!(
        head.contains("authorization: Bearer a-secret\r\n"),
        "{head}"
    );

    for (status_code, body, output) in [
        (500, "rpc error", "answered with status 500"),
        (200, "{}", "is not a list of instances"),
    ] {
        consul.set_response(status_code, body);
        until_log(&node, output).await;
        until_endpoints(&node, &one).await;
        assert_eq!(status(&node).await, 200);
    }
    *consul.answer.lock() = None;
    until_log(&node, "no answer: ").await;
    assert_eq!(status(&node).await, 200);

    consul.set_response(
        200,
        json!([instance(second.address), instance(first.address)]),
    );
    let both = [
        (first.address, json!("consul")),
        (second.address, json!("consul")),
    ];
    until_endpoints(&node, &both).await;
    until_log(&node, "all is well again").await;
    consul.set_response(200, "[]");
    until_endpoints(&node, &[]).await;
    assert!(!node.log().contains("a-secret"));
    assert!(!node.get("/state").await.text().contains("a-secret"));
}

#[tokio::test]
async fn a_stream_at_an_instance_that_left_ends_well() {
    let (old, new) = (streaming().await, SimulatedServer::fast().await);
    let consul = Consul::start().await;
    consul.set_response(200, json!([instance(old.address)]));
    let config = discovering_config(&format!(
        "consul: {{ url: \"http://{}\", service: llama }}",
        consul.address
    ));
    let node = Node::start(&config).await;
    until_endpoints(&node, &[(old.address, json!("consul"))]).await;
    let mut client = node.posting("", r#","stream":true"#).await.0;
    client.saw("one").await;
    consul.set_response(200, json!([instance(new.address)]));
    let moved = [(old.address, Value::Null), (new.address, json!("consul"))];
    until_endpoints(&node, &moved).await;
    assert_eq!(status(&node).await, 200);
    old.next();
    let answer = client.response().await;
    assert!(!answer.broken);
    assert_eq!(answer.events().last().unwrap(), "[DONE]");
    assert_eq!(old.requests().len(), 1);
}

#[tokio::test]
async fn every_address_of_a_name_is_an_endpoint_beside_the_configured_ones() {
    let (named, configured) = (SimulatedServer::fast().await, SimulatedServer::fast().await);
    let config = format!(
        "{}    endpoints: [{{ url: \"http://{}\" }}]\n",
        discovering_config(&format!("dns: \"localhost:{}\"", named.address.port())),
        configured.address
    );
    let node = Node::start(&config).await;
    // The name may have an address of the other family too, at which nobody listens.
    let all = eventually("the name's addresses are endpoints", async || {
        let all = endpoints(&node).await;
        let url = format!("http://{}", named.address);
        all.contains(&(url, json!("dns"))).then_some(all)
    })
    .await;
    assert!(all.contains(&(format!("http://{}", configured.address), json!("config"))));
    assert!((2..=3).contains(&all.len()), "{all:?}");
    eventually("the found server serves as well", async || {
        node.post("/v1/chat/completions", &chat("m", "")).await;
        (named.count("served").await > 0).then_some(())
    })
    .await;
}
