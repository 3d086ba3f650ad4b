//! Driver of the GPU host: the pool's decisions carried out, and what happens told to the pool.
//!
//! Decides nothing. The pool belongs to a single task; processes, ledger and files are worked on by tasks of their own, whose results
//! come back as messages. Requests never pass here: a ready model is an endpoint like any other.

mod actions;
mod adopt;
mod claims;
mod ending;
mod events;
mod files;
mod handover;
mod instances;
mod looks;
mod memory;
mod models;
mod orders;
mod port_retry;
mod recording;
mod records;
mod sleeps;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use infergate_core::ModelId;
use infergate_core::model::ModelSpec;
use infergate_core::vram::{DeviceShare, LeaseGroup, ModelPool, PoolMoment, ReadyOutlook, SlotId};
use tokio::sync::mpsc;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{Instant, sleep_until};

use claims::OwnClaims;

use super::adoption::Adoption;
use super::demand::DemandBook;
use super::ending::{EndingOrders, HostPredecessor};
use super::figures::HostFigures;
use super::file_book::{FileBook, FileLook};
use super::file_reads::FileReads;
use super::instance::{InstanceNews, InstanceOrder};
use super::leases::LeaseRefusal;
use super::ledger_queue::{LedgerQueue, UnreleasedLeases};
use super::orphans::{remove_old_logs, sweep_orphans};
use super::outlets::{Post, ReportOutlets, SetupLine, post_reports};
use super::recorder::HostRecorder;
use super::settings::{EstimateFacts, FileFacts, HostPlan, ReadModels};
use super::slot_run::{PortRetry, SlotRun};
use super::standing_orders::StandingOrdersFile;
use super::view::GpuBoard;
use crate::app::reload::ConfigStatus;
use crate::gpu::process::{
    InstanceId, InstanceRecord, OrphanDecision, PortPool, delegated_group, log_directory,
    run_directory,
};
use crate::gpu::{CgroupChoice, GpuConfig, HostLedger, HostMonitor, HostReading, MeasuredStore};
use crate::state::Shared;
use crate::upstream::{ColdSignal, ModelRuntime};
pub(super) use orders::{HostCommand, HostOrder};

/// Messages that may wait for the driver.
const MESSAGES_MAX: usize = 1024;
/// Time between two sweeps of processes that nothing has.
const SWEEP_EVERY: Duration = Duration::from_secs(60);

/// Message to the driver.
enum Message {
    News(InstanceNews),
    Leased {
        slot: SlotId,
        life: u64,
        result: Result<LeaseGroup, LeaseRefusal>,
    },
    /// The ledger's answer about the leases of a load that begins anew at another port.
    LeasedAgain {
        retry: Box<PortRetry>,
        result: Result<LeaseGroup, LeaseRefusal>,
    },
    /// Leases of such a load are to be sought again.
    LeaseAgain(Box<PortRetry>),
    Configured(Box<ReadModels>),
    SetUp(Box<SetupLine>),
    /// Result of a check of a former gateway's process that took long.
    Adopted(Adoption),
    /// States of the files of each model; none where they have not answered.
    Files(BTreeMap<ModelId, Option<FileLook>>),
    /// A load was measured: estimates may have changed.
    Measured,
    /// Facts of files that have answered late.
    LateFacts(Arc<ModelSpec>, Box<Option<FileFacts>>),
    /// State of files that have answered late.
    LateFiles(ModelId, FileLook),
    /// The ledger's answer about leases that a process has outgrown.
    Outgrown {
        slot: SlotId,
        life: u64,
        result: Result<Vec<DeviceShare>, String>,
    },
    /// Leases that the ledger could not take back.
    NotReleased {
        slot: SlotId,
        group: LeaseGroup,
    },
}

/// Parts that the driver is made of.
pub(super) struct DriverParts {
    pub shared: Arc<Shared>,
    pub gpu: Arc<GpuConfig>,
    /// Status with the configuration that has effect.
    pub status: Arc<ArcSwap<ConfigStatus>>,
    pub state_dir: PathBuf,
    pub ledger: Arc<HostLedger>,
    pub monitor: HostMonitor,
    pub board: Arc<GpuBoard>,
    pub measured: Arc<MeasuredStore>,
}

