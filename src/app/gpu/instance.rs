//! Life of a slot: its process started, watched until it is ready, and seen to its end.
//!
//! Decides nothing about memory or models. Events go to the driver; orders come from there.
//! Dropped, in whatever way, it drops the life line of the process, whose keeper ends it.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use infergate_core::Millis;
use infergate_core::model::{ModelSpec, Secret, slot_url};
use infergate_core::vram::{
    DeviceShare, LeaseGroup, ProcessExit, ServerActivity, SlotEvent, SlotId, StartFailure,
};
use sha2::{Digest, Sha256};
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};

use super::file_reads::{FileReads, READ_WAIT};
use super::leases;
use super::sleep::{SleepStep, perform_step};
use crate::gpu::process::{
    ExitReport, InstanceEvent, InstanceId, InstanceSpec, PortOwnership, PortPool, ProcessId,
    ReservedPort, RunningInstance, create_cgroup, is_address_in_use, port_ownership,
    prepare_cgroup_entry, probe_pause, remove_cgroup,
};
use crate::gpu::{
    GpuConfig, HostLedger, HostReading, Launch, LaunchError, file_state, listen_scope, preset_of,
};
use crate::state::Shared;
use crate::upstream::{ServerPost, Target, post, probe_ready, slot_target};

/// Between two checks of a process that serves.
const CHECK_EVERY: Duration = Duration::from_secs(5);
/// The same after a check that failed.
const RECHECK_EVERY: Duration = Duration::from_secs(1);
/// Looks in a row that find a stranger at the port until it is given up: a look is no snapshot.
const STOLEN_AFTER: u32 = 2;
/// The binary that keepers are made of: this one, also after its file was replaced.
const PROGRAM: &str = "/proc/self/exe";

/// Order to an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InstanceOrder {
    /// End after SIGTERM and the time to stop.
    Stop,
    /// End at once.
    Kill,
    /// Fall asleep.
    Sleep,
    /// Wake.
    Wake,
}

/// News of an instance for the driver.
#[derive(Debug)]
pub(super) struct InstanceNews {
    pub slot: SlotId,
    pub life: u64,
    pub event: SlotEvent,
    pub detail: NewsDetail,
}

/// Detail of news.
#[derive(Debug)]
pub(super) enum NewsDetail {
    /// Nothing.
    None,
    /// The process with its keeper and its port.
    Started(StartedInstance),
    /// The server that gets requests.
    Ready(Arc<Target>),
    /// The last lines of its output.
    Exited(Box<ExitReport>),
    /// Reason why it was not started.
    NotStarted(String),
}

/// A process that was started.
#[derive(Clone, Debug)]
pub(super) struct StartedInstance {
    pub instance: InstanceId,
    pub main: ProcessId,
    pub keeper: Option<ProcessId>,
    pub port: u16,
    /// SHA-256 of the arguments.
    pub argv_digest: String,
    /// State of its files before it was started.
    pub files: Option<u64>,
}

/// All that one life needs.
pub(super) struct InstanceTask {
    pub shared: Arc<Shared>,
    pub spec: Arc<ModelSpec>,
    /// Group below which the instance gets its control group.
    pub cgroup: Option<Arc<Path>>,
    pub gpu: Arc<GpuConfig>,
    pub state_dir: PathBuf,
    pub ports: PortPool,
    pub slot: SlotId,
    pub life: u64,
    /// Name of the life; `None` where the slot's name allows none.
    pub instance: Option<InstanceId>,
    pub shares: Vec<DeviceShare>,
    pub reading: Arc<HostReading>,
    pub reads: FileReads,
    pub ledger: Arc<HostLedger>,
    /// Leases of the life.
    pub leases: Option<LeaseGroup>,
    pub news: mpsc::Sender<InstanceNews>,
}

