//! The bodies of `GET /state` and `GET /accounts`. Field names are a contract with operators' tools.
//!
//! Values are gathered by `app`, from the other modules. Moments are RFC 3339 text.

use infergate_core::routing::Health;
use std::collections::BTreeMap;

use serde::Serialize;

use super::jobs::JobsState;
use super::reload::ReloadProblem;
use crate::plugin::PluginState;
use crate::telemetry::EventCounts;

/// Body of `/state`.
#[derive(Clone, Debug, Serialize)]
pub struct State {
    /// State of this process.
    pub node: NodeState,
    /// The configuration in use.
    pub config: ConfigState,
    /// Every configured model, in the file's order.
    pub models: Vec<ModelState>,
    /// Loaded plugins, in the file's order.
    pub plugins: Vec<PluginState>,
    /// Other nodes known.
    pub nodes: Vec<RemoteNodeState>,
    /// The event file.
    pub events: EventCounts,
    /// Durable jobs; absent where they are not configured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jobs: Option<JobsState>,
}

/// Body of `/accounts`.
#[derive(Clone, Debug, Serialize)]
pub struct AccountsState {
    /// Accounts, those first that have used most of today.
    pub accounts: Vec<AccountState>,
    /// Accounts beyond those.
    pub left_out: usize,
}

/// Use of one account.
#[derive(Clone, Debug, Serialize)]
pub struct AccountState {
    /// Its name.
    pub id: String,
    /// Neurons used since 00:00 UTC, by all nodes; null where they are not limited, and so not counted.
    pub neurons_used_today: Option<f64>,
    /// `accounts[].neurons_per_day`; null without a limit.
    pub neurons_per_day: Option<u64>,
    /// Its requests that wait for a permit here.
    pub waiting: u64,
}

/// State of this process.
#[derive(Clone, Debug, Serialize)]
pub struct NodeState {
    /// `node.id` of the configuration.
    pub id: String,
    /// `node.site` of the configuration.
    pub site: String,
    /// The process is draining: requests under way are finished, then it ends.
    pub draining: bool,
    /// Version of the program.
    pub version: String,
    /// Moment at which the process began.
    pub started_at: String,
}

/// The configuration in use.
#[derive(Clone, Debug, Serialize)]
pub struct ConfigState {
    /// Counts the configurations that were in use since the start.
    pub generation: u64,
    /// Moment at which it came into use.
    pub loaded_at: String,
    /// Reason not to use the newest file; null when it is in use.
    pub last_reload_error: Option<ReloadError>,
    /// Plugins of the newest file that are not in effect yet: models that need them keep what they had.
    pub compiling: Vec<String>,
}

/// A reload that was refused.
#[derive(Clone, Debug, Serialize)]
pub struct ReloadError {
    /// Moment of the refusal.
    pub at: String,
    /// All problems of the file.
    pub problems: Vec<ReloadProblem>,
}

/// Another node of the cluster, as this one sees it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RemoteNodeState {
    /// `node.id` of its configuration.
    pub id: String,
    /// Start of the node, milliseconds since 1970 by its own clock.
    pub generation: u64,
    /// `node.site` of its configuration.
    pub site: String,
    /// Address to which requests are forwarded.
    pub address: String,
    /// The node is draining: requests under way are finished, further ones are not accepted.
    pub draining: bool,
    /// No reports arrive from the node any more.
    pub gone: bool,
    /// Age of its latest report, milliseconds.
    pub age_ms: u64,
    /// Round trip to it, smoothed, milliseconds with three decimals; 0 when not measured.
    pub rtt_ms: f64,
    /// Models in its reports.
    pub models: usize,
    /// The node has shown its certificate; nothing is forwarded to it before.
    pub proven: bool,
    /// Version of the protocol between nodes that it speaks. A node of another version than this one is no
    /// member: nothing else is known of it.
    pub protocol: u32,
    /// In what it is configured otherwise than this one: `accounts`, `models`, `tariffs`.
    pub drift: Vec<&'static str>,
}

/// State of a model.
#[derive(Clone, Debug, Serialize)]
pub struct ModelState {
    /// The name clients use.
    pub id: String,
    /// Its queue.
    pub queue: QueueState,
    /// Its permits and waiting requests by class.
    pub classes: ClassesState,
    /// Its endpoints, those that drain after leaving the configuration included.
    pub endpoints: Vec<EndpointState>,
}

/// The queue of one model.
#[derive(Clone, Debug, Serialize)]
pub struct QueueState {
    /// Order of service.
    pub algorithm: String,
    /// Requests waiting.
    pub depth: u64,
    /// Number of requests that may wait, per account for the fair algorithms.
    pub capacity: u64,
    /// Expected wait of a request that comes now.
    pub expected_wait_ms: u64,
    /// Waiting requests by account, those with any.
    pub accounts: BTreeMap<String, u64>,
}

/// Classes that share the permits of one model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ClassesState {
    /// Requests whose clients wait for the response.
    pub live: ClassState,
    /// Runs of durable jobs.
    pub durable: ClassState,
    /// The latest permit; null before the first.
    pub last_turn: Option<TurnState>,
}

/// One class at one model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ClassState {
    /// Permits in use.
    pub used: u32,
    /// Permits that it may hold at once, of those at usable endpoints.
    pub max: u32,
    /// Requests waiting.
    pub waiting: u64,
}

/// Class that got a permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct TurnState {
    /// `live` or `durable`.
    pub class: &'static str,
    /// `only-waiting`, `less-service`, `starvation-bound` or `cap-reached`.
    pub reason: &'static str,
}

/// State of an endpoint.
#[derive(Clone, Debug, Serialize)]
pub struct EndpointState {
    /// Its URL.
    pub url: String,
    /// Origin of the endpoint: `config`, or the source that found it: `file`, `dns`, `consul`,
    /// `kubernetes`. Null for one that drains.
    pub source: Option<&'static str>,
    /// Health of the endpoint.
    pub health: Health,
    /// State of a slot that is not ready: `cold`, `loading`, `asleep`, `failed` and the like.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slot: Option<&'static str>,
    /// Its permits.
    pub permits: PermitState,
    /// End of its back-off or pause; null when it has none.
    pub ejected_until: Option<String>,
    /// Since when its health is what it is; null for one that drains.
    pub since: Option<String>,
    /// Its latest failure, of a request or a health check; null when it has had none.
    pub last_error: Option<LastError>,
    /// The last 20 KiB of the logs that a server shows while it can serve nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub setup_logs: Option<String>,
    /// Work after its responses, of a server that reports its end (`loopback`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub work: Option<WorkState>,
}

/// Work at a server after its responses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct WorkState {
    /// The stream of its reports is open.
    pub reports: bool,
    /// Permits held for it.
    pub detached: u64,
    /// Works of which no report had come by the end of their lease.
    pub lost_reports: u64,
}

/// A failure of an endpoint.
#[derive(Clone, Debug, Serialize)]
pub struct LastError {
    /// `refused`, `reset`, `timeout`, `status 503` and the like; `health check: …` of a check.
    pub cause: String,
    /// Moment of the failure.
    pub at: String,
}

/// Permits of one endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PermitState {
    /// In use, by this model.
    pub used: u32,
    /// In use at the server, by all models that share its permits; absent where that is the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_used: Option<u32>,
    /// Number of permits.
    pub limit: u32,
}
