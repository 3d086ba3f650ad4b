//! Damaged and hostile GGUF headers: each is an error with a sentence, whatever it announces.

use std::io::{self, Read};

use super::super::*;
use super::fixture::*;

/// Errors of headers that differ from a good one in one place.
fn error_of(file: &GgufBuilder) -> HeaderError {
    let error = file.header().unwrap_err();
    assert!(!error.to_string().is_empty());
    error
}

#[test]
fn a_file_cut_at_any_byte_is_an_error() {
    let file = file_of("llama", 2)
        .figure("llama.attention.head_count", 8)
        .figures("llama.attention.head_count_kv", &[8, 8])
        .texts("tokenizer.ggml.tokens", &["a", "bc", ""])
        .tensor(&[32, 4], 512);
    let bytes = file.bytes();
    assert!(file.header().is_ok());
    for length in 0..bytes.len() {
        let read = read_gguf(&bytes[..length], length as u64);
        let error = read.expect_err("a part of a header is no header");
        assert!(
            matches!(error, HeaderError::HeaderCut(_)),
            "{length}: {error}"
        );
    }
    for length in bytes.len() as u64..file.file_bytes() {
        let read = read_gguf(&bytes[..], length);
        assert!(
            matches!(read, Err(HeaderError::TensorsCut { .. })),
            "{length}"
        );
    }
}

#[test]
fn counts_and_lengths_are_not_trusted() {
    let file = file_of("llama", 2);
    let huge = [1 << 20, 1 << 32, 1 << 63, u64::MAX];
    for count in huge {
        for bytes in [file.bytes_with(count, 5), file.bytes_with(0, count)] {
            let error = read_gguf(&bytes[..], u64::MAX).unwrap_err();
            assert!(matches!(error, HeaderError::TooMany { .. }), "{error}");
        }
        let array = |kind| file_of("llama", 2).announced("tokenizer.ggml.tokens", kind, count);
        for kind in [U8, U32, F32, BOOL, TEXT, U64] {
            let error = array(kind).header().unwrap_err();
            assert!(
                matches!(
                    error,
                    HeaderError::HeaderTooLong | HeaderError::HeaderCut(_)
                ),
                "{error}"
            );
        }
        let layers = file_of("llama", 2).announced("llama.attention.head_count", U32, count);
        assert!(matches!(error_of(&layers), HeaderError::TooMany { .. }));
        let length = file.n64(count);
        let text = file_of("llama", 2).entry("general.name", TEXT, length.clone());
        assert!(matches!(
            error_of(&text),
            HeaderError::HeaderTooLong | HeaderError::HeaderCut(_)
        ));
        let mut key = file_of("llama", 2);
        key.entries.push(length.clone());
        assert!(key.header().is_err());
        let mut name = file_of("llama", 2);
        name.tensors.push(length);
        assert!(name.header().is_err());
    }
}

#[test]
fn tensors_of_impossible_sizes_are_refused() {
    for dimensions in [
        &[u64::MAX, 2][..],
        &[1 << 63, 1],
        &[1 << 32, 1 << 32],
        &[1 << 62],
    ] {
        let file = file_of("llama", 2).tensor_at(dimensions, TENSOR_F32, 0);
        assert_eq!(error_of(&file), HeaderError::ImpossibleShape);
    }
    let offset = file_of("llama", 2).tensor_at(&[4], TENSOR_F32, u64::MAX);
    assert_eq!(error_of(&offset), HeaderError::ImpossibleShape);
    let far = file_of("llama", 2).tensor_at(&[4], TENSOR_F32, 1 << 63);
    assert!(matches!(error_of(&far), HeaderError::TensorsCut { .. }));
    let part_of_a_block = file_of("llama", 2).tensor_at(&[33], 2, 0);
    assert_eq!(error_of(&part_of_a_block), HeaderError::ImpossibleShape);
    let unknown = file_of("llama", 2).tensor_at(&[32], 4711, 0);
    assert_eq!(error_of(&unknown), HeaderError::UnknownTensorType(4711));
    let dimensions = file_of("llama", 2).tensor_at(&[1; 5], TENSOR_F32, 0);
    assert!(matches!(error_of(&dimensions), HeaderError::TooMany { .. }));
}

#[test]
fn overlapping_tensors_are_refused_and_equal_ends_are_not() {
    let pair = |second: u64| {
        let mut file = file_of("llama", 2)
            .tensor_at(&[16], TENSOR_F32, second)
            .tensor_at(&[32], TENSOR_F16, 0);
        file.data_bytes = 1024;
        file
    };
    assert_eq!(error_of(&pair(0)), HeaderError::OverlappingTensors);
    assert_eq!(error_of(&pair(63)), HeaderError::OverlappingTensors);
    assert_eq!(pair(64).header().unwrap().weights_bytes, 128);
}

