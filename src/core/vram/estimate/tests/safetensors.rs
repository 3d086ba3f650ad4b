//! Safetensors headers and `config.json`: sums, shapes, and hostile ones.

use super::super::*;
use super::fixture::*;

const NO_FILE: Option<&[u8]> = None;

fn sum(json: &str, data_bytes: u64) -> Result<u64, HeaderError> {
    let file = safetensors_file(json);
    read_safetensors(&file[..], file.len() as u64 + data_bytes)
}

fn tensor(begin: &str, end: &str) -> String {
    format!(r#"{{"dtype":"BF16","shape":[1],"data_offsets":[{begin},{end}]}}"#)
}

fn header(config: &str) -> ModelHeader {
    join_safetensors(&[1 << 30], Some(config.as_bytes())).unwrap()
}

#[test]
fn tensors_are_summed_and_metadata_is_no_tensor() {
    let json = format!(
        r#"{{"__metadata__":{{"format":"pt","data_offsets":"no"}},"b":{},"a":{}}}   "#,
        tensor("16", "48"),
        tensor("0", "16")
    );
    assert_eq!(sum(&json, 48), Ok(48));
    assert_eq!(sum("{}", 0), Ok(0));
    let cut = HeaderError::TensorsCut {
        needed: json.len() as u64 + 8 + 48,
        present: json.len() as u64 + 8 + 47,
    };
    assert_eq!(sum(&json, 47), Err(cut));
}

#[test]
fn hostile_headers_are_errors() {
    let one = |begin: &str, end: &str| sum(&format!(r#"{{"a":{}}}"#, tensor(begin, end)), 1 << 20);
    assert_eq!(one("8", "4"), Err(HeaderError::ReversedTensor));
    let far = one("9223372036854775808", "18446744073709551615");
    assert!(matches!(far, Err(HeaderError::TensorsCut { .. })));
    for (begin, end) in [
        ("-1", "4"),
        ("0", "1e3"),
        ("0", "18446744073709551616"),
        ("0", "[]"),
    ] {
        let invalid = one(begin, end);
        assert!(
            matches!(invalid, Err(HeaderError::InvalidJson { .. })),
            "{end}"
        );
    }
    let both = format!(r#"{{"a":{},"a":{}}}"#, tensor("0", "8"), tensor("7", "9"));
    assert_eq!(sum(&both, 9), Err(HeaderError::OverlappingTensors));
    for json in [
        "",
        "[]",
        "{",
        "{}{}",
        "null",
        r#"{"a":1}"#,
        r#"{"a":{"dtype":"F32"}}"#,
    ] {
        assert!(
            matches!(sum(json, 0), Err(HeaderError::InvalidJson { .. })),
            "{json:?}"
        );
    }
    let deep = format!(
        r#"{{"__metadata__":{}{}}}"#,
        "[".repeat(100_000),
        "]".repeat(100_000)
    );
    let _ = sum(&deep, 0);
    let many: Vec<_> = (0..65_537)
        .map(|n| format!(r#""{n}":{{"data_offsets":[0,0]}}"#))
        .collect();
    let many = sum(&format!("{{{}}}", many.join(",")), 0);
    assert!(matches!(
        many,
        Err(HeaderError::TooMany {
            what: "tensors",
            ..
        })
    ));
}

#[test]
fn a_length_is_not_trusted() {
    for length in [17_u64 << 20, 1 << 63, u64::MAX] {
        let read = read_safetensors(&length.to_le_bytes()[..], u64::MAX);
        assert!(matches!(read, Err(HeaderError::TooMany { .. })), "{length}");
    }
    let long = read_safetensors(&100_u64.to_le_bytes()[..], 20);
    assert_eq!(long, Err(HeaderError::HeaderCut(20)));
}

#[test]
fn a_file_cut_at_any_byte_is_an_error() {
    let file = safetensors_file(&format!(r#"{{"a":{}}}"#, tensor("0", "16")));
    for length in 0..file.len() + 16 {
        let present = &file[..length.min(file.len())];
        assert!(
            read_safetensors(present, length as u64).is_err(),
            "{length}"
        );
        // A length that the file does not have.
        if length < file.len() {
            assert!(read_safetensors(present, 1 << 20).is_err(), "{length}");
        }
    }
}

#[test]
fn the_configuration_gives_layers_heads_and_elements() {
    let llama = header(
        r#"{"architectures":["LlamaForCausalLM"],"num_hidden_layers":32,"num_attention_heads":32,
        "num_key_value_heads":8,"hidden_size":4096,"torch_dtype":"bfloat16","dtype":"bfloat16","max_position_embeddings":8192,
        "rope_scaling":null,"quantization_config":{"bits":4}}"#,
    );
    assert_eq!(llama.architecture, "LlamaForCausalLM");
    assert_eq!(llama.trained_context(), Some(8192));
    let parts = llama.parts(&settings(8192, 2)).unwrap();
    assert_eq!(in_mib(parts.kv_bytes), 2048.0);
    // A fifth of the weights and 2 GiB, with the context of the process.
    assert_eq!(parts.compute_bytes, (1 << 30) / 5 + (2 << 30));
    assert_eq!(parts.context_bytes, None);
    let text = header(
        r#"{"architectures":["Gemma3ForConditionalGeneration"],"text_config":{"num_hidden_layers":2,
        "num_attention_heads":4,"head_dim":128,"dtype":"float32","sliding_window":1024,
        "layer_types":["sliding_attention","full_attention"]}}"#,
    );
    // 4 KiB a token; 1,536 and 16,384 tokens.
    let parts = text.parts(&settings(16_384, 1)).unwrap();
    assert_eq!(in_mib(parts.kv_bytes), 6.0 + 64.0);
    let latent = header(
        r#"{"architectures":["DeepseekV3ForCausalLM"],"num_hidden_layers":1,"num_attention_heads":128,
        "kv_lora_rank":512,"qk_rope_head_dim":64,"torch_dtype":"bfloat16"}"#,
    );
    let parts = latent.parts(&settings(4096, 1)).unwrap();
    assert_eq!(in_mib(parts.kv_bytes), 4.5);
}

#[test]
fn architectures_without_a_rule_are_unknown() {
    let unknown = |config: &str| header(config).parts(&settings(4096, 1)).unwrap_err();
    let encoder = unknown(r#"{"architectures":["BertModel"],"num_hidden_layers":12}"#);
    assert_eq!(
        encoder,
        UnknownFigure::UnknownArchitecture("BertModel".into())
    );
    let linear = unknown(
        r#"{"architectures":["XForCausalLM"],"num_hidden_layers":2,"num_attention_heads":4,"hidden_size":64,
        "torch_dtype":"float16","layer_types":["linear_attention","full_attention"]}"#,
    );
    assert_eq!(
        linear,
        UnknownFigure::UnknownArchitecture("XForCausalLM".into())
    );
    let no_layers = unknown(r#"{"architectures":["XForCausalLM"]}"#);
    assert_eq!(no_layers, UnknownFigure::Missing("num_hidden_layers"));
    let no_heads = unknown(
        r#"{"architectures":["XForCausalLM"],"num_hidden_layers":2,"num_attention_heads":0,"hidden_size":64}"#,
    );
    assert_eq!(no_heads, UnknownFigure::Missing("head_dim"));
    let many =
        unknown(r#"{"architectures":["XForCausalLM"],"num_hidden_layers":18446744073709551615}"#);
    assert_eq!(many, UnknownFigure::Missing("num_hidden_layers"));
    let lists = unknown(r#"{"architectures":["XForCausalLM"],"num_key_value_heads":[1,2]}"#);
    assert_eq!(lists, UnknownFigure::UnknownArchitecture(String::new()));
    let none = join_safetensors(&[8, 8], NO_FILE).unwrap();
    assert_eq!(none.weights_bytes, 16);
    let none = none.parts(&settings(4096, 1));
    assert_eq!(none, Err(UnknownFigure::Missing("config.json")));
}

#[test]
fn a_configuration_that_is_not_one_is_an_error() {
    let long = " ".repeat(HF_CONFIG_BYTES_MAX as usize + 1);
    let deep = r#"{"text_config":"#.repeat(10_000);
    for config in [&long[..], "", "{", &deep] {
        assert!(join_safetensors(&[1], Some(config.as_bytes())).is_err());
    }
    let name = "x".repeat(100_000);
    let header = header(&format!(r#"{{"architectures":["{name}"]}}"#));
    assert_eq!(header.architecture.len(), 64);
}
