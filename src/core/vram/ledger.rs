//! The ledger of a host: leases and claims of all holders, and the verbs that change them.
//!
//! Not its store, which keeps the value and runs one verb at a time. A grant leaves on each device leases + reserve +
//! memory of others within the total; other verbs only free memory. Memory of a holder that has ended is granted to no
//! other one before it can have returned. Every change has a generation of its own. At most
//! [`LEASES_MAX`] leases and [`CLAIMS_MAX`] claims.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::account::{FreeMemory, HolderMemory, MemoryAccount, UnknownCause};
use super::device::{DeviceId, DeviceView};
use super::fit::{DeviceShare, PlacementRequest};
use super::host_time::HostTime;
use super::lease::{
    Claim, ClaimId, GroupId, Holder, HolderKind, HolderLife, Lease, LeaseGroup, LeaseId, LeaseState,
};
use super::slot::RECLAIM_MAX;

/// Version of the file's layout.
pub const LEDGER_VERSION: u32 = 1;
/// Leases there may be: 16 times the slots of a gateway.
const LEASES_MAX: usize = 65_536;
/// Claims there may be: more commands than a host would let wait.
const CLAIMS_MAX: usize = 4096;

/// Reason why leases are not granted; the ledger is unchanged.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum AcquireError {
    /// A share names a device that is not there, or one device twice.
    #[error("device {0} is not there, or named twice")]
    Device(DeviceId),
    /// The free memory of a device is not known.
    #[error("free memory of device {0} is not known")]
    Unknown(DeviceId, UnknownCause),
    /// A device has less room than the share.
    #[error("device {device} has {free_mib} MiB free")]
    NoRoom {
        /// Device.
        device: DeviceId,
        /// Room there, MiB.
        free_mib: u64,
    },
    /// The ledger has as many leases or claims as it may.
    #[error("the ledger is full")]
    Full,
}

/// Reason why a text is no ledger.
#[derive(Debug, Error)]
pub enum LedgerError {
    /// Not JSON of this layout.
    #[error("not a ledger: {0}")]
    Layout(#[from] serde_json::Error),
    /// Written by another version.
    #[error("a ledger of version {0}, not {LEDGER_VERSION}")]
    Version(u32),
}

/// Need of a slot that waits for memory of others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimedNeed {
    /// Slot's model, as a holder.
    pub holder: Holder,
    /// Need.
    pub placement: PlacementRequest,
    /// Urgency: the smaller, the more urgent.
    pub priority: u8,
}

/// A verb named leases of another grant, or of none; the ledger is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("these leases were granted anew or released")]
pub struct StaleLease;

/// Leases and claims of a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ledger {
    version: u32,
    generation: u64,
    boot_id: Arc<str>,
    leases: Vec<Lease>,
    claims: Vec<Claim>,
}

impl Ledger {
    /// Returns an empty ledger.
    ///
    /// Generations begin at the host's time. A ledger that was lost has lower ones, so that its holders cannot
    /// change a lease of the new one.
    pub fn new(boot_id: &str, now: HostTime) -> Ledger {
        Ledger {
            version: LEDGER_VERSION,
            generation: now.0,
            boot_id: boot_id.into(),
            leases: Vec::new(),
            claims: Vec::new(),
        }
    }

    /// Reads a ledger. After another boot it is empty: the processes are gone.
    ///
    /// # Errors
    /// The text is no ledger, or one of another version.
    pub fn from_json(text: &[u8], boot_id: &str, now: HostTime) -> Result<Ledger, LedgerError> {
        let mut ledger: Ledger = serde_json::from_slice(text)?;
        if ledger.version != LEDGER_VERSION {
            return Err(LedgerError::Version(ledger.version));
        }
        if &*ledger.boot_id != boot_id {
            let generation = ledger.generation.max(now.0) + 1;
            ledger = Ledger::new(boot_id, HostTime(generation));
        }
        Ok(ledger)
    }

    /// Number of the latest change.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// All leases, oldest grant first.
    pub fn leases(&self) -> &[Lease] {
        &self.leases
    }

    /// All claims, most urgent first; among equals the oldest.
    pub fn claims(&self) -> &[Claim] {
        &self.claims
    }

