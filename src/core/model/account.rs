//! An account: its keys (hashed), its share and its limits.
//!
//! Keys are neither hashed nor compared here; the shell does both, in constant time.

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroU32;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::{AccountJobLimits, Task};
use crate::{AccountId, ModelId};

/// SHA-256 of an API key. In text, 64 hex digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, JsonSchema)]
#[schemars(transparent)]
pub struct KeyHash(#[schemars(with = "String", regex(pattern = "^[0-9a-fA-F]{64}$"))] pub [u8; 32]);

impl fmt::Debug for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Eight digits distinguish two keys in a log and do not help to guess one.
        write!(
            f,
            "sha256:{:02x}{:02x}{:02x}{:02x}…",
            self.0[0], self.0[1], self.0[2], self.0[3]
        )
    }
}

impl Serialize for KeyHash {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(
            &self
                .0
                .iter()
                .map(|b| format!("{b:02x}"))
                .collect::<String>(),
        )
    }
}

impl<'de> Deserialize<'de> for KeyHash {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        let digits = text.as_bytes();
        if digits.len() != 64 || !digits.iter().all(u8::is_ascii_hexdigit) {
            return Err(de::Error::custom("expected the 64 hex digits of a SHA-256"));
        }
        let nibble = |d: u8| (d as char).to_digit(16).map_or(0, |n| n as u8);
        let mut hash = [0; 32];
        for (byte, pair) in hash.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = nibble(pair[0]) << 4 | nibble(pair[1]);
        }
        Ok(KeyHash(hash))
    }
}

/// Permissions and limits of an account.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AccountSpec {
    /// The account's name: in events, fair queues and Workers AI paths.
    pub id: AccountId,
    /// SHA-256 of each API key (`printf %s "$KEY" | sha256sum`); never the key itself.
    #[serde(default)]
    pub api_keys_sha256: Vec<KeyHash>,
    /// Share in fair queues, relative to the others.
    #[serde(default = "AccountSpec::default_weight")]
    #[schemars(range(min = 1, max = 1000))]
    pub weight: u32,
    /// Requests per minute over all nodes of the cluster, counted by the generic cell rate algorithm; unlimited when
    /// absent. A request at another node counts here about a second later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub requests_per_minute: Option<u32>,
    /// Requests per minute of models of one task, such as `{ text-generation: 300 }`, beside the limit of all and counted
    /// likewise. The task is that of the model the client asked for.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(with = "BTreeMap<String, NonZeroU32>")]
    pub requests_per_minute_by_task: BTreeMap<Task, NonZeroU32>,
    /// Tokens per minute, input and output: a request passes while one is left, is charged what it may
    /// use and corrected to what it used. Counted by each node; unlimited when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub tokens_per_minute: Option<u32>,
    /// Requests under way at once, waiting ones included. Counted by each node; unlimited when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_concurrent: Option<u32>,
    /// Neurons per day, counted by all nodes of the cluster and reset at 00:00 UTC; unlimited when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub neurons_per_day: Option<u64>,
    /// Models the account may use; a glob `*` is allowed at the end only.
    #[serde(default = "AccountSpec::default_models")]
    pub models: Vec<ModelId>,
    /// Most urgent `x_priority` the account may request: 0 is first, 9 last.
    #[serde(default = "AccountSpec::default_max_priority")]
    #[schemars(range(max = 9))]
    pub max_priority: u8,
    /// Permission to choose a site with `x-infergate-site`; without effect on a single node.
    #[serde(default)]
    pub may_force_site: bool,
    /// Deployments that the account may make by API, for models it may use.
    #[serde(default)]
    #[schemars(range(max = 1000))]
    pub deployments_max: u32,
    /// Limits of its jobs, in place of the models'.
    #[serde(default)]
    pub jobs: AccountJobLimits,
}

impl AccountSpec {
    /// The account of requests without a key.
    pub fn anonymous() -> AccountSpec {
        AccountSpec {
            id: AccountId::from(AccountId::ANONYMOUS),
            api_keys_sha256: Vec::new(),
            weight: Self::default_weight(),
            requests_per_minute: None,
            requests_per_minute_by_task: BTreeMap::new(),
            tokens_per_minute: None,
            max_concurrent: None,
            neurons_per_day: None,
            models: Self::default_models(),
            max_priority: Self::default_max_priority(),
            may_force_site: false,
            deployments_max: 0,
            jobs: AccountJobLimits::default(),
        }
    }

    fn default_weight() -> u32 {
        1
    }

    fn default_models() -> Vec<ModelId> {
        vec![ModelId::from("*")]
    }

    fn default_max_priority() -> u8 {
        5
    }

    /// Returns whether a pattern of the account matches `model`.
    pub fn allows(&self, model: &ModelId) -> bool {
        let name = model.as_str();
        self.models
            .iter()
            .any(|pattern| match pattern.as_str().strip_suffix('*') {
                Some(prefix) => name.starts_with(prefix),
                None => pattern.as_str() == name,
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_matches_whole_names_or_a_prefix_before_the_glob() {
        let account = |pattern: &str| AccountSpec {
            models: vec![ModelId::from(pattern)],
            ..AccountSpec::anonymous()
        };
        let model = ModelId::from("@cf/meta/llama");
        assert!(account("*").allows(&model));
        assert!(account("@cf/*").allows(&model));
        assert!(account("@cf/meta/llama").allows(&model));
        assert!(!account("@cf/meta").allows(&model));
        assert!(!account("@hf/*").allows(&model));
    }

    #[test]
    fn a_key_hash_is_64_hex_digits_in_either_case() {
        let parse = |text: &str| serde_json::from_value::<KeyHash>(text.into());
        let lower = parse(&"ab".repeat(32)).unwrap();
        assert_eq!(lower, parse(&"AB".repeat(32)).unwrap());
        assert!(parse("ab").is_err());
        assert!(parse(&"zz".repeat(32)).is_err());
    }
}
