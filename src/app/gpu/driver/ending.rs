//! End of the models when the process ends, stage by stage.

use infergate_core::vram::{PoolCommand, SlotId, SlotState};

use super::Driver;
use crate::app::gpu::ending::EndingStage;
use crate::app::gpu::instance::InstanceOrder;
use crate::gpu::WhenExiting;

impl Driver {
    /// Does what the present stage asks for, and says when nothing is left to be done.
    pub(super) fn look_at_ending(&mut self) {
        let stage = *self.ending.stage.borrow();
        if stage == EndingStage::Serving {
            return;
        }
        if self.parts.gpu.when_exiting == WhenExiting::Keep {
            self.ending.ended.send_replace(true);
            return;
        }
        // A request that was accepted may still need a load.
        let has_waiting = self.pool.waiting_reasons().next().is_some();
        if !self.is_draining && (stage > EndingStage::Draining || !has_waiting) {
            self.is_draining = true;
            let actions = self.pool.command(PoolCommand::DrainNode, self.moment());
            self.perform(actions);
        }
        let has_requests = self.parts.shared.drain.in_flight() > 0;
        match stage {
            EndingStage::Killing => self.order_all(InstanceOrder::Kill),
            EndingStage::Stopping if has_requests => self.order_all(InstanceOrder::Stop),
            _ => {}
        }
        let mut states = self.pool.slot_states();
        let is_left = states.any(|(_, state, _)| state.has_process() && state != SlotState::Stuck);
        if self.is_draining && !is_left {
            self.ending.ended.send_replace(true);
        }
    }

    /// Gives an order once to each instance.
    fn order_all(&mut self, order: InstanceOrder) {
        if self.ordered == Some(order) {
            return;
        }
        self.ordered = Some(order);
        let slots: Vec<SlotId> = self.slots.keys().cloned().collect();
        for slot in slots {
            self.order(&slot, order);
        }
    }
}
