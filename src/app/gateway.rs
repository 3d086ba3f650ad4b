//! The running gateway: its parts built and wired, its tasks started and ended.
//!
//! Requests are not decided about here. All background work is listed in [`Gateway::run`]; the order in which
//! it ends is the order of that function and of `drain`.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use infergate_core::billing::QuotaSnapshot;
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::capture::CaptureRecorder;
use super::cluster::Membership;
use super::discover::DiscoveryReport;
use super::gpu::{GpuHost, HostEnding};
use super::insight::NodeInsight;
use super::job_controls::operator;
use super::jobs::JobTasks;
use super::listen::{AdminThread, Listeners, accept_clients};
use super::load::{Loader, PreparedConfig};
use super::plan::node_id;
use super::quota_keeper::QuotaKeeper;
use super::reload::Reloader;
use super::runtime::RuntimeKeeper;
use super::seeds::Seeds;
use super::serve::fail;
use super::signals::Signals;
use super::state_lock::StateLock;
use super::{
    announce, capture, cluster, discover, export, housekeeping, jobs, listen, nodes, quota_keeper,
    ranking, runtime, seeds,
};
use crate::admin::{Admin, reload_channel};
use crate::config::watch::FileWatch;
use crate::config::{Config, LoadedConfig};
use crate::downstream::{ClientConnections, DownstreamServer};
use crate::jobs::Jobs;
use crate::peer::{ClusterHandle, PeerClient};
use crate::state::{BodyCheckSlots, ConfigSnapshot, Drain, QuotaStore, Shared};
use crate::telemetry::log::LogHandle;
use crate::telemetry::otlp::{ExportQueue, GenAiMetrics};
use crate::telemetry::{Clock, EventSink, Metrics};
use crate::trace::TraceStore;
use crate::upstream::{HttpClient, LeftWorkQueue, cancel_left_work, cancel_waiting_work};

/// For requests that are cut off to give back what they hold; none of it waits for anything.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(1);
/// For the last events to reach the disk; a dead disk must not keep the process.
const SINK_CLOSE_TIMEOUT: Duration = Duration::from_secs(5);
/// For what ends without a limit of its own: notifications to other nodes, the last writes of quota and jobs.
const END_MARGIN: Duration = Duration::from_secs(10);
/// A gateway with everything it consists of.
pub struct Gateway {
    shared: Arc<Shared>,
    edge: Arc<DownstreamServer>,
    jobs: Option<Arc<Jobs>>,
    gpu: Option<GpuHost>,
    admin: Arc<Admin>,
    insight: Arc<NodeInsight>,
    listeners: Listeners,
    connections: Arc<ClientConnections>,
    reloader: Reloader,
    reports: mpsc::Sender<DiscoveryReport>,
    recorder: Arc<CaptureRecorder>,
    membership: Option<Membership>,
    signals: Signals,
    keeper: QuotaKeeper,
}

