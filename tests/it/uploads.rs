//! Large forms go on to their server as they come: nothing of a file is kept, and nothing is sent twice.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::BytesMut;
use http::Request;
use parking_lot::Mutex;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::support::{
    Authority, Http2Client, Http2Server, Node, TestClient, TestResponse, eventually,
};

const PATH: &str = "/v1/audio/transcriptions";
/// Of a file: above what is read whole.
const FILE_BYTES: usize = 3 << 20;
const PIECE: usize = 256 << 10;
/// Of it, in the same write as the head.
const BEGIN_BYTES: usize = 300 << 10;
const END: &str = "\r\n--b--\r\n";

/// What a server does with a form.
#[derive(Clone, Copy)]
enum Manner {
    /// Reads all of it, and answers with its length.
    Reads,
    /// Closes after so many bytes.
    Closes(usize),
    /// Answers 413 after so many bytes, and closes.
    Refuses(usize),
    /// Reads no body.
    Stalls,
    /// Sends the head of its answer once so many bytes have come, and the answer at the end.
    Begins(usize),
}

/// A server of forms.
struct FormServer {
    address: SocketAddr,
    /// Bodies as far as each has come.
    bodies: Arc<Mutex<Vec<Vec<u8>>>>,
    _tasks: JoinSet<()>,
}

impl FormServer {
    async fn start(manner: Manner) -> FormServer {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let bodies = Arc::<Mutex<Vec<Vec<u8>>>>::default();
        let mut tasks = JoinSet::new();
        let shown = Arc::clone(&bodies);
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((tcp, _)) = listener.accept().await {
                connections.spawn(serve(tcp, manner, Arc::clone(&shown)));
            }
        });
        FormServer {
            address,
            bodies,
            _tasks: tasks,
        }
    }

    fn come(&self) -> usize {
        self.bodies.lock().iter().map(Vec::len).sum()
    }

    fn forms(&self) -> usize {
        self.bodies.lock().len()
    }
}

/// Serves a connection until one side closes it.
async fn serve(mut tcp: TcpStream, manner: Manner, bodies: Arc<Mutex<Vec<Vec<u8>>>>) {
    let mut read = BytesMut::new();
    loop {
        let end = loop {
            if let Some(end) = read.windows(4).position(|it| it == b"\r\n\r\n") {
                break end + 4;
            }
            if !matches!(tcp.read_buf(&mut read).await, Ok(1..)) {
                return;
            }
        };
        let head = String::from_utf8(read.split_to(end).to_vec())
            .unwrap()
            .to_lowercase();
        let length = head.split("content-length: ").nth(1);
        let length = length.map_or(0, |it| it.split("\r\n").next().unwrap().parse().unwrap());
        let place = match head.starts_with("post") {
            true => {
                let mut bodies = bodies.lock();
                bodies.push(Vec::new());
                bodies.len() - 1
            }
            false => usize::MAX,
        };
        if length > 0 && matches!(manner, Manner::Stalls) {
            return std::future::pending().await;
        }
        let text = format!(r#"{{"text":"{length}"}}"#);
        let whole = answer("200 OK", &text);
        let (begin, end) = whole.split_at(whole.len() - text.len());
        let (mut come, mut is_answering) = (0, false);
        while come < length {
            if read.is_empty() && !matches!(tcp.read_buf(&mut read).await, Ok(1..)) {
                return;
            }
            let piece = read.split_to(read.len().min(length - come));
            come += piece.len();
            bodies.lock()[place].extend_from_slice(&piece);
            match manner {
                Manner::Closes(after) if come >= after => return,
                Manner::Begins(after) if come >= after && !is_answering => {
                    is_answering = true;
                    tcp.write_all(begin.as_bytes()).await.unwrap();
                }
                Manner::Refuses(after) if come >= after => {
                    let refusal =
                        r#"{"error":{"message":"too long","type":"invalid_request_error"}}"#;
                    let _ = tcp
                        .write_all(answer("413 Too Large", refusal).as_bytes())
                        .await;
                    return;
                }
                _ => {}
            }
        }
        let rest = if is_answering { end } else { &whole };
        if tcp.write_all(rest.as_bytes()).await.is_err() {
            return;
        }
    }
}

fn answer(status: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    )
}

/// The model of some servers.
async fn node(servers: &[&FormServer]) -> Node {
    node_with(servers, "").await
}

