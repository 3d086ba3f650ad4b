//! Devices that were lost, until they are good again: a driver may list a device that fails at the next call.
//!
//! Does not end what was on them. At most [`DEVICES_MAX`] are remembered.

use std::collections::BTreeMap;

use infergate_core::vram::{DeviceId, DeviceView};

/// Samples after which a device that was lost is used again.
const GOOD_SAMPLES: u32 = 3;
/// Devices that are remembered: as many as a host may have.
const DEVICES_MAX: usize = 256;

/// Lost devices, with the good samples since then.
#[derive(Debug, Default)]
pub(super) struct LostDevices {
    good: BTreeMap<DeviceId, u32>,
}

impl LostDevices {
    /// Returns which of the devices that were read may be used. `former`: those of the reading before.
    pub fn without_lost<'a>(
        &mut self,
        former: impl IntoIterator<Item = &'a DeviceId>,
        read: Vec<DeviceView>,
    ) -> Vec<DeviceView> {
        for id in former {
            if !read.iter().any(|view| view.info.id == *id) && self.good.len() < DEVICES_MAX {
                tracing::warn!(
                    device = id.as_str(),
                    "the device is lost: nothing is loaded there until it is back"
                );
                self.good.insert(id.clone(), 0);
            }
        }
        let mut present = read;
        present.retain(|view| self.is_usable(view));
        present
    }

    fn is_usable(&mut self, view: &DeviceView) -> bool {
        let id = &view.info.id;
        let Some(good) = self.good.get_mut(id) else {
            return true;
        };
        // A device that is left out has no former sample: this one is new.
        *good = view.sample.as_ref().map_or(0, |_| *good + 1);
        let is_back = *good >= GOOD_SAMPLES;
        if is_back {
            tracing::info!(device = id.as_str(), "the device is back");
            self.good.remove(id);
        }
        is_back
    }
}

#[cfg(test)]
mod tests {
    use infergate_core::vram::{DeviceInfo, DeviceKind, DeviceSample, HostTime};

    use super::*;

    fn view(id: &str, is_sampled: bool) -> DeviceView {
        DeviceView {
            info: DeviceInfo {
                id: id.into(),
                index: 0,
                name: "card".into(),
                total_mib: 1000,
                kind: DeviceKind::Gpu,
            },
            reserve_mib: 0,
            sample: is_sampled.then_some(DeviceSample {
                used_mib: Some(0),
                free_mib: None,
                processes: None,
                utilization_percent: None,
                taken_at: HostTime(1),
            }),
        }
    }

    #[test]
    fn a_lost_device_is_back_after_three_good_samples_in_a_row() {
        let mut lost = LostDevices::default();
        let (a, b) = (DeviceId::from("a"), DeviceId::from("b"));
        let mut read = |former: &[&DeviceId], views: Vec<DeviceView>| {
            let present = lost.without_lost(former.iter().copied(), views);
            let ids: Vec<String> = present.iter().map(|it| it.info.id.to_string()).collect();
            ids.concat()
        };
        let both = |is_good: bool| vec![view("a", true), view("b", is_good)];
        assert_eq!(
            read(&[], both(false)),
            "ab",
            "without a sample it is no lost one"
        );
        assert_eq!(read(&[&a, &b], vec![view("a", true)]), "a");
        assert_eq!(read(&[&a], both(true)), "a");
        assert_eq!(read(&[&a], both(true)), "a");
        assert_eq!(read(&[&a], both(false)), "a", "it begins anew");
        assert_eq!(read(&[&a], both(true)), "a");
        assert_eq!(read(&[&a], both(true)), "a");
        assert_eq!(read(&[&a], both(true)), "ab");
        assert_eq!(read(&[&a, &b], both(false)), "ab");
    }
}
