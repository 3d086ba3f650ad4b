//! Estimate of the device memory of one model process, from the best source that answers.
//!
//! Not a measurement, and not the choice of a device. Headers of files are read from any `Read`, hostile ones
//! included: at most [`HEADER_BYTES_MAX`] of them, counts are checked, no length is trusted. An absent figure is
//! unknown, never zero. [`estimate`] is the chain of sources and the place to start.
//!
//! ```text
//! header_error  ←  header_reader  ←  gguf, safetensors, hf_config
//!       cache_type  ←  shape  ←  llama_shape  ←  gguf     hf_config  ←  safetensors
//!             shape, name  ←  chain
//! ggml_type, data_ranges, shard_name stand alone
//! ```

mod cache_type;
mod chain;
mod data_ranges;
mod ggml_type;
mod gguf;
mod header_error;
mod header_reader;
mod hf_config;
mod llama_shape;
mod name;
mod safetensors;
mod shape;
mod shard_name;
#[cfg(test)]
mod tests;

pub use cache_type::CacheType;
pub use chain::{
    DeviceFit, EstimateInputs, EstimateSource, FileFormat, ManifestExcess, ModelFiles,
    SourceFigure, VramEstimate, estimate, measured_need,
};
pub use gguf::{GgufFile, join_gguf, read_gguf};
pub use header_error::{HeaderError, UnknownFigure};
pub use header_reader::HEADER_BYTES_MAX;
pub use hf_config::HF_CONFIG_BYTES_MAX;
pub use safetensors::{join_safetensors, read_safetensors};
pub use shape::{MemoryParts, ModelHeader, RunSettings, mib};
pub use shard_name::{SHARDS_MAX, ShardName};
