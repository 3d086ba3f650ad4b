//! Memory of recent requests by endpoint: prompt prefixes and LoRA adapters. Source of the affinities of
//! a [`Candidate`](super::Candidate).
//!
//! An estimate, not the state of the server: evictions are not seen, and a wrong estimate costs a cache
//! miss. Prompts are known by hashes of their first [`BLOCKS_MAX`] blocks of
//! [`BLOCK_BYTES`], each hash over all bytes up to the block's end, so that equal hashes mean equal
//! beginnings. The last block counts only when whole: a prompt below one block has no prefix worth
//! finding. Endpoints are known by URL. The shell holds one of each per model under a small mutex.

use std::sync::Arc;

use hashbrown::HashMap;

/// Bytes of a block: about 250 tokens, a few pages of a server's prefix cache.
pub const BLOCK_BYTES: usize = 1024;

/// Blocks compared: prompts that share 16 KiB hardly differ in their best endpoint.
pub const BLOCKS_MAX: usize = 16;

/// Blocks remembered per endpoint, unless configured otherwise: 16 MiB of prompts, about what the cache
/// of a large GPU holds, in some 400 KiB of memory.
pub const BLOCKS_REMEMBERED: usize = 16_384;

/// Endpoints remembered; more than a model has.
pub const ENDPOINTS_MAX: usize = 1024;

/// Hashes of a prompt's first blocks, each of the whole beginning up to there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockHashes {
    hashes: [u64; BLOCKS_MAX],
    len: usize,
}

impl std::ops::Deref for BlockHashes {
    type Target = [u64];
    fn deref(&self) -> &[u64] {
        &self.hashes[..self.len]
    }
}

/// The hashes of a prompt. Some 2 µs for 16 KiB. Not resistant to adversaries: colliding prompts spoil
/// nothing but their own affinity.
pub fn block_hashes(prompt: &[u8]) -> BlockHashes {
    let mut found = BlockHashes::default();
    let mut hash = 0;
    for block in prompt.chunks_exact(BLOCK_BYTES).take(BLOCKS_MAX) {
        for word in block.chunks_exact(8) {
            let word = word
                .iter()
                .rev()
                .fold(0, |word, byte| word << 8 | u64::from(*byte));
            hash = mix(hash, word);
        }
        found.hashes[found.len] = hash;
        found.len += 1;
    }
    found
}

/// The number of an adapter's name, for [`Hints::lora`](super::Hints::lora).
pub fn lora_number(name: &str) -> u32 {
    let hash = name.bytes().fold(0, |hash, byte| mix(hash, byte.into()));
    (hash >> 32) as u32
}

/// Folds a word into a hash: the two halves of a product, as in wyhash
/// (<https://github.com/wangyi-fudan/wyhash>).
fn mix(hash: u64, word: u64) -> u64 {
    let product =
        u128::from(hash ^ word ^ 0x9e37_79b9_7f4a_7c15) * u128::from(0xe703_7ed1_a0b4_28db_u64);
    (product as u64 ^ (product >> 64) as u64).wrapping_add(word.rotate_left(32))
}

/// Beginnings of prompts, by the endpoint they were sent to.
#[derive(Debug)]
pub struct PrefixMemory {
    capacity: usize,
    endpoints: HashMap<Arc<str>, RecentHashes>,
}

impl PrefixMemory {
    /// Remembers at most `capacity` blocks per endpoint, the most recent ones; at least
    /// [`BLOCKS_MAX`].
    pub fn new(capacity: usize) -> PrefixMemory {
        PrefixMemory {
            capacity: capacity.max(BLOCKS_MAX),
            endpoints: HashMap::new(),
        }
    }

    /// Share of the prompt that was sent there before: 0 to [`WHOLE`](super::policy::WHOLE) of its
    /// blocks, counted from the beginning.
    pub fn share(&self, endpoint: &str, hashes: &[u64]) -> u16 {
        let Some(recent) = self.endpoints.get(endpoint) else {
            return 0;
        };
        let known = hashes
            .iter()
            .take_while(|hash| recent.contains(**hash))
            .count();
        match hashes.len() {
            0 => 0,
            blocks => (known * usize::from(super::policy::WHOLE) / blocks) as u16,
        }
    }

