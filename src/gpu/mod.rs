//! Devices of this host, leases on their memory, files of models, and processes of models.
//!
//! Decides nothing: what fits and who is next is `infergate_core::vram`'s. A verb of the ledger is one change of a file
//! under a kernel lock. Called by the commands `lease`, `gpu`, `keep` and `check`.

mod config;
mod device;
mod file_state;
mod holder;
mod host_check;
mod job;
mod launch;
mod lease_list;
mod ledger;
mod lost;
mod managed;
mod measured;
mod model_files;
mod monitor;
pub mod presets;
pub mod process;
mod processes;
mod settings_digest;

pub use config::{
    CgroupChoice, GpuConfig, LedgerChoice, PortRange, ReportsConfig, SwapConfig, SwapPolicy,
    WhenExiting,
};
pub use device::{DeviceSource, NvmlDevices, SimulatedCards};
pub use file_state::file_state;
pub use host_check::{HostCheck, check_host};
pub use job::{GrantedJob, JobCommand, JobError, acquire};
pub use launch::{Launch, LaunchError, listen_scope, preset_of};
pub use lease_list::{
    LeaseList, ListedHolder, ReleaseOutcome, UnseenHolder, model_of, release_leases,
};
pub use ledger::{HostLedger, LedgerStoreError, default_directory};
pub use managed::{ManagedEstimate, estimate_managed, managed_model};
pub use measured::{MeasuredSettings, MeasuredStore};
pub use model_files::{FoundModel, ModelFileError, files_digest, header_of_file, read_model};
pub use monitor::{HostMonitor, HostReading, ReadDevice};
pub use settings_digest::settings_digest;
