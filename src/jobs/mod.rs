//! Durable jobs: work that outlives its request. Stores, worker, notifications.
//!
//! Not a second pipeline: a job is a stored request, and its run is the request pipeline's with another receiver.
//! Callers submit, read, list and cancel through [`Jobs`]; nothing else of the module is theirs.

mod attempts;
mod catalog;
mod config;
#[cfg(test)]
mod conformance;
mod deployment_changes;
mod deployments;
mod embedded;
mod ends;
mod events;
mod file_values;
mod following;
mod former_submit;
mod input_files;
mod kept_ends;
mod key;
mod live;
mod moderation;
mod object;
mod operator;
mod output;
mod queue_history;
mod readiness;
mod receiver;
mod reconcile;
mod request;
mod run;
mod run_body;
mod run_records;
mod run_writes;
mod service;
mod signals;
mod store;
mod store_clock;
mod submit;
mod submit_request;
#[cfg(test)]
mod table_store;
mod webhook;
mod weights;
mod worker;

pub use attempts::JobAttempt;
pub use catalog::CatalogModel;
pub use config::{JobChoices, JobsConfig, ReplicateConfig};
pub use deployments::Deployment;
pub use embedded::{EmbeddedSettings, EmbeddedStore};
pub use events::EventPlace;
pub use former_submit::{RepeatedCreate, RepeatedSubmit};
pub use live::{EventPlaceId, LiveEvent, RunSoFar};
pub use object::{ShownStatus, replicate_object};
pub use operator::RequeueError;
pub use queue_history::QueueSnapshot;
pub use request::{JobResult, StoredRequest, stream_token};
pub use service::Jobs;
pub use signals::JobSignals;
pub use store::{
    EndRecord, EndRenderer, IdempotencyKey, JobListing, JobStore, NewStoredJob, PendingWebhook,
    SettlementResult, StoreStats, StoredEnd, StoredJob,
};
pub use store_clock::{StoreClock, rfc3339_micros};
pub use submit_request::SubmitRequest;
