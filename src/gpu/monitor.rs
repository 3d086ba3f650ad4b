//! Watch over the devices of this host and the ledger of their memory, on a thread of its own: a driver may hang.
//!
//! Decides nothing. A reading that is old says so by the moments of its samples; a device that is not listed any more is
//! not in it.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;
use std::{io, thread};

use infergate_core::vram::{
    Claim, DeviceId, DeviceInfo, DeviceView, FreeMemory, HolderLife, HostTime, Lease, LeaseState,
    Ledger, MemoryAccount, UnknownCause,
};
use thiserror::Error;
use tokio::sync::watch;

use super::config::{DeviceKindChoice, GpuConfig};
use super::device::{
    DeviceError, DeviceSource, NO_LIBRARY, NvmlDevices, RamDevice, SimulatedCards, host_free_mib,
    make_cards,
};
use super::holder::LeaseHost;
use super::ledger::HostLedger;
use super::lost::LostDevices;
use super::processes::descendants;

/// Pause between two readings.
const SLOW: Duration = Duration::from_secs(1);
/// The same while a lease is loading or reclaiming.
const FAST: Duration = Duration::from_millis(50);
/// Time for the driver's library to load at the start; later ones are waited for by readings.
const LIBRARY_WAIT: Duration = Duration::from_secs(5);

/// Reason why devices are not watched.
#[derive(Debug, Error)]
pub enum MonitorError {
    /// The thread cannot be started.
    #[error("devices cannot be watched: {0}")]
    Thread(#[from] io::Error),
    /// The configuration names a driver that is not installed.
    #[error(
        "gpu.devices: nvml: {NO_LIBRARY}: install the driver, or set `auto` for a host without one"
    )]
    NoLibrary,
}

/// Device with its newest sample and the account of its memory.
#[derive(Clone, Debug)]
pub struct ReadDevice {
    /// Device and sample.
    pub view: DeviceView,
    /// Account, with the leases of all holders.
    pub account: MemoryAccount,
}

impl ReadDevice {
    /// Returns the account as it is now: nothing is free once the sample is too old.
    pub fn account_at(&self, now: HostTime) -> MemoryAccount {
        self.account.at(&self.view, now)
    }

    /// Returns whether the driver has not answered for so long that nothing is granted.
    pub fn is_stale(&self, now: HostTime) -> bool {
        self.account_at(now).free == FreeMemory::Unknown(UnknownCause::Stale)
    }
}

/// Devices and leases at one moment.
#[derive(Clone, Debug, Default)]
pub struct HostReading {
    /// Devices, in the driver's order.
    pub devices: Vec<ReadDevice>,
    /// Leases of all holders.
    pub leases: Vec<Lease>,
    /// Claims of all holders, most urgent first.
    pub claims: Vec<Claim>,
    /// Version of the driver; none where there is none.
    pub driver: Option<String>,
    /// Memory of the host that is available, MiB; none where it is not known.
    pub host_free_mib: Option<u64>,
    /// Trouble with the driver or the ledger, for people.
    pub problem: Option<String>,
}

impl HostReading {
    /// Returns whether memory of a holder that has ended is awaited.
    fn is_reclaiming(&self) -> bool {
        let mut leases = self.leases.iter();
        leases.any(|lease| lease.state == LeaseState::Reclaiming)
    }

    /// Returns all devices with their newest samples.
    pub fn views(&self) -> Vec<DeviceView> {
        self.devices.iter().map(|it| it.view.clone()).collect()
    }

    /// Returns a device with its newest sample.
    pub fn view_of(&self, device: &DeviceId) -> Option<&DeviceView> {
        let mut devices = self.devices.iter();
        let found = devices.find(|it| it.view.info.id == *device);
        found.map(|it| &it.view)
    }
}

/// The watch; its thread ends with it.
#[derive(Debug)]
pub struct HostMonitor {
    readings: watch::Receiver<Arc<HostReading>>,
    is_fast: Arc<AtomicBool>,
    thread: thread::Thread,
}