    /// Remembers that the prompt was sent there.
    pub fn remember(&mut self, endpoint: &Arc<str>, hashes: &[u64]) {
        if hashes.is_empty() || !has_capacity(&self.endpoints, endpoint) {
            return;
        }
        let recent = self.endpoints.entry(Arc::clone(endpoint)).or_default();
        // The beginning last: it is shared by more prompts, and nothing is found without it.
        for hash in hashes.iter().take(BLOCKS_MAX).rev() {
            recent.touch(*hash, self.capacity);
        }
    }

    /// Keeps only these endpoints; for endpoints that have left or were restarted.
    pub fn retain(&mut self, keep: impl Fn(&str) -> bool) {
        self.endpoints.retain(|endpoint, _| keep(endpoint));
    }

    /// Blocks remembered at all endpoints.
    #[cfg(test)]
    pub fn blocks(&self) -> usize {
        self.endpoints
            .values()
            .map(|recent| recent.slots.len())
            .sum()
    }
}

/// The adapter each endpoint was last sent, by number.
#[derive(Debug, Default)]
pub struct AdapterMemory {
    last: HashMap<Arc<str>, u32>,
}

impl AdapterMemory {
    /// Remembers that a request with this adapter was sent there.
    pub fn remember(&mut self, endpoint: &Arc<str>, lora: u32) {
        if has_capacity(&self.last, endpoint) {
            self.last.insert(Arc::clone(endpoint), lora);
        }
    }

    /// [`WHOLE`](super::policy::WHOLE) when the wanted adapter is the last one sent there, else 0.
    pub fn affinity(&self, endpoint: &str, wanted: Option<u32>) -> u16 {
        let last = self.last.get(endpoint).copied();
        if wanted.is_some() && last == wanted {
            super::policy::WHOLE
        } else {
            0
        }
    }

    /// Keeps only these endpoints; for endpoints that have left or were restarted.
    pub fn retain(&mut self, keep: impl Fn(&str) -> bool) {
        self.last.retain(|endpoint, _| keep(endpoint));
    }
}

fn has_capacity<T>(endpoints: &HashMap<Arc<str>, T>, endpoint: &str) -> bool {
    endpoints.len() < ENDPOINTS_MAX || endpoints.contains_key(endpoint)
}

/// No slot.
const NONE: usize = usize::MAX;

/// Hashes in the order of their last use: a table into a doubly linked list. O(1) each.
#[derive(Debug)]
struct RecentHashes {
    indices: HashMap<u64, usize>,
    slots: Vec<RecentHash>,
    newest: usize,
    oldest: usize,
}

#[derive(Debug)]
struct RecentHash {
    hash: u64,
    newer: usize,
    older: usize,
}

impl Default for RecentHashes {
    fn default() -> RecentHashes {
        RecentHashes {
            indices: HashMap::new(),
            slots: Vec::new(),
            newest: NONE,
            oldest: NONE,
        }
    }
}

impl RecentHashes {
    fn contains(&self, hash: u64) -> bool {
        self.indices.contains_key(&hash)
    }

    /// Makes a hash the newest, in place of the oldest when there is no capacity.
    fn touch(&mut self, hash: u64, capacity: usize) {
        let slot = match self.indices.get(&hash) {
            Some(&slot) => {
                self.unlink(slot);
                slot
            }
            None => self.insert(hash, capacity),
        };
        self.slots[slot].newer = NONE;
        self.slots[slot].older = self.newest;
        match self.newest {
            NONE => self.oldest = slot,
            newest => self.slots[newest].newer = slot,
        }
        self.newest = slot;
    }

    fn insert(&mut self, hash: u64, capacity: usize) -> usize {
        let slot = if self.slots.len() < capacity {
            self.slots.push(RecentHash {
                hash,
                newer: NONE,
                older: NONE,
            });
            self.slots.len() - 1
        } else {
            let slot = self.oldest;
            self.unlink(slot);
            self.indices.remove(&self.slots[slot].hash);
            self.slots[slot].hash = hash;
            slot
        };
        self.indices.insert(hash, slot);
        slot
    }

    fn unlink(&mut self, slot: usize) {
        let RecentHash { newer, older, .. } = self.slots[slot];
        match newer {
            NONE => self.newest = older,
            newer => self.slots[newer].older = older,
        }
        match older {
            NONE => self.oldest = newer,
            older => self.slots[older].newer = newer,
        }
    }
}

#[cfg(test)]
mod tests;
