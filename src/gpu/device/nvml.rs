//! NVIDIA devices, through the driver's own library, which is loaded at run time.
//!
//! Only reads: no setting of a card is changed. Without the library there are no devices, which is a sentence and no
//! fault. Slices (MIG) take the place of their card. Figures that a driver does not give are `None`. A card that fails or
//! hangs stays in the list as it was, without a sample; the others are measured.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use infergate_core::vram::{DeviceId, DeviceInfo, DeviceKind, DeviceSample, HostTime, ProcessUse};
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};

use super::card_looks::CardLooks;
use super::ram::{RAM_DEVICE, RamDevice};
use super::source::{DeviceError, DeviceSource};
use crate::telemetry::host_time;

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
/// Problem of a card whose driver's call hangs.
const NO_ANSWER: &str = "the driver does not answer";
/// Problem of a device that its card does not list.
const GONE: &str = "the device is not there any more";
/// The devices that this process itself is limited to.
const VISIBLE_DEVICES: &str = "CUDA_VISIBLE_DEVICES";

/// The library, loaded; unloaded by drop, once no card hangs.
pub struct NvmlDevices {
    driver: Arc<NvmlDriver>,
    looks: CardLooks<Result<Vec<LookedDevice>, CardFault>>,
    found: RefCell<FoundCards>,
}

/// Cards as the latest list has found them.
#[derive(Default)]
struct FoundCards {
    /// Devices by the index of their card. A card that fails keeps its own: it is not gone.
    devices: BTreeMap<u32, Vec<DeviceInfo>>,
    /// Samples that the list has taken and that were not asked for yet.
    samples: BTreeMap<DeviceId, DeviceSample>,
    problem: Option<String>,
}

/// A device with its figures.
struct LookedDevice {
    info: DeviceInfo,
    sample: DeviceSample,
}

/// Reason why a card does not tell its devices.
enum CardFault {
    /// The driver has lost it: it is as one that is not there.
    Lost,
    /// The driver fails.
    Failed(String),
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
        let driver = Arc::new(NvmlDriver {
            nvml,
            visible: visible.map(split),
            knows_pids: namespace.is_ok_and(|file| file.ino() == FIRST_PID_NAMESPACE),
        });
        let looker = Arc::clone(&driver);
        Ok(Some(NvmlDevices {
            driver,
            looks: CardLooks::new(move |index| looker.look(index)),
            found: RefCell::default(),
        }))
    }
}

/// The library with what this process may use of it.
struct NvmlDriver {
    nvml: Nvml,
    /// Entries of `CUDA_VISIBLE_DEVICES`, where that is set.
    visible: Option<Vec<String>>,
    /// The driver's pids are those of `/proc` here.
    knows_pids: bool,
}

impl NvmlDriver {
    /// Reads the devices of a card that may be used, with their figures.
    fn look(&self, index: u32) -> Result<Vec<LookedDevice>, CardFault> {
        let mut looked = Vec::new();
        let asked = self.for_card(index, &mut |uuid, kind, device| {
            looked.push(self.looked(uuid, index, kind, device)?);
            Ok(())
        });
        match asked {
            Ok(()) => Ok(looked),
            Err(NvmlError::GpuLost) => Err(CardFault::Lost),
            Err(error) => Err(CardFault::Failed(error.to_string())),
        }
    }

    fn looked(
        &self,
        uuid: &str,
        index: u32,
        kind: DeviceKind,
        device: &Device<'_>,
    ) -> Result<LookedDevice, NvmlError> {
        let (kind, total_mib) = match device.memory_info() {
            Ok(memory) => (kind, memory.total / MIB),
            // The card uses the memory of the host.
            Err(NvmlError::NotSupported) => (DeviceKind::Ram, host_total_mib()),
            Err(NvmlError::FailedToLoadSymbol(_)) => (kind, 0),
            Err(error) => return Err(error),
        };
        Ok(LookedDevice {
            info: DeviceInfo {
                id: uuid.into(),
                index,
                name: device.name().unwrap_or_default().into(),
                total_mib,
                kind,
            },
            sample: self.sample_of(device, host_time())?,
        })
    }

