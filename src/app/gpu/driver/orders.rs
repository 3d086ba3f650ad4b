//! Orders of operators, passed to the pool, with a word to the one that waits. Pins and closed devices outlast the gateway.

use std::sync::Arc;

use infergate_core::vram::{Action, DeviceId, PoolCommand};
use tokio::sync::oneshot;

use super::Driver;
use crate::admin::DeviceOrder;
use crate::app::gpu::standing_orders::DeviceClosure;

/// Orders that may wait for the estimate of their model.
const EARLY_ORDERS_MAX: usize = 64;

/// Subject of an order, with the order.
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
        if self.parts.status.load().generation != self.generation {
            self.configure();
        }
        if self.comes_early(&order) {
            // One too many is dropped, and its operator told to try again.
            if self.early_orders.len() < EARLY_ORDERS_MAX {
                self.early_orders.push(order);
            }
            return;
        }
        // An order finds the demand of now.
        self.look_at_demand();
        let stands = match order.command {
            HostCommand::Model(command) => {
                let stands = self.standing.with(|it| it.note(&command));
                let actions = self.pool.command(command, self.moment());
                self.perform(actions);
                stands
            }
            HostCommand::Device(device, order) => {
                let stands = self.standing.with(|it| it.note_device(&device, order));
                if stands {
                    tracing::info!(
                        device = device.as_str(),
                        ?order,
                        "a device takes loads, or none, by order"
                    );
                }
                self.set_devices();
                self.empty_closed_devices();
                stands
            }
        };
        self.publish();
        let done = order.done;
        if !stands {
            // Without a listener nothing waits for it.
            let _ = done.send(());
            return;
        }
        let standing = Arc::clone(&self.standing);
        self.tasks.spawn_blocking(move || {
            standing.keep();
            let _ = done.send(());
        });
    }

    /// Performs the orders that came before the pool knew their models.
    pub(super) fn take_early_orders(&mut self) {
        for order in std::mem::take(&mut self.early_orders) {
            // Whoever has left does not expect it any more.
            if !order.done.is_closed() {
                self.take_order(order);
            }
        }
    }

    /// Returns whether an order is for a model that the pool will know once its estimate is made.
    fn comes_early(&self, order: &HostOrder) -> bool {
        let HostCommand::Model(command) = &order.command else {
            return false;
        };
        let model = command.model();
        self.estimating.is_some() && model.is_some_and(|model| !self.pool.has_model(model))
    }

    /// Lets models leave the devices that are drained, also those that were loading when the order came, and ends those
    /// that sleep on a cordoned one.
    pub(super) fn empty_closed_devices(&mut self) {
        let closed: Vec<_> = self.standing.with(|it| it.closed().collect());
        for (device, closure) in closed {
            let command = match closure {
                DeviceClosure::Draining => PoolCommand::DrainDevice(device),
                DeviceClosure::Cordoned => PoolCommand::EndSleepers(device),
            };
            let actions = self.pool.command(command, self.moment());
            self.perform(actions);
        }
    }

    /// Pins the models that were pinned by order. A model that is configured anew is not any more.
    pub(super) fn pin_again(&mut self) -> Vec<Action> {
        let pinned: Vec<_> = self.standing.with(|it| it.pinned().collect());
        let mut actions = Vec::new();
        for model in pinned {
            let command = match self.models.contains_key(&model) {
                true => PoolCommand::Pin(model),
                false => PoolCommand::Unpin(model),
            };
            if self.standing.with(|it| it.note(&command)) {
                let standing = Arc::clone(&self.standing);
                self.tasks.spawn_blocking(move || standing.keep());
            }
            let moment = self.moment();
            actions.extend(self.pool.command(command, moment));
        }
        actions
    }
}
