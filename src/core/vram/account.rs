//! Account of a device's memory: what is leased, what others use, what is free for a new lease.
//!
//! Neither a grant nor a placement. Device truth only makes the account stricter: a lease counts in full even while
//! nothing of it is used, and use above a lease counts as well. Sizes are MiB.

use super::device::{DeviceSample, DeviceView};
use super::host_time::HostTime;
use crate::Millis;

/// Age from which on a sample grants nothing.
const SAMPLE_AGE_MAX: Millis = Millis::from_secs(5);
/// Share of a lease, as a divisor, that its holder may exceed it by before it is reported: 5 %.
const OVER_LEASE_DIVISOR: u64 = 20;

/// Leases of one holder on one device.
#[derive(Clone, Copy, Debug)]
pub(super) struct HolderMemory {
    /// Process.
    pub pid: u32,
    /// Sum of the holder's leases there.
    pub leased_mib: u64,
    /// The use rises or falls, so that it cannot be told from that of others.
    pub is_changing: bool,
    /// The process has ended, and its memory is awaited.
    pub is_gone: bool,
    /// Generation at the newest grant.
    pub epoch: u64,
    /// Memory of others at that grant.
    pub outside_mib: u64,
}

/// Reason why free memory is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnknownCause {
    /// No sample has been taken.
    NoSample,
    /// The newest sample is too old.
    Stale,
    /// The driver does not give the figure.
    NoFigure,
}

/// Memory that a new lease may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FreeMemory {
    /// So many MiB.
    Known(u64),
    /// Not known, so that no lease is granted.
    Unknown(UnknownCause),
}

impl FreeMemory {
    /// Returns what may be granted, MiB: nothing where it is not known.
    pub const fn grantable_mib(self) -> u64 {
        match self {
            FreeMemory::Known(mib) => mib,
            FreeMemory::Unknown(_) => 0,
        }
    }
}

/// Account of one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryAccount {
    /// Sum of the leases.
    pub leased_mib: u64,
    /// Memory in use that belongs to no holder.
    pub outside_mib: u64,
    /// Use above leases, of holders that exceed theirs by more than 5 %.
    pub over_lease_mib: u64,
    /// Reserve, memory of others, and of each holder the larger of lease and use; 0 while that is not known.
    pub taken_mib: u64,
    /// Memory that a new lease may take.
    pub free: FreeMemory,
    /// Holders with a lease there.
    pub residents: u32,
}

impl MemoryAccount {
    /// Returns the account at a later moment: nothing is free once the sample is too old.
    pub fn at(self, view: &DeviceView, now: HostTime) -> MemoryAccount {
        match view.sample.as_ref() {
            Some(sample) if is_stale(sample, now) => MemoryAccount {
                free: FreeMemory::Unknown(UnknownCause::Stale),
                ..self
            },
            _ => self,
        }
    }

    /// Works out the account of a device from its sample and the leases on it.
    pub(super) fn of(view: &DeviceView, holders: &[HolderMemory], now: HostTime) -> MemoryAccount {
        let leased_mib = holders.iter().map(|holder| holder.leased_mib).sum();
        let residents = u32::try_from(holders.len()).unwrap_or(u32::MAX);
        let mut account = MemoryAccount {
            leased_mib,
            outside_mib: 0,
            over_lease_mib: 0,
            taken_mib: 0,
            free: FreeMemory::Unknown(UnknownCause::NoSample),
            residents,
        };
        let Some(sample) = &view.sample else {
            return account;
        };
        if is_stale(sample, now) {
            account.free = FreeMemory::Unknown(UnknownCause::Stale);
            return account;
        }
        let Some(used_mib) = view.used_mib() else {
            account.free = FreeMemory::Unknown(UnknownCause::NoFigure);
            return account;
        };
        let mut attributed = Attribution::default();
        for holder in holders {
            // What is left of one that has ended belongs to no process that the driver lists.
            let used_mib = view.use_of(holder.pid).filter(|_| !holder.is_gone);
            attributed.add(holder, used_mib);
        }
        account.outside_mib = attributed.outside(used_mib);
        account.over_lease_mib = attributed.over_lease_mib;
        let taken = view.reserve_mib + account.outside_mib + attributed.committed_mib;
        account.taken_mib = taken;
        account.free = FreeMemory::Known(view.info.total_mib.saturating_sub(taken));
        account
    }
}

