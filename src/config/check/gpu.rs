//! `gpu`: ports that listeners have too, cards, and what is not supported yet.
//!
//! No device is looked at: `infergate check` does that with the whole file.

use std::collections::HashMap;
use std::net::SocketAddr;

use crate::config::AdminListener;
use crate::config::document::Cursor;
use crate::config::problem::{Problem, Problems};
use crate::gpu::PortRange;
use crate::upstream::check_url;

use super::endpoints::key_fault;

pub fn check(root: &Cursor<'_>, problems: &mut Problems, warnings: &mut Problems) {
    let models = root.list("models");
    let managed = models.iter().find(|model| model.key("process").is_some());
    let gpu = root.key("gpu");
    let range = port_range(gpu.as_ref(), problems);
    if let (Some(range), Some(managed)) = (range, managed) {
        check_listeners(root, range, managed, problems);
    }
    let Some(gpu) = gpu else { return };
    if managed.is_none() {
        warnings.add(gpu.problem("no model has a `process`: nothing is started on this host"));
    }
    check_ledger(&gpu, problems);
    check_cards(&gpu, problems, warnings);
    if let Some(reports) = gpu.key("reports") {
        check_reports(&reports, problems);
    }
}

/// Returns the range of ports, or its default; none where it is not well-formed.
fn port_range(gpu: Option<&Cursor<'_>>, problems: &mut Problems) -> Option<PortRange> {
    let Some(key) = gpu.and_then(|gpu| gpu.key("ports")) else {
        return Some(PortRange::default());
    };
    match key.text()?.parse() {
        Ok(range) => Some(range),
        Err(expected) => {
            problems.add(key.problem(format!("{expected}, found {}", key.shown())));
            None
        }
    }
}

/// A process gets a port that none of our listeners has.
fn check_listeners(
    root: &Cursor<'_>,
    range: PortRange,
    managed: &Cursor<'_>,
    problems: &mut Problems,
) {
    let key = root.key("gpu").and_then(|gpu| gpu.key("ports"));
    for (path, address) in listeners(root) {
        if !range.contains(address.port()) {
            continue;
        }
        let message = format!(
            "{range} has the port of `{path}`, {}: choose ports that no listener has",
            address.port()
        );
        problems.add(match &key {
            Some(key) => key.problem(message),
            None => Problem::new("gpu.ports", managed.place, message),
        });
    }
}

/// Addresses at which this node listens, by their keys.
fn listeners(root: &Cursor<'_>) -> Vec<(String, SocketAddr)> {
    let listen = root.key("listen");
    let below = |key: &str| listen.as_ref().and_then(|listen| listen.key(key));
    let clients = listen.iter().flat_map(|listen| listen.list("clients"));
    let single = ["admin", "peers", "callbacks"]
        .into_iter()
        .filter_map(below);
    let addresses = clients
        .chain(single)
        .filter_map(|listener| listener.key("address"));
    let gossip = root
        .key("cluster")
        .and_then(|cluster| cluster.key("gossip"));
    let found = addresses.chain(gossip);
    let mut found: Vec<(String, SocketAddr)> = found
        .filter_map(|key| Some((key.path.clone(), key.text()?.parse().ok()?)))
        .collect();
    let admin = "listen.admin.address";
    if !found.iter().any(|(path, _)| path == admin) {
        found.push((admin.to_owned(), AdminListener::default().address));
    }
    found
}

fn check_ledger(gpu: &Cursor<'_>, problems: &mut Problems) {
    let Some(ledger) = gpu.key("ledger") else {
        return;
    };
    if ledger.text_of("store") == Some("redis")
        && let Some(store) = ledger.key("store")
    {
        problems.add(store.problem(
            "leases in Redis are not supported yet: `host` serves all gateways and jobs of one host",
        ));
    }
}

