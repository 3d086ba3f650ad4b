//! Files with random changes: an answer or an error, and no panic, whatever the bytes are.

use std::time::{Duration, Instant};

use super::super::*;
use super::fixture::*;

/// Changed files of each kind in every run.
const FILES_MIN: u64 = 10_000;

/// Numbers that readers stumble over.
const EDGES: &[u64] = &[
    0,
    1,
    31,
    255,
    1 << 16,
    1 << 31,
    1 << 32,
    1 << 62,
    1 << 63,
    u64::MAX,
];

/// Runs `check` with seeds until time and count are over.
#[expect(clippy::disallowed_methods, reason = "a test says how long it runs")]
fn for_a_while(mut check: impl FnMut(&mut fastrand::Rng)) {
    let number = |name| std::env::var(name).ok()?.parse().ok();
    let secs = number("INFERGATE_FUZZ_SECS").unwrap_or(0);
    let count = number("INFERGATE_FUZZ_COUNT").unwrap_or(FILES_MIN);
    let start = Instant::now();
    let mut seed = 0;
    while start.elapsed() < Duration::from_secs(secs) || seed < count {
        check(&mut fastrand::Rng::with_seed(seed));
        seed += 1;
    }
}

/// Changes some bytes: one, a number of eight or four bytes, a part left out, doubled or moved.
fn mutate(bytes: &mut Vec<u8>, random: &mut fastrand::Rng) {
    for _ in 0..=random.usize(..4) {
        if bytes.is_empty() {
            return;
        }
        let at = random.usize(..bytes.len());
        let end = (at + random.usize(..32)).min(bytes.len());
        match random.u8(..7) {
            0 => bytes[at] = random.u8(..),
            1 => bytes[at] ^= 1 << random.u8(..8),
            2 | 3 => {
                let width = if random.bool() { 8 } else { 4 };
                let edge = EDGES[random.usize(..EDGES.len())];
                let edge = edge.wrapping_add(random.u64(..3)).wrapping_sub(1);
                let number = match random.bool() {
                    true => edge.to_le_bytes(),
                    false => edge.to_be_bytes(),
                };
                let end = (at + width).min(bytes.len());
                bytes[at..end].copy_from_slice(&number[..end - at]);
            }
            4 => drop(bytes.drain(at..end)),
            5 => {
                let part = bytes[at..end].to_vec();
                let to = random.usize(..=bytes.len());
                bytes.splice(to..to, part);
            }
            _ => bytes.truncate(at),
        }
    }
}

/// An estimate from whatever was read: its parts are those of its sum.
fn check(header: Result<ModelHeader, HeaderError>, format: FileFormat, random: &mut fastrand::Rng) {
    if let Err(error) = &header {
        assert!(!error.to_string().is_empty());
    }
    let settings = RunSettings {
        context: random.bool().then(|| random.u64(..)),
        parallel: EDGES[random.usize(..EDGES.len())],
        ..settings(1, 1)
    };
    let files = ModelFiles {
        format,
        bytes: random.u64(..),
        header: Some(header),
        projector: None,
        draft: None,
    };
    let estimate = estimate(&EstimateInputs {
        manifest_mib: None,
        measured_mib: &[],
        files: Some(&files),
        name: "x",
        settings: &settings,
    });
    let (source, memory) = estimate.chosen.expect("files have a size");
    if let Some(parts) = estimate.parts {
        assert_eq!(
            (source, memory),
            (EstimateSource::Header, mib(parts.total_bytes()))
        );
    }
}

#[test]
fn changed_gguf_files_give_an_answer_or_an_error() {
    let kinds = [
        llama_of_434_mib(GgufBuilder::new()),
        llama_of_434_mib(GgufBuilder::big_endian()),
        file_of("gemma3", 6)
            .figure("gemma3.attention.head_count", 8)
            .figures("gemma3.attention.head_count_kv", &[1, 2, 3, 4, 5, 6])
            .figure("gemma3.attention.sliding_window", 1024)
            .flags("gemma3.attention.sliding_window_pattern", &[true; 6])
            .tensor(&[32, 32], 4096),
        file_of("qwen3next", 4)
            .figure("qwen3next.attention.head_count", 8)
            .figure("qwen3next.ssm.conv_kernel", 4)
            .figure("qwen3next.ssm.inner_size", 2048)
            .figure("qwen3next.ssm.state_size", 16)
            .figure("split.no", 0)
            .figure("split.count", 1)
            .figure("split.tensors.count", 1)
            .figure("general.alignment", 64)
            .tensor(&[32, 32], 4096),
    ];
    let files: Vec<_> = kinds
        .iter()
        .map(|kind| (kind.bytes(), kind.file_bytes()))
        .collect();
    let (mut good, mut bad) = (0_u64, 0_u64);
    for_a_while(|random| {
        let (bytes, file_bytes) = &files[random.usize(..files.len())];
        let mut bytes = bytes.clone();
        mutate(&mut bytes, random);
        let header = read_gguf(&bytes[..], *file_bytes).and_then(|file| join_gguf(vec![file]));
        *if header.is_ok() { &mut good } else { &mut bad } += 1;
        check(header, FileFormat::Gguf, random);
    });
    // Mutations that nothing survives, or that change nothing, would test little.
    assert!(good > bad / 20 && bad > good / 20, "{good} good, {bad} bad");
}

#[test]
fn changed_safetensors_files_give_an_answer_or_an_error() {
    let file = safetensors_file(
        r#"{"__metadata__":{"format":"pt"},"a":{"dtype":"F16","shape":[4,4],"data_offsets":[0,32]},
        "b":{"dtype":"F16","shape":[4,4],"data_offsets":[32,64]},"c":{"dtype":"I8","shape":[],"data_offsets":[64,65]}}"#,
    );
    let config =
        br#"{"architectures":["LlamaForCausalLM"],"num_hidden_layers":3,"num_attention_heads":32,
        "num_key_value_heads":8,"hidden_size":4096,"torch_dtype":"bfloat16","sliding_window":512,
        "layer_types":["full_attention","sliding_attention","full_attention"],"text_config":null}"#;
    let file_bytes = file.len() as u64 + 65;
    for_a_while(|random| {
        let (mut bytes, mut config) = (file.clone(), config.to_vec());
        match random.bool() {
            true => mutate(&mut bytes, random),
            false => mutate(&mut config, random),
        }
        let header = read_safetensors(&bytes[..], file_bytes)
            .and_then(|sum| join_safetensors(&[sum], Some(&config[..])));
        check(header, FileFormat::Safetensors, random);
    });
}

#[test]
fn random_names_give_an_answer_or_none() {
    for_a_while(|random| {
        let mut name = "Qwen3-8x7.5b-é-Q4_K_M-00001-of-00002.gguf"
            .as_bytes()
            .to_vec();
        mutate(&mut name, random);
        let name = String::from_utf8_lossy(&name);
        if let Some(shard) = ShardName::parse(&name) {
            assert!(shard.files().any(|file| file == name), "{name:?}");
            assert!(shard.count <= SHARDS_MAX);
        }
        let settings = settings(1, 1);
        estimate(&EstimateInputs {
            manifest_mib: None,
            measured_mib: &[],
            files: None,
            name: &name,
            settings: &settings,
        });
    });
}
