//! `infergate key new`: an API key and what the configuration knows it by.
//!
//! The key is printed once and kept nowhere; a lost key is replaced by a new one.

use std::fs::File;
use std::io::Read;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest, Sha256};

/// Bytes of chance: as many as the hash has.
const KEY_BYTES: usize = 32;
/// Prefix by which a leaked key is recognised.
const PREFIX: &str = "ig-";

/// A new key with its hash, as lines to read.
///
/// # Errors
/// The operating system gives no random bytes.
pub fn new() -> Result<String, String> {
    let mut bytes = [0; KEY_BYTES];
    File::open("/dev/urandom")
        .and_then(|mut random| random.read_exact(&mut bytes))
        .map_err(|error| format!("/dev/urandom: {error}"))?;
    Ok(shown(&bytes))
}

fn shown(bytes: &[u8]) -> String {
    let key = format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(bytes));
    let hash = hex::encode(Sha256::digest(&key));
    format!(
        "key     {key}\nsha256  {hash}\n\nThe key is for the client and shown only now; the hash stands in the configuration:\n  \
         api_keys_sha256: [\"{hash}\"]\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_that_of_the_key_and_no_two_keys_are_the_same() {
        let (one, other) = (new().unwrap(), new().unwrap());
        assert_ne!(one, other);
        let word = |name: &str| {
            let line = one.lines().find(|line| line.starts_with(name)).unwrap();
            line.split_whitespace().nth(1).unwrap().to_owned()
        };
        assert_eq!(word("sha256"), hex::encode(Sha256::digest(word("key"))));
        assert_eq!(word("key").len(), PREFIX.len() + 43);
    }
}
