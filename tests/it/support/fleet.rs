//! Several gateways that know each other, each a process with a certificate of one authority.

use std::net::SocketAddr;

use serde_json::Value;
use tempfile::TempDir;

use super::{Authority, Node, eventually, free_address};

/// A node as a test wants it.
pub struct Member<'a> {
    /// Its name and its certificate's.
    pub name: &'a str,
    /// Where it stands.
    pub site: &'a str,
    /// The rest of its configuration.
    pub rest: String,
}

/// Gateways that know each other.
pub struct Fleet {
    /// In the order of the members.
    pub nodes: Vec<Node>,
    /// Who signs their certificates.
    pub authority: Authority,
    /// Where each listens for the others.
    pub peers: Vec<SocketAddr>,
    dir: TempDir,
}

impl Fleet {
    /// Starts them, and waits until each knows all others.
    pub async fn start(members: &[Member<'_>]) -> Fleet {
        let dir = tempfile::tempdir().unwrap();
        let mut fleet = Fleet {
            nodes: Vec::new(),
            authority: Authority::new(),
            peers: members.iter().map(|_| free_address()).collect(),
            dir,
        };
        let gossip: Vec<SocketAddr> = members.iter().map(|_| free_address()).collect();
        let seeds: Vec<String> = gossip.iter().map(|seed| format!("\"{seed}\"")).collect();
        for (at, member) in members.iter().enumerate() {
            let Member { name, site, rest } = member;
            let listener = fleet.peers_listener(at, name);
            let rest = format!(
                "{listener}node: {{ id: {name}, site: {site} }}\ncluster:\n  gossip: \"{}\"\n  \
                 seeds: [{}]\n  secret: a-secret-of-the-fleet\n{rest}",
                gossip[at],
                seeds.join(", ")
            );
            fleet.nodes.push(Node::start(&rest).await);
        }
        fleet.is_whole().await;
        fleet
    }

    /// Waits until each node that runs knows every other one, and what it serves.
    pub async fn is_whole(&self) {
        for node in &self.nodes {
            eventually("a node knows all others", async || {
                let state = node.state().await;
                let others = state["nodes"].as_array()?;
                let fit = |other: &&Value| other["gone"] == false && other["draining"] == false;
                let count = others.iter().filter(fit).count();
                (count + 1 == self.nodes.len()).then_some(())
            })
            .await;
        }
    }

    fn peers_listener(&self, at: usize, name: &str) -> String {
        let dir = self.dir.path();
        let (certificate, key) = self.authority.certify(name).pem();
        let path = |what: &str| dir.join(format!("{name}-{what}.pem"));
        std::fs::write(path("certificate"), certificate).unwrap();
        std::fs::write(path("key"), key).unwrap();
        format!(
            "  peers: {{ address: \"{}\", tls: {{ certificate: \"{}\", private_key: \"{}\", \
             client_ca: \"{}\" }} }}\n",
            self.peers[at],
            path("certificate").display(),
            path("key").display(),
            self.authority.write(dir),
        )
    }
}
