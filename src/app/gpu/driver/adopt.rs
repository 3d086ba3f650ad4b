//! Slots of instances that a former gateway has left running: placed as ready, with their leases.
//!
//! Checks before that are `adoption.rs`'s. An instance whose slot is taken, or that failed a check, is stopped.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use infergate_core::model::slot_url;
use infergate_core::vram::SlotState;
use tokio::time::{interval, sleep};

use super::actions::SlotOrders;
use super::{Driver, Message};
use crate::app::gpu::adoption::{AdoptedInstance, Adoption, AdoptionCheck, named_slot};
use crate::gpu::process::{InstanceRecord, RunningInstance, run_directory};
use crate::gpu::settings_digest;

/// Interval of looks whether the requests of a predecessor have ended.
const PREDECESSOR_LOOK: Duration = Duration::from_millis(100);
/// Wait of the first loads for checks, which take milliseconds: a slot whose process is taken over needs no load.
const CHECKS_WAIT: Duration = Duration::from_secs(2);
/// Longest wait for the estimates of the models, which reads the beginnings of their files.
const CONFIGURATION_MAX: Duration = Duration::from_secs(60);

impl Driver {
    /// Takes instances over. Comes before the first sample of the devices, so that no slot is loaded meanwhile.
    pub(super) async fn adopt(&mut self, records: Vec<InstanceRecord>) {
        if records.is_empty() {
            return;
        }
        let check = Arc::new(AdoptionCheck {
            shared: Arc::clone(&self.parts.shared),
            models: self.models.clone(),
            ledger: Arc::clone(&self.parts.ledger),
            ports: self.ports.clone(),
            run_directory: run_directory(&self.parts.state_dir),
        });
        let checks = records.into_iter().map(|record| {
            let check = Arc::clone(&check);
            async move { check.take_over(record).await }
        });
        let mut checks: FuturesUnordered<_> = checks.collect();
        let mut checked = Vec::new();
        // No instance has a slot before the models of the pool have come; late reads may tell of themselves before that.
        let configured = sleep(CONFIGURATION_MAX);
        tokio::pin!(configured);
        loop {
            tokio::select! {
                Some(message) = self.messages.recv() => {
                    let is_last = matches!(message, Message::Configured(_));
                    self.take(message);
                    if is_last {
                        break;
                    }
                }
                Some(adoption) = checks.next() => checked.push(adoption),
                () = &mut configured => break,
            }
        }
        checked.into_iter().for_each(|it| self.settle(it));
        let grace = sleep(CHECKS_WAIT);
        tokio::pin!(grace);
        loop {
            tokio::select! {
                checked = checks.next() => match checked {
                    Some(adoption) => self.settle(adoption),
                    None => return,
                },
                () = &mut grace => break,
            }
        }
        // A server that hangs holds up no other one, nor the loads of this gateway.
        let sender = self.sender.clone();
        self.tasks.spawn(async move {
            while let Some(adoption) = checks.next().await {
                // Without a driver the gateway ends.
                let _ = sender.send(Message::Adopted(adoption)).await;
            }
        });
    }

    /// Takes the result of a check.
    pub(super) fn settle(&mut self, adoption: Adoption) {
        match adoption {
            Adoption::Possible(adopted) => self.place(*adopted),
            Adoption::Refused(running) => self.end(*running),
            Adoption::Gone => {}
        }
    }

    /// Gives an instance its slot, unless another one has it.
    fn place(&mut self, adopted: AdoptedInstance) {
        let slot = adopted.slot;
        let model = self.models.get(&slot.model);
        // A reload since its check may have changed them.
        if model.is_none_or(|it| settings_digest(&it.spec) != adopted.configuration_digest) {
            tracing::info!(%slot, "the settings of a process of a former gateway have changed: it ends");
            return self.end(adopted.running);
        }
        self.plan_by_leases(&slot.model, &adopted.shares);
        let present = self.pool.slot_state(&slot);
        if !present.is_some_and(|(state, _)| state == SlotState::Cold) {
            tracing::info!(%slot, "the slot of a process of a former gateway is taken: it ends");
            return self.end(adopted.running);
        }
        let run = self.slots.entry(slot.clone()).or_default();
        run.shares.clone_from(&adopted.shares);
        run.group = Some(adopted.group);
        let id = adopted.started.instance.clone();
        run.started = Some(adopted.started);
        run.target = Some(Arc::clone(&adopted.target));
        self.begin_life(&slot, Some(id));
        let moment = self.moment();
        let actions = self.pool.adopt(&slot, adopted.shares.clone(), moment);
        let life = self.pool.slot_state(&slot).map_or(0, |(_, life)| life);
        let Some(SlotOrders { task, orders }) = self.instance_task(&slot, life, adopted.shares)
        else {
            return self.end(adopted.running);
        };
        tracing::info!(%slot, "a model's process was taken over from a former gateway");
        self.parts.board.count_adoption(&slot.model);
        self.parts.shared.metrics.gpu().record_adoption();
        let (running, port, target) = (adopted.running, adopted.port, adopted.target);
        self.tasks
            .spawn(async move { task.resume((running, orders), port, target).await });
        self.perform(actions);
    }

    /// Stops an instance that is not taken over, once a predecessor has no request there. Leases stay with its keeper
    /// until that is gone.
    fn end(&mut self, mut running: RunningInstance) {
        let slot = named_slot(running.id());
        let shared = Arc::clone(&self.parts.shared);
        self.tasks.spawn(async move {
            if let Some(slot) = slot {
                let url = slot_url(&slot.model, slot.number.into());
                let models = &shared.snapshot.load_full().models;
                models.open_elsewhere(&slot.model, &url, false);
                let mut looks = interval(PREDECESSOR_LOOK);
                while models.permits_elsewhere(&slot.model, &url) > 0 {
                    looks.tick().await;
                }
            }
            if running.stop().await.is_err() {
                running.end_by_force();
            }
            while running.next_event().await.is_some() {}
        });
    }
}