/// The driver.
pub(super) struct Driver {
    parts: DriverParts,
    pool: ModelPool,
    ports: PortPool,
    /// Group below which each instance gets its control group.
    cgroup: Option<Arc<Path>>,
    signal: Arc<ColdSignal>,
    demand: DemandBook,
    figures: HostFigures,
    outlets: ReportOutlets,
    /// Configuration for the lifecycle file.
    recorder: HostRecorder,
    /// Reports that a task of their own posts, until the driver runs.
    posted: Option<mpsc::Receiver<Post>>,
    /// Configuration that the settings of the host are taken from.
    generation: u64,
    slots: BTreeMap<SlotId, SlotRun>,
    models: BTreeMap<ModelId, Arc<ModelRuntime>>,
    /// Former runtimes of models, with gates of their own, whose requests have not ended.
    retired: Vec<Arc<ModelRuntime>>,
    /// Estimates are being made, and whether the configuration has changed since.
    estimating: Option<bool>,
    /// Orders for models whose estimates are being made.
    early_orders: Vec<HostOrder>,
    files: FileBook,
    /// Looks at the files of models, reads of them for estimates, and those of slots before a load.
    file_looks: FileReads,
    estimate_reads: FileReads,
    load_reads: FileReads,
    /// Facts of the models' files, as they have last told.
    file_facts: BTreeMap<ModelId, FileFacts>,
    /// Leases of processes that were taken over while the files of their models did not answer, MiB.
    leased_mib: BTreeMap<ModelId, u64>,
    /// Models and host that the pool has its settings of; none before the first.
    plan: Option<HostPlan>,
    /// Models whose files do not answer, which has been said.
    silent_files: BTreeSet<ModelId>,
    outlooks: BTreeMap<ModelId, ReadyOutlook>,
    estimates: BTreeMap<ModelId, EstimateFacts>,
    claims: OwnClaims,
    /// Changes of the ledger.
    changes: LedgerQueue,
    /// Problem of the ledger when memory was last sought.
    ledger_problem: Option<String>,
    unreleased: UnreleasedLeases,
    /// Orders that outlast the gateway.
    standing: Arc<StandingOrdersFile>,
    /// Models whose requests are refused, because no load can serve them.
    rejected: BTreeSet<ModelId>,
    reading: Arc<HostReading>,
    /// Pinned models whose want of room has been said.
    unplaced_pins: BTreeSet<ModelId>,
    /// Devices without fresh figures at the last look.
    stale_devices: usize,
    sender: mpsc::Sender<Message>,
    messages: mpsc::Receiver<Message>,
    orders: mpsc::Receiver<HostOrder>,
    tasks: JoinSet<()>,
    ending: EndingOrders,
    /// The pool ends its models with the process.
    is_draining: bool,
    /// Order that all instances were given beside the pool's.
    ordered: Option<InstanceOrder>,
    /// Moment from which the host rests whatever goes on, while it is asked to.
    rest_at: Option<Instant>,
    is_handed_over: bool,
}

impl Driver {
    /// Creates a driver of an empty pool.
    pub fn new(
        parts: DriverParts,
        orders: mpsc::Receiver<HostOrder>,
        ending: EndingOrders,
    ) -> Driver {
        let (sender, messages) = mpsc::channel(MESSAGES_MAX);
        let ports = parts.gpu.ports;
        let cgroup = cgroup_parent(&parts.gpu);
        let (outlets, posted) = ReportOutlets::new(parts.shared.clock);
        let reads = FileReads::new();
        Driver {
            pool: ModelPool::default(),
            ports: PortPool::new(ports.first..=ports.last),
            cgroup,
            signal: Arc::default(),
            demand: DemandBook::default(),
            figures: HostFigures::default(),
            outlets,
            recorder: HostRecorder::default(),
            posted: Some(posted),
            generation: 0,
            slots: BTreeMap::new(),
            models: BTreeMap::new(),
            retired: Vec::new(),
            estimating: None,
            early_orders: Vec::new(),
            files: FileBook::default(),
            file_looks: reads.sibling(),
            estimate_reads: reads.sibling(),
            load_reads: reads,
            file_facts: BTreeMap::new(),
            leased_mib: BTreeMap::new(),
            plan: None,
            silent_files: BTreeSet::new(),
            outlooks: BTreeMap::new(),
            estimates: BTreeMap::new(),
            claims: OwnClaims::default(),
            changes: LedgerQueue::new(),
            ledger_problem: None,
            unreleased: UnreleasedLeases::default(),
            standing: StandingOrdersFile::open(&parts.state_dir),
            rejected: BTreeSet::new(),
            reading: Arc::default(),
            unplaced_pins: BTreeSet::new(),
            stale_devices: 0,
            sender,
            messages,
            orders,
            tasks: JoinSet::new(),
            ending,
            is_draining: false,
            ordered: None,
            rest_at: None,
            is_handed_over: false,
            parts,
        }
    }

