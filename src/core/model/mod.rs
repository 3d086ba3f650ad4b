//! Models, accounts, and the catalog that joins them.
//!
//! Immutable while running; a reload builds a new [`Catalog`] and swaps it whole. Each struct here is also the shape of its part of the configuration file.

mod account;
mod backend;
mod base;
mod catalog;
mod catalog_entry;
mod chat;
mod client_profile;
mod credentials;
mod deployment;
mod discovery;
mod endpoint_spec;
mod finetune;
mod jobs;
mod loopback;
mod lora;
mod named_task;
mod parameters;
mod process;
mod shared_endpoints;
mod spec;
mod tariff;
mod task_limit;

pub use account::{AccountSpec, KeyHash};
pub use backend::{BackendName, Payload};
pub use base::BaseSpec;
pub use catalog::{Access, Catalog};
pub use catalog_entry::CatalogEntry;
pub use chat::{ChatSpec, ChatTemplate, Thinking};
pub use client_profile::{CLIENT_PROFILES_MAX, ClientProfile, ClientProfiles};
pub use credentials::{AuthForm, HealthCheckSpec, Secret};
pub use deployment::{DeploymentSpec, HardwareSpec, INSTANCES_MAX};
pub use discovery::{
    ConsulSpec, DiscoveredEndpoint, DiscoveredEndpoints, DiscoverySource, DiscoverySpec,
    ENDPOINTS_MAX, KubernetesSpec, SlicePort, same_server,
};
pub use endpoint_spec::{
    CaFile, EndpointSpec, PermitScope, UNIX_PATH_BYTES_MAX, UNIX_SCHEME, UpstreamHttp2, is_slot,
    server_of, slot_url, unix_socket_of,
};
pub use finetune::FinetuneSpec;
pub use jobs::{
    AccountJobLimits, FairBy, FlowMode, JobSpec, ModerationFailure, ModerationSpec, WhenQuotaUsed,
};
pub use loopback::LoopbackSpec;
pub use lora::{LoraChoice, choose_lora};
pub use named_task::{CANDIDATES_MAX, Defaults, KeepLoaded, NamedTask};
pub use parameters::{Parameters, RESERVED};
pub use process::{
    AdapterSpec, ListenScope, LoadingState, OverLease, ProcessLimits, ProcessSpec, ReplicasSpec,
    SleepLevel, SplitChoice, UnknownVram, UpdateChoice, VramSpec, WarmupSpec,
};
pub use spec::{Algorithm, ModelInAnswers, ModelSpec, QueueSpec, Task, WhenUnhealthy};
pub use tariff::{
    ChargeCut, MetricMode, ModelPlugins, TARIFF_TEXT_BYTES_MAX, Tariff, Trust, read_tariff_text,
    tariff_text,
};
pub use task_limit::{LIMITED_ID_BYTES_MAX, counted_task};
