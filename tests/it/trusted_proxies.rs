//! Proxies whose `x-forwarded-for` is believed, and everybody else, whose is not.

use std::net::Ipv4Addr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;

use crate::nodes::{member, wait_until_serving_known};
use crate::support::{
    Cluster, Http2Client, LIMIT, Node, ScriptedServer, SimulatedServer, TestClient, TestResponse,
    chat, chat_request, endpoint, eventually, json_answer, model, one_model,
};

const CHAT: &str = "/v1/chat/completions";
/// Address of a proxy that is trusted, of this machine.
const PROXY: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
const MALFORMED: &str = "infergate_forwarded_for_malformed_total";

/// A gateway that trusts [`PROXY`], with further keys of its listener and at the top.
async fn behind_proxy(listener: &str, more: &str, server: &SimulatedServer) -> Node {
    let models = one_model(server.address, 8, "");
    let trusted = "trusted_proxies: [\"127.0.0.2/32\", \"10.0.0.0/8\", \"unix\"]\n";
    Node::start(&format!("  listener: {listener}\n{trusted}{more}{models}")).await
}

/// A request with these header lines from this address of the machine.
async fn ask_from(own: Ipv4Addr, node: &Node, headers: &str) -> TestResponse {
    let mut client = TestClient::connect_from(own, node.clients).await;
    client.post(headers, CHAT, &chat("m", "")).await;
    client.response().await
}

/// Address that the event of a request from `own` has.
async fn address_from(own: Ipv4Addr, node: &Node, headers: &str) -> String {
    let answer = ask_from(own, node, headers).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let event = node.event_of(&answer).await;
    let address = event["client_address"].as_str().unwrap().to_owned();
    let trace = node.explain(answer.header("x-request-id").unwrap()).await;
    assert_eq!(trace["client_address"], *address);
    address
}

#[tokio::test]
async fn a_trusted_proxy_tells_its_client_and_nobody_else_does() {
    let server = SimulatedServer::fast().await;
    let node = behind_proxy("http2: off", "", &server).await;
    let header = "X-Forwarded-For: 198.51.100.9, 203.0.113.7, 10.9.9.9\r\n";
    assert_eq!(address_from(PROXY, &node, header).await, "203.0.113.7");
    let lines = "X-Forwarded-For: 198.51.100.9\r\nx-forwarded-for: [2a00::7]:443\r\n";
    assert_eq!(address_from(PROXY, &node, lines).await, "2a00::7");
    assert_eq!(address_from(PROXY, &node, "").await, "127.0.0.2");
    assert_eq!(node.metric(MALFORMED).await, Some(0.0));
    for spoilt in ["X-Forwarded-For: unknown\r\n", "X-Forwarded-For:\r\n"] {
        assert_eq!(address_from(PROXY, &node, spoilt).await, "127.0.0.2");
    }
    assert_eq!(node.metric(MALFORMED).await, Some(2.0));
    // From others it changes nothing, whatever it says.
    let other = Ipv4Addr::LOCALHOST;
    for ignored in [header, "X-Forwarded-For: unknown\r\n"] {
        assert_eq!(address_from(other, &node, ignored).await, "127.0.0.1");
    }
    assert_eq!(node.metric(MALFORMED).await, Some(2.0));
}

#[tokio::test]
async fn each_request_of_a_kept_connection_has_its_own_client() {
    let server = SimulatedServer::fast().await;
    let node = behind_proxy("http2: off", "", &server).await;
    let mut proxy = TestClient::connect_from(PROXY, node.clients).await;
    for (headers, expected) in [
        ("X-Forwarded-For: 203.0.113.1\r\n", "203.0.113.1"),
        ("", "127.0.0.2"),
        ("X-Forwarded-For: 203.0.113.2\r\n", "203.0.113.2"),
    ] {
        proxy.post(headers, CHAT, &chat("m", "")).await;
        let answer = proxy.response().await;
        let event = node.event_of(&answer).await;
        assert_eq!(event["client_address"], expected);
    }
}

