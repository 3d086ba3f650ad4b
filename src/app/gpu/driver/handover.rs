//! Hand-over of all processes to a successor: a rest while it begins, and what this process still knows of them after.
//!
//! A host that rests starts and ends nothing, and its ready models serve on; it goes on where the successor comes to
//! nothing. Once the successor has the processes, the records that their keepers write say which of them serve. Requests
//! that are left here go to those, and the successor hears of the others as demand.

use std::time::Duration;

use infergate_core::admission::Readiness;
use infergate_core::model::slot_url;
use infergate_core::vram::{SlotId, SlotState};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, interval};

use super::Driver;
use crate::app::gpu::adoption::{named_slot, reach};
use crate::app::gpu::ending::{HostHandover, SETTLE_MAX};
use crate::gpu::process::{InstanceRecord, is_shared_or_gone, read_records, run_directory};
use crate::upstream::ModelRuntime;

/// Interval of looks at the records of instances.
const FOLLOW_EVERY: Duration = Duration::from_millis(100);

impl Driver {
    /// Returns whether the host is asked to rest and may: nothing is under way, or has been for too long.
    pub(super) fn may_rest(&mut self) -> bool {
        if *self.ending.handover.borrow() != HostHandover::Asked {
            self.rest_at = None;
            return false;
        }
        let until = *self.rest_at.get_or_insert(Instant::now() + SETTLE_MAX);
        let mut states = self.pool.slot_states();
        let is_under_way = states.any(|(_, state, _)| !is_at_rest(state));
        let has_waiting = self.pool.waiting_reasons().next().is_some();
        (!is_under_way && !has_waiting) || Instant::now() >= until
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
        self.rest_at = None;
    }

    /// Gives requests that are left here to the processes that the successor has, for the life of this one. Says when the
    /// successor has a life line of each.
    async fn follow_successor(&self) {
        let mut looks = interval(FOLLOW_EVERY);
        loop {
            looks.tick().await;
            let directory = run_directory(&self.parts.state_dir);
            let were_taken = *self.ending.ended.borrow();
            let look = move || {
                let records = read_records(&directory);
                let are_taken =
                    were_taken || records.iter().all(|it| is_shared_or_gone(&directory, it));
                (records, are_taken)
            };
            let Ok((records, are_taken)) = spawn_blocking(look).await else {
                return;
            };
            self.ending
                .ended
                .send_if_modified(|ended| !std::mem::replace(ended, are_taken) && are_taken);
            let present = present_slots(records);
            for (id, model) in &self.models {
                self.close_gone(model, &present);
                let own = present.iter().filter(|(slot, _)| slot.model == *id);
                for (slot, record) in own.filter(|_| model.gate.is_cold()) {
                    self.open_again(model, slot, record).await;
                }
            }
        }
    }

    /// Closes slots whose processes are gone.
    fn close_gone(&self, model: &ModelRuntime, present: &[(SlotId, InstanceRecord)]) {
        for (target, _) in model.gate.targets() {
            let Some(instance) = &target.instance else {
                continue;
            };
            let mut records = present.iter();
            if !records.any(|(_, record)| *record.instance.as_str() == **instance) {
                model.gate.close_slot(&target.url, "draining");
            }
        }
    }

    /// Opens a slot of a model that is cold here where its process serves.
    async fn open_again(&self, model: &ModelRuntime, slot: &SlotId, record: &InstanceRecord) {
        let url = slot_url(&slot.model, slot.number.into());
        match reach(&self.parts.shared, model, slot, record).await {
            Ok(target) => model.gate.open_slot(&url, target),
            Err(reason) => {
                tracing::debug!(%slot, reason, "a process of the successor does not serve yet")
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
