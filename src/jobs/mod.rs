//! Durable jobs: work that outlives its request. Stores, worker, notifications.
//!
//! Not a second pipeline: a job is a stored request, and its run is the request pipeline's with another receiver.
//! Callers submit, read, list and cancel through [`Jobs`]; nothing else of the module is theirs.

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
mod kept_ends;
mod key;
mod live;
mod moderation;
mod object;
mod operator;
mod output;
mod readiness;
mod receiver;
mod request;
mod run;
mod run_body;
mod service;
mod signals;
mod store;
mod store_clock;
mod submit_request;
#[cfg(test)]
mod table_store;
mod webhook;
mod weights;
mod worker;

pub use catalog::CatalogModel;
pub use config::{JobChoices, JobsConfig, ReplicateConfig};
pub use deployments::Deployment;
pub use embedded::{EmbeddedSettings, EmbeddedStore};
pub use events::EventPlace;
pub use live::{EventPlaceId, LiveEvent};
pub use object::{ShownStatus, replicate_object};
pub use operator::RequeueError;
pub use request::{JobResult, StoredRequest};
pub use service::Jobs;
pub use signals::JobSignals;
pub use store::{
    EndRecord, EndRenderer, IdempotencyKey, JobListing, JobStore, NewStoredJob, PendingWebhook,
    StoreStats, StoredEnd, StoredJob,
};
pub use store_clock::{StoreClock, rfc3339_micros};
pub use submit_request::SubmitRequest;
