//! Store of jobs in the process: the table in memory, its rows in a file of `state_dir`.
//!
//! Not shared with another process. A single thread owns the table and writes; one reads what is committed. Calls that
//! come while the disk syncs share the next transaction. A transaction that fails undoes what its calls did: the
//! table is read again from the file.

mod command;
mod database;
mod deployment_rows;
mod files;
mod handed_over;
mod handle;
mod handover;
#[cfg(test)]
mod handover_tests;
mod open_store;
mod owner;
mod predecessor;
mod reader;
mod schema;
mod shared;
#[cfg(test)]
mod tests;
mod wal;
mod webhook_rows;
mod wire;

pub use handle::EmbeddedStore;
pub use shared::EmbeddedSettings;
