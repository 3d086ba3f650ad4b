//! Store of jobs in the process: the table in memory, its rows in a file of `state_dir`.
//!
//! Not shared with another process. One thread owns the table and writes; one reads what is committed. Calls that
//! come while the disk syncs share the next transaction. A transaction that fails undoes what its calls did: the
//! table is read again from the file.

mod command;
mod database;
mod deployment_rows;
mod files;
mod handle;
mod handover;
mod open_store;
mod owner;
mod reader;
mod schema;
mod shared;
#[cfg(test)]
mod tests;
mod wal;
mod wire;

pub use handle::EmbeddedStore;
pub use shared::EmbeddedSettings;
