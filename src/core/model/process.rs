//! Process of a model on this host: its command, its memory, its places, and when it is loaded.
//!
//! Neither a command line nor a placement: the fields are the keys under `models[].process` and those beside it.
//! Memory is MiB, times are seconds; bounds are in the schema.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::credentials::Secret;

/// Process that serves a model, started and stopped by the gateway.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ProcessSpec {
    /// Server whose options, readiness and memory are known. Either this or `command`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preset: Option<Arc<str>>,
    /// Program and its arguments, without a shell; `{port}` and other placeholders are filled in. Either this or
    /// `preset`.
    #[schemars(length(max = 256))]
    pub command: Vec<Arc<str>>,
    /// File or folder of the model, seen from the folder of this file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model_path: Option<PathBuf>,
    /// Tokens of one request.
    #[schemars(range(min = 1, max = 16_777_216))]
    pub context: u32,
    /// Permits of one slot: requests that the server works on at once.
    #[schemars(range(min = 1, max = 65_536))]
    pub parallel: u32,
    /// Arguments after those of the preset or the command.
    #[schemars(length(max = 256))]
    pub arguments: Vec<Arc<str>>,
    /// Variables of the process, kept secret as keys are; may come from the environment.
    #[serde(skip_serializing)]
    pub environment: BTreeMap<Arc<str>, Secret>,
    /// Names of the gateway's own variables that the process gets. Beside them it gets PATH, HOME, LANG, TZ, TMPDIR
    /// and LD_LIBRARY_PATH.
    #[schemars(length(max = 256))]
    pub pass_environment: Vec<Arc<str>>,
    /// Folder that the process starts in, seen from the folder of this file; the gateway's own when empty.
    pub working_directory: PathBuf,
    /// Adapters (LoRA) that are loaded with the server.
    #[schemars(length(max = 256))]
    pub adapters: Vec<AdapterSpec>,
    /// Seconds from the start of the process until it must be ready; then the load has failed.
    #[schemars(range(min = 1, max = 86_400))]
    pub ready_timeout_secs: u64,
    /// Request that is sent before those of clients, so that memory and compilation of the first one are behind it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warmup: Option<WarmupSpec>,
    /// Seconds from SIGTERM to SIGKILL.
    #[schemars(range(max = 3600))]
    pub stop_timeout_secs: u64,
    /// Unloading of an idle model: `none` ends the process; 1 and 2 let a server sleep that can: weights go to memory of
    /// the host, or are dropped.
    pub sleep: SleepLevel,
    /// Addresses that the server may listen on.
    pub listen: ListenScope,
    /// Treatment of a process whose program or model files have changed on disk.
    pub update: UpdateChoice,
    /// Limits of the process and its children.
    pub limits: ProcessLimits,
}

impl Default for ProcessSpec {
    fn default() -> Self {
        ProcessSpec {
            preset: None,
            command: Vec::new(),
            model_path: None,
            context: 8192,
            parallel: 4,
            arguments: Vec::new(),
            environment: BTreeMap::new(),
            pass_environment: Vec::new(),
            working_directory: PathBuf::new(),
            adapters: Vec::new(),
            ready_timeout_secs: 600,
            warmup: None,
            stop_timeout_secs: 10,
            sleep: SleepLevel::default(),
            listen: ListenScope::default(),
            update: UpdateChoice::default(),
            limits: ProcessLimits::default(),
        }
    }
}

/// Adapter of a model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AdapterSpec {
    /// Name by which requests ask for it.
    #[schemars(length(min = 1))]
    pub name: Arc<str>,
    /// File or folder, seen from the folder of this file.
    pub path: PathBuf,
}

/// First request of a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WarmupSpec {
    /// Path that is posted to, such as `/v1/chat/completions`.
    pub path: Arc<str>,
    /// JSON that is posted.
    #[serde(default)]
    pub body: serde_json::Map<String, serde_json::Value>,
    /// Seconds it may take.
    #[serde(default = "WarmupSpec::default_timeout_secs")]
    #[schemars(range(min = 1, max = 3600))]
    pub timeout_secs: u64,
}

impl WarmupSpec {
    fn default_timeout_secs() -> u64 {
        120
    }
}

/// Depth of the sleep of an idle server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SleepLevel {
    /// No sleep: the process ends.
    #[default]
    None,
    /// Weights in memory of the host.
    Weights,
    /// Weights dropped; they are read again.
    Dropped,
}

impl SleepLevel {
    /// Returns the number of the level; 0 without sleep.
    pub const fn number(self) -> u8 {
        match self {
            SleepLevel::None => 0,
            SleepLevel::Weights => 1,
            SleepLevel::Dropped => 2,
        }
    }
}

impl Serialize for SleepLevel {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            SleepLevel::None => serializer.serialize_str("none"),
            level => serializer.serialize_u8(level.number()),
        }
    }
}

impl<'de> Deserialize<'de> for SleepLevel {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = serde_json::Value::deserialize(deserializer)?;
        match (value.as_str(), value.as_u64()) {
            (Some("none"), _) => Ok(SleepLevel::None),
            (_, Some(1)) => Ok(SleepLevel::Weights),
            (_, Some(2)) => Ok(SleepLevel::Dropped),
            _ => Err(de::Error::custom("expected none, 1 or 2")),
        }
    }
}