    /// Works out the account of a device with the leases on it.
    pub fn account(&self, view: &DeviceView, now: HostTime) -> MemoryAccount {
        let mut holders: BTreeMap<u32, HolderMemory> = BTreeMap::new();
        let on_device = self
            .leases
            .iter()
            .filter(|lease| lease.device == view.info.id);
        for lease in on_device {
            // A command's memory grows while it runs; that of a slot stands between its load and its end.
            let is_gone = lease.state == LeaseState::Reclaiming;
            let is_changing =
                lease.holder.kind == HolderKind::Job || lease.state != LeaseState::Held;
            let holder = holders
                .entry(lease.holder.pid)
                .or_insert_with(|| HolderMemory {
                    pid: lease.holder.pid,
                    leased_mib: 0,
                    is_changing: false,
                    is_gone: true,
                    epoch: 0,
                    outside_mib: 0,
                });
            holder.leased_mib += lease.mib;
            holder.is_changing |= is_changing;
            holder.is_gone &= is_gone;
            if lease.epoch >= holder.epoch {
                holder.epoch = lease.epoch;
                holder.outside_mib = lease.outside_mib;
            }
        }
        let holders: Vec<HolderMemory> = holders.into_values().collect();
        MemoryAccount::of(view, &holders, now)
    }

    /// Grants a lease for each share, or none.
    ///
    /// # Errors
    /// A share does not fit, or its device is unknown.
    pub fn acquire(
        &mut self,
        holder: &Holder,
        priority: u8,
        shares: &[DeviceShare],
        views: &[DeviceView],
        now: HostTime,
    ) -> Result<LeaseGroup, AcquireError> {
        self.free_returned(views);
        if self.leases.len() + shares.len() > LEASES_MAX {
            return Err(AcquireError::Full);
        }
        let mut outside_mib = Vec::with_capacity(shares.len());
        let mut devices = BTreeSet::new();
        for share in shares {
            if !devices.insert(&share.device) {
                return Err(AcquireError::Device(share.device.clone()));
            }
            outside_mib.push(self.room_for(&share.device, share.mib, views, now)?);
        }
        let epoch = self.next_generation();
        let group = GroupId::from(format!("g-{epoch}"));
        for (nth, (share, outside_mib)) in shares.iter().zip(outside_mib).enumerate() {
            self.leases.push(Lease {
                id: LeaseId::from(format!("l-{epoch}-{nth}")),
                group: group.clone(),
                device: share.device.clone(),
                mib: share.mib,
                state: LeaseState::Granted,
                epoch,
                outside_mib,
                holder: holder.clone(),
                priority,
                granted_ms: now,
                reclaiming_since_ms: None,
                state_before: None,
            });
        }
        Ok(LeaseGroup { id: group, epoch })
    }

    /// Changes a group's leases to these shares, all or none.
    ///
    /// The group and its epoch stay, so that its holder needs no new grant.
    ///
    /// # Errors
    /// A share is larger than its lease and what is free, or has no lease; the ledger is unchanged.
    pub fn resize(
        &mut self,
        group: &LeaseGroup,
        shares: &[DeviceShare],
        views: &[DeviceView],
        now: HostTime,
    ) -> Result<(), AcquireError> {
        let mut outside_mib = Vec::with_capacity(shares.len());
        for share in shares {
            let mut own = self.leases.iter().filter(|lease| is_of(lease, group));
            let lease = own.find(|lease| {
                lease.device == share.device && lease.state != LeaseState::Reclaiming
            });
            let lease = lease.ok_or_else(|| AcquireError::Device(share.device.clone()))?;
            outside_mib.push(match share.mib > lease.mib {
                true => self.room_to_grow(lease, share.mib, views, now)?,
                false => lease.outside_mib,
            });
        }
        for (share, outside_mib) in shares.iter().zip(outside_mib) {
            let own = self.leases.iter_mut().filter(|lease| is_of(lease, group));
            for lease in own.filter(|lease| lease.device == share.device) {
                if share.mib > lease.mib {
                    lease.state = LeaseState::Granted;
                }
                (lease.mib, lease.outside_mib) = (share.mib, outside_mib);
            }
        }
        self.next_generation();
        Ok(())
    }

    /// Returns the memory of others on the device of a lease that has room for it to grow.
    ///
    /// Use of its holder beyond it is taken already.
    fn room_to_grow(
        &self,
        lease: &Lease,
        mib: u64,
        views: &[DeviceView],
        now: HostTime,
    ) -> Result<u64, AcquireError> {
        let view = views.iter().find(|view| view.info.id == lease.device);
        let view = view.ok_or_else(|| AcquireError::Device(lease.device.clone()))?;
        let account = self.account(view, now);
        let device = lease.device.clone();
        let free_mib = match account.free {
            FreeMemory::Known(free_mib) => free_mib,
            FreeMemory::Unknown(cause) => return Err(AcquireError::Unknown(device, cause)),
        };
        let of_holder = self
            .leases
            .iter()
            .filter(|other| other.device == lease.device && other.holder.pid == lease.holder.pid);
        let used_mib = match of_holder.count() {
            1 => view.use_of(lease.holder.pid).unwrap_or(0),
            _ => 0,
        };
        let more_mib = mib.saturating_sub(lease.mib.max(used_mib));
        match account.taken_mib.saturating_add(more_mib) <= view.info.total_mib {
            true => Ok(account.outside_mib),
            false => Err(AcquireError::NoRoom { device, free_mib }),
        }
    }

