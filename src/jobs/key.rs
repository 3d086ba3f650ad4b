//! Keys of queues, by the names that the configuration has for what they serve.
//!
//! Not the queues.

use infergate_core::job::{DeployableKey, DeployableKind};
use sha2::{Digest, Sha256};

/// Returns the key of a queue by its configured name.
pub fn key_of(kind: DeployableKind, name: &str) -> DeployableKey {
    DeployableKey::new(kind, &Sha256::digest(name).into())
}