impl Gateway {
    pub async fn build(
        file: &Path,
        ready: PreparedConfig,
        loader: Loader,
        metrics: Arc<Metrics>,
        clock: Clock,
        logs: LogHandle,
    ) -> Result<Gateway, String> {
        let LoadedConfig {
            config, content, ..
        } = &ready.loaded;
        let listeners = Listeners::bind(&config.listen).await?;
        let joining = cluster::bind(config).await?;
        let state_dir = config.state_dir.clone();
        let lock = StateLock::acquire_at_start(&state_dir)?;
        let kept = quota_keeper::read(&state_dir).map_err(|e| format!("state_dir: {e}"))?;
        let shared = build_shared(config, &kept, metrics, clock)?;
        let keeper = QuotaKeeper::new(Arc::clone(&shared.quota), lock, &state_dir, kept);
        let membership = match joining {
            Some(joining) => Some(joining.start(&shared).await?),
            None => None,
        };
        let watch = watch_file(file, *content)?;
        let (handle, requests) = reload_channel();
        let connections = Arc::new(ClientConnections::default());
        let loader = Arc::new(loader);
        let (discovery, reports) = discover::start(&shared, &ready.models).await;
        let jobs = jobs::open(config, &shared)?;
        let reloader = Reloader::start(
            (Arc::clone(&loader), jobs.clone()),
            ready,
            watch,
            requests,
            discovery,
            Arc::clone(&shared),
            logs.clone(),
        );
        let gpu = GpuHost::open((reloader.config(), reloader.status()), &shared)?;
        let captures = Arc::clone(loader.captures());
        let recorder = Arc::new(CaptureRecorder::new(captures, &state_dir, clock));
        let insight = Arc::new(NodeInsight::new(
            Arc::clone(&shared),
            Arc::clone(&connections),
            reloader.status(),
            loader,
            Arc::clone(&recorder),
            logs,
            jobs.clone(),
        ));
        let controls = RuntimeKeeper::new(Arc::clone(&shared.runtime), state_dir.clone());
        let admin = Admin::new(Arc::clone(&insight) as _, controls, handle)
            .with_jobs(operator(jobs.as_ref()))
            .with_gpu(gpu.as_ref().map(GpuHost::controls));
        Ok(Gateway {
            edge: Arc::new(DownstreamServer::new(Arc::clone(&shared), jobs.clone())),
            admin: Arc::new(admin),
            gpu,
            jobs,
            insight,
            shared,
            listeners,
            connections,
            reloader,
            reports,
            recorder,
            membership,
            keeper,
            signals: Signals::listen().map_err(|e| format!("cannot listen for signals: {e}"))?,
        })
    }

    /// Runs all background work until the node has drained. Tasks stop with the set, or by
    /// `closing`.
    pub async fn run(self) -> ExitCode {
        let Gateway {
            shared,
            edge,
            jobs,
            gpu,
            admin,
            insight,
            listeners,
            connections,
            reloader,
            reports,
            recorder,
            membership,
            mut signals,
            mut keeper,
        } = self;
        let ((closing, closed), mut tasks) = (watch::channel(false), JoinSet::new());
        let sockets = listeners.clients.into_iter();
        for (socket, listener) in sockets.zip(reloader.listeners().all()) {
            let listener = (socket, Arc::clone(listener));
            let (edge, counted) = (Arc::clone(&edge), Arc::clone(&connections));
            tasks.spawn(accept_clients(listener, edge, counted, closed.clone()));
        }
        let operators = match AdminThread::start(listeners.admin, admin, closed.clone()) {
            Ok(operators) => operators,
            Err(error) => return fail(&format!("operators cannot be served: {error}")),
        };
        if let Some(listener) = listeners.peers {
            tasks.spawn(listen::accept_peers(
                listener,
                Arc::clone(&edge),
                Arc::clone(&shared),
                closed.clone(),
            ));
            tasks.spawn(nodes::measure_rtts(Arc::clone(&shared)));
        }
        spawn_callbacks(&mut tasks, listeners.callbacks, &edge, &shared);
        let is_clustered = membership.is_some();
        spawn_membership(&mut tasks, membership, &shared);
        tasks.spawn(ranking::rank(Arc::clone(&shared), is_clustered));
        tasks.spawn(discover::discover(Arc::clone(&shared), reports));
        let mut models = spawn_keepers(&mut tasks, &shared, (insight, gpu), &recorder);
        let service = reloader.service();
        announce::announce(reloader.config(), &shared.snapshot.load());
        tasks.spawn(reloader.run(signals.hangup()));
        let mut jobs = JobTasks::start(jobs, &mut tasks);
        tracing::info!(version = env!("CARGO_PKG_VERSION"), "serving");
        service.notify_ready("serving, configuration 1");
        keeper.run_until(signals.terminate()).await;
        service.notify_stopping(end_limit(&shared, &jobs));
        keeper.set_draining();
        let drained = drain_all(&shared, &closing, &mut signals, &mut jobs, models.as_mut());
        let code = keeper.run_until(drained).await;
        jobs.flush().await;
        tasks.shutdown().await;
        // Requests that were cut off leave their events on the way out.
        if timeout(CANCEL_TIMEOUT, shared.drain.idle()).await.is_err() {
            tracing::error!("some requests could not be ended");
        }
        end_left_work(&shared).await;
        keeper.flush().await;
        operators.stop();
        close_outputs(&shared, &recorder).await;
        code
    }
}

