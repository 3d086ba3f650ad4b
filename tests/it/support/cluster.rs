//! Several gateways that know each other, each a process with a certificate of one authority.

use std::net::SocketAddr;

use serde_json::Value;
use tempfile::TempDir;

use super::{Authority, Node, eventually, free_address, over_tls};

/// A node as a test wants it.
pub struct ClusterMember<'a> {
    /// Its name and its certificate's.
    pub name: &'a str,
    /// Site of the node.
    pub site: &'a str,
    /// The rest of its configuration.
    pub rest: String,
}

/// Shared credentials of the nodes of a cluster: the certificate authority and the gossip secret.
pub struct ClusterCredentials {
    authority: Authority,
    dir: TempDir,
}

impl ClusterCredentials {
    /// Secret of the gossip.
    pub const SECRET: &str = "a-secret-of-the-fleet";

    pub fn new() -> ClusterCredentials {
        let (authority, dir) = (Authority::new(), tempfile::tempdir().unwrap());
        authority.write(dir.path());
        ClusterCredentials { authority, dir }
    }

    /// The beginning of a node's configuration. `cluster` comes without address and secret.
    pub fn config(&self, name: &str, site: &str, gossip: SocketAddr, cluster: &str) -> String {
        let path = |file: &str| self.dir.path().join(file).display().to_string();
        let (certificate, key) = self.authority.certify(name).pem();
        let files = [
            path(&format!("{name}.pem")),
            path(&format!("{name}-key.pem")),
        ];
        std::fs::write(&files[0], certificate).unwrap();
        std::fs::write(&files[1], key).unwrap();
        let tls = format!(
            "{{ certificate: \"{}\", private_key: \"{}\", client_ca: \"{}\" }}",
            files[0],
            files[1],
            path("own-ca.pem")
        );
        let peers = free_address();
        format!(
            "  peers: {{ address: \"{peers}\", tls: {tls} }}\n\
             node: {{ id: {name}, site: {site} }}\n\
             cluster: {{ gossip: \"{gossip}\", secret: {}, {cluster} }}\n",
            Self::SECRET
        )
    }

    /// Response of the node `asked`, which listens at `peers`, to a request of the node `asking`.
    pub async fn send_request(
        &self,
        asking: &str,
        asked: &str,
        peers: SocketAddr,
        request: &str,
    ) -> String {
        let answer = self.try_request(asking, asked, peers, request).await;
        answer.expect("an answer of a node")
    }

    /// The same where the connection may be closed instead.
    pub async fn try_request(
        &self,
        asking: &str,
        asked: &str,
        peers: SocketAddr,
        request: &str,
    ) -> std::io::Result<String> {
        let shown = self.authority.certify(asking);
        over_tls(peers, asked, &self.authority, Some(&shown), request).await
    }

    /// The peers listener of a node.
    pub fn peers_of(node: &Node) -> SocketAddr {
        let config = std::fs::read_to_string(node.config_path()).unwrap();
        let (_, peers) = config.split_once("peers: { address: \"").unwrap();
        peers.split_once('"').unwrap().0.parse().unwrap()
    }

    /// A node at site `fra`.
    pub async fn start(&self, name: &str, gossip: SocketAddr, cluster: &str, rest: &str) -> Node {
        Node::start(&(self.config(name, "fra", gossip, cluster) + rest)).await
    }
}

/// Gateways that know each other.
pub struct Cluster {
    /// In the order of the members.
    pub nodes: Vec<Node>,
    _kin: ClusterCredentials,
}

impl Cluster {
    /// Starts them, and waits until each knows all others.
    pub async fn start(members: &[ClusterMember<'_>]) -> Cluster {
        let kin = ClusterCredentials::new();
        let gossip: Vec<SocketAddr> = members.iter().map(|_| free_address()).collect();
        let seeds: Vec<String> = gossip.iter().map(|seed| format!("\"{seed}\"")).collect();
        let cluster = format!("seeds: [{}]", seeds.join(", "));
        let mut nodes = Vec::new();
        for (ClusterMember { name, site, rest }, &gossip) in members.iter().zip(&gossip) {
            let config = kin.config(name, site, gossip, &cluster);
            nodes.push(Node::start(&(config + rest)).await);
        }
        let fleet = Cluster { nodes, _kin: kin };
        fleet.is_whole().await;
        fleet
    }

    /// Waits until each node knows every other one.
    async fn is_whole(&self) {
        for node in &self.nodes {
            eventually("a node knows all others", async || {
                let state = node.state().await;
                let others = state["nodes"].as_array()?;
                // One that has answered over TLS: nothing goes to others.
                let fit = |other: &&Value| {
                    other["gone"] == false && other["draining"] == false && other["proven"] == true
                };
                let count = others.iter().filter(fit).count();
                (count + 1 == self.nodes.len()).then_some(())
            })
            .await;
        }
    }
}
