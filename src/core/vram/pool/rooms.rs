//! Devices of the pool and the room on them: for a load that is chosen now, or for one that was chosen before.
//!
//! Not the choice. Memory is counted at most once as free: what victims leave is their challenger's.

use std::sync::Arc;

use super::ModelPool;
use super::record::{DeviceScope, SlotRecord, on};
use crate::vram::account::{FreeMemory, MemoryAccount};
use crate::vram::device::{DeviceId, DeviceKind, DeviceView};
use crate::vram::fit::{DeviceRoom, DeviceShare};
use crate::vram::slot::{SlotId, SlotState};

/// Device as the pool counts its memory: leases of its own slots are the pool's to add.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolDevice {
    /// Device.
    pub id: DeviceId,
    /// Place in the driver's list.
    pub index: u32,
    /// Kind.
    pub kind: DeviceKind,
    /// Name of the product.
    pub name: Arc<str>,
    /// Room without any lease and without others, MiB.
    pub empty_mib: u64,
    /// Memory that is not free for reasons beside the pool's own leases, MiB.
    pub others_mib: u64,
    /// Part of it that belongs to no holder of a lease, as a driver's own, MiB.
    pub outside_mib: u64,
    /// Takes new loads: the sample is fresh, and no operator has closed it.
    pub is_open: bool,
}

impl PoolDevice {
    /// Returns a device by its account. `own_mib`: leases of the pool's slots in that account.
    pub fn of(view: &DeviceView, account: &MemoryAccount, own_mib: u64) -> PoolDevice {
        let room = DeviceRoom::of(view, account);
        PoolDevice {
            others_mib: room.empty_mib.saturating_sub(room.free_mib + own_mib),
            outside_mib: account.outside_mib,
            id: room.id,
            index: room.index,
            kind: room.kind,
            name: room.name,
            empty_mib: room.empty_mib,
            is_open: matches!(account.free, FreeMemory::Known(_)) && account.over_lease_mib == 0,
        }
    }
}

/// Use of a device by slots.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct DeviceUse {
    leased_mib: u64,
    /// Memory that is kept for loads whose victims have not ended.
    kept_mib: u64,
    /// Part of `leased_mib` that such a load gets.
    coming_mib: u64,
    residents: u32,
    loads: u32,
    is_reserved: bool,
    is_stuck: bool,
}

/// Uses of the devices by slots, of the moment at which the models had changed so many times.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct KeptUses {
    changes: Option<u64>,
    uses: Vec<DeviceUse>,
    host_loads: u32,
}

impl ModelPool {
    /// Room on each device for a slot that was chosen, or for a load that is chosen now.
    pub(super) fn rooms(&self, slot: Option<&SlotId>, scope: DeviceScope) -> Vec<DeviceRoom> {
        self.rooms_with(slot, scope, &[])
    }

    /// The same, once the given shares are released.
    pub(super) fn rooms_with(
        &self,
        slot: Option<&SlotId>,
        scope: DeviceScope,
        freed: &[DeviceShare],
    ) -> Vec<DeviceRoom> {
        let is_kept = self.uses.changes == Some(self.models.changes());
        let kept = is_kept.then(|| self.uses.clone());
        let KeptUses {
            mut uses,
            host_loads,
            ..
        } = kept.unwrap_or_else(|| self.device_uses());
        let devices = self.devices.as_deref().unwrap_or_default();
        if let Some(slot) = slot {
            self.leave_out_own(slot, devices, &mut uses);
        }
        self.add_claimed(devices, &mut uses);
        let parallel = self.config.load_parallel;
        let host_is_full = host_loads >= parallel.per_host;
        let mut rooms = Vec::with_capacity(uses.len());
        for (device, usage) in devices.iter().zip(uses) {
            let is_full = host_is_full || usage.loads >= parallel.per_device;
            // A slot that was chosen has its reservation there itself.
            let is_reserved = usage.is_reserved && slot.is_none();
            let is_left_out = match scope {
                DeviceScope::Every => false,
                DeviceScope::Open => usage.is_stuck || !device.is_open,
                DeviceScope::Loadable => {
                    is_full || is_reserved || usage.is_stuck || !device.is_open
                }
            };
            if is_left_out {
                continue;
            }
            // What victims free belongs to their challengers; what these need beyond is not free now.
            let kept_mib = usage.kept_mib - usage.coming_mib.min(usage.kept_mib);
            let taken_mib = device.others_mib + usage.leased_mib + kept_mib;
            let freed_mib = on(freed, &device.id);
            rooms.push(DeviceRoom {
                id: device.id.clone(),
                index: device.index,
                kind: device.kind,
                name: Arc::clone(&device.name),
                empty_mib: device.empty_mib,
                free_mib: (device.empty_mib + freed_mib).saturating_sub(taken_mib),
                residents: usage.residents,
            });
        }
        rooms
    }

