//! Actions of the pool, performed.
//!
//! None waits: processes and the ledger are worked on by tasks, whose results come back as messages.

use std::sync::Arc;

use infergate_core::ModelId;
use infergate_core::admission::Readiness;
use infergate_core::model::slot_url;
use infergate_core::vram::{
    Action, DeviceShare, LeaseGroup, LoadReason, ProcessTrail, ReadyOutlook, SlotEvent, SlotId,
    SlotState, StartFailure,
};
use tokio::sync::mpsc;

use super::{Driver, Message};
use crate::app::gpu::instance::{InstanceNews, InstanceOrder, InstanceTask, NewsDetail};
use crate::app::gpu::leases;
use crate::app::gpu::slot_run::PortRetry;
use crate::gpu::process::InstanceId;

/// Orders that may wait for an instance: a sleep or a wake, then an end, the later of which is the stronger.
const ORDERS_MAX: usize = 8;

/// Task of a life, with the orders that it gets.
pub(super) struct SlotOrders {
    pub task: InstanceTask,
    pub orders: mpsc::Receiver<InstanceOrder>,
}

impl Driver {
    pub(super) fn perform(&mut self, actions: Vec<Action>) {
        for action in actions {
            self.perform_one(action);
        }
        let is_moving = |state: SlotState| {
            use SlotState::{Asleep, Draining, Ready, Stuck};
            state.holds_lease() && !matches!(state, Ready | Asleep | Draining(_) | Stuck)
        };
        let is_fast = self
            .pool
            .slot_states()
            .any(|(_, state, _)| is_moving(state));
        self.parts.monitor.set_fast(is_fast);
    }

    fn perform_one(&mut self, action: Action) {
        match action {
            Action::Acquire {
                slot,
                life,
                shares,
                priority,
                reason,
            } => {
                if reason == LoadReason::Demand {
                    self.note_askers(&slot.model);
                }
                self.acquire(slot, life, shares, priority);
            }
            Action::Release(slot) => self.release(&slot),
            Action::Start { slot, life, shares } => self.start(slot, life, shares),
            Action::Open(slot) => {
                let target = self.slots.get(&slot).and_then(|run| run.target.clone());
                if let (Some(model), Some(target)) = (self.models.get(&slot.model), target) {
                    let url = slot_url(&slot.model, slot.number.into());
                    let gate = Arc::clone(model);
                    self.meter_requests(&slot);
                    gate.gate.open_slot(&url, target);
                    let shared = self.parts.shared.snapshot.load();
                    shared.models.open_elsewhere(&slot.model, &url, true);
                    tracing::info!(%slot, "a model is ready");
                }
            }
            Action::Close { slot, reason, .. } => {
                let word = reason.map_or("failed", |_| "draining");
                self.close(&slot, word);
                if let Some(reason) = reason {
                    tracing::info!(%slot, reason = reason.name(), "a model leaves");
                }
            }
            Action::Stop(slot) => self.order(&slot, InstanceOrder::Stop),
            Action::Kill(slot) => self.order(&slot, InstanceOrder::Kill),
            Action::AwaitMemory(slot) => {
                if let Some(run) = self.slots.get_mut(&slot) {
                    run.is_awaited = true;
                }
                self.parts.monitor.look();
            }
            Action::SetReadyEstimate { model, outlook } => {
                self.rejected.remove(&model);
                self.outlooks.insert(model.clone(), outlook);
                self.set_readiness(&model);
            }
            Action::Reject { model, reason } => {
                tracing::warn!(
                    model = model.as_str(),
                    ?reason,
                    "a model cannot be loaded: its requests are refused"
                );
                self.rejected.insert(model.clone());
                self.outlooks.remove(&model);
                self.set_readiness(&model);
            }
            Action::Report { slot, report, .. } => self.report(&slot, &report),
            Action::Sleep(slot) => self.put_to_sleep(&slot),
            Action::Wake(slot) => self.send(&slot, InstanceOrder::Wake),
            Action::Shrink { slot, shares } => self.shrink(&slot, shares),
        }
    }

