//! Shape of a model from the `config.json` beside its safetensors files.
//!
//! Not every architecture: decoders whose layers keep keys and values, those with sliding windows and with latent
//! attention included. Others are unknown, and their estimate is that of the files' size.

use std::io::Read;

use serde::Deserialize;

use super::cache_type::CacheType;
use super::header_error::{HeaderError, UnknownFigure};
use super::llama_shape::LAYERS_MAX;
use super::shape::{ComputeRule, FIGURE_MAX, LayerCache, ModelShape};

/// Bytes of a configuration: a hundred times as many as they have.
pub const HF_CONFIG_BYTES_MAX: u64 = 1 << 20;

/// Characters of an architecture's name that are shown.
const NAME_CHARS_MAX: usize = 64;

/// Endings of the names of classes that generate text token by token.
const DECODERS: &[&str] = &["ForCausalLM", "ForConditionalGeneration"];

/// Members of the file that the memory depends on.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct HfConfig {
    architectures: Option<Vec<String>>,
    /// The language model of one that also sees or hears.
    text_config: Option<Box<HfConfig>>,
    num_hidden_layers: Option<u64>,
    num_attention_heads: Option<u64>,
    num_key_value_heads: Option<u64>,
    head_dim: Option<u64>,
    hidden_size: Option<u64>,
    max_position_embeddings: Option<u64>,
    torch_dtype: Option<String>,
    /// Newer name of `torch_dtype`; files may have both.
    dtype: Option<String>,
    sliding_window: Option<u64>,
    layer_types: Option<Vec<String>>,
    kv_lora_rank: Option<u64>,
    qk_rope_head_dim: Option<u64>,
}

impl HfConfig {
    /// Reads a configuration, at most [`HF_CONFIG_BYTES_MAX`] of it. One whose members are of other kinds than those
    /// of known architectures is no fault of the file: it names no architecture.
    pub(super) fn read(file: impl Read) -> Result<Self, HeaderError> {
        let mut text = Vec::new();
        file.take(HF_CONFIG_BYTES_MAX + 1)
            .read_to_end(&mut text)
            .map_err(|error| HeaderError::Unreadable(error.kind()))?;
        if text.len() as u64 > HF_CONFIG_BYTES_MAX {
            return Err(HeaderError::TooMany {
                what: "bytes of config.json",
                count: text.len() as u64,
                max: HF_CONFIG_BYTES_MAX,
            });
        }
        match serde_json::from_slice(&text) {
            Err(error) if error.is_data() => Ok(HfConfig::default()),
            read => read.map_err(|error| HeaderError::of_json("config.json", &error)),
        }
    }

    /// Name of the first architecture, cut to [`NAME_CHARS_MAX`]; empty without one.
    pub(super) fn architecture(&self) -> String {
        let mut names = self.architectures.iter().flatten();
        let name = names.next().map_or("", String::as_str);
        name.chars().take(NAME_CHARS_MAX).collect()
    }

    /// Returns the shape, or the figure that is missing.
    pub(super) fn shape(&self) -> Result<ModelShape, UnknownFigure> {
        let names = self.architectures.iter().flatten();
        let mut decoders =
            names.filter(|name| DECODERS.iter().any(|decoder| name.ends_with(decoder)));
        if decoders.next().is_none() {
            return Err(UnknownFigure::UnknownArchitecture(self.architecture()));
        }
        let text = self.text_config.as_deref().unwrap_or(self);
        let dtypes = [
            &text.dtype,
            &text.torch_dtype,
            &self.dtype,
            &self.torch_dtype,
        ];
        let dtype = dtypes.into_iter().find_map(Option::as_ref);
        let cache_type = dtype.and_then(|name| cache_type_of(name));
        Ok(ModelShape {
            layers: text.layers(&self.architecture())?,
            cache_type: cache_type.ok_or(UnknownFigure::Missing("torch_dtype"))?,
            context: text
                .max_position_embeddings
                .filter(|tokens| *tokens <= FIGURE_MAX),
            compute: ComputeRule::Share,
        })
    }

    fn layers(&self, architecture: &str) -> Result<Vec<LayerCache>, UnknownFigure> {
        let count = figure("num_hidden_layers", self.num_hidden_layers, LAYERS_MAX)?;
        let (key_width, value_width) = self.widths()?;
        let kinds = self.layer_types.as_deref().unwrap_or_default();
        let mut layers = Vec::new();
        for layer in 0..count {
            // Layers that the list does not name keep all tokens.
            let kind = kinds.get(layer as usize).map(String::as_str);
            let window = match kind {
                None | Some("full_attention") => None,
                Some("sliding_attention") => self.sliding_window,
                Some(_) => {
                    let architecture = architecture.to_owned();
                    return Err(UnknownFigure::UnknownArchitecture(architecture));
                }
            };
            layers.push(LayerCache {
                key_width,
                value_width,
                window,
                state_width: 0,
            });
        }
        Ok(layers)
    }

    /// Elements of keys and of values of one token and layer.
    fn widths(&self) -> Result<(u64, u64), UnknownFigure> {
        if let Some(rank) = self.kv_lora_rank {
            let rank = figure("kv_lora_rank", Some(rank), FIGURE_MAX)?;
            let rope = figure("qk_rope_head_dim", self.qk_rope_head_dim, FIGURE_MAX)?;
            return Ok((rank + rope, 0));
        }
        let heads = figure("num_attention_heads", self.num_attention_heads, FIGURE_MAX)?;
        let kv_heads = self.num_key_value_heads.unwrap_or(heads);
        let kv_heads = figure("num_key_value_heads", Some(kv_heads), FIGURE_MAX)?;
        let head = match self.head_dim {
            Some(head) => figure("head_dim", Some(head), FIGURE_MAX)?,
            None => {
                let hidden = figure("hidden_size", self.hidden_size, FIGURE_MAX)?;
                let head = hidden.checked_div(heads);
                head.ok_or(UnknownFigure::Missing("head_dim"))?
            }
        };
        Ok((kv_heads * head, kv_heads * head))
    }
}

/// Elements of the cache of a model that computes in `dtype`.
fn cache_type_of(dtype: &str) -> Option<CacheType> {
    match dtype.trim_start_matches("torch.") {
        "float16" | "bfloat16" => Some(CacheType::F16),
        "float32" => Some(CacheType::F32),
        _ => None,
    }
}

/// Returns a figure that is there; one that no model has counts as absent.
fn figure(name: &'static str, value: Option<u64>, max: u64) -> Result<u64, UnknownFigure> {
    let value = value.filter(|value| *value <= max);
    value.ok_or(UnknownFigure::Missing(name))
}
