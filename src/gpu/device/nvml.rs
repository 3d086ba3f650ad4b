//! NVIDIA devices, through the driver's own library, which is loaded at run time.
//!
//! Only reads: no setting of a card is changed. Without the library there are no devices, which is a sentence and no
//! fault. Slices (MIG) take the place of their card. Figures that a driver does not give are `None`.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;

use infergate_core::vram::{DeviceId, DeviceInfo, DeviceKind, DeviceSample, HostTime, ProcessUse};
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};

use super::ram::{RAM_DEVICE, RamDevice};
use super::source::{DeviceError, DeviceSource};

/// Problem of a host without the driver.
pub const NO_LIBRARY: &str = "no NVIDIA driver library (libnvidia-ml.so.1)";
const MIB: u64 = 1024 * 1024;
/// Value of `nvmlDeviceGetMigMode` for a card that is cut into slices.
const MIG_ENABLED: u32 = 1;
/// Slices that a card can be cut into.
const SLICES_MAX: u32 = 7;
/// Inode of the first pid namespace of a host (`PROC_PID_INIT_INO` of Linux). In another one, as in a container, the
/// driver's pids are not those of `/proc`.
const FIRST_PID_NAMESPACE: u64 = 0xEFFF_FFFC;
/// The devices that this process itself is limited to.
const VISIBLE_DEVICES: &str = "CUDA_VISIBLE_DEVICES";

/// The library, loaded; unloaded by drop.
pub struct NvmlDevices {
    nvml: Nvml,
    /// Entries of `CUDA_VISIBLE_DEVICES`, where that is set.
    visible: Option<Vec<String>>,
    /// The driver's pids are those of `/proc` here.
    knows_pids: bool,
}

impl NvmlDevices {
    /// Loads the library.
    ///
    /// # Errors
    /// The library is not there, or refuses.
    pub fn load() -> Result<NvmlDevices, DeviceError> {
        let loaded = NvmlDevices::load_if_installed()?;
        loaded.ok_or_else(|| DeviceError {
            what: NO_LIBRARY.to_owned(),
            why: "no devices; simulated cards are named by --cards".to_owned(),
        })
    }

    /// Loads the library; none where there is none.
    ///
    /// # Errors
    /// The library refuses, as without the driver's module or beside one of another version.
    pub fn load_if_installed() -> Result<Option<NvmlDevices>, DeviceError> {
        let nvml = match Nvml::init() {
            Ok(nvml) => nvml,
            Err(NvmlError::LibloadingError(_)) => return Ok(None),
            Err(error) => return Err(failed("NVIDIA driver", &error)),
        };
        let visible = std::env::var(VISIBLE_DEVICES).ok();
        let split = |text: String| {
            text.split(',')
                .map(|entry| entry.trim().to_owned())
                .collect()
        };
        let namespace = std::fs::metadata("/proc/self/ns/pid");
        Ok(Some(NvmlDevices {
            nvml,
            visible: visible.map(split),
            knows_pids: namespace.is_ok_and(|file| file.ino() == FIRST_PID_NAMESPACE),
        }))
    }