    /// Records whose requests a load is for: its client, and the profiles that cause no other one for a while.
    fn note_askers(&mut self, model: &ModelId) {
        let askers = self.demand.take_askers(model);
        let shared = &self.parts.shared;
        if let Some(client) = askers.first_client() {
            let now = shared.clock.now();
            let mut clients = shared.client_demand.lock();
            clients.record_load(&client.id, model, now);
        }
        if let Some(runtime) = self.models.get(model)
            && !askers.profiles.is_empty()
        {
            runtime.gate.record_load(&askers.profiles);
        }
    }

    /// Asks the ledger for the shares of a slot; its answer comes as a message.
    fn acquire(&mut self, slot: SlotId, life: u64, shares: Vec<DeviceShare>, priority: u8) {
        let run = self.slots.entry(slot.clone()).or_default();
        run.life = life;
        if let Some(group) = run.group.clone() {
            return self.grow(slot, life, group, shares);
        }
        run.shares.clone_from(&shares);
        run.grown = None;
        run.priority = priority;
        let id = InstanceId::new(&slot.to_string(), fastrand::u32(..));
        self.begin_life(&slot, id.ok());
        let (ledger, reading) = (Arc::clone(&self.parts.ledger), Arc::clone(&self.reading));
        let sender = self.sender.clone();
        self.changes.add(&mut self.tasks, move || {
            let name = slot.to_string();
            let result = leases::acquire(&ledger, &reading, (&name, priority), &shares);
            let _ = sender.blocking_send(Message::Leased { slot, life, result });
        });
    }

    /// Starts the process of a load, at another port once its leases are held again.
    fn start(&mut self, slot: SlotId, life: u64, shares: Vec<DeviceShare>) {
        let run = self.slots.entry(slot.clone()).or_default();
        match run.group.take_if(|_| run.is_handed_over) {
            Some(former) => self.lease_again(PortRetry::new((slot, life), shares, former)),
            None => self.launch(slot, life, shares),
        }
    }

    pub(super) fn launch(&mut self, slot: SlotId, life: u64, shares: Vec<DeviceShare>) {
        self.begin_measuring(&slot);
        let trails = shares.iter().map(|share| ProcessTrail {
            before_start_mib: self.used_mib(&share.device),
            before_end_mib: None,
        });
        let trails = trails.collect();
        let run = self.slots.entry(slot.clone()).or_default();
        run.target = None;
        if let Some(former) = run.started.take() {
            run.previous = Some(former.instance);
        }
        run.trails = trails;
        match self.instance_task(&slot, life, shares) {
            Some(SlotOrders { task, orders }) => drop(self.tasks.spawn(task.run(orders))),
            None => self.refuse_start(slot, life),
        }
    }

    /// Task of a life whose orders and news are the slot's; none of a model that is gone.
    pub(super) fn instance_task(
        &mut self,
        slot: &SlotId,
        life: u64,
        shares: Vec<DeviceShare>,
    ) -> Option<SlotOrders> {
        let model = self.models.get(&slot.model)?;
        let (orders, ordered) = mpsc::channel(ORDERS_MAX);
        let run = self.slots.entry(slot.clone()).or_default();
        run.life = life;
        run.orders = Some(orders);
        run.is_awaited = false;
        run.is_ending_by_order = false;
        run.slept_at = None;
        let (news, mut received) = mpsc::channel(ORDERS_MAX);
        let sender = self.sender.clone();
        let task = InstanceTask {
            shared: Arc::clone(&self.parts.shared),
            spec: Arc::clone(&model.spec),
            cgroup: self.cgroup.clone(),
            gpu: Arc::clone(&self.parts.gpu),
            state_dir: self.parts.state_dir.clone(),
            ports: self.ports.clone(),
            slot: slot.clone(),
            life,
            instance: run.instance.as_ref().and_then(|it| it.id.clone()),
            shares,
            reading: Arc::clone(&self.reading),
            reads: self.load_reads.clone(),
            ledger: Arc::clone(&self.parts.ledger),
            leases: run.group.clone(),
            news,
        };
        self.tasks.spawn(async move {
            while let Some(news) = received.recv().await {
                if sender.send(Message::News(news)).await.is_err() {
                    return;
                }
            }
        });
        Some(SlotOrders {
            task,
            orders: ordered,
        })
    }

