//! Semantic check: rules that the schema cannot express, as they take two keys or a second look.
//!
//! Checking does not stop at the first finding and does not need the file to be well-formed
//! elsewhere. Values of the wrong type are skipped (the structural check names them), and absent
//! keys have their defaults. Warnings do not keep a file from being used.

mod accounts;
mod bases;
mod billing;
mod client_profiles;
mod cluster;
mod deployments;
mod discovery;
mod endpoints;
mod fallbacks;
mod files;
mod finetunes;
mod gpu;
mod jobs;
mod limits;
mod listen;
mod models;
mod named_tasks;
mod names;
mod plugins;
mod processes;
mod run;

pub(super) use run::check;
