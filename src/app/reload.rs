//! Reload as a transaction: a whole new configuration snapshot, or the old one untouched.
//!
//! Keys of the configuration are not interpreted here. The three ways to ask (the file changed,
//! SIGHUP, `POST /reload`) end in one loop, so that two reloads never overlap; what is found of
//! endpoints comes through it too.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use infergate_core::model::ModelSpec;
use tokio::signal::unix::Signal;
use tokio::sync::mpsc;

use crate::admin::{ReloadProblem, ReloadReport, ReloadRequest};
use crate::app::discover::{DiscoveryFeed, DiscoveryReport};
use crate::app::discovered::{self, DiscoveryState};
use crate::app::gpu;
use crate::app::interim_config::interim_config;
use crate::app::jobs;
use crate::app::listen::ClientListeners;
use crate::app::load::{Loader, NamedFile, PrepareError, PreparedConfig, changed_files};
use crate::app::plan::snapshot_plan;
use crate::app::service_manager::ServiceManager;
use crate::config::watch::FileWatch;
use crate::config::{self, Config};
use crate::jobs::Jobs;
use crate::peer::NodeCredentials;
use crate::plugin::{CompileWait, PluginSnapshot};
use crate::state::{ConfigSnapshot, Shared};
use crate::telemetry::clock::rfc3339;
use crate::telemetry::log::LogHandle;
use crate::telemetry::metrics::ReloadResult;
use crate::tls::ListenerTls;
use crate::upstream::request_ranking;

/// Pause after a discovery report, so that several reports at once make one new snapshot.
const FOUND_SETTLES: Duration = Duration::from_millis(100);

/// A reload waits so long for compilers: small plugins take effect together with the rest of the file, and
/// are refused with it. A longer compilation does not hold up keys and endpoints.
const COMPILE_WAIT: Duration = Duration::from_secs(2);

/// The reason of a reload after plugins were compiled that an earlier one left behind.
const COMPILED: &str = "compiled";

/// The part of `/state` about the configuration.
#[derive(Clone, Default)]
pub struct ConfigStatus {
    /// Counts configurations that took effect.
    pub generation: u64,
    /// Moment at which the current one took effect, RFC 3339.
    pub loaded_at: String,
    /// The last reload failed: when and why. None after one that did not.
    pub last_error: Option<(String, Vec<ReloadProblem>)>,
    /// The configuration that has effect; none before the first one has.
    pub running: Option<Arc<Config>>,
    /// Plugins that it waits for, in order: compiled or not, they are not in effect yet.
    pub compiling: Vec<Arc<str>>,
}

/// Applies configurations.
pub struct Reloader {
    loader: Arc<Loader>,
    jobs: Option<Arc<Jobs>>,
    current: Config,
    /// Files the current configuration names, as they were when it was loaded.
    files: Vec<NamedFile>,
    /// Keys that need a restart keep this configuration's values until then.
    started_with: Config,
    watch: FileWatch,
    requests: mpsc::Receiver<ReloadRequest>,
    reports: mpsc::Receiver<DiscoveryReport>,
    found: DiscoveryState,
    shared: Arc<Shared>,
    logs: LogHandle,
    service: Arc<ServiceManager>,
    status: Arc<ArcSwap<ConfigStatus>>,
    /// The configuration in effect lacks plugins that are compiled.
    is_waiting: bool,
    /// Listeners for clients.
    listeners: ClientListeners,
    /// Certificates of the listener for operators; none for plain text.
    admin_tls: Arc<ArcSwapOption<ListenerTls>>,
}

