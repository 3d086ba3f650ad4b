//! Shape of a model as far as its memory depends on it, and the arithmetic over it.
//!
//! Not the reading of files: `llama_shape.rs` and `hf_config.rs` make shapes of what stands there. Sizes are bytes,
//! 128 bits wide inside, so that no product of bounded figures overflows.

use super::cache_type::CacheType;
use super::header_error::UnknownFigure;

/// Bytes of a MiB.
const MIB: u64 = 1 << 20;
/// Memory of a llama.cpp process beside activations and mask, bytes: small buffers of its graph.
const COMPUTE_BASE_BYTES: u128 = 64 << 20;
/// Tokens to which llama.cpp rounds a context up.
const CONTEXT_STEP: u64 = 256;
/// Engines that take a share of the card need so many bytes beside weights and cache.
const SHARE_BASE_BYTES: u128 = 2 << 30;
/// Figure of a header that no model exceeds: 16 M of tokens, of a vocabulary, of a width.
pub(super) const FIGURE_MAX: u64 = 1 << 24;

/// Header of a model, over all of its files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelHeader {
    /// Architecture as the model names it; empty where it does not.
    pub architecture: String,
    /// Sum of the tensors.
    pub weights_bytes: u64,
    /// Shape, or the figure without which it is not known.
    pub(super) shape: Result<ModelShape, UnknownFigure>,
}

/// Shape of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ModelShape {
    /// Cache of each layer.
    pub layers: Vec<LayerCache>,
    /// Elements of the cache unless configured otherwise.
    pub cache_type: CacheType,
    /// Tokens that the model was made for.
    pub context: Option<u64>,
    /// Memory of a run beside weights and cache.
    pub compute: ComputeRule,
}

/// Memory that one layer keeps for each request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LayerCache {
    /// Elements of the keys of one token.
    pub key_width: u64,
    /// Elements of the values of one token.
    pub value_width: u64,
    /// Tokens that are kept at most; none: all of them.
    pub window: Option<u64>,
    /// Elements of the state of a recurrent layer, four bytes each, whatever the context is.
    pub state_width: u64,
}

/// Rule for memory beside weights and cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ComputeRule {
    /// Graph of llama.cpp, by the widths of its layers.
    Graph {
        /// Width of the embedding.
        embedding: u64,
        /// Widest feed-forward layer.
        feed_forward: u64,
    },
    /// Engines that take a share of the card: a fifth of the weights and 2 GiB, their context included.
    Share,
}

/// Settings of a process that its memory depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunSettings {
    /// Tokens of one request; none: those the model was made for.
    pub context: Option<u64>,
    /// Requests at a time.
    pub parallel: u64,
    /// Tokens that a server computes at once.
    pub ubatch: u64,
    /// Elements of the keys in the cache; none: as the model has them.
    pub key_type: Option<CacheType>,
    /// Elements of the values in the cache; none: as the model has them.
    pub value_type: Option<CacheType>,
    /// Devices that the model is split over.
    pub devices: u64,
    /// Memory that a process takes on each device by using it, MiB.
    pub context_mib: u64,
}

/// Parts of an estimate, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryParts {
    /// Tensors of the model.
    pub weights_bytes: u64,
    /// Keys, values and states of all requests at a time.
    pub kv_bytes: u64,
    /// Activations, masks and buffers.
    pub compute_bytes: u64,
    /// Tensors of the projector; none without one.
    pub projector_bytes: Option<u64>,
    /// Weights, cache and activations of the draft model; none without one.
    pub draft_bytes: Option<u64>,
    /// Contexts of the process on its devices; none where the compute part has them.
    pub context_bytes: Option<u64>,
}

impl MemoryParts {
    /// Returns the sum.
    pub fn total_bytes(&self) -> u64 {
        let parts = [
            Some(self.weights_bytes),
            Some(self.kv_bytes),
            Some(self.compute_bytes),
            self.projector_bytes,
            self.draft_bytes,
            self.context_bytes,
        ];
        let present = parts.into_iter().flatten();
        present.fold(0, u64::saturating_add)
    }
}

