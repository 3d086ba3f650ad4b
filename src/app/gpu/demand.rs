//! Demand for managed models, read from their gates when the driver decides.
//!
//! Neither weights of waits nor what is remembered of them, which are the core's. A gate tells no change: each look takes
//! the requests that wait, and counts of those that came and of permits. Requests of jobs weigh together as one account
//! with their share. Where lifecycle events are written, the same looks are added up for a replay.

use std::collections::BTreeMap;

use infergate_core::admission::PermitClass;
use infergate_core::model::KeepLoaded;
use infergate_core::vram::replay::{DemandLine, DemandTally};
use infergate_core::vram::{
    DemandLook, DemandMemory, DemandSettings, DemandWeight, ModelDemand, SeenRequest,
};
use infergate_core::{AccountId, Millis, ModelId};

use super::askers::Askers;
use crate::upstream::ModelRuntime;

/// Requests of a model that are looked at: more of them would change no decision.
const WAITING_MAX: usize = 4096;
/// Account of all jobs of a model; no account has this name.
const JOBS: &str = "";

/// Demand of each model, and what is remembered of it.
#[derive(Default)]
pub(super) struct DemandBook {
    settings: DemandSettings,
    /// Demand is added up for lines of the lifecycle file.
    is_recording: bool,
    models: BTreeMap<ModelId, BookEntry>,
}

/// Demand of a model.
struct BookEntry {
    memory: DemandMemory,
    tally: Option<DemandTally>,
    /// Clients that have asked since nothing serves it.
    askers: Askers,
}

impl DemandBook {
    /// Replaces the settings, and forgets models that are not managed any more.
    pub fn configure(
        &mut self,
        settings: DemandSettings,
        is_recording: bool,
        is_managed: impl Fn(&ModelId) -> bool,
    ) {
        (self.settings, self.is_recording) = (settings, is_recording);
        self.models.retain(|id, _| is_managed(id));
        for model in self.models.values_mut() {
            model.memory.configure(settings);
            model.tally = model.tally.take().filter(|_| is_recording);
        }
    }

    /// Returns the demand of a model, and its line for the lifecycle file where one is due and `may_write`. `elsewhere` is
    /// the number of its requests in flight from another process.
    pub fn read(
        &mut self,
        (model, elsewhere): (&ModelRuntime, u32),
        may_write: bool,
        now: Millis,
    ) -> (ModelDemand, Option<DemandLine>) {
        let jobs = AccountId::from(JOBS);
        let share = model.spec.jobs.share_percent;
        let kept_alive = model.gate.take_kept_alive();
        let mut waiting = Vec::new();
        let mut asked = Askers::default();
        let (refused, counts) = model.gate.look_at_demand(WAITING_MAX, |request| {
            let weight = DemandWeight::of_priority(request.priority);
            let (account, weight) = match request.class {
                PermitClass::Live => (request.account.clone(), weight),
                PermitClass::Durable => (jobs.clone(), weight.scaled(share)),
            };
            asked.add(request.joined, request.client);
            waiting.push(SeenRequest {
                joined: request.joined,
                deadline: request.deadline,
                account,
                weight,
                priority: request.priority,
            });
        });
        for refused in &refused {
            asked.add(refused.refusal.at, refused.client.as_ref());
        }
        let gauges = model.gate.gauges();
        let look = DemandLook {
            waiting,
            refused: refused.into_iter().map(|it| it.refusal).collect(),
            arrivals: counts.arrivals,
            grants: counts.grants,
            most_urgent: counts.most_urgent,
            in_flight: gauges.used + elsewhere,
            permits: gauges.limit,
            is_usable: gauges.usable_endpoints > 0,
            kept_alive,
            own_keep_alive: match model.spec.keep_alive_secs() {
                Some(secs) => KeepLoaded::For(Millis::from_secs(secs)),
                None => KeepLoaded::Always,
            },
        };
        let (settings, is_recording) = (self.settings, self.is_recording);
        let own = self.models.entry(model.spec.id.clone());
        let own = own.or_insert_with(|| BookEntry {
            memory: DemandMemory::new(settings),
            tally: None,
            askers: Askers::default(),
        });
        own.askers.merge(&asked);
        let line = is_recording.then(|| {
            let tally = own.tally.get_or_insert_with(|| DemandTally::new(now));
            tally.add(&look, counts.mean_hold, now);
            may_write.then(|| tally.take_line(now)).flatten()
        });
        let is_usable = look.is_usable;
        let demand = own.memory.take(look, now);
        if is_usable || demand.unserved_since.is_none() {
            own.askers = Askers::default();
        }
        (demand, line.flatten())
    }

    /// Takes who has asked for a model since nothing serves it, to be called as its load begins.
    pub fn take_askers(&mut self, model: &ModelId) -> Askers {
        let entry = self.models.get_mut(model);
        entry.map_or_else(Askers::default, |it| std::mem::take(&mut it.askers))
    }
}