impl InstanceTask {
    /// Runs the life to its end.
    pub async fn run(self, mut orders: mpsc::Receiver<InstanceOrder>) {
        let key = format!("{:032x}", fastrand::u128(..));
        let started = match self.present_files(&mut orders).await {
            Ok(files) => self
                .start(&key, files)
                .await
                .map(|started| (files, started)),
            Err(reason) => Err((StartFailure::WeightsMissing, reason)),
        };
        let (files, (running, port, argv_digest)) = match started {
            Ok(started) => started,
            Err((failure, reason)) => {
                let event = SlotEvent::NotStarted(failure);
                return self.report(event, NewsDetail::NotStarted(reason)).await;
            }
        };
        let keeper = running.record().ok().map(|record| record.keeper);
        let started = StartedInstance {
            instance: running.id().clone(),
            main: running.main(),
            keeper,
            port: port.port(),
            argv_digest,
            files,
        };
        self.report(SlotEvent::Started, NewsDetail::Started(started))
            .await;
        let progress = LoadProgress::new(running.id(), keeper, port.port());
        self.watch((running, orders), progress, &key).await;
    }

    /// Watches over an instance that was taken over while it served, and keeps its port for as long.
    pub async fn resume(
        self,
        (running, orders): (RunningInstance, mpsc::Receiver<InstanceOrder>),
        port: ReservedPort,
        target: Arc<Target>,
    ) {
        let keeper = running.record().ok().map(|record| record.keeper);
        let mut progress = LoadProgress::new(running.id(), keeper, port.port());
        progress.ready = Some(target);
        // The key stands in the target: it is asked for by probes of a load alone.
        self.watch((running, orders), progress, "").await;
    }

    /// Returns the state of the model's files.
    ///
    /// # Errors
    /// A sentence: they are not there or do not answer, or an order came first.
    async fn present_files(
        &self,
        orders: &mut mpsc::Receiver<InstanceOrder>,
    ) -> Result<Option<u64>, String> {
        let look = |spec: &ModelSpec| {
            let process = spec.process.as_ref();
            let path = process.and_then(|process| process.model_path.as_deref());
            match path.filter(|path| !path.exists()) {
                Some(path) => Err(format!("{} is not there", path.display())),
                None => Ok(file_state(spec)),
            }
        };
        let asked = (self.slot.to_string(), Arc::clone(&self.spec));
        // A slow disk has as long as the load: the pool ends that by an order.
        let ready = self.spec.process.as_ref();
        let ready = ready.map_or(0, |process| process.ready_timeout_secs);
        let wait = READ_WAIT.max(Duration::from_secs(ready));
        tokio::select! {
            found = self.reads.read(asked, wait, look, |_| {}) => {
                found.unwrap_or_else(|| Err("the files of the model do not answer".to_owned()))
            }
            _ = orders.recv() => Err("it was to end before its files answered".to_owned()),
        }
    }

    async fn start(
        &self,
        key: &str,
        files: Option<u64>,
    ) -> Result<(RunningInstance, ReservedPort, String), (StartFailure, String)> {
        let failed = |reason: String| (StartFailure::CommandFailed, reason);
        let port = self.ports.take(fastrand::u32(..));
        let port = port.map_err(|error| failed(error.to_string()))?;
        let named = self.instance.clone().map(Ok);
        let instance = named
            .unwrap_or_else(|| InstanceId::new(&self.slot.to_string(), fastrand::u32(..)))
            .map_err(|error| failed(error.to_string()))?;
        let launch = Launch {
            spec: &self.spec,
            gpu: &self.gpu,
            state_dir: &self.state_dir,
            instance,
            shares: &self.shares,
            devices: &self.reading.devices,
            port: port.port(),
            api_key: key,
            lease_epoch: self.leases.as_ref().map_or(0, |leases| leases.epoch),
            files,
        };
        let specification = launch.specification();
        let mut specification =
            specification.map_err(|error: LaunchError| failed(error.to_string()))?;
        let digest = hex::encode(Sha256::digest(specification.argv.join("\0")));
        specification.cgroup = self.make_cgroup(&specification);
        let group = specification.cgroup.clone();
        if group.is_some() {
            // Not waited for: the start of the keeper takes as long.
            drop(spawn_blocking(prepare_cgroup_entry));
        }
        let hand_over = |keeper| self.hand_over(keeper);
        let running = RunningInstance::start(Path::new(PROGRAM), specification, hand_over).await;
        match running {
            Ok(running) => Ok((running, port, digest)),
            Err(error) => {
                group.iter().for_each(|group| remove_cgroup(group));
                Err(failed(error.to_string()))
            }
        }
    }

