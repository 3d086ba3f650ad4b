//! `jobs` of the configuration: the durable path of this node.
//!
//! A model's own rules stand under `models[].jobs`.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use infergate_core::Millis;
use infergate_core::job::forbidden_address::RECEIVER_PORTS;
use infergate_core::model::{DeploymentSpec, HardwareSpec, Secret};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::files::FilesConfig;

/// Choices of the configuration that requests read.
#[derive(Clone, Debug, Default)]
pub struct JobChoices {
    /// `jobs`.
    pub jobs: JobsConfig,
    /// `replicate`.
    pub replicate: ReplicateConfig,
    /// `public_url`.
    pub public_url: Option<Arc<str>>,
    /// `files`.
    pub files: FilesConfig,
    /// Addresses of `listen`, to which no webhook goes.
    pub listeners: Vec<SocketAddr>,
    /// `listen.callbacks.url`, without a slash at its end.
    pub callbacks_url: Option<Arc<str>>,
    /// `deployments`.
    pub deployments: Vec<DeploymentSpec>,
    /// `hardware`.
    pub hardware: Vec<HardwareSpec>,
}

impl JobChoices {
    /// Adds listeners that are bound, whatever a later configuration names: no webhook goes to either.
    pub fn keep_listeners(&mut self, bound: &[SocketAddr]) {
        for listener in bound {
            if !self.listeners.contains(listener) {
                self.listeners.push(*listener);
            }
        }
    }

    /// Returns the hardware there is, at least one.
    pub fn hardware(&self) -> Vec<HardwareSpec> {
        match self.hardware.is_empty() {
            true => vec![HardwareSpec::usual()],
            false => self.hardware.clone(),
        }
    }
}

/// Store of the jobs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum StoreKind {
    /// A file in `state_dir`. Jobs live on the node that accepted them.
    #[default]
    Embedded,
}

/// Durable path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct JobsConfig {
    /// Store of the jobs. A change takes a restart.
    pub store: StoreKind,
    /// The embedded store.
    pub embedded: EmbeddedConfig,
    /// Worker of this node.
    pub worker: WorkerConfig,
    /// Webhooks: notifications that jobs send to their owners.
    pub webhooks: WebhooksConfig,
    /// KiB of a request up to which a store whose queues are in memory has it there too. The embedded store reads every
    /// request from its file when the job is taken, whatever its length.
    #[schemars(range(max = 1024))]
    pub payload_inline_kib: u64,
    /// KiB of a request in the store. The input of a longer one is kept as a file of the job's account.
    #[schemars(range(min = 16, max = 1024))]
    pub payload_max_kib: u64,
    /// Seconds that ended jobs and their results are kept.
    #[schemars(range(min = 1, max = 2_592_000))]
    pub keep_secs: u64,
    /// Seconds within which a job must be started; then it fails.
    #[schemars(range(min = 1, max = 2_592_000))]
    pub retention_secs: u64,
}

impl Default for JobsConfig {
    fn default() -> Self {
        JobsConfig {
            store: StoreKind::Embedded,
            embedded: EmbeddedConfig::default(),
            worker: WorkerConfig::default(),
            webhooks: WebhooksConfig::default(),
            payload_inline_kib: 4,
            payload_max_kib: 256,
            keep_secs: 3600,
            retention_secs: 86_400,
        }
    }
}

impl JobsConfig {
    /// Time that ended jobs are kept.
    pub fn keep(&self) -> Millis {
        Millis::from_secs(self.keep_secs)
    }

    /// Longest request in the store, bytes.
    pub fn payload_bytes_max(&self) -> usize {
        usize::try_from(self.payload_max_kib << 10).unwrap_or(usize::MAX)
    }
}

/// Embedded store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct EmbeddedConfig {
    /// MiB of jobs that have not ended, inputs included; a submit beyond is refused.
    #[schemars(range(min = 1, max = 1_048_576))]
    pub max_mib: u64,
}

impl Default for EmbeddedConfig {
    fn default() -> Self {
        EmbeddedConfig { max_mib: 1024 }
    }
}

/// Worker of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct WorkerConfig {
    /// Jobs run on this node. A change takes a restart.
    pub enabled: bool,
    /// Jobs that run at once.
    #[schemars(range(min = 1, max = 65_536))]
    pub concurrency_max: usize,
    /// Seconds that running jobs have to end when the node drains; then they are queued again.
    #[schemars(range(max = 86_400))]
    pub drain_timeout_secs: u64,
}

impl Default for WorkerConfig {
    fn default() -> Self {
        WorkerConfig {
            enabled: true,
            concurrency_max: 1024,
            drain_timeout_secs: 60,
        }
    }
}

impl WorkerConfig {
    /// Time that running jobs have to end.
    pub fn drain_timeout(&self) -> Duration {
        Duration::from_secs(self.drain_timeout_secs)
    }
}

/// Webhooks of jobs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct WebhooksConfig {
    /// Secret from which each account's signing key follows, at least 16 characters; usually `"${SOME_SECRET}"`.
    /// Without it one is made and kept in `state_dir`.
    #[serde(skip_serializing)]
    pub secret: Option<Secret>,
    /// Former secrets: messages are signed with them too, until receivers know the new one.
    #[serde(skip_serializing)]
    #[schemars(length(max = 8))]
    pub previous_secrets: Vec<Secret>,
    /// Takes receivers without TLS.
    pub allow_http: bool,
    /// Ports that receivers may have.
    #[schemars(length(min = 1, max = 64), inner(range(min = 1)))]
    pub ports: Vec<u16>,
    /// Networks, such as `10.1.0.0/16`, that webhooks may reach although they are private.
    #[schemars(length(max = 256))]
    pub allow_networks: Vec<String>,
    /// Longest duration of an attempt to deliver.
    #[schemars(range(min = 1, max = 60))]
    pub timeout_secs: u64,
    /// Messages of an account that wait; the oldest beyond are given up.
    #[schemars(range(min = 1, max = 100_000))]
    pub pending_max_per_account: usize,
}

impl Default for WebhooksConfig {
    fn default() -> Self {
        WebhooksConfig {
            secret: None,
            previous_secrets: Vec::new(),
            allow_http: false,
            ports: RECEIVER_PORTS.to_vec(),
            allow_networks: Vec::new(),
            timeout_secs: 15,
            pending_max_per_account: 10_000,
        }
    }
}

/// `replicate` of the configuration: choices of the Replicate API.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ReplicateConfig {
    /// Status of jobs that their deadline ended before they were started: `aborted` breaks client libraries.
    pub aborted_as: AbortedStatus,
    /// Shows the charge under `metrics.neurons`.
    pub show_neurons: bool,
}

/// Status of an aborted job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum AbortedStatus {
    /// As a canceled one.
    #[default]
    Canceled,
    /// As it is.
    Aborted,
}