impl JsonSchema for SleepLevel {
    fn schema_name() -> Cow<'static, str> {
        "SleepLevel".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "enum": ["none", 1, 2] })
    }
}

/// Addresses of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ListenScope {
    /// Loopback of the host alone.
    #[default]
    Loopback,
    /// Any address.
    Any,
}

/// Treatment of a process whose files have changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum UpdateChoice {
    /// `GET /gpu` says so; an operator restarts it.
    #[default]
    Manual,
    /// Slots restart one after the other, the next one once the former is ready.
    Rolling,
}

/// Limits of a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ProcessLimits {
    /// Memory of the host for the process and its children, MiB; 0 sets no limit.
    #[schemars(range(max = 1_073_741_824))]
    pub memory_mib: u64,
    /// Processes and threads; 0 sets no limit.
    #[schemars(range(max = 4_194_304))]
    pub pids: u32,
    /// Open files; 0 sets no limit.
    #[schemars(range(max = 1_048_576))]
    pub open_files: u32,
    /// Added to the niceness of the gateway.
    #[schemars(range(min = 0, max = 19))]
    pub nice: u8,
}

impl Default for ProcessLimits {
    fn default() -> Self {
        ProcessLimits {
            memory_mib: 0,
            pids: 4096,
            open_files: 65_536,
            nice: 0,
        }
    }
}

/// Device memory of a model.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct VramSpec {
    /// Memory of one process, MiB; 0 estimates it from loads and files. Engines that take a share of a card get this.
    #[schemars(range(max = 1_073_741_824))]
    pub mib: u64,
    /// Treatment of a model of which nothing tells its memory.
    pub unknown: UnknownVram,
    /// Use of several devices where no single one has room.
    pub split: SplitChoice,
    /// Treatment of a process that uses over 5 % more than its lease.
    pub over_lease: OverLease,
}

/// Treatment of a model whose memory is not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum UnknownVram {
    /// Loaded alone on an empty device.
    #[default]
    Exclusive,
    /// Not loaded.
    Refuse,
}

/// Use of several devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum SplitChoice {
    /// As the preset can; never for a `command`.
    #[default]
    Auto,
    /// A single device holds the model.
    Never,
}

/// Treatment of use above a lease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum OverLease {
    /// A warning; the device takes no further model.
    #[default]
    Warn,
    /// The process is drained and started again.
    Restart,
}

/// Slots of a model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ReplicasSpec {
    /// Slots that stay loaded.
    #[schemars(range(max = 64))]
    pub min: u32,
    /// Slots at most; their permits together size the queue.
    #[schemars(range(min = 1, max = 64))]
    pub max: u32,
}

impl Default for ReplicasSpec {
    fn default() -> Self {
        ReplicasSpec { min: 0, max: 1 }
    }
}

/// News for streaming clients that wait for a load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum LoadingState {
    /// SSE comments, where the model has `queue_heartbeat_secs`.
    #[default]
    Comment,
    /// Chat chunks with `reasoning_content`, which are not billed: every `queue_heartbeat_secs`, or 2 s where that is 0.
    Reasoning,
    /// Nothing.
    None,
}

#[cfg(test)]
mod tests {
    use super::super::spec::ModelSpec;
    use super::*;

    fn model(task: &str, more: &str) -> ModelSpec {
        let text = format!(r#"{{"id":"m","task":"{task}","backend":"openai"{more}}}"#);
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn idle_models_stay_as_long_as_their_task_or_their_configuration_has_it() {
        let secs = |task, more| model(task, more).keep_alive_secs();
        assert_eq!(secs("text-to-image", ""), Some(900));
        assert_eq!(secs("text-generation", ""), Some(300));
        assert_eq!(secs("image-classification", ""), Some(60));
        assert_eq!(
            secs("image-classification", r#","keep_alive_secs":0"#),
            Some(0)
        );
        assert_eq!(secs("text-generation", r#","keep_alive_secs":-1"#), None);
        assert_eq!(
            secs("text-generation", r#","keep_alive_secs":9,"pin":true"#),
            None
        );
    }

    #[test]
    fn a_level_of_sleep_is_written_as_it_is_read() {
        for (text, level) in [
            (r#""none""#, SleepLevel::None),
            ("1", SleepLevel::Weights),
            ("2", SleepLevel::Dropped),
        ] {
            assert_eq!(serde_json::from_str::<SleepLevel>(text).unwrap(), level);
            assert_eq!(serde_json::to_string(&level).unwrap(), text);
        }
        assert!(serde_json::from_str::<SleepLevel>("3").is_err());
    }

    #[test]
    fn an_empty_process_has_every_default() {
        let model = model("text-generation", r#","process":{}"#);
        assert_eq!(model.process, Some(ProcessSpec::default()));
        assert_eq!(model.replicas, ReplicasSpec { min: 0, max: 1 });
        assert!(model.endpoints.is_empty());
    }
}
