//! Shape of a model from the figures of its GGUF file, as llama.cpp understands them.
//!
//! Not the layout of the file. Where a file leaves open what llama.cpp's source decides, the tables here decide the
//! same (<https://github.com/ggml-org/llama.cpp/tree/master/src/models>); where neither does, the larger memory is
//! assumed. An architecture with a cache of another kind is unknown.

use std::collections::BTreeMap;

use super::cache_type::CacheType;
use super::header_error::{HeaderError, UnknownFigure};
use super::shape::{ComputeRule, FIGURE_MAX, LayerCache, ModelShape};

/// Layers of a model; llama.cpp has 512 at most.
pub(super) const LAYERS_MAX: u64 = 1024;

const BLOCK_COUNT: &str = "block_count";
const CONTEXT: &str = "context_length";
const EMBEDDING: &str = "embedding_length";
const FEED_FORWARD: &str = "feed_forward_length";
const EXPERT_FEED_FORWARD: &str = "expert_feed_forward_length";
const EXPERT_SHARED_FEED_FORWARD: &str = "expert_shared_feed_forward_length";
const EXPERTS_USED: &str = "expert_used_count";
const HEADS: &str = "attention.head_count";
const KV_HEADS: &str = "attention.head_count_kv";
const KEY_LENGTH: &str = "attention.key_length";
const VALUE_LENGTH: &str = "attention.value_length";
const KEY_LENGTH_MLA: &str = "attention.key_length_mla";
const VALUE_LENGTH_MLA: &str = "attention.value_length_mla";
const KEY_LENGTH_WINDOW: &str = "attention.key_length_swa";
const VALUE_LENGTH_WINDOW: &str = "attention.value_length_swa";
const INDEXER_KEY_LENGTH: &str = "attention.indexer.key_length";
const WINDOW: &str = "attention.sliding_window";
const WINDOW_PATTERN: &str = "attention.sliding_window_pattern";
const SHARED_KV_LAYERS: &str = "attention.shared_kv_layers";
const CAUSAL: &str = "attention.causal";
const FULL_ATTENTION_INTERVAL: &str = "full_attention_interval";
const SSM_CONVOLUTION: &str = "ssm.conv_kernel";
const SSM_INNER: &str = "ssm.inner_size";
const SSM_STATE: &str = "ssm.state_size";
const SSM_GROUPS: &str = "ssm.group_count";
const WKV_HEAD: &str = "wkv.head_size";
const TOKEN_SHIFTS: &str = "token_shift_count";
const SHORT_CONVOLUTION: &str = "shortconv.l_cache";
const KDA_HEAD: &str = "kda.head_dim";

/// Keys behind the name of the architecture that are figures of the memory.
pub(super) const FIGURES: &[&str] = &[
    BLOCK_COUNT,
    CONTEXT,
    EMBEDDING,
    FEED_FORWARD,
    EXPERT_FEED_FORWARD,
    EXPERT_SHARED_FEED_FORWARD,
    EXPERTS_USED,
    HEADS,
    KV_HEADS,
    KEY_LENGTH,
    VALUE_LENGTH,
    KEY_LENGTH_MLA,
    VALUE_LENGTH_MLA,
    KEY_LENGTH_WINDOW,
    VALUE_LENGTH_WINDOW,
    INDEXER_KEY_LENGTH,
    WINDOW,
    WINDOW_PATTERN,
    SHARED_KV_LAYERS,
    CAUSAL,
    FULL_ATTENTION_INTERVAL,
    SSM_CONVOLUTION,
    SSM_INNER,
    SSM_STATE,
    SSM_GROUPS,
    WKV_HEAD,
    TOKEN_SHIFTS,
    SHORT_CONVOLUTION,
    KDA_HEAD,
];

/// Architectures whose cache is of another kind.
const OTHER_CACHES: &[&str] = &["deepseek4"];

/// Hybrid architectures where one layer of so many has attention unless the file says another number.
const FULL_ATTENTION_INTERVALS: &[(&str, u64)] =
    &[("qwen3next", 4), ("qwen35", 4), ("qwen35moe", 4)];

/// Layers with a sliding window of an architecture whose files may not name them.
struct WindowRule {
    architecture: &'static str,
    /// Layers of which the last keeps all tokens.
    period: u64,
    /// Not the last of them does, but the first.
    is_dense_first: bool,
    /// Window where the file names none, tokens.
    window: Option<u64>,
}

const WINDOW_RULES: &[WindowRule] = &[
    window_rule("afmoe", 4, None),
    window_rule("cohere2", 4, None),
    window_rule("exaone4", 4, None),
    window_rule("gemma2", 2, Some(4096)),
    window_rule("gemma3", 6, None),
    window_rule("gemma3n", 5, None),
    window_rule("gpt-oss", 2, None),
    window_rule("llama4", 4, Some(8192)),
    window_rule("olmo2", 4, None),
    WindowRule {
        architecture: "smallthinker",
        period: 4,
        is_dense_first: true,
        window: None,
    },
];

const fn window_rule(architecture: &'static str, period: u64, window: Option<u64>) -> WindowRule {
    WindowRule {
        architecture,
        period,
        is_dense_first: false,
        window,
    }
}