impl Reloader {
    /// Puts the first configuration into effect.
    pub fn start(
        (loader, jobs): (Arc<Loader>, Option<Arc<Jobs>>),
        first: PreparedConfig,
        watch: FileWatch,
        requests: mpsc::Receiver<ReloadRequest>,
        discovery: DiscoveryFeed,
        shared: Arc<Shared>,
        logs: LogHandle,
    ) -> Reloader {
        let PreparedConfig {
            loaded,
            models,
            plugins,
            credentials,
            files,
            tls,
        } = first;
        let mut reloader = Reloader {
            loader,
            jobs,
            started_with: loaded.config.clone(),
            current: loaded.config,
            files,
            watch,
            requests,
            reports: discovery.reports,
            found: DiscoveryState::default(),
            shared,
            logs,
            service: Arc::new(ServiceManager::of_environment()),
            status: Arc::default(),
            is_waiting: false,
            listeners: ClientListeners::default(),
            admin_tls: Arc::default(),
        };
        reloader.listeners = ClientListeners::start(&reloader.current.listen, tls.clients);
        reloader.admin_tls.store(tls.admin);
        for report in discovery.first {
            let now = reloader.shared.clock.now();
            reloader.found.update(report, &reloader.current.models, now);
        }
        reloader.watch(&[]);
        reloader.set_peer_credentials(credentials);
        reloader.put_into_effect(1, models, plugins);
        reloader
    }

    /// Listeners for clients, in the order of the file at start.
    pub fn listeners(&self) -> &ClientListeners {
        &self.listeners
    }

    /// Certificates of the listener for operators, followed by its new connections.
    pub fn admin_tls(&self) -> Arc<ArcSwapOption<ListenerTls>> {
        Arc::clone(&self.admin_tls)
    }

    /// The configuration in effect.
    pub fn config(&self) -> &Config {
        &self.current
    }

    /// Status for `/state`.
    pub fn status(&self) -> Arc<ArcSwap<ConfigStatus>> {
        Arc::clone(&self.status)
    }

    /// The service manager, which is notified of reloads.
    pub fn service(&self) -> Arc<ServiceManager> {
        Arc::clone(&self.service)
    }

    /// Waits for reasons to reload and does, for the life of the process.
    pub async fn run(mut self, mut hangup: Option<Signal>) {
        loop {
            tokio::select! {
                () = self.watch.changed() => {
                    // Answered in the log and in `/state`.
                    let _ = self.reload("file").await;
                }
                () = next_hangup(&mut hangup) => {
                    let _ = self.reload("signal").await;
                }
                Some(request) = self.requests.recv() => {
                    let outcome = self.reload("request").await;
                    // The caller may have given up waiting; the reload stands.
                    let _ = request.answer.send(outcome);
                }
                () = self.loader.next_compiled(), if self.is_waiting => {
                    // Answered in the log and in `/state`.
                    let _ = self.reload(COMPILED).await;
                }
                Some(report) = self.reports.recv() => self.apply_discovery(report).await,
            }
        }
    }

    /// Applies discovered endpoints: nothing else of the snapshot changes.
    async fn apply_discovery(&mut self, report: DiscoveryReport) {
        let now = self.shared.clock.now();
        if !self.found.update(report, &self.current.models, now) {
            return;
        }
        tokio::time::sleep(FOUND_SETTLES).await;
        while let Ok(report) = self.reports.try_recv() {
            self.found.update(report, &self.current.models, now);
        }
        let models: Vec<_> = self.current.models.iter().cloned().map(Arc::new).collect();
        let models = self.found.merge_into(&models);
        let Shared {
            snapshot,
            clock,
            metrics,
            ..
        } = &*self.shared;
        let next = snapshot.load().with_models(models, *clock, metrics);
        self.swap_snapshot(next);
    }

    /// Puts the next snapshot into effect.
    fn swap_snapshot(&self, next: ConfigSnapshot) {
        let next = Arc::new(next);
        let former = self.shared.snapshot.swap(Arc::clone(&next));
        request_ranking();
        self.shared.swapped.send_replace(());
        discovered::log_changes(&former, &next);
    }