#[tokio::test]
async fn a_client_behind_a_proxy_has_as_many_requests_as_connections_elsewhere() {
    let server = SimulatedServer::fast().await;
    let limits = "limits: { connections_per_client: 1 }\n";
    let node = behind_proxy("http2: off", limits, &server).await;
    let first = "X-Forwarded-For: 203.0.113.1\r\n";
    // Its head is read, its body is still to come: it is under way.
    let mut held = TestClient::connect_from(PROXY, node.clients).await;
    let body = chat("m", "");
    let length = body.len();
    held.send(format!(
        "POST {CHAT} HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n{first}Expect: 100-continue\r\nContent-Length: {length}\r\n\r\n"
    ))
    .await;
    assert_eq!(held.interim().await, 100);
    let over = ask_from(PROXY, &node, first).await;
    assert_eq!(over.status, 429, "{}", over.text());
    assert_eq!(over.json()["error"]["code"], "rate_limit_exceeded");
    assert_eq!(over.header("retry-after"), Some("1"));
    let other = ask_from(PROXY, &node, "X-Forwarded-For: 203.0.113.2\r\n").await;
    assert_eq!(other.status, 200, "another client, and the same proxy");
    let refused = "infergate_connections_refused_total{reason=\"per-client-limit\"}";
    assert_eq!(node.metric(refused).await, Some(1.0));
    held.send(body).await;
    assert_eq!(held.response().await.status, 200);
    // The connection is kept; its request has ended.
    eventually("the place is free again", async || {
        let again = ask_from(PROXY, &node, first).await;
        (again.status == 200).then_some(())
    })
    .await;
    // Who is no proxy is held to connections as before.
    let own = Ipv4Addr::new(127, 0, 0, 3);
    let mut kept = TestClient::connect_from(own, node.clients).await;
    kept.post(first, CHAT, &chat("m", "")).await;
    assert_eq!(kept.response().await.status, 200);
    assert_eq!(ask_from(own, &node, "").await.status, 503);
}

#[tokio::test]
async fn streams_of_http2_have_their_own_clients() {
    let server = SimulatedServer::fast().await;
    let node = behind_proxy("http2: clear", "", &server).await;
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind((PROXY, 0).into()).unwrap();
    let proxy = Http2Client::over(socket.connect(node.clients).await.unwrap()).await;
    let direct = Http2Client::over(TcpStream::connect(node.clients).await.unwrap()).await;
    for (client, header, expected) in [
        (&proxy, "203.0.113.1", "203.0.113.1"),
        (&proxy, "203.0.113.2, 10.0.0.1", "203.0.113.2"),
        (&direct, "203.0.113.1", "127.0.0.1"),
    ] {
        let mut request = chat_request();
        request
            .headers_mut()
            .insert("x-forwarded-for", header.parse().unwrap());
        let answer = client.send(request, &chat("m", "")).await.whole().await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!(node.event_of(&answer).await["client_address"], expected);
    }
}

#[tokio::test]
async fn the_address_that_a_balancer_tells_has_to_be_trusted() {
    let server = SimulatedServer::fast().await;
    let node = behind_proxy("proxy_protocol: required", "", &server).await;
    let header = "X-Forwarded-For: 203.0.113.7\r\n";
    for (balancer, expected) in [
        ("PROXY TCP4 10.1.1.1 10.0.0.1 1 2\r\n", "203.0.113.7"),
        ("PROXY TCP4 198.51.100.1 10.0.0.1 1 2\r\n", "198.51.100.1"),
        // The connection is the balancer's own.
        ("PROXY UNKNOWN\r\n", "127.0.0.1"),
    ] {
        let mut client = TestClient::connect(node.clients).await;
        client.send(balancer).await;
        client.post(header, CHAT, &chat("m", "")).await;
        let answer = client.response().await;
        assert_eq!(node.event_of(&answer).await["client_address"], expected);
    }
}

