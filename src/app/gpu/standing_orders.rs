//! Orders of operators that outlast the gateway: models that are pinned, devices that take no load.
//!
//! Kept in a small file, replaced whole. A file of another version, or one that cannot be read, counts as none.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use infergate_core::ModelId;
use infergate_core::vram::{DeviceId, PoolCommand};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::admin::DeviceOrder;
use crate::app::state_dir::{self, WriteDurability};

/// Version of the file's layout.
const VERSION: u32 = 1;
/// Folder of the file in the state directory, and its name.
const FOLDER: &str = "gpu";
const FILE: &str = "runtime.json";
/// Largest file that is read, bytes.
const BYTES_MAX: u64 = 1 << 20;

/// State of a device by order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum DeviceClosure {
    /// Takes no load; what is there stays.
    Cordoned,
    /// Takes no load, and models leave it once their requests have ended.
    Draining,
}

impl DeviceClosure {
    /// Word for operators.
    pub const fn name(self) -> &'static str {
        match self {
            DeviceClosure::Cordoned => "cordoned",
            DeviceClosure::Draining => "draining",
        }
    }
}

/// Orders that stand.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct StandingOrders {
    version: u32,
    pinned: BTreeSet<String>,
    devices: BTreeMap<String, DeviceClosure>,
}

impl StandingOrders {
    /// Reads the orders in the state directory of a gateway.
    fn read(state_dir: &Path) -> StandingOrders {
        let path = state_dir.join(FOLDER).join(FILE);
        let read = state_dir::read(&path, BYTES_MAX).map_err(|error| error.to_string());
        let orders = read.and_then(|bytes| match bytes {
            None => Ok(StandingOrders::default()),
            Some(bytes) => serde_json::from_slice(&bytes).map_err(|error| error.to_string()),
        });
        match orders {
            Ok(orders) if orders.version == VERSION => orders,
            Ok(orders) if orders == StandingOrders::default() => orders,
            Ok(_) => StandingOrders::default(),
            Err(error) => {
                tracing::warn!(
                    "{}: {error}: pins and cordons are forgotten; remove the file",
                    path.display()
                );
                StandingOrders::default()
            }
        }
    }

    /// Writes the orders; blocks for as long as the disk takes.
    fn write(&self, state_dir: &Path) {
        let orders = StandingOrders {
            version: VERSION,
            ..self.clone()
        };
        let bytes = serde_json::to_vec(&orders).unwrap_or_default();
        let folder = state_dir.join(FOLDER);
        if let Err(error) = state_dir::replace(&folder, FILE, &bytes, WriteDurability::PowerLoss) {
            tracing::warn!(%error, "pins and cordons do not outlast this gateway: gpu/runtime.json in the state directory cannot be written");
        }
    }

    /// Takes note of an order about a model; returns whether that changes what stands.
    pub fn note(&mut self, command: &PoolCommand) -> bool {
        match command {
            PoolCommand::Pin(model) => self.pinned.insert(model.as_str().to_owned()),
            PoolCommand::Unpin(model) | PoolCommand::Unload(model) => {
                self.pinned.remove(model.as_str())
            }
            _ => false,
        }
    }

    /// Takes note of an order about a device; returns whether that changes what stands.
    pub fn note_device(&mut self, device: &DeviceId, order: DeviceOrder) -> bool {
        let id = device.as_str();
        let closure = match order {
            DeviceOrder::Uncordon => return self.devices.remove(id).is_some(),
            DeviceOrder::Cordon => DeviceClosure::Cordoned,
            DeviceOrder::Drain => DeviceClosure::Draining,
        };
        self.devices.insert(id.to_owned(), closure) != Some(closure)
    }

    /// Returns the models that are pinned.
    pub fn pinned(&self) -> impl Iterator<Item = ModelId> {
        self.pinned.iter().map(|id| ModelId::from(id.as_str()))
    }

    /// Returns the state of a device by order; none of one that takes loads.
    pub fn closure(&self, device: &DeviceId) -> Option<DeviceClosure> {
        self.devices.get(device.as_str()).copied()
    }

    /// Returns the devices that are closed.
    pub fn closed(&self) -> impl Iterator<Item = (DeviceId, DeviceClosure)> {
        let devices = self.devices.iter();
        devices.map(|(id, closure)| (DeviceId::from(id.as_str()), *closure))
    }
}

/// Orders that stand, with the file that keeps them.
#[derive(Debug)]
pub(super) struct StandingOrdersFile {
    state_dir: PathBuf,
    /// Held for one look or change.
    orders: Mutex<StandingOrders>,
    /// Held while the file is written, so that the latest orders are on the disk last.
    writing: Mutex<()>,
}

impl StandingOrdersFile {
    /// Reads the orders in the state directory of a gateway.
    pub fn open(state_dir: &Path) -> Arc<StandingOrdersFile> {
        Arc::new(StandingOrdersFile {
            orders: Mutex::new(StandingOrders::read(state_dir)),
            writing: Mutex::default(),
            state_dir: state_dir.to_owned(),
        })
    }

    /// Returns what `look` makes of the orders.
    pub fn with<T>(&self, look: impl FnOnce(&mut StandingOrders) -> T) -> T {
        look(&mut self.orders.lock())
    }

    /// Writes the present orders; blocks for as long as the disk takes.
    pub fn keep(&self) {
        let writing = self.writing.lock();
        let orders = self.orders.lock().clone();
        orders.write(&self.state_dir);
        drop(writing);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_is_read_back_and_a_foreign_file_counts_as_none() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(StandingOrders::read(dir.path()), StandingOrders::default());
        let mut orders = StandingOrders::default();
        let (m, device) = (ModelId::from("acme/m"), DeviceId::from("GPU-1"));
        assert!(orders.note(&PoolCommand::Pin(m.clone())));
        assert!(!orders.note(&PoolCommand::Pin(m.clone())), "once");
        assert!(!orders.note(&PoolCommand::Load(m.clone())));
        assert!(orders.note_device(&device, DeviceOrder::Cordon));
        assert!(orders.note_device(&device, DeviceOrder::Drain));
        let file = StandingOrdersFile::open(dir.path());
        file.with(|it| *it = orders);
        file.keep();
        let read = StandingOrders::read(dir.path());
        assert_eq!(read.pinned().collect::<Vec<_>>(), std::slice::from_ref(&m));
        assert_eq!(read.closure(&device), Some(DeviceClosure::Draining));
        assert_eq!(read.closed().count(), 1);
        let mut orders = read;
        assert!(orders.note(&PoolCommand::Unload(m)));
        assert!(orders.note_device(&device, DeviceOrder::Uncordon));
        assert!(!orders.note_device(&device, DeviceOrder::Uncordon));
        for foreign in ["{", r#"{"version":9,"pinned":["m"],"devices":{}}"#] {
            std::fs::write(dir.path().join("gpu/runtime.json"), foreign).unwrap();
            assert_eq!(StandingOrders::read(dir.path()), StandingOrders::default());
        }
    }
}
