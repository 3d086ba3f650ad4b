//! Pods of a Kubernetes service, by a list of EndpointSlices as a cluster's API answers it.

use std::net::SocketAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::{discovering_config, status, until_endpoints, until_log};
use crate::support::{Authority, Node, SimulatedServer, TlsFront, eventually};

const LIST: &str = include_str!("endpointslices.json");

/// The recorded list, the two pods that are ready in it being these servers.
fn recorded(first: &SimulatedServer, second: &SimulatedServer) -> Value {
    let port = |server: &SimulatedServer| server.address.port().to_string();
    let list = LIST
        .replace("10.244.1.23", "127.0.0.1")
        .replace("10.244.3.7", "127.0.0.1")
        .replace("8001", &port(first))
        .replace("8002", &port(second));
    serde_json::from_str(&list).unwrap()
}

/// Pages of the list, each with the `continue` token that requests it.
type Pages = Vec<(String, Value)>;

/// The cluster's API as far as it is asked, ended with the value.
struct KubernetesApi {
    address: SocketAddr,
    /// None answers 403.
    pages: Arc<Mutex<Option<Pages>>>,
    /// Heads of requests.
    asked: Arc<Mutex<Vec<String>>>,
    _tasks: JoinSet<()>,
}

impl KubernetesApi {
    async fn start() -> KubernetesApi {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (pages, asked) = (Arc::default(), Arc::default());
        let mut tasks = JoinSet::new();
        tasks.spawn({
            let (pages, asked) = (Arc::clone(&pages), Arc::clone(&asked));
            async move {
                loop {
                    let (tcp, _) = listener.accept().await.unwrap();
                    answer(tcp, &pages, &asked).await;
                }
            }
        });
        KubernetesApi {
            address,
            pages,
            asked,
            _tasks: tasks,
        }
    }

    /// Answers with this list from now on.
    fn set_list(&self, list: Value) {
        self.turn(vec![(String::new(), list)]);
    }

    /// Answers with these pages from now on.
    fn turn(&self, pages: Pages) {
        *self.pages.lock() = Some(pages);
    }
}

async fn answer(mut tcp: TcpStream, pages: &Mutex<Option<Pages>>, asked: &Mutex<Vec<String>>) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        if matches!(tcp.read_buf(&mut head).await, Ok(0) | Err(_)) {
            return;
        }
    }
    let head = String::from_utf8(head).unwrap();
    let next = head.split_once("&continue=").map_or("", |(_, rest)| rest);
    let next = next.split(' ').next().unwrap();
    let output = pages.lock().as_ref().map(|pages| {
        let page = pages.iter().find(|(of, _)| of == next);
        page.map(|(_, page)| page.clone())
    });
    let (status, body) = match output {
        None => (403, json!({ "kind": "Status", "reason": "Forbidden" })),
        Some(None) => (410, json!({ "kind": "Status", "reason": "Expired" })),
        Some(Some(page)) => (200, page),
    };
    asked.lock().push(head);
    let body = body.to_string();
    let length = body.len();
    let text = format!(
        "HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nAudit-Id: 7f1c\r\n\
         Content-Length: {length}\r\n\r\n{body}"
    );
    // A gateway that has ended needs no answer.
    let _ = tcp.write_all(text.as_bytes()).await;
}

fn of_service(more: &str) -> String {
    discovering_config(&format!(
        "kubernetes: {{ namespace: inference, service: mistral, port: http, {more} }}"
    ))
}

fn found(servers: &[&SimulatedServer]) -> Vec<(SocketAddr, Value)> {
    let at = |server: &&SimulatedServer| (server.address, json!("kubernetes"));
    servers.iter().map(at).collect()
}

