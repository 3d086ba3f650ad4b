//! Figures of GGUF files against those that llama.cpp logs, and against its rules for other layers.

use super::super::*;
use super::fixture::*;

#[test]
fn the_parts_are_those_that_llama_cpp_logs() {
    let file = llama_of_434_mib(GgufBuilder::new());
    let header = file.header().unwrap();
    // Log of llama.cpp 2026.10: model buffer 434.24 MiB, KV buffer 144.00 and 576.00 MiB.
    assert_eq!(format!("{:.2}", in_mib(header.weights_bytes)), "434.24");
    assert_eq!(kv_mib(&file, &settings(4096, 1)), 144.0);
    assert_eq!(kv_mib(&file, &settings(4096, 4)), 576.0);
    assert_eq!(kv_mib(&file, &settings(16_384, 1)), 576.0);
    // Compute buffer 29.52 MiB with 512 tokens at once: activations 27 and mask 4, and 64 for the rest.
    let parts = header.parts(&settings(4096, 1)).unwrap();
    assert_eq!(in_mib(parts.compute_bytes), 27.0 + 4.0 + 64.0);
    let wide = RunSettings {
        ubatch: 2048,
        ..settings(4096, 1)
    };
    let parts = header.parts(&wide).unwrap();
    assert_eq!(in_mib(parts.compute_bytes), 108.0 + 16.0 + 64.0);
    assert_eq!(parts.context_bytes.map(in_mib), Some(450.0));
}

#[test]
fn either_byte_order_and_both_versions_give_the_same_figures() {
    let expected = llama_of_434_mib(GgufBuilder::new()).header();
    for version in [2, 3] {
        for mut builder in [GgufBuilder::new(), GgufBuilder::big_endian()] {
            builder.version = version;
            assert_eq!(llama_of_434_mib(builder).header(), expected);
        }
    }
}

#[test]
fn a_context_that_is_not_given_is_that_of_the_model_and_none_is_unknown() {
    let unset = RunSettings {
        context: None,
        ..settings(0, 1)
    };
    let file = llama_of_434_mib(GgufBuilder::new());
    assert_eq!(kv_mib(&file, &unset), 144.0);
    let header = GgufBuilder::new()
        .text("general.architecture", "a")
        .figure("a.block_count", 1)
        .figure("a.embedding_length", 64)
        .figure("a.feed_forward_length", 64)
        .figure("a.attention.head_count", 1)
        .header();
    let parts = header.unwrap().parts(&unset);
    assert_eq!(parts, Err(UnknownFigure::NoContext));
}

#[test]
fn an_absent_figure_is_unknown_and_never_zero() {
    for (name, key) in [
        ("block_count", "llama.block_count"),
        ("embedding_length", "llama.embedding_length"),
        ("feed_forward_length", "llama.feed_forward_length"),
        ("attention.head_count", "llama.attention.head_count"),
    ] {
        let mut file = llama_of_434_mib(GgufBuilder::new());
        file.entries.retain(|entry| {
            let found = entry.windows(key.len()).any(|part| part == key.as_bytes());
            !found
        });
        let parts = file.header().unwrap().parts(&settings(4096, 1));
        assert_eq!(parts, Err(UnknownFigure::Missing(name)), "{key}");
    }
}

#[test]
fn heads_of_each_layer_are_counted_where_the_file_names_them() {
    let file = file_of("deci", 3)
        .figures("deci.attention.head_count", &[8, 8, 0])
        .figures("deci.attention.head_count_kv", &[8, 2, 0])
        .figure("deci.attention.key_length", 128)
        .figure("deci.attention.value_length", 64);
    // 4096 tokens × 10 heads × (128 + 64) elements × 2 bytes.
    assert_eq!(kv_mib(&file, &settings(4096, 1)), 15.0);
}