fn watch_file(file: &Path, content: [u8; 32]) -> Result<FileWatch, String> {
    FileWatch::start(file, content)
        .map_err(|e| format!("{} cannot be watched: {e}", file.display()))
}

/// Serves containers of models, where they have a listener.
fn spawn_callbacks(
    tasks: &mut JoinSet<()>,
    listener: Option<TcpListener>,
    edge: &Arc<DownstreamServer>,
    shared: &Arc<Shared>,
) {
    if let Some(listener) = listener {
        let (edge, shared) = (Arc::clone(edge), Arc::clone(shared));
        tasks.spawn(listen::accept_callbacks(listener, edge, shared));
    }
}

/// Takes part in the cluster, where there is one.
fn spawn_membership(tasks: &mut JoinSet<()>, membership: Option<Membership>, shared: &Arc<Shared>) {
    if let Some(membership) = membership {
        let (sender, seeds) = watch::channel(Seeds::default());
        let cluster = membership.cluster().clone();
        tasks.spawn(seeds::look_up(Arc::clone(shared), cluster, sender));
        tasks.spawn(membership.run(seeds));
    }
}

/// Starts what looks after the process by itself.
fn spawn_keepers(
    tasks: &mut JoinSet<()>,
    shared: &Arc<Shared>,
    (insight, gpu): (Arc<NodeInsight>, Option<GpuHost>),
    recorder: &Arc<CaptureRecorder>,
) -> Option<HostEnding> {
    let ending = gpu.map(|host| {
        let (running, ending) = host.start();
        tasks.spawn(running);
        ending
    });
    tasks.spawn(housekeeping::keep_house(Arc::clone(shared), insight));
    let owner = Arc::clone(shared);
    tasks.spawn(async move { cancel_left_work(&owner.left_work, &owner.client).await });
    tasks.spawn(export::export(Arc::clone(shared)));
    tasks.spawn(capture::record(Arc::clone(recorder)));
    ending
}

/// Tells model servers that nobody waits for work that was left there at the end.
async fn end_left_work(shared: &Shared) {
    let canceling = cancel_waiting_work(&shared.left_work, &shared.client);
    if timeout(CANCEL_TIMEOUT, canceling).await.is_err() {
        tracing::warn!("some model servers do not know that nobody waits for their work");
    }
}

/// Writes the last captures, sends the last spans and writes the last events.
async fn close_outputs(shared: &Shared, recorder: &CaptureRecorder) {
    recorder.write();
    export::flush(shared).await;
    if !shared.sink.close(SINK_CLOSE_TIMEOUT) {
        tracing::error!("the last events could not be written in time");
    }
}

/// Builds the state that all requests share, with what the former process kept.
pub(super) fn build_shared(
    config: &Config,
    kept: &QuotaSnapshot,
    metrics: Arc<Metrics>,
    clock: Clock,
) -> Result<Arc<Shared>, String> {
    let sink = EventSink::start(&config.events, clock)
        .map_err(|e| format!("events.file cannot be written: {e}"))?;
    let flags = runtime::restore(&config.state_dir).map_err(|e| format!("state_dir: {e}"))?;
    let here = node_id(config, clock);
    Ok(Arc::new(Shared {
        snapshot: ArcSwap::from_pointee(ConfigSnapshot::default()),
        swapped: watch::Sender::new(()),
        clock,
        cluster: ClusterHandle::new(here.clone(), Arc::clone(&config.node.site), clock),
        peer_client: PeerClient::new(here, clock),
        client: HttpClient::default(),
        left_work: Arc::new(LeftWorkQueue::default()),
        metrics,
        sink,
        drain: Arc::new(Drain::default()),
        bodies: Arc::default(),
        body_checks: BodyCheckSlots::default(),
        backlogs: Arc::default(),
        traces: TraceStore::default(),
        exports: ExportQueue::default(),
        gen_ai: GenAiMetrics::default(),
        quota: QuotaStore::restore(kept, clock),
        runtime: flags,
        client_demand: Mutex::default(),
        started_unix_secs: clock.wall().unix_timestamp().unsigned_abs(),
    }))
}