    /// Calls `each` with every device that may be used: identity, place, kind and handle. A lost card is left out, as one
    /// that is not there.
    fn for_each(
        &self,
        mut each: impl FnMut(&str, u32, DeviceKind, &Device<'_>) -> Result<(), NvmlError>,
    ) -> Result<(), NvmlError> {
        for index in 0..self.nvml.device_count()? {
            match self.for_card(index, &mut each) {
                Err(NvmlError::GpuLost) => tracing::debug!(index, "the driver has lost a card"),
                result => result?,
            }
        }
        Ok(())
    }

    /// Calls `each` with a card, or with its slices.
    fn for_card(
        &self,
        index: u32,
        each: &mut impl FnMut(&str, u32, DeviceKind, &Device<'_>) -> Result<(), NvmlError>,
    ) -> Result<(), NvmlError> {
        let card = self.nvml.device_by_index(index)?;
        let is_cut = match card.mig_mode() {
            Ok(mode) => mode.current == MIG_ENABLED,
            // A container that has one slice may not ask its card.
            Err(NvmlError::NoPermission) => true,
            Err(error @ NvmlError::GpuLost) => return Err(error),
            // Cards without slices do not support the question.
            Err(_) => false,
        };
        if !is_cut {
            let uuid = card.uuid()?;
            return match self.is_visible(&uuid, Some(index)) {
                true => each(&uuid, index, DeviceKind::Gpu, &card),
                false => Ok(()),
            };
        }
        for place in 0..card.mig_device_count().unwrap_or(SLICES_MAX) {
            // Places without a slice are not found.
            if let Ok(slice) = card.mig_device_by_index(place) {
                let uuid = slice.uuid()?;
                if self.is_visible(&uuid, None) {
                    each(&uuid, index, DeviceKind::Mig, &slice)?;
                }
            }
        }
        Ok(())
    }

    fn is_visible(&self, uuid: &str, index: Option<u32>) -> bool {
        let Some(visible) = &self.visible else {
            return true;
        };
        let index = index.map(|index| index.to_string());
        let is_meant = |entry: &String| {
            let is_uuid = entry.starts_with("GPU-") || entry.starts_with("MIG-");
            is_uuid && uuid.starts_with(&**entry) || index.as_ref() == Some(entry)
        };
        visible.iter().any(is_meant)
    }

    fn sample_of(&self, device: &Device<'_>, now: HostTime) -> Result<DeviceSample, NvmlError> {
        let (used_mib, free_mib) = match device.memory_info() {
            Ok(memory) => (Some(memory.used.div_ceil(MIB)), Some(memory.free / MIB)),
            Err(NvmlError::NotSupported) => {
                let host = RamDevice::new(Vec::new()).sample(&RAM_DEVICE.into(), now);
                host.map_or((None, None), |host| (host.used_mib, host.free_mib))
            }
            // An old driver does not have the call.
            Err(NvmlError::FailedToLoadSymbol(_)) => (None, None),
            Err(error) => return Err(error),
        };
        Ok(DeviceSample {
            used_mib,
            free_mib,
            processes: self.knows_pids.then(|| processes(device)).flatten(),
            utilization_percent: utilization(device),
            taken_at: now,
        })
    }
}

/// Share of the last moments in which the device worked, percent. Slices of a card do not tell theirs.
fn utilization(device: &Device<'_>) -> Option<u8> {
    let rates = device.utilization_rates().ok()?;
    Some(u8::try_from(rates.gpu).unwrap_or(u8::MAX).min(100))
}

impl DeviceSource for NvmlDevices {
    fn driver_version(&self) -> Option<String> {
        self.nvml.sys_driver_version().ok()
    }

    fn list(&self) -> Result<Vec<DeviceInfo>, DeviceError> {
        let mut devices = Vec::new();
        let listed = self.for_each(|uuid, index, kind, device| {
            let (kind, total_mib) = match device.memory_info() {
                Ok(memory) => (kind, memory.total / MIB),
                // The card uses the memory of the host.
                Err(NvmlError::NotSupported) => (DeviceKind::Ram, host_total_mib()),
                Err(NvmlError::FailedToLoadSymbol(_)) => (kind, 0),
                Err(error) => return Err(error),
            };
            devices.push(DeviceInfo {
                id: uuid.into(),
                index,
                name: device.name().unwrap_or_default().into(),
                total_mib,
                kind,
            });
            Ok(())
        });
        listed.map_err(|error| failed("list of devices", &error))?;
        Ok(devices)
    }

    fn sample(&self, device: &DeviceId, now: HostTime) -> Result<DeviceSample, DeviceError> {
        let mut sampled = None;
        let asked = self.for_each(|uuid, _, _, handle| {
            if uuid == device.as_str() {
                sampled = Some(self.sample_of(handle, now)?);
            }
            Ok(())
        });
        asked.map_err(|error| failed(device.as_str(), &error))?;
        sampled.ok_or_else(|| failed(device.as_str(), &"the device is not there any more"))
    }
}

/// Memory of the host, MiB; 0 where it cannot be read.
fn host_total_mib() -> u64 {
    let host = RamDevice::new(Vec::new()).list();
    host.map_or(0, |devices| devices.iter().map(|it| it.total_mib).sum())
}

/// Processes of a device by all of its lists. A process in several of them has the same memory in each.
fn processes(device: &Device<'_>) -> Option<Vec<ProcessUse>> {
    let compute = device.running_compute_processes().ok()?;
    // A card without a display, or without MPS, does not support the list.
    let mut graphics = device.running_graphics_processes().unwrap_or_default();
    graphics.extend(device.mps_running_compute_processes().unwrap_or_default());
    let mut uses: BTreeMap<u32, Option<u64>> = BTreeMap::new();
    for process in compute.iter().chain(&graphics) {
        let used_mib = match process.used_gpu_memory {
            UsedGpuMemory::Used(bytes) => Some(bytes.div_ceil(MIB)),
            UsedGpuMemory::Unavailable => None,
        };
        let known = uses.entry(process.pid).or_insert(used_mib);
        *known = known.zip(used_mib).map(|(known, used)| known.max(used));
    }
    let uses = uses.into_iter().map(|(pid, used_mib)| ProcessUse {
        pid,
        holder_pid: None,
        used_mib,
    });
    Some(uses.collect())
}

fn failed(what: &str, why: &dyn std::fmt::Display) -> DeviceError {
    DeviceError {
        what: what.to_owned(),
        why: why.to_string(),
    }
}
