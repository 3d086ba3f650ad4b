//! Differences of two configurations: key paths, and which of them need a restart.
//!
//! Differences are found, not applied. [`diff`] shows no values, so that a changed secret stays one;
//! [`differences`] compares configurations whose secrets are hidden already. Models and accounts are compared
//! by id, endpoints by URL, listeners by address: order is not a change.

use std::collections::HashMap;

use serde::Serialize;
use serde_json::Value;

use super::Config;
use super::problem::path_of_key;

/// Keys that are read once, at start.
pub(super) const NEEDS_RESTART: &[&str] = &[
    "listen",
    "cluster",
    "threads",
    "state_dir",
    "jobs",
    "files.local",
    "files.s3",
    "gpu.devices",
    "gpu.only",
    "gpu.reserve",
    "gpu.reserve_mib",
    "gpu.ports",
    "gpu.ledger",
    "gpu.simulated",
    "gpu.cgroup",
];

/// Keys that are read once where other nodes know this one: by its certificate and by what it
/// published under this name.
const NEEDS_RESTART_IN_FLEET: &[&str] = &["node.id", "node.site"];

/// Keys below those that are followed.
const LIVE: &[&str] = &[
    "listen.admin.tls",
    "listen.peers.tls",
    "cluster.node_names",
    "cluster.crl",
    "jobs.embedded",
    "jobs.keep_secs",
    "jobs.payload_max_kib",
    "jobs.retention_secs",
    "jobs.webhooks",
    "jobs.worker.concurrency_max",
    "jobs.worker.drain_timeout_secs",
];

/// Paths of the keys that differ between two configurations.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ConfigDiff {
    /// Paths of all keys that differ, such as `models[@cf/x].queue.algorithm`; the path of the
    /// whole model, account or endpoint when it is new or gone.
    pub changed: Vec<String>,
    /// The subset of `changed` that takes effect only after a restart.
    pub needs_restart: Vec<String>,
}

/// A key that differs between two configurations, with both values.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KeyDifference {
    /// Its path, such as `models[@cf/x].queue.capacity`.
    pub path: String,
    /// The former value; none where the key or the item is new.
    pub old: Option<Value>,
    /// The value from now on; none where the key or the item is gone.
    pub new: Option<Value>,
    /// The change takes effect only after a restart.
    pub needs_restart: bool,
}

/// Compares two configurations as [`super::redacted()`] makes them, key by key.
pub fn differences(old: &Value, new: &Value) -> Vec<KeyDifference> {
    let mut found = Vec::new();
    compare("", old, new, &mut found);
    let in_fleet = [&old["cluster"], &old["listen"]["peers"]];
    let in_fleet = in_fleet.iter().any(|part| !part.is_null());
    for one in &mut found {
        one.needs_restart = needs_restart(&one.path)
            || in_fleet && NEEDS_RESTART_IN_FLEET.contains(&one.path.as_str());
    }
    found
}

/// Compares two configurations key by key.
pub fn diff(old: &Config, new: &Config) -> ConfigDiff {
    let mut found = Vec::new();
    compare("", &comparable(old), &comparable(new), &mut found);
    let changed: Vec<String> = found.into_iter().map(|one| one.path).collect();
    let in_fleet = |path: &str| NEEDS_RESTART_IN_FLEET.contains(&path) && old.is_in_fleet();
    let needs_restart = changed
        .iter()
        .filter(|path| needs_restart(path) || in_fleet(path))
        .cloned()
        .collect();
    ConfigDiff {
        changed,
        needs_restart,
    }
}

/// Returns true when the key at `path` is read once, at start.
pub(super) fn needs_restart(path: &str) -> bool {
    let below = |rest: &str| rest.is_empty() || rest.starts_with(['.', '[']);
    let stands_in = |keys: &[&str]| {
        let mut keys = keys.iter();
        keys.any(|key| path.strip_prefix(key).is_some_and(below))
    };
    stands_in(NEEDS_RESTART) && !stands_in(LIVE) && !is_spoken_at_a_listener(path)
}

/// Returns true for keys of one listener for clients, of which the address alone is bound at start.
fn is_spoken_at_a_listener(path: &str) -> bool {
    let listener = path.strip_prefix("listen.clients[");
    listener.is_some_and(|rest| rest.contains("]."))
}

