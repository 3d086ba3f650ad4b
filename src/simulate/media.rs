//! Small pictures and sounds made from nothing: a PNG and a WAV that any decoder reads. The bytes
//! show and say nothing; the same seed makes the same bytes.
//!
//! Sizes are bounded by [`SIDE_MAX`] and [`SAMPLES_MAX`].

use fastrand::Rng;

/// Pixels of a picture's side: what the largest image models make.
pub(super) const SIDE_MAX: u32 = 2_048;
/// Samples of a sound: a minute.
const SAMPLES_MAX: u32 = 60 * SAMPLES_PER_SEC;
const SAMPLES_PER_SEC: u32 = 8_000;
/// The longest stored block of a deflate stream (RFC 1951 section 3.2.4).
const STORED_MAX_BYTES: usize = 65_535;

/// A greyscale picture: a gradient whose slope the seed decides.
pub(super) fn png(seed: u64, width: u32, height: u32) -> Vec<u8> {
    let (width, height) = (width.clamp(1, SIDE_MAX), height.clamp(1, SIDE_MAX));
    let mut rng = Rng::with_seed(seed);
    let (base, across, down) = (rng.u32(..), rng.u32(1..8), rng.u32(1..8));
    let mut rows = Vec::with_capacity((width as usize + 1) * height as usize);
    for y in 0..height {
        // Filter type 0: the row as it is.
        rows.push(0);
        rows.extend((0..width).map(|x| base.wrapping_add(x * across + y * down) as u8));
    }
    let mut out = b"\x89PNG\r\n\x1a\n".to_vec();
    let mut header = Vec::with_capacity(13);
    header.extend(width.to_be_bytes());
    header.extend(height.to_be_bytes());
    // Eight bits of grey, not interlaced.
    header.extend([8, 0, 0, 0, 0]);
    chunk(b"IHDR", &header, &mut out);
    chunk(b"IDAT", &zlib_stored(&rows), &mut out);
    chunk(b"IEND", &[], &mut out);
    out
}

fn chunk(kind: &[u8; 4], data: &[u8], out: &mut Vec<u8>) {
    out.extend((data.len() as u32).to_be_bytes());
    let from = out.len();
    out.extend(kind);
    out.extend(data);
    let crc = crc32(&out[from..]);
    out.extend(crc.to_be_bytes());
}

/// A zlib stream (RFC 1950) that does not compress.
fn zlib_stored(data: &[u8]) -> Vec<u8> {
    let mut out = vec![0x78, 0x01];
    let mut blocks = data.chunks(STORED_MAX_BYTES).peekable();
    while let Some(block) = blocks.next() {
        let length = block.len() as u16;
        out.push(u8::from(blocks.peek().is_none()));
        out.extend(length.to_le_bytes());
        out.extend((!length).to_le_bytes());
        out.extend(block);
    }
    out.extend(adler32(data).to_be_bytes());
    out
}

fn crc32(bytes: &[u8]) -> u32 {
    const REVERSED_POLYNOMIAL: u32 = 0xedb8_8320;
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            let carry = crc & 1;
            crc >>= 1;
            if carry == 1 {
                crc ^= REVERSED_POLYNOMIAL;
            }
        }
    }
    !crc
}

fn adler32(bytes: &[u8]) -> u32 {
    let (mut a, mut b) = (1_u32, 0_u32);
    for byte in bytes {
        a = (a + u32::from(*byte)) % 65_521;
        b = (b + a) % 65_521;
    }
    b << 16 | a
}

/// A tone in 16-bit mono PCM, a tenth of a second for each word.
pub(super) fn wav(seed: u64, words: u32) -> Vec<u8> {
    let samples = words
        .max(1)
        .saturating_mul(SAMPLES_PER_SEC / 10)
        .min(SAMPLES_MAX);
    let period = Rng::with_seed(seed).u32(16..64);
    let data_bytes = samples * 2;
    let mut out = Vec::with_capacity(44 + data_bytes as usize);
    out.extend(b"RIFF");
    out.extend((36 + data_bytes).to_le_bytes());
    out.extend(b"WAVEfmt ");
    out.extend(16_u32.to_le_bytes());
    // PCM, one channel.
    out.extend(1_u16.to_le_bytes());
    out.extend(1_u16.to_le_bytes());
    out.extend(SAMPLES_PER_SEC.to_le_bytes());
    out.extend((SAMPLES_PER_SEC * 2).to_le_bytes());
    out.extend(2_u16.to_le_bytes());
    out.extend(16_u16.to_le_bytes());
    out.extend(b"data");
    out.extend(data_bytes.to_le_bytes());
    for sample in 0..samples {
        // A triangle between -8192 and 8192.
        let phase = (sample % period) as i32 * 32_768 / period as i32;
        let level = if phase < 16_384 {
            phase - 8_192
        } else {
            24_576 - phase
        };
        out.extend((level as i16).to_le_bytes());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_those_of_the_standards() {
        // The check values of CRC-32 and Adler-32 for "123456789".
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
        assert_eq!(adler32(b"123456789"), 0x091e_01de);
    }

    #[test]
    fn a_picture_has_its_size_and_every_row_in_stored_blocks() {
        let png = png(1, 300, 300);
        assert_eq!(&png[..8], b"\x89PNG\r\n\x1a\n");
        assert_eq!(&png[16..24], [0, 0, 1, 44, 0, 0, 1, 44]);
        let data_length = u32::from_be_bytes(png[33..37].try_into().unwrap());
        // 90,300 bytes of rows in two blocks of five bytes more each, in a frame of six.
        assert_eq!(data_length, 90_300 + 10 + 6);
        assert_eq!(&png[png.len() - 8..png.len() - 4], b"IEND");
    }

    #[test]
    fn a_sound_has_the_length_its_header_says() {
        let wav = wav(1, 3);
        assert_eq!(wav.len(), 44 + 3 * 800 * 2);
        assert_eq!(u32::from_le_bytes(wav[40..44].try_into().unwrap()), 4_800);
        assert_eq!(&wav[..4], b"RIFF");
    }
}
