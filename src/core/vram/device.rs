//! Devices and samples of their memory, as a driver reports them.
//!
//! Not what is free for a new lease, which `account.rs` works out. Figures that a driver does not give are `None`,
//! never 0: unknown use grants nothing.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::host_time::HostTime;

/// Identity of a device: its UUID as the driver writes it, or the name of a simulated card.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct DeviceId(Arc<str>);

impl DeviceId {
    /// Returns the identity as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the place of the identity in a list.
    ///
    /// Most copies share their text, so that pointers are compared first: UUIDs of one host have equal lengths.
    pub(super) fn place_in<'a>(
        &self,
        mut ids: impl Iterator<Item = &'a DeviceId> + Clone,
    ) -> Option<usize> {
        let shared = ids.clone().position(|id| Arc::ptr_eq(&id.0, &self.0));
        shared.or_else(|| ids.position(|id| id == self))
    }
}

impl From<&str> for DeviceId {
    fn from(text: &str) -> Self {
        DeviceId(text.into())
    }
}

impl Borrow<str> for DeviceId {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &*self.0)
    }
}

/// Kind of a device. A need is split over devices of one kind only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeviceKind {
    /// A whole card.
    Gpu,
    /// A slice of a card, which takes no part in a split.
    Mig,
    /// Memory of the host.
    Ram,
    /// A card of page files, whose memory is bounded and shared by real processes.
    Simulated,
}

impl DeviceKind {
    /// Returns whether a need may be split over several of them.
    pub const fn can_split(self) -> bool {
        matches!(self, DeviceKind::Gpu | DeviceKind::Simulated)
    }
}

/// Description of a device; constant while it is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Identity.
    pub id: DeviceId,
    /// Place in the driver's list, for people: it changes with the hardware.
    pub index: u32,
    /// Name of the product. Devices of one name share a need first.
    pub name: Arc<str>,
    /// Memory in all, MiB.
    pub total_mib: u64,
    /// Kind.
    pub kind: DeviceKind,
}

/// Memory of one process on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessUse {
    /// Process.
    pub pid: u32,
    /// Pid of the lease holder that the process is or descends from; `None` for processes without a lease.
    pub holder_pid: Option<u32>,
    /// Memory, MiB; `None` where the driver does not give it.
    pub used_mib: Option<u64>,
}

/// Figures of a device at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceSample {
    /// Memory in use, MiB.
    pub used_mib: Option<u64>,
    /// Memory that the driver would give, MiB. Less than the rest where the driver keeps some.
    pub free_mib: Option<u64>,
    /// Processes with memory there; `None` where the driver does not list them.
    pub processes: Option<Vec<ProcessUse>>,
    /// Share of the last moments in which the device worked, percent; `None` where it is not told.
    pub utilization_percent: Option<u8>,
    /// Moment of the sample.
    pub taken_at: HostTime,
}

/// A device with its newest sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceView {
    /// The device.
    pub info: DeviceInfo,
    /// Memory that is never leased, MiB.
    pub reserve_mib: u64,
    /// Newest sample, or none.
    pub sample: Option<DeviceSample>,
}

impl DeviceView {
    /// Returns the memory in use, with what the driver keeps for itself; `None` without a figure.
    pub fn used_mib(&self) -> Option<u64> {
        let sample = self.sample.as_ref()?;
        let not_free = sample
            .free_mib
            .map(|free| self.info.total_mib.saturating_sub(free));
        sample.used_mib.max(not_free)
    }

    /// Returns the use of a holder's processes; `None` where the driver does not give it for each of them.
    pub fn use_of(&self, holder_pid: u32) -> Option<u64> {
        let processes = self.sample.as_ref()?.processes.as_ref()?;
        let own = processes
            .iter()
            .filter(|process| process.holder_pid == Some(holder_pid));
        own.map(|process| process.used_mib).sum()
    }
}
