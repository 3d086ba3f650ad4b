//! SHA-1 (RFC 3174), as the handshake asks for it: no secret depends on it.
//!
//! A crate would be another dependency for one hash of 60 bytes a connection.

const BLOCK_BYTES: usize = 64;

/// Returns the hash of a short message.
pub(super) fn sha1(message: &[u8]) -> [u8; 20] {
    let mut padded = message.to_vec();
    padded.push(0x80);
    while padded.len() % BLOCK_BYTES != BLOCK_BYTES - 8 {
        padded.push(0);
    }
    padded.extend_from_slice(&(message.len() as u64 * 8).to_be_bytes());
    let mut hash = [
        0x6745_2301,
        0xefcd_ab89,
        0x98ba_dcfe,
        0x1032_5476,
        0xc3d2_e1f0,
    ];
    for block in padded.chunks_exact(BLOCK_BYTES) {
        add_block(&mut hash, block);
    }
    let mut bytes = [0; 20];
    for (part, word) in bytes.chunks_exact_mut(4).zip(hash) {
        part.copy_from_slice(&word.to_be_bytes());
    }
    bytes
}

fn add_block(hash: &mut [u32; 5], block: &[u8]) {
    let mut words = [0_u32; 80];
    for (word, bytes) in words.iter_mut().zip(block.chunks_exact(4)) {
        *word = bytes
            .iter()
            .fold(0, |word, byte| word << 8 | u32::from(*byte));
    }
    for at in 16..words.len() {
        let mixed = words[at - 3] ^ words[at - 8] ^ words[at - 14] ^ words[at - 16];
        words[at] = mixed.rotate_left(1);
    }
    let [mut a, mut b, mut c, mut d, mut e] = *hash;
    for (at, word) in words.into_iter().enumerate() {
        let (mixed, constant) = match at {
            ..20 => ((b & c) | (!b & d), 0x5a82_7999),
            20..40 => (b ^ c ^ d, 0x6ed9_eba1),
            40..60 => ((b & c) | (b & d) | (c & d), 0x8f1b_bcdc),
            60.. => (b ^ c ^ d, 0xca62_c1d6),
        };
        let next = a.rotate_left(5).wrapping_add(mixed).wrapping_add(e);
        let next = next.wrapping_add(constant).wrapping_add(word);
        (e, d, c, b, a) = (d, c, b.rotate_left(30), a, next);
    }
    for (sum, value) in hash.iter_mut().zip([a, b, c, d, e]) {
        *sum = sum.wrapping_add(value);
    }
}