    /// Returns the memory of others on a device that has so much free.
    fn room_for(
        &self,
        device: &DeviceId,
        mib: u64,
        views: &[DeviceView],
        now: HostTime,
    ) -> Result<u64, AcquireError> {
        let view = views.iter().find(|view| view.info.id == *device);
        let view = view.ok_or_else(|| AcquireError::Device(device.clone()))?;
        let account = self.account(view, now);
        match account.free {
            FreeMemory::Known(free_mib) if mib <= free_mib => Ok(account.outside_mib),
            FreeMemory::Known(free_mib) => {
                let device = device.clone();
                Err(AcquireError::NoRoom { device, free_mib })
            }
            FreeMemory::Unknown(cause) => Err(AcquireError::Unknown(device.clone(), cause)),
        }
    }

    /// Marks the leases of a group as in use: of a slot once its load is over, of a command once it has read them back.
    ///
    /// # Errors
    /// The group is not there.
    pub fn hold(&mut self, group: &LeaseGroup) -> Result<(), StaleLease> {
        self.change(group, |lease| lease.state = LeaseState::Held)
    }

    /// Gives a group's leases to another process, which outlives the one that acquired them.
    ///
    /// # Errors
    /// The group is not there.
    pub fn hand_over(&mut self, group: &LeaseGroup, holder: &Holder) -> Result<(), StaleLease> {
        self.change(group, |lease| lease.holder = holder.clone())
    }

    /// Frees the leases of a group.
    ///
    /// # Errors
    /// The group is not there.
    pub fn release(&mut self, group: &LeaseGroup) -> Result<(), StaleLease> {
        let before = self.leases.len();
        self.leases.retain(|lease| !is_of(lease, group));
        if self.leases.len() == before {
            return Err(StaleLease);
        }
        self.next_generation();
        Ok(())
    }

    /// Frees claims of holders that are gone, and claims whose wait is over.
    ///
    /// Leases of holders that are gone wait for their memory: until [`Ledger::free_returned`] finds it back, at most for
    /// [`RECLAIM_MAX`]. Memory that is in use beyond that counts as memory of others. Holders that cannot be seen from here
    /// are not judged. A holder that is there all the same has its leases as before.
    pub fn expire(&mut self, now: HostTime, life: impl Fn(&Holder) -> HolderLife) {
        let before = self.leases.len() + self.claims.len();
        let mut changed = 0;
        self.leases.retain_mut(|lease| {
            let life = life(&lease.holder);
            if let Some(since) = lease.reclaiming_since_ms {
                if life != HolderLife::Alive {
                    return now.since(since) < RECLAIM_MAX;
                }
                // It could not be seen when it was judged. Of one without a state before, use may still rise.
                lease.state = lease.state_before.take().unwrap_or(LeaseState::Granted);
                lease.reclaiming_since_ms = None;
                changed += 1;
            } else if life == HolderLife::Dead {
                lease.state_before = Some(lease.state);
                lease.state = LeaseState::Reclaiming;
                lease.reclaiming_since_ms = Some(now);
                changed += 1;
            }
            true
        });
        self.claims
            .retain(|claim| now < claim.until_ms && life(&claim.holder) != HolderLife::Dead);
        if changed > 0 || self.leases.len() + self.claims.len() != before {
            self.next_generation();
        }
    }

    /// Frees leases of holders that are gone whose memory is not needed to bound what others are granted.
    ///
    /// Takes a later sample with the use of every other holder there: memory that is still in use belongs to none of them,
    /// and counts as that of others. Without such figures, no more may be in use than before the grant.
    pub fn free_returned(&mut self, views: &[DeviceView]) {
        let returned = self.leases.iter();
        let returned = returned.filter(|lease| self.has_returned(lease, views));
        let returned: BTreeSet<LeaseId> = returned.map(|lease| lease.id.clone()).collect();
        if !returned.is_empty() {
            self.leases.retain(|lease| !returned.contains(&lease.id));
            self.next_generation();
        }
    }

    fn has_returned(&self, lease: &Lease, views: &[DeviceView]) -> bool {
        let mut views = views.iter().filter(|view| view.info.id == lease.device);
        let (Some(since), Some(view)) = (lease.reclaiming_since_ms, views.next()) else {
            return false;
        };
        let (Some(sample), Some(used_mib)) = (&view.sample, view.used_mib()) else {
            return false;
        };
        let mut others = self
            .leases
            .iter()
            .filter(|other| other.device == lease.device && other.state != LeaseState::Reclaiming);
        sample.taken_at >= since
            && match &sample.processes {
                Some(_) => others.all(|other| view.use_of(other.holder.pid).is_some()),
                // Only an empty device tells what the holder has given back.
                None => others.next().is_none() && used_mib <= lease.outside_mib,
            }
    }

