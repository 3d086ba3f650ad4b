//! Orders of operators, passed to the pool, with a word to the one that waits.

use infergate_core::vram::PoolCommand;
use tokio::sync::oneshot;

use super::Driver;

/// Order to the driver.
pub(in crate::app::gpu) struct HostOrder {
    pub command: PoolCommand,
    /// Answer, once the pool has the order and what follows is shown.
    pub done: oneshot::Sender<()>,
}

impl Driver {
    pub(super) fn take_order(&mut self, order: HostOrder) {
        // An order finds the demand of now.
        self.look_at_demand();
        let actions = self.pool.command(order.command, self.moment());
        self.perform(actions);
        self.publish();
        // Without a listener nothing waits for it.
        let _ = order.done.send(());
    }
}
