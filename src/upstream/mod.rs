//! Protocols, health and permits of model servers.
//!
//! No client connection is known here. A [`ModelRuntime`] is one model as the pipeline uses it.
//!
//! ```text
//! model (runtime of each model)   gate (admission)   ranking (routing policy)   servers (shared permits)
//! backends, response (protocols)   client, pool, connection, target, credentials (HTTP towards servers)
//! http2, http2_stream (connections that requests share)   tunnel (connections that have left HTTP)
//! finetune_files (files of adapters)
//! health (checks)                 left_runs, left_work (runs to cancel)   discovery (endpoints found while running)
//! open_work, work_reports (work that goes on after its response)
//! ```

mod backends;
mod check_request;
mod client;
mod connect_timings;
mod connection;
mod credentials;
mod dial;
pub mod discovery;
mod finetune_files;
mod gate;
mod health;
mod http2;
mod http2_stream;
mod left_runs;
mod left_work;
mod model;
mod open_work;
mod outbound;
mod pool;
mod process_permits;
mod ranking;
mod response;
mod servers;
mod sync;
mod target;
mod tunnel;
mod url;
mod work_reports;

pub use backends::{AdapterForm, BACKENDS, Backend, UpstreamRequest, backend, path_segment};
pub use check_request::check_requested;
pub use client::{HttpClient, InterimObserver, SendError, UpstreamResponse};
pub use connect_timings::ConnectTimings;
pub use credentials::API_KEY_HEADER;
pub use dial::set_node_keepalive;
#[cfg(test)]
pub use gate::AdmissionGate;
pub use gate::{
    AdmissionSnapshot, ColdPlace, ColdSignal, ColdState, GateEntry, Permit, RetryPlan,
    WaitProgress, Waiter, slot_target,
};
pub use health::{PROBE_TICK, ServerPost, post, probe_ready, probe_round, read_json, read_page};
pub use left_runs::LeftWorkQueue;
pub use left_work::{cancel_left_work, cancel_waiting_work};
pub use model::{ModelRuntime, ModelRuntimes};
pub use open_work::ConnectionReport;
pub use outbound::{BodyRest, OutboundRequest};
pub use process_permits::{PermitReport, PermitSide, ProcessPermits};
pub use ranking::{
    PromptFingerprint, RANKING_TICK, RankingClass, RankingDemand, RankingRequest, RankingResult,
    SITES_TICK, SiteRanking, ranking_requested, request_ranking,
};
pub use response::{PushOutput, ReportedMetrics, ResponseError, ResponseTransformer};
pub use target::{Target, saturated};
pub use tunnel::{Duplex, Tunnel};
pub use url::{check_address, check_endpoint_url, check_host_and_port, check_url};
pub use work_reports::WorkReports;