    /// Calls `each` with a card, or with its slices: identity, kind and handle.
    fn for_card(
        &self,
        index: u32,
        each: &mut impl FnMut(&str, DeviceKind, &Device<'_>) -> Result<(), NvmlError>,
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
                true => each(&uuid, DeviceKind::Gpu, &card),
                false => Ok(()),
            };
        }
        for place in 0..card.mig_device_count().unwrap_or(SLICES_MAX) {
            // Places without a slice are not found.
            if let Ok(slice) = card.mig_device_by_index(place) {
                let uuid = slice.uuid()?;
                if self.is_visible(&uuid, None) {
                    each(&uuid, DeviceKind::Mig, &slice)?;
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
        self.driver.nvml.sys_driver_version().ok()
    }

    fn list(&self) -> Result<Vec<DeviceInfo>, DeviceError> {
        let count = self.driver.nvml.device_count();
        let count = match count {
            Ok(count) => count,
            // Another source would have another thread for the card that hangs.
            Err(error) if self.looks.is_waiting() => {
                let mut found = self.found.borrow_mut();
                found.samples.clear();
                found.problem = Some(error.to_string());
                return Ok(found.devices.values().flatten().cloned().collect());
            }
            Err(error) => return Err(failed("list of devices", &error)),
        };
        let looked = self.looks.look_at(0..count);
        let mut found = self.found.borrow_mut();
        found.devices.retain(|index, _| *index < count);
        found.samples.clear();
        let mut problems = Vec::new();
        for (index, answer) in looked {
            match answer {
                Some(Ok(devices)) => {
                    let infos = devices.iter().map(|device| device.info.clone());
                    found.devices.insert(index, infos.collect());
                    let samples = devices.into_iter().map(|it| (it.info.id, it.sample));
                    found.samples.extend(samples);
                }
                Some(Err(CardFault::Lost)) => {
                    tracing::debug!(index, "the driver has lost a card");
                    found.devices.remove(&index);
                }
                Some(Err(CardFault::Failed(why))) => problems.push(format!("card {index}: {why}")),
                None => problems.push(format!("card {index}: {NO_ANSWER}")),
            }
        }
        let devices: Vec<DeviceInfo> = found.devices.values().flatten().cloned().collect();
        found.problem = (!problems.is_empty()).then(|| problems.join("; "));
        match &found.problem {
            // One whose cards hang stays, and is asked again: another one would hang as well.
            Some(problem) if devices.is_empty() && !self.looks.is_waiting() => {
                Err(failed("list of devices", problem))
            }
            _ => Ok(devices),
        }
    }

    fn problem(&self) -> Option<String> {
        self.found.borrow().problem.clone()
    }

    fn sample(&self, device: &DeviceId, _: HostTime) -> Result<DeviceSample, DeviceError> {
        let mut found = self.found.borrow_mut();
        if let Some(sample) = found.samples.remove(device) {
            return Ok(sample);
        }
        let mut cards = found.devices.iter();
        let card = cards.find(|(_, infos)| infos.iter().any(|info| info.id == *device));
        let looked = card.map(|(index, _)| self.looks.look_at(std::iter::once(*index)));
        let why: &dyn std::fmt::Display = match looked.and_then(|mut looked| looked.pop()) {
            Some((_, Some(Ok(devices)))) => {
                let mut devices = devices.into_iter();
                match devices.find(|it| it.info.id == *device) {
                    Some(looked) => return Ok(looked.sample),
                    None => &GONE,
                }
            }
            Some((_, Some(Err(CardFault::Failed(why))))) => &why.clone(),
            Some((_, None)) => &NO_ANSWER,
            Some((_, Some(Err(CardFault::Lost)))) | None => &GONE,
        };
        Err(failed(device.as_str(), why))
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