    /// Reports that a model which the configuration has no more was not started.
    fn refuse_start(&mut self, slot: SlotId, life: u64) {
        let news = InstanceNews {
            slot,
            life,
            event: SlotEvent::NotStarted(StartFailure::CommandFailed),
            detail: NewsDetail::NotStarted("the model was removed".to_owned()),
        };
        let sender = self.sender.clone();
        self.tasks.spawn(async move {
            // Without a driver the gateway ends.
            let _ = sender.send(Message::News(news)).await;
        });
    }

    pub(super) fn order(&mut self, slot: &SlotId, order: InstanceOrder) {
        self.mark_end(slot);
        let Some(run) = self.slots.get_mut(slot) else {
            return;
        };
        run.is_ending_by_order = true;
        self.send(slot, order);
    }

    pub(super) fn send(&self, slot: &SlotId, order: InstanceOrder) {
        let run = self.slots.get(slot);
        if let Some(orders) = run.and_then(|run| run.orders.as_ref()) {
            // Full only with orders that say as much.
            let _ = orders.try_send(order);
        }
    }

    fn release(&mut self, slot: &SlotId) {
        let Some(run) = self.slots.get_mut(slot) else {
            return;
        };
        run.shares.clear();
        run.grown = None;
        run.is_awaited = false;
        if let Some(group) = run.group.take() {
            self.release_group(slot, group);
        }
    }

    pub(super) fn release_group(&mut self, slot: &SlotId, group: LeaseGroup) {
        let (ledger, slot) = (Arc::clone(&self.parts.ledger), slot.clone());
        let sender = self.sender.clone();
        self.unreleased.begin(&group);
        self.changes.add(&mut self.tasks, move || {
            if let Err(error) = leases::release(&ledger, &group) {
                tracing::warn!(%slot, error, "the leases of a model cannot be given back now: it is tried again");
                let _ = sender.blocking_send(Message::NotReleased { slot, group });
            }
        });
    }

    /// Gives back what could not be given back before.
    pub(super) fn release_again(&mut self) {
        for (slot, group) in self.unreleased.take_due() {
            self.release_group(&slot, group);
        }
    }

    pub(super) fn close(&self, slot: &SlotId, word: &'static str) {
        let url = slot_url(&slot.model, slot.number.into());
        if let Some(model) = self.runtime_of(slot) {
            model.gate.close_slot(&url, word);
        }
        let shared = self.parts.shared.snapshot.load();
        shared.models.open_elsewhere(&slot.model, &url, false);
    }

    /// Tells the gate of a model when it is expected to be ready. A load that has not begun is ahead in full.
    pub(super) fn set_readiness(&self, id: &ModelId) {
        let Some(model) = self.models.get(id) else {
            return;
        };
        if self.rejected.contains(id) {
            return model.gate.set_readiness(Readiness::Never);
        }
        let Some(outlook) = self.outlooks.get(id) else {
            return;
        };
        let now = self.parts.shared.clock.now();
        let readiness = match outlook {
            ReadyOutlook::Usable => return,
            ReadyOutlook::AfterLoad(estimate) => Readiness::Expected {
                earliest: now + estimate.earliest,
                expected: now + estimate.expected,
            },
            ReadyOutlook::At(estimate) => Readiness::Expected {
                earliest: estimate.earliest,
                expected: estimate.expected,
            },
        };
        model.gate.set_readiness(readiness);
    }
}
