//! Files: uploads with flat memory, signed downloads, limits, and files in the inputs of jobs.
//!
//! Requests are those of the Replicate API.

use std::fmt::Write;

use serde_json::{Value, json};

use crate::support::{
    HandledServer, Node, Reaction, SimulatedServer, TestClient, TestResponse, accounts, endpoint,
    eventually, free_address, json_answer, model,
};

const KEY_A: &str = "authorization: Bearer key-a\r\n";
const KEY_B: &str = "authorization: Bearer key-b\r\n";
const HEAD: &str = "--b\r\nContent-Disposition: form-data; name=\"content\"; filename=\"../a.png\"\r\nContent-Type: image/png\r\n\r\n";
const METADATA: &str =
    "\r\n--b\r\nContent-Disposition: form-data; name=\"metadata\"\r\n\r\n{\"k\":1}\r\n--b--\r\n";

fn config(server: std::net::SocketAddr, files: &str) -> String {
    let model = model("acme/m", &[endpoint(server, 2)], "");
    let accounts = accounts("");
    format!("{accounts}jobs: {{}}\nfiles: {{ {files} }}\nmodels:\n{model}")
}

async fn node(files: &str) -> (Node, SimulatedServer) {
    let server = SimulatedServer::fast().await;
    let node = Node::start(&config(server.address, files)).await;
    (node, server)
}

async fn begin(node: &Node, length: usize) -> TestClient {
    let mut client = node.client().await;
    let mut head = format!("POST /v1/files HTTP/1.1\r\nhost: h\r\n{KEY_A}");
    let _ = write!(
        head,
        "content-type: multipart/form-data; boundary=b\r\ncontent-length: {}\r\n\r\n",
        HEAD.len() + length + METADATA.len()
    );
    client.send(head + HEAD).await;
    client
}

async fn upload(node: &Node, bytes: &[u8]) -> TestResponse {
    let mut client = begin(node, bytes.len()).await;
    client.send(bytes).await;
    client.send(METADATA).await;
    client.response().await
}

async fn ask(node: &Node, method: &str, url: &str, headers: &str) -> TestResponse {
    let path = &url[url.find("/v1/").unwrap()..];
    let mut client = node.client().await;
    client
        .send(format!(
            "{method} {path} HTTP/1.1\r\nhost: h\r\n{headers}\r\n"
        ))
        .await;
    client.response().await
}

fn left(node: &Node) -> usize {
    let folder = node.dir().join("state/files");
    std::fs::read_dir(folder).map_or(0, Iterator::count)
}

fn url<'a>(object: &'a Value, name: &str) -> &'a str {
    object["urls"][name].as_str().unwrap()
}

#[tokio::test]
async fn a_file_is_kept_shown_listed_downloaded_and_deleted() {
    let (node, _server) = node("").await;
    let answer = upload(&node, b"0123456789").await;
    assert_eq!(answer.status, 201, "{}", answer.text());
    let file = answer.json();
    assert_eq!(file["name"], "../a.png");
    assert_eq!(file["content_type"], "image/png");
    assert_eq!(file["size"], 10);
    assert_eq!(file["metadata"], json!({ "k": 1 }));
    assert_eq!(file["checksums"]["md5"], "781e5e245d69b566979b86e28d23f2c7");
    assert_eq!(
        file["checksums"]["sha256"],
        "84d89877f0d4041efb6bf91a16f0248f2fd573e6af05c19f96bedb9f882f7882"
    );
    let shown = ask(&node, "GET", url(&file, "get"), KEY_A).await;
    assert_eq!(shown.json(), file);
    let list = ask(&node, "GET", "/v1/files", KEY_A).await.json();
    assert_eq!(list["results"], json!([file]));
    let download = url(&file, "download");
    let whole = ask(&node, "GET", download, "").await;
    assert_eq!((whole.status, &*whole.text()), (200, "0123456789"));
    assert_eq!(whole.header("content-type"), Some("image/png"));
    let part = ask(&node, "GET", download, "range: bytes=3-5\r\n").await;
    assert_eq!((part.status, &*part.text()), (206, "345"));
    assert_eq!(part.header("content-range"), Some("bytes 3-5/10"));
    let behind = ask(&node, "GET", download, "range: bytes=10-\r\n").await;
    assert_eq!(behind.status, 416);
    assert_eq!(
        ask(&node, "DELETE", url(&file, "get"), KEY_A).await.status,
        204
    );
    assert_eq!(
        ask(&node, "GET", url(&file, "get"), KEY_A).await.status,
        404
    );
    assert_eq!(ask(&node, "GET", download, "").await.status, 404);
    assert_eq!(left(&node), 0);
    assert!(!node.log().contains("signature="));
}