/// Figure of the metadata.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum MetadataFigure {
    /// A number for the whole model.
    One(u64),
    /// A number for each layer.
    Each(Vec<u64>),
}

/// Figures of one architecture.
#[derive(Debug)]
pub(super) struct LlamaFigures {
    pub architecture: String,
    figures: BTreeMap<&'static str, MetadataFigure>,
}

impl LlamaFigures {
    pub(super) fn new(
        architecture: String,
        figures: impl Iterator<Item = (&'static str, MetadataFigure)>,
    ) -> Self {
        LlamaFigures {
            architecture,
            figures: figures.collect(),
        }
    }

    /// Returns the shape, or the figure that is missing.
    ///
    /// # Errors
    /// A figure that no model has.
    pub(super) fn shape(&self) -> Result<Result<ModelShape, UnknownFigure>, HeaderError> {
        self.check()?;
        Ok(self.checked_shape())
    }

    /// Bounds all figures, so that no arithmetic has to.
    fn check(&self) -> Result<(), HeaderError> {
        for (what, figure) in &self.figures {
            let max = match *what {
                BLOCK_COUNT => LAYERS_MAX,
                _ => FIGURE_MAX,
            };
            let values = match figure {
                MetadataFigure::One(value) => std::slice::from_ref(value),
                MetadataFigure::Each(values) => values,
            };
            if let Some(value) = values.iter().find(|value| **value > max) {
                return Err(HeaderError::ImpossibleFigure {
                    what,
                    value: *value,
                    max,
                });
            }
        }
        Ok(())
    }

    fn checked_shape(&self) -> Result<ModelShape, UnknownFigure> {
        if self.architecture.is_empty() {
            return Err(UnknownFigure::Missing("general.architecture"));
        }
        if OTHER_CACHES.contains(&self.architecture.as_str()) {
            let architecture = self.architecture.clone();
            return Err(UnknownFigure::UnknownArchitecture(architecture));
        }
        let count = self.required(BLOCK_COUNT)?;
        let embedding = self.required(EMBEDDING)?;
        let widths = self.head_widths(count, embedding)?;
        let mut layers = Vec::new();
        for layer in 0..count {
            layers.push(self.layer(layer, count, widths)?);
        }
        Ok(ModelShape {
            layers,
            cache_type: CacheType::F16,
            context: self.one(CONTEXT),
            compute: ComputeRule::Graph {
                embedding,
                feed_forward: self.feed_forward()?,
            },
        })
    }

    /// Cache of one layer.
    fn layer(
        &self,
        layer: u64,
        count: u64,
        widths: HeadWidths,
    ) -> Result<LayerCache, UnknownFigure> {
        if self.one(CAUSAL) == Some(0) {
            return Ok(LayerCache::default());
        }
        let heads = self.of_layer(KV_HEADS, layer);
        let heads = heads.or_else(|| self.of_layer(HEADS, layer));
        let heads = heads.ok_or(UnknownFigure::Missing(HEADS))?;
        let state = self.state_width();
        let is_recurrent = state.is_some() && self.is_recurrent(layer, heads);
        let mut cache = LayerCache::default();
        if is_recurrent || state.is_some() && self.has_attention_everywhere() {
            cache.state_width = state.unwrap_or_default();
        }
        let shares_cache = layer >= count.saturating_sub(self.one(SHARED_KV_LAYERS).unwrap_or(0));
        if is_recurrent || shares_cache {
            return Ok(cache);
        }
        cache.window = self.window(layer);
        let windowed = |key| cache.window.and_then(|_| self.one(key));
        cache.key_width = windowed(KEY_LENGTH_WINDOW).unwrap_or(widths.key) * heads
            + self.one(INDEXER_KEY_LENGTH).unwrap_or(0);
        cache.value_width = windowed(VALUE_LENGTH_WINDOW).unwrap_or(widths.value) * heads;
        if self.has_latent_cache() {
            cache.value_width = 0;
        }
        Ok(cache)
    }

    /// Widths of one head; the embedding over the heads unless the file names them.
    fn head_widths(&self, count: u64, embedding: u64) -> Result<HeadWidths, UnknownFigure> {
        let heads = (0..count).filter_map(|layer| self.of_layer(HEADS, layer));
        let by_heads = match heads.max() {
            None => Err(UnknownFigure::Missing(HEADS)),
            // No head at all: every layer is recurrent, and the widths are of nothing.
            Some(0) => Ok(0),
            Some(heads) => Ok(embedding / heads),
        };
        let width = |key| self.one(key).map_or_else(|| by_heads.clone(), Ok);
        Ok(HeadWidths {
            key: width(KEY_LENGTH)?,
            value: width(VALUE_LENGTH)?,
        })
    }

    /// Only the compressed keys are cached, of which values are computed (multi-head latent attention).
    fn has_latent_cache(&self) -> bool {
        let is_set = |key| self.one(key).is_some_and(|length| length > 0);
        is_set(KEY_LENGTH_MLA) && is_set(VALUE_LENGTH_MLA)
    }

    /// Sliding window of a layer; none where it keeps all tokens, or where that is not known.
    fn window(&self, layer: u64) -> Option<u64> {
        let rule = WINDOW_RULES
            .iter()
            .find(|rule| rule.architecture == self.architecture);
        let window = self.one(WINDOW).or(rule.and_then(|rule| rule.window));
        let window = window.filter(|window| *window > 0)?;
        let period = match self.figures.get(WINDOW_PATTERN) {
            Some(MetadataFigure::Each(_)) => {
                let is_sliding = self.of_layer(WINDOW_PATTERN, layer)? > 0;
                return is_sliding.then_some(window);
            }
            Some(MetadataFigure::One(period)) => *period,
            None => rule?.period,
        };
        let is_sliding = match (period, rule.is_some_and(|rule| rule.is_dense_first)) {
            (0, _) => true,
            (period, true) => !layer.is_multiple_of(period),
            (period, false) => layer % period < period - 1,
        };
        is_sliding.then_some(window)
    }

    /// Elements of the state of one recurrent layer; none in a model without such layers.
    fn state_width(&self) -> Option<u64> {
        let embedding = self.one(EMBEDDING).unwrap_or(0);
        if let Some(head) = self.one(WKV_HEAD) {
            return Some(embedding * (self.one(TOKEN_SHIFTS).unwrap_or(2) + head));
        }
        if let Some(length) = self.one(SHORT_CONVOLUTION) {
            return Some(embedding * length.saturating_sub(1));
        }
        let convolution = self.one(SSM_CONVOLUTION);
        if let Some(head) = self.one(KDA_HEAD) {
            let heads = self.of_layer(HEADS, 0).unwrap_or(0);
            let kept = convolution.map_or(3, |length| length.saturating_sub(1));
            let rows = u128::from(3 * kept) + u128::from(head);
            return Some(narrowed(rows * u128::from(head * heads)));
        }
        let inner = self.one(SSM_INNER)?;
        let state = self.one(SSM_STATE)?;
        let groups = self.one(SSM_GROUPS).unwrap_or(0);
        let row = u128::from(inner) + 2 * u128::from(groups) * u128::from(state);
        let kept = u128::from(convolution.unwrap_or(0).saturating_sub(1));
        Some(narrowed(kept * row + u128::from(state * inner)))
    }

    /// Returns whether a layer of a model with recurrent layers has a state and no attention.
    fn is_recurrent(&self, layer: u64, kv_heads: u64) -> bool {
        let by_architecture = FULL_ATTENTION_INTERVALS
            .iter()
            .find(|(architecture, _)| *architecture == self.architecture);
        let interval = self.one(FULL_ATTENTION_INTERVAL);
        let interval = interval.or(by_architecture.map(|(_, interval)| *interval));
        match interval.filter(|interval| *interval > 0) {
            Some(interval) => !(layer + 1).is_multiple_of(interval),
            None => kv_heads == 0,
        }
    }

    /// Returns whether nothing tells recurrent layers from those with attention: each has both.
    fn has_attention_everywhere(&self) -> bool {
        !matches!(self.figures.get(KV_HEADS), Some(MetadataFigure::Each(_)))
            && !self.figures.contains_key(FULL_ATTENTION_INTERVAL)
            && !FULL_ATTENTION_INTERVALS
                .iter()
                .any(|(architecture, _)| *architecture == self.architecture)
    }

    /// Widest feed-forward layer, that of all experts of a token together included.
    fn feed_forward(&self) -> Result<u64, UnknownFigure> {
        let dense = match self.figures.get(FEED_FORWARD) {
            Some(MetadataFigure::One(width)) => Some(*width),
            Some(MetadataFigure::Each(widths)) => widths.iter().copied().max(),
            None => None,
        };
        let used = self.one(EXPERTS_USED).unwrap_or(1);
        let shared = self.one(EXPERT_SHARED_FEED_FORWARD).unwrap_or(0);
        let experts = self.one(EXPERT_FEED_FORWARD);
        let experts = experts.map(|width| width * used + shared);
        let inner = self.one(SSM_INNER);
        let widest = [dense, experts, inner].into_iter().flatten().max();
        widest.ok_or(UnknownFigure::Missing(FEED_FORWARD))
    }

    fn required(&self, key: &'static str) -> Result<u64, UnknownFigure> {
        self.one(key).ok_or(UnknownFigure::Missing(key))
    }

    /// Figure of the whole model.
    fn one(&self, key: &str) -> Option<u64> {
        match self.figures.get(key)? {
            MetadataFigure::One(value) => Some(*value),
            MetadataFigure::Each(_) => None,
        }
    }

    /// Figure of a layer.
    fn of_layer(&self, key: &str, layer: u64) -> Option<u64> {
        match self.figures.get(key)? {
            MetadataFigure::One(value) => Some(*value),
            MetadataFigure::Each(values) => values.get(usize::try_from(layer).ok()?).copied(),
        }
    }
}

/// Widths of one head.
#[derive(Clone, Copy, Debug)]
struct HeadWidths {
    key: u64,
    value: u64,
}

fn narrowed(width: u128) -> u64 {
    u64::try_from(width).unwrap_or(u64::MAX)
}
