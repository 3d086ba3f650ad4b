//! Loading: from the file of a component to a snapshot of revisions in force.
//!
//! Serves no request. [`load`] makes one revision, [`host`] a whole configuration.

pub(crate) mod compile;
pub(crate) mod component_file;
pub(crate) mod component_type;
pub(crate) mod fixtures;
pub(crate) mod grants;
pub(crate) mod host;
pub(crate) mod load;
pub(crate) mod names;
pub(crate) mod resolve;
pub(crate) mod settings;
pub(crate) mod setup;
pub(crate) mod snapshot;