#[test]
fn layers_with_a_sliding_window_keep_the_window_and_the_tokens_computed_at_once() {
    let attention = |file: GgufBuilder, of: &str| {
        file.figure(&format!("{of}.attention.head_count"), 8)
            .figure(&format!("{of}.attention.head_count_kv"), 8)
            .figure(&format!("{of}.attention.sliding_window"), 1024)
    };
    // A layer is 4 KiB a token: 16,384 tokens are 64 MiB, 1,024 + 512 are 6.
    let cases = [
        // Every sixth layer keeps all tokens.
        ("gemma3", 6, 5.0 * 6.0 + 64.0),
        ("gpt-oss", 4, 2.0 * 6.0 + 2.0 * 64.0),
        // The first of four.
        ("smallthinker", 5, 3.0 * 6.0 + 2.0 * 64.0),
        // llama.cpp ignores the window.
        ("phi3", 2, 2.0 * 64.0),
    ];
    for (architecture, layers, expected) in cases {
        let file = attention(file_of(architecture, layers), architecture);
        assert_eq!(
            kv_mib(&file, &settings(16_384, 1)),
            expected,
            "{architecture}"
        );
    }
    let named = attention(file_of("mimo2", 2), "mimo2")
        .flags("mimo2.attention.sliding_window_pattern", &[true, false])
        .figure("mimo2.attention.key_length_swa", 64);
    // Keys of the layer with the window are half as wide.
    assert_eq!(kv_mib(&named, &settings(16_384, 1)), 64.0 + 4.5);
    let short = attention(file_of("gemma3", 6), "gemma3");
    assert_eq!(kv_mib(&short, &settings(512, 2)), 6.0 * 2.0 * 2.0);
}

#[test]
fn recurrent_layers_have_a_state_for_each_request_whatever_the_context_is() {
    let mamba = file_of("mamba", 4)
        .figure("mamba.attention.head_count", 0)
        .figure("mamba.ssm.conv_kernel", 4)
        .figure("mamba.ssm.inner_size", 2048)
        .figure("mamba.ssm.state_size", 16);
    // (3 × 2048 + 16 × 2048) × 4 bytes × 4 layers.
    let state = 4.0 * 19.0 * 2048.0 * 4.0 / 1_048_576.0;
    assert_eq!(kv_mib(&mamba, &settings(4096, 1)), state);
    assert_eq!(kv_mib(&mamba, &settings(65_536, 3)), 3.0 * state);
    let hybrid = file_of("qwen3next", 4)
        .figure("qwen3next.attention.head_count", 8)
        .figure("qwen3next.ssm.conv_kernel", 4)
        .figure("qwen3next.ssm.inner_size", 2048)
        .figure("qwen3next.ssm.state_size", 16);
    assert_eq!(
        kv_mib(&hybrid, &settings(4096, 1)),
        16.0 + 3.0 / 4.0 * state
    );
    let both = file_of("falcon-h1", 1)
        .figure("falcon-h1.attention.head_count", 8)
        .figure("falcon-h1.ssm.conv_kernel", 4)
        .figure("falcon-h1.ssm.inner_size", 2048)
        .figure("falcon-h1.ssm.state_size", 16);
    assert_eq!(kv_mib(&both, &settings(4096, 1)), 16.0 + state / 4.0);
    let short = file_of("lfm2", 2)
        .figure("lfm2.attention.head_count", 8)
        .figures("lfm2.attention.head_count_kv", &[0, 8])
        .figure("lfm2.shortconv.l_cache", 3);
    assert_eq!(kv_mib(&short, &settings(4096, 1)), 16.0 + 2.0 / 256.0);
}

#[test]
fn latent_attention_keeps_keys_alone_and_encoders_nothing() {
    let latent = file_of("deepseek2", 1)
        .figure("deepseek2.attention.head_count", 128)
        .figure("deepseek2.attention.head_count_kv", 1)
        .figure("deepseek2.attention.key_length", 576)
        .figure("deepseek2.attention.value_length", 512)
        .figure("deepseek2.attention.key_length_mla", 192)
        .figure("deepseek2.attention.value_length_mla", 128);
    assert_eq!(kv_mib(&latent, &settings(4096, 1)), 4.5);
    let encoder = file_of("bert", 12)
        .figure("bert.attention.head_count", 12)
        .entry("bert.attention.causal", BOOL, vec![0]);
    assert_eq!(kv_mib(&encoder, &settings(512, 4)), 0.0);
}

