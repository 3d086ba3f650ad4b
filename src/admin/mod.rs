//! The admin listener: health, readiness, metrics, state, traces, reload and runtime flags, over HTTP,
//! plain or under TLS.
//!
//! No other module is known here: values to show come from [`Insight`], reloads go to a [`ReloadHandle`](reload::ReloadHandle),
//! changes to [`Controls`], questions about jobs to [`JobControls`], those about devices to [`GpuControls`]. `app`
//! implements all five. At most 4 KiB of a request body are kept, for the one path that reads one. The listener has no access control of its own, so its default address is loopback.

mod capture;
mod controls;
mod cross_site;
mod dashboard;
mod gpu;
mod insight;
mod jobs;
mod listener;
mod log_stream;
mod reload;
mod response;
mod state;
mod tls_stream;

pub use capture::{CaptureError, CaptureReport};
pub use controls::{Controls, FlagChanges};
pub use gpu::{DeviceOrder, GpuControlError, GpuControls, GpuOrder, OrderOutcome};
pub use insight::Insight;
pub use jobs::{
    DutyReport, JobAttempts, JobControlError, JobControls, JobFilter, JobPage, JobRecord,
    JobRunReport, JobSummary, JobTransition, JobsState, QueueReport, SnapshotReport, StoreReport,
    StoreState, WebhookReport, WorkerReport,
};
pub use listener::Admin;
pub use log_stream::{LogFollower, LogNews};
pub use reload::{ReloadProblem, ReloadReport, ReloadRequest, reload_channel};
pub use state::{
    AccountState, AccountsState, ClassState, ClassesState, ConfigState, EndpointState, LastError,
    ModelState, NodeState, PermitState, QueueState, ReloadError, RemoteNodeState, State, TurnState,
    WorkState,
};
pub use tls_stream::AdminTlsStream;
