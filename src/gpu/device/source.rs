//! The interface of a source of devices.
//!
//! Not a driver: each has a file of its own. Calls block for as long as the driver takes.

use infergate_core::vram::{DeviceId, DeviceInfo, DeviceSample, HostTime};
use thiserror::Error;

/// Reason why a source does not answer.
#[derive(Debug, Error)]
#[error("{what}: {why}")]
pub struct DeviceError {
    /// Card, file or call.
    pub what: String,
    /// Reason.
    pub why: String,
}

/// Devices of one kind of driver.
pub trait DeviceSource {
    /// Returns the devices, in the driver's order.
    ///
    /// # Errors
    /// The driver does not answer.
    fn list(&self) -> Result<Vec<DeviceInfo>, DeviceError>;

    /// Returns the version of the driver; none where there is none.
    fn driver_version(&self) -> Option<String> {
        None
    }

    /// Returns what the latest list could not tell of single cards, for people; none where all have answered.
    fn problem(&self) -> Option<String> {
        None
    }

    /// Returns the figures of a device. Processes are not attributed to holders yet.
    ///
    /// # Errors
    /// The device is not there, or the driver does not answer.
    fn sample(&self, device: &DeviceId, now: HostTime) -> Result<DeviceSample, DeviceError>;
}