#[tokio::test]
async fn a_proxy_before_a_socket_in_the_file_system_is_trusted_by_its_name() {
    let server = SimulatedServer::fast().await;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("api.sock");
    let also = format!("http2: off }}, {{ address: \"unix:{}\"", path.display());
    let node = behind_proxy(&also, "", &server).await;
    let mut client = UnixStream::connect(&path).await.unwrap();
    let body = chat("m", "");
    let request = format!(
        "POST {CHAT} HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nX-Forwarded-For: 203.0.113.7\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    client.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    timeout(LIMIT, client.read_to_string(&mut answer))
        .await
        .unwrap()
        .unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    let event = &node.events(1).await[0];
    assert_eq!(event["client_address"], "203.0.113.7");
    assert_eq!(event["flags"]["unix_socket"], true);
}

#[tokio::test]
async fn model_servers_see_no_address_of_a_client() {
    let answer = json_answer(r#"{"choices":[{"message":{"content":"x"}}]}"#);
    let server = ScriptedServer::closing(&[&answer]).await;
    let models = one_model(server.address, 8, "");
    let node = Node::start(&format!("trusted_proxies: [\"127.0.0.0/8\"]\n{models}")).await;
    let header = "X-Forwarded-For: 203.0.113.7\r\nX-Real-IP: 203.0.113.7\r\n";
    let answer = ask_from(PROXY, &node, header).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let sent = server.requests().join("\n");
    assert!(
        sent.contains("HTTP/1.1") && !sent.contains("203.0.113.7"),
        "{sent}"
    );
}

#[tokio::test]
async fn the_node_that_answers_records_the_client_of_the_node_that_was_asked() {
    let server = SimulatedServer::fast().await;
    let models = "models:\n  - { id: m, task: text-generation, backend: openai, endpoints: [] }\n";
    let edge = format!("trusted_proxies: [\"127.0.0.2\"]\n{models}");
    let gpu = format!(
        "models:\n{}",
        model("m", &[endpoint(server.address, 4)], "")
    );
    let fleet = Cluster::start(&[member("edge", "fra", &edge), member("gpu0", "ams", &gpu)]).await;
    let [edge, gpu] = &fleet.nodes[..] else {
        panic!("two nodes")
    };
    wait_until_serving_known(edge, "gpu0").await;
    let header = "X-Forwarded-For: 203.0.113.7\r\nX-Infergate-Client-Address: 198.51.100.1\r\n";
    let answer = ask_from(PROXY, edge, header).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let event = gpu.event_of(&answer).await;
    assert_eq!(event["client_address"], "203.0.113.7");
    assert_eq!(event["path"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn a_reload_trusts_other_proxies() {
    let server = SimulatedServer::fast().await;
    let models = one_model(server.address, 8, "");
    let node = Node::start(&models).await;
    let header = "X-Forwarded-For: 203.0.113.7\r\n";
    let mut kept = TestClient::connect_from(PROXY, node.clients).await;
    let reloaded = format!("trusted_proxies: [\"127.0.0.2\"]\n{models}");
    for (expected, next) in [("127.0.0.2", &reloaded), ("203.0.113.7", &models)] {
        kept.post(header, CHAT, &chat("m", "")).await;
        let answer = kept.response().await;
        assert_eq!(node.event_of(&answer).await["client_address"], expected);
        let taken = node.reload(next).await;
        assert_eq!(taken.json()["needs_restart"], serde_json::json!([]));
    }
}

#[tokio::test]
async fn urls_of_jobs_have_the_scheme_of_the_client_as_a_trusted_proxy_tells_it() {
    let server = SimulatedServer::fast().await;
    let models = model("acme/m", &[endpoint(server.address, 2)], "");
    let config = format!("trusted_proxies: [\"127.0.0.2/32\"]\njobs: {{}}\nmodels:\n{models}");
    let node = Node::start(&config).await;
    let headers = "x-forwarded-for: 203.0.113.7\r\nx-forwarded-proto: https\r\n";
    for (own, scheme) in [(PROXY, "https://"), (Ipv4Addr::LOCALHOST, "http://")] {
        let mut client = TestClient::connect_from(own, node.clients).await;
        let input = r#"{"input":{"prompt":"hello"}}"#;
        let path = "/v1/models/acme/m/predictions";
        client.post(headers, path, input).await;
        let created = client.response().await;
        assert_eq!(created.status, 201, "{}", created.text());
        let url = created.json()["urls"]["get"].clone();
        assert!(url.as_str().unwrap().starts_with(scheme), "{own}: {url}");
    }
}
