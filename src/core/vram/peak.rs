//! Peak of the device memory of one instance, from its start until it serves: what the next load of it will need.
//!
//! Neither samples nor keeps it. Where the driver gives no figures of processes, the peak is the difference on the device.
//! No peak is known once a lease or a process of others has changed meanwhile. Sizes are MiB.

use super::device::{DeviceId, DeviceView};
use super::fit::DeviceShare;
use super::lease::{GroupId, Lease};

/// Peak of an instance over its devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeakMeter {
    devices: Vec<DevicePeak>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct DevicePeak {
    device: DeviceId,
    /// Memory in use, and leases and processes of others, before the process was there.
    before: Option<(u64, Others)>,
    peak_mib: u64,
    /// The peak may have been missed, or may be another's.
    is_spoiled: bool,
}

/// Leases of others on a device with their sizes, and processes of others there.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Others {
    leases: Vec<(GroupId, u64)>,
    pids: Vec<u32>,
}

/// Owner of the memory that is measured.
#[derive(Clone, Copy, Debug)]
pub struct PeakOwner<'a> {
    /// Leases that the memory belongs to.
    pub group: &'a GroupId,
    /// Process that holds them; `None` before it is there.
    pub holder_pid: Option<u32>,
}

impl PeakMeter {
    /// Begins before the process of the shares is there.
    pub fn start(
        shares: &[DeviceShare],
        owner: PeakOwner<'_>,
        leases: &[Lease],
        views: &[DeviceView],
    ) -> PeakMeter {
        let peak = |share: &DeviceShare| {
            let view = views.iter().find(|view| view.info.id == share.device);
            let before =
                view.and_then(|view| Some((view.used_mib()?, Others::of(view, owner, leases))));
            DevicePeak {
                device: share.device.clone(),
                before,
                peak_mib: 0,
                is_spoiled: false,
            }
        };
        PeakMeter {
            devices: shares.iter().map(peak).collect(),
        }
    }

    /// Takes one sample of all devices.
    pub fn observe(&mut self, owner: PeakOwner<'_>, leases: &[Lease], views: &[DeviceView]) {
        for own in &mut self.devices {
            let Some(view) = views.iter().find(|view| view.info.id == own.device) else {
                own.is_spoiled = true;
                continue;
            };
            let used = owner.holder_pid.and_then(|pid| view.use_of(pid));
            let used = used.or_else(|| {
                let (before_mib, others) = own.before.as_ref()?;
                let is_same = *others == Others::of(view, owner, leases);
                is_same.then_some(view.used_mib()?.saturating_sub(*before_mib))
            });
            match used {
                Some(mib) => own.peak_mib = own.peak_mib.max(mib),
                None => own.is_spoiled |= owner.holder_pid.is_some(),
            }
        }
    }

    /// Returns the peak of each device; `None` where nothing tells it apart from others.
    pub fn peaks_mib(&self) -> Option<Vec<u64>> {
        let known =
            |own: &DevicePeak| (!own.is_spoiled && own.peak_mib > 0).then_some(own.peak_mib);
        self.devices.iter().map(known).collect()
    }
}

impl Others {
    fn of(view: &DeviceView, owner: PeakOwner<'_>, leases: &[Lease]) -> Others {
        let leases = leases
            .iter()
            .filter(|lease| lease.device == view.info.id && lease.group != *owner.group);
        let processes = view
            .sample
            .iter()
            .flat_map(|it| it.processes.iter().flatten());
        let own = owner.holder_pid;
        let others = processes.filter(|it| own.is_none() || it.holder_pid != own);
        Others {
            leases: leases.map(|it| (it.group.clone(), it.mib)).collect(),
            pids: others.map(|process| process.pid).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vram::device::{DeviceInfo, DeviceKind, DeviceSample, ProcessUse};
    use crate::vram::host_time::HostTime;
    use crate::vram::lease::{Holder, HolderKind, LeaseId, LeaseState};

    const KEEPER: u32 = 7;

    /// A device with memory in use, and processes with their holders; none where they have no figures.
    fn view(used_mib: u64, processes: Option<&[(u32, u64)]>) -> DeviceView {
        let process = |(holder, used): &(u32, u64)| ProcessUse {
            pid: holder + 100,
            holder_pid: Some(*holder),
            used_mib: Some(*used),
        };
        DeviceView {
            info: DeviceInfo {
                id: "GPU-a".into(),
                index: 0,
                name: "card".into(),
                total_mib: 24_000,
                kind: DeviceKind::Gpu,
            },
            reserve_mib: 0,
            sample: Some(DeviceSample {
                used_mib: Some(used_mib),
                free_mib: None,
                processes: processes.map(|all| all.iter().map(process).collect()),
                utilization_percent: None,
                taken_at: HostTime(1),
            }),
        }
    }

    fn lease(group: &str, mib: u64) -> Lease {
        Lease {
            id: LeaseId::from(format!("l-{group}")),
            group: GroupId::from(group.to_owned()),
            device: "GPU-a".into(),
            mib,
            state: LeaseState::Held,
            epoch: 1,
            outside_mib: 0,
            holder: Holder {
                kind: HolderKind::Slot,
                name: "m#0".into(),
                node: "a".into(),
                pid: KEEPER,
                start: 1,
                pid_namespace: None,
                uid: 1,
            },
            priority: 5,
            granted_ms: HostTime(1),
            reclaiming_since_ms: None,
            state_before: None,
        }
    }

    /// Peak over samples that come after one before the start.
    fn peak(before: DeviceView, samples: &[(DeviceView, Vec<Lease>)]) -> Option<u64> {
        let group = GroupId::from("own".to_owned());
        let shares = [DeviceShare {
            device: "GPU-a".into(),
            mib: 8000,
        }];
        let mut owner = PeakOwner {
            group: &group,
            holder_pid: None,
        };
        let leases = [lease("own", 8000)];
        let mut meter = PeakMeter::start(&shares, owner, &leases, &[before]);
        owner.holder_pid = Some(KEEPER);
        for (view, leases) in samples {
            meter.observe(owner, leases, std::slice::from_ref(view));
        }
        meter.peaks_mib().map(|peaks| peaks[0])
    }

    #[test]
    fn the_peak_is_that_of_its_processes_whatever_others_do() {
        let sample = |own, other| {
            let processes = [(KEEPER, own), (9, other)];
            (
                view(own + other, Some(&processes)),
                vec![lease("own", 8000)],
            )
        };
        let samples = [sample(100, 0), sample(7000, 50), sample(6000, 9000)];
        assert_eq!(peak(view(0, Some(&[])), &samples), Some(7000));
    }

    #[test]
    fn without_figures_of_processes_it_is_the_difference_while_others_stay_as_they_are() {
        let sample = |used, leases: &[Lease]| (view(used, None), leases.to_vec());
        let own = [lease("own", 8000)];
        let both = [lease("own", 8000), lease("other", 500)];
        let quiet = [sample(2100, &own), sample(9000, &own), sample(8500, &own)];
        assert_eq!(peak(view(2000, None), &quiet), Some(7000));
        let changed = [sample(9000, &own), sample(9500, &both)];
        assert_eq!(peak(view(2000, None), &changed), None);
        assert_eq!(peak(view(2000, None), &[]), None, "nothing was seen");
    }
}
