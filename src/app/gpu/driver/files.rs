//! Restarts of processes whose program or model files have changed.
//!
//! Looks read the disk in a task; `file_book.rs` says what counts as a change.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use infergate_core::ModelId;
use infergate_core::model::{ModelSpec, UpdateChoice};
use infergate_core::vram::{Action, PoolCommand, SlotId, SlotState};
use tokio::time::Instant;

use super::{Driver, Message};
use crate::app::gpu::file_book::FileLook;
use crate::app::gpu::settings::stored_bytes;
use crate::gpu::file_state;

/// Time between two looks.
const LOOK_EVERY: Duration = Duration::from_secs(2);

impl Driver {
    /// Looks at the files of all models, in a task.
    pub(super) fn look_at_files(&mut self) {
        if self
            .files
            .next_look
            .is_some_and(|next| Instant::now() < next)
        {
            return;
        }
        if self.files.is_looking {
            return;
        }
        self.files.is_looking = true;
        self.files.next_look = Some(Instant::now() + LOOK_EVERY);
        let models = self.models.values();
        let specs: Vec<Arc<ModelSpec>> = models.map(|it| Arc::clone(&it.spec)).collect();
        let (looks, sender) = (self.file_looks.clone(), self.sender.clone());
        self.tasks.spawn(async move {
            let look = |spec: &ModelSpec| FileLook {
                state: file_state(spec),
                bytes: stored_bytes(spec),
            };
            let late = {
                let sender = sender.clone();
                move |spec: Arc<ModelSpec>, look| {
                    // Without a driver the gateway ends.
                    let _ = sender.blocking_send(Message::LateFiles(spec.id.clone(), look));
                }
            };
            let found = looks.read_all(&specs, look, late).await;
            // Without a driver the gateway ends.
            let _ = sender.send(Message::Files(found)).await;
        });
    }

    pub(super) fn take_files(&mut self, found: BTreeMap<ModelId, Option<FileLook>>) -> Vec<Action> {
        let changed = self.files.take(found);
        self.take_changes(changed)
    }

    /// Makes estimates anew of models whose files have changed, and restarts what is outdated.
    pub(super) fn take_changes(&mut self, changed: Vec<ModelId>) -> Vec<Action> {
        if !changed.is_empty() {
            // Other files may need other memory.
            self.estimate();
        }
        let mut actions = Vec::new();
        for model in changed {
            tracing::info!(model = model.as_str(), "files of a model have changed");
            let moment = self.moment();
            actions.extend(self.pool.command(PoolCommand::Renew(model), moment));
        }
        for slot in self.outdated_by_files() {
            tracing::info!(%slot, "a model restarts: its files have changed");
            let moment = self.moment();
            actions.extend(self.pool.command(PoolCommand::RestartSlot(slot), moment));
        }
        actions
    }

    /// Slots that are to restart by themselves, and do not yet.
    fn outdated_by_files(&self) -> Vec<SlotId> {
        let states = self.pool.slot_states();
        let outdated = states.filter(|(slot, state, _)| {
            let model = self.models.get(&slot.model);
            let process = model.and_then(|model| model.spec.process.as_ref());
            process.is_some_and(|process| process.update == UpdateChoice::Rolling)
                && *state == SlotState::Ready
                && self.has_update(slot)
                && !self.pool.is_outdated(slot)
        });
        outdated.map(|(slot, ..)| slot).collect()
    }

    /// Returns whether the files of a slot's process have changed since it started.
    pub(super) fn has_update(&self, slot: &SlotId) -> bool {
        let run = self.slots.get(slot);
        let started = run.and_then(|run| run.started.as_ref());
        let files = started.and_then(|started| started.files);
        self.files.has_update(&slot.model, files)
    }
}