    async fn reload(&mut self, reason: &'static str) -> Result<ReloadReport, Vec<ReloadProblem>> {
        self.service.notify_reloading();
        let outcome = self.load_and_apply(reason).await;
        let generation = self.status.load().generation;
        let refused = match outcome {
            Ok(_) => "",
            Err(_) => "; the newest file was refused, the log says why",
        };
        let status = format!("serving, configuration {generation}{refused}");
        self.service.notify_ready(&status);
        outcome
    }

    async fn load_and_apply(
        &mut self,
        reason: &'static str,
    ) -> Result<ReloadReport, Vec<ReloadProblem>> {
        let loader = Arc::clone(&self.loader);
        let former = self.shared.snapshot.load().plugins.clone();
        let patience = match reason {
            COMPILED => CompileWait::AtMost(Duration::ZERO),
            _ => CompileWait::AtMost(COMPILE_WAIT),
        };
        if reason != COMPILED {
            loader.forget_failures();
        }
        // A large file, a slow disk or a compiler must not hold up a worker and the traffic on it.
        let loading = tokio::task::spawn_blocking(move || loader.load(&former, patience)).await;
        let ready = loading.unwrap_or_else(|panic| {
            let message = format!("the file could not be checked: {panic}");
            Err(PrepareError {
                problems: vec![config::Problem::of_file(message)],
                ..PrepareError::default()
            })
        });
        match ready {
            Ok(ready) => Ok(self.apply(ready, reason)),
            Err(unready) => {
                self.watch(&unready.files);
                Err(self.refuse(unready.problems, reason))
            }
        }
    }

    /// Watches the files that the current configuration names, and these.
    fn watch(&self, more: &[NamedFile]) {
        let named = self.files.iter().filter(|file| {
            // As it was read last: the current configuration may have read it long ago.
            !more.iter().any(|other| other.file.path == file.file.path)
        });
        let files = named.chain(more).map(|named| named.file.clone());
        self.watch.set_files(files.collect());
    }

    fn apply(&mut self, ready: PreparedConfig, reason: &'static str) -> ReloadReport {
        let PreparedConfig {
            loaded,
            models,
            plugins,
            credentials,
            files,
            tls,
        } = ready;
        let compiling = plugins.compiling().to_vec();
        self.is_waiting = !compiling.is_empty();
        let needs_restart = config::diff(&self.started_with, &loaded.config).needs_restart;
        let next = interim_config(&self.current, loaded.config, &plugins);
        let models = match compiling.is_empty() {
            true => models,
            false => next.models.iter().cloned().map(Arc::new).collect(),
        };
        let mut changed = config::diff(&self.current, &next).changed;
        let waits = |key: &str| {
            let mut waiting = compiling.iter();
            waiting.any(|name| key.starts_with(&format!("plugins[{name}]")))
        };
        for key in changed_files(&self.files, &files) {
            // A plugin that is new, or whose file is another, is named already.
            if !waits(&key) && !changed.iter().any(|path| key.starts_with(path.as_str())) {
                changed.push(key);
            }
        }
        // What came of a plugin may change without its file: its fixtures, or a cause outside of it.
        for name in plugins.changed_since(&self.shared.snapshot.load().plugins) {
            let key = format!("plugins[{name}]");
            if !changed.iter().any(|path| path.starts_with(key.as_str())) {
                changed.push(key);
            }
        }
        self.files = files;
        self.watch(&[]);
        let mut generation = self.status.load().generation;
        if changed.is_empty() {
            let mut status = (**self.status.load()).clone();
            status.last_error = None;
            status.compiling.clone_from(&compiling);
            self.status.store(Arc::new(status));
        } else {
            generation += 1;
            self.current = next;
            self.set_peer_credentials(credentials);
            self.listeners.configure(&self.current.listen, tls.clients);
            self.admin_tls.store(tls.admin);
            self.put_into_effect(generation, models, plugins);
        }
        self.shared.metrics.record_reload(ReloadResult::Applied);
        tracing::info!(
            reason,
            generation,
            ?changed,
            ?needs_restart,
            ?compiling,
            "configuration loaded"
        );
        log_warnings(&loaded.warnings);
        ReloadReport {
            generation,
            changed,
            needs_restart,
            compiling: compiling.iter().map(ToString::to_string).collect(),
        }
    }

