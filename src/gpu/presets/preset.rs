//! Descriptor of a preset.
//!
//! Not the rows: each server has a file of its own. Texts with placeholders are filled in where a process is started.

use infergate_core::model::SleepLevel;
use infergate_core::vram::Split;

/// Model server that is known.
#[derive(Debug)]
pub struct Preset {
    /// Name in the configuration.
    pub name: &'static str,
    /// Short description.
    pub about: &'static str,
    /// Backends that its models may have, the usual one first.
    pub backends: &'static [&'static str],
    /// Program.
    pub program: Program,
    /// Arguments, with placeholders.
    pub arguments: &'static [&'static str],
    /// Variables, with placeholders. A key stands here where the server reads one: other users of the host can read
    /// arguments.
    pub environment: &'static [(&'static str, &'static str)],
    /// Arguments behind them where the model is split over several devices.
    pub split_arguments: &'static [&'static str],
    /// Option that loads adapters; none where the server knows none.
    pub adapters: Option<AdapterOption>,
    /// Path that answers 200 once the server is ready, and something else or nothing before.
    pub ready_path: &'static str,
    /// Origin of the estimate, and what the server makes of its lease.
    pub memory: MemorySource,
    /// Options that an estimate depends on.
    pub estimate: EstimateOptions,
    /// Split over devices, where one has no room.
    pub split: Split,
    /// Parts of a line, in any case, by which an end is known as one for want of memory.
    pub out_of_memory: &'static [&'static str],
    /// Parts of a line, in any case, by which a taken port is known.
    pub address_in_use: &'static [&'static str],
    /// Sleep; none where the server has none.
    pub sleep: Option<SleepSupport>,
    /// Options that `process.arguments` must leave alone.
    pub reserved: &'static [ReservedOption],
}

/// Program of a preset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// Found on the PATH.
    Named(&'static str),
    /// The gateway's own file.
    Gateway,
}

/// Origin of the estimate of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemorySource {
    /// Arithmetic over the header; the server takes as much as it needs.
    Header,
    /// The server takes the share of a device that it is given as `{gpu_fraction}`: the lease less `beside_mib`.
    Share {
        /// Memory that it takes beside its share, MiB.
        beside_mib: u64,
    },
    /// Size of the files.
    File,
    /// Exactly `vram.mib`.
    Fixed,
}

impl MemorySource {
    /// Returns the name in output.
    pub const fn name(self) -> &'static str {
        match self {
            MemorySource::Header => "header",
            MemorySource::Share { .. } => "share",
            MemorySource::File => "file",
            MemorySource::Fixed => "fixed",
        }
    }
}

/// Names of options whose values an estimate depends on.
#[derive(Debug)]
pub struct EstimateOptions {
    /// Tokens that are computed at once.
    pub ubatch: &'static [&'static str],
    /// Elements of the keys in the cache.
    pub key_type: &'static [&'static str],
    /// Elements of the values in the cache.
    pub value_type: &'static [&'static str],
    /// File of the projector.
    pub projector: &'static [&'static str],
    /// File of the draft model.
    pub draft: &'static [&'static str],
}

impl EstimateOptions {
    /// Estimate that depends on no option.
    pub const NONE: EstimateOptions = EstimateOptions {
        ubatch: &[],
        key_type: &[],
        value_type: &[],
        projector: &[],
        draft: &[],
    };
}

/// Option that loads adapters.
#[derive(Debug)]
pub struct AdapterOption {
    /// Arguments before the adapters.
    pub arguments: &'static [&'static str],
    /// An adapter is `name=path`, else its path alone.
    pub is_named: bool,
    /// Adapters are one argument, with commas between them; else an argument each.
    pub is_joined: bool,
}

/// Sleep of an idle server.
#[derive(Debug)]
pub struct SleepSupport {
    /// Arguments that make it possible.
    pub arguments: &'static [&'static str],
    /// Variables that make it possible.
    pub environment: &'static [(&'static str, &'static str)],
    /// Levels, the lightest first.
    pub levels: &'static [SleepLevelCalls],
    /// Path that tells whether it sleeps, as JSON with `is_sleeping`.
    pub state_path: &'static str,
}

/// Calls of one level of sleep.
#[derive(Debug)]
pub struct SleepLevelCalls {
    /// Level.
    pub level: SleepLevel,
    /// Calls that let it sleep, in order.
    pub sleep: &'static [HttpCall],
    /// Calls that wake it, in order.
    pub wake: &'static [HttpCall],
}

/// POST to a server.
#[derive(Debug)]
pub struct HttpCall {
    /// Path with its query.
    pub path: &'static str,
    /// JSON that is posted; none without a body.
    pub body: Option<&'static str>,
}

/// Option that the gateway sets itself, or that would break its accounting.
#[derive(Debug)]
pub struct ReservedOption {
    /// Names of the option.
    pub names: &'static [&'static str],
    /// Value that may stand all the same.
    pub allowed: Option<&'static str>,
    /// Reason and remedy.
    pub why: &'static str,
}
