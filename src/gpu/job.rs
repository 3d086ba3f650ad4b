//! Leases for a command: waits as a claim until it is its turn and there is room.
//!
//! Does not run the command. The process that waits becomes the command, so that pid and start time of the holder stay,
//! and its end, in whatever way, ends its leases.

use std::time::Duration;

use infergate_core::Millis;
use infergate_core::vram::{
    AcquireError, ClaimId, DeviceId, DeviceInfo, DeviceView, JobRequest, JobStep, LeaseGroup,
    PlacementRequest, Split,
};
use thiserror::Error;

use super::device::{DeviceError, DeviceSource};
use super::ledger::{HostLedger, LedgerStoreError};

/// Between two looks at devices and ledger: short beside the load of any model.
const TICK: Duration = Duration::from_millis(100);
/// Memory of a device that is never leased, MiB: what contexts of the driver and rounding take.
const RESERVE_MIB: u64 = 512;

/// Need of a command.
#[derive(Clone, Debug)]
pub struct JobCommand {
    /// Name for people.
    pub name: String,
    /// Memory of each device, MiB.
    pub mib: u64,
    /// Devices.
    pub devices: u32,
    /// Urgency: the smaller, the more urgent.
    pub priority: u8,
    /// Longest wait.
    pub wait: Millis,
    /// Waits as a claim, for which others make room.
    pub claims: bool,
}

/// Leases of a command.
#[derive(Clone, Debug)]
pub struct GrantedJob {
    /// The leases.
    pub group: LeaseGroup,
    /// Their devices, in the driver's order.
    pub devices: Vec<DeviceId>,
}

/// Reason why a command has no leases.
#[derive(Debug, Error)]
pub enum JobError {
    /// No room in time.
    #[error("no room within the time to wait")]
    TimedOut,
    /// No device could ever hold the need.
    #[error("the devices could not hold it if they were empty; the largest has room for {0} MiB")]
    DoesNotFit(u64),
    /// The leases were released by another process before the command could run.
    #[error("the leases were released by another process")]
    Released,
    /// No devices.
    #[error("no devices are there")]
    NoDevices,
    /// The ledger is full, or a device vanished.
    #[error("{0}")]
    Refused(#[from] AcquireError),
    /// The driver does not answer.
    #[error("{0}")]
    Device(#[from] DeviceError),
    /// The ledger cannot be used.
    #[error("{0}")]
    Store(#[from] LedgerStoreError),
}

/// Waits for the leases of a command. Calls `waiting` once, when there is no room at first.
///
/// # Errors
/// No room in time, or devices or ledger cannot be used: no lease is left.
pub fn acquire(
    command: &JobCommand,
    source: &dyn DeviceSource,
    store: &HostLedger,
    mut waiting: impl FnMut(),
) -> Result<GrantedJob, JobError> {
    let devices = source.list()?;
    if devices.is_empty() {
        return Err(JobError::NoDevices);
    }
    let holder = store.host().job_holder(&command.name);
    let holder = holder.map_err(|error| DeviceError {
        what: "/proc".to_owned(),
        why: error.to_string(),
    })?;
    let request = JobRequest {
        holder,
        placement: PlacementRequest {
            mib: command.mib,
            devices: command.devices,
            split: Split::Never,
            context_mib: 0,
        },
        priority: command.priority,
        claims: command.claims,
        until: store.host().now() + command.wait,
    };
    let mut claim = None;
    let mut is_first = true;
    loop {
        let views = views(&devices, source, store)?;
        let step = match step(&request, claim.as_ref(), views, store) {
            // Many that change the ledger at once are no reason to give up early.
            Err(JobError::Store(LedgerStoreError::Locked(_)))
                if store.host().now() < request.until =>
            {
                continue;
            }
            other => other?,
        };
        match step {
            JobStep::Granted(group) => return read_back(group, store),
            JobStep::Waiting(own) => claim = own,
            JobStep::TimedOut => return Err(JobError::TimedOut),
            JobStep::DoesNotFit { largest_mib } => return Err(JobError::DoesNotFit(largest_mib)),
        }
        if std::mem::take(&mut is_first) {
            waiting();
        }
        std::thread::sleep(TICK);
    }
}

/// Samples every device. A driver may take its time, so the ledger is not locked meanwhile.
fn views(
    devices: &[DeviceInfo],
    source: &dyn DeviceSource,
    store: &HostLedger,
) -> Result<Vec<DeviceView>, DeviceError> {
    let sampled = devices.iter().map(|info| {
        Ok(DeviceView {
            info: info.clone(),
            reserve_mib: RESERVE_MIB,
            sample: Some(source.sample(&info.id, store.host().now())?),
        })
    });
    sampled.collect()
}

fn step(
    request: &JobRequest,
    claim: Option<&ClaimId>,
    mut views: Vec<DeviceView>,
    store: &HostLedger,
) -> Result<JobStep, JobError> {
    let step = store.change(|ledger, now| {
        for sample in views.iter_mut().filter_map(|view| view.sample.as_mut()) {
            store.host().attribute(sample, ledger);
        }
        ledger.step_job(request, claim, &views, now)
    })?;
    Ok(step?)
}

/// Marks the leases as held, which proves that the file has them, and returns their devices.
fn read_back(group: LeaseGroup, store: &HostLedger) -> Result<GrantedJob, JobError> {
    let held = store.change(|ledger, _| ledger.hold(&group))?;
    let ledger = store.read()?;
    let own = ledger.leases().iter();
    let own = own.filter(|lease| lease.group == group.id);
    let devices: Vec<DeviceId> = own.map(|lease| lease.device.clone()).collect();
    if held.is_err() || devices.is_empty() {
        return Err(JobError::Released);
    }
    Ok(GrantedJob { group, devices })
}
