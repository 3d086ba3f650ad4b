//! Digests of what all nodes of a cluster have to agree on.
//!
//! Not the comparison, which `peer` makes. Endpoints, queues and the rest of a model are each node's own and
//! not in them.

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::ConfigSnapshot;
use crate::peer::ConfigDigests;

impl ConfigSnapshot {
    /// Returns the digests of the accounts, models and tariffs of this generation. O(accounts + models), for
    /// the few times that they change.
    pub fn digests(&self) -> ConfigDigests {
        let accounts = self.accounts.specs();
        let accounts = accounts.map(|spec| (spec.id.as_str().to_owned(), json!(spec)));
        let models = self.catalog.models().iter().map(|spec| {
            let values = json!([spec.aliases, spec.task]);
            (spec.id.as_str().to_owned(), values)
        });
        let tasks = self.catalog.named_tasks().iter();
        let tasks = tasks.map(|task| (task.id.as_str().to_owned(), json!(task)));
        let clients = self.clients.iter().flat_map(|clients| clients.all());
        let clients = clients.enumerate().map(|(at, client)| {
            // Their order counts.
            (format!("client {at}"), json!(client))
        });
        let models = models.chain(tasks).chain(clients);
        let tariffs = self.catalog.models().iter().map(|spec| {
            let values = json!([
                spec.tariff,
                spec.metrics_trust,
                spec.metrics,
                spec.plugins.billing
            ]);
            (spec.id.as_str().to_owned(), values)
        });
        ConfigDigests {
            accounts: digest(accounts.collect()),
            models: digest(models.collect()),
            tariffs: digest(tariffs.collect()),
        }
    }
}

/// In whatever order they stand in the file.
fn digest(mut parts: Vec<(String, Value)>) -> u64 {
    parts.sort_by(|(one, _), (other, _)| one.cmp(other));
    let mut hasher = Sha256::new();
    for (name, values) in parts {
        hasher.update(format!("{name} {values}\n"));
    }
    let digest: [u8; 32] = hasher.finalize().into();
    let (first, _) = digest.split_at(8);
    first
        .iter()
        .fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}
