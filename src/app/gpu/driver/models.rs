//! Models of the configuration that has effect, with those before it until their requests have ended.
//!
//! Estimates read files, and are made by a task: one at a time, the latest configuration last. Files that do not answer
//! hold up their own model alone.

use std::collections::BTreeMap;
use std::sync::Arc;

use infergate_core::ModelId;
use infergate_core::model::{ModelSpec, slot_url};
use infergate_core::vram::{Action, DeviceShare, SlotId, SlotState};

use super::{Driver, Message};
use crate::app::gpu::settings::{FileFacts, HostPlan, ReadModels, demand_settings, host_settings};
use crate::upstream::ModelRuntime;

impl Driver {
    /// Takes the models of the present configuration over. Their estimates come later, as a message.
    pub(super) fn configure(&mut self) {
        let snapshot = self.parts.shared.snapshot.load();
        let managed = snapshot.models.iter();
        let managed = managed.filter(|model| model.spec.process.is_some());
        let managed: BTreeMap<ModelId, Arc<ModelRuntime>> = managed
            .map(|model| (model.spec.id.clone(), Arc::clone(model)))
            .collect();
        let former = std::mem::replace(&mut self.models, managed);
        self.retire(former);
        self.move_meters();
        for model in self.models.values() {
            model.gate.set_cold_signal(Arc::clone(&self.signal));
        }
        self.open_ready_slots();
        let status = self.parts.status.load_full();
        self.generation = status.generation;
        if let Some(running) = &status.running {
            self.parts.gpu = Arc::new(running.gpu.clone().unwrap_or_default());
        }
        self.outlets.configure(&self.parts.gpu);
        self.recorder.configure(None);
        self.parts
            .shared
            .metrics
            .gpu()
            .configure(self.models.keys());
        let models = &self.models;
        let settings = demand_settings(&self.parts.gpu.swap);
        let is_recording = self.outlets.has_events();
        self.demand
            .configure(settings, is_recording, |id| models.contains_key(id));
        self.estimate();
    }

    /// Makes estimates of all models; those that are being made are followed by another round.
    pub(super) fn estimate(&mut self) {
        if let Some(is_stale) = &mut self.estimating {
            *is_stale = true;
            return;
        }
        self.estimating = Some(false);
        let plan = self.present_plan();
        let sender = self.sender.clone();
        let (store, reading) = (Arc::clone(&self.parts.measured), Arc::clone(&self.reading));
        let reads = self.estimate_reads.clone();
        let late = {
            let sender = self.sender.clone();
            move |spec: Arc<ModelSpec>, facts| {
                // Without a driver the gateway ends.
                let _ = sender.blocking_send(Message::LateFacts(spec, Box::new(facts)));
            }
        };
        self.tasks.spawn(async move {
            let used = Arc::clone(&plan.gpu);
            let read = move |spec: &ModelSpec| FileFacts::read(spec, &used, &store, &reading);
            let facts = reads.read_all(&plan.specs, read, late).await;
            let read = Box::new(ReadModels { plan, facts });
            // Without a driver the gateway ends.
            let _ = sender.send(Message::Configured(read)).await;
        });
    }

    /// Takes what the files of the models have told. Models whose files do not answer keep what they told before.
    pub(super) fn take_settings(&mut self, read: ReadModels) -> Vec<Action> {
        let ReadModels { plan, facts } = read;
        self.file_facts.retain(|id, _| facts.contains_key(id));
        self.leased_mib.retain(|id, _| facts.contains_key(id));
        for (id, facts) in facts {
            match facts {
                Some(facts) => {
                    self.silent_files.remove(&id);
                    self.file_facts.extend(facts.map(|facts| (id, facts)));
                }
                None if self.silent_files.insert(id.clone()) => {
                    tracing::warn!(
                        model = id.as_str(),
                        "the files of a model do not answer: others are loaded all the same"
                    );
                }
                None => {}
            }
        }
        let is_stale = self.estimating.take().unwrap_or(false);
        let mut actions = self.set_plan(plan);
        match is_stale {
            true => self.estimate(),
            // What the pool has said of a model holds until it has heard that the model is gone.
            false => {
                let models = &self.models;
                self.outlooks.retain(|id, _| models.contains_key(id));
                self.rejected.retain(|id| models.contains_key(id));
                actions.extend(self.pin_again());
            }
        }
        actions
    }