#[test]
fn figures_that_no_model_has_are_refused() {
    let layers = file_of("llama", 1_000_000);
    assert!(matches!(
        error_of(&layers),
        HeaderError::ImpossibleFigure { .. }
    ));
    let file = file_of("llama", 2).figures("llama.attention.head_count", &[u32::MAX >> 1, 1]);
    assert!(matches!(
        error_of(&file),
        HeaderError::ImpossibleFigure { .. }
    ));
    let twice = file_of("llama", 2).figure("llama.block_count", 3);
    assert_eq!(error_of(&twice), HeaderError::RepeatedKey("block_count"));
    let twice = file_of("llama", 2).text("general.architecture", "gemma3");
    assert_eq!(
        error_of(&twice),
        HeaderError::RepeatedKey("general.architecture")
    );
    let alignment = file_of("llama", 2).figure("general.alignment", 33);
    assert_eq!(error_of(&alignment), HeaderError::BadAlignment(33));
}

#[test]
fn a_file_with_figures_of_a_thousand_architectures_is_refused() {
    let mut file = file_of("llama", 2);
    for n in 0..1000 {
        file = file.figure(&format!("a{n}.block_count"), 1);
    }
    assert!(matches!(
        error_of(&file),
        HeaderError::TooMany {
            what: "figures",
            ..
        }
    ));
}

#[test]
fn other_formats_and_versions_say_what_they_are() {
    let zip = read_gguf(&b"PK\x03\x04 and so on, and so on"[..], 100).unwrap_err();
    assert_eq!(zip, HeaderError::NotGguf);
    for version in [0, 1, 4, 1 << 16] {
        let mut file = file_of("llama", 2);
        file.version = version;
        assert!(matches!(
            error_of(&file),
            HeaderError::UnsupportedVersion(_)
        ));
    }
    let nested = file_of("llama", 2).announced("tokenizer.x", ARRAY, 1);
    assert_eq!(error_of(&nested), HeaderError::NestedArray);
    let unknown = file_of("llama", 2).entry("x", 13, Vec::new());
    assert_eq!(error_of(&unknown), HeaderError::UnknownValueType(13));
}

#[test]
fn a_negative_figure_is_an_absent_one() {
    let file = file_of("llama", 2).entry(
        "llama.attention.head_count",
        I32,
        (-1_i32).to_le_bytes().to_vec(),
    );
    let parts = file.header().unwrap().parts(&settings(4096, 1));
    assert_eq!(parts, Err(UnknownFigure::Missing("attention.head_count")));
}

/// A file that never ends: a good beginning, then one byte again and again.
struct EndlessFile<'a> {
    beginning: &'a [u8],
    read: u64,
}

impl Read for EndlessFile<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = match self.beginning.is_empty() {
            true => {
                buffer.fill(0);
                buffer.len()
            }
            false => self.beginning.read(buffer)?,
        };
        self.read += count as u64;
        Ok(count)
    }
}

#[test]
fn a_header_without_end_is_read_for_64_mib_and_no_further() {
    let file = file_of("llama", 2);
    // Empty texts, each with a length of zero.
    let texts = file_of("llama", 2).announced("tokenizer.ggml.tokens", TEXT, u64::MAX);
    // Pairs with an empty key and a value of one byte.
    let entries = file.bytes_with(0, 65_536);
    for beginning in [texts.bytes(), entries] {
        let mut endless = EndlessFile {
            beginning: &beginning,
            read: 0,
        };
        let read = read_gguf(&mut endless, u64::MAX);
        assert!(
            endless.read <= HEADER_BYTES_MAX + (64 << 10),
            "{}",
            endless.read
        );
        if beginning == texts.bytes() {
            assert_eq!(read.unwrap_err(), HeaderError::HeaderTooLong);
        }
    }
}

/// A file that cannot be read.
struct BrokenFile;

impl Read for BrokenFile {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        Err(io::ErrorKind::PermissionDenied.into())
    }
}

#[test]
fn a_file_that_cannot_be_read_says_why() {
    let denied = HeaderError::Unreadable(io::ErrorKind::PermissionDenied);
    assert_eq!(read_gguf(BrokenFile, 1).unwrap_err(), denied);
    assert_eq!(read_safetensors(BrokenFile, 1), Err(denied.clone()));
    assert_eq!(join_safetensors(&[1], Some(BrokenFile)), Err(denied));
}