#[test]
fn layers_that_share_the_cache_of_others_have_none() {
    let file = file_of("gemma4", 4)
        .figure("gemma4.attention.head_count", 8)
        .figure("gemma4.attention.shared_kv_layers", 3);
    assert_eq!(kv_mib(&file, &settings(4096, 1)), 16.0);
}

#[test]
fn an_architecture_with_a_cache_of_another_kind_is_unknown() {
    let header = file_of("deepseek4", 1).header().unwrap();
    let parts = header.parts(&settings(4096, 1));
    let expected = UnknownFigure::UnknownArchitecture("deepseek4".into());
    assert_eq!(parts, Err(expected));
}

#[test]
fn elements_of_the_cache_may_be_smaller() {
    let file = llama_of_434_mib(GgufBuilder::new());
    let small = RunSettings {
        key_type: CacheType::of_name("q8_0"),
        value_type: CacheType::of_name("q4_0"),
        ..settings(4096, 1)
    };
    // 8.5 and 4.5 bits in place of 16.
    assert_eq!(kv_mib(&file, &small), 72.0 * 8.5 / 16.0 + 72.0 * 4.5 / 16.0);
    assert!(CacheType::names().all(|name| CacheType::of_name(name).is_some()));
    assert_eq!(CacheType::of_name("q3_k"), None);
}

#[test]
fn files_of_a_split_are_summed_and_have_to_belong_together() {
    let part = |index: u32, count: u32, announced: u32| {
        let file = match index {
            0 => file_of("llama", 2).figure("llama.attention.head_count", 8),
            _ => GgufBuilder::new(),
        };
        file.figure("split.no", index)
            .figure("split.count", count)
            .figure("split.tensors.count", announced)
            .tensor(&[1024, 1024], 4 << 20)
    };
    let join = |parts: &[GgufBuilder]| {
        let files = parts.iter().map(|part| part.read().unwrap());
        join_gguf(files.collect())
    };
    let header = join(&[part(0, 2, 2), part(1, 2, 2)]).unwrap();
    assert_eq!(header.weights_bytes, 8 << 20);
    assert_eq!(header.architecture, "llama");
    assert!(header.parts(&settings(4096, 1)).is_ok());
    let swapped = join(&[part(1, 2, 2), part(0, 2, 2)]);
    assert!(matches!(swapped, Err(HeaderError::ForeignShard { .. })));
    let alone = join(&[part(0, 2, 2)]);
    assert!(matches!(alone, Err(HeaderError::ForeignShard { .. })));
    let foreign = join(&[part(0, 2, 3), part(1, 2, 3)]);
    let missing = HeaderError::MissingTensors {
        announced: 3,
        present: 2,
    };
    assert_eq!(foreign, Err(missing));
    assert_eq!(join(&[]), Err(HeaderError::NoFile));
}

#[test]
fn experts_of_one_token_count_as_one_wide_layer() {
    let file = GgufBuilder::new()
        .text("general.architecture", "qwen3moe")
        .figure("qwen3moe.block_count", 1)
        .figure("qwen3moe.embedding_length", 2048)
        .figure("qwen3moe.attention.head_count", 32)
        .figure("qwen3moe.expert_feed_forward_length", 768)
        .figure("qwen3moe.expert_used_count", 8);
    let parts = file.header().unwrap().parts(&settings(256, 1)).unwrap();
    let activations = 512 * 4 * (3 * 8 * 768 + 6 * 2048);
    assert_eq!(
        parts.compute_bytes,
        activations + 512 * 2 * 256 + (64 << 20)
    );
}
