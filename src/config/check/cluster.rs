//! `cluster`: what it takes beside itself, addresses that others can reach, a secret worth its name.
//!
//! Seeds are not contacted; those that do not respond show while running.

use std::net::SocketAddr;
use std::sync::Arc;

use infergate_core::routing::hops::is_node_name;

use super::discovery::check_consul;
use crate::config::document::Cursor;
use crate::config::problem::Problems;
use crate::peer::{NodeNames, node_name_fault, pattern_fault};
use crate::upstream::check_address;

/// A secret that is shorter can be guessed.
const SECRET_BYTES_MIN: usize = 16;

pub fn check(root: &Cursor<'_>, problems: &mut Problems) {
    let Some(cluster) = root.key("cluster") else {
        return;
    };
    // Something else than a mapping has been named already.
    if !cluster.is_map() {
        return;
    }
    if root
        .key("listen")
        .is_some_and(|listen| listen.key("peers").is_none())
    {
        problems.add(cluster.problem(
            "nodes that cannot be reached are of no use to each other: add `listen.peers`",
        ));
    }
    check_name(root, &cluster, problems);
    check_addresses(&cluster, problems);
    check_seeds(&cluster, problems);
    check_secret(&cluster, problems);
    check_node_names(root, &cluster, problems);
}

/// Every node has a name of its own. `listen` has looked at it as the name of a certificate.
fn check_name(root: &Cursor<'_>, cluster: &Cursor<'_>, problems: &mut Problems) {
    let Some(id) = root.key("node").and_then(|node| node.key("id")) else {
        problems.add(cluster.problem("nodes know each other by name: add `node.id`"));
        return;
    };
    let too_long = |name: &str| node_name_fault(name).is_none() && !is_node_name(name);
    if id.text().is_some_and(too_long) {
        problems.add(id.problem("too long for the name of a node: requests carry it"));
    }
}

fn check_addresses(cluster: &Cursor<'_>, problems: &mut Problems) {
    let address = |key: &Cursor<'_>| key.text()?.parse::<SocketAddr>().ok();
    let reachable = |at: SocketAddr| !at.ip().is_unspecified() && at.port() > 0;
    let gossip = cluster.key("gossip");
    match (cluster.key("advertise"), &gossip) {
        (Some(key), _) => {
            if address(&key).is_some_and(|at| !reachable(at)) {
                problems.add(key.problem(format!(
                    "other nodes cannot send to {}: name one address and port of this node",
                    key.shown()
                )));
            }
        }
        (None, Some(key)) => {
            if address(key).is_some_and(|at| !reachable(at)) {
                problems.add(key.problem(
                    "other nodes are told where to send: add `cluster.advertise` with one address and port of this node",
                ));
            }
        }
        (None, None) => {}
    }
}

fn check_seeds(cluster: &Cursor<'_>, problems: &mut Problems) {
    for seed in cluster.list("seeds") {
        if let Some(text) = seed.text()
            && let Err(fault) = check_address(text)
        {
            problems.add(seed.problem(format!("{fault}, found {}", seed.shown())));
        }
    }
    let in_consul = cluster.text_of("discovery") == Some("consul");
    match cluster.key("consul") {
        Some(consul) if in_consul => check_consul(&consul, problems),
        Some(consul) => problems
            .add(consul.problem("never asked: write `discovery: consul`, or remove the key")),
        None if in_consul => problems
            .add(cluster.problem("where to ask is missing: add `consul` with `url` and `service`")),
        None => {}
    }
}

/// The other nodes have the same list: this one has to stand in it.
fn check_node_names(root: &Cursor<'_>, cluster: &Cursor<'_>, problems: &mut Problems) {
    let mut patterns: Vec<Arc<str>> = Vec::new();
    for pattern in cluster.list("node_names") {
        let Some(text) = pattern.text() else { continue };
        match pattern_fault(text) {
            Some(fault) => problems.add(pattern.problem(fault)),
            None => patterns.push(text.into()),
        }
    }
    let id = root.key("node").and_then(|node| node.key("id"));
    if let (Some(names), Some(id)) = (cluster.key("node_names"), id)
        && let Some(own) = id.text()
        && !NodeNames::new(&patterns).has(own)
    {
        problems.add(names.problem(format!(
            "none of them is {own:?}, this node's own `node.id`: the others would not let it in"
        )));
    }
}

/// The message must not repeat it.
fn check_secret(cluster: &Cursor<'_>, problems: &mut Problems) {
    let Some(key) = cluster.key("secret") else {
        let gossip = cluster
            .text_of("gossip")
            .and_then(|text| text.parse::<SocketAddr>().ok());
        if gossip.is_some_and(|gossip| !gossip.ip().is_loopback()) {
            problems.add(cluster.problem(
                "whoever reaches the address could join: add `secret`, the same at all nodes",
            ));
        }
        return;
    };
    if key.text().is_some_and(|text| text.len() < SECRET_BYTES_MIN) {
        problems.add(key.problem(format!(
            "shorter than {SECRET_BYTES_MIN} bytes, which can be guessed: check the variable, `openssl rand -hex 32` makes one"
        )));
    }
}
