//! The configuration as operators see it: every key with its value, secrets as digests.
//!
//! No file is read and nothing is compared here; [`super::differences`] does. A digest shows only whether two
//! secrets are the same: it is salted, so that digests of two responses cannot be compared
//! with each other nor looked up.

use std::path::Path;

use serde_json::Value;
use sha2::{Digest, Sha256};

use super::Config;
use super::diff::comparable;
use super::load::unresolve;
use crate::plugin::is_secret_setting;

/// Keys whose values are secrets, wherever they stand.
const SECRET: &[&str] = &[
    "api_key",
    "api_keys_sha256",
    "token",
    "secret",
    "access_key",
    "secret_key",
    "previous_secrets",
    "password",
];

/// Keys below a model or `tracing` whose values may be secrets: headers that are sent to servers, variables of processes.
const SECRET_OF_SERVERS: &[&str] = &["headers", "environment"];

/// The beginning of what stands for a secret.
const HIDDEN: &str = "secret:";

/// Hex digits of a digest: enough to distinguish two secrets, too few to be mistaken for a key's hash.
const DIGEST_DIGITS: usize = 16;

/// The whole configuration as JSON, with each secret as a digest with `salt`, and with paths of files as
/// seen from `folder`, in which its file stands.
pub fn redacted(config: &Config, folder: &Path, salt: &str) -> Value {
    let mut config = config.clone();
    unresolve(&mut config, folder);
    let mut tree = comparable(&config);
    hide_below(&mut tree, salt, SecretScope::Other);
    tree
}

/// The configuration that has effect, where `loaded` was loaded after `started_with`: keys that are read
/// once, at start, have the values of then.
pub fn effective(loaded: &Config, started_with: &Config) -> Config {
    let mut config = loaded.clone();
    config.threads = started_with.threads;
    config.state_dir.clone_from(&started_with.state_dir);
    config.listen.clone_from(&started_with.listen);
    // What is spoken at an address is followed.
    let mut left: Vec<_> = loaded.listen.clients.iter().collect();
    for listener in &mut config.listen.clients {
        // By their order where one address stands for free ports.
        if let Some(at) = left.iter().position(|now| now.address == listener.address) {
            listener.clone_from(left.remove(at));
        }
    }
    if let (Some(peers), Some(now)) = (&mut config.listen.peers, &loaded.listen.peers) {
        peers.tls = now.tls.clone();
    }
    config.cluster.clone_from(&started_with.cluster);
    if let (Some(cluster), Some(now)) = (&mut config.cluster, &loaded.cluster) {
        cluster.node_names.clone_from(&now.node_names);
        cluster.crl.clone_from(&now.crl);
    }
    keep_devices(&mut config, started_with);
    if started_with.is_in_fleet() {
        config.node = started_with.node.clone();
    }
    config
}

/// Devices and their ledger are opened once, at start.
fn keep_devices(config: &mut Config, started_with: &Config) {
    if config.gpu == started_with.gpu {
        return;
    }
    let former = started_with.gpu.clone().unwrap_or_default();
    let gpu = config.gpu.get_or_insert_default();
    gpu.devices = former.devices;
    gpu.only = former.only;
    gpu.ledger = former.ledger;
    gpu.simulated = former.simulated;
    gpu.cgroup = former.cgroup;
}

/// Returns true when `value` stands for a secret, or has one in it.
pub fn has_secret(value: &Value) -> bool {
    match value {
        Value::String(text) => text
            .strip_prefix(HIDDEN)
            .is_some_and(|digest| digest.len() == DIGEST_DIGITS),
        Value::Array(items) => items.iter().any(has_secret),
        Value::Object(map) => map.values().any(has_secret),
        _ => false,
    }
}

/// Part of the file that a key is in, as far as that decides whether it is a secret.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SecretScope {
    Servers,
    Settings,
    Other,
}

impl SecretScope {
    fn below(self, key: &str) -> SecretScope {
        match (self, key) {
            (SecretScope::Other, "models" | "tracing") => SecretScope::Servers,
            (SecretScope::Other, "settings") => SecretScope::Settings,
            _ => self,
        }
    }

    fn is_secret(self, key: &str) -> bool {
        SECRET.contains(&key)
            || self == SecretScope::Servers && SECRET_OF_SERVERS.contains(&key)
            || self == SecretScope::Settings && is_secret_setting(key)
    }
}

fn hide_below(tree: &mut Value, salt: &str, part: SecretScope) {
    match tree {
        Value::Object(map) => {
            for (key, value) in map.iter_mut() {
                match part.is_secret(key) {
                    true => hide(value, salt),
                    false => hide_below(value, salt, part.below(key)),
                }
            }
        }
        Value::Array(items) => {
            for item in items {
                hide_below(item, salt, part);
            }
        }
        _ => {}
    }
}