fn is_stale(sample: &DeviceSample, now: HostTime) -> bool {
    now.since(sample.taken_at) > SAMPLE_AGE_MAX
}

/// Returns whether a use is clearly above its lease: by more than 5 %.
pub fn exceeds_lease(used_mib: u64, leased_mib: u64) -> bool {
    used_mib > leased_mib + leased_mib / OVER_LEASE_DIVISOR
}

/// Sums over the holders of a device.
#[derive(Default)]
struct Attribution {
    /// Sum of the larger of lease and use.
    committed_mib: u64,
    over_lease_mib: u64,
    /// Use of holders for which the driver gives it.
    known_mib: u64,
    /// Leases of the others.
    unknown_leased_mib: u64,
    /// Newest grant among the others that may still grow: epoch, and memory of others at it.
    newest_changing: Option<(u64, u64)>,
}

impl Attribution {
    fn add(&mut self, holder: &HolderMemory, used_mib: Option<u64>) {
        let leased_mib = holder.leased_mib;
        self.committed_mib += leased_mib.max(used_mib.unwrap_or(0));
        let Some(used_mib) = used_mib else {
            self.unknown_leased_mib += leased_mib;
            if holder.is_changing {
                let grant = (holder.epoch, holder.outside_mib);
                self.newest_changing = self.newest_changing.max(Some(grant));
            }
            return;
        };
        self.known_mib += used_mib;
        if exceeds_lease(used_mib, leased_mib) {
            self.over_lease_mib += used_mib - leased_mib;
        }
    }

    /// Returns the use that belongs to no holder.
    ///
    /// Holders whose use is unknown are taken to use their whole lease. Memory that was there before the newest of them
    /// that may still grow is not counted as theirs.
    fn outside(&self, used_mib: u64) -> u64 {
        let rest = used_mib.saturating_sub(self.known_mib);
        let beyond_leases = rest.saturating_sub(self.unknown_leased_mib);
        let at_grant = self.newest_changing.map_or(0, |(_, outside)| outside);
        beyond_leases.max(at_grant.min(rest))
    }
}

#[cfg(test)]
mod tests {
    use super::super::device::{DeviceInfo, DeviceKind, ProcessUse};
    use super::*;

    const NOW: HostTime = HostTime(100_000);

    fn view(used_mib: Option<u64>, processes: Option<&[(u32, Option<u64>)]>) -> DeviceView {
        let process = |(pid, used_mib): &(u32, Option<u64>)| ProcessUse {
            pid: *pid,
            holder_pid: (*pid < 100).then_some(*pid),
            used_mib: *used_mib,
        };
        DeviceView {
            info: DeviceInfo {
                id: "GPU-a".into(),
                index: 0,
                name: "card".into(),
                total_mib: 10_000,
                kind: DeviceKind::Gpu,
            },
            reserve_mib: 500,
            sample: Some(DeviceSample {
                used_mib,
                free_mib: None,
                processes: processes.map(|processes| processes.iter().map(process).collect()),
                utilization_percent: None,
                taken_at: NOW,
            }),
        }
    }

    fn holder(pid: u32, leased_mib: u64) -> HolderMemory {
        HolderMemory {
            pid,
            leased_mib,
            is_changing: true,
            is_gone: false,
            epoch: 7,
            outside_mib: 0,
        }
    }

