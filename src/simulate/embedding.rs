//! Simulated embeddings: unit vectors that are the same for the same seed and text. The vectors
//! carry no meaning: two similar texts are as far apart as any two.

use fastrand::Rng;

use super::text::hash;

/// The vector of `text`.
pub(super) fn vector(seed: u64, text: &str, dims: usize) -> Vec<f32> {
    let mut rng = Rng::with_seed(seed ^ hash(text.as_bytes()));
    let mut vector: Vec<f32> = (0..dims).map(|_| rng.f32() * 2.0 - 1.0).collect();
    let length = vector
        .iter()
        .map(|x| x * x)
        .sum::<f32>()
        .sqrt()
        .max(f32::MIN_POSITIVE);
    for x in &mut vector {
        *x /= length;
    }
    vector
}

/// Little-endian f32 in base64, as the OpenAI clients ask for by default.
pub(super) fn base64(vector: &[f32]) -> String {
    let bytes: Vec<u8> = vector.iter().flat_map(|x| x.to_le_bytes()).collect();
    base64_of(&bytes)
}

/// Any bytes in base64.
pub(super) fn base64_of(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let word = group
            .iter()
            .fold(0u32, |word, byte| word << 8 | u32::from(*byte))
            << (8 * (3 - group.len()));
        for position in 0..4 {
            if position <= group.len() {
                let index = word >> (18 - 6 * position) & 63;
                out.push(char::from(ALPHABET[index as usize]));
            } else {
                out.push('=');
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vector_is_of_unit_length_and_belongs_to_its_text() {
        let one = vector(1, "a", 384);
        let length: f32 = one.iter().map(|x| x * x).sum();
        assert!((length - 1.0).abs() < 1e-4, "{length}");
        assert_eq!(one, vector(1, "a", 384));
        assert_ne!(one, vector(1, "b", 384));
    }

    #[test]
    fn base64_is_padded_little_endian_f32() {
        // 1.0 is 00 00 80 3f, -2.5 is 00 00 20 c0.
        assert_eq!(base64(&[1.0]), "AACAPw==");
        assert_eq!(base64(&[1.0, -2.5]), "AACAPwAAIMA=");
        assert_eq!(base64(&[0.0, 0.0, 0.0]), "AAAAAAAAAAAAAAAA");
    }
}
