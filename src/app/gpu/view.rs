//! State of the GPU host as operators see it; put together by the driver, read by the admin listener.

use std::collections::BTreeMap;
use std::sync::Arc;

use infergate_core::vram::{
    ClientUse, DeviceId, DeviceShare, FreeMemory, HostTime, LoadKind, ModelDetails, SlotDetails,
    SlotId,
};
use infergate_core::{Millis, ModelId};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::settings::EstimateFacts;
use super::standing_orders::DeviceClosure;
use crate::gpu::{HostReading, ReadDevice};
use crate::telemetry::clock::rfc3339;
use crate::telemetry::{Clock, host_time};

/// Problem of devices whose thread waits for the driver.
const NO_ANSWER: &str =
    "the driver does not answer: no memory is leased until it does, ready models serve on";

/// Facts of one slot.
#[derive(Clone, Debug)]
pub(super) struct SlotFacts {
    pub slot: SlotId,
    pub state: &'static str,
    pub shares: Vec<DeviceShare>,
    pub pid: Option<u32>,
    pub port: Option<u16>,
    pub instance: Option<String>,
    /// Instance before that one.
    pub previous: Option<String>,
    pub problem: Option<String>,
    /// Changes of its program or its model files since it started.
    pub has_update: bool,
    pub details: SlotDetails,
}

/// Facts of a model with demand that is not ready.
#[derive(Clone, Debug)]
pub(super) struct WaitingFacts {
    pub model: ModelId,
    pub reason: &'static str,
    pub waiters: u32,
    /// Debt, request-seconds.
    pub debt: f64,
    /// Time in which something waits and nothing is served.
    pub unserved: Millis,
}

/// Board on which the driver writes.
#[derive(Default)]
pub(super) struct GpuBoard {
    /// Held to write or to read once.
    content: Mutex<BoardContent>,
    /// Number of the present content.
    version: watch::Sender<u64>,
}

#[derive(Default)]
struct BoardContent {
    reading: Arc<HostReading>,
    /// Devices that take no load by order.
    closed: BTreeMap<DeviceId, DeviceClosure>,
    slots: Vec<SlotFacts>,
    models: Vec<ModelDetails>,
    waiting: Vec<WaitingFacts>,
    loads: BTreeMap<ModelId, u64>,
    wakes: BTreeMap<ModelId, u64>,
    estimates: BTreeMap<ModelId, EstimateFacts>,
    ledger_problem: Option<String>,
    /// Processes of former gateways that were taken over.
    adoptions: BTreeMap<ModelId, u64>,
}

impl GpuBoard {
    pub fn publish(
        &self,
        (reading, closed): (Arc<HostReading>, BTreeMap<DeviceId, DeviceClosure>),
        slots: Vec<SlotFacts>,
        models: Vec<ModelDetails>,
        waiting: Vec<WaitingFacts>,
    ) {
        let mut content = self.content.lock();
        content.reading = reading;
        content.closed = closed;
        content.slots = slots;
        content.models = models;
        content.waiting = waiting;
        let BoardContent {
            loads,
            wakes,
            adoptions,
            models,
            ..
        } = &mut *content;
        for counts in [loads, wakes, adoptions] {
            if counts.len() > models.len() {
                counts.retain(|id, _| models.iter().any(|model| model.model == *id));
            }
        }
        drop(content);
        self.version.send_modify(|version| *version += 1);
    }

    /// Completes once a question about a model is answered with yes, now or by a later content.
    pub async fn wait(&self, id: &ModelId, holds: impl Fn(&ModelDetails, &[&SlotFacts]) -> bool) {
        let mut version = self.version.subscribe();
        loop {
            version.borrow_and_update();
            if self.look(id, &holds) {
                return;
            }
            // The sender lives as long as the board.
            if version.changed().await.is_err() {
                return;
            }
        }
    }

    fn look(&self, id: &ModelId, holds: impl Fn(&ModelDetails, &[&SlotFacts]) -> bool) -> bool {
        let content = self.content.lock();
        let slots: Vec<&SlotFacts> = content
            .slots
            .iter()
            .filter(|facts| facts.slot.model == *id)
            .collect();
        let model = content.models.iter().find(|model| model.model == *id);
        model.is_some_and(|model| holds(model, &slots))
    }

    pub fn count_load(&self, model: &ModelId, kind: LoadKind) {
        let mut content = self.content.lock();
        let counts = match kind {
            LoadKind::Start => &mut content.loads,
            LoadKind::Wake => &mut content.wakes,
        };
        *counts.entry(model.clone()).or_default() += 1;
    }

    pub fn set_estimates(&self, estimates: BTreeMap<ModelId, EstimateFacts>) {
        self.content.lock().estimates = estimates;
    }

    pub fn set_ledger_problem(&self, problem: Option<String>) {
        self.content.lock().ledger_problem = problem;
    }

    pub fn count_adoption(&self, model: &ModelId) {
        let mut content = self.content.lock();
        *content.adoptions.entry(model.clone()).or_default() += 1;
    }

