//! Presets: model servers whose options, readiness, memory and messages are known.
//!
//! Values alone: no process is started and no placeholder filled in. A further server is one file and one row in
//! [`PRESETS`].

mod arguments;
mod llama_server;
mod placeholder;
mod preset;
mod sglang;
mod simulate;
mod table;
mod tei;
mod tgi;
mod vllm;

pub use arguments::{option_value, reserved_uses};
pub use placeholder::{PLACEHOLDERS, PlaceholderFault, TemplatePiece, template_pieces};
pub use preset::{
    AdapterOption, EstimateOptions, HttpCall, MemorySource, Preset, Program, SleepSupport,
};
pub use table::{PRESETS, preset};
