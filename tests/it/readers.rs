//! Clients that read slowly keep their answers waiting, not the model server's permits.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use crate::support::{ANSWER, Node, ScriptedServer, chat, eventually, json_answer, one_model};

/// A chat answer of `mib` MiB.
fn large_answer(mib: usize) -> String {
    let pad = "x".repeat(mib << 20);
    json_answer(&ANSWER.replacen('{', &format!(r#"{{"pad":"{pad}","#), 1))
}

/// Asks over a connection that takes little unless it is read.
async fn slow_reader(node: &Node) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut client = socket.connect(node.clients).await.unwrap();
    let body = chat("m", "");
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    client.write_all(head.as_bytes()).await.unwrap();
    client.write_all(body.as_bytes()).await.unwrap();
    client
}

#[tokio::test]
async fn the_permit_goes_back_with_the_servers_last_byte_and_the_reader_gets_its_answer_whole() {
    let answer = large_answer(7);
    let server = ScriptedServer::new(&[&answer]).await;
    let node = Node::start(&one_model(server.address, 1, "")).await;
    let mut client = slow_reader(&node).await;
    eventually("it is at the server", async || {
        (server.requests().len() == 1).then_some(())
    })
    .await;
    node.idle().await;
    let length = answer.split_once("\r\n\r\n").unwrap().1.len();
    let (mut seen, mut buffer) = (Vec::new(), vec![0; 1 << 16]);
    let end = loop {
        let read = client.read(&mut buffer).await.unwrap();
        assert!(read > 0, "cut off after {}", seen.len());
        seen.extend_from_slice(&buffer[..read]);
        let head = seen.windows(4).position(|four| four == b"\r\n\r\n");
        if let Some(head) = head.filter(|head| seen.len() >= head + 4 + length) {
            break head + 4;
        }
    };
    assert_eq!(
        &seen[end..],
        answer.split_once("\r\n\r\n").unwrap().1.as_bytes()
    );
    let event = node.events(1).await.pop().unwrap();
    assert_eq!(event["outcome"], "completed");
}

#[tokio::test]
async fn a_reader_below_the_floor_is_cut_off_when_no_more_is_kept_for_it() {
    let server = ScriptedServer::new(&[&large_answer(24)]).await;
    let limits = "limits: { reader_min_kib_per_sec: 1024 }\ntimeouts: { stream_idle_secs: 2 }\n";
    let node = Node::start(&(limits.to_owned() + &one_model(server.address, 1, ""))).await;
    let mut client = slow_reader(&node).await;
    eventually("it is cut off", async || {
        // Never so slow that it takes nothing for the two seconds.
        let _ = client.try_read(&mut [0; 512]);
        let event = std::fs::read_to_string(node.events_path()).unwrap_or_default();
        event.contains("cut-by-client").then_some(())
    })
    .await;
    node.idle().await;
    client.shutdown().await.unwrap_or_default();
}