/// The same with further keys of the model.
async fn node_with(servers: &[&FormServer], more: &str) -> Node {
    let endpoints = servers.iter().map(|server| {
        let url = server.address;
        format!("{{ url: \"http://{url}\", backend_model: whisper-1, max_concurrent_requests: 2 }}")
    });
    let endpoints = endpoints.collect::<Vec<_>>().join(", ");
    Node::start(&format!(
        "  listener: http2: clear\nmodels:\n  - {{ id: m, task: automatic-speech-recognition, backend: openai, \
         tariff: {{ coefficients: {{ audio_bytes: 1 }} }}, endpoints: [{endpoints}]{more} }}\n"
    ))
    .await
}

/// A form up to as much of its file as shows that its client is quick.
fn start(before: &str) -> String {
    let head = "Content-Disposition: form-data; name=\"file\"; filename=\"a.mp3\"";
    format!("{before}--b\r\n{head}\r\n\r\n{}", "0".repeat(BEGIN_BYTES))
}

fn field(name: &str, value: &str) -> String {
    format!("--b\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n")
}

/// A client that has sent the head of a form, the beginning of the form and of its file.
async fn begin(node: &Node, start: &str, end: &str) -> TestClient {
    let mut client = TestClient::connect(node.clients).await;
    let length = start.len() + FILE_BYTES + end.len();
    let head = format!(
        "POST {PATH} HTTP/1.1\r\nhost: h\r\ncontent-type: multipart/form-data; boundary=b\r\ncontent-length: {length}\r\n\r\n"
    );
    client.send(head + start).await;
    client
}

async fn send_file(client: &mut TestClient, bytes: usize) {
    let piece = vec![b'x'; PIECE];
    for at in (0..bytes).step_by(PIECE) {
        client.send(&piece[..PIECE.min(bytes - at)]).await;
    }
}

async fn send(node: &Node) -> TestResponse {
    let start = start(&field("model", "m"));
    let mut client = begin(node, &start, END).await;
    send_file(&mut client, FILE_BYTES).await;
    client.send(END).await;
    client.response().await
}

#[tokio::test]
async fn a_server_has_the_beginning_before_its_client_has_sent_the_end() {
    let server = FormServer::start(Manner::Reads).await;
    let node = node(&[&server]).await;
    let start = start(&field("model", "m"));
    let mut client = begin(&node, &start, END).await;
    eventually("the server has the beginning", async || {
        (server.come() > BEGIN_BYTES).then_some(())
    })
    .await;
    send_file(&mut client, PIECE).await;
    eventually("and a piece", async || {
        (server.come() > BEGIN_BYTES + PIECE).then_some(())
    })
    .await;
    assert_eq!(node.permits_used().await, 1);
    send_file(&mut client, FILE_BYTES - PIECE).await;
    client.send(END).await;
    let response = client.response().await;
    assert_eq!(response.status, 200, "{}", response.text());
    let expected = start.replacen("\r\n\r\nm\r\n", "\r\n\r\nwhisper-1\r\n", 1);
    let expected = [expected.as_bytes(), &vec![b'x'; FILE_BYTES], END.as_bytes()].concat();
    assert_eq!(response.json()["text"], expected.len().to_string());
    assert!(
        server.bodies.lock()[0] == expected,
        "the form is not the client's"
    );
    let event = node.event_of(&response).await;
    assert_eq!(
        event["metrics"]["audio_bytes"],
        json!(FILE_BYTES + BEGIN_BYTES),
        "{event}"
    );
    node.settles(0, 0).await;
    // The connection of each side goes on.
    send_again(&node, client).await;
    assert_eq!(server.forms(), 2);
}

async fn send_again(node: &Node, mut client: TestClient) {
    let start = start(&field("model", "m"));
    let length = start.len() + FILE_BYTES + END.len();
    let head = format!(
        "POST {PATH} HTTP/1.1\r\nhost: h\r\ncontent-type: multipart/form-data; boundary=b\r\ncontent-length: {length}\r\n\r\n"
    );
    client.send(head + &start).await;
    send_file(&mut client, FILE_BYTES).await;
    client.send(END).await;
    assert_eq!(client.response().await.status, 200);
    node.settles(0, 0).await;
}