    /// Takes what the files of a model have told too late for its estimate: those of a slow disk are always late.
    pub(super) fn take_late_facts(
        &mut self,
        spec: &Arc<ModelSpec>,
        facts: Option<FileFacts>,
    ) -> Vec<Action> {
        let present = self.models.get(&spec.id);
        if !present.is_some_and(|model| Arc::ptr_eq(&model.spec, spec)) {
            // They are of former settings.
            self.estimate();
            return Vec::new();
        }
        self.silent_files.remove(&spec.id);
        self.file_facts
            .extend(facts.map(|facts| (spec.id.clone(), facts)));
        match self.plan.take() {
            Some(plan) => self.set_plan(plan),
            // The first plan comes with them.
            None => Vec::new(),
        }
    }

    /// Models and host as they are now.
    fn present_plan(&self) -> HostPlan {
        let models = self.models.values();
        let devices = self.reading.devices.iter();
        let largest = devices.map(|it| it.view.info.total_mib.saturating_sub(it.view.reserve_mib));
        HostPlan {
            specs: models.map(|it| Arc::clone(&it.spec)).collect(),
            gpu: Arc::clone(&self.parts.gpu),
            largest_mib: largest.max().unwrap_or(0),
        }
    }

    /// Gives the pool its settings, by what is known of the models.
    fn set_plan(&mut self, plan: HostPlan) -> Vec<Action> {
        let settings = host_settings(&plan, &self.file_facts, &self.leased_mib);
        self.plan = Some(plan);
        self.show_estimates(settings.estimates);
        let recorded = self.outlets.has_events().then(|| settings.pool.clone());
        let actions = self.pool.set_config(settings.pool, self.moment());
        self.record_config(recorded);
        actions
    }

    /// Plans a model whose files have not answered by the leases of a process of it that is taken over: a slow disk ends
    /// no server that is loaded.
    pub(super) fn plan_by_leases(&mut self, model: &ModelId, shares: &[DeviceShare]) {
        if self.file_facts.contains_key(model) {
            return;
        }
        let leased: u64 = shares.iter().map(|share| share.mib).sum();
        let known = self.leased_mib.entry(model.clone()).or_default();
        if leased <= *known {
            return;
        }
        *known = leased;
        let plan = self.plan.take().unwrap_or_else(|| self.present_plan());
        let actions = self.set_plan(plan);
        self.perform(actions);
    }

    /// Keeps runtimes whose gate no present model has, while requests of theirs are in flight.
    fn retire(&mut self, former: BTreeMap<ModelId, Arc<ModelRuntime>>) {
        for (id, model) in former {
            let present = self.models.get(&id);
            if !present.is_some_and(|it| Arc::ptr_eq(&it.gate, &model.gate)) {
                self.retired.push(model);
            }
        }
        self.forget_retired();
    }

    pub(super) fn forget_retired(&mut self) {
        let pool = &self.pool;
        self.retired.retain(|model| {
            let mut slots = pool.slot_states();
            slots.any(|(slot, ..)| slot.model == model.spec.id && in_flight(model, &slot) > 0)
        });
    }

    /// Gives the processes that are ready to gates that are new: a model came back before its process had ended.
    fn open_ready_slots(&self) {
        for (slot, state, _) in self.pool.slot_states() {
            let target = self.slots.get(&slot).and_then(|run| run.target.clone());
            if let (SlotState::Ready, Some(target)) = (state, target)
                && let Some(model) = self.models.get(&slot.model)
                && u32::from(slot.number) < model.spec.replicas.max
            {
                let url = slot_url(&slot.model, slot.number.into());
                model.gate.ensure_slot_open(&url, target);
            }
        }
    }

    /// Forgets slots that neither the pool nor the configuration has.
    pub(super) fn forget_gone(&mut self) {
        let (pool, models) = (&self.pool, &self.models);
        self.slots
            .retain(|slot, _| pool.slot_state(slot).is_some() || models.contains_key(&slot.model));
    }

    /// Requests in flight at a slot, those of former runtimes of its model included.
    pub(super) fn requests_at(&self, slot: &SlotId) -> u32 {
        let present = self.models.get(&slot.model);
        let former = self.retired.iter().filter(|it| it.spec.id == slot.model);
        let models = present.into_iter().chain(former);
        let own: u32 = models.map(|model| in_flight(model, slot)).sum();
        own + self.requests_elsewhere(slot)
    }

    /// Requests of another process that are in flight at a slot, at most.
    pub(super) fn requests_elsewhere(&self, slot: &SlotId) -> u32 {
        let snapshot = self.parts.shared.snapshot.load();
        if !snapshot.models.were_shared() {
            return 0;
        }
        let url = slot_url(&slot.model, slot.number.into());
        snapshot.models.permits_elsewhere(&slot.model, &url)
    }
}

fn in_flight(model: &ModelRuntime, slot: &SlotId) -> u32 {
    let url = slot_url(&slot.model, slot.number.into());
    model.gate.in_flight(&url)
}
