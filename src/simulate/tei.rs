//! Text Embeddings Inference's own responses: embed and info. Its OpenAI route is in `openai`.

use bytes::Bytes;
use serde_json::{Value, json};

use super::config::Config;
use super::embedding::vector;
use super::identity::FINGERPRINT;
use super::request::EmbeddingRequest;

/// Response to `/embed`: bare vectors.
pub(super) fn embed(ask: &EmbeddingRequest, seed: u64, dims: usize) -> Bytes {
    let dims = ask.dimensions.unwrap_or(dims).min(dims);
    let vectors: Vec<Vec<f32>> = ask
        .inputs
        .iter()
        .map(|input| vector(seed, input, dims))
        .collect();
    json!(vectors).to_string().into()
}

/// Response to `/info`.
pub(super) fn info(config: &Config) -> Value {
    json!({
        "model_id": config.answered_model(None),
        "model_sha": null,
        "model_dtype": "float32",
        "model_type": { "embedding": { "pooling": "cls" } },
        "max_concurrent_requests": config.concurrency,
        "max_input_length": 131_072,
        "max_batch_tokens": 131_072,
        "max_client_batch_size": 2_048,
        "served_by": FINGERPRINT,
        "version": env!("CARGO_PKG_VERSION"),
        "sha": null,
        "docker_label": null,
    })
}
