//! Processes of models: started, watched, ended and found again.
//!
//! Decides nothing about models and devices. Every instance, one life of a slot, has a keeper: this binary run a second
//! time, whose connection to the gateway is the life line of all its processes. Linux only.
//!
//! ```text
//! gateway                        keeper                          instance
//! RunningInstance ── socket ──── infergate keep ── pipe, group ── command ── workers
//!                                └ <run>/<instance>.sock, .json
//! ```

mod cgroup;
mod command;
mod identity;
mod instance;
mod keeper;
mod logs;
mod ownership;
mod ports;
mod protocol;
mod readiness;
mod record;
mod sweep;

pub use crate::gpu::processes::ProcessId;
pub use cgroup::{
    create as create_cgroup, delegated_group, own_group, prepare_cgroup_entry,
    remove as remove_cgroup,
};
pub use command::{
    CommandError, EnvironmentSources, PlaceholderValues, environment, expand_command,
};
pub use identity::{InstanceId, InstanceIdError};
pub use instance::{InstanceError, InstanceEvent, RunningInstance};
pub use keeper::keep;
pub use logs::{LogBounds, LogPiece, LogReader, log_directory, log_file, remove_former};
pub use ownership::{ListenScope, PortOwnership, port_ownership};
pub use ports::{NoFreePort, PORT_TRIES_MAX, PortPool, ReservedPort, is_address_in_use};
pub use protocol::{ExitReport, InstanceSpec, ProcessLimits};
pub use readiness::probe_pause;
pub use record::{
    InstanceRecord, has_keeper, read_record, read_records, run_directory, server_socket,
};
pub use sweep::{OrphanDecision, SweepReport, sweep};