/// Drains requests and jobs, then models; a second signal ends all of them at once.
async fn drain_all(
    shared: &Shared,
    closing: &watch::Sender<bool>,
    signals: &mut Signals,
    jobs: &mut JobTasks,
    models: Option<&mut HostEnding>,
) -> ExitCode {
    jobs.stop();
    let drained = drain(shared, closing, signals, models.as_deref()).await;
    let mut is_orderly = drained == ExitCode::SUCCESS;
    if is_orderly {
        tokio::select! {
            () = jobs.ended() => {}
            () = signals.terminate() => is_orderly = false,
        }
    }
    if !is_orderly {
        jobs.release();
        let _ = timeout(CANCEL_TIMEOUT, jobs.ended()).await;
    }
    if let Some(models) = models {
        if is_orderly {
            tokio::select! {
                () = models.stop(stop_limit(shared)) => {}
                () = signals.terminate() => is_orderly = false,
            }
        }
        if !is_orderly {
            models.kill().await;
        }
    }
    match is_orderly {
        true => drained,
        false => ExitCode::FAILURE,
    }
}

/// Longest time in which the processes of all models end: their longest time to stop, once for pinned models and once
/// for others, and that of a kill.
fn stop_limit(shared: &Shared) -> Duration {
    let snapshot = shared.snapshot.load();
    let processes = snapshot.models.iter();
    let processes = processes.filter_map(|model| model.spec.process.as_ref());
    let longest = processes.map(|process| process.stop_timeout_secs).max();
    Duration::from_secs(longest.unwrap_or(0)) * 2 + CANCEL_TIMEOUT
}

/// Longest time from the signal to the end of the process: requests, jobs, then processes of models.
fn end_limit(shared: &Shared, jobs: &JobTasks) -> Duration {
    let timeouts = shared.snapshot.load().timeouts.clone();
    let requests = timeouts.drain_delay_secs + timeouts.drain_timeout_secs;
    Duration::from_secs(requests).max(jobs.drain_limit())
        + stop_limit(shared)
        + CANCEL_TIMEOUT
        + SINK_CLOSE_TIMEOUT
        + END_MARGIN
}

/// Notifies other nodes first, then fails readiness; new connections are still served for the delay;
/// then what runs may finish. A second signal ends it at once.
async fn drain(
    shared: &Shared,
    closing: &watch::Sender<bool>,
    signals: &mut Signals,
    models: Option<&HostEnding>,
) -> ExitCode {
    let timeouts = shared.snapshot.load().timeouts.clone();
    tracing::info!(in_flight = shared.drain.in_flight(), "draining");
    shared.cluster.begin_leaving();
    nodes::announce_draining(shared).await;
    shared.drain.begin();
    let finished = async {
        tokio::time::sleep(Duration::from_secs(timeouts.drain_delay_secs)).await;
        closing.send_replace(true);
        if let Some(models) = models {
            models.drain();
        }
        let limit = Duration::from_secs(timeouts.drain_timeout_secs);
        if timeout(limit, shared.drain.idle()).await.is_err() {
            tracing::warn!(in_flight = shared.drain.in_flight(), "drain timeout passed");
        }
    };
    tokio::select! {
        () = finished => ExitCode::SUCCESS,
        () = signals.terminate() => ExitCode::FAILURE,
    }
}
