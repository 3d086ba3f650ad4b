//! Listeners for clients: certificates, the PROXY protocol, sockets in the file system, health.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use rustls::HandshakeKind;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::{Instant, timeout};

use crate::support::{
    Authority, Certificate, Http2Client, LIMIT, Node, SimulatedServer, TestClient, chat,
    client_config, endpoint, eventually, handshake, handshake_by, model, over_tls,
};
use crate::upgrade::{upgrade, with_state};

/// Model `m` behind a listener with these keys; `more` are further keys at the top.
fn config(listener: &str, server: &SimulatedServer, more: &str) -> String {
    let models = crate::support::one_model(server.address, 8, "");
    format!("  listener: {listener}\n{more}{models}")
}

/// A request for a chat completion that asks for the connection's end.
fn request() -> String {
    let body = chat("m", "");
    format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

async fn ask_tls(node: &Node, name: &str, authority: &Authority) -> std::io::Result<String> {
    over_tls(node.clients, name, authority, None, &request()).await
}

fn is_ok(answer: &str) -> bool {
    answer.starts_with("HTTP/1.1 200 OK\r\n")
}

/// A gateway whose listener has `tls` with these keys.
async fn secured(keys: &str, server: &SimulatedServer) -> Node {
    Node::start(&config(&format!("tls: {{ {keys} }}"), server, "")).await
}

#[tokio::test]
async fn a_certificate_is_chosen_by_the_name_that_the_client_asks_for() {
    let [first, second] = [Authority::new(), Authority::new()];
    let dir = tempfile::tempdir().unwrap();
    let server = SimulatedServer::fast().await;
    let keys = format!(
        "{}, certificates: [{{ {} }}, {{ {} }}]",
        first.certify("a.example").write(dir.path(), "a"),
        second.certify("b.example").write(dir.path(), "b"),
        second.certify("*.c.example").write(dir.path(), "c"),
    );
    let node = secured(&keys, &server).await;
    for (name, authority) in [
        ("a.example", &first),
        ("b.example", &second),
        ("x.c.example", &second),
    ] {
        let answer = ask_tls(&node, name, authority).await.unwrap();
        assert!(is_ok(&answer), "{name}: {answer}");
    }
    // Shown the first one, which proves no other name.
    assert!(ask_tls(&node, "other.example", &first).await.is_err());
    assert!(ask_tls(&node, "b.example", &first).await.is_err());
    // In plain text nobody gets an answer of the gateway.
    let mut plain = TcpStream::connect(node.clients).await.unwrap();
    plain.write_all(request().as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let _ = timeout(LIMIT, plain.read_to_end(&mut answer))
        .await
        .unwrap();
    assert!(!answer.starts_with(b"HTTP/"), "{answer:?}");
    eventually("failed handshakes are counted", async || {
        let series = "infergate_connections_refused_total{reason=\"tls\"}";
        (node.metric(series).await? >= 3.0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn urls_of_jobs_that_were_created_under_tls_are_https() {
    let authority = Authority::new();
    let dir = tempfile::tempdir().unwrap();
    let server = SimulatedServer::fast().await;
    let keys = authority.certify("a.example").write(dir.path(), "a");
    let models = model("acme/m", &[endpoint(server.address, 2)], "");
    let listener = format!("  listener: tls: {{ {keys} }}\n");
    let node = Node::start(&format!("{listener}jobs: {{}}\nmodels:\n{models}")).await;
    let body = r#"{"input":{"prompt":"hello"}}"#;
    let request = format!(
        "POST /v1/models/acme/m/predictions HTTP/1.1\r\nHost: a.example\r\n\
         Content-Type: application/json\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let created = over_tls(node.clients, "a.example", &authority, None, &request);
    let created = created.await.unwrap();
    let is_https = created.contains(r#""get":"https://a.example/v1/predictions/"#);
    assert!(is_https, "{created}");
}

#[tokio::test]
async fn a_renewed_certificate_is_shown_without_a_restart_and_a_bad_one_is_not() {
    let [old, new] = [Authority::new(), Authority::new()];
    let dir = tempfile::tempdir().unwrap();
    let server = SimulatedServer::fast().await;
    let keys = old.certify("localhost").write(dir.path(), "own");
    let node = secured(&keys, &server).await;
    assert!(is_ok(&ask_tls(&node, "localhost", &old).await.unwrap()));

    std::fs::write(dir.path().join("own.crt"), "no certificate").unwrap();
    let refused = node.post_reload().await;
    assert_eq!(refused.status, 422, "{}", refused.text());
    let problem = &refused.json()["problems"][0];
    assert_eq!(problem["path"], "listen.clients[0].tls.certificate");
    let message = problem["message"].as_str().unwrap();
    assert!(message.contains("no certificate in it"), "{message}");
    assert!(is_ok(&ask_tls(&node, "localhost", &old).await.unwrap()));

    // The files are watched: nobody asks for a reload.
    new.certify("localhost").write(dir.path(), "own");
    eventually("the new certificate is shown", async || {
        let answer = ask_tls(&node, "localhost", &new).await.ok()?;
        is_ok(&answer).then_some(())
    })
    .await;
    assert!(ask_tls(&node, "localhost", &old).await.is_err());

    // One that expired is served all the same, and its trouble is shown.
    new.expired("localhost").write(dir.path(), "own");
    eventually("the log names the expired certificate", async || {
        let log = node.log();
        let shown = log.contains("listen.clients[0].tls.certificate") && log.contains("expired");
        shown.then_some(())
    })
    .await;
    assert!(ask_tls(&node, "localhost", &new).await.is_err());
}

#[tokio::test]
async fn a_reload_costs_no_client_its_session() {
    let authority = Authority::new();
    let dir = tempfile::tempdir().unwrap();
    let server = SimulatedServer::fast().await;
    let keys = authority.certify("localhost").write(dir.path(), "own");
    let node = secured(&keys, &server).await;
    let config = client_config(&authority, None, &[]);
    let connect = async || {
        let tcp = TcpStream::connect(node.clients).await.unwrap();
        let mut tls = handshake_by(tcp, "localhost", Arc::clone(&config))
            .await
            .unwrap();
        // Tickets come behind the handshake.
        tls.write_all(request().as_bytes()).await.unwrap();
        let mut answer = String::new();
        timeout(LIMIT, tls.read_to_string(&mut answer))
            .await
            .unwrap()
            .unwrap();
        assert!(is_ok(&answer), "{answer}");
        tls.get_ref().1.handshake_kind().unwrap()
    };
    assert_eq!(connect().await, HandshakeKind::Full);
    assert_eq!(connect().await, HandshakeKind::Resumed);
    let renewed = authority.certify("localhost").write(dir.path(), "renewed");
    let tls = |keys: &str| crate::listeners::config(&format!("tls: {{ {keys} }}"), &server, "");
    assert_eq!(node.reload(&tls(&renewed)).await.status, 200);
    assert_eq!(connect().await, HandshakeKind::Resumed);
    // Whoever has to show a certificate shows it, with a ticket or without.
    let asked = format!("{renewed}, client_ca: \"{}\"", authority.write(dir.path()));
    assert_eq!(node.reload(&tls(&asked)).await.status, 200);
    assert!(ask_tls(&node, "localhost", &authority).await.is_err());
    assert_eq!(node.reload(&tls(&renewed)).await.status, 200);
    assert_eq!(connect().await, HandshakeKind::Full);
}

#[tokio::test]
async fn a_connection_at_rest_ends_with_a_goodbye() {
    let authority = Authority::new();
    let dir = tempfile::tempdir().unwrap();
    let server = SimulatedServer::fast().await;
    let keys = authority.certify("localhost").write(dir.path(), "own");
    let keepalive = "timeouts: { keepalive_secs: 1 }\n";
    let node = Node::start(&config(&format!("tls: {{ {keys} }}"), &server, keepalive)).await;
    let tcp = TcpStream::connect(node.clients).await.unwrap();
    let mut tls = handshake(tcp, "localhost", &authority, None, &[])
        .await
        .unwrap();
    let kept = request().replace("Connection: close\r\n", "");
    tls.write_all(kept.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    // Without a goodbye the end is an error: the answer may have been cut.
    let read = timeout(LIMIT, tls.read_to_end(&mut answer)).await.unwrap();
    read.expect("close_notify");
    let answer = String::from_utf8(answer).unwrap();
    assert!(
        is_ok(&answer) && answer.contains("connection: keep-alive"),
        "{answer}"
    );
}

#[tokio::test]
async fn tls_comes_and_goes_with_a_reload() {
    let authority = Authority::new();
    let dir = tempfile::tempdir().unwrap();
    let server = SimulatedServer::fast().await;
    let keys = authority.certify("localhost").write(dir.path(), "own");
    let node = Node::start(&config("http2: off", &server, "")).await;
    assert_eq!(node.posting("", "").await.answer().await.status, 200);
    let reloaded = node
        .reload(&config(&format!("tls: {{ {keys} }}"), &server, ""))
        .await;
    assert_eq!(reloaded.status, 200, "{}", reloaded.text());
    assert_eq!(reloaded.json()["needs_restart"], serde_json::json!([]));
    assert!(is_ok(
        &ask_tls(&node, "localhost", &authority).await.unwrap()
    ));
    node.reload(&config("http2: off", &server, "")).await;
    assert_eq!(node.posting("", "").await.answer().await.status, 200);
}

#[tokio::test]
async fn with_client_ca_each_client_shows_a_certificate_of_it() {
    let [authority, other] = [Authority::new(), Authority::new()];
    let dir = tempfile::tempdir().unwrap();
    let server = SimulatedServer::fast().await;
    let keys = authority.certify("localhost").write(dir.path(), "own");
    let ca = authority.write(dir.path());
    let node = secured(&format!("{keys}, client_ca: \"{ca}\""), &server).await;
    let ask = async |shown: Option<&Certificate>| {
        over_tls(node.clients, "localhost", &authority, shown, &request()).await
    };
    assert!(is_ok(
        &ask(Some(&authority.certify("client"))).await.unwrap()
    ));
    assert!(ask(None).await.is_err());
    assert!(ask(Some(&other.certify("client"))).await.is_err());
    assert!(ask(Some(&authority.expired("client"))).await.is_err());
}

#[tokio::test]
async fn silent_connections_keep_no_client_from_its_handshake() {
    let authority = Authority::new();
    let dir = tempfile::tempdir().unwrap();
    let server = SimulatedServer::fast().await;
    let keys = authority.certify("localhost").write(dir.path(), "own");
    let limits = "limits: { handshakes: 2, handshake_timeout_secs: 60 }\n";
    let node = Node::start(&config(&format!("tls: {{ {keys} }}"), &server, limits)).await;
    let mut silent = Vec::new();
    for _ in 0..5 {
        silent.push(TcpStream::connect(node.clients).await.unwrap());
    }
    let evicted = "infergate_connections_refused_total{reason=\"handshake-limit\"}";
    let count = async |at_least: f64| {
        eventually("silent ones have to go", async || {
            (node.metric(evicted).await? >= at_least).then_some(())
        })
        .await;
    };
    count(3.0).await;
    let answer = ask_tls(&node, "localhost", &authority).await.unwrap();
    assert!(is_ok(&answer), "{answer}");
    count(4.0).await;
    drop(silent);
}

#[tokio::test]
async fn handshakes_over_the_rate_wait_for_their_turn_and_are_closed_when_it_does_not_come() {
    let authority = Authority::new();
    let dir = tempfile::tempdir().unwrap();
    let server = SimulatedServer::fast().await;
    let keys = authority.certify("localhost").write(dir.path(), "own");
    let limits = "limits: { handshakes_per_second: 1, handshake_timeout_secs: 3 }\n";
    let node = Node::start(&config(&format!("tls: {{ {keys} }}"), &server, limits)).await;
    // Those that send nothing take no turn.
    let mut silent = Vec::new();
    for _ in 0..5 {
        silent.push(TcpStream::connect(node.clients).await.unwrap());
    }
    let asked_at = Instant::now();
    let all = join_all((0..8).map(|_| ask_tls(&node, "localhost", &authority))).await;
    let served = all.iter().flatten().filter(|answer| is_ok(answer)).count();
    // One at once or, behind a look at the start, a second later, and one each second; the last may be in time or not.
    assert!((2..=4).contains(&served), "{served}: {all:?}");
    assert!(asked_at.elapsed() >= Duration::from_millis(900));
    let refused = "infergate_connections_refused_total{reason=\"handshake-rate\"}";
    eventually("the others are counted", async || {
        (node.metric(refused).await? >= (8 - served) as f64).then_some(())
    })
    .await;
    assert_eq!(
        node.log().matches("`limits.handshakes_per_second`").count(),
        1
    );
    // Plain text and connections that are there are not held up.
    let open = limits.replace("handshakes_per_second: 1", "handshakes_per_second: 0");
    let reloaded = node
        .reload(&config(&format!("tls: {{ {keys} }}"), &server, &open))
        .await;
    assert_eq!(reloaded.status, 200, "{}", reloaded.text());
    let all = join_all((0..8).map(|_| ask_tls(&node, "localhost", &authority))).await;
    assert!(all.iter().all(|answer| is_ok(answer.as_ref().unwrap())));
}

#[tokio::test]
async fn a_handshake_that_stalls_is_cut() {
    let authority = Authority::new();
    let dir = tempfile::tempdir().unwrap();
    let server = SimulatedServer::fast().await;
    let keys = authority.certify("localhost").write(dir.path(), "own");
    let limits = "limits: { handshake_timeout_secs: 1 }\n";
    let node = Node::start(&config(&format!("tls: {{ {keys} }}"), &server, limits)).await;
    let mut stalled = TcpStream::connect(node.clients).await.unwrap();
    // The begin of a record, and nothing behind it.
    stalled.write_all(b"\x16\x03\x01").await.unwrap();
    let mut rest = Vec::new();
    let _ = timeout(LIMIT, stalled.read_to_end(&mut rest))
        .await
        .expect("it is cut");
}

/// Sends `begin` and a request, and gives what comes back.
async fn ask_behind(node: &Node, begin: &[u8]) -> String {
    let mut client = TcpStream::connect(node.clients).await.unwrap();
    // A gateway that has closed already takes nothing.
    let _ = client
        .write_all(&[begin, request().as_bytes()].concat())
        .await;
    let mut answer = Vec::new();
    let _ = timeout(LIMIT, client.read_to_end(&mut answer))
        .await
        .unwrap();
    String::from_utf8(answer).unwrap()
}

/// A header of version 2 for this client.
fn binary_header(client: [u8; 4]) -> Vec<u8> {
    let mut header = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c".to_vec();
    header.extend([&client[..], &[10, 0, 0, 1], &[1, 2, 3, 4]].concat());
    header
}

#[tokio::test]
async fn a_client_behind_a_balancer_is_counted_by_its_own_address() {
    let server = SimulatedServer::fast().await;
    let limits = "limits: { connections_per_client: 1 }\n";
    let node = Node::start(&config("proxy_protocol: required", &server, limits)).await;
    let mut open = Vec::new();
    // Each has one connection open, through one balancer.
    for last in 1..=3 {
        let mut client = TestClient::connect(node.clients).await;
        client.send(binary_header([203, 0, 113, last])).await;
        client
            .post("", "/v1/chat/completions", &chat("m", ""))
            .await;
        assert_eq!(client.response().await.status, 200);
        open.push(client);
    }
    let over = ask_behind(&node, b"PROXY TCP4 203.0.113.1 10.0.0.1 1 2\r\n").await;
    assert_eq!(over, "");
    let other = ask_behind(&node, b"PROXY TCP4 203.0.113.9 10.0.0.1 1 2\r\n").await;
    assert!(is_ok(&other), "{other}");
    // The balancer's own checks come without an address.
    assert!(is_ok(&ask_behind(&node, b"PROXY UNKNOWN\r\n").await));
    assert_eq!(ask_behind(&node, b"").await, "");
    let counted = "infergate_connections_refused_total{reason=\"proxy-protocol\"}";
    eventually("it is counted", async || {
        (node.metric(counted).await? == 1.0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_listener_without_the_proxy_protocol_believes_no_word_of_it() {
    let server = SimulatedServer::fast().await;
    let node = Node::start(&config("http2: off", &server, "")).await;
    for begin in [
        &b"PROXY TCP4 203.0.113.1 10.0.0.1 1 2\r\n"[..],
        &binary_header([203, 0, 113, 1]),
    ] {
        let answer = ask_behind(&node, begin).await;
        assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    }
    assert_eq!(server.count("served").await, 0);
}

#[tokio::test]
async fn the_balancers_word_comes_before_the_handshake() {
    let authority = Authority::new();
    let dir = tempfile::tempdir().unwrap();
    let server = SimulatedServer::fast().await;
    let keys = authority.certify("localhost").write(dir.path(), "own");
    let keys = format!("proxy_protocol: required, tls: {{ {keys} }}");
    let node = Node::start(&config(&keys, &server, "")).await;
    let mut tcp = TcpStream::connect(node.clients).await.unwrap();
    tcp.write_all(&binary_header([203, 0, 113, 1]))
        .await
        .unwrap();
    let shaken = handshake(tcp, "localhost", &authority, None, &[]).await;
    let mut tls = shaken.unwrap();
    tls.write_all(request().as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let _ = timeout(LIMIT, tls.read_to_end(&mut answer)).await.unwrap();
    assert!(is_ok(&String::from_utf8(answer).unwrap()));
}

/// Writes a configuration that listens at a path alone.
fn unix_config(dir: &Path, path: &Path) -> std::path::PathBuf {
    let file = dir.join("alone.yaml");
    let listen = format!(
        "clients: [{{ address: \"unix:{}\" }}], admin: {{ address: \"127.0.0.1:0\" }}",
        path.display()
    );
    let state = dir.join("alone").display().to_string();
    let text =
        format!("listen: {{ {listen} }}\nstate_dir: \"{state}\"\nanonymous: allow\nmodels: []\n");
    std::fs::write(&file, text).unwrap();
    file
}

async fn ask_unix(path: &Path) -> std::io::Result<String> {
    let mut client = UnixStream::connect(path).await?;
    client.write_all(request().as_bytes()).await?;
    let mut answer = String::new();
    timeout(LIMIT, client.read_to_string(&mut answer))
        .await
        .unwrap()?;
    Ok(answer)
}

#[tokio::test]
async fn a_socket_in_the_file_system_serves_on_through_an_upgrade() {
    let (dir, server) = (tempfile::tempdir().unwrap(), SimulatedServer::fast().await);
    let path = dir.path().join("api.sock");
    let also = format!("health: false }}, {{ address: \"unix:{}\"", path.display());
    let state = dir.path().join("state");
    std::fs::create_dir(&state).unwrap();
    let mut node = Node::start(&with_state(&state, &config(&also, &server, ""))).await;
    assert!(is_ok(&ask_unix(&path).await.unwrap()));
    let next = upgrade(&node).await;
    assert!(is_ok(&ask_unix(&path).await.unwrap()));
    assert!(node.ended().await.success());
    assert!(
        is_ok(&ask_unix(&path).await.unwrap()),
        "the file is there still"
    );
    let killed = std::process::Command::new("kill")
        .arg(next.pid().to_string())
        .status();
    assert!(killed.unwrap().success());
    next.ended().await;
    assert!(!path.exists(), "it goes with the last process");
}

#[tokio::test]
async fn a_socket_in_the_file_system_serves_and_goes_with_the_gateway() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("api.sock");
    let server = SimulatedServer::fast().await;
    // A file of another kind is left as it is.
    std::fs::write(&path, "precious").unwrap();
    let bound = std::process::Command::new(env!("CARGO_BIN_EXE_infergate"))
        .args(["serve", "--config"])
        .arg(unix_config(dir.path(), &path))
        .output()
        .unwrap();
    assert!(!bound.status.success());
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
    std::fs::remove_file(&path).unwrap();
    // Left over by a process that was killed: nobody listens at it.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let also = format!("health: false }}, {{ address: \"unix:{}\"", path.display());
    let mut node = Node::start(&config(&also, &server, "")).await;
    assert!(is_ok(&ask_unix(&path).await.unwrap()));

    // Another gateway does not take it away.
    let other = format!("  listener: {also}\nmodels: []\n");
    let config = node
        .config_text(&other)
        .replace(&node.clients.to_string(), "127.0.0.1:0");
    let beside = dir.path().join("other.yaml");
    let config = config.replace(&node.admin.to_string(), "127.0.0.1:0");
    std::fs::write(&beside, config.replace("/state\"", "/other\"")).unwrap();
    let started = std::process::Command::new(env!("CARGO_BIN_EXE_infergate"))
        .args(["serve", "--config"])
        .arg(&beside)
        .output()
        .unwrap();
    assert!(!started.status.success());
    let shown = String::from_utf8_lossy(&started.stderr).into_owned();
    assert!(
        shown.contains("cannot listen on") && shown.contains("api.sock"),
        "{shown}"
    );
    assert!(is_ok(&ask_unix(&path).await.unwrap()));

    let mut leaving = UnixStream::connect(&path).await.unwrap();
    let body = chat(
        "m",
        r#","stream":true,"max_tokens":8,"x_sim_fault":"stall-mid-stream""#,
    );
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    leaving.write_all((head + &body).as_bytes()).await.unwrap();
    node.settles(1, 0).await;
    drop(leaving);
    node.settles(0, 0).await;
    node.signal("TERM");
    assert!(node.ended().await.success());
    assert!(!path.exists());
}

#[tokio::test]
async fn connections_of_every_kind_count_towards_the_limit_of_all() {
    let authority = Authority::new();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("api.sock");
    let server = SimulatedServer::fast().await;
    let keys = authority.certify("localhost").write(dir.path(), "own");
    let also = format!(
        "tls: {{ {keys} }} }}, {{ address: \"unix:{}\"",
        path.display()
    );
    let limits = "limits: { connections: 3 }\n";
    let node = Node::start(&config(&also, &server, limits)).await;
    let tls = async |protocols: &[&str]| {
        let tcp = TcpStream::connect(node.clients).await.unwrap();
        handshake(tcp, "localhost", &authority, None, protocols).await
    };
    let open = async |count: f64| {
        eventually("so many are open", async || {
            (node.metric("infergate_connections").await? == count).then_some(())
        })
        .await;
    };
    let first = tls(&[]).await.unwrap();
    let second = Http2Client::over(tls(&["h2"]).await.unwrap()).await;
    let third = UnixStream::connect(&path).await.unwrap();
    open(3.0).await;
    assert!(tls(&[]).await.is_err());
    assert!(tls(&["h2"]).await.is_err());
    let mut over = UnixStream::connect(&path).await.unwrap();
    let mut refusal = String::new();
    let read = timeout(LIMIT, over.read_to_string(&mut refusal)).await;
    read.unwrap().unwrap();
    assert!(refusal.starts_with("HTTP/1.1 503 "), "{refusal}");
    drop(first);
    open(2.0).await;
    let answer = ask_tls(&node, "localhost", &authority).await.unwrap();
    assert!(is_ok(&answer), "{answer}");
    open(2.0).await;
    drop((second, third));
    open(0.0).await;
    assert!(is_ok(&ask_unix(&path).await.unwrap()));
}

#[tokio::test]
async fn health_is_told_where_it_is_asked_for_and_nowhere_else() {
    let server = SimulatedServer::fast().await;
    let accounts = crate::support::accounts("");
    let with = |keys: &str| config(keys, &server, &accounts);
    let node = Node::start(&with("health: false")).await;
    let get = async || TestClient::try_get(node.clients, "/healthz").await.unwrap();
    assert_eq!(get().await.status, 401);
    assert_eq!(node.reload(&with("health: true")).await.status, 200);
    let shown = get().await;
    assert_eq!((shown.status, shown.text()), (200, "ok\n".to_owned()));
    let other = TestClient::try_get(node.clients, "/healthz/x")
        .await
        .unwrap();
    assert_eq!(other.status, 401);
}
