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

#[tokio::test]
async fn a_gateway_that_served_and_showed_itself_has_no_thread_that_ticks() {
    let server = SimulatedServer::fast().await;
    let node = Node::start(&one_model(server.address, 2, "")).await;
    for _ in 0..2 {
        let answer = node.post("/v1/chat/completions", &chat("m", "")).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    node.state().await;
    let tasks = std::fs::read_dir(format!("/proc/{}/task", node.pid())).unwrap();
    let name = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm"));
    let names: Vec<String> = tasks.filter_map(|task| name(task.unwrap()).ok()).collect();
    assert!(
        names.iter().any(|name| name.trim() == "worker"),
        "{names:?}"
    );
    // Pingora's own timer: it wakes a hundred times a second from its first use on.
    assert!(
        names.iter().all(|name| name.trim() != "Timer thread"),
        "{names:?}"
    );
}
