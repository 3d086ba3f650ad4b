//! Leases and claims of a host as people see them, and the release of those whose holder is gone.
//!
//! Not the ledger, whose file has other names and times. Ages are spans in milliseconds. Each call reads or changes a file,
//! and blocks for as long. Called by `infergate gpu leases` and for the admin listener.

use infergate_core::vram::{Holder, HolderKind, HolderLife, Lease, LeaseGroup, LeaseState};
use serde::Serialize;

use super::holder::LeaseHost;
use super::ledger::{HostLedger, LedgerStoreError};

/// Leases and claims of a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LeaseList {
    /// Leases, the oldest grant first.
    pub leases: Vec<ListedLeases>,
    /// Needs that wait, in their order.
    pub claims: Vec<ListedClaim>,
}

/// Leases that were granted together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ListedLeases {
    /// Identity of the group.
    pub id: String,
    /// Holder.
    #[serde(flatten)]
    pub holder: ListedHolder,
    /// Urgency: the smaller, the more urgent.
    pub priority: u8,
    /// Time since the grant, ms.
    pub age_ms: u64,
    /// A lease of each device.
    pub devices: Vec<ListedLease>,
}

/// Lease of one device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ListedLease {
    /// Identity of the lease.
    pub lease: String,
    /// Device.
    pub device: String,
    /// Memory, MiB.
    pub mib: u64,
    /// State.
    pub state: LeaseState,
}

/// Need that waits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ListedClaim {
    /// Identity.
    pub id: String,
    /// Process that waits.
    #[serde(flatten)]
    pub holder: ListedHolder,
    /// Urgency: the smaller, the more urgent.
    pub priority: u8,
    /// Time since the claim, ms.
    pub age_ms: u64,
    /// Devices.
    pub devices: u32,
    /// Memory of each device, MiB.
    pub mib: u64,
}

/// Process with a lease or a claim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ListedHolder {
    /// Slot of a model, or command.
    pub kind: HolderKind,
    /// Name: that of the slot, of the model that waits, or of the command.
    pub name: String,
    /// Model; `None` of a command.
    pub model: Option<String>,
    /// Host.
    pub node: String,
    /// Process.
    pub pid: u32,
    /// Life of the process: `alive`, `dead`, or `unknown` of one in another pid namespace.
    pub process: &'static str,
}

impl LeaseList {
    /// Reads the list from the ledger.
    ///
    /// # Errors
    /// The ledger is not readable.
    pub fn read(store: &HostLedger) -> Result<LeaseList, LedgerStoreError> {
        let (ledger, host) = (store.read()?, store.host());
        let now = host.now();
        let mut leases: Vec<ListedLeases> = Vec::new();
        for lease in ledger.leases() {
            let group = lease.group.to_string();
            let share = ListedLease {
                lease: lease.id.to_string(),
                device: lease.device.to_string(),
                mib: lease.mib,
                state: lease.state,
            };
            // Leases of a group stand one behind the other.
            match leases.last_mut().filter(|last| last.id == group) {
                Some(last) => last.devices.push(share),
                None => leases.push(ListedLeases {
                    id: group,
                    holder: ListedHolder::of(&lease.holder, host),
                    priority: lease.priority,
                    age_ms: now.since(lease.granted_ms).0,
                    devices: vec![share],
                }),
            }
        }
        let claims = ledger.claims().iter().map(|claim| ListedClaim {
            id: claim.id.to_string(),
            holder: ListedHolder::of(&claim.holder, host),
            priority: claim.priority,
            age_ms: now.since(claim.since_ms).0,
            devices: claim.devices,
            mib: claim.mib,
        });
        let claims = claims.collect();
        Ok(LeaseList { leases, claims })
    }

    /// Returns the leases of an identity, of a group or of one of its leases.
    pub fn find(&self, id: &str) -> Option<&ListedLeases> {
        let mut leases = self.leases.iter();
        leases.find(|it| it.id == id || it.devices.iter().any(|share| share.lease == id))
    }
}

impl ListedHolder {
    fn of(holder: &Holder, host: &LeaseHost) -> ListedHolder {
        ListedHolder {
            kind: holder.kind,
            name: holder.name.to_string(),
            model: model_of(holder).map(ToOwned::to_owned),
            node: holder.node.to_string(),
            pid: holder.pid,
            process: match host.life(holder) {
                HolderLife::Alive => "alive",
                HolderLife::Dead => "dead",
                HolderLife::Unknown => "unknown",
            },
        }
    }
}

/// Returns the model of a slot's holder; none of a command.
pub fn model_of(holder: &Holder) -> Option<&str> {
    let name = match holder.kind {
        HolderKind::Slot => &*holder.name,
        HolderKind::Job => return None,
    };
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|it| it.is_ascii_digit());
    match name.rsplit_once('#') {
        Some((model, number)) if is_number(number) => Some(model),
        _ => Some(name),
    }
}

/// Treatment of leases whose holder cannot be seen: its pid counts in another namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnseenHolder {
    /// Leases stay.
    Keep,
    /// Leases are released: the caller knows that the holder is gone.
    Release,
}