#[tokio::test]
async fn forms_of_http2_go_on_too_and_forms_with_the_file_first_are_read_whole() {
    let server = FormServer::start(Manner::Reads).await;
    let node = node(&[&server]).await;
    let file = format!("{}{}\r\n", start(""), "x".repeat(FILE_BYTES));
    let last = [field("model", "m"), "--b--\r\n".to_owned()].concat();
    for form in [
        format!(
            "{}{}",
            start(&field("model", "m")),
            "x".repeat(FILE_BYTES) + END
        ),
        file + &last,
    ] {
        let tcp = TcpStream::connect(node.clients).await.unwrap();
        let client = Http2Client::over(tcp).await;
        let request = Request::post(format!("http://h{PATH}"))
            .header("content-type", "multipart/form-data; boundary=b")
            .header("content-length", form.len());
        let request = client.send(request.body(()).unwrap(), &form).await;
        let response = request.whole().await;
        assert_eq!(response.status, 200, "{}", response.text());
        assert_eq!(response.json()["text"], (form.len() + 8).to_string());
    }
    node.settles(0, 0).await;
}

#[tokio::test]
async fn a_client_that_leaves_while_it_sends_gives_its_permit_back() {
    let server = FormServer::start(Manner::Reads).await;
    let node = node(&[&server]).await;
    for (nth, is_reset) in [false, true].into_iter().enumerate() {
        let mut client = begin(&node, &start(&field("model", "m")), END).await;
        send_file(&mut client, PIECE).await;
        eventually("the server has a form", async || {
            (server.forms() > nth).then_some(())
        })
        .await;
        match is_reset {
            true => client.reset(),
            false => client.close(),
        }
        node.settles(0, 0).await;
    }
    // A part of a form is no work.
    for event in node.events(2).await {
        assert_eq!(event["outcome"], "cut-by-client", "{event}");
        assert!(event["neurons"].as_f64().unwrap_or(0.0) == 0.0, "{event}");
    }
    assert_eq!(send(&node).await.status, 200);
    let state = node.state().await;
    assert_eq!(
        state["models"][0]["endpoints"][0]["health"], "healthy",
        "{state}"
    );
}

#[tokio::test]
async fn what_a_server_has_had_a_piece_of_goes_to_no_other() {
    let first = FormServer::start(Manner::Closes(PIECE * 2)).await;
    let second = FormServer::start(Manner::Closes(PIECE * 2)).await;
    let node = node(&[&first, &second]).await;
    let response = send(&node).await;
    assert_eq!(response.status, 502, "{}", response.text());
    assert_eq!(first.forms() + second.forms(), 1);
    node.settles(0, 0).await;
    let event = node.event_of(&response).await;
    assert_eq!(
        (&event["attempts"], &event["reason"]),
        (&json!(1), &json!("upstream_failed")),
        "{event}"
    );
}

#[tokio::test]
async fn a_server_that_is_not_there_has_had_nothing_and_another_one_gets_the_whole() {
    let server = FormServer::start(Manner::Reads).await;
    let absent = FormServer {
        address: TcpListener::bind("127.0.0.1:0")
            .await
            .unwrap()
            .local_addr()
            .unwrap(),
        bodies: Arc::default(),
        _tasks: JoinSet::new(),
    };
    let node = node(&[&absent, &server]).await;
    for _ in 0..4 {
        let response = send(&node).await;
        assert_eq!(response.status, 200, "{}", response.text());
    }
    assert!(
        server
            .bodies
            .lock()
            .iter()
            .all(|body| body.ends_with(END.as_bytes()))
    );
    node.settles(0, 0).await;
}

#[tokio::test]
async fn a_server_of_http2_gets_a_form_as_it_comes() {
    let authority = Authority::new();
    let server = Http2Server::start(&authority.certify("localhost"), 100).await;
    let ca = tempfile::tempdir().unwrap();
    let node = Node::start(&format!(
        "models:\n  - {{ id: m, task: automatic-speech-recognition, backend: openai, endpoints: [{{ \
         url: \"https://localhost:{}\", http2: auto, ca_file: \"{}\", max_concurrent_requests: 2 }}] }}\n",
        server.address.port(),
        authority.write(ca.path())
    ))
    .await;
    server.probed().await;
    for _ in 0..2 {
        let response = send(&node).await;
        assert_eq!(response.status, 200, "{}", response.text());
    }
    let length = start(&field("model", "m")).len() + FILE_BYTES + END.len();
    let heads = server.heads();
    assert_eq!(heads[0].headers["content-length"], length.to_string());
    // A client that leaves has its stream reset.
    let mut client = begin(&node, &start(&field("model", "m")), END).await;
    send_file(&mut client, PIECE).await;
    eventually("the server has it", async || {
        (server.posts() == 3).then_some(())
    })
    .await;
    client.close();
    node.settles(0, 0).await;
    eventually("the server sees it", async || {
        (server.canceled() == 1).then_some(())
    })
    .await;
    assert_eq!(server.heads().len(), 2);
}

