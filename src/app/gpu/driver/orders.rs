//! Orders of operators, passed to the pool, with a word to the one that waits. Pins and closed devices outlast the gateway.

use infergate_core::vram::{Action, DeviceId, PoolCommand};
use tokio::sync::oneshot;

use super::Driver;
use crate::admin::DeviceOrder;

/// What an order is about.
pub(in crate::app::gpu) enum HostCommand {
    /// A model.
    Model(PoolCommand),
    /// A device.
    Device(DeviceId, DeviceOrder),
}

/// Order to the driver.
pub(in crate::app::gpu) struct HostOrder {
    pub command: HostCommand,
    /// Answer, once the pool has the order and what follows is shown.
    pub done: oneshot::Sender<()>,
}

impl Driver {
    pub(super) fn take_order(&mut self, order: HostOrder) {
        // An order finds the demand of now.
        self.look_at_demand();
        match order.command {
            HostCommand::Model(command) => {
                if self.standing.note(&command) {
                    self.keep_standing();
                }
                let actions = self.pool.command(command, self.moment());
                self.perform(actions);
            }
            HostCommand::Device(device, order) => {
                if self.standing.note_device(&device, order) {
                    tracing::info!(
                        device = device.as_str(),
                        ?order,
                        "a device takes loads, or none, by order"
                    );
                    self.keep_standing();
                }
                self.set_devices();
                self.drain_devices();
            }
        }
        self.publish();
        // Without a listener nothing waits for it.
        let _ = order.done.send(());
    }

    /// Writes the orders that stand, after those that stood before.
    fn keep_standing(&mut self) {
        let (standing, state_dir) = (self.standing.clone(), self.parts.state_dir.clone());
        self.changes
            .add(&mut self.tasks, move || standing.write(&state_dir));
    }

    /// Lets models leave the devices that are drained, also those that were loading when the order came.
    pub(super) fn drain_devices(&mut self) {
        for device in self.standing.draining() {
            let actions = self
                .pool
                .command(PoolCommand::DrainDevice(device), self.moment());
            self.perform(actions);
        }
    }

    /// Pins the models that were pinned by order. A model that is configured anew is not any more.
    pub(super) fn pin_again(&mut self) -> Vec<Action> {
        let pinned: Vec<_> = self.standing.pinned().collect();
        let mut actions = Vec::new();
        for model in pinned {
            let command = match self.models.contains_key(&model) {
                true => PoolCommand::Pin(model),
                false => PoolCommand::Unpin(model),
            };
            if self.standing.note(&command) {
                self.keep_standing();
            }
            let moment = self.moment();
            actions.extend(self.pool.command(command, moment));
        }
        actions
    }
}