    /// Records a need that waits until `until`.
    ///
    /// # Errors
    /// Claims are as many as there may be.
    pub fn claim(
        &mut self,
        holder: &Holder,
        priority: u8,
        request: &PlacementRequest,
        now: HostTime,
        until: HostTime,
    ) -> Result<ClaimId, AcquireError> {
        if self.claims.len() >= CLAIMS_MAX {
            return Err(AcquireError::Full);
        }
        let id = ClaimId::from(format!("c-{}", self.next_generation()));
        let place = self
            .claims
            .partition_point(|claim| claim.priority <= priority);
        let claim = Claim {
            id: id.clone(),
            holder: holder.clone(),
            mib: request.mib,
            devices: request.devices,
            split: request.split,
            priority,
            since_ms: now,
            until_ms: until,
        };
        self.claims.insert(place, claim);
        Ok(id)
    }

    /// Replaces the claims of a process for its slots; one with an unchanged need keeps its place.
    ///
    /// # Errors
    /// As many claims as may be.
    pub fn claim_for_slots(
        &mut self,
        needs: &[ClaimedNeed],
        process: (u32, u64),
        now: HostTime,
        until: HostTime,
    ) -> Result<(), AcquireError> {
        let is_own = |claim: &Claim| {
            let holder = &claim.holder;
            holder.kind == HolderKind::Slot && (holder.pid, holder.start) == process
        };
        let before = self.claims.len();
        self.claims.retain_mut(|claim| {
            let is_wanted = |need: &ClaimedNeed| {
                let same =
                    (claim.priority, claim.placement().mib) == (need.priority, need.placement.mib);
                same && claim.holder == need.holder && claim.devices == need.placement.devices
            };
            let is_kept = !is_own(&*claim) || needs.iter().any(is_wanted);
            if is_own(&*claim) {
                claim.until_ms = until;
            }
            is_kept
        });
        if self.claims.len() != before || !needs.is_empty() {
            self.next_generation();
        }
        for need in needs {
            let is_there = |claim: &Claim| is_own(claim) && claim.holder == need.holder;
            if !self.claims.iter().any(is_there) {
                self.claim(&need.holder, need.priority, &need.placement, now, until)?;
            }
        }
        Ok(())
    }

    /// Removes a claim; one that is not there is left as it is.
    pub fn withdraw(&mut self, claim: &ClaimId) {
        let before = self.claims.len();
        self.claims.retain(|other| other.id != *claim);
        if self.claims.len() != before {
            self.next_generation();
        }
    }

    /// Returns whether no other command's claim comes before a need: one of its own, or one that would be made now.
    ///
    /// Models of gateways take turns with commands by the rule of their pools, which make room.
    pub fn has_turn(&self, priority: u8, claim: Option<&ClaimId>) -> bool {
        let mut jobs = self.claims.iter();
        match jobs.find(|claim| claim.holder.kind == HolderKind::Job) {
            Some(first) => Some(&first.id) == claim || first.priority > priority,
            None => true,
        }
    }

    /// Asserts the invariants that hold after every verb: for tests.
    pub fn check(&self, views: &[DeviceView]) {
        for view in views {
            let leases = self
                .leases
                .iter()
                .filter(|lease| lease.device == view.info.id);
            let leased: u64 = leases.map(|lease| lease.mib).sum();
            let bound = view.info.total_mib.saturating_sub(view.reserve_mib);
            assert!(leased <= bound, "{leased} MiB leased of {bound}: {self:?}");
        }
        let ids: BTreeSet<_> = self.leases.iter().map(|lease| &lease.id).collect();
        assert_eq!(ids.len(), self.leases.len(), "no lease is granted twice");
        for lease in &self.leases {
            assert!(lease.epoch <= self.generation, "epochs are of the past");
        }
        let order: Vec<_> = self.claims.iter().map(|claim| claim.priority).collect();
        assert!(order.is_sorted(), "claims are in order of urgency");
    }

    fn change(&mut self, group: &LeaseGroup, set: impl Fn(&mut Lease)) -> Result<(), StaleLease> {
        let own = self.leases.iter_mut().filter(|lease| is_of(lease, group));
        // The end of a holder is not taken back.
        let own = own.filter(|lease| lease.state != LeaseState::Reclaiming);
        let mut changed = 0;
        for lease in own {
            set(lease);
            changed += 1;
        }
        if changed == 0 {
            return Err(StaleLease);
        }
        self.next_generation();
        Ok(())
    }

    fn next_generation(&mut self) -> u64 {
        self.generation = self.generation.saturating_add(1);
        self.generation
    }
}

fn is_of(lease: &Lease, group: &LeaseGroup) -> bool {
    lease.group == group.id && lease.epoch == group.epoch
}

#[cfg(test)]
#[path = "ledger/tests.rs"]
mod tests;