#[tokio::test]
async fn a_file_is_its_accounts_alone_and_a_download_is_signed() {
    let (node, _server) = node("").await;
    let file = upload(&node, b"x").await.json();
    for method in ["GET", "DELETE"] {
        let foreign = ask(&node, method, url(&file, "get"), KEY_B).await;
        assert_eq!(foreign.status, 404);
    }
    assert_eq!(ask(&node, "GET", url(&file, "get"), "").await.status, 401);
    let list = ask(&node, "GET", "/v1/files", KEY_B).await.json();
    assert_eq!(list["results"], json!([]));
    let download = url(&file, "download");
    for bad in [
        download.replace("signature=", "signature=00"),
        download.replace("owner=", "owner=0"),
        download.replace("expiry=", "expiry=1"),
        download.split('?').next().unwrap().to_owned(),
    ] {
        assert_eq!(ask(&node, "GET", &bad, KEY_A).await.status, 404, "{bad}");
    }
}

#[tokio::test]
async fn a_file_is_gone_at_its_end() {
    let (node, _server) = node("expires_secs: 1").await;
    let file = upload(&node, b"x").await.json();
    eventually("the download is over", async || {
        let late = ask(&node, "GET", url(&file, "download"), "").await;
        (late.status == 404).then_some(())
    })
    .await;
    assert_eq!(
        ask(&node, "GET", url(&file, "get"), KEY_A).await.status,
        404
    );
    eventually("its bytes are removed", async || {
        (left(&node) == 0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_large_upload_takes_no_memory_and_one_that_is_aborted_leaves_nothing() {
    const PIECE: usize = 1 << 20;
    const PIECES: usize = 20;
    let (node, _server) = node("").await;
    assert_eq!(upload(&node, b"warm").await.status, 201);
    let before = node.resident_bytes();
    let mut grown = 0;
    let piece = vec![b'x'; PIECE];
    let mut client = begin(&node, PIECES * PIECE).await;
    for _ in 0..PIECES {
        client.send(&piece).await;
        grown = grown.max(node.resident_bytes().saturating_sub(before));
    }
    client.send(METADATA).await;
    let file = client.response().await;
    assert_eq!(file.status, 201, "{}", file.text());
    assert_eq!(file.json()["size"], PIECES * PIECE);
    assert!(grown < 16 << 20, "{grown} bytes");
    let kept = left(&node);
    let mut client = begin(&node, PIECES * PIECE).await;
    client.send(&piece).await;
    eventually("a part is on the disk", async || {
        (left(&node) > kept).then_some(())
    })
    .await;
    client.close();
    eventually("the part is removed", async || {
        (left(&node) == kept).then_some(())
    })
    .await;
}

#[tokio::test]
async fn limits_of_a_file_and_of_an_account_are_kept() {
    let (node, _server) = node("file_max_mib: 1, account_max_mib: 1").await;
    let large = upload(&node, &vec![0; (1 << 20) + 1]).await;
    assert_eq!(large.status, 413, "{}", large.text());
    assert!(large.text().contains("files.file_max_mib"));
    let announced = begin(&node, 9 << 20).await.response().await;
    assert_eq!(announced.status, 413);
    assert_eq!(upload(&node, &vec![0; 600_000]).await.status, 201);
    let second = upload(&node, &vec![0; 600_000]).await;
    assert_eq!(second.status, 422);
    assert!(second.text().contains("files.account_max_mib"));
    assert_eq!(left(&node), 2);
    let text = "content-type: text/plain\r\n";
    let form = node
        .post_as(&format!("{KEY_A}{text}"), "/v1/files", "x")
        .await;
    assert_eq!(form.status, 422, "{}", form.text());
}

/// A gateway, what its model server has got, and the server.
async fn recording_node(
    listen: &str,
) -> (
    Node,
    std::sync::Arc<std::sync::Mutex<String>>,
    HandledServer,
) {
    let seen = std::sync::Arc::new(std::sync::Mutex::new(String::new()));
    let kept = std::sync::Arc::clone(&seen);
    let server = HandledServer::by(move |request| {
        kept.lock().unwrap().push_str(request);
        let answer = r#"{"id":"x","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}]}"#;
        Reaction::Answer(json_answer(answer))
    })
    .await;
    let node = Node::start(&format!("{listen}{}", config(server.address, ""))).await;
    (node, seen, server)
}

#[tokio::test]
async fn files_of_an_input_reach_the_server_as_data_and_a_large_one_is_refused() {
    let (node, seen, _server) = recording_node("").await;
    let file = upload(&node, b"0123456789").await.json();
    let large_uri = format!("data:text/plain;base64,{}", "YWJj".repeat(100_000));
    let input = json!({ "prompt": url(&file, "get"), "system": large_uri });
    let path = "/v1/models/acme/m/predictions";
    let headers = format!("{KEY_A}prefer: wait=30\r\n");
    let body = json!({ "input": input }).to_string();
    let created = node.post_as(&headers, path, &body).await;
    assert_eq!(created.status, 201, "{}", created.text());
    let object = created.json();
    let shown = object["input"]["system"].as_str().unwrap();
    assert!(shown.contains("/v1/files/"), "{shown}");
    eventually("the server has the file", async || {
        let seen = seen.lock().unwrap();
        seen.contains("data:image/png;base64,MDEyMzQ1Njc4OQ==")
            .then_some(())
    })
    .await;
    let large = upload(&node, &vec![0; (1 << 20) + 1]).await.json();
    let body = json!({ "input": { "prompt": url(&large, "download") } }).to_string();
    let refused = node.post_as(KEY_A, path, &body).await;
    assert_eq!(refused.status, 422, "{}", refused.text());
    assert!(refused.text().contains("listen.callbacks"));
    let foreign = json!({ "input": { "prompt": url(&file, "get") } }).to_string();
    assert_eq!(node.post_as(KEY_B, path, &foreign).await.status, 422);
}

#[tokio::test]
async fn a_job_waits_for_files_that_cannot_be_read_and_fails_for_one_that_is_gone() {
    let (node, seen, _server) = recording_node("").await;
    let folder = node.dir().join("state/files");
    let blob = |file: &Value| folder.join(format!("{}.blob", file["id"].as_str().unwrap()));
    let path = "/v1/models/acme/m/predictions";
    let create = async |file: &Value| {
        let input = json!({ "prompt": url(file, "get") });
        let created = node
            .post_as(KEY_A, path, &json!({ "input": input }).to_string())
            .await;
        assert_eq!(created.status, 201, "{}", created.text());
        created.json()
    };
    let shown = async |job: &Value| ask(&node, "GET", url(job, "get"), KEY_A).await.json();
    let ended = async |job: &Value| {
        eventually("the job ends", async || {
            let object = shown(job).await;
            object["completed_at"].is_string().then_some(object)
        })
        .await
    };
    let file = upload(&node, b"0123456789").await.json();
    // A link to itself cannot be read, and gives way to the file without a moment in which none is there.
    let aside = folder.join("aside");
    std::fs::rename(blob(&file), &aside).unwrap();
    std::os::unix::fs::symlink(blob(&file), blob(&file)).unwrap();
    let job = create(&file).await;
    eventually("the job is tried again", async || {
        (shown(&job).await["infergate"]["attempts"].as_u64() >= Some(2)).then_some(())
    })
    .await;
    assert_eq!(*seen.lock().unwrap(), "", "no server has seen it");
    std::fs::rename(&aside, blob(&file)).unwrap();
    let object = ended(&job).await;
    assert_eq!(object["status"], "succeeded", "{object}");

    std::fs::remove_file(blob(&file)).unwrap();
    let object = ended(&create(&file).await).await;
    assert_eq!(object["status"], "failed", "{object}");
    assert_eq!(object["infergate"]["reason"], "invalid_input");
    let error = object["error"].as_str().unwrap();
    assert!(
        error.contains("/input/prompt") && error.contains("is not there"),
        "{error}"
    );
}

async fn ask_callbacks(address: std::net::SocketAddr, method: &str, target: &str) -> TestResponse {
    let mut client = TestClient::connect(address).await;
    let head = format!("{method} {target} HTTP/1.1\r\nhost: h\r\ncontent-length: 0\r\n\r\n");
    client.send(head).await;
    client.response().await
}

#[tokio::test]
async fn a_large_file_of_an_input_reaches_the_server_as_a_url_of_the_callback_listener() {
    let callbacks = free_address();
    let listen =
        format!("  callbacks: {{ address: \"{callbacks}\", url: \"http://{callbacks}/\" }}\n");
    let (node, seen, _server) = recording_node(&listen).await;
    let bytes = vec![b'x'; (1 << 20) + 1];
    let file = upload(&node, &bytes).await.json();
    let small = upload(&node, b"0123456789").await.json();
    let input = json!({ "prompt": url(&file, "get"), "system": url(&small, "get") });
    let path = "/v1/models/acme/m/predictions";
    let headers = format!("{KEY_A}prefer: wait=30\r\n");
    let created = node
        .post_as(&headers, path, &json!({ "input": input }).to_string())
        .await;
    assert_eq!(created.status, 201, "{}", created.text());
    assert_eq!(created.json()["input"]["prompt"], url(&file, "get"));
    let begin = format!("http://{callbacks}/v1/files/");
    let target = eventually("the server has the URL", async || {
        let seen = seen.lock().unwrap();
        assert!(
            !seen.contains("eHh4eHh4"),
            "the bytes are not in the request"
        );
        let from = seen.find(&begin)? + begin.len() - "/v1/files/".len();
        let end = seen[from..].find('"')?;
        Some(seen[from..from + end].to_owned())
    })
    .await;
    assert!(seen.lock().unwrap().contains("MDEyMzQ1Njc4OQ=="));
    let whole = ask_callbacks(callbacks, "GET", &target).await;
    assert_eq!((whole.status, whole.text().len()), (200, bytes.len()));
    let expiry = target.split("expiry=").nth(1).unwrap();
    let expiry: u64 = expiry.split('&').next().unwrap().parse().unwrap();
    let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs();
    assert!(
        expiry < now + 3600,
        "as long as the run may take, not as long as the file is kept"
    );
    let other = target.replace(file["id"].as_str().unwrap(), small["id"].as_str().unwrap());
    for (method, target) in [
        ("GET", &*other),
        ("GET", &*target.replace("expiry=", "expiry=1")),
        ("GET", target.split('?').next().unwrap()),
        ("PUT", &*target),
        ("GET", "/v1/files"),
        ("GET", "/v1/models"),
        ("POST", "/v1/chat/completions"),
        ("POST", "/cog/x"),
        ("GET", "/healthz"),
    ] {
        let refused = ask_callbacks(callbacks, method, target).await;
        assert_eq!(refused.status, 404, "{method} {target}");
    }
    assert!(!node.log().contains("signature="));
}
