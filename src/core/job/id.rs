//! Identifiers of the durable path: jobs, workers, deployables.
//!
//! Not secrets, and not drawn here: random bytes are an argument. A job's id is its name in every API.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use super::store_time::StoreTime;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Base32 in lower case (<https://datatracker.ietf.org/doc/html/rfc4648#section-6>).
const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
/// Characters of an id: 128 bits at five bits each.
const ID_CHARS: usize = 26;
/// Random bits of an id behind its moment.
const RANDOM_BITS: u32 = 80;

/// Id of a job. The first character is the tag of its store where there are several.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId([u8; ID_CHARS]);

impl JobId {
    /// Makes an id of the moment of the submit and 80 random bits, with the tag of its store in front where one is given.
    /// Ids of one time are beside one another in an index, so that few of its pages change.
    pub fn new(tag: Option<u8>, created: StoreTime, random: u128) -> JobId {
        let bits = (u128::from(created.0) << RANDOM_BITS) | (random & ((1 << RANDOM_BITS) - 1));
        JobId::from_random(tag, bits.to_be_bytes())
    }

    /// Makes an id of random bytes, with the tag of its store in front where one is given.
    pub fn from_random(tag: Option<u8>, random: [u8; 16]) -> JobId {
        let mut bits = u128::from_be_bytes(random);
        let mut text = [0; ID_CHARS];
        for place in text.iter_mut().rev() {
            *place = ALPHABET[(bits & 31) as usize];
            bits >>= 5;
        }
        if let Some(tag) = tag.filter(|tag| ALPHABET.contains(tag)) {
            text[0] = tag;
        }
        JobId(text)
    }

    /// Returns the id as text.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

/// A text that is no id of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the id of a job has 26 characters, a to z and 2 to 7")]
pub struct JobIdError;

impl FromStr for JobId {
    type Err = JobIdError;

    fn from_str(text: &str) -> Result<JobId, JobIdError> {
        let bytes: [u8; ID_CHARS] = text.as_bytes().try_into().map_err(|_| JobIdError)?;
        match bytes.iter().all(|byte| ALPHABET.contains(byte)) {
            true => Ok(JobId(bytes)),
            false => Err(JobIdError),
        }
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for JobId {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for JobId {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<JobId, D::Error> {
        String::deserialize(from)?
            .parse()
            .map_err(de::Error::custom)
    }
}

/// Id of a worker: one incarnation of a process, never used again.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct WorkerId(Arc<str>);

impl WorkerId {
    /// Makes the id of an incarnation on `node`.
    pub fn new(node: &str, random: u32) -> WorkerId {
        WorkerId(format!("{node}-{random:08x}").into())
    }

    /// Returns the id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for WorkerId {
    fn from(text: &str) -> WorkerId {
        WorkerId(text.into())
    }
}

/// Kind of a deployable: a configured thing with a queue of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeployableKind {
    /// A model.
    Model,
    /// A deployment of a model.
    Deployment,
    /// A base whose weights are exchanged.
    HotSwap,
    /// A runtime of procedures.
    Procedure,
    /// A trainer.
    Trainer,
}

impl DeployableKind {
    /// Every kind.
    pub const ALL: [DeployableKind; 5] = [
        DeployableKind::Model,
        DeployableKind::Deployment,
        DeployableKind::HotSwap,
        DeployableKind::Procedure,
        DeployableKind::Trainer,
    ];

    /// Returns the prefix of the key.
    pub const fn prefix(self) -> &'static str {
        match self {
            DeployableKind::Model => "vp-",
            DeployableKind::Deployment => "dp-",
            DeployableKind::HotSwap => "hp-",
            DeployableKind::Procedure => "fp-",
            DeployableKind::Trainer => "vt-",
        }
    }
}

/// Key of a deployable: the prefix of its kind and 32 hex digits of its configured name's SHA-256.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct DeployableKey(Arc<str>);

impl DeployableKey {
    /// Makes the key of a deployable whose name has this SHA-256.
    pub fn new(kind: DeployableKind, name_sha256: &[u8; 32]) -> DeployableKey {
        use fmt::Write;
        let mut key = String::from(kind.prefix());
        for byte in &name_sha256[..16] {
            // Writing to a string does not fail.
            let _ = write!(key, "{byte:02x}");
        }
        DeployableKey(key.into())
    }

    /// Returns the kind that the prefix names.
    pub fn kind(&self) -> Option<DeployableKind> {
        let mut kinds = DeployableKind::ALL.into_iter();
        kinds.find(|kind| self.0.starts_with(kind.prefix()))
    }

    /// Returns the key as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for DeployableKey {
    fn from(text: &str) -> DeployableKey {
        DeployableKey(text.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_read_back_and_nothing_else_is_one() {
        let id = JobId::from_random(None, [7; 16]);
        assert_eq!(id.as_str().len(), 26);
        assert_eq!(id.as_str().parse(), Ok(id));
        let tagged = JobId::from_random(Some(b'b'), [7; 16]);
        assert!(tagged.as_str().starts_with('b'));
        for text in [
            "",
            "a",
            "A2345672345672345672345672",
            "0000000000000000000000000a",
        ] {
            assert_eq!(text.parse::<JobId>(), Err(JobIdError), "{text}");
        }
        let text = serde_json::to_string(&id).unwrap();
        assert_eq!(serde_json::from_str::<JobId>(&text).unwrap(), id);
    }

    #[test]
    fn different_bytes_make_different_ids() {
        let low = JobId::from_random(None, 1u128.to_be_bytes());
        let high = JobId::from_random(None, (1u128 << 127).to_be_bytes());
        assert_ne!(low, high);
        assert_ne!(low, JobId::from_random(None, [0; 16]));
        let at = |ms, random| JobId::new(None, StoreTime(ms), random);
        assert_ne!(at(1, 1), at(1, 2));
        assert_ne!(at(1, 1), at(2, 1));
        let now = 1_800_000_000_000;
        let [first, second] = [at(now, u128::MAX), at(now + 1, 0)];
        assert_eq!(first.as_str()[..8], second.as_str()[..8]);
    }

    #[test]
    fn a_deployable_is_its_kind_and_half_a_digest() {
        let key = DeployableKey::new(DeployableKind::Model, &[0xab; 32]);
        assert_eq!(key.as_str(), format!("vp-{}", "ab".repeat(16)));
        for kind in DeployableKind::ALL {
            let key = DeployableKey::new(kind, &[0; 32]);
            assert_eq!(key.kind(), Some(kind), "{kind:?}");
        }
        assert_eq!(DeployableKey::from("x").kind(), None);
    }
}
