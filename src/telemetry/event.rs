//! Inference event: one request, its result, durations and usage.
//!
//! Neither written nor formatted where it is made: the pipeline fills shared names and numbers, and
//! the writer thread formats a line of JSON (`line.rs`). Durations are kept in microseconds and printed as
//! whole milliseconds. The field names of the line are a contract, see `docs/events.md`.

use std::net::IpAddr;
use std::sync::Arc;

use infergate_core::api::ApiDialect;
use infergate_core::trace_context::TraceId;
use infergate_core::{AccountId, ModelId};
use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};

mod line;

/// [`InferenceEvent::priced_by`] of the built-in formula.
pub const BUILTIN: &str = "builtin";

/// Outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum RequestOutcome {
    /// The whole response was sent, also to a client that closed right after the end mark.
    Completed,
    /// Refused by this gateway; no model server began to work.
    Refused,
    /// The client left before the end.
    CutByClient,
    /// The model server broke off after its response had begun.
    CutByBackend,
    /// The deadline passed.
    CutByDeadline,
    /// No model server answered, or this gateway failed.
    Failed,
}

impl RequestOutcome {
    /// Every outcome, in the order of its metric series.
    pub const ALL: [RequestOutcome; 6] = [
        RequestOutcome::Completed,
        RequestOutcome::Refused,
        RequestOutcome::CutByClient,
        RequestOutcome::CutByBackend,
        RequestOutcome::CutByDeadline,
        RequestOutcome::Failed,
    ];

    /// The outcome's name in events and metric labels.
    pub const fn name(self) -> &'static str {
        match self {
            RequestOutcome::Completed => "completed",
            RequestOutcome::Refused => "refused",
            RequestOutcome::CutByClient => "cut-by-client",
            RequestOutcome::CutByBackend => "cut-by-backend",
            RequestOutcome::CutByDeadline => "cut-by-deadline",
            RequestOutcome::Failed => "failed",
        }
    }
}

/// Source of the numbers in `metrics`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum MetricsSource {
    /// Reported by the model server.
    Reported,
    /// Counted by this gateway, because the model server reported none.
    Estimated,
    /// Usage is unknown.
    #[default]
    None,
}

impl MetricsSource {
    /// The source's name in events.
    pub const fn name(self) -> &'static str {
        match self {
            MetricsSource::Reported => "reported",
            MetricsSource::Estimated => "estimated",
            MetricsSource::None => "none",
        }
    }
}

/// Tokens a request used, as far as known; what is unknown is left out of the line. Apart from the
/// other metrics, because nearly every request has these and no other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenUsage {
    /// Prompt tokens.
    pub input_tokens: Option<u64>,
    /// Generated tokens.
    pub output_tokens: Option<u64>,
    /// Prompt tokens the model server had in its cache.
    pub cached_tokens: Option<u64>,
}

/// Marks of a request, as the source's bit field has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct EventFlags {
    /// The answer was a stream of events.
    pub streamed: bool,
    /// The model is marked as beta (`models[].catalog.beta`).
    pub beta: bool,
    /// The endpoint stands outside the site.
    pub external_endpoint: bool,
    /// The request waited in this site's queue.
    pub queued_in_site: bool,
    /// Arrived over a socket in the file system.
    pub unix_socket: bool,
    /// The billing plugin failed, and the built-in formula or an earlier revision priced it.
    pub billing_fallback: bool,
}

/// Reported and estimated value of one metric, of a model whose metrics are compared.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// The metric's name.
    pub metric: Arc<str>,
    /// The model server's figure, when it gave one.
    pub reported: Option<f64>,
    /// The gateway's, when it has one.
    pub estimated: Option<f64>,
    /// True when they agree; none when one of them is missing.
    pub matches: Option<bool>,
}

/// Name of a plugin's revision in events, with its text there. Shared by all requests that it takes part in.
#[derive(Debug, PartialEq, Eq)]
pub struct PluginIdentity {
    /// Its name in the configuration.
    pub name: Arc<str>,
    /// Digest of its code, 64 hex digits.
    pub sha256: Arc<str>,
    /// Digest of its settings, 64 hex digits.
    pub config: Arc<str>,
    /// Begin of its object in an event's line, up to the text of `hook`.
    members: Box<str>,
}

impl PluginIdentity {
    /// Identity of a revision, with its text prepared.
    pub fn new(name: Arc<str>, sha256: Arc<str>, config: Arc<str>) -> PluginIdentity {
        let members = PluginIdentity::render_members(&name, &sha256, &config);
        PluginIdentity {
            name,
            sha256,
            config,
            members,
        }
    }
}

/// A plugin that took part in a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginUse {
    /// Revision whose code ran.
    pub plugin: Arc<PluginIdentity>,
    /// Hook that ran.
    pub hook: &'static str,
}

impl Serialize for PluginUse {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut object = to.serialize_struct("PluginUse", 4)?;
        object.serialize_field("name", &self.plugin.name)?;
        object.serialize_field("sha256", &self.plugin.sha256)?;
        object.serialize_field("config", &self.plugin.config)?;
        object.serialize_field("hook", self.hook)?;
        object.end()
    }
}

