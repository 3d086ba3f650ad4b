//! The running gateway: its parts built and wired, its tasks started and ended.
//!
//! Requests are not decided about here. All background work is listed in [`Gateway::run`]; the order in which
//! it ends is the order of that function and of `drain`.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use arc_swap::ArcSwap;
use infergate_core::billing::QuotaSnapshot;
use infergate_core::routing::cluster::NodeId;
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{interval, timeout};

use super::admin_thread::AdminThread;
use super::capture::CaptureRecorder;
use super::cluster::ClusterSockets;
use super::cluster_part::ClusterPart;
use super::discover::DiscoveryReport;
use super::gpu::{GpuHost, HostEnding, HostPredecessor};
use super::insight::NodeInsight;
use super::job_controls::operator;
use super::jobs::JobTasks;
use super::listen::{ClientListeners, ClientSocket, Listeners, accept_clients};
use super::load::{Loader, PreparedConfig};
use super::membership_handover::{FormerNode, MembershipHandover};
use super::plan::node_id;
use super::quota_keeper::QuotaKeeper;
use super::reload::Reloader;
use super::runtime::RuntimeKeeper;
use super::serve::fail_in_turn;
use super::signals::Signals;
use super::state_lock::StateLock;
use super::upgrade::{SocketName, Turn, UpgradeOffer, Upgrades, offer_upgrades};
use super::{
    announce, capture, cluster, discover, export, housekeeping, jobs, listen, nodes, quota_keeper,
    ranking, runtime,
};
use crate::admin::{Admin, reload_channel};
use crate::config::Config;
use crate::config::watch::FileWatch;
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
/// For both sides of WebSockets to take their close frames, once the time of a drain is over.
const WEBSOCKET_CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// For what ends without a limit of its own: notifications to other nodes, the last writes of quota and jobs.
const END_MARGIN: Duration = Duration::from_secs(10);
/// Interval of looks at work that is left at servers, once nothing else is left of this process.
const LEFT_WORK_LOOK: Duration = Duration::from_millis(50);

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
    membership: ClusterPart,
    signals: Signals,
    keeper: QuotaKeeper,
    state_dir: PathBuf,
}

