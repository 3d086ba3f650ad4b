//! Records of the ledger: leases, their holders, and claims.
//!
//! Not the verbs, which `ledger.rs` has. The names of the fields are those of the ledger's file.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::device::DeviceId;
use super::fit::{PlacementRequest, Split};
use super::host_time::HostTime;

macro_rules! ledger_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(Arc<str>);

        impl From<String> for $name {
            fn from(text: String) -> Self {
                $name(text.into())
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

// Three identifiers with one shape: a macro keeps them alike and apart.
ledger_id! {
    /// Identity of a lease, as `l-4690-0`: the generation of its grant and its place in the group.
    LeaseId
}
ledger_id! {
    /// Identity of the leases that were granted together, as `g-4690`.
    GroupId
}
ledger_id! {
    /// Identity of a claim, as `c-4690`.
    ClaimId
}

/// Kind of a holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HolderKind {
    /// A slot of a model of some gateway.
    Slot,
    /// A command run by `infergate lease`.
    Job,
}

/// Process that a lease or a claim belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// Kind.
    pub kind: HolderKind,
    /// Name for people.
    pub name: Arc<str>,
    /// Node or host it runs on.
    pub node: Arc<str>,
    /// Process.
    pub pid: u32,
    /// Start of the process in clock ticks since boot: a pid is used again, a pair of both is not.
    pub start: u64,
    /// Inode of the namespace that the pid counts in; `None` where it is not known.
    #[serde(default)]
    pub pid_namespace: Option<u64>,
    /// User.
    pub uid: u32,
}

/// State of the process of a holder, as the reader of the ledger sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HolderLife {
    /// The process is there.
    Alive,
    /// The process is gone, or its pid belongs to a later one.
    Dead,
    /// The pid counts in another namespace, or its process cannot be read.
    Unknown,
}

/// State of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LeaseState {
    /// Promised; the use of its holder still rises.
    Granted,
    /// In use at its height; of a command from the moment it has read it back.
    Held,
    /// The processes are gone and their memory is awaited.
    Reclaiming,
}

/// Memory of one device, promised to one holder. Counts in full until it is released.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// Identity.
    pub id: LeaseId,
    /// Leases that were granted with it.
    pub group: GroupId,
    /// Device.
    pub device: DeviceId,
    /// Memory, MiB.
    pub mib: u64,
    /// State.
    pub state: LeaseState,
    /// Generation of the ledger at the grant.
    pub epoch: u64,
    /// Memory of the device that belonged to no holder at the grant, MiB.
    #[serde(default)]
    pub outside_mib: u64,
    /// Holder.
    pub holder: Holder,
    /// Urgency: the smaller, the more urgent.
    pub priority: u8,
    /// Moment of the grant.
    pub granted_ms: HostTime,
    /// Moment at which its holder was found to be gone; `None` while it is not.
    #[serde(default)]
    pub reclaiming_since_ms: Option<HostTime>,
    /// State before that moment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_before: Option<LeaseState>,
}

/// Leases of one grant, and the epoch that proves which grant is meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseGroup {
    /// Identity.
    pub id: GroupId,
    /// Generation of the ledger at the grant.
    pub epoch: u64,
}

/// Need for memory that waits. Holds nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// Identity.
    pub id: ClaimId,
    /// Process that waits.
    pub holder: Holder,
    /// Memory of each device, MiB.
    pub mib: u64,
    /// Devices.
    pub devices: u32,
    /// Split of the need over devices.
    pub split: Split,
    /// Urgency: the smaller, the more urgent.
    pub priority: u8,
    /// Moment of the claim.
    pub since_ms: HostTime,
    /// End of the wait.
    pub until_ms: HostTime,
}

impl Claim {
    /// Returns the need as it is placed on devices.
    pub fn placement(&self) -> PlacementRequest {
        PlacementRequest {
            mib: self.mib,
            devices: self.devices,
            split: self.split,
            context_mib: 0,
        }
    }
}
