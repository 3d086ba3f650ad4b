//! Duration of a WAV file, from its header.
//!
//! Not a decoder: samples are not read, and at most [`CHUNKS_MAX`] chunks are looked at. Claims of the header are
//! held against the file. Its data is no longer than the bytes that are there, and no shorter but for
//! [`TRAILER_BYTES_MAX`]; its byte rate is that of its samples.
//! Format: <https://www.rfc-editor.org/rfc/rfc2361>, <https://learn.microsoft.com/windows/win32/xaudio2/resource-interchange-file-format--riff->.

/// Chunks of a file before its data: tools write one or two.
pub const CHUNKS_MAX: usize = 32;

/// Bytes of a file behind its data: tools write names and places there. More may be sound that readers find.
pub const TRAILER_BYTES_MAX: usize = 4 * 1024;

/// Sample rates of sounds, in hertz.
const RATES: std::ops::RangeInclusive<u32> = 1_000..=768_000;
/// Channels of sounds.
const CHANNELS: std::ops::RangeInclusive<u16> = 1..=64;
/// Formats whose samples have a fixed size: PCM, float, A-law, µ-law and the extended form of them.
const FORMATS: [u16; 5] = [1, 3, 6, 7, 0xfffe];

/// Returns the seconds of a file of `bytes` bytes that begins with `start`; none where it is no WAV, or its header
/// is not to be believed.
pub fn seconds(start: &[u8], bytes: usize) -> Option<f64> {
    let riff = start.strip_prefix(b"RIFF")?;
    let mut rest = riff.get(4..)?.strip_prefix(b"WAVE")?;
    let mut byte_rate = None;
    for _ in 0..CHUNKS_MAX {
        let (head, body) = rest.split_at_checked(8)?;
        let size = u32::from_le_bytes(head[4..].try_into().ok()?);
        let length = usize::try_from(size).unwrap_or(usize::MAX);
        match &head[..4] {
            b"fmt " => byte_rate = Some(byte_rate_of(body.get(..length.min(body.len()))?)?),
            b"data" => {
                // A recorder that writes as it records leaves the size open.
                let there = bytes.checked_sub(start.len() - body.len())?;
                let length = match size {
                    0 | u32::MAX => there,
                    _ => length.min(there),
                };
                if there - length > TRAILER_BYTES_MAX {
                    return None;
                }
                return Some(length as f64 / f64::from(byte_rate?));
            }
            _ => {}
        }
        // Chunks begin at even places.
        rest = body.get(length.checked_add(length % 2)?..)?;
    }
    None
}

/// Bytes of a second of sound.
fn byte_rate_of(format: &[u8]) -> Option<u32> {
    let short = |at: usize| Some(u16::from_le_bytes(format.get(at..at + 2)?.try_into().ok()?));
    let long = |at: usize| Some(u32::from_le_bytes(format.get(at..at + 4)?.try_into().ok()?));
    let (tag, channels, rate) = (short(0)?, short(2)?, long(4)?);
    let (byte_rate, block, bits) = (long(8)?, short(12)?, short(14)?);
    let is_known = FORMATS.contains(&tag) && CHANNELS.contains(&channels) && RATES.contains(&rate);
    let sample = u32::from(bits.div_ceil(8));
    let is_sized = (8..=64).contains(&bits) && u32::from(block) == u32::from(channels) * sample;
    (is_known && is_sized && u64::from(byte_rate) == u64::from(rate) * u64::from(block))
        .then_some(byte_rate)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn whole(file: &[u8]) -> Option<f64> {
        seconds(file, file.len())
    }

    fn format(tag: u16, channels: u16, rate: u32, bits: u16) -> Vec<u8> {
        let block = channels * bits.div_ceil(8);
        let mut chunk = b"fmt \x10\0\0\0".to_vec();
        chunk.extend(tag.to_le_bytes());
        chunk.extend(channels.to_le_bytes());
        chunk.extend(rate.to_le_bytes());
        chunk.extend((rate * u32::from(block)).to_le_bytes());
        chunk.extend(block.to_le_bytes());
        chunk.extend(bits.to_le_bytes());
        chunk
    }

    fn file(chunks: &[&[u8]]) -> Vec<u8> {
        [b"RIFF\0\0\0\0WAVE", &chunks.concat()[..]].concat()
    }

    fn data(claimed: u32, bytes: usize) -> Vec<u8> {
        [b"data", &claimed.to_le_bytes()[..], &vec![0; bytes]].concat()
    }

    #[test]
    fn the_duration_is_that_of_the_samples() {
        let mono = format(1, 1, 16_000, 16);
        assert_eq!(whole(&file(&[&mono, &data(48_000, 48_000)])), Some(1.5));
        let stereo = format(3, 2, 48_000, 32);
        let list = b"LIST\x03\0\0\0abc\0";
        let all = file(&[&stereo, list, &data(384_000, 384_000)]);
        assert_eq!(whole(&all), Some(1.0));
        for open in [0, u32::MAX] {
            assert_eq!(whole(&file(&[&mono, &data(open, 32_000)])), Some(1.0));
        }
    }

    #[test]
    fn a_header_that_claims_more_or_less_than_there_is_is_not_believed() {
        let mono = format(1, 1, 16_000, 16);
        assert_eq!(whole(&file(&[&mono, &data(1 << 30, 32_000)])), Some(1.0));
        let mut fast = mono.clone();
        fast[16..20].copy_from_slice(&4_000_000_u32.to_le_bytes());
        let mut wide = mono.clone();
        wide[10..12].copy_from_slice(&u16::MAX.to_le_bytes());
        for bad in [
            file(&[&fast, &data(32_000, 32_000)]),
            file(&[&wide, &data(2, 2)]),
            file(&[&format(1, 1, 999, 16), &data(2, 2)]),
            file(&[&format(1, 0, 16_000, 16), &data(2, 2)]),
            file(&[&format(0x55, 1, 16_000, 16), &data(2, 2)]),
            file(&[&data(2, 2)]),
            file(&[&mono]),
            file(&[&b"junk\0\0\0\0".repeat(CHUNKS_MAX), &mono, &data(2, 2)]),
            b"RIFF".to_vec(),
            b"OggS".to_vec(),
        ] {
            assert_eq!(whole(&bad), None, "{bad:?}");
        }
    }

    #[test]
    fn data_that_leaves_most_of_the_file_to_others_is_not_believed() {
        let mono = format(1, 1, 16_000, 16);
        let short = |behind: usize| file(&[&mono, &data(2, 2), &data(u32::MAX, behind)]);
        assert_eq!(whole(&short(TRAILER_BYTES_MAX - 8)), Some(2.0 / 32_000.0));
        assert_eq!(whole(&short(TRAILER_BYTES_MAX - 7)), None);
        assert_eq!(whole(&short(25 << 20)), None);
        // Of a file that is still coming the beginning alone is here.
        assert_eq!(seconds(&short(0), 25 << 20), None);
        for open in [0, u32::MAX] {
            let stream = file(&[&mono, &data(open, 64_000)]);
            assert_eq!(whole(&stream), Some(2.0));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(tail in proptest::collection::vec(any::<u8>(), 0..80)) {
            let mono = format(1, 1, 16_000, 16);
            for bytes in [tail.clone(), file(&[&tail]), file(&[&mono, &tail])] {
                if let Some(seconds) = whole(&bytes) {
                    prop_assert!((0.0..=bytes.len() as f64).contains(&seconds));
                }
            }
        }
    }
}