#[tokio::test]
async fn a_server_that_takes_nothing_has_its_time_for_the_head_and_is_blamed() {
    let server = FormServer::start(Manner::Stalls).await;
    let node = node_with(&[&server], ", first_byte_timeout_secs: 1").await;
    let start = start(&field("model", "m"));
    let mut client = TestClient::connect(node.clients).await;
    // More than the buffers of three sockets hold.
    let length = start.len() + 8 * FILE_BYTES;
    let head = format!(
        "POST {PATH} HTTP/1.1\r\nhost: h\r\ncontent-type: multipart/form-data; boundary=b\r\ncontent-length: {length}\r\n\r\n"
    );
    client.send(head + &start).await;
    let sending = async {
        let piece = vec![b'x'; PIECE];
        loop {
            client.send(&piece).await;
        }
    };
    let event = tokio::select! {
        () = sending => unreachable!("it never ends"),
        event = node.events(1) => event.into_iter().next().unwrap(),
    };
    assert_eq!(event["reason"], "upstream_timeout", "{event}");
    node.settles(0, 0).await;
    assert!(
        node.log().contains("first byte late"),
        "the server is not blamed"
    );
}

#[tokio::test]
async fn a_server_that_begins_to_answer_while_it_reads_gets_the_rest() {
    let server = FormServer::start(Manner::Begins(BEGIN_BYTES + PIECE)).await;
    let node = node(&[&server]).await;
    for _ in 0..2 {
        let response = send(&node).await;
        assert_eq!(response.status, 200, "{}", response.text());
        assert!(response.json()["text"].is_string(), "{}", response.text());
    }
    assert!(
        server
            .bodies
            .lock()
            .iter()
            .all(|body| body.ends_with(END.as_bytes()))
    );
    node.settles(0, 0).await;
}

#[tokio::test]
async fn a_server_that_refuses_before_the_end_is_heard() {
    let server = FormServer::start(Manner::Refuses(BEGIN_BYTES + PIECE)).await;
    let node = node(&[&server]).await;
    let mut client = begin(&node, &start(&field("model", "m")), END).await;
    send_file(&mut client, 2 * PIECE).await;
    let response = client.response().await;
    assert_eq!(response.status, 413, "{}", response.text());
    assert_eq!(response.header("connection"), Some("close"));
    node.settles(0, 0).await;
}

#[tokio::test]
async fn a_field_behind_the_file_cannot_name_another_model() {
    let server = FormServer::start(Manner::Reads).await;
    let node = node(&[&server]).await;
    for (late, message) in [
        (field("model", "other"), "`model` must stand once"),
        (field("stream", "true"), "`stream` must stand once"),
        (start(""), "`file` must stand once"),
        ("--b\r\nx".to_owned(), "boundary is missing"),
    ] {
        let end = format!("\r\n{late}{END}");
        let end = match late.starts_with("--b\r\nx") {
            true => "\r\n--b\r\nx".to_owned(),
            false => end,
        };
        let mut client = begin(&node, &start(&field("model", "m")), &end).await;
        send_file(&mut client, FILE_BYTES).await;
        client.send(&end).await;
        let response = client.response().await;
        assert_eq!(response.status, 400, "{}", response.text());
        assert!(response.text().contains(message), "{}", response.text());
        node.settles(0, 0).await;
        let bodies = server.bodies.lock();
        let last = bodies.last().unwrap();
        assert!(
            !last.ends_with(end.as_bytes()),
            "a form with a late field came whole"
        );
    }
}

#[tokio::test]
async fn a_client_that_stops_in_its_file_is_told_after_the_idle_time() {
    let server = FormServer::start(Manner::Reads).await;
    let url = server.address;
    let node = Node::start(&format!(
        "timeouts: {{ request_body_idle_secs: 1 }}\nmodels:\n  - {{ id: m, task: automatic-speech-recognition, \
         backend: openai, endpoints: [{{ url: \"http://{url}\", max_concurrent_requests: 2 }}] }}\n"
    ))
    .await;
    let mut client = begin(&node, &start(&field("model", "m")), END).await;
    send_file(&mut client, PIECE).await;
    let response = client.response().await;
    assert_eq!(response.status, 408, "{}", response.text());
    node.settles(0, 0).await;
}
