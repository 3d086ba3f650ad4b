//! Images and sounds as bytes: in as the body itself, out untouched; and pipes that change nothing.

use super::*;

/// The simulator's answer to what it was posted, without a gateway.
async fn direct(server: &SimulatedServer, body: &str) -> TestResponse {
    let mut client = TestClient::connect(server.address).await;
    client.post("", "/run", body).await;
    client.response().await
}

#[tokio::test]
async fn an_image_and_a_sound_reach_the_client_byte_for_byte() {
    for (slug, task, input, kind) in [
        (
            "text-to-image",
            Task::TextToImage,
            json!({ "prompt": "x", "width": 256, "height": 256, "num_steps": 4, "guidance": 1 }),
            "image/png",
        ),
        (
            "text-to-speech",
            Task::TextToSpeech,
            json!({ "text": "one two" }),
            "audio/wav",
        ),
    ] {
        let server = SimulatedServer::start(config(task)).await;
        let model = model_of("m", slug, "http", server.address);
        let node = Node::start(&format!("models:\n{model}")).await;
        let answer = run(&node, "m", "application/json", input.to_string().as_bytes()).await;
        assert_eq!(answer.status, 200, "{slug}: {}", answer.text());
        assert_eq!(answer.header("content-type"), Some(kind));
        let length = answer.body.len().to_string();
        assert_eq!(answer.header("content-length"), Some(&*length));
        // The picture and the tone depend on each byte of the payload.
        let from_server = direct(&server, &input.to_string()).await;
        assert_eq!(answer.body.len(), from_server.body.len(), "{slug}");
        assert_eq!(answer.body[..8], from_server.body[..8], "{slug}");
        let event = node.event_of(&answer).await;
        assert_eq!(
            (&event["outcome"], &event["flags"]["streamed"]),
            (&json!("completed"), &json!(false))
        );
    }
}

#[tokio::test]
async fn bytes_of_any_value_pass_in_chunks_and_with_a_length() {
    let hall = TaskServers::start().await;
    let all: Vec<u8> = (0..300_000_u32).map(|n| (n % 251) as u8).collect();
    for kind in [
        "application/x-anything; v=1",
        "image/png",
        "application/json",
        "text/event-stream",
    ] {
        let answer = run(&hall.node, "dumb-pipe", kind, &all).await;
        assert_eq!(answer.status, 200, "{kind}");
        assert_eq!(answer.header("content-type"), Some(kind));
        assert_eq!(answer.header("content-length"), Some("300000"), "{kind}");
        assert!(answer.body == all, "{kind}");
    }
    for body in [
        &b""[..],
        b"{\"x_priority\": 1, \"model\":\"n\"}",
        b"--x\r\n\r\n--x--",
        b"\0",
    ] {
        let kind = "multipart/form-data; boundary=x";
        let answer = run(&hall.node, "dumb-pipe", kind, body).await;
        assert_eq!((answer.status, &answer.body[..]), (200, body));
        assert_eq!(answer.header("content-type"), Some(kind));
    }
    let mut client = hall.node.client().await;
    client
        .send("POST /ai/run/dumb-pipe HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n")
        .await;
    let answer = client.response().await;
    assert_eq!(
        answer.header("content-type"),
        Some("application/octet-stream")
    );
    assert_eq!(answer.body, b"abc");
}

#[tokio::test]
async fn the_body_may_be_the_image_or_the_sound_itself() {
    let hall = TaskServers::start().await;
    let file = b"\x89PNG\r\n\x1a\n\0{}\xff";
    for (task, kinds) in [
        (
            "image-classification",
            ["image/png", "application/octet-stream"],
        ),
        (
            "object-detection",
            ["image/jpeg", "application/x-www-form-urlencoded"],
        ),
        ("image-to-text", ["image/webp; q=1", "text/plain"]),
        (
            "automatic-speech-recognition",
            ["audio/wav", "application/x-www-form-urlencoded"],
        ),
    ] {
        for kind in kinds {
            let answer = run(&hall.node, task, kind, file).await;
            assert_eq!(answer.status, 200, "{task} {kind}: {}", answer.text());
            result_of(task, &answer);
        }
    }
}

#[tokio::test]
async fn the_same_image_is_the_same_to_the_server_however_it_was_sent() {
    let server = ScriptedServer::new(&[&typed_answer(
        "application/json",
        r#"[{"label":"a","score":0.5}]"#,
    )])
    .await;
    let node = node_on("image-classification", &server, "").await;
    let file = b"\x89PNG{\"";
    let list = json!({ "image": file }).to_string();
    for (kind, body) in [
        ("image/png", &file[..]),
        ("application/json", list.as_bytes()),
        (
            "application/x-www-form-urlencoded",
            br#"{"image":"iVBOR3si"}"#,
        ),
        (
            "application/json",
            br#"{"image":"data:image/png;base64,iVBOR3si"}"#,
        ),
    ] {
        let answer = run(&node, "m", kind, body).await;
        assert_eq!(answer.status, 200, "{kind}: {}", answer.text());
    }
    for request in server.requests() {
        let (head, body) = request.split_once("\r\n\r\n").unwrap();
        let body: Value = serde_json::from_str(body).unwrap();
        assert_eq!(body["image"], "iVBOR3si", "{request}");
        assert!(head.contains("content-type: application/json"), "{head}");
        assert!(head.starts_with("POST /run HTTP/1.1"), "{head}");
    }
    assert_eq!(server.requests().len(), 4);
}

#[tokio::test]
async fn an_image_that_breaks_off_is_never_taken_for_a_whole_one() {
    // More than is held back before it is written on.
    let half = "HTTP/1.1 200 OK\r\nContent-Type: image/png\r\nContent-Length: 400000\r\n\r\n"
        .to_owned()
        + &"12345".repeat(40_000);
    let server = ScriptedServer::closing(&[&half, ""]).await;
    let node = node_on("text-to-image", &server, "").await;
    let mut client = node.client().await;
    client.post("", "/ai/run/m", r#"{"prompt":"x"}"#).await;
    client.saw("12345").await;
    server.next();
    assert!(client.response().await.broken);
    let event = node.events(1).await.remove(0);
    assert_eq!(event["outcome"], "cut-by-backend");
}
