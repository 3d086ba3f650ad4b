//! Configuration of one plugin: the keys under `plugins[]`.
//!
//! Reads no files: relative paths have been resolved by the reader of the configuration. Limits are in the
//! unit of their key; each has a default for its world and a hard cap.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use infergate_core::billing::CHARGE_MAX_DEFAULT;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Words in the name of a setting that is hidden from operators.
const SECRET_SETTINGS: &[&str] = &["key", "token", "secret", "password"];

/// Returns whether a setting of this name is hidden wherever settings are shown.
pub fn is_secret_setting(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    SECRET_SETTINGS.iter().any(|word| name.contains(word))
}

/// World that a plugin was built for: what it decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum World {
    /// Checks input, shapes payload and answer.
    TaskSchema,
    /// The same, and shapes the events of a stream.
    TaskSchemaStreaming,
    /// Turns metrics into neurons.
    BillingFormula,
    /// The same, and estimates metrics from the bodies.
    BillingEstimator,
    /// Orders candidates.
    RoutingPolicy,
}

impl World {
    /// Every world.
    pub const ALL: [World; 5] = [
        World::TaskSchema,
        World::TaskSchemaStreaming,
        World::BillingFormula,
        World::BillingEstimator,
        World::RoutingPolicy,
    ];

    /// Its name in WIT and in configurations.
    pub const fn name(self) -> &'static str {
        match self {
            World::TaskSchema => "task-schema",
            World::TaskSchemaStreaming => "task-schema-streaming",
            World::BillingFormula => "billing-formula",
            World::BillingEstimator => "billing-estimator",
            World::RoutingPolicy => "routing-policy",
        }
    }

    /// The key under `models[].plugins` that takes it.
    pub const fn role(self) -> &'static str {
        match self {
            World::TaskSchema | World::TaskSchemaStreaming => "task",
            World::BillingFormula | World::BillingEstimator => "billing",
            World::RoutingPolicy => "routing",
        }
    }
}

/// Fallback of a plugin that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum OnFailure {
    /// The built-in task, formula or order. The default of billing and routing, and their only choice.
    Builtin,
    /// 502 `plugin_failed`; a stream is cut. The default of tasks.
    Closed,
    /// The body as it came, after the native schema check.
    Passthrough,
    /// As `closed`; a stream is cut with an error event.
    Cut,
}

/// Reuse of instances.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum InstancePolicy {
    /// By the same account, up to 10,000 times.
    #[default]
    Auto,
    /// Never: each call has an instance of its own.
    Fresh,
}

/// Mode of calls to a routing policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum RankMode {
    /// Off the request path, once for all requests of a kind.
    #[default]
    Cached,
    /// For every request.
    PerRequest,
}

/// Use of a task's hooks for answers of the OpenAI API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum OpenaiAnswers {
    /// `finish`, `push` and `close` edit and count them, as they do the results of `/ai/run`.
    Shape,
    /// Answers pass as the model server made them, and are not counted by the plugin.
    Pass,
}

/// Limits of a plugin; absent ones are its world's defaults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PluginLimits {
    /// MiB of memory of one instance: 64 for tasks, 16 for the others. A call is handed at most a
    /// quarter of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 128))]
    pub memory_mib: Option<u32>,
    /// Milliseconds of one call: 2 for routing, 5 for billing, 20 for tasks (a stream's events get
    /// a quarter).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 500))]
    pub deadline_ms: Option<u32>,
    /// KiB of one answer: 1024 for routing and billing, 40960 for tasks.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 163840))]
    pub output_kib: Option<u32>,
    /// KiB of one value that a task sets at a place in a body: 4096 unless set. A body that it
    /// replaces is bounded by `output_kib`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 163840))]
    pub set_kib: Option<u32>,
    /// Neurons that a billing plugin may charge for one request, and the most of each line: 1000000.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub charge_max: Option<u64>,
}

