//! `listen`, `node` and `trusted_proxies`: addresses that collide, an admin listener in the open, names, networks.
//!
//! Addresses are not bound; an address of another machine shows at start.

use std::net::{IpAddr, SocketAddr};

use infergate_core::client_address::UNIX_SOCKETS;
use infergate_core::network::Network;

use super::names::name_fault;
use crate::config::AdminListener;
use crate::config::document::Cursor;
use crate::config::problem::Problems;
use crate::peer::node_name_fault;
use crate::upstream::check_url;

pub fn check(root: &Cursor<'_>, problems: &mut Problems, warnings: &mut Problems) {
    if let Some(node) = root.key("node") {
        for name in ["id", "site"].iter().filter_map(|key| node.key(key)) {
            if let Some(fault) = name.text().and_then(|text| name_fault(text, &[])) {
                problems.add(name.problem(fault));
            }
        }
    }
    check_trusted_proxies(root, problems, warnings);
    let Some(listen) = root.key("listen") else {
        return;
    };
    let admin_key = listen.key("admin").and_then(|admin| admin.key("address"));
    let admin = match &admin_key {
        Some(key) => address(key),
        None => Some(AdminListener::default().address),
    };
    if let (Some(key), Some(admin)) = (&admin_key, admin)
        && !admin.ip().is_loopback()
        && !listen
            .key("admin")
            .is_some_and(|admin| asks_for_certificates(&admin))
    {
        warnings.add(key.problem(
            "the admin listener asks for no key: make sure only operators reach this address, or give it `tls` with `client_ca`",
        ));
    }
    let mut earlier: Vec<(String, SocketAddr)> = admin
        .map(|admin| ("listen.admin.address".to_owned(), admin))
        .into_iter()
        .collect();
    let peers = listen.key("peers");
    if peers.is_some() {
        check_node_name(root, problems);
    }
    let callbacks = listen.key("callbacks");
    if let Some(callbacks) = &callbacks {
        check_callbacks(callbacks, root, problems, warnings);
    }
    let others = peers.into_iter().chain(callbacks);
    let clients = listen.list("clients");
    check_sockets(&clients, problems);
    for listener in clients.into_iter().chain(others) {
        let Some(key) = listener.key("address") else {
            continue;
        };
        let Some(here) = address(&key) else { continue };
        match earlier.iter().find(|(_, other)| collide(here, *other)) {
            Some((path, other)) if *other == here => {
                problems.add(key.problem(format!(
                    "{here} is already the address of `{path}`: give each listener its own"
                )));
            }
            Some((path, other)) => {
                problems.add(key.problem(format!(
                    "{here} collides with {other} of `{path}`: they share the port, use another"
                )));
            }
            None => {}
        }
        earlier.push((key.path, here));
    }
}

/// Returns whether who connects has to show a certificate.
fn asks_for_certificates(listener: &Cursor<'_>) -> bool {
    let tls = listener.key("tls");
    tls.is_some_and(|tls| tls.key("client_ca").is_some())
}

/// Networks of proxies, and one that is everybody's.
fn check_trusted_proxies(root: &Cursor<'_>, problems: &mut Problems, warnings: &mut Problems) {
    for proxy in root.list("trusted_proxies") {
        let Some(text) = proxy.text().filter(|text| *text != UNIX_SOCKETS) else {
            continue;
        };
        if let Err(fault) = Network::parse(text) {
            problems.add(proxy.problem(format!(
                "{fault}: write a network, an address or `{UNIX_SOCKETS}`"
            )));
        } else if text.ends_with("/0") {
            warnings.add(proxy.problem(
                "trusts everybody: any client can name any address, list the networks of your proxies",
            ));
        }
    }
}

/// Sockets in the file system, and what is spoken at a listener for clients.
fn check_sockets(clients: &[Cursor<'_>], problems: &mut Problems) {
    let mut earlier: Vec<(String, String)> = Vec::new();
    for listener in clients {
        let tls = listener.key("tls");
        let http2 = listener.key("http2");
        if let (Some(_), Some(http2)) = (&tls, &http2)
            && http2.text() == Some("clear")
        {
            problems.add(http2.problem(
                "`clear` is for plain text, and this listener has `tls`: use `auto`, which offers HTTP/2 under TLS",
            ));
        }
        let Some(key) = listener.key("address") else {
            continue;
        };
        let Some(path) = key.text().filter(|text| text.starts_with("unix:")) else {
            continue;
        };
        if let Some(tls) = tls {
            problems.add(tls.problem(
                "a socket in the file system has no TLS: its permissions say who may connect",
            ));
        }
        match earlier.iter().find(|(_, other)| other == path) {
            Some((first, _)) => problems.add(key.problem(format!(
                "{path} is already the address of `{first}`: give each listener its own"
            ))),
            None => earlier.push((key.path.clone(), path.to_owned())),
        }
    }
}

/// URLs of files go to containers in plain text, and each is a key to its file.
fn check_callbacks(
    callbacks: &Cursor<'_>,
    root: &Cursor<'_>,
    problems: &mut Problems,
    warnings: &mut Problems,
) {
    if root.key("jobs").is_none() {
        warnings.add(callbacks.problem("serves jobs alone: add `jobs: {}`"));
    }
    let Some(url) = callbacks.key("url") else {
        return;
    };
    let Some(text) = url.text() else { return };
    if let Err(fault) = check_url(text) {
        problems.add(url.problem(fault));
        return;
    }
    let authority = text.strip_prefix("http://").map(|rest| {
        let end = rest.find('/').unwrap_or(rest.len());
        rest[..end].parse::<SocketAddr>()
    });
    if let Some(Ok(address)) = authority
        && !is_private(address.ip())
    {
        problems.add(url.problem(format!(
            "{} is outside of private networks, where plain http shows files to others: take a private address, or https",
            address.ip()
        )));
    }
}

fn is_private(address: IpAddr) -> bool {
    match address.to_canonical() {
        // With the addresses that providers share: https://www.rfc-editor.org/rfc/rfc6598
        IpAddr::V4(ip) => {
            let is_shared = ip.octets()[0] == 100 && ip.octets()[1] & 0xc0 == 64;
            ip.is_private() || ip.is_loopback() || ip.is_link_local() || is_shared
        }
        IpAddr::V6(ip) => ip.is_loopback() || ip.is_unique_local() || ip.is_unicast_link_local(),
    }
}

/// The name stands in the node's certificate.
fn check_node_name(root: &Cursor<'_>, problems: &mut Problems) {
    let id = root.key("node").and_then(|node| node.key("id"));
    if let Some(id) = id
        && let Some(fault) = id.text().and_then(node_name_fault)
    {
        problems.add(id.problem(fault));
    }
}

fn address(key: &Cursor<'_>) -> Option<SocketAddr> {
    key.text()?.parse().ok()
}

/// Returns true when the two addresses cannot both be bound. Port 0 asks the system for a free one.
fn collide(a: SocketAddr, b: SocketAddr) -> bool {
    let any = a.ip().is_unspecified() || b.ip().is_unspecified();
    a.port() == b.port() && a.port() != 0 && (a.ip() == b.ip() || any && a.is_ipv4() == b.is_ipv4())
}
