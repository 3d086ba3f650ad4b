//! Identity of an instance: one life of a slot.
//!
//! Not the identity of a slot or an endpoint, which outlives its instances. At most 512 bytes.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use thiserror::Error;

/// Bytes of an identity: the name of a model, a number and eight digits.
const BYTES_MAX: usize = 512;
/// Bytes of an identity that is a file's name as it is. The path of a socket has 108.
const PLAIN_BYTES_MAX: usize = 64;
/// Characters of a long identity that its files begin with.
const STEM_CHARS: usize = 40;

/// Identity of one life of a slot, as `qwen-7b#0-9f86d081`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct InstanceId(Arc<str>);

/// Text that is no identity.
#[derive(Debug, Error)]
#[error("an identity of an instance has 1 to {BYTES_MAX} bytes and no control characters")]
pub struct InstanceIdError;

impl InstanceId {
    /// Names a new life of a slot, told from former ones by `random`.
    ///
    /// # Errors
    /// The name of the slot is empty, too long, or has control characters.
    pub fn new(slot: &str, random: u32) -> Result<InstanceId, InstanceIdError> {
        match slot {
            "" => Err(InstanceIdError),
            slot => InstanceId::try_from(format!("{slot}-{random:08x}")),
        }
    }

    /// The identity as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the beginning of the names of its files: the identity where that is a short and plain name, else part
    /// of it with a digest.
    pub fn file_stem(&self) -> String {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '#');
        let text = self.as_str();
        if text.len() <= PLAIN_BYTES_MAX && text.chars().all(is_plain) && !text.starts_with('.') {
            return text.to_owned();
        }
        let readable = text.chars().take(STEM_CHARS);
        let readable = readable.map(|c| if is_plain(c) && c != '.' { c } else { '_' });
        format!("{}-{}", readable.collect::<String>(), self.short_stem())
    }

    /// Returns a beginning of a file's name that is as short for every identity: 16 bytes.
    pub fn short_stem(&self) -> String {
        hex::encode(&Sha256::digest(self.as_str())[..8])
    }
}

impl TryFrom<String> for InstanceId {
    type Error = InstanceIdError;
    fn try_from(text: String) -> Result<InstanceId, InstanceIdError> {
        let fits = (1..=BYTES_MAX).contains(&text.len()) && !text.contains(char::is_control);
        match fits {
            true => Ok(InstanceId(text.into())),
            false => Err(InstanceIdError),
        }
    }
}

impl fmt::Display for InstanceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_identity_names_its_files_and_others_are_digested() {
        let stem = |slot: &str| InstanceId::new(slot, 0x9f86_d081).unwrap().file_stem();
        assert_eq!(stem("qwen-7b#0"), "qwen-7b#0-9f86d081");
        let path = stem("@cf/meta/llama-3#0");
        assert!(path.starts_with("_cf_meta_llama-3#0-9f86d081-"), "{path}");
        assert!(!stem("../../etc").contains(['/', '.']));
        assert_ne!(stem("a/b"), stem("a_b"));
        assert!(stem(&"m".repeat(400)).len() <= PLAIN_BYTES_MAX);
    }

    #[test]
    fn control_characters_and_lengths_are_no_identity() {
        assert!(InstanceId::new("", 1).is_err());
        assert!(InstanceId::new("a\0b", 1).is_err());
        assert!(InstanceId::new(&"m".repeat(BYTES_MAX), 1).is_err());
        assert!(serde_json::from_str::<InstanceId>("\"a\\nb\"").is_err());
    }
}