impl Gateway {
    pub async fn build(
        file: &Path,
        ready: PreparedConfig,
        loader: Loader,
        (metrics, clock, logs): (Arc<Metrics>, Clock, LogHandle),
        mut turn: Option<&mut Turn>,
    ) -> Result<Gateway, String> {
        let (config, content) = (&ready.loaded.config, ready.loaded.content);
        let (listeners, joining) = bind_sockets(config, turn.as_deref_mut()).await?;
        let state_dir = config.state_dir.clone();
        let lock = StateLock::acquire_at_start(&state_dir, turn.is_some())?;
        let kept = kept_quota(&state_dir, turn.as_deref())?;
        let former = turn.as_deref().and_then(|turn| turn.node(&config.node.id));
        let here = former.map_or_else(|| node_id(config, clock), FormerNode::id);
        let shared = build_shared(config, here, &kept, (metrics, clock))?;
        let keeper = QuotaKeeper::new(Arc::clone(&shared.quota), lock, &state_dir, kept);
        let membership = match turn {
            Some(_) => ClusterPart::Later(joining.map(Box::new), former.cloned().map(Box::new)),
            None => ClusterPart::begin(joining, &shared).await?,
        };
        let (handle, requests) = reload_channel();
        let connections = Arc::new(ClientConnections::default());
        let loader = Arc::new(loader);
        let (discovery, reports) = discover::start(&shared, &ready.models).await;
        let jobs = jobs::open(config, &shared)?;
        let watch = watch_file(file, content)?;
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
            edge: DownstreamServer::new(Arc::clone(&shared), jobs.clone(), &connections),
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
            state_dir,
            signals: Signals::listen().map_err(|e| format!("cannot listen for signals: {e}"))?,
        })
    }

    /// Runs all background work until the node has drained, or a successor serves and the last request has ended. Tasks
    /// stop with the set, or by `closing`.
    pub async fn run(self, turn: Option<Turn>) -> ExitCode {
        let (mut upgrades, offered) = Upgrades::new();
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
            state_dir,
        } = self;
        let ((closing, closed), mut tasks) = (watch::channel(false), JoinSet::new());
        let served = (listeners.admin, admin, reloader.admin_tls());
        let mut operators = match AdminThread::start(served, Arc::clone(&shared), closed.clone()) {
            Ok(operators) => Some(operators),
            Err(error) => return fail_in_turn(turn, &unserved(&error)).await,
        };
        take_turn(turn, &mut upgrades, &mut keeper, &shared).await;
        listeners.handed_over.store(false, Ordering::Release);
        let sockets = (listeners.peers, listeners.callbacks);
        let membership = membership.join(&mut tasks, &shared).await;
        spawn_internal(&mut tasks, sockets, &edge, &closed);
        tasks.spawn(ranking::rank(Arc::clone(&shared), membership.is_some()));
        let clients = (listeners.clients, reloader.listeners());
        let accepting = spawn_clients(&mut tasks, clients, (&edge, &connections), &closed);
        tasks.spawn(discover::discover(Arc::clone(&shared), reports));
        let mut models = spawn_keepers(&mut tasks, &shared, (insight, gpu, &upgrades), &recorder);
        let service = reloader.service();
        announce::announce(reloader.config(), &shared.snapshot.load());
        let reloads = tasks.spawn(reloader.run(signals.hangup()));
        let mut jobs = JobTasks::start(jobs, &mut tasks);
        let offer = UpgradeOffer::bind(&state_dir, listeners.doubles);
        let offers = tasks.spawn(offer_upgrades(offer, offered, closed));
        tracing::info!(version = env!("CARGO_PKG_VERSION"), "serving");
        service.notify_ready("serving, configuration 1");
        let handed_over = (models.as_mut(), membership.as_ref());
        let waiting = (&mut signals, &mut upgrades, handed_over);
        let end = await_end(&shared, waiting, &mut keeper).await;
        offers.abort();
        upgrades.refuse().await;
        match end {
            EndCause::Signal => service.notify_stopping(end_limit(&shared, &jobs)),
            EndCause::Upgrade => {
                // Permits that a new configuration adds are the successor's.
                reloads.abort();
                listeners.handed_over.store(true, Ordering::Release);
                stop_accepting(&shared, (&closing, &accepting), operators.take()).await;
                upgrades.answer_command().await;
            }
        }
        keeper.set_draining();
        let ending = (&mut signals, end, &mut upgrades);
        let drained = drain_all(&shared, &closing, ending, &mut jobs, models.as_mut());
        let code = keeper.run_until(drained).await;
        jobs.flush().await;
        tasks.shutdown().await;
        cancel_requests(&shared).await;
        keeper.flush().await;
        operators.into_iter().for_each(AdminThread::stop);
        close_outputs(&shared, &recorder).await;
        code
    }
}

/// Binds the sockets for clients, operators and other nodes, or takes those of a predecessor.
async fn bind_sockets(
    config: &Config,
    turn: Option<&mut Turn>,
) -> Result<(Listeners, Option<ClusterSockets>), String> {
    let gossip = config.cluster.as_ref().map(|cluster| cluster.gossip);
    let mut listeners = Listeners::bind(&config.listen, gossip, turn).await?;
    let joining = cluster::bind(config, listeners.gossip.take()).await?;
    if let Some(joining) = &joining {
        listeners.add_double(SocketName::Gossip(joining.gossip()), joining.as_fd())?;
    }
    Ok((listeners, joining))
}

/// Neurons of the day that are counted on: those of the predecessor, or those that a former process has kept.
fn kept_quota(state_dir: &Path, turn: Option<&Turn>) -> Result<QuotaSnapshot, String> {
    match turn {
        Some(turn) => Ok(turn.quota().clone()),
        None => quota_keeper::read(state_dir).map_err(|error| format!("state_dir: {error}")),
    }
}

/// Cause of the end of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EndCause {
    /// A signal.
    Signal,
    /// Another process serves at the same sockets.
    Upgrade,
}

/// Waits for requests that were cut off, which leave their events on the way out, and tells model servers that nobody
/// waits for work that was left there.
async fn cancel_requests(shared: &Shared) {
    if timeout(CANCEL_TIMEOUT, shared.drain.idle()).await.is_err() {
        tracing::error!("some requests could not be ended");
    }
    let canceling = cancel_waiting_work(&shared.left_work, &shared.client);
    if timeout(CANCEL_TIMEOUT, canceling).await.is_err() {
        tracing::warn!("some model servers do not know that nobody waits for their work");
    }
}

/// Parts of a process that are its successor's once that serves.
type HandedOver<'a> = (Option<&'a mut HostEnding>, Option<&'a MembershipHandover>);