    /// Drives for the life of the process, or until a successor has the processes. Dropped, it drops the life lines of all
    /// processes.
    pub async fn run(mut self, predecessor: HostPredecessor) {
        if let Some(posted) = self.posted.take() {
            let (shared, unsent) = (Arc::clone(&self.parts.shared), self.outlets.unsent());
            self.tasks.spawn(post_reports(shared, posted, unsent));
        }
        self.changes.start(&mut self.tasks);
        let taken = match predecessor {
            HostPredecessor::Lives(taken) => Some(taken),
            HostPredecessor::Ended => None,
        };
        let orphans = self.sweep_once(taken.is_some()).await;
        let mut swapped = self.parts.shared.swapped.subscribe();
        let mut readings = self.parts.monitor.readings();
        self.configure();
        self.adopt(orphans).await;
        if let Some(taken) = taken {
            taken.send_replace(true);
        }
        let mut next_sweep = Instant::now() + SWEEP_EVERY;
        let mut due = Instant::now();
        let signal = Arc::clone(&self.signal);
        let mut stage = self.ending.stage.clone();
        let mut handover = self.ending.handover.clone();
        loop {
            tokio::select! {
                Some(message) = self.messages.recv() => self.take(message),
                Some(order) = self.orders.recv() => self.take_order(order),
                () = signal.changed.notified() => {}
                changed = readings.changed() => {
                    if changed.is_err() {
                        tracing::error!("the watch over the devices ended: models are not loaded any more");
                        return std::future::pending().await;
                    }
                    self.take_reading(&mut readings);
                }
                // The sender outlives this task.
                _ = swapped.changed() => self.configure(),
                Ok(()) = stage.changed() => {}
                Ok(()) = handover.changed() => {}
                () = sleep_until(due) => {}
                Some(_) = self.tasks.join_next() => continue,
            }
            while let Ok(message) = self.messages.try_recv() {
                self.take(message);
            }
            if self.parts.status.load().generation != self.generation {
                self.configure();
            }
            self.look_at_age();
            self.look_at_drains();
            self.look_at_pins();
            self.look_at_demand();
            self.look_at_ending();
            self.look_at_reports();
            self.look_at_files();
            self.write_claims();
            if Instant::now() >= next_sweep {
                next_sweep = Instant::now() + SWEEP_EVERY;
                self.sweep();
            }
            due = self.next_due();
            self.publish();
            if self.may_rest() {
                self.rest().await;
            }
        }
    }

    fn moment(&self) -> PoolMoment {
        PoolMoment {
            now: self.parts.shared.clock.now(),
            random: fastrand::u64(..),
        }
    }

    /// Ends what a former gateway has left, before anything is leased. Returns what may be taken over.
    async fn sweep_once(&self, has_predecessor: bool) -> Vec<InstanceRecord> {
        let directory = run_directory(&self.parts.state_dir);
        let metrics = Arc::clone(self.parts.shared.metrics.gpu());
        let decision = (OrphanDecision::Adopt, has_predecessor);
        let swept = spawn_blocking(move || {
            sweep_orphans((&directory, &BTreeSet::new()), decision, &metrics)
        });
        swept.await.unwrap_or_default()
    }

    /// Ends processes that nothing has, and removes logs that are old.
    fn sweep(&mut self) {
        let directory = run_directory(&self.parts.state_dir);
        let logs = log_directory(&self.parts.state_dir);
        self.forget_gone();
        let started = self.slots.values().filter_map(|run| run.started.as_ref());
        let present = started.map(|it| it.instance.clone()).collect();
        let own = self.own_instances();
        let metrics = Arc::clone(self.parts.shared.metrics.gpu());
        self.tasks.spawn_blocking(move || {
            let decision = (OrphanDecision::Stop, false);
            sweep_orphans((&directory, &own), decision, &metrics);
            remove_old_logs(&logs, &present);
        });
    }

    /// Instances whose processes the slots have, are starting or are ending: their tasks see to their ends.
    fn own_instances(&self) -> BTreeSet<InstanceId> {
        let slots = self.pool.slot_states();
        let slots = slots.filter(|(_, state, _)| state.has_process());
        let lives = slots.filter_map(|(slot, ..)| self.slots.get(&slot)?.instance.as_ref());
        lives.filter_map(|life| life.id.clone()).collect()
    }

    fn take(&mut self, message: Message) {
        let actions = match message {
            Message::News(news) => self.take_news(news),
            Message::Leased { slot, life, result } => self.take_lease(&slot, life, result),
            Message::LeasedAgain { retry, result } => self.take_leased_again(retry, result),
            Message::LeaseAgain(retry) => return self.lease_again(retry),
            Message::Configured(settings) => {
                let actions = self.take_settings(*settings);
                self.perform(actions);
                return self.take_early_orders();
            }
            Message::SetUp(line) => {
                self.outlets.send_report(&line);
                return;
            }
            Message::Files(found) => self.take_files(found),
            Message::Adopted(adoption) => return self.settle(adoption),
            Message::Measured => return self.estimate(),
            Message::LateFacts(spec, facts) => self.take_late_facts(&spec, *facts),
            Message::LateFiles(model, look) => {
                let changed = self.files.take_late(model, look);
                self.take_changes(changed)
            }
            Message::Outgrown { slot, life, result } => {
                return self.take_outgrown(&slot, life, result);
            }
            Message::NotReleased { slot, group } => return self.unreleased.keep(slot, group),
        };
        self.perform(actions);
    }
}

impl Drop for Driver {
    /// Processes end with the gateway, and so do the lives that are reported.
    fn drop(&mut self) {
        if !self.is_handed_over {
            self.end_lives();
        }
    }
}

/// Returns the group below which each instance gets a control group; none where none are made, as the log says.
fn cgroup_parent(gpu: &GpuConfig) -> Option<Arc<Path>> {
    if gpu.cgroup == CgroupChoice::Off {
        return None;
    }
    let group = delegated_group();
    if group.is_none() {
        tracing::info!(
            "models run without control groups, which the system does not let this process make: \
             `limits.memory_mib` holds for each process by itself, and `limits.pids` has no effect"
        );
    }
    group.map(Arc::from)
}
