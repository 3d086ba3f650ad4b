//! Worker: turns free permits into runs of queued jobs. Permit first, job second.
//!
//! Not a queue: a job stays in the store until a permit for it is in hand. Each slot is a task that waits for a permit
//! of a model, takes one job of its queues, runs it and writes its end. Queues that share a model take turns by permit
//! time. Bounded by the model's permits, by [`ASKS_MAX`] waits for each model and by `jobs.worker.concurrency_max` runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use hashbrown::HashMap;
use infergate_core::admission::{PermitClass, PermitRequest};
use infergate_core::job::{
    DeployableKey, DeployableKind, ExpectedHold, QueueTurns, ReleaseCause, TakeRequest, TakenJob,
    WorkerId,
};
use infergate_core::{Millis, ModelId};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use super::catalog::JobCatalog;
use super::readiness::{NotRun, before_run};
use super::reconcile::HeldRuns;
use super::run::RunContext;
use super::signals::StopCause;
use super::store::StoredRun;
use super::weights::ServedWeights;
use crate::upstream::{GateEntry, ModelRuntime, Permit};

/// Waits for permits of one model at once.
pub const ASKS_MAX: usize = 64;
/// Longest hold of a permit while a take waits for the store: model servers do not wait for a disk that hangs.
const TAKE_HOLD_MAX: Duration = Duration::from_secs(1);
/// Pause after a model had no permit to wait for, or the store failed.
const PAUSE: Duration = Duration::from_secs(1);
/// Comparison of the runs that are held with the store's, while there are any.
const RECONCILE_EVERY: Duration = Duration::from_secs(2);
/// Look at queues that have jobs and no slot, in case a hint was lost.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Settings of a worker that a reload may change.
#[derive(Debug, Default)]
pub struct WorkerSettings {
    /// Runs at once.
    pub concurrency_max: AtomicUsize,
}

/// Worker of one process.
pub struct Worker {
    /// Parts that runs need.
    pub context: Arc<RunContext>,
    /// Models that accept jobs.
    pub catalog: Arc<JobCatalog>,
    /// Settings.
    pub settings: Arc<WorkerSettings>,
    /// Takes of each queue so far. Held for one addition.
    turns: Mutex<HashMap<DeployableKey, u32>>,
    weights: ServedWeights,
    /// Permits in hand with a job, or about to have one.
    running: Arc<AtomicUsize>,
    /// Turns of queues that share a model's permits. Held for one choice.
    queues: Mutex<QueueTurns>,
    /// Runs between the store and this process.
    held: Arc<HeldRuns>,
    /// A run may be nobody's: a take failed, or a task did.
    is_in_doubt: AtomicBool,
    /// No job is taken any more.
    is_draining: AtomicBool,
}

/// End of a slot.
enum SlotEnd {
    /// Ran a job, or found none.
    Done(ModelId),
    /// The model has no permit to wait for, or the store failed.
    Paused(ModelId),
    /// Compared what is held with the store.
    Reconciled,
}

/// Model whose permits queues with jobs wait for.
struct WaitingModel {
    runtime: Arc<ModelRuntime>,
    /// Jobs of all its queues that can be taken.
    ready: usize,
}

impl Worker {
    /// Creates a worker without a run.
    pub fn new(
        context: Arc<RunContext>,
        catalog: Arc<JobCatalog>,
        settings: Arc<WorkerSettings>,
    ) -> Worker {
        Worker {
            context,
            catalog,
            settings,
            turns: Mutex::default(),
            weights: ServedWeights::default(),
            running: Arc::default(),
            queues: Mutex::default(),
            held: Arc::default(),
            is_in_doubt: AtomicBool::new(false),
            is_draining: AtomicBool::new(false),
        }
    }