/// The configuration as a tree. Keys are never serialised: put in here, for comparison.
pub(super) fn comparable(config: &Config) -> Value {
    let mut tree = serde_json::to_value(config).unwrap_or_default();
    if let Some(cluster) = &config.cluster {
        if let Some(secret) = &cluster.secret {
            tree["cluster"]["secret"] = secret.reveal().into();
        }
        let token = cluster.consul.as_ref().and_then(|c| c.token.as_ref());
        if let Some(token) = token {
            tree["cluster"]["consul"]["token"] = token.reveal().into();
        }
    }
    if let Some(s3) = &config.files.s3 {
        for (key, secret) in [
            ("access_key", &s3.access_key),
            ("secret_key", &s3.secret_key),
        ] {
            if let Some(secret) = secret {
                tree["files"]["s3"][key] = secret.reveal().into();
            }
        }
    }
    if let Some(jobs) = &config.jobs {
        let webhooks = &jobs.webhooks;
        if let Some(secret) = &webhooks.secret {
            tree["jobs"]["webhooks"]["secret"] = secret.reveal().into();
        }
        let previous = webhooks.previous_secrets.iter();
        let previous: Vec<Value> = previous.map(|secret| secret.reveal().into()).collect();
        tree["jobs"]["webhooks"]["previous_secrets"] = previous.into();
    }
    let reports = config.gpu.as_ref().map(|gpu| &gpu.reports);
    if let Some(token) = reports.and_then(|reports| reports.token.as_ref()) {
        tree["gpu"]["reports"]["token"] = token.reveal().into();
    }
    if let Some(otlp) = &config.tracing.otlp {
        for (name, value) in &otlp.headers {
            tree["tracing"]["otlp"]["headers"][&**name] = value.reveal().into();
        }
    }
    for (at, model) in config.models.iter().enumerate() {
        for (nth, endpoint) in model.endpoints.iter().enumerate() {
            if let Some(key) = &endpoint.api_key {
                tree["models"][at]["endpoints"][nth]["api_key"] = key.reveal().into();
            }
            for (name, value) in &endpoint.headers {
                tree["models"][at]["endpoints"][nth]["headers"][&**name] = value.reveal().into();
            }
        }
        for (name, value) in model.process.iter().flat_map(|it| &it.environment) {
            tree["models"][at]["process"]["environment"][&**name] = value.reveal().into();
        }
        let Some(discovery) = &model.discovery else {
            continue;
        };
        if let Some(key) = &discovery.api_key {
            tree["models"][at]["discovery"]["api_key"] = key.reveal().into();
        }
        let token = discovery.consul.as_ref().and_then(|c| c.token.as_ref());
        if let Some(token) = token {
            tree["models"][at]["discovery"]["consul"]["token"] = token.reveal().into();
        }
    }
    tree
}

fn compare(path: &str, old: &Value, new: &Value, found: &mut Vec<KeyDifference>) {
    match (old, new) {
        (Value::Object(before), Value::Object(after)) => {
            for (key, value) in before {
                let path = path_of_key(path, key);
                match after.get(key) {
                    Some(other) => compare(&path, value, other, found),
                    None => found.push(KeyDifference::new(path, Some(value), None)),
                }
            }
            for (key, value) in after.iter().filter(|(key, _)| !before.contains_key(*key)) {
                found.push(KeyDifference::new(
                    path_of_key(path, key),
                    None,
                    Some(value),
                ));
            }
        }
        (Value::Array(before), Value::Array(after)) if are_named(before) && are_named(after) => {
            compare_named(path, before, after, found);
        }
        _ if old != new => found.push(KeyDifference::new(path.to_owned(), Some(old), Some(new))),
        _ => {}
    }
}

impl KeyDifference {
    /// A key without a value is a key that is not there.
    fn new(path: String, old: Option<&Value>, new: Option<&Value>) -> KeyDifference {
        KeyDifference {
            path,
            old: old.filter(|value| !value.is_null()).cloned(),
            new: new.filter(|value| !value.is_null()).cloned(),
            needs_restart: false,
        }
    }
}

/// Returns true when every item has a name to be compared by. An empty list has no item without
/// one.
fn are_named(items: &[Value]) -> bool {
    items.iter().all(|item| name(item).is_some())
}

fn name(item: &Value) -> Option<&str> {
    ["id", "url", "address", "name"]
        .iter()
        .find_map(|key| item.get(key)?.as_str())
}

/// Name of an item, and its number among those of that name: listeners at free ports have one address.
type ItemKey<'a> = (&'a str, usize);

fn numbered(items: &[Value]) -> Vec<(ItemKey<'_>, &Value)> {
    let mut seen: HashMap<&str, usize> = HashMap::new();
    let mut found = Vec::with_capacity(items.len());
    for item in items {
        if let Some(name) = name(item) {
            let number = seen.entry(name).or_default();
            *number += 1;
            found.push(((name, *number), item));
        }
    }
    found
}