    /// Gives the leases of the life to its keeper.
    async fn hand_over(&self, keeper: ProcessId) -> Result<(), String> {
        let Some(group) = self.leases.clone() else {
            return Ok(());
        };
        let (ledger, slot) = (Arc::clone(&self.ledger), self.slot.to_string());
        let changed = spawn_blocking(move || leases::hand_over(&ledger, &slot, &group, keeper));
        changed.await.map_err(|error| error.to_string())?
    }

    /// Makes the control group of the instance. Without one its limits are those of single processes.
    fn make_cgroup(&self, specification: &InstanceSpec) -> Option<PathBuf> {
        let parent = self.cgroup.as_deref()?;
        match create_cgroup(parent, &specification.instance, &specification.limits) {
            Ok(group) => Some(group),
            Err(error) => {
                tracing::warn!(slot = %self.slot, %error, "a model runs without a control group");
                None
            }
        }
    }

    async fn watch(
        &self,
        (mut running, mut orders): (RunningInstance, mpsc::Receiver<InstanceOrder>),
        mut progress: LoadProgress,
        key: &str,
    ) {
        loop {
            let step = tokio::select! {
                event = running.next_event() => WatchStep::Event(event),
                order = orders.recv() => WatchStep::Order(order),
                found = self.look(&progress, key), if progress.is_watched => WatchStep::Found(found),
            };
            match step {
                WatchStep::Event(Some(InstanceEvent::Exited(report))) => {
                    progress.is_watched = false;
                    progress.has_exited = true;
                    let mut exit = self.exit(&report);
                    exit.address_in_use |= progress.is_stolen();
                    let event = SlotEvent::Exited(exit);
                    self.report(event, NewsDetail::Exited(Box::new(report)))
                        .await;
                }
                WatchStep::Event(Some(InstanceEvent::Gone { .. }) | None) => {
                    if !progress.has_exited {
                        self.report_lost(&progress).await;
                    }
                    return self
                        .report(SlotEvent::ProcessesGone, NewsDetail::None)
                        .await;
                }
                WatchStep::Order(Some(InstanceOrder::Sleep)) => {
                    progress.sleep = Some(SleepStep::FallAsleep);
                }
                WatchStep::Order(Some(InstanceOrder::Wake)) => {
                    progress.sleep = Some(SleepStep::Wake);
                }
                WatchStep::Order(order) => {
                    progress.is_watched = false;
                    let sent = match order {
                        Some(InstanceOrder::Stop) => running.stop().await,
                        Some(_) => running.kill().await,
                        // The gateway ends.
                        None => return,
                    };
                    if sent.is_err() {
                        // The next event says that the keeper is lost.
                        running.end_by_force();
                    }
                }
                WatchStep::Found(found) => {
                    self.note(found, &mut progress).await;
                    if progress.is_stolen() {
                        // No request goes there: the load begins anew at another port.
                        progress.is_watched = false;
                        if running.kill().await.is_err() {
                            running.end_by_force();
                        }
                    }
                }
            }
        }
    }

    /// Looks at the server once it is time to.
    async fn look(&self, progress: &LoadProgress, key: &str) -> Found {
        match (&progress.ready, progress.sleep) {
            (Some(target), Some(step)) => {
                let done = perform_step(&self.shared.client, target, &self.spec, step).await;
                Found::Slept(step, done)
            }
            (Some(target), None) => {
                sleep(match progress.is_failing {
                    true => RECHECK_EVERY,
                    false => CHECK_EVERY,
                })
                .await;
                match self.ownership(progress).await {
                    Some(PortOwnership::Foreign) => Found::Stranger(PortOwnership::Foreign),
                    _ => Found::Check(is_well(&self.shared, &self.spec, target).await),
                }
            }
            (None, _) => {
                sleep(probe_pause(millis(progress.since.elapsed()))).await;
                self.probe(progress, key).await
            }
        }
    }