impl HostMonitor {
    /// Starts to watch the devices of a configuration.
    ///
    /// # Errors
    /// The thread cannot be started, or the driver's library is not there that the configuration names.
    pub fn start(gpu: &GpuConfig, ledger: Arc<HostLedger>) -> Result<HostMonitor, MonitorError> {
        let (sender, readings) = watch::channel(Arc::default());
        let is_fast = Arc::new(AtomicBool::new(false));
        let mut watcher = DeviceWatcher {
            gpu: gpu.clone(),
            ledger,
            former: HostReading::default(),
            former_ledger: None,
            lost: LostDevices::default(),
        };
        if watcher.ledger.host().hides_others() {
            tracing::warn!(
                "/proc hides the processes of other users (hidepid): leases of theirs are freed by their own commands alone"
            );
        }
        let flag = Arc::clone(&is_fast);
        let builder = thread::Builder::new().name("gpu-devices".to_owned());
        let needs_library = gpu.devices == DeviceKindChoice::Nvml;
        let (found, is_found) = mpsc::sync_channel(1);
        let handle = builder.spawn(move || {
            if needs_library {
                // Not waited for any more where a driver hangs.
                let _ = found.send(!matches!(NvmlDevices::load_if_installed(), Ok(None)));
            }
            watcher.run(&sender, &flag);
        })?;
        if needs_library && is_found.recv_timeout(LIBRARY_WAIT) == Ok(false) {
            return Err(MonitorError::NoLibrary);
        }
        Ok(HostMonitor {
            readings,
            is_fast,
            thread: handle.thread().clone(),
        })
    }

    /// The readings, the newest one at a time.
    pub fn readings(&self) -> watch::Receiver<Arc<HostReading>> {
        self.readings.clone()
    }

    /// Reads each 50 ms instead of each second.
    pub fn set_fast(&self, is_fast: bool) {
        if self.is_fast.swap(is_fast, Ordering::Relaxed) != is_fast {
            self.thread.unpark();
        }
    }

    /// Reads at once.
    pub fn look(&self) {
        self.thread.unpark();
    }
}

struct DeviceWatcher {
    gpu: GpuConfig,
    ledger: Arc<HostLedger>,
    former: HostReading,
    /// The ledger as it was read last.
    former_ledger: Option<Ledger>,
    lost: LostDevices,
}

impl DeviceWatcher {
    fn run(&mut self, sender: &watch::Sender<Arc<HostReading>>, is_fast: &AtomicBool) {
        let mut source = None;
        while !sender.is_closed() {
            let reading = self.read(&mut source);
            if reading.problem != self.former.problem {
                match &reading.problem {
                    Some(problem) => tracing::warn!("devices: {problem}"),
                    None => tracing::info!("devices: all is well again"),
                }
            }
            self.former = reading.clone();
            let is_reclaiming = reading.is_reclaiming();
            if sender.send(Arc::new(reading)).is_err() {
                return;
            }
            thread::park_timeout(match is_reclaiming || is_fast.load(Ordering::Relaxed) {
                true => FAST,
                false => SLOW,
            });
        }
    }

    /// Reads devices and ledger. A device that cannot be read stays as it was, with the old moments of its samples. A ledger
    /// that cannot be read stays as it was: devices are followed without it, and nothing is leased.
    fn read(&mut self, source: &mut Option<Box<dyn DeviceSource>>) -> HostReading {
        let mut problem = None;
        let mut views = self.views(source).unwrap_or_else(|error| {
            *source = None;
            problem = Some(error.to_string());
            let former = self.former.devices.iter();
            former.map(|device| device.view.clone()).collect()
        });
        let driver = source.as_ref().and_then(|source| source.driver_version());
        problem = problem.or_else(|| source.as_ref()?.problem());
        match self.live_ledger(&mut views) {
            Ok(ledger) => self.former_ledger = Some(ledger),
            Err(error) => {
                problem = Some(error.to_string());
                if let Some(ledger) = &self.former_ledger {
                    attribute(self.ledger.host(), &mut views, ledger);
                }
            }
        }
        let Some(ledger) = &self.former_ledger else {
            return HostReading {
                problem,
                ..self.former.clone()
            };
        };
        let now = self.ledger.host().now();
        let devices = views.into_iter().map(|view| ReadDevice {
            account: ledger.account(&view, now),
            view,
        });
        HostReading {
            devices: devices.collect(),
            leases: ledger.leases().to_vec(),
            claims: ledger.claims().to_vec(),
            driver,
            host_free_mib: host_free_mib(),
            problem,
        }
    }

    /// Reads the ledger, without the leases of holders that are gone and whose memory has returned, and names the holders
    /// of the processes in the views.
    fn live_ledger(&self, views: &mut [DeviceView]) -> Result<Ledger, super::LedgerStoreError> {
        let host = self.ledger.host();
        let mut ledger = self.ledger.read()?;
        // The holder of one that waits for its memory may be of another pid namespace, and not be judged here.
        let is_over = |lease: &Lease| {
            lease.state == LeaseState::Reclaiming || host.life(&lease.holder) == HolderLife::Dead
        };
        if ledger.leases().iter().any(is_over) {
            self.ledger.change(|ledger, _| {
                attribute(host, views, ledger);
                ledger.free_returned(views);
            })?;
            ledger = self.ledger.read()?;
        }
        attribute(host, views, &ledger);
        Ok(ledger)
    }

