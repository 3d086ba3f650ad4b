//! `infergate gpu estimate`: figures and exit codes over real files, and bounded memory over hostile ones.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

/// Memory that the process may take for its data, KiB: the bound of a header.
const DATA_KIB_MAX: u64 = 64 << 10;

fn estimate(folder: &Path, arguments: &str) -> Output {
    let shell = format!(
        "ulimit -d {DATA_KIB_MAX} && exec {} gpu estimate {arguments}",
        env!("CARGO_BIN_EXE_infergate")
    );
    let mut bash = Command::new("bash");
    bash.args(["-c", &shell]).current_dir(folder);
    bash.output().unwrap()
}

fn text(value: &str) -> Vec<u8> {
    [&(value.len() as u64).to_le_bytes()[..], value.as_bytes()].concat()
}

fn head(tensors: u64, entries: u64) -> Vec<u8> {
    let counts = [tensors.to_le_bytes(), entries.to_le_bytes()].concat();
    [&b"GGUF"[..], &3_u32.to_le_bytes(), &counts].concat()
}

/// A llama of two layers with one tensor of a MiB.
fn llama() -> Vec<u8> {
    let mut file = head(1, 6);
    file.extend(text("general.architecture"));
    file.extend(8_u32.to_le_bytes());
    file.extend(text("llama"));
    for (key, value) in [
        ("block_count", 2_u32),
        ("embedding_length", 1024),
        ("feed_forward_length", 4096),
        ("attention.head_count", 8),
        ("context_length", 2048),
    ] {
        file.extend(text(&format!("llama.{key}")));
        file.extend(4_u32.to_le_bytes());
        file.extend(value.to_le_bytes());
    }
    file.extend(text("output.weight"));
    file.extend(1_u32.to_le_bytes());
    file.extend((1_u64 << 18).to_le_bytes());
    file.extend([0; 12]);
    file.resize(file.len().next_multiple_of(32) + (1 << 20), 0);
    file
}

#[test]
fn a_model_that_fits_exits_with_0_and_one_that_does_not_with_1() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a-7b-q4_0.gguf"), llama()).unwrap();
    let fits = estimate(folder.path(), "a-7b-q4_0.gguf --device-mib 2048 --json");
    assert_eq!(fits.status.code(), Some(0), "{fits:?}");
    let body: Value = serde_json::from_slice(&fits.stdout).unwrap();
    // Weights 1, cache 16, activations 36, mask 2, base 64, context 450.
    assert_eq!(body["estimate_mib"], 569);
    assert_eq!(body["source"], "header");
    assert_eq!(body["context"], 2048);
    assert_eq!(body["fit"]["left_mib"], 2048 - 512 - 569);
    let unknown = body["sources"][0]["unknown"].as_str().unwrap();
    assert!(unknown.contains("vram.mib"));
    assert_eq!(body["sources"][4]["source"], "name");
    assert!(body["sources"][4]["mib"].as_u64() > Some(4000));

    let small = estimate(folder.path(), "a-7b-q4_0.gguf --device-mib 1080");
    assert_eq!(small.status.code(), Some(1), "{small:?}");
    let printed = String::from_utf8(small.stdout).unwrap();
    assert!(
        printed.contains("does not fit: 1 MiB are missing"),
        "{printed}"
    );
}

#[test]
fn damaged_and_hostile_files_are_named_within_64_mib_of_memory() {
    let folder = tempfile::tempdir().unwrap();
    let mut endless = head(0, 1);
    endless.extend(text("tokenizer.ggml.tokens"));
    endless.extend([9_u32.to_le_bytes(), 8_u32.to_le_bytes()].concat());
    endless.extend((1_u64 << 63).to_le_bytes());
    endless.resize(66 << 20, 0);
    let mut tensors = head(65_536, 0);
    for _ in 0..65_536 {
        tensors.extend([0; 32]);
    }
    let long = format!(r#"{{"{}":1}}"#, "\\n".repeat(8_000_000));
    let length = (long.len() as u64).to_le_bytes();
    let huge = u64::MAX.to_le_bytes().to_vec();
    for (name, bytes, expected) in [
        ("endless.gguf", endless, "longer than 64 MiB"),
        ("tensors.gguf", tensors, "overlap"),
        ("cut.gguf", llama()[..300].to_vec(), "not complete"),
        ("half.gguf", llama()[..1 << 19].to_vec(), "not complete"),
        (
            "long.safetensors",
            [&length[..], long.as_bytes()].concat(),
            "JSON",
        ),
        ("huge.safetensors", huge, "bytes of JSON"),
    ] {
        std::fs::write(folder.path().join(name), bytes).unwrap();
        let damaged = estimate(folder.path(), name);
        assert_eq!(damaged.status.code(), Some(1), "{name}: {damaged:?}");
        let printed = String::from_utf8(damaged.stderr).unwrap();
        assert!(
            printed.contains(expected) && printed.contains(name),
            "{printed}"
        );
    }
}

#[test]
fn a_file_that_is_not_there_exits_with_2_and_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let part = folder.path().join("m-00001-of-00002.gguf");
    std::fs::write(part, llama()).unwrap();
    for (name, expected) in [
        ("none.gguf", "none.gguf"),
        ("m-00001-of-00002.gguf", "m-00002-of-00002.gguf"),
        ("m-00001-of-00002.gguf --draft none.gguf", "gguf"),
        ("/dev/null", "no regular file"),
    ] {
        let missing = estimate(folder.path(), name);
        assert_eq!(missing.status.code(), Some(2), "{missing:?}");
        let printed = String::from_utf8(missing.stderr).unwrap();
        assert!(printed.contains(expected), "{printed}");
    }
}
