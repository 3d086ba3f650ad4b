//! Orders of operators and of the host's own end to a pool.

use crate::ModelId;
use crate::vram::device::DeviceId;
use crate::vram::slot::SlotId;

/// Order of an operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PoolCommand {
    /// Load a model, and let others make room.
    Load(ModelId),
    /// Unload a model once its requests have ended.
    Unload(ModelId),
    /// End the backoff of a model and load it.
    Retry(ModelId),
    /// Replace the processes of a model one after the other, or load it where it has none.
    Restart(ModelId),
    /// Replace the process of a slot: its program, its files or its memory are others.
    RestartSlot(SlotId),
    /// Forget failures of a model: its program or its files are others.
    Renew(ModelId),
    /// Keep a model loaded.
    Pin(ModelId),
    /// Take back [`PoolCommand::Pin`].
    Unpin(ModelId),
    /// Stop each slot that has memory of a device, once its requests have ended.
    DrainDevice(DeviceId),
    /// End each slot that sleeps on a device: it could not wake there, and is loaded elsewhere.
    EndSleepers(DeviceId),
    /// Load nothing more, and stop each model once its requests have ended; pinned ones last.
    DrainNode,
    /// Begin neither a load nor an end, and carry on with those that have begun.
    Hold,
    /// Take back [`PoolCommand::Hold`].
    GoOn,
}

impl PoolCommand {
    /// Returns the model that the order is for; `None` where it is for a device or the node.
    pub fn model(&self) -> Option<&ModelId> {
        match self {
            PoolCommand::Load(model)
            | PoolCommand::Unload(model)
            | PoolCommand::Retry(model)
            | PoolCommand::Restart(model)
            | PoolCommand::Renew(model)
            | PoolCommand::Pin(model)
            | PoolCommand::Unpin(model) => Some(model),
            PoolCommand::RestartSlot(slot) => Some(&slot.model),
            PoolCommand::DrainDevice(_)
            | PoolCommand::EndSleepers(_)
            | PoolCommand::DrainNode
            | PoolCommand::Hold
            | PoolCommand::GoOn => None,
        }
    }
}
