//! Reports of llama.cpp's server about itself: props and slots. Its responses to requests are in
//! `openai`.

use serde_json::{Value, json};

use super::config::Config;
use super::identity::FINGERPRINT;
use super::stats::StatsSnapshot;

/// Response to `/props`.
pub(super) fn props(config: &Config) -> Value {
    json!({
        "default_generation_settings": { "n_ctx": 131_072 },
        "total_slots": config.concurrency,
        "model_path": config.answered_model(None),
        "chat_template": "",
        "build_info": FINGERPRINT,
    })
}

/// Response to `/slots`: as many are processing as requests hold one.
pub(super) fn slots(config: &Config, counts: StatsSnapshot) -> Value {
    let slot = |id| json!({ "id": id, "n_ctx": 131_072, "is_processing": id < counts.current });
    (0..config.concurrency as u64).map(slot).collect()
}