    /// Runs jobs until `draining` is true, then ends: runs go on to `drain_timeout` and are released after it.
    pub async fn run(
        self: Arc<Self>,
        mut draining: watch::Receiver<bool>,
        drain_timeout: impl Fn() -> Duration,
    ) {
        let mut slots: JoinSet<SlotEnd> = JoinSet::new();
        let mut asks: HashMap<ModelId, Arc<AtomicUsize>> = HashMap::new();
        let mut paused: HashMap<ModelId, Instant> = HashMap::new();
        let signals = &self.context.signals;
        // At most one comparison at a time: none is due while this is none.
        let mut reconcile_at = Some(Instant::now() + RECONCILE_EVERY);
        loop {
            let has_waiting = self.start_slots(&mut slots, &mut asks, &mut paused);
            let look = async {
                match has_waiting {
                    true => tokio::time::sleep(LOOK_EVERY).await,
                    false => std::future::pending().await,
                }
            };
            let is_compared = !slots.is_empty() || self.is_in_doubt.load(Ordering::Relaxed);
            let due = reconcile_at.filter(|_| is_compared);
            let compare = async {
                match due {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = signals.work.notified() => {}
                () = look => {}
                () = compare => {
                    reconcile_at = None;
                    slots.spawn(Arc::clone(&self).reconcile());
                }
                Some(ended) = slots.join_next() => {
                    if matches!(ended, Ok(SlotEnd::Reconciled)) {
                        reconcile_at = Some(Instant::now() + RECONCILE_EVERY);
                    }
                    self.note(ended, &mut paused);
                }
                changed = draining.wait_for(|draining| *draining) => {
                    // A sender that is gone drains too.
                    let _ = changed;
                    break;
                }
            }
        }
        self.drain(slots, drain_timeout()).await;
    }

    fn note(
        &self,
        ended: Result<SlotEnd, tokio::task::JoinError>,
        paused: &mut HashMap<ModelId, Instant>,
    ) {
        match ended {
            Ok(SlotEnd::Done(model)) => _ = paused.remove(&model),
            Ok(SlotEnd::Paused(model)) => _ = paused.insert(model, Instant::now() + PAUSE),
            Ok(SlotEnd::Reconciled) => {}
            Err(error) => {
                tracing::error!(%error, "a slot for jobs ended: its job is queued again");
                self.is_in_doubt.store(true, Ordering::Relaxed);
            }
        }
    }

    /// Finds runs that nothing works on, which are queued again.
    async fn reconcile(self: Arc<Self>) -> SlotEnd {
        let context = &self.context;
        // A doubt that comes meanwhile is looked at the next time.
        self.is_in_doubt.store(false, Ordering::Relaxed);
        let own = (&*context.signals, context.clock.now());
        let compared = self.held.reconcile(&*context.store, &context.worker, own);
        if let Err(error) = compared.await {
            tracing::debug!(%error, "the runs of this process cannot be compared with the store");
            self.is_in_doubt.store(true, Ordering::Relaxed);
        }
        SlotEnd::Reconciled
    }

    /// Starts slots for jobs that can be taken. Returns whether some have none.
    fn start_slots(
        self: &Arc<Self>,
        slots: &mut JoinSet<SlotEnd>,
        asks: &mut HashMap<ModelId, Arc<AtomicUsize>>,
        paused: &mut HashMap<ModelId, Instant>,
    ) -> bool {
        if !self.context.kept.is_empty() {
            // Further runs would only add to the ends that wait for the store.
            return true;
        }
        let running = self.running.load(Ordering::Relaxed);
        let free = self.concurrency_max().saturating_sub(running);
        let now = Instant::now();
        paused.retain(|_, until| *until > now);
        asks.retain(|_, count| count.load(Ordering::Relaxed) > 0);
        let ready = self.context.signals.ready();
        let is_ready = |key: &DeployableKey| ready.iter().any(|(ready, _)| ready == key);
        self.queues.lock().retain(is_ready);
        for (id, model) in self.waiting_models(&ready) {
            if paused.contains_key(&id) {
                continue;
            }
            let permits = usize::try_from(model.runtime.spec.permits()).unwrap_or(usize::MAX);
            // Waits do not count as runs: a model without a free permit leaves the places to others.
            let wanted = model.ready.min(permits).min(ASKS_MAX).min(free);
            let waiting = asks.entry(id).or_default();
            while waiting.load(Ordering::Relaxed) < wanted {
                let ask = CountGuard::new(Arc::clone(waiting));
                slots.spawn(Arc::clone(self).slot(Arc::clone(&model.runtime), ask));
            }
        }
        !ready.is_empty()
    }

    /// Returns the models of queues with jobs: queues of one model wait for its permits together.
    fn waiting_models(&self, ready: &[(DeployableKey, usize)]) -> HashMap<ModelId, WaitingModel> {
        let mut models: HashMap<ModelId, WaitingModel> = HashMap::new();
        for (key, count) in ready {
            let Some(runtime) = self.catalog.of_queue(&self.context.shared, key) else {
                continue;
            };
            let id = runtime.spec.id.clone();
            let model = models
                .entry(id)
                .or_insert(WaitingModel { runtime, ready: 0 });
            model.ready += count;
        }
        models
    }

    /// Serves a slot: a permit, a job, its run and its end.
    async fn slot(self: Arc<Self>, model: Arc<ModelRuntime>, ask: CountGuard) -> SlotEnd {
        let id = model.spec.id.clone();
        let Some(permit) = self.permit(&model).await else {
            return SlotEnd::Paused(id);
        };
        if !self.context.kept.is_empty() || self.is_draining.load(Ordering::Acquire) {
            return SlotEnd::Paused(id);
        }
        let Some(_place) = self.place() else {
            // The end of a run starts a slot again.
            return SlotEnd::Done(id);
        };
        let Some(turn) = self.choose(&id) else {
            permit.give_back();
            return SlotEnd::Done(id);
        };
        let take = self.held.begin_take(self.context.clock.now());
        let taken = self.take_with(&turn.key, permit).await;
        drop(ask);
        let (mut run, permit) = match taken {
            Ok(Some(taken)) => taken,
            Ok(None) => return SlotEnd::Done(id),
            Err(()) => {
                self.is_in_doubt.store(true, Ordering::Relaxed);
                return SlotEnd::Paused(id);
            }
        };
        let _panic = self.held.watch(&run.taken);
        let registered = self.context.register(&run.taken);
        drop(take);
        if self.is_moved(&turn.key, &run.taken) {
            // The permit is not one of the job's model.
            drop(permit);
            self.context.end_moved(&run.taken).await;
            return SlotEnd::Done(id);
        }
        let permit = match permit {
            Some(permit) => permit,
            None => match self
                .late_permit(&model, &mut run.taken, &registered.1)
                .await
            {
                Ok(permit) => permit,
                Err(not_run) => {
                    self.context.leave_taken(&run.taken, not_run).await;
                    return SlotEnd::Paused(id);
                }
            },
        };
        let permit = self.elsewhere(&model, permit, &run.taken);
        let turn = turn.begin();
        // The next slot of the queue may begin to wait.
        self.context.signals.work.notify_one();
        self.context.run(run, permit, registered).await;
        drop(turn);
        SlotEnd::Done(id)
    }

    fn concurrency_max(&self) -> usize {
        self.settings.concurrency_max.load(Ordering::Relaxed).max(1)
    }

    /// Returns a place among the runs of this process; none while every one is taken.
    fn place(&self) -> Option<CountGuard> {
        let place = CountGuard::new(Arc::clone(&self.running));
        (place.before < self.concurrency_max()).then_some(place)
    }

    /// Returns whether the deployment of a job has another model since the job was created.
    fn is_moved(&self, queue: &DeployableKey, taken: &TakenJob) -> bool {
        let deployment = self.catalog.deployments.of_queue(queue);
        deployment.is_some_and(|it| it.spec.model != taken.definition.model)
    }

    /// Chooses the queue of a model that a permit is for: the one with the least permit time so far.
    fn choose(self: &Arc<Self>, model: &ModelId) -> Option<QueueTurn> {
        let shared = &self.context.shared;
        let ready = self.context.signals.ready().into_iter();
        let is_models = |key: &DeployableKey| {
            let found = self.catalog.of_queue(shared, key);
            found.is_some_and(|runtime| runtime.spec.id == *model)
        };
        let waiting: Vec<_> = ready.map(|(key, _)| key).filter(is_models).collect();
        let (key, expected) = self.queues.lock().choose(&waiting)?;
        Some(QueueTurn {
            worker: Arc::clone(self),
            key,
            expected,
            began: None,
        })
    }

    /// Waits for a permit of the model. None when its gate has nothing to wait for.
    async fn permit(&self, model: &Arc<ModelRuntime>) -> Option<Permit> {
        let now_us = self.context.shared.clock.micros();
        let (_, entry) = model.gate.request_permit_at(permit_request(), now_us);
        match entry {
            Ok(GateEntry::Leased(permit)) => Some(permit),
            Ok(GateEntry::Queued(mut waiter)) => waiter.granted().await.ok(),
            Err(_) => None,
        }
    }

    /// Takes a job with a permit in hand, which goes back where the store takes its time: the job comes alone then.
    async fn take_with(
        &self,
        key: &DeployableKey,
        permit: Permit,
    ) -> Result<Option<(StoredRun, Option<Permit>)>, ()> {
        let url = Arc::clone(&permit.target.url);
        let mut permit = Some(permit);
        let taking = self.take(key, &url);
        tokio::pin!(taking);
        let taken = match timeout(TAKE_HOLD_MAX, &mut taking).await {
            Ok(taken) => taken,
            Err(_) => {
                permit.take().into_iter().for_each(Permit::give_back);
                // Not given up: a take whose answer is not heard is a job that runs nowhere.
                taking.await
            }
        };
        match taken? {
            Some(run) => Ok(Some((run, permit))),
            None => {
                permit.into_iter().for_each(Permit::give_back);
                Ok(None)
            }
        }
    }

    /// Waits for a permit of a job that came after the one for it had gone back, while the job has time and nobody stops
    /// it. The wait is part of its time.
    ///
    /// # Errors
    /// What becomes of the job.
    async fn late_permit(
        &self,
        model: &Arc<ModelRuntime>,
        taken: &mut TakenJob,
        stop: &watch::Receiver<StopCause>,
    ) -> Result<Permit, NotRun> {
        let began = Instant::now();
        let waiting = async {
            let permit = self.permit(model).await;
            permit.ok_or(NotRun::Released(ReleaseCause::LostReply))
        };
        let permit = before_run(taken, stop.clone(), waiting).await?;
        let waited = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
        taken.time_left = Millis(taken.time_left.0.saturating_sub(waited));
        Ok(permit)
    }

    /// Returns a permit of another endpoint where the job's last attempt lost the one in hand, and another is free now.
    fn elsewhere(&self, model: &Arc<ModelRuntime>, permit: Permit, taken: &TakenJob) -> Permit {
        let (progress, url) = (&taken.progress, &permit.target.url);
        if progress.attempts.counted == 0
            || !self
                .context
                .attempts
                .has_lost(&taken.definition.id, progress.epoch, url)
        {
            return permit;
        }
        let request = PermitRequest {
            avoid: vec![permit.endpoint],
            no_wait: true,
            ..permit_request()
        };
        let now_us = self.context.shared.clock.micros();
        match model.gate.request_permit_at(request, now_us).1 {
            Ok(GateEntry::Leased(other)) if other.target.url != permit.target.url => other,
            _ => permit,
        }
    }

    /// Number of the next take of a queue: each queue has its own rotation of classes.
    fn next_turn(&self, key: &DeployableKey) -> u32 {
        let mut turns = self.turns.lock();
        let turn = turns.entry(key.clone()).or_default();
        *turn = turn.wrapping_add(1);
        *turn
    }

    /// Takes a job for the server at `url`; of models that share a base, one whose weights it served last.
    async fn take(&self, key: &DeployableKey, url: &Arc<str>) -> Result<Option<StoredRun>, ()> {
        let is_shared = key.kind() == Some(DeployableKind::HotSwap);
        let preferred_flow = match is_shared {
            true => self.weights.preferred(key, url),
            false => None,
        };
        let request = TakeRequest {
            deployable: key.clone(),
            count: 1,
            turn: self.next_turn(key),
            preferred_flow: preferred_flow.clone(),
        };
        let taken = self.context.store.take(&self.context.worker, request).await;
        match taken {
            Ok(mut runs) => {
                let mut run = runs.pop();
                if let Some(run) = run.as_mut().filter(|_| is_shared) {
                    self.record_weights((key, url), preferred_flow.as_deref(), run);
                }
                Ok(run)
            }
            Err(error) => {
                tracing::warn!(%error, "no job could be taken");
                Err(())
            }
        }
    }

    fn record_weights(
        &self,
        server: (&DeployableKey, &Arc<str>),
        preferred: Option<&str>,
        run: &mut StoredRun,
    ) {
        let definition = &run.taken.definition;
        if self.weights.record(server, preferred, &definition.flow) {
            run.weights_changed = true;
            let metrics = self.context.shared.metrics.jobs();
            metrics.record_weight_swap(&definition.model, server.0.as_str());
        }
    }

    /// Lets runs end, then releases those that go on.
    async fn drain(&self, mut slots: JoinSet<SlotEnd>, limit: Duration) {
        // Slots that still wait give their permit back.
        self.is_draining.store(true, Ordering::Release);
        let running = self.context.signals.running().len();
        if running > 0 {
            tracing::info!(running, "jobs may end before this process does");
        }
        let all_ended = async {
            // Slots that wait for a permit end with the set.
            while !self.context.signals.running().is_empty() {
                if slots.join_next().await.is_none() {
                    break;
                }
            }
        };
        if timeout(limit, all_ended).await.is_err() {
            self.context.signals.stop_all(StopCause::Drain);
            let released = async {
                while !self.context.signals.running().is_empty() {
                    if slots.join_next().await.is_none() {
                        break;
                    }
                }
            };
            let _ = timeout(PAUSE, released).await;
        }
        slots.shutdown().await;
        // What a dropped slot had taken is queued again.
        if let Err(error) = self.context.store.retire(&self.context.worker).await {
            tracing::warn!(%error, "jobs of this process are released at the next start");
        }
    }
}

/// Request for a permit as jobs make it: bounded by their store, and never late.
fn permit_request() -> PermitRequest {
    PermitRequest {
        account: infergate_core::AccountId::ANONYMOUS.into(),
        weight: 1,
        priority: 9,
        is_warm: false,
        tokens: 1,
        deadline: Millis::MAX,
        no_wait: false,
        avoid: Vec::new(),
        endpoint_order: None,
        is_retry: false,
        is_bounded_elsewhere: true,
        class: PermitClass::Durable,
        has_alternative: false,
        client: None,
    }
}

/// Turn of a queue; its permit time is counted by drop.
struct QueueTurn {
    worker: Arc<Worker>,
    key: DeployableKey,
    expected: ExpectedHold,
    /// Moment at which the run began; none before there is one.
    began: Option<Instant>,
}

impl QueueTurn {
    fn begin(mut self) -> QueueTurn {
        self.began = Some(Instant::now());
        self
    }
}

impl Drop for QueueTurn {
    fn drop(&mut self) {
        let hold = self.began.map(|began| began.elapsed().as_millis());
        let hold = hold.map(|ms| Millis(u64::try_from(ms).unwrap_or(u64::MAX)));
        let mut queues = self.worker.queues.lock();
        queues.record(&self.key, self.expected, hold);
    }
}

/// Number that goes down again by drop.
struct CountGuard {
    count: Arc<AtomicUsize>,
    /// Count without this one.
    before: usize,
}

impl CountGuard {
    fn new(count: Arc<AtomicUsize>) -> CountGuard {
        let before = count.fetch_add(1, Ordering::Relaxed);
        CountGuard { count, before }
    }
}

impl Drop for CountGuard {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Makes the id of this incarnation.
pub fn worker_id(node: &str) -> WorkerId {
    WorkerId::new(node, fastrand::u32(..))
}
