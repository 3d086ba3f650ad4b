//! Hand-over of all processes to a successor: a rest while it begins, and what this process still knows of them after.
//!
//! A host that rests starts and ends nothing, and its ready models serve on; it goes on where the successor comes to
//! nothing. Once the successor has the processes, the records that their keepers write say which of them serve. Requests
//! that are left here go to those, and the successor hears of the others as demand.

use std::time::Duration;

use futures_util::future::join_all;
use infergate_core::ModelId;
use infergate_core::admission::Readiness;
use infergate_core::model::slot_url;
use infergate_core::vram::{PoolCommand, SlotId, SlotState};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, interval};

use super::{Driver, Message};
use crate::app::gpu::adoption::{named_slot, own_target, serves};
use crate::app::gpu::ending::{HostHandover, SETTLE_MAX};
use crate::gpu::process::{InstanceRecord, read_records, run_directory};
use crate::gpu::settings_digest;
use crate::upstream::ModelRuntime;

/// Interval of looks at the records of instances.
const FOLLOW_EVERY: Duration = Duration::from_millis(100);

impl Driver {
    /// Returns whether the host is to rest and may: nothing is under way, or has been for too long. Loads and
    /// ends are not begun from the moment at which it is asked.
    pub(super) fn may_rest(&mut self) -> bool {
        let handover = *self.ending.handover.borrow();
        match (handover, self.rest_at) {
            (HostHandover::Done, _) => return true,
            (HostHandover::None, None) => return false,
            (HostHandover::None, Some(_)) => {
                self.rest_at = None;
                let actions = self.pool.command(PoolCommand::GoOn, self.moment());
                self.perform(actions);
                return false;
            }
            (HostHandover::Asked, Some(until)) if Instant::now() >= until => return true,
            (HostHandover::Asked, Some(_)) => {}
            (HostHandover::Asked, None) => {
                self.rest_at = Some(Instant::now() + SETTLE_MAX);
                let actions = self.pool.command(PoolCommand::Hold, self.moment());
                self.perform(actions);
            }
        }
        let mut states = self.pool.slot_states();
        states.all(|(_, state, _)| is_at_rest(state))
    }

    /// Rests until the host is to go on. Does not return once a successor has the processes.
    pub(super) async fn rest(&mut self) {
        self.withdraw_claims();
        for model in self.models.values() {
            // What was expected of the next load says nothing of the successor's.
            model.gate.set_readiness(Readiness::default());
        }
        self.ending.rests.send_replace(true);
        let mut handover = self.ending.handover.clone();
        let asked = handover.wait_for(|it| *it != HostHandover::Asked).await;
        let is_done = asked.is_ok_and(|it| *it == HostHandover::Done);
        if is_done {
            self.end_lives();
            self.is_handed_over = true;
            self.follow_successor().await;
        }
        self.ending.rests.send_replace(false);
    }

    /// Gives requests that are left here to the processes that the successor has, for the life of this one.
    async fn follow_successor(&mut self) {
        // Slots that this host has closed are the successor's to close.
        for (slot, ..) in self.pool.slot_states() {
            let url = slot_url(&slot.model, slot.number.into());
            let snapshot = self.parts.shared.snapshot.load();
            snapshot.models.open_elsewhere(&slot.model, &url, true);
        }
        let mut looks = interval(FOLLOW_EVERY);
        loop {
            looks.tick().await;
            self.release_late();
            let directory = run_directory(&self.parts.state_dir);
            let Ok(records) = spawn_blocking(move || read_records(&directory)).await else {
                continue;
            };
            let present = present_slots(records);
            let models = self.models.iter();
            let followed = models.map(|(id, model)| self.follow(id, model, &present));
            join_all(followed).await;
        }
    }

    /// Gives leases back that were granted after all: nothing is started for them.
    fn release_late(&mut self) {
        while let Ok(message) = self.messages.try_recv() {
            if let Message::Leased {
                slot,
                result: Ok(group),
                ..
            } = message
            {
                self.release_group(&slot, group);
            }
        }
    }

    /// Closes slots of a model whose processes are gone. Where none is left, those are opened that serve by now.
    async fn follow(
        &self,
        id: &ModelId,
        model: &ModelRuntime,
        present: &[(SlotId, InstanceRecord)],
    ) {
        for (target, _) in model.gate.targets() {
            let Some(instance) = &target.instance else {
                continue;
            };
            let mut records = present.iter();
            if !records.any(|(_, record)| *record.instance.as_str() == **instance) {
                model.gate.close_slot(&target.url, "draining");
            }
        }
        if !model.gate.is_cold() {
            return;
        }
        let slots = model.spec.replicas.max;
        let digest = settings_digest(&model.spec);
        for (slot, record) in present {
            // Slots that are new with the successor are not this process's, and other settings may mean another server.
            let is_own = slot.model == *id && u32::from(slot.number) < slots;
            if is_own && record.configuration_digest == digest {
                self.open_again(model, slot, record).await;
            }
        }
    }

    async fn open_again(&self, model: &ModelRuntime, slot: &SlotId, record: &InstanceRecord) {
        let url = slot_url(&slot.model, slot.number.into());
        let reached = async {
            let target = own_target(model, slot, record).await?;
            serves(&self.parts.shared, model, &target).await?;
            Ok::<_, String>(target)
        };
        match reached.await {
            Ok(target) => model.gate.open_slot(&url, target),
            Err(reason) => {
                tracing::debug!(%slot, reason, "a process of the successor does not serve yet");
            }
        }
    }
}

/// Returns whether a slot stays as it is until somebody decides.
fn is_at_rest(state: SlotState) -> bool {
    matches!(
        state,
        SlotState::Cold
            | SlotState::Ready
            | SlotState::Asleep
            | SlotState::Stuck
            | SlotState::Failed(_)
    )
}

/// Instances with their slots: two of a slot where one ends.
fn present_slots(records: Vec<InstanceRecord>) -> Vec<(SlotId, InstanceRecord)> {
    let records = records.into_iter();
    let named = records.filter_map(|record| Some((named_slot(&record.instance)?, record)));
    named.collect()
}
