//! API keys that were accepted, remembered by a keyed hash: the next request with one needs no SHA-256.
//!
//! Not a decision on keys: `super::accounts` accepts them. The keys themselves are not kept. At most
//! [`KEYS_MAX`], for as long as one configuration is served.
//!
//! A key that was never accepted is not found here. A fingerprint is 128 bits of SipHash-1-3
//! (<https://www.aumasson.jp/siphash/siphash.pdf>), a pseudorandom function under a secret that std draws from
//! the system. No fingerprint ever leaves this module, so that the best attempt is a guess: with all places
//! taken, one in 2^116 is found. For the same reason the time of a look-up tells nothing about a key, and need
//! not be constant.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};

use hashbrown::HashMap;
use infergate_core::model::KeyHash;
use parking_lot::RwLock;

/// Keys remembered at most, of 48 bytes each. More than are in use at once in most installations; any other
/// costs a SHA-256 more.
const KEYS_MAX: usize = 4096;

/// Keyed hash of an API key.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct KeyFingerprint([u64; 2]);

/// Fingerprints of accepted keys, and the SHA-256 of each.
#[derive(Default)]
pub(super) struct KeyMemory {
    /// SipHash-1-3 under a secret.
    function: RandomState,
    /// Guards the map alone. Every request reads it; the first ones with a key write.
    keys: RwLock<HashMap<KeyFingerprint, KeyHash>>,
}

impl KeyMemory {
    /// Returns the fingerprint of `key`: two values of one function, for inputs that end differently.
    pub(super) fn fingerprint(&self, key: &[u8]) -> KeyFingerprint {
        let mut read = self.function.build_hasher();
        read.write(key);
        KeyFingerprint([0, 1].map(|half| {
            let mut hasher = read.clone();
            hasher.write_u8(half);
            hasher.finish()
        }))
    }

    /// Returns the SHA-256 of a key that was accepted.
    pub(super) fn find(&self, fingerprint: KeyFingerprint) -> Option<KeyHash> {
        self.keys.read().get(&fingerprint).copied()
    }

    /// Remembers an accepted key, in the place of any other where there are too many. Does nothing while
    /// another request remembers one.
    pub(super) fn remember(&self, fingerprint: KeyFingerprint, hash: KeyHash) {
        let Some(mut keys) = self.keys.try_write() else {
            return;
        };
        if keys.len() >= KEYS_MAX
            && let Some(any) = keys.keys().next().copied()
        {
            keys.remove(&any);
        }
        keys.insert(fingerprint, hash);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_found_once_it_was_remembered_and_no_other_is() {
        let memory = KeyMemory::default();
        let hash = KeyHash([7; 32]);
        memory.remember(memory.fingerprint(b"good"), hash);
        assert_eq!(memory.find(memory.fingerprint(b"good")), Some(hash));
        for other in [&b""[..], b"goo", b"good\0", b"Good", &[0; 9]] {
            assert_eq!(memory.find(memory.fingerprint(other)), None, "{other:?}");
        }
    }

    #[test]
    fn the_halves_of_a_fingerprint_and_those_of_two_memories_differ() {
        let (one, two) = (KeyMemory::default(), KeyMemory::default());
        let KeyFingerprint([first, second]) = one.fingerprint(b"key");
        assert_ne!(first, second);
        assert!(one.fingerprint(b"key") != two.fingerprint(b"key"));
    }

    #[test]
    fn the_newest_keys_are_remembered_and_never_too_many() {
        let memory = KeyMemory::default();
        for number in 0..KEYS_MAX as u32 + 100 {
            let fingerprint = memory.fingerprint(&number.to_le_bytes());
            memory.remember(fingerprint, KeyHash([1; 32]));
            assert!(memory.find(fingerprint).is_some());
        }
        assert_eq!(memory.keys.read().len(), KEYS_MAX);
    }
}