#[tokio::test]
async fn pods_that_are_ready_serve_and_stay_while_the_api_refuses() {
    let (first, second) = (SimulatedServer::fast().await, SimulatedServer::fast().await);
    let api = KubernetesApi::start().await;
    api.set_list(recorded(&first, &second));
    let config = of_service(&format!(
        "api: \"http://{}\", token_file: token",
        api.address
    ));
    let node = Node::start(&config).await;
    until_log(&node, "discovery: cannot read").await;
    let token = node.dir().join("token");
    std::fs::write(&token, "a-first-token\n").unwrap();
    until_endpoints(&node, &found(&[&first, &second])).await;
    assert_eq!(status(&node).await, 200);
    let head = api.asked.lock()[0].clone();
    let asks = "GET /apis/discovery.k8s.io/v1/namespaces/inference/endpointslices\
                ?labelSelector=kubernetes.io%2Fservice-name%3Dmistral&limit=100 HTTP/1.1\r\n";
    assert!(head.starts_with(asks), "{head}");
    assert!(
        head.contains("authorization: Bearer a-first-token\r\n"),
        "{head}"
    );

    // The token rotates.
    std::fs::write(&token, "a-second-token\n").unwrap();
    eventually("the new token is sent", async || {
        let head = api.asked.lock().last().unwrap().clone();
        head.contains("Bearer a-second-token\r\n").then_some(())
    })
    .await;

    *api.pages.lock() = None;
    until_log(&node, "answered with status 403").await;
    until_endpoints(&node, &found(&[&first, &second])).await;
    assert_eq!(status(&node).await, 200);

    let mut list = recorded(&first, &second);
    list["items"][2]["endpoints"][0]["conditions"]["terminating"] = json!(true);
    api.set_list(list);
    until_endpoints(&node, &found(&[&first])).await;
    until_log(&node, "all is well again").await;
    api.set_list(json!({ "metadata": {}, "items": null }));
    until_endpoints(&node, &[]).await;
    let reported = format!("{}{}", node.log(), node.get("/state").await.text());
    assert!(!reported.contains("a-first-token") && !reported.contains("a-second-token"));
}

#[tokio::test]
async fn a_list_of_several_pages_is_taken_whole_or_not_at_all() {
    let (first, second) = (SimulatedServer::fast().await, SimulatedServer::fast().await);
    let api = KubernetesApi::start().await;
    let list = recorded(&first, &second);
    let page = |from: usize, to: usize, next: &str| {
        let items = &list["items"].as_array().unwrap()[from..to];
        json!({ "metadata": { "continue": next, "remainingItemCount": 1 }, "items": items })
    };
    // The third page has expired.
    let torn = vec![
        (String::new(), page(0, 2, "a=")),
        ("a%3D".to_owned(), page(2, 3, "b")),
    ];
    api.turn(torn.clone());
    let config = of_service(&format!("api: \"http://{}/proxy\"", api.address));
    let node = Node::start(&config).await;
    until_log(&node, "answered with status 410").await;
    until_endpoints(&node, &[]).await;
    let whole = [torn, vec![("b".to_owned(), page(3, 4, ""))]].concat();
    api.turn(whole);
    until_endpoints(&node, &found(&[&first, &second])).await;
    assert_eq!(status(&node).await, 200);
    let head = api.asked.lock()[0].clone();
    assert!(
        head.starts_with("GET /proxy/apis/discovery.k8s.io/"),
        "{head}"
    );
    assert!(!head.contains("authorization"), "{head}");
}

#[tokio::test]
async fn an_api_behind_tls_has_to_prove_itself_and_its_certificates_are_read_anew() {
    let (first, second) = (SimulatedServer::fast().await, SimulatedServer::fast().await);
    let api = KubernetesApi::start().await;
    api.set_list(recorded(&first, &second));
    let (right, wrong) = (Authority::new(), Authority::new());
    let front = TlsFront::start(&right.certify("localhost"), api.address).await;
    let dir = tempfile::tempdir().unwrap();
    let ca = wrong.write(dir.path());
    let token = dir.path().join("token");
    std::fs::write(&token, "a-token").unwrap();
    let config = of_service(&format!(
        "api: \"https://localhost:{}\", ca_file: \"{ca}\", token_file: \"{}\"",
        front.address.port(),
        token.display()
    ));
    let node = Node::start(&config).await;
    until_log(&node, "certificate is not trusted").await;
    assert_eq!(*api.asked.lock(), [""; 0]);
    right.write(dir.path());
    until_endpoints(&node, &found(&[&first, &second])).await;
    assert_eq!(status(&node).await, 200);
    let head = api.asked.lock()[0].clone();
    assert!(head.contains("authorization: Bearer a-token\r\n"), "{head}");
}
