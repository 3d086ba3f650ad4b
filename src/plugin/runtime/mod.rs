//! Runtime of plugins: the engine, and revisions with the instances that answer their calls.
//!
//! Knows a component by its bytes and exports, not by the role it plays for a model.

pub(crate) mod background;
pub(crate) mod bindings;
pub(crate) mod breaker;
pub(crate) mod call;
pub(crate) mod call_stats;
pub(crate) mod capture;
pub(crate) mod code_cache;
pub(crate) mod context;
pub(crate) mod engine;
pub(crate) mod grants;
pub(crate) mod identity;
pub(crate) mod imports;
pub(crate) mod instance_pool;
pub(crate) mod revision;
pub(crate) mod store;
pub(crate) mod tariff_table;
pub(crate) mod ticker;
