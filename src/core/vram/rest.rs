//! Sleep of a server: whether memory of the host allows it, and the device memory that it keeps.
//!
//! Not the calls of a server, and not the states. Sizes are MiB; an absent figure is unknown, never zero.

use super::device::DeviceView;
use super::estimate::measured_need;
use super::slot::StopMethod;
use crate::model::SleepLevel;

/// Memory of the host that a sleep takes, beside what there is of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SleepMemory {
    /// Level.
    pub level: SleepLevel,
    /// Weights, which move to memory of the host at level 1.
    pub weights_mib: u64,
    /// Memory of the host that is available; `None` where it is not known.
    pub free_mib: Option<u64>,
    /// Part of it that stays free, or that other servers fall asleep into.
    pub kept_mib: u64,
    /// Bound of the process's own memory; `None` without one.
    pub limit_mib: Option<u64>,
}

impl SleepMemory {
    /// Returns the way to end the service of an idle process: a sleep, unless the host has no room for the weights.
    pub fn method(&self) -> StopMethod {
        let has_room = match self.level {
            SleepLevel::None => false,
            SleepLevel::Dropped => true,
            SleepLevel::Weights => {
                let need_mib = self.weights_mib.saturating_add(self.kept_mib);
                self.free_mib.is_some_and(|free| need_mib <= free)
                    && self.limit_mib.is_none_or(|limit| self.weights_mib <= limit)
            }
        };
        match has_room {
            true => StopMethod::Sleep,
            false => StopMethod::Terminate,
        }
    }
}

/// Returns the lease of a process that has fallen asleep on a device; `None` where nothing tells what it keeps.
///
/// Without figures of processes, what the device has less in use since `before_mib` is what the process gave up.
pub fn asleep_lease(
    view: &DeviceView,
    holder_pid: u32,
    leased_mib: u64,
    before_mib: Option<u64>,
) -> Option<u64> {
    let rest_mib = match view.use_of(holder_pid) {
        Some(used) => measured_need(used),
        None => leased_mib.saturating_sub(before_mib?.saturating_sub(view.used_mib()?)),
    };
    Some(rest_mib.min(leased_mib))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vram::device::{DeviceInfo, DeviceKind, DeviceSample, ProcessUse};
    use crate::vram::host_time::HostTime;

    const WEIGHTS: SleepMemory = SleepMemory {
        level: SleepLevel::Weights,
        weights_mib: 8000,
        free_mib: Some(9000),
        kept_mib: 1000,
        limit_mib: None,
    };

    fn view(used_mib: u64, process_mib: Option<Option<u64>>) -> DeviceView {
        let process = |used_mib| ProcessUse {
            pid: 8,
            holder_pid: Some(7),
            used_mib,
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
                processes: process_mib.map(|used| vec![process(used)]),
                utilization_percent: None,
                taken_at: HostTime(1),
            }),
        }
    }

    #[test]
    fn weights_move_to_the_host_only_where_it_has_room_for_them() {
        assert_eq!(WEIGHTS.method(), StopMethod::Sleep);
        for less in [
            SleepMemory {
                free_mib: Some(8999),
                ..WEIGHTS
            },
            SleepMemory {
                free_mib: None,
                ..WEIGHTS
            },
            SleepMemory {
                limit_mib: Some(7999),
                ..WEIGHTS
            },
            SleepMemory {
                level: SleepLevel::None,
                ..WEIGHTS
            },
        ] {
            assert_eq!(less.method(), StopMethod::Terminate, "{less:?}");
        }
        let dropped = SleepMemory {
            level: SleepLevel::Dropped,
            free_mib: None,
            ..WEIGHTS
        };
        assert_eq!(dropped.method(), StopMethod::Sleep);
    }

    #[test]
    fn a_sleeping_process_keeps_a_lease_of_what_it_still_uses() {
        let measured = view(5000, Some(Some(1000)));
        assert_eq!(asleep_lease(&measured, 7, 9000, None), Some(1094));
        assert_eq!(asleep_lease(&measured, 7, 500, None), Some(500));
        // Others' memory counts as the process's own rest where processes have no figures.
        let unknown = view(5000, Some(None));
        assert_eq!(asleep_lease(&unknown, 7, 9000, Some(12_000)), Some(2000));
        assert_eq!(asleep_lease(&unknown, 7, 9000, Some(4000)), Some(9000));
        assert_eq!(asleep_lease(&unknown, 7, 9000, None), None);
    }
}