    async fn ownership(&self, progress: &LoadProgress) -> Option<PortOwnership> {
        let (keeper, process) = (progress.keeper?, self.spec.process.as_ref()?);
        let (port, scope) = (progress.port, listen_scope(process));
        let owned = spawn_blocking(move || port_ownership(port, keeper, scope));
        owned.await.ok()
    }

    async fn probe(&self, progress: &LoadProgress, key: &str) -> Found {
        let Some(process) = self.spec.process.as_ref() else {
            return Found::Nothing;
        };
        let port = progress.port;
        match self.ownership(progress).await {
            Some(PortOwnership::Owned) => {}
            Some(PortOwnership::NotListening) | None => return Found::Nothing,
            Some(other) => return Found::Stranger(other),
        }
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let slot = slot_url(&self.slot.model, self.slot.number.into());
        let timeout = Duration::from_secs(2);
        let names = (&*slot, &*progress.instance, self.spec.id.as_str());
        let Some(target) = slot_target(names, address, Some(Secret::from(key)), timeout) else {
            return Found::Nothing;
        };
        if !is_well(&self.shared, &self.spec, &target).await {
            return Found::Listening;
        }
        if let Some(warmup) = &process.warmup {
            let body = serde_json::to_vec(&warmup.body).unwrap_or_default();
            let request = ServerPost {
                path: &warmup.path,
                body: body.into(),
                timeout: Duration::from_secs(warmup.timeout_secs),
            };
            if let Err(error) = post(&self.shared.client, &target, request).await {
                tracing::warn!(slot = %self.slot, error, "the warm-up failed; the model serves all the same");
            }
        }
        Found::Ready(target)
    }

    async fn note(&self, found: Found, progress: &mut LoadProgress) {
        progress.foreign_looks = match found {
            Found::Stranger(PortOwnership::Foreign) => progress.foreign_looks + 1,
            _ => 0,
        };
        progress.is_failing = progress.foreign_looks > 0;
        match found {
            Found::Nothing => {}
            Found::Stranger(ownership) => {
                if !std::mem::replace(&mut progress.has_warned, true) {
                    tracing::warn!(slot = %self.slot, port = progress.port, ?ownership, "the port of a model is not its own: no request is sent there");
                }
            }
            Found::Listening => self.note_listening(progress).await,
            Found::Ready(target) => {
                // A quick server was ready at the first look.
                self.note_listening(progress).await;
                progress.ready = Some(Arc::clone(&target));
                progress.moved_at = Instant::now();
                self.report(SlotEvent::Ready, NewsDetail::Ready(target))
                    .await;
            }
            Found::Slept(step, done) => {
                if let Err(reason) = &done {
                    tracing::warn!(slot = %self.slot, reason, "a server did not {}", step.name());
                }
                progress.sleep = step.next(done.is_ok());
                progress.moved_at = Instant::now();
                let event = step.event(done.is_ok());
                self.report(event, NewsDetail::None).await;
            }
            Found::Check(is_well) => {
                let activity = Self::activity(is_well, progress);
                let event = match is_well {
                    true => SlotEvent::ProbeSucceeded,
                    false => SlotEvent::ProbeFailed(activity),
                };
                self.report(event, NewsDetail::None).await;
            }
        }
    }

    /// Activity of a server at a check, as that of one with requests. Progress is a byte of any answer to a request, and a
    /// good check.
    fn activity(is_well: bool, progress: &mut LoadProgress) -> ServerActivity {
        let received = progress.ready.as_ref().map_or(0, |it| it.received_bytes());
        let has_moved = std::mem::replace(&mut progress.received, received) != received;
        if is_well || has_moved {
            progress.moved_at = Instant::now();
        }
        progress.is_failing = !is_well;
        ServerActivity::Busy {
            without_progress: millis(progress.moved_at.elapsed()),
        }
    }

