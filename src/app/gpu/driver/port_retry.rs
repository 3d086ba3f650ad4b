//! Leases of a load that begins anew at another port: those of its first process end with the keeper of that process.
//!
//! Decides nothing. No process is started before its leases are held. Memory of the first process may take a while to
//! return: leases are asked for at each reading, for as long as a slot reclaims memory.

use std::sync::Arc;

use infergate_core::vram::{Action, LeaseGroup, LoadPhase, SlotEvent, SlotState, StartFailure};
use tokio::time::Instant;

use super::{Driver, Message};
use crate::app::gpu::instance::{InstanceNews, NewsDetail};
use crate::app::gpu::leases::{self, LeaseRefusal};
use crate::app::gpu::slot_run::PortRetry;

impl Driver {
    /// Asks the ledger for the shares of a load in place of those of its first process; its answer comes as a message.
    pub(super) fn lease_again(&mut self, retry: Box<PortRetry>) {
        let (ledger, reading) = (Arc::clone(&self.parts.ledger), Arc::clone(&self.reading));
        let sender = self.sender.clone();
        let priority = self.slots.get(&retry.slot).map_or(0, |run| run.priority);
        self.changes.add(&mut self.tasks, move || {
            let name = retry.slot.to_string();
            // They are gone where the keeper is; a ledger that cannot be used is the next call's error too.
            let _ = leases::release(&ledger, &retry.former);
            let result = leases::acquire(&ledger, &reading, (&name, priority), &retry.shares);
            let _ = sender.blocking_send(Message::LeasedAgain { retry, result });
        });
    }

    /// Goes on with a load whose leases are held again. One that was given up meanwhile has no process to end.
    pub(super) fn take_leased_again(
        &mut self,
        retry: Box<PortRetry>,
        result: Result<LeaseGroup, LeaseRefusal>,
    ) -> Vec<Action> {
        let spawning = SlotState::Loading(LoadPhase::Spawning);
        let present = self.pool.slot_state(&retry.slot);
        let is_awaited = present == Some((spawning, retry.life));
        let PortRetry { slot, life, .. } = &*retry;
        let reason = match result {
            Ok(group) if is_awaited => {
                let run = self.slots.entry(slot.clone()).or_default();
                run.group = Some(group);
                self.launch(retry.slot, retry.life, retry.shares);
                return Vec::new();
            }
            Ok(group) => {
                self.release_group(slot, group);
                "its load was given up".to_owned()
            }
            Err(LeaseRefusal::NoRoom(_)) if is_awaited && Instant::now() < retry.until => {
                self.await_room(retry);
                return Vec::new();
            }
            Err(refusal) => refusal.to_string(),
        };
        if present.is_none_or(|(_, present)| present != *life) {
            return Vec::new();
        }
        self.take_news(InstanceNews {
            slot: retry.slot,
            life: retry.life,
            event: SlotEvent::NotStarted(StartFailure::CommandFailed),
            detail: NewsDetail::NotStarted(reason),
        })
    }

    /// Asks again after the next reading.
    fn await_room(&mut self, retry: Box<PortRetry>) {
        let mut readings = self.parts.monitor.readings();
        readings.mark_unchanged();
        let sender = self.sender.clone();
        self.tasks.spawn(async move {
            // Without a watch over the devices the driver loads nothing.
            if readings.changed().await.is_ok() {
                let _ = sender.send(Message::LeaseAgain(retry)).await;
            }
        });
    }
}