    /// Devices with their samples; those that were lost are left out until they are good again.
    fn views(
        &mut self,
        source: &mut Option<Box<dyn DeviceSource>>,
    ) -> Result<Vec<DeviceView>, DeviceError> {
        let had_devices = !self.former.devices.is_empty();
        let source: &dyn DeviceSource = match (&self.gpu.devices, source) {
            // Which processes count changes with the leases.
            (DeviceKindChoice::Ram, _) => &RamDevice::new(self.leased_processes()),
            (_, Some(source)) => &**source,
            (_, source) => &**source.insert(open_source(&self.gpu, had_devices)?),
        };
        let listed = source.list()?;
        if listed.is_empty() && source.problem().is_some() {
            // No card has answered yet: none is gone for that.
            let former = self.former.devices.iter();
            return Ok(former.map(|device| device.view.clone()).collect());
        }
        let listed = listed.into_iter();
        let used = listed.filter(|info| self.gpu.uses(info.id.as_str(), info.index));
        let views = used.map(|info| self.view(source, info)).collect();
        let former = self.former.devices.iter().map(|it| &it.view.info.id);
        Ok(self.lost.without_lost(former, views))
    }

    /// Processes of the holders of leases.
    fn leased_processes(&self) -> Vec<u32> {
        let ledger = self.ledger.read();
        let leases = ledger.iter().flat_map(|ledger| ledger.leases());
        let holders: BTreeSet<u32> = leases.map(|lease| lease.holder.pid).collect();
        descendants(&holders)
    }

    /// Samples one device; one that does not answer keeps its former sample.
    fn view(&self, source: &dyn DeviceSource, info: DeviceInfo) -> DeviceView {
        let sample = source.sample(&info.id, self.ledger.host().now());
        let mut former = self.former.devices.iter();
        let former = former.find(|device| device.view.info.id == info.id);
        let sample = match sample {
            Ok(sample) => Some(sample),
            Err(error) => {
                tracing::debug!(device = info.id.as_str(), %error, "a device cannot be sampled");
                former.and_then(|device| device.view.sample.clone())
            }
        };
        DeviceView {
            reserve_mib: self.gpu.reserve_of(info.id.as_str()),
            info,
            sample,
        }
    }
}

fn attribute(host: &LeaseHost, views: &mut [DeviceView], ledger: &Ledger) {
    let samples = views.iter_mut().filter_map(|view| view.sample.as_mut());
    samples.for_each(|sample| host.attribute(sample, ledger));
}

/// Opens the source of the devices of a configuration; simulated cards are made. `had_devices`: a driver has answered.
fn open_source(gpu: &GpuConfig, had_devices: bool) -> Result<Box<dyn DeviceSource>, DeviceError> {
    Ok(match gpu.devices {
        DeviceKindChoice::Nvml => Box::new(NvmlDevices::load()?),
        DeviceKindChoice::Auto => match NvmlDevices::load_if_installed()? {
            Some(devices) => Box::new(devices),
            // It does not answer any more: that is no host without a card.
            None if had_devices => Box::new(NvmlDevices::load()?),
            None => {
                tracing::info!("{NO_LIBRARY}: no device is used");
                Box::new(NoDevices)
            }
        },
        DeviceKindChoice::Ram => Box::new(RamDevice::new(Vec::new())),
        DeviceKindChoice::Simulated => {
            make_cards(&gpu.simulated.directory, &gpu.simulated.cards)?;
            Box::new(SimulatedCards::new(&gpu.simulated.directory))
        }
        DeviceKindChoice::None => Box::new(NoDevices),
    })
}

/// Source without a device.
struct NoDevices;

impl DeviceSource for NoDevices {
    fn list(&self) -> Result<Vec<DeviceInfo>, DeviceError> {
        Ok(Vec::new())
    }

    fn sample(
        &self,
        device: &DeviceId,
        _: infergate_core::vram::HostTime,
    ) -> Result<infergate_core::vram::DeviceSample, DeviceError> {
        Err(DeviceError {
            what: device.as_str().to_owned(),
            why: "no device is there".to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_of_a_driver_that_is_not_installed_are_an_error_of_the_start() {
        if !matches!(NvmlDevices::load_if_installed(), Ok(None)) {
            println!("skipped: an NVIDIA driver is installed here");
            return;
        }
        let start = |devices| {
            let gpu = GpuConfig {
                devices,
                ..GpuConfig::default()
            };
            HostMonitor::start(&gpu, Arc::new(HostLedger::in_memory().unwrap()))
        };
        let error = start(DeviceKindChoice::Nvml).unwrap_err().to_string();
        assert!(error.contains("libnvidia-ml.so.1"), "{error}");
        start(DeviceKindChoice::Auto).unwrap();
    }
}