    async fn note_listening(&self, progress: &mut LoadProgress) {
        if !std::mem::replace(&mut progress.is_listening, true) {
            self.report(SlotEvent::ListeningSeen, NewsDetail::None)
                .await;
        }
    }

    /// Reports the end of a process whose keeper is lost, so that nothing tells how it ended.
    async fn report_lost(&self, progress: &LoadProgress) {
        tracing::warn!(slot = %self.slot, "the keeper of a model's process is gone, and the process with it");
        let exit = ProcessExit {
            code: None,
            out_of_memory: false,
            address_in_use: progress.is_stolen(),
        };
        self.report(SlotEvent::Exited(exit), NewsDetail::None).await;
    }

    fn exit(&self, report: &ExitReport) -> ProcessExit {
        let lower = report.last_lines.to_lowercase();
        let preset = self.spec.process.as_ref().and_then(preset_of);
        let has = |words: &[&str]| {
            words
                .iter()
                .any(|word| lower.contains(&word.to_lowercase()))
        };
        ProcessExit {
            code: report.code,
            out_of_memory: has(preset.map_or(&OUT_OF_MEMORY, |preset| preset.out_of_memory)),
            address_in_use: is_address_in_use(&report.last_lines)
                || preset.is_some_and(|preset| has(preset.address_in_use)),
        }
    }

    async fn report(&self, event: SlotEvent, detail: NewsDetail) {
        let news = InstanceNews {
            slot: self.slot.clone(),
            life: self.life,
            event,
            detail,
        };
        // Without a driver the gateway ends.
        let _ = self.news.send(news).await;
    }
}

/// Probes the server of a model once.
pub(super) async fn is_well(shared: &Shared, spec: &ModelSpec, target: &Target) -> bool {
    let preset = spec.process.as_ref().and_then(preset_of);
    let path = preset.map(|preset| preset.ready_path);
    probe_ready(&shared.client, target, spec.backend.as_str(), path).await
}

/// Messages of servers of a `command` that lack memory.
const OUT_OF_MEMORY: [&str; 4] = [
    "out of memory",
    "cudamalloc failed",
    "cuda_error_out_of_memory",
    "failed to allocate",
];

struct LoadProgress {
    instance: Box<str>,
    since: Instant,
    keeper: Option<ProcessId>,
    port: u16,
    ready: Option<Arc<Target>>,
    /// Step of a sleep that is under way, or in which the server stays.
    sleep: Option<SleepStep>,
    is_listening: bool,
    has_warned: bool,
    /// Still watched: neither ended nor ordered to end.
    is_watched: bool,
    /// The end of the process was reported.
    has_exited: bool,
    /// Looks in a row that found a stranger at the port.
    foreign_looks: u32,
    /// The latest check failed.
    is_failing: bool,
    /// Bytes that had come from the server at the latest check.
    received: u64,
    /// Moment of the latest progress; that of readiness, or of the end of a sleep, before there is any.
    moved_at: Instant,
}

impl LoadProgress {
    fn new(instance: &InstanceId, keeper: Option<ProcessId>, port: u16) -> LoadProgress {
        LoadProgress {
            instance: instance.as_str().into(),
            since: Instant::now(),
            keeper,
            port,
            ready: None,
            sleep: None,
            is_listening: false,
            has_warned: false,
            is_watched: true,
            has_exited: false,
            foreign_looks: 0,
            is_failing: false,
            received: 0,
            moved_at: Instant::now(),
        }
    }

    /// Returns whether another process has the port.
    fn is_stolen(&self) -> bool {
        self.foreign_looks >= STOLEN_AFTER
    }
}

fn millis(time: Duration) -> Millis {
    Millis(time.as_millis().try_into().unwrap_or(u64::MAX))
}

enum WatchStep {
    Event(Option<InstanceEvent>),
    Order(Option<InstanceOrder>),
    Found(Found),
}

/// Result of a look at the server.
enum Found {
    Nothing,
    Stranger(PortOwnership),
    Listening,
    Ready(Arc<Target>),
    Check(bool),
    Slept(SleepStep, Result<(), String>),
}
