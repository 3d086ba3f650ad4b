//! Sources of devices: what is there, and samples of its memory.
//!
//! Not the account of what is free, which the core works out.

mod card_looks;
mod nvml;
mod ram;
mod simulated;
mod source;

pub use nvml::{NO_LIBRARY, NvmlDevices};
pub use ram::{RamDevice, host_free_mib};
pub use simulated::{SimulatedCards, described_cards, make_cards};
pub use source::{DeviceError, DeviceSource};