/// Puts digests in the place of all values; nothing stays nothing.
fn hide(value: &mut Value, salt: &str) {
    match value {
        Value::Null => {}
        Value::Array(items) => items.iter_mut().for_each(|item| hide(item, salt)),
        Value::Object(map) => map.values_mut().for_each(|item| hide(item, salt)),
        value => {
            let digest = Sha256::digest(format!("{salt}\n{value}"));
            *value = format!("{HIDDEN}{}", &hex::encode(digest)[..DIGEST_DIGITS]).into();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{differences, parse};

    fn config(edit: impl Fn(String) -> String) -> Config {
        let text = edit(crate::config::QUICKSTART.to_owned());
        parse(&text, &|_| None).unwrap().config
    }

    fn with_secret(secret: &str) -> Config {
        let mut config = config(|text| text);
        config.models[0].endpoints[0].api_key = Some(secret.into());
        let cluster = serde_json::json!({ "gossip": "127.0.0.1:1", "secret": secret });
        config.cluster = serde_json::from_value(cluster).unwrap();
        config
    }

    fn show(config: &Config) -> Value {
        redacted(config, Path::new("conf"), "s")
    }

    #[test]
    fn secrets_are_shown_as_digests_that_tell_only_whether_they_are_the_same() {
        let (one, other) = (with_secret("first-one"), with_secret("second-one"));
        let tree = show(&one);
        assert!(!tree.to_string().contains("first-one"), "{tree}");
        assert_eq!(differences(&tree, &show(&one.clone())), []);
        assert_ne!(tree, redacted(&one, Path::new(""), "another salt"));
        let found = differences(&tree, &show(&other));
        assert_eq!(found.len(), 2);
        let hidden = |value: &Option<Value>| value.as_ref().is_some_and(has_secret);
        assert!(found.iter().all(|one| hidden(&one.old) && hidden(&one.new)));
        assert!(
            found
                .iter()
                .any(|one| one.path == "cluster.secret" && one.needs_restart)
        );
    }

    #[test]
    fn hashes_of_keys_and_headers_of_model_servers_are_hidden_and_lists_of_header_names_are_not() {
        let mut tree = serde_json::json!({
            "headers": { "pass": ["x-trace"] },
            "accounts": [{ "id": "a", "api_keys_sha256": ["00ff"] }],
            "models": [{ "endpoints": [{ "headers": { "x-key": "k" } }] }],
            "tracing": { "otlp": { "headers": { "x-key": "k" } } },
            "plugins": [{ "name": "p", "settings": { "Api-Key": "k", "factor": 2 } }],
        });
        hide_below(&mut tree, "s", SecretScope::Other);
        assert_eq!(tree["headers"]["pass"][0], "x-trace");
        assert_eq!(tree["accounts"][0]["id"], "a");
        assert!(has_secret(&tree["plugins"][0]["settings"]["Api-Key"]));
        assert_eq!(tree["plugins"][0]["settings"]["factor"], 2);
        assert!(has_secret(&tree["accounts"][0]["api_keys_sha256"]));
        assert!(has_secret(
            &tree["models"][0]["endpoints"][0]["headers"]["x-key"]
        ));
        assert!(has_secret(&tree["tracing"]["otlp"]["headers"]["x-key"]));
    }

    #[test]
    fn what_is_added_removed_and_changed_is_told_apart_with_its_values() {
        let old = config(|text| text + "timeouts: { ceiling_secs: 100 }\n");
        let new = config(|text| {
            let accounts = "accounts:\n  - { id: b, api_keys_sha256: [] }\n";
            text.replace("accounts:\n", accounts) + "timeouts: { ceiling_secs: 200 }\n"
        });
        let found = differences(&show(&old), &show(&new));
        let one = |path: &str| found.iter().find(|one| one.path == path).unwrap();
        let ceiling = one("timeouts.ceiling_secs");
        assert_eq!(
            (&ceiling.old, &ceiling.new),
            (&Some(100.into()), &Some(200.into()))
        );
        assert!(one("accounts[b]").old.is_none() && one("accounts[b]").new.is_some());
    }

    #[test]
    fn keys_that_are_read_at_start_show_the_values_of_then() {
        let started = config(|text| text + "threads: 2\n");
        let loaded = config(|text| {
            let text = text.replace("127.0.0.1:8080", "127.0.0.1:8081");
            text.replace("anonymous: allow", "anonymous: deny") + "threads: 3\n"
        });
        let config = effective(&loaded, &started);
        assert_eq!(config.threads, 2);
        assert_eq!(config.listen, started.listen);
        assert_eq!(config.anonymous, crate::config::Anonymous::Deny);
    }

    #[test]
    fn paths_are_those_of_the_file_whatever_folder_it_was_loaded_from() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("infergate.yaml");
        std::fs::write(&file, crate::config::QUICKSTART).unwrap();
        let loaded = crate::config::load(&file).unwrap().config;
        let tree = redacted(&loaded, dir.path(), "s");
        assert_eq!(tree["plugins"][1]["file"], "quickstart/neurons.wasm");
    }
}