/// Waits until the node is to end. An upgrade that fails is none.
async fn await_end(
    shared: &Arc<Shared>,
    (signals, upgrades, (mut models, membership)): (&mut Signals, &mut Upgrades, HandedOver<'_>),
    keeper: &mut QuotaKeeper,
) -> EndCause {
    loop {
        let asked = async {
            tokio::select! {
                () = signals.terminate() => None,
                offered = upgrades.next() => Some(offered),
            }
        };
        let Some(offered) = keeper.run_until(asked).await else {
            return EndCause::Signal;
        };
        let taking = async {
            tokio::select! {
                serves = upgrades.begin(offered, shared, (models.as_deref_mut(), membership)) => Some(serves),
                () = signals.terminate() => None,
            }
        };
        match keeper.run_until(taking).await {
            Some(true) => return EndCause::Upgrade,
            Some(false) => {}
            None => {
                models.iter().for_each(|models| models.resume());
                return EndCause::Signal;
            }
        }
    }
}

/// Serves clients at all their listeners. The sender that is returned is closed once none of them accepts any more.
fn spawn_clients(
    tasks: &mut JoinSet<()>,
    (sockets, listeners): (Vec<ClientSocket>, &ClientListeners),
    (edge, connections): (&Arc<DownstreamServer>, &Arc<ClientConnections>),
    closed: &watch::Receiver<bool>,
) -> watch::Sender<()> {
    let (sender, accepting) = watch::channel(());
    for (socket, listener) in sockets.into_iter().zip(listeners.all()) {
        let listener = (socket, Arc::clone(listener), accepting.clone());
        let (edge, counted) = (Arc::clone(edge), Arc::clone(connections));
        tasks.spawn(accept_clients(listener, edge, counted, closed.clone()));
    }
    sender
}

/// Serves other nodes and containers of models, where they have a listener. Other nodes are to be known before: until
/// then their connections wait.
fn spawn_internal(
    tasks: &mut JoinSet<()>,
    (peers, callbacks): (Option<TcpListener>, Option<TcpListener>),
    edge: &Arc<DownstreamServer>,
    closed: &watch::Receiver<bool>,
) {
    let shared = edge.shared();
    if let Some(peers) = peers {
        let (edge, shared) = (Arc::clone(edge), Arc::clone(shared));
        tasks.spawn(listen::accept_peers(peers, edge, shared, closed.clone()));
    }
    if let Some(callbacks) = callbacks {
        let (edge, shared) = (Arc::clone(edge), Arc::clone(shared));
        tasks.spawn(listen::accept_callbacks(callbacks, edge, shared));
    }
}

fn watch_file(file: &Path, content: [u8; 32]) -> Result<FileWatch, String> {
    FileWatch::start(file, content)
        .map_err(|e| format!("{} cannot be watched: {e}", file.display()))
}

fn unserved(error: &std::io::Error) -> String {
    format!("operators cannot be served: {error}")
}

/// Serves in the turn of a successor.
async fn take_turn(
    turn: Option<Turn>,
    upgrades: &mut Upgrades,
    keeper: &mut QuotaKeeper,
    shared: &Arc<Shared>,
) {
    if let Some(turn) = turn {
        upgrades.take_turn(turn, shared).await;
        keeper.wait_for(upgrades.has_predecessor());
    }
}

/// Closes the sockets of a process that has a successor.
async fn stop_accepting(
    shared: &Shared,
    (closing, accepting): (&watch::Sender<bool>, &watch::Sender<()>),
    operators: Option<AdminThread>,
) {
    shared.drain.begin();
    closing.send_replace(true);
    accepting.closed().await;
    operators.into_iter().for_each(AdminThread::stop);
}

/// Starts what looks after the process by itself.
fn spawn_keepers(
    tasks: &mut JoinSet<()>,
    shared: &Arc<Shared>,
    (insight, gpu, upgrades): (Arc<NodeInsight>, Option<GpuHost>, &Upgrades),
    recorder: &Arc<CaptureRecorder>,
) -> Option<HostEnding> {
    let predecessor = upgrades.host_predecessor();
    if let (None, HostPredecessor::Lives(taken)) = (&gpu, &predecessor) {
        // There is nothing to wait for: its processes end with it.
        taken.send_replace(true);
    }
    let ending = gpu.map(|host| {
        let (running, ending) = host.start(predecessor);
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
    here: NodeId,
    kept: &QuotaSnapshot,
    (metrics, clock): (Arc<Metrics>, Clock),
) -> Result<Arc<Shared>, String> {
    let sink = EventSink::start(&config.events, clock)
        .map_err(|e| format!("events.file cannot be written: {e}"))?;
    let flags = runtime::restore(&config.state_dir).map_err(|e| format!("state_dir: {e}"))?;
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
    (signals, end, upgrades): (&mut Signals, EndCause, &mut Upgrades),
    jobs: &mut JobTasks,
    models: Option<&mut HostEnding>,
) -> ExitCode {
    jobs.stop();
    let drained = drain(shared, closing, (signals, end), models.as_deref()).await;
    let mut is_orderly = drained == ExitCode::SUCCESS;
    if is_orderly {
        let ended = async {
            jobs.ended().await;
            upgrades.predecessor_ended().await;
        };
        tokio::select! {
            () = ended => {}
            () = signals.terminate() => is_orderly = false,
        }
    }
    if is_orderly && end == EndCause::Upgrade {
        tokio::select! {
            () = left_work_ended(shared) => {}
            () = signals.terminate() => is_orderly = false,
        }
    }
    if !is_orderly {
        jobs.release();
        let _ = timeout(CANCEL_TIMEOUT, jobs.ended()).await;
    }
    if let Some(models) = models {
        if end == EndCause::Upgrade {
            tokio::select! {
                () = upgrades.models_taken() => {}
                () = signals.terminate() => is_orderly = false,
            }
        } else if is_orderly {
            tokio::select! {
                () = models.stop(stop_limit(shared)) => {}
                () = signals.terminate() => is_orderly = false,
            }
        }
        if end == EndCause::Signal && !is_orderly {
            models.kill().await;
        }
    }
    match is_orderly {
        true => drained,
        false => ExitCode::FAILURE,
    }
}

/// Waits until servers are done with work that requests of this process left there. Its permits are this process's, which
/// alone knows what ends them: a report or a lease, or the cancel of a run. Each of these has a limit.
async fn left_work_ended(shared: &Shared) {
    let mut looks = interval(LEFT_WORK_LOOK);
    // Requests beyond the time of the drain are cut, and their permits with them.
    let is_left = |snapshot: &ConfigSnapshot| {
        let mut models = snapshot.models.iter();
        shared.drain.in_flight() == 0 && models.any(|model| model.gate.gauges().used > 0)
    };
    looks.tick().await;
    if is_left(&shared.snapshot.load()) {
        tracing::info!("waiting for work that was left at model servers, which keeps its permits");
    }
    while is_left(&shared.snapshot.load()) {
        looks.tick().await;
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
        + WEBSOCKET_CLOSE_TIMEOUT
        + SINK_CLOSE_TIMEOUT
        + END_MARGIN
}

/// Closes the WebSockets that are open at the end of the drain, and waits a moment for their ends.
async fn end_websockets(shared: &Shared) {
    let open = shared.drain.websockets();
    if open > 0 {
        tracing::info!(open, "closing WebSockets");
        shared.drain.end_connections();
        let _ = timeout(WEBSOCKET_CLOSE_TIMEOUT, shared.drain.idle()).await;
    }
}

/// Notifies other nodes first, then fails readiness; new connections are still served for the delay;
/// then what runs may finish. A second signal ends it at once. After an upgrade there is nobody to notify.
async fn drain(
    shared: &Shared,
    closing: &watch::Sender<bool>,
    (signals, end): (&mut Signals, EndCause),
    models: Option<&HostEnding>,
) -> ExitCode {
    let timeouts = shared.snapshot.load().timeouts.clone();
    tracing::info!(in_flight = shared.drain.in_flight(), "draining");
    if end == EndCause::Signal {
        shared.cluster.begin_leaving();
        nodes::announce_draining(shared).await;
    }
    shared.drain.begin();
    let finished = async {
        if end == EndCause::Signal {
            tokio::time::sleep(Duration::from_secs(timeouts.drain_delay_secs)).await;
        }
        closing.send_replace(true);
        if let Some(models) = models {
            models.drain();
        }
        let limit = Duration::from_secs(timeouts.drain_timeout_secs);
        if timeout(limit, shared.drain.idle()).await.is_err() {
            tracing::warn!(in_flight = shared.drain.in_flight(), "drain timeout passed");
            end_websockets(shared).await;
        }
    };
    tokio::select! {
        () = finished => ExitCode::SUCCESS,
        () = signals.terminate() => ExitCode::FAILURE,
    }
}
