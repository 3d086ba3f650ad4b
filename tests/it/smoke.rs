//! The main job, end to end.

use crate::support::{Node, SimulatedServer, chat, one_model};

#[tokio::test]
async fn a_chat_is_answered_and_leaves_one_event() {
    let server = SimulatedServer::fast().await;
    let node = Node::start(&one_model(server.address, 2, "")).await;
    let answer = node.post("/v1/chat/completions", &chat("m", "")).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.json()["object"], "chat.completion");
    let events = node.events(1).await;
    assert_eq!(events[0]["outcome"], "completed");
    assert_eq!(
        answer.header("x-request-id"),
        events[0]["request_id"].as_str()
    );
}