/// A card is a folder of this name.
fn check_cards(gpu: &Cursor<'_>, problems: &mut Problems, warnings: &mut Problems) {
    let devices = gpu.text_of("devices").unwrap_or("auto");
    let simulated = gpu.key("simulated");
    let cards = simulated.iter().flat_map(|it| it.list("cards"));
    let mut names: HashMap<&str, String> = HashMap::new();
    let mut count = 0;
    for card in cards {
        count += 1;
        let Some(name) = card.key("name") else {
            continue;
        };
        let Some(text) = name.text() else { continue };
        let is_fit = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if text.starts_with('.') || !text.chars().all(is_fit) {
            problems.add(name.problem(format!(
                "expected letters, digits and -_., for the folder of the card, found {}",
                name.shown()
            )));
        } else if let Some(first) = names.get(text) {
            problems.add(name.problem(format!("{text:?} already stands at `{first}`")));
        } else {
            names.insert(text, name.path.clone());
        }
    }
    match (devices, count) {
        ("simulated", 0) => warnings
            .add(gpu.problem("no cards: name them under `simulated.cards`, or make their folders")),
        ("simulated", _) | (_, 0) => {}
        _ => {
            if let Some(simulated) = &simulated {
                warnings.add(simulated.problem(format!(
                    "never used: `devices` is {devices}, write `devices: simulated`"
                )));
            }
        }
    }
}

fn check_reports(reports: &Cursor<'_>, problems: &mut Problems) {
    if let Some(url) = reports.key("url")
        && let Some(text) = url.text().filter(|text| !text.is_empty())
        && let Err(fault) = check_url(text)
    {
        problems.add(url.problem(format!("{fault}, found {}", url.shown())));
    }
    if let Some(token) = reports.key("token")
        && let Some(fault) = token.text().and_then(key_fault)
    {
        problems.add(token.problem(fault));
    }
}

#[cfg(test)]
mod tests {
    use crate::config::check::processes::tests::{problem, warning};

    const MANAGED: &str =
        "process: { preset: llama-server, model_path: m.gguf }, backend: llama-server";

    #[test]
    fn ports_of_listeners_are_not_given_to_processes() {
        let found = problem(MANAGED, "gpu: { ports: \"8000-9000\" }");
        assert_eq!(found.0, "gpu.ports");
        assert!(
            found.1.contains("`listen.clients[0].address`, 8080"),
            "{found:?}"
        );
        let admin = problem(MANAGED, "gpu: { ports: \"9090-9091\" }");
        assert!(
            admin.1.contains("`listen.admin.address`, 9090"),
            "{admin:?}"
        );
        let bad = problem(MANAGED, "gpu: { ports: \"2-1\" }");
        assert!(bad.1.contains("such as \"20000-20999\""), "{bad:?}");
        let remote = "backend: openai, endpoints: [{ url: \"http://a:1\" }]";
        let bad = problem(remote, "gpu: { ports: many }");
        assert_eq!(bad.0, "gpu.ports", "also without a process");
    }

    #[test]
    fn what_is_not_supported_yet_is_refused_by_name() {
        let found = problem(MANAGED, "gpu: { ledger: { store: redis } }");
        assert_eq!(found.0, "gpu.ledger.store");
        assert!(found.1.contains("not supported yet"), "{found:?}");
    }

    #[test]
    fn cards_have_names_of_folders_each_its_own() {
        let cards = |cards: &str| {
            format!("gpu: {{ devices: simulated, simulated: {{ cards: [{cards}] }} }}")
        };
        let card = |name: &str| format!("{{ name: {name}, total_mib: 1000 }}");
        let found = problem(MANAGED, &cards(&card("../x")));
        assert_eq!(found.0, "gpu.simulated.cards[0].name");
        let two = format!("{}, {}", card("a"), card("a"));
        let found = problem(MANAGED, &cards(&two));
        assert_eq!(found.0, "gpu.simulated.cards[1].name");
        assert!(warning(MANAGED, &cards("")).1.contains("no cards"));
        let unused = format!("gpu: {{ simulated: {{ cards: [{}] }} }}", card("a"));
        assert!(warning(MANAGED, &unused).1.contains("never used"));
    }

    #[test]
    fn a_section_without_a_process_is_odd_and_urls_are_checked() {
        let remote = "backend: openai, endpoints: [{ url: \"http://a:1\" }]";
        assert!(
            warning(remote, "gpu: {}")
                .1
                .contains("no model has a `process`")
        );
        let found = problem(MANAGED, "gpu: { reports: { url: \"ftp://x\" } }");
        assert_eq!(found.0, "gpu.reports.url");
    }
}
