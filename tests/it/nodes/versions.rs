//! Nodes of another version of the protocol: recognised, shown, and neither forwarded to nor served.

use serde_json::json;

use super::trust::forwarded;
use super::{SERVING_NOTHING, wait_until_serving_known};
use crate::support::{
    ANSWER, ClusterCredentials, OldNode, ScriptedServer, endpoint, eventually, free_address,
    json_answer, model,
};

#[tokio::test]
async fn a_node_of_an_older_version_is_shown_and_named_in_the_log_and_gets_no_request() {
    let (kin, gossip) = (ClusterCredentials::new(), free_address());
    let node = kin.start("a", gossip, "seeds: []", SERVING_NOTHING).await;
    let old = OldNode::start("old", ClusterCredentials::SECRET, gossip).await;
    let shown = eventually("it is shown", async || {
        let state = node.state().await;
        state["nodes"].as_array()?.first().cloned()
    })
    .await;
    assert_eq!(
        (&shown["id"], &shown["protocol"], &shown["proven"]),
        (&json!("old"), &json!(1), &json!(false))
    );
    let record = eventually("it has a record of this version", async || {
        old.record_of("a").await
    })
    .await;
    assert!(record.starts_with("3 "), "{record}");
    // By its report it has four permits of the model.
    let answer = node
        .post_as(
            "x-infergate-queue: reject\r\n",
            "/v1/chat/completions",
            &crate::support::chat("m", ""),
        )
        .await;
    assert!(matches!(answer.status, 429 | 503), "{}", answer.text());
    let nodes = async |state: &str| {
        node.metric(&format!("infergate_nodes{{state=\"{state}\"}}"))
            .await
    };
    assert_eq!(nodes("incompatible").await, Some(1.0));
    assert_eq!(nodes("live").await, Some(0.0));
    let line = "node speaks another version of the protocol between nodes";
    assert_eq!(node.log().matches(line).count(), 1, "{}", node.log());
    drop(old);
    eventually("it is gone", async || {
        (node.state().await["nodes"] == json!([])).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_forward_of_another_version_gets_no_response_that_could_be_passed_to_a_client() {
    let server = ScriptedServer::new(&[&json_answer(ANSWER)]).await;
    let (kin, at_gpu, at_edge) = (ClusterCredentials::new(), free_address(), free_address());
    let serving = format!(
        "models:\n{}",
        model("m", &[endpoint(server.address, 4)], "")
    );
    let gpu = kin.start("gpu0", at_gpu, "seeds: []", &serving).await;
    let seeds = format!("seeds: [\"{at_gpu}\"]");
    let edge = kin.start("edge", at_edge, &seeds, SERVING_NOTHING).await;
    wait_until_serving_known(&edge, "gpu0").await;
    let generation = eventually("gpu0 knows the edge", async || {
        gpu.state().await["nodes"][0]["generation"].as_u64()
    })
    .await;
    let present = forwarded("edge", generation, "anonymous");
    let peers = ClusterCredentials::peers_of(&gpu);
    for other in [
        present.replace("x-infergate-hops: 3;", "x-infergate-hops: 4;"),
        present.replace(
            "x-infergate-hops: 3;",
            "x-infergate-protocol: 2\r\nx-infergate-hops: 1; visited=edge; ",
        ),
    ] {
        assert_ne!(other, present);
        let answer = kin.try_request("edge", "gpu0", peers, &other).await;
        assert!(answer.as_deref().unwrap_or("").is_empty(), "{answer:?}");
    }
    let refused = "infergate_connections_refused_total{reason=\"peer-other-protocol\"}";
    assert_eq!(gpu.metric(refused).await, Some(2.0));
    assert!(server.requests().is_empty());
    let answer = kin.send_request("edge", "gpu0", peers, &present).await;
    assert!(answer.contains(" 200 "), "{answer}");
}