    /// Returns the device of an id; none where the host has none.
    pub fn device(&self, id: &str) -> Option<DeviceId> {
        let content = self.content.lock();
        let mut devices = content.reading.devices.iter();
        let found = devices.find(|it| it.view.info.id.as_str() == id);
        found.map(|it| it.view.info.id.clone())
    }

    /// Returns devices, leases and slots as `GET /gpu` shows them.
    pub fn report(&self) -> Value {
        let content = self.content.lock();
        let now = host_time();
        let devices = content.reading.devices.iter();
        let devices = devices.map(|it| {
            let closed = content.closed.get(&it.view.info.id).copied();
            shown_device(it, closed, now)
        });
        let slots = content.slots.iter().map(|facts| {
            let shares = facts.shares.iter();
            let shares: Vec<Value> = shares
                .map(|share| json!({ "device": share.device.as_str(), "mib": share.mib }))
                .collect();
            json!({
                "slot": facts.slot.to_string(),
                "model": facts.slot.model.as_str(),
                "state": facts.state,
                "leases": shares,
                "pid": facts.pid,
                "port": facts.port,
                "instance": facts.instance,
                "previous_instance": facts.previous,
                "problem": facts.problem,
                "in_state_ms": facts.details.in_state.0,
                "reason": facts.details.reason,
                "turn_left_ms": facts.details.turn_left.map(|it| it.0),
                "restarts": facts.details.is_outdated,
                "update_available": facts.has_update,
                "loads": content.loads.get(&facts.slot.model).copied().unwrap_or(0),
                "wakes": content.wakes.get(&facts.slot.model).copied().unwrap_or(0),
                "adopted": content.adoptions.get(&facts.slot.model).copied().unwrap_or(0),
            })
        });
        let models = content.models.iter();
        let models = models.map(|it| shown_model(it, content.estimates.get(&it.model)));
        let waiting = content.waiting.iter().map(|facts| {
            json!({
                "model": facts.model.as_str(),
                "reason": facts.reason,
                "waiters": facts.waiters,
                "debt_request_secs": facts.debt,
                "unserved_ms": facts.unserved.0,
            })
        });
        let is_stale = content.reading.devices.iter().any(|it| it.is_stale(now));
        let problem = content.reading.problem.clone();
        let problem = problem.or_else(|| content.ledger_problem.clone());
        let problem = problem.or_else(|| is_stale.then(|| NO_ANSWER.to_owned()));
        json!({
            "devices": devices.collect::<Vec<_>>(),
            "slots": slots.collect::<Vec<_>>(),
            "models": models.collect::<Vec<_>>(),
            "waiting": waiting.collect::<Vec<_>>(),
            "problem": problem,
        })
    }
}

fn shown_device(device: &ReadDevice, closed: Option<DeviceClosure>, now: HostTime) -> Value {
    let info = &device.view.info;
    let sample = device.view.sample.as_ref();
    let free = match device.account_at(now).free {
        FreeMemory::Known(mib) => Some(mib),
        FreeMemory::Unknown(_) => None,
    };
    json!({
        "id": info.id.as_str(),
        "index": info.index,
        "name": info.name,
        "total_mib": info.total_mib,
        "reserve_mib": device.view.reserve_mib,
        "used_mib": sample.and_then(|it| it.used_mib),
        "sample_age_ms": sample.map(|it| now.since(it.taken_at).0),
        "leased_mib": device.account.leased_mib,
        "outside_mib": device.account.outside_mib,
        "over_lease_mib": device.account.over_lease_mib,
        "free_mib": free,
        "utilization_percent": sample.and_then(|it| it.utilization_percent),
        "closed": closed.map(DeviceClosure::name),
    })
}

/// Demand of a client as `GET /gpu?clients` shows it.
pub(super) fn shown_client(demand: &ClientUse, clock: Clock) -> Value {
    let counts = demand.counts;
    json!({
        "client_id": &*demand.client_id,
        "model": demand.model.as_str(),
        "requests": counts.requests,
        "cold_requests": counts.cold_requests,
        "loads": counts.loads,
        "last_seen_at": rfc3339(clock.wall_at(demand.last_seen.0 * 1000)),
    })
}

fn shown_model(model: &ModelDetails, estimate: Option<&EstimateFacts>) -> Value {
    let demand = &model.demand;
    let loads: Vec<u64> = model.loads.iter().map(|took| took.0).collect();
    json!({
        "model": model.model.as_str(),
        "need_mib": model.need_mib,
        "estimate_mib": estimate.and_then(|it| it.mib),
        "estimate_source": estimate.and_then(|it| it.source),
        "measured_mib": estimate.and_then(|it| it.measured_mib),
        "expected_load_ms": model.expected_load.0,
        "loads_ms": loads,
        "waiters": demand.waiters,
        "in_flight": demand.in_flight,
        "debt_request_secs": demand.debt,
        "arrivals_per_sec": demand.arrivals_per_sec,
        "priority": demand.priority,
        "pinned": model.is_pinned,
        "pinned_without_room_ms": model.unplaced.map(|it| it.0),
        "restarting": model.is_restarting,
        "broken": model.is_broken,
        "backoff_ms": model.backoff.map(|it| it.0),
        "why_not_loaded": model.cold_reason.map(|it| it.name()),
    })
}
