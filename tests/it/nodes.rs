//! Several gateways as one: requests go where there is room, and come through when a node does not.

mod forwarding;
mod frozen;
mod losses;
mod sites;
mod trust;
mod upgrade;
mod versions;

use crate::support::{Cluster, ClusterMember, Node, SimulatedServer, endpoint, eventually, model};

/// Model `m` on these servers with so many permits each.
fn serving(servers: &[&SimulatedServer], permits: u32) -> String {
    let endpoints: Vec<String> = servers
        .iter()
        .map(|server| endpoint(server.address, permits))
        .collect();
    format!("models:\n{}", model("m", &endpoints, ""))
}

/// Model `m`, of which other nodes have the servers.
const SERVING_NOTHING: &str =
    "models:\n  - { id: m, task: text-generation, backend: openai, endpoints: [] }\n";

pub fn member<'a>(name: &'a str, site: &'a str, rest: &str) -> ClusterMember<'a> {
    ClusterMember {
        name,
        site,
        rest: rest.to_owned(),
    }
}

/// Waits until `node` knows that the other one serves a model.
pub async fn wait_until_serving_known(node: &Node, name: &str) {
    eventually("what another node serves is known", async || {
        let state = node.state().await;
        let others = state["nodes"].as_array()?.clone();
        let serves = |other: &serde_json::Value| {
            other["id"] == name
                && other["models"] == 1
                && other["gone"] == false
                && other["proven"] == true
        };
        others.iter().any(serves).then_some(())
    })
    .await;
}

/// A node without servers before others with these.
async fn edge_before(servers: &[&SimulatedServer], permits: u32) -> Cluster {
    const NAMES: [&str; 3] = ["gpu0", "gpu1", "gpu2"];
    let mut members = vec![member("edge", "fra", SERVING_NOTHING)];
    for (name, server) in NAMES.iter().zip(servers) {
        members.push(member(name, "ams", &serving(&[server], permits)));
    }
    let fleet = Cluster::start(&members).await;
    for (name, _) in NAMES.iter().zip(servers) {
        wait_until_serving_known(&fleet.nodes[0], name).await;
    }
    fleet
}