    /// Memory of the device with the most of it that is free there without a lease, MiB: of those that take loads, where
    /// there are such.
    pub(super) fn whole_mib(&self) -> Option<u64> {
        let devices = self.devices.as_deref()?;
        let largest = |takes: fn(&PoolDevice) -> bool| {
            let taking = devices.iter().filter(|device| takes(device));
            let whole = taking.map(|device| device.empty_mib.saturating_sub(device.outside_mib));
            // A lease of nothing has room everywhere.
            whole.max().map(|mib| mib.max(1))
        };
        largest(|device| device.is_open).or_else(|| largest(|_| true))
    }

    /// Keeps the uses of the devices until a model changes: a decision looks at them several times.
    pub(super) fn keep_uses(&mut self) {
        if self.uses.changes != Some(self.models.changes()) {
            self.uses = self.device_uses();
        }
    }

    /// Asserts that uses which are kept are those of now.
    #[cfg(test)]
    pub(super) fn check_uses(&self) {
        if self.uses.changes == Some(self.models.changes()) {
            assert_eq!(self.uses, self.device_uses(), "uses of the devices");
        }
    }

    /// Use of each device by slots, and the loads that run on the host.
    fn device_uses(&self) -> KeptUses {
        let devices = self.devices.as_deref().unwrap_or_default();
        let mut uses = vec![DeviceUse::default(); devices.len()];
        let mut host_loads = 0;
        for (_, model) in self.models.active() {
            for record in &model.slots {
                if record.rests() && record.planned.is_empty() {
                    // As most do.
                    each_use(devices, &mut uses, &record.shares, |usage, share| {
                        usage.leased_mib += share.mib;
                        usage.residents += 1;
                    });
                    continue;
                }
                host_loads += u32::from(record.is_loading());
                add_use(devices, &mut uses, record);
                if record.makes_room() {
                    let frees = record.frees(model.asleep_mib());
                    each_use(devices, &mut uses, frees.iter(), |usage, share| {
                        usage.coming_mib += share.mib;
                    });
                }
            }
        }
        KeptUses {
            changes: Some(self.models.changes()),
            uses,
            host_loads,
        }
    }

    /// Takes out what is kept for a slot itself: its own plan, and what its victims free.
    fn leave_out_own(&self, slot: &SlotId, devices: &[PoolDevice], uses: &mut [DeviceUse]) {
        if let Some(record) = self.slot(slot).filter(|record| record.is_pending()) {
            each_use(devices, uses, &record.planned, |usage, share| {
                usage.kept_mib -= share.mib;
            });
        }
        for (_, model) in self.models.restless() {
            for record in &model.slots {
                let is_own = record.claim.is_none() && record.challenger.as_ref() == Some(slot);
                if is_own && !record.has_no_shares() {
                    let frees = record.frees(model.asleep_mib());
                    each_use(devices, uses, frees.iter(), |usage, share| {
                        usage.coming_mib -= share.mib;
                    });
                }
            }
        }
    }

    /// Adds the memory that is kept for claims of others.
    fn add_claimed(&self, devices: &[PoolDevice], uses: &mut [DeviceUse]) {
        let rooms = self
            .claims
            .values()
            .filter_map(|record| record.room.as_ref());
        for room in rooms {
            for (device, usage) in devices.iter().zip(&mut *uses) {
                let kept_mib = on(room, &device.id);
                usage.kept_mib += kept_mib;
                usage.is_reserved |= kept_mib > 0;
            }
        }
    }
}

/// Adds what a slot has, and what is kept for it.
fn add_use(devices: &[PoolDevice], uses: &mut [DeviceUse], record: &SlotRecord) {
    let is_kept = record.is_pending();
    let note = |usage: &mut DeviceUse| {
        usage.residents += u32::from(!record.shares.is_empty());
        usage.loads += u32::from(record.is_loading());
        usage.is_reserved |= is_kept || record.makes_room();
        usage.is_stuck |= record.slot.state() == SlotState::Stuck;
    };
    each_use(devices, uses, &record.shares, |usage, share| {
        usage.leased_mib += share.mib;
        note(usage);
    });
    each_use(devices, uses, &record.planned, |usage, share| {
        usage.kept_mib += if is_kept { share.mib } else { 0 };
        if !record.has_lease_on(&share.device) {
            note(usage);
        }
    });
}

/// Notes each share at the use of its device.
#[inline]
fn each_use<'a>(
    devices: &[PoolDevice],
    uses: &mut [DeviceUse],
    shares: impl IntoIterator<Item = &'a DeviceShare>,
    mut note: impl FnMut(&mut DeviceUse, &DeviceShare),
) {
    for share in shares {
        let ids = devices.iter().map(|device| &device.id);
        if let Some(place) = share.device.place_in(ids) {
            note(&mut uses[place], share);
        }
    }
}