    /// Name and site, which other nodes do not see change.
    fn node(&self) -> &config::NodeConfig {
        match self.started_with.is_in_fleet() {
            true => &self.started_with.node,
            false => &self.current.node,
        }
    }

    /// Other nodes are shown these from now on. A listener that comes or goes needs a restart, and
    /// what it is shown with does too; so does what bears the node's next name.
    fn set_peer_credentials(&self, credentials: Option<Arc<NodeCredentials>>) {
        let listens = self.started_with.listen.peers.is_some();
        let is_own = self.node().id == self.current.node.id;
        if let Some(credentials) = credentials.filter(|_| listens && is_own) {
            let connect_timeout = Duration::from_millis(self.current.timeouts.connect_ms);
            self.shared
                .peer_client
                .configure(credentials, connect_timeout);
        }
    }

    fn put_into_effect(
        &mut self,
        generation: u64,
        models: Vec<Arc<ModelSpec>>,
        plugins: PluginSnapshot,
    ) {
        let models = self.found.merge_into(&models);
        let Shared {
            snapshot,
            clock,
            metrics,
            sink,
            ..
        } = &*self.shared;
        let compiling = plugins.compiling().to_vec();
        let plan = snapshot_plan(&self.current, self.node(), generation, models, plugins);
        let next = snapshot.load().next_generation(plan, *clock, metrics);
        self.swap_snapshot(next);
        self.loader.apply(&self.current);
        sink.reconfigure(&self.current.events);
        if let (Some(jobs), Some(choices)) = (&self.jobs, jobs::choices(&self.current)) {
            jobs.configure(choices);
        }
        if gpu::has_host(&self.current) && !gpu::has_host(&self.started_with) {
            tracing::warn!(
                "models with a `process` are loaded after a restart: this gateway started without any"
            );
        }
        if let Err(error) = self.logs.apply(&self.current.log) {
            tracing::warn!(%error, "the log level stays as it is");
        }
        self.status.store(Arc::new(ConfigStatus {
            generation,
            loaded_at: rfc3339(clock.wall()),
            last_error: None,
            running: Some(Arc::new(config::effective(
                &self.current,
                &self.started_with,
            ))),
            compiling,
        }));
    }

    fn refuse(&self, problems: Vec<config::Problem>, reason: &'static str) -> Vec<ReloadProblem> {
        self.shared.metrics.record_reload(ReloadResult::Refused);
        let summary: Vec<String> = problems.iter().map(ToString::to_string).collect();
        tracing::error!(
            reason,
            problems = summary.join("; "),
            "the configuration was refused; the one in use stays"
        );
        let problems: Vec<ReloadProblem> = problems.into_iter().map(reload_problem).collect();
        let mut status = (**self.status.load()).clone();
        let at = rfc3339(self.shared.clock.wall());
        status.last_error = Some((at, problems.clone()));
        // What was compiled by now waits for another reload.
        let running = self.loader.compiling();
        status.compiling.retain(|name| running.contains(name));
        self.status.store(Arc::new(status));
        problems
    }
}

fn log_warnings(warnings: &[config::Problem]) {
    for warning in warnings {
        tracing::warn!(
            path = warning.path,
            line = warning.line,
            "{}",
            warning.message
        );
    }
}

fn reload_problem(problem: config::Problem) -> ReloadProblem {
    let line = (problem.line > 0).then_some(u64::from(problem.line));
    ReloadProblem {
        path: problem.path,
        line,
        message: problem.message,
    }
}

async fn next_hangup(hangup: &mut Option<Signal>) {
    match hangup {
        Some(signal) => {
            signal.recv().await;
        }
        None => std::future::pending().await,
    }
}