fn compare_named(path: &str, before: &[Value], after: &[Value], found: &mut Vec<KeyDifference>) {
    let (before, after) = (numbered(before), numbered(after));
    let old: HashMap<_, _> = before.iter().copied().collect();
    let new: HashMap<_, _> = after.iter().copied().collect();
    for (key, item) in &before {
        let path = format!("{path}[{}]", key.0);
        match new.get(key) {
            Some(other) => compare(&path, item, other, found),
            None => found.push(KeyDifference::new(path, Some(item), None)),
        }
    }
    for (key, item) in after.iter().filter(|(key, _)| !old.contains_key(key)) {
        let path = format!("{path}[{}]", key.0);
        found.push(KeyDifference::new(path, None, Some(item)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse;

    fn config(edit: impl Fn(String) -> String) -> Config {
        let text = edit(crate::config::QUICKSTART.to_owned());
        parse(&text, &|_| Some("first".to_owned())).unwrap().config
    }

    #[test]
    fn the_same_configuration_has_no_differences() {
        assert_eq!(diff(&config(|t| t), &config(|t| t)), ConfigDiff::default());
    }

    #[test]
    fn a_changed_key_is_named_by_ids_not_by_positions() {
        let new = config(|text| {
            // Two models share that server's permits, and must agree.
            text.replace(
                "9001\", max_concurrent_requests: 4",
                "9001\", max_concurrent_requests: 5",
            ) + "    queue: { algorithm: fifo }\ntimeouts: { ceiling_secs: 100 }\n"
        });
        let changed = diff(&config(|t| t), &new).changed;
        assert!(
            changed.contains(&"timeouts.ceiling_secs".to_owned()),
            "{changed:?}"
        );
        assert!(
            changed.contains(&"models[@cf/baai/bge-base-en-v1.5].queue.algorithm".to_owned()),
            "{changed:?}"
        );
        let endpoint = "models[@cf/meta/llama-3.1-8b-instruct].endpoints[http://127.0.0.1:9001].max_concurrent_requests";
        assert!(changed.contains(&endpoint.to_owned()), "{changed:?}");
        assert_eq!(changed.len(), 4);
    }

    #[test]
    fn a_collectors_new_key_is_a_change() {
        let with = |key: &str| {
            let key = key.to_owned();
            config(move |text| {
                text + "tracing: { otlp: { endpoint: \"http://127.0.0.1:4318\", headers: { x-key: "
                    + &key
                    + " } } }\n"
            })
        };
        let changed = diff(&with("one"), &with("two")).changed;
        assert_eq!(changed, ["tracing.otlp.headers.x-key"]);
    }

    #[test]
    fn what_is_read_at_start_needs_a_restart() {
        let new = config(|text| {
            text.replace("127.0.0.1:8080", "127.0.0.1:8081")
                + "threads: 3\nlog: { format: json, level: debug }\n"
        });
        let found = diff(&config(|t| t), &new);
        let needs = [
            "listen.clients[127.0.0.1:8080]",
            "listen.clients[127.0.0.1:8081]",
            "threads",
        ];
        assert_eq!(found.needs_restart, needs);
        assert!(found.changed.contains(&"log.level".to_owned()));
    }

    #[test]
    fn what_a_listener_speaks_is_followed() {
        let with = |more: &str| {
            let address = "- address: \"127.0.0.1:8080\"\n";
            config(|text| text.replace(address, &format!("{address}      {more}\n")))
        };
        let secured = with("tls: { certificate: a, private_key: b }");
        let found = diff(&with("http2: off"), &secured);
        let listener = "listen.clients[127.0.0.1:8080]";
        let keys = ["http2", "tls"].map(|key| format!("{listener}.{key}"));
        assert_eq!(found.changed, keys);
        assert!(found.needs_restart.is_empty());
    }

    #[test]
    fn listeners_at_one_address_are_compared_by_their_order() {
        let with = |first: &str, second: &str| {
            let at = |keys: &str| format!("- address: \"127.0.0.1:0\"\n      {keys}\n");
            let both = format!("{}    {}", at(first), at(second));
            config(|text| text.replace("- address: \"127.0.0.1:8080\"\n", &both))
        };
        let first = with("http2: off", "health: true");
        assert_eq!(diff(&first, &first).changed, [""; 0]);
        let found = diff(&first, &with("http2: clear", "health: true"));
        assert_eq!(found.changed, ["listen.clients[127.0.0.1:0].http2"]);
        let next = with("http2: clear", "health: true");
        let effective = crate::config::effective(&next, &first);
        assert_eq!(effective.listen, next.listen);
    }

    #[test]
    fn webhooks_are_followed_and_whether_jobs_run_here_is_not() {
        let with = |jobs: &str| {
            config(|text| text.replace("\njobs: {}", &format!("\njobs: {{ {jobs} }}")))
        };
        let first = with("webhooks: { secret: first-0123456789 }");
        let webhooks = "secret: second-0123456789, previous_secrets: [first-0123456789], allow_http: true, ports: [80],
            allow_networks: [10.0.0.0/8], timeout_secs: 5, pending_max_per_account: 7";
        let found = diff(&first, &with(&format!("webhooks: {{ {webhooks} }}")));
        assert_eq!(found.changed.len(), 7, "{:?}", found.changed);
        assert_eq!(found.needs_restart, [""; 0]);
        let found = diff(
            &first,
            &with("webhooks: { secret: first-0123456789 }, worker: { enabled: false }"),
        );
        assert_eq!(found.needs_restart, ["jobs.worker.enabled"]);
    }

    #[test]
    fn certificates_for_other_nodes_are_followed_and_their_listener_is_not() {
        let with = |address: &str, certificate: &str| {
            config(|text| {
                let tls = format!(
                    "{{ certificate: {certificate}, private_key: k.pem, client_ca: a.pem }}"
                );
                let peers = format!("listen:\n  peers: {{ address: \"{address}\", tls: {tls} }}\n");
                text.replacen("listen:\n", &peers, 1)
            })
        };
        let first = with("127.0.0.1:7070", "one.pem");
        let found = diff(&first, &with("127.0.0.1:7071", "two.pem"));
        assert_eq!(
            found.changed,
            ["listen.peers.address", "listen.peers.tls.certificate"]
        );
        assert_eq!(found.needs_restart, ["listen.peers.address"]);
        let found = diff(&config(|t| t), &first);
        assert_eq!(found.needs_restart, ["listen.peers"]);
    }

    #[test]
    fn a_changed_secret_shows_as_a_path_only() {
        let with_key = |key: &str| {
            let mut config = config(|t| t);
            config.models[0].endpoints[0].api_key = Some(key.into());
            config
        };
        let found = diff(&with_key("old-secret"), &with_key("new-secret"));
        assert_eq!(found.changed.len(), 1);
        assert!(found.changed[0].ends_with(".api_key"));
        assert!(!format!("{found:?}").contains("secret"));

        let with_header = |value: &str| {
            let mut config = config(|t| t);
            config.models[0].endpoints[0].headers = [("x-k".into(), value.into())].into();
            config
        };
        let found = diff(&with_header("old-secret"), &with_header("new-secret"));
        assert_eq!(found.changed.len(), 1);
        assert!(found.changed[0].contains("headers") && !format!("{found:?}").contains("secret"));
    }

    #[test]
    fn secrets_of_discovery_show_as_paths_only() {
        let with = |secret: &str| {
            let discovery = serde_json::json!({
                "consul": { "url": "http://c:1", "service": "s", "token": secret },
                "api_key": secret,
            });
            let mut config = config(|t| t);
            config.models[0].discovery = serde_json::from_value(discovery).unwrap();
            config
        };
        let found = diff(&with("old-secret"), &with("new-secret"));
        let ends = |end: &str| found.changed.iter().any(|path| path.ends_with(end));
        assert!(ends("discovery.api_key") && ends("discovery.consul.token"));
        assert_eq!(found.changed.len(), 2);
        assert!(!format!("{found:?}").contains("secret"));
    }

    #[test]
    fn the_cluster_needs_a_restart_and_its_secret_shows_as_a_path_only() {
        let with = |secret: &str| {
            let cluster = serde_json::json!({ "gossip": "127.0.0.1:1", "secret": secret });
            let mut config = config(|t| t);
            config.cluster = serde_json::from_value(cluster).unwrap();
            config
        };
        let found = diff(&with("old-secret"), &with("new-secret"));
        assert_eq!(found.needs_restart, ["cluster.secret"]);
        assert!(!format!("{found:?}").contains("-secret"));
        assert_eq!(diff(&config(|t| t), &with("s")).needs_restart, ["cluster"]);
    }

    #[test]
    fn the_name_and_the_site_of_a_node_need_a_restart_where_others_know_it() {
        let with = |cluster: bool, site: &str| {
            let mut config = config(|t| t);
            config.node.site = site.into();
            if cluster {
                let cluster = serde_json::json!({ "gossip": "127.0.0.1:1" });
                config.cluster = serde_json::from_value(cluster).unwrap();
            }
            config
        };
        let found = diff(&with(true, "fra"), &with(true, "ams"));
        assert_eq!(found.needs_restart, ["node.site"]);
        let found = diff(&with(true, "fra"), &with(false, "ams"));
        assert_eq!(found.needs_restart, ["node.site", "cluster"]);
        // Nobody knows it before it is started with a cluster.
        let found = diff(&with(false, "fra"), &with(true, "ams"));
        assert_eq!(found.needs_restart, ["cluster"]);
        let found = diff(&with(false, "fra"), &with(false, "ams"));
        assert_eq!((found.changed.len(), found.needs_restart.len()), (1, 0));
    }

    #[test]
    fn order_is_not_a_change() {
        let mut turned = config(|t| t);
        turned.models.reverse();
        turned
            .models
            .iter_mut()
            .for_each(|model| model.endpoints.reverse());
        assert_eq!(diff(&config(|t| t), &turned), ConfigDiff::default());
    }
}