/// Configuration of one plugin.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PluginSpec {
    /// Name that models refer to.
    pub name: Arc<str>,
    /// World that it was built for.
    pub world: World,
    /// The component, `.wasm`.
    pub file: PathBuf,
    /// Digest of the file, 64 hex digits: `sha256sum` prints it. Required unless `dev`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<Arc<str>>,
    /// Takes the file whatever its digest.
    #[serde(default)]
    pub dev: bool,
    /// Granted imports: `log`, `counters`, `tables:<name>`.
    #[serde(default)]
    pub grants: Vec<Arc<str>>,
    /// Names of its counters, by index.
    #[serde(default)]
    pub counters: Vec<Arc<str>>,
    /// Files of read-only values it may look up, a JSON object each; its index is its place in the
    /// order of names.
    #[serde(default)]
    pub tables: BTreeMap<Arc<str>, PathBuf>,
    /// Handed to it as JSON when it is loaded; a model's `routing` is merged over it.
    #[serde(default)]
    pub settings: serde_json::Map<String, serde_json::Value>,
    /// Limits of its resources.
    #[serde(default)]
    pub limits: PluginLimits,
    /// Fallback when it fails: `closed` for tasks, `builtin` for the others, unless set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_failure: Option<OnFailure>,
    /// Tasks only: what becomes of answers of the OpenAI API. Required where a plugin that has
    /// `finish`, `push` or `close` meets a model that clients reach by that API too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub openai_answers: Option<OpenaiAnswers>,
    /// True when the revision before stands in for a failing one, as long as it has a good record.
    #[serde(default = "stands_in")]
    pub last_good: bool,
    /// Digests of components that stand in for no other: revisions that were replaced for a fault.
    #[serde(default)]
    pub barred_sha256: Vec<Arc<str>>,
    /// Reuse of its instances.
    #[serde(default)]
    pub instance: InstancePolicy,
    /// Allows that it cannot be loaded: the one loaded before serves on, or else the built-in one,
    /// and the log reports it.
    #[serde(default)]
    pub optional: bool,
    /// Routing policies only: when it is called.
    #[serde(default)]
    pub mode: RankMode,
}

/// [`PluginLimits`] with nothing left open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Bounds {
    /// Bytes of memory of an instance.
    pub memory_bytes: usize,
    /// Milliseconds of a call.
    pub deadline_ms: u32,
    /// Milliseconds of a call of a stream hook.
    pub stream_deadline_ms: u32,
    /// Bytes of an answer.
    pub output_bytes: usize,
    /// Bytes of one value that is set at a place in a body.
    pub set_bytes: usize,
    /// Neurons of one request.
    pub charge_max: u64,
}

const fn stands_in() -> bool {
    true
}

/// KiB of one value that is set, unless configured: a document, not a picture or a sound.
const SET_KIB: u32 = 4096;

impl PluginSpec {
    /// Fallback when it fails.
    pub fn failure_policy(&self) -> OnFailure {
        match self.world.role() {
            "task" => self.on_failure.unwrap_or(OnFailure::Closed),
            _ => OnFailure::Builtin,
        }
    }

    /// Its limits, defaults filled in.
    pub fn bounds(&self) -> Bounds {
        let (memory_mib, deadline_ms, output_kib) = match self.world.role() {
            "task" => (64, 20, 40_960),
            "billing" => (16, 5, 1024),
            _ => (16, 2, 1024),
        };
        let memory_mib = self.limits.memory_mib.unwrap_or(memory_mib);
        let deadline_ms = self.limits.deadline_ms.unwrap_or(deadline_ms).clamp(1, 500);
        Bounds {
            memory_bytes: (memory_mib.clamp(1, 128) as usize) << 20,
            deadline_ms,
            stream_deadline_ms: deadline_ms.div_ceil(4),
            output_bytes: (self
                .limits
                .output_kib
                .unwrap_or(output_kib)
                .clamp(1, 163_840) as usize)
                << 10,
            set_bytes: (self.limits.set_kib.unwrap_or(SET_KIB).clamp(1, 163_840) as usize) << 10,
            charge_max: self.limits.charge_max.unwrap_or(CHARGE_MAX_DEFAULT),
        }
    }
}
