//! The whole configuration file as types: what stands in it, with every default.
//!
//! The file is neither read nor checked here. Accounts and models are the core's own structs; no
//! second struct repeats them.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use infergate_core::model::{
    AccountSpec, ClientProfile, DeploymentSpec, HardwareSpec, ModelSpec, NamedTask,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::downstream::{ClientListenerConfig, ClientTls};
use crate::files::FilesConfig;
use crate::gpu::GpuConfig;
use crate::jobs::{JobsConfig, ReplicateConfig};
use crate::peer::{Cluster, PeersListener};
use crate::plugin::PluginSpec;
use crate::state::{Cors, Headers, Limits, Readiness, Timeouts};
use crate::telemetry::EventsConfig;
use crate::telemetry::log::LogConfig;
use crate::telemetry::otlp::TracingConfig;

/// The configuration of one Infergate node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "Infergate configuration")]
pub struct Config {
    /// Addresses at which the gateway listens.
    pub listen: Listen,
    /// Name and site of this node.
    #[serde(default)]
    pub node: NodeConfig,
    /// Discovery among the nodes of a cluster. Without it this node knows no other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<Cluster>,
    /// Rule for requests without a key: refused, or served as the account `anonymous`.
    #[serde(default)]
    pub anonymous: Anonymous,
    /// Accounts that may call, known by the hash of a key.
    #[serde(default)]
    pub accounts: Vec<AccountSpec>,
    /// Proxies whose `x-forwarded-for` tells the client's address: networks such as `10.0.0.0/8`, addresses, and `unix` for
    /// whoever connects over a socket in the file system. The header of anybody else is ignored.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1024))]
    pub trusted_proxies: Vec<Arc<str>>,
    /// Sizes and counts a client cannot exceed.
    #[serde(default)]
    pub limits: Limits,
    /// Longest duration of a request, a silence, a connection and a drain.
    #[serde(default)]
    pub timeouts: Timeouts,
    /// Headers that pass between clients and model servers, besides those that always do.
    #[serde(default)]
    pub headers: Headers,
    /// Web pages that may call from browsers.
    #[serde(default)]
    pub cors: Cors,
    /// Conditions under which this node is ready for requests.
    #[serde(default)]
    pub readiness: Readiness,
    /// Models that requests may name.
    #[serde(default)]
    pub models: Vec<ModelSpec>,
    /// Names that clients use as those of models, with the models that may serve them.
    #[serde(default)]
    #[schemars(length(max = 1024))]
    pub tasks: Vec<NamedTask>,
    /// Profiles of clients, by the `x_client_id` that requests carry: model, priority, parameters and times. Listeners
    /// stand under `listen.clients`.
    #[serde(default)]
    #[schemars(length(max = 256))]
    pub clients: Vec<ClientProfile>,
    /// Devices of this host and the model processes on them, for models with a `process`; defaults when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<GpuConfig>,
    /// Durable jobs: predictions that outlive their request. Without it their routes answer 404. Adding or removing
    /// it takes a restart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jobs: Option<JobsConfig>,
    /// Names under which models have queues of their own. Accounts may make further ones by API.
    #[serde(default)]
    #[schemars(length(max = 4096))]
    pub deployments: Vec<DeploymentSpec>,
    /// Hardware that deployments name; `cpu` alone when empty. Nothing is started on it here.
    #[serde(default)]
    #[schemars(length(max = 256))]
    pub hardware: Vec<HardwareSpec>,
    /// Files of accounts: uploads, and large inputs and outputs of jobs. Kept only beside `jobs`.
    #[serde(default)]
    pub files: FilesConfig,
    /// Choices of the Replicate API.
    #[serde(default)]
    pub replicate: ReplicateConfig,
    /// Scheme and host under which clients reach the gateway, for URLs in objects; the client's scheme and the request's
    /// `Host` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub public_url: Option<Arc<str>>,
    /// Wasm components that decide about models: what input they take, what they cost, where they
    /// go. Models name them under `plugins`.
    #[serde(default)]
    #[schemars(length(max = 256))]
    pub plugins: Vec<PluginSpec>,
    /// The record of every request.
    #[serde(default)]
    pub events: EventsConfig,
    /// Distributed traces of requests, sent to an OpenTelemetry collector.
    #[serde(default)]
    pub tracing: TracingConfig,
    /// Worker threads; 0 starts one per core.
    #[serde(default)]
    #[schemars(range(max = 1024))]
    pub threads: u32,
    /// Diagnostics on standard error.
    #[serde(default)]
    pub log: LogConfig,
    /// Directory for what survives a restart: compiled plugins, the neurons used today, the flags of
    /// `/config/runtime`, and calls of plugins that were captured. Only its owner may read it; it is
    /// made where it is needed, and one process has it at a time.
    #[serde(default = "Config::default_state_dir")]
    #[schemars(length(min = 1))]
    pub state_dir: PathBuf,
}

impl Config {
    fn default_state_dir() -> PathBuf {
        PathBuf::from("./state")
    }

    /// Returns true when other nodes know this one by its name and site.
    pub fn is_in_fleet(&self) -> bool {
        self.cluster.is_some() || self.listen.peers.is_some()
    }
}

/// Addresses at which the gateway listens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Listen {
    /// Listeners for clients; at least one.
    #[schemars(length(min = 1, max = 64))]
    pub clients: Vec<ClientListenerConfig>,
    /// The listener for operators: /metrics, /healthz, /readyz, /state, /config, /explain, /jobs, /reload.
    #[serde(default)]
    pub admin: AdminListener,
    /// The listener for other nodes: HTTP/1.1 over TLS, where both sides show a certificate. None is
    /// let in without it, and none is asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peers: Option<PeersListener>,
    /// The listener for containers of models: downloads of input files by signed URLs, over plain HTTP. Input files
    /// above 1 MiB need it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub callbacks: Option<CallbacksListener>,
}

/// The listener for containers of models: plain HTTP, signed URLs alone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CallbacksListener {
    /// IP address and port; keep it on a private address.
    #[schemars(extend("format" = "socket-address"))]
    pub address: SocketAddr,
    /// Scheme, host and port under which containers reach it, such as `http://10.0.0.1:8085`. A change takes a restart.
    #[schemars(length(min = 1))]
    pub url: Arc<str>,
}

/// The listener for operators: HTTP without keys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AdminListener {
    /// IP address and port; keep it on a loopback or private address.
    #[schemars(extend("format" = "socket-address"))]
    pub address: SocketAddr,
    /// Certificates; without them operators speak plain text. With `client_ca` only operators with a certificate of it
    /// are served.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<ClientTls>,
}

impl Default for AdminListener {
    fn default() -> Self {
        AdminListener {
            address: SocketAddr::from((Ipv4Addr::LOCALHOST, 9090)),
            tls: None,
        }
    }
}

/// Name and site of this node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct NodeConfig {
    /// The node's name in events and `/state`; unique among nodes. With `cluster` or `listen.peers` a
    /// change takes a restart.
    pub id: Arc<str>,
    /// The place the node stands in; nodes of one site are near each other. With `cluster` or
    /// `listen.peers` a change takes a restart.
    pub site: Arc<str>,
}

impl Default for NodeConfig {
    fn default() -> Self {
        NodeConfig {
            id: "node".into(),
            site: "local".into(),
        }
    }
}

/// May a request without a key be served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Anonymous {
    /// The request gets 401.
    #[default]
    Deny,
    /// The request is served as the account `anonymous`.
    Allow,
}
