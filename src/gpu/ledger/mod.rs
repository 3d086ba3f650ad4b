//! Stores of the ledger. Not its meaning, which is the core's.

mod host;

pub use host::{HostLedger, LedgerStoreError, default_directory};