/// Result of a release.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReleaseOutcome {
    /// The leases of the group are free.
    Released,
    /// No lease or group has this identity.
    NoSuchLease,
    /// The holder lives; nothing has changed.
    Alive(Holder),
    /// The holder cannot be seen; nothing has changed.
    Unseen(Holder),
}

/// Frees a lease, with those that were granted with it, whose holder is gone. `id` is that of the lease or of its group.
///
/// # Errors
/// The ledger cannot be used.
pub fn release_leases(
    store: &HostLedger,
    id: &str,
    unseen: UnseenHolder,
) -> Result<ReleaseOutcome, LedgerStoreError> {
    let is_meant = |lease: &&Lease| lease.id.to_string() == id || lease.group.to_string() == id;
    if !store.read()?.leases().iter().any(|lease| is_meant(&lease)) {
        return Ok(ReleaseOutcome::NoSuchLease);
    }
    // A change frees the leases of holders that are gone; what is left has a holder that lives or cannot be seen.
    store.change(|ledger, _| {
        let Some(lease) = ledger.leases().iter().find(is_meant) else {
            return ReleaseOutcome::Released;
        };
        let holder = lease.holder.clone();
        match (store.host().life(&holder), unseen) {
            (HolderLife::Alive, _) => return ReleaseOutcome::Alive(holder),
            (HolderLife::Unknown, UnseenHolder::Keep) => return ReleaseOutcome::Unseen(holder),
            _ => {}
        }
        let group = LeaseGroup {
            id: lease.group.clone(),
            epoch: lease.epoch,
        };
        // Only a group that is not there is refused.
        let _ = ledger.release(&group);
        ReleaseOutcome::Released
    })
}

#[cfg(test)]
mod tests {
    use infergate_core::vram::{
        DeviceInfo, DeviceKind, DeviceSample, DeviceShare, DeviceView, HostTime,
    };

    use super::*;

    fn view(now: HostTime, id: &str) -> DeviceView {
        DeviceView {
            info: DeviceInfo {
                id: id.into(),
                index: 0,
                name: "simulated".into(),
                total_mib: 1000,
                kind: DeviceKind::Simulated,
            },
            reserve_mib: 0,
            sample: Some(DeviceSample {
                used_mib: Some(0),
                free_mib: None,
                processes: Some(Vec::new()),
                utilization_percent: None,
                taken_at: now,
            }),
        }
    }

    fn grant(store: &HostLedger, holder: &Holder) {
        let share = |device: &str| DeviceShare {
            device: device.into(),
            mib: 100,
        };
        let shares = [share("sim0"), share("sim1")];
        let granted = store.change(|ledger, now| {
            let views = [view(now, "sim0"), view(now, "sim1")];
            ledger.acquire(holder, 5, &shares, &views, now).is_ok()
        });
        assert!(granted.unwrap());
    }

    #[test]
    fn leases_of_a_grant_are_one_entry_with_its_model_or_command() {
        let store = HostLedger::in_memory().unwrap();
        let job = store.host().job_holder("train#7").unwrap();
        let slot = store.host().slot_holder("a/m#10", job.pid).unwrap();
        grant(&store, &job);
        grant(&store, &slot);
        let list = LeaseList::read(&store).unwrap();
        let shown: Vec<_> = list
            .leases
            .iter()
            .map(|it| (it.holder.model.as_deref(), it.devices.len()))
            .collect();
        assert_eq!(shown, [(None, 2), (Some("a/m"), 2)]);
        assert_eq!(list.leases[0].holder.process, "alive");
        let of_lease = list.find(&list.leases[1].devices[1].lease).unwrap();
        assert_eq!(of_lease.id, list.leases[1].id);
        assert_eq!(list.find("l-0-0"), None);
    }

    #[test]
    fn leases_of_a_holder_that_lives_or_cannot_be_seen_stay() {
        let store = HostLedger::in_memory().unwrap();
        let own = store.host().job_holder("test").unwrap();
        let foreign = Holder {
            pid_namespace: Some(1),
            ..own.clone()
        };
        let former = Holder {
            start: own.start - 1,
            ..own.clone()
        };
        grant(&store, &own);
        grant(&store, &foreign);
        grant(&store, &former);
        let ids: Vec<String> = LeaseList::read(&store)
            .unwrap()
            .leases
            .into_iter()
            .map(|it| it.id)
            .collect();
        let release = |id: &str, unseen| release_leases(&store, id, unseen).unwrap();
        assert_eq!(
            release(&ids[2], UnseenHolder::Keep),
            ReleaseOutcome::Released
        );
        assert_eq!(
            release(&ids[0], UnseenHolder::Release),
            ReleaseOutcome::Alive(own)
        );
        assert_eq!(
            release(&ids[1], UnseenHolder::Keep),
            ReleaseOutcome::Unseen(foreign)
        );
        assert_eq!(
            release("g-0", UnseenHolder::Release),
            ReleaseOutcome::NoSuchLease
        );
        assert_eq!(store.read().unwrap().leases().len(), 4);
        assert_eq!(
            release(&ids[1], UnseenHolder::Release),
            ReleaseOutcome::Released
        );
        assert_eq!(store.read().unwrap().leases().len(), 2);
    }
}