/// Record of one request, from the end of its head to its last byte.
#[derive(Clone, Debug)]
pub struct InferenceEvent {
    /// End of the request, microseconds on the process's [`Clock`](super::Clock).
    pub ended_us: u64,
    /// The id the client got as `x-request-id`.
    pub request_id: Arc<str>,
    /// Account of the key; none when no key was accepted.
    pub account_id: Option<AccountId>,
    /// Address of the client: of its connection, or what a balancer or a trusted proxy tells. None of jobs.
    pub client_address: Option<IpAddr>,
    /// The end user named by `x_client_id`.
    pub client_id: Option<Arc<str>>,
    /// The client's own name for the request, from `x-client-request-id`.
    pub client_request_id: Option<Arc<str>>,
    /// Model that served the request, or was tried last; none when unknown. The price follows this
    /// model.
    pub model_id: Option<ModelId>,
    /// Model named by the client, when a fallback model took its place.
    pub asked_model_id: Option<ModelId>,
    /// The dialect it was asked in.
    pub dialect: ApiDialect,
    /// `node.id` of the configuration.
    pub node: Arc<str>,
    /// `node.site` of the configuration.
    pub site: Arc<str>,
    /// The HTTP status sent, 0 when none.
    pub status: u16,
    /// Our code, also for a model server's own 4xx or 5xx passed on.
    pub error_code: Option<u32>,
    /// Reason for the refusal, from the refusal table: also a metric label, so never made at run
    /// time.
    pub reason: Option<&'static str>,
    /// Outcome of the request.
    pub outcome: RequestOutcome,
    /// The request waited for a permit.
    pub queued: bool,
    /// From the end of its head to the last byte out.
    pub request_time_us: u64,
    /// Waiting for a permit.
    pub queuing_time_us: u64,
    /// With the permit held.
    pub inference_time_us: u64,
    /// From the end of its head to the first byte of the response's body, none when there was none.
    pub time_to_first_token_us: Option<u64>,
    /// Usage in tokens.
    pub metrics: TokenUsage,
    /// Other usage by metric name; the line shows it beside the tokens. A name of [`TokenUsage`]
    /// does not belong here.
    pub extra_metrics: Vec<(Arc<str>, f64)>,
    /// Source of the usage.
    pub metrics_source: MetricsSource,
    /// Reported against estimated, of models with `metrics_trust: compare`; empty for the others.
    pub comparison: Vec<Comparison>,
    /// Its price, none until priced.
    pub neurons: Option<f64>,
    /// Source of the price: a plugin's name, or [`BUILTIN`]. None until priced.
    pub priced_by: Option<Arc<str>>,
    /// Model servers tried.
    pub attempts: u32,
    /// URL of the endpoint that answered, or was tried last.
    pub upstream: Option<Arc<str>>,
    /// Sites and nodes visited, `site/node`, in order.
    pub path: Arc<[Arc<str>]>,
    /// Requests already waiting for the model when this one came.
    pub local_queue_size: u32,
    /// The site it entered by.
    pub source_site: Arc<str>,
    /// Life of the model's slot that answered, or was tried last; none of an endpoint by URL.
    pub container_id: Option<Arc<str>>,
    /// Wait for the model to be loaded; none where it was ready.
    pub load_wait_us: Option<u64>,
    /// Marks.
    pub flags: EventFlags,
    /// Kind of caller: `rest` for the HTTP dialects, `job` for jobs.
    pub request_source: &'static str,
    /// Plugins that took part.
    pub plugins: Vec<PluginUse>,
    /// Its distributed trace, where tracing is configured and it has one.
    pub trace_id: Option<TraceId>,
    /// The durable job that it was a run of.
    pub job: Option<Box<JobFacts>>,
}

/// Facts of a durable job in the event of its end. The members of the line have the names of the fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobFacts {
    /// Id of the job.
    pub job_id: Arc<str>,
    /// Kind of the job.
    pub job_kind: &'static str,
    /// State in which it ended.
    pub job_status: &'static str,
    /// Takes so far; 0 of a job that was never taken.
    pub epoch: u32,
    /// Attempts that counted.
    pub attempts_counted: u32,
    /// Class of its queue.
    pub class: &'static str,
    /// Key of its queue.
    pub deployable: Arc<str>,
    /// Moment of the submit, RFC 3339.
    pub created_at: String,
}

/// An event for tests: a request that was refused before anything was known about it.
#[cfg(test)]
pub(crate) fn sample_event(request_id: &str) -> InferenceEvent {
    InferenceEvent {
        ended_us: 0,
        request_id: request_id.into(),
        account_id: None,
        client_address: None,
        client_id: None,
        client_request_id: None,
        model_id: None,
        asked_model_id: None,
        dialect: ApiDialect::OpenAi,
        node: "a1".into(),
        site: "fra".into(),
        status: 401,
        error_code: Some(10000),
        reason: Some("invalid_api_key"),
        outcome: RequestOutcome::Refused,
        queued: false,
        request_time_us: 900,
        queuing_time_us: 0,
        inference_time_us: 0,
        time_to_first_token_us: None,
        metrics: TokenUsage::default(),
        extra_metrics: Vec::new(),
        metrics_source: MetricsSource::None,
        comparison: Vec::new(),
        neurons: None,
        priced_by: None,
        attempts: 0,
        upstream: None,
        path: Arc::from([Arc::from("fra/a1")]),
        local_queue_size: 0,
        source_site: "fra".into(),
        container_id: None,
        load_wait_us: None,
        flags: EventFlags::default(),
        request_source: "rest",
        plugins: Vec::new(),
        trace_id: None,
        job: None,
    }
}

#[cfg(test)]
mod tests;