    #[test]
    fn a_lease_counts_in_full_while_nothing_of_it_is_used() {
        let account = MemoryAccount::of(&view(Some(0), Some(&[])), &[holder(1, 4000)], NOW);
        assert_eq!(account.free, FreeMemory::Known(5500));
        assert_eq!((account.outside_mib, account.leased_mib), (0, 4000));
    }

    #[test]
    fn memory_of_processes_without_a_lease_is_outside() {
        let view = view(Some(3000), Some(&[(1, Some(1000)), (100, Some(2000))]));
        let account = MemoryAccount::of(&view, &[holder(1, 4000)], NOW);
        assert_eq!(account.outside_mib, 2000);
        assert_eq!(account.free, FreeMemory::Known(3500));
    }

    #[test]
    fn use_above_a_lease_counts_and_is_reported_beyond_five_percent() {
        let slightly = view(Some(4200), Some(&[(1, Some(4200))]));
        let account = MemoryAccount::of(&slightly, &[holder(1, 4000)], NOW);
        assert_eq!(account.over_lease_mib, 0);
        assert_eq!(account.free, FreeMemory::Known(5300));
        let clearly = view(Some(4201), Some(&[(1, Some(4201))]));
        let account = MemoryAccount::of(&clearly, &[holder(1, 4000)], NOW);
        assert_eq!(account.over_lease_mib, 201);
        assert_eq!(account.outside_mib, 0);
    }

    #[test]
    fn absent_and_stale_figures_grant_nothing() {
        let absent = MemoryAccount::of(&view(None, None), &[], NOW).free;
        assert_eq!(absent, FreeMemory::Unknown(UnknownCause::NoFigure));
        let later = NOW + Millis(5001);
        let stale = MemoryAccount::of(&view(Some(0), None), &[], later).free;
        assert_eq!(stale, FreeMemory::Unknown(UnknownCause::Stale));
        let mut without = view(Some(0), None);
        without.sample = None;
        let free = MemoryAccount::of(&without, &[], NOW).free;
        assert_eq!(free, FreeMemory::Unknown(UnknownCause::NoSample));
        assert_eq!(free.grantable_mib(), 0);
    }

    #[test]
    fn what_the_driver_keeps_is_in_use() {
        let mut view = view(Some(1000), Some(&[]));
        view.sample.as_mut().unwrap().free_mib = Some(8400);
        let account = MemoryAccount::of(&view, &[], NOW);
        assert_eq!(account.outside_mib, 1600);
    }

    #[test]
    fn without_figures_of_processes_a_load_does_not_hide_memory_of_others() {
        // The holder has a lease of 4000 and has used nothing yet; 2000 were there before.
        let loading = HolderMemory {
            outside_mib: 2000,
            ..holder(1, 4000)
        };
        let view = view(Some(2000), None);
        let account = MemoryAccount::of(&view, &[loading], NOW);
        assert_eq!(account.outside_mib, 2000);
        assert_eq!(account.free, FreeMemory::Known(3500));
        let ready = HolderMemory {
            is_changing: false,
            ..loading
        };
        let account = MemoryAccount::of(&view, &[ready], NOW);
        assert_eq!(account.outside_mib, 0, "all that is used may be its own");
    }

    #[test]
    fn memory_of_a_process_that_ended_is_within_its_lease_and_counts_once() {
        let gone = HolderMemory {
            is_gone: true,
            ..holder(1, 4000)
        };
        let account = MemoryAccount::of(&view(Some(4000), Some(&[])), &[gone], NOW);
        assert_eq!(account.outside_mib, 0);
        assert_eq!(account.free, FreeMemory::Known(5500));
    }

    #[test]
    fn a_process_without_a_figure_makes_its_holders_use_unknown() {
        let view = view(Some(6000), Some(&[(1, None), (100, Some(2000))]));
        let account = MemoryAccount::of(&view, &[holder(1, 4000)], NOW);
        assert_eq!(account.outside_mib, 2000);
        assert_eq!(account.free, FreeMemory::Known(3500));
    }
}