impl RunSettings {
    /// Returns the tokens of one request for a model.
    pub(super) fn context_of(&self, shape: &ModelShape) -> Option<u64> {
        self.context.or(shape.context)
    }

    /// Returns the contexts of the process on all of its devices.
    pub(super) fn context_bytes(&self) -> u64 {
        let mib = self.context_mib.saturating_mul(self.devices);
        mib.saturating_mul(MIB)
    }
}

impl ModelHeader {
    /// Returns the context that the model was made for, tokens.
    pub fn trained_context(&self) -> Option<u64> {
        self.shape.as_ref().ok()?.context
    }

    /// Returns weights, cache and compute part of the model for `settings`.
    pub(super) fn parts(&self, settings: &RunSettings) -> Result<MemoryParts, UnknownFigure> {
        let shape = self.shape.as_ref().map_err(UnknownFigure::clone)?;
        let context = settings.context_of(shape).ok_or(UnknownFigure::NoContext)?;
        let (compute_bytes, context_bytes) = match shape.compute {
            ComputeRule::Graph {
                embedding,
                feed_forward,
            } => {
                let graph = activation_bytes(settings.ubatch, embedding, feed_forward)
                    .saturating_add(mask_bytes(settings.ubatch, context))
                    .saturating_add(COMPUTE_BASE_BYTES);
                (graph, Some(settings.context_bytes()))
            }
            ComputeRule::Share => (u128::from(self.weights_bytes) / 5 + SHARE_BASE_BYTES, None),
        };
        Ok(MemoryParts {
            weights_bytes: self.weights_bytes,
            kv_bytes: shape.kv_bytes(settings, context),
            compute_bytes: saturated(compute_bytes),
            projector_bytes: None,
            draft_bytes: None,
            context_bytes,
        })
    }

    /// Returns the cache for `settings`.
    pub(super) fn kv_bytes(&self, settings: &RunSettings) -> Result<u64, UnknownFigure> {
        let shape = self.shape.as_ref().map_err(UnknownFigure::clone)?;
        let context = settings.context_of(shape).ok_or(UnknownFigure::NoContext)?;
        Ok(shape.kv_bytes(settings, context))
    }
}

impl ModelShape {
    /// Returns the cache of all layers and requests.
    fn kv_bytes(&self, settings: &RunSettings, context: u64) -> u64 {
        let key_type = settings.key_type.unwrap_or(self.cache_type);
        let value_type = settings.value_type.unwrap_or(self.cache_type);
        let whole = rounded_context(context);
        let mut bytes = 0_u128;
        for layer in &self.layers {
            let window = layer
                .window
                .map(|window| window.saturating_add(settings.ubatch));
            let tokens = window.map_or(whole, |window| rounded_context(window).min(whole));
            let token =
                key_type.row_bytes(layer.key_width) + value_type.row_bytes(layer.value_width);
            let state = CacheType::F32.row_bytes(layer.state_width);
            bytes = bytes.saturating_add(token.saturating_mul(u128::from(tokens)));
            bytes = bytes.saturating_add(state);
        }
        saturated(bytes.saturating_mul(u128::from(settings.parallel)))
    }
}

fn rounded_context(tokens: u64) -> u64 {
    tokens.div_ceil(CONTEXT_STEP).saturating_mul(CONTEXT_STEP)
}

/// Widest moment of the graph: gate, up and product of the feed-forward layer, six rows of the embedding.
fn activation_bytes(ubatch: u64, embedding: u64, feed_forward: u64) -> u128 {
    let width = 3 * u128::from(feed_forward) + 6 * u128::from(embedding);
    u128::from(ubatch) * 4 * width
}

/// Mask of the attention: two bytes for each token that is computed and each that is kept for its request.
fn mask_bytes(ubatch: u64, context: u64) -> u128 {
    let rows = u128::from(ubatch) * 2;
    rows.saturating_mul(u128::from(rounded_context(context)))
}

fn saturated(bytes: u128) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

/// Returns bytes as MiB, rounded up.
pub fn mib(bytes: u64) -> u64 {
    bytes.div_ceil(MIB)
}
