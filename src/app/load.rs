//! From a configuration file to what can be put into effect: the file checked, its plugins loaded.
//!
//! Applying a loaded configuration is the reload loop's part. Loading blocks for as long as reading
//! and compiling take: never call it on a worker. Start, `check` and reload all come through here.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use infergate_core::model::ModelSpec;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::listener_tls::{self, ListenersTls};
use super::{allow_missing, gpu_check, state_dir};
use crate::config::watch::WatchedFile;
use crate::config::{self, Config, LoadedConfig, Problem};
use crate::downstream::ClientTls;
use crate::gpu::HostCheck;
use crate::peer::NodeCredentials;
use crate::plugin::{
    Captures, CompileWait, Host, HostCounts, HostSettings, PluginProblem, PluginSnapshot,
};
use crate::telemetry::PluginMetricsRegistry;
use crate::tls::{CredentialFault, CredentialFile, read_ca_file};

/// Below `state_dir`: compiled plugins.
const CACHE: &str = "plugins";

/// Warnings of absent files of finetunes: a person reads them.
const ABSENT_FILES_MAX: usize = 100;

/// A configuration with its plugins, ready to be put into effect.
pub struct PreparedConfig {
    /// The checked file.
    pub loaded: LoadedConfig,
    /// Its models.
    pub models: Vec<Arc<ModelSpec>>,
    /// Plugins of the models.
    pub plugins: PluginSnapshot,
    /// Credentials shown to other nodes; none without `listen.peers`.
    pub credentials: Option<Arc<NodeCredentials>>,
    /// Certificates of listeners for clients and operators.
    pub tls: ListenersTls,
    /// Files it names whose change is a reason to load it again.
    pub files: Vec<NamedFile>,
}

/// A configuration that cannot be put into effect.
#[derive(Debug, Default)]
pub struct PrepareError {
    /// Problems that prevent it.
    pub problems: Vec<Problem>,
    /// Files whose change may make it good.
    pub files: Vec<NamedFile>,
}

/// A file that the configuration names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedFile {
    /// Key that names it, by names instead of positions: `plugins[neurons].file`.
    pub key: String,
    /// Content and path of the file.
    pub file: WatchedFile,
}

/// Loads one configuration file, again and again.
pub struct Loader {
    file: PathBuf,
    /// As at start; it needs a restart. None keeps nothing on the disk.
    state_dir: Option<PathBuf>,
    metrics: Arc<PluginMetricsRegistry>,
    captures: Arc<Captures>,
    /// Notified when a plugin is compiled that no load waited for.
    compiled: Arc<Notify>,
    /// Held while a host begins, which is at most twice.
    host: Mutex<Option<PluginRuntime>>,
}

/// The host that runs plugins.
struct PluginRuntime {
    host: Arc<Host>,
    /// Begun for a configuration with plugins, so that it keeps what it compiles.
    keeps: bool,
}

impl Loader {
    /// A loader of `file` that keeps compiled plugins below `state_dir`.
    pub fn new(
        file: &Path,
        state_dir: Option<PathBuf>,
        metrics: Arc<PluginMetricsRegistry>,
    ) -> Loader {
        Loader {
            file: file.to_owned(),
            state_dir,
            metrics,
            captures: Arc::default(),
            compiled: Arc::default(),
            host: Mutex::default(),
        }
    }

    /// The folder of the configuration file.
    pub fn folder(&self) -> &Path {
        self.file.parent().unwrap_or(Path::new(""))
    }

    /// Captures of calls to its plugins.
    pub fn captures(&self) -> &Arc<Captures> {
        &self.captures
    }

    /// Reads and checks the file, then loads its plugins, as far as they are compiled by then; `former`
    /// are those in force.
    pub fn load(
        &self,
        former: &PluginSnapshot,
        patience: CompileWait,
    ) -> Result<PreparedConfig, PrepareError> {
        let loaded = config::load(&self.file).map_err(|problems| PrepareError {
            problems,
            ..PrepareError::default()
        })?;
        self.complete(loaded, former, patience)
    }

    /// Waits until a plugin is compiled that a load has left behind.
    pub async fn next_compiled(&self) {
        self.compiled.notified().await;
    }

    /// Plugins that are compiled now.
    pub fn compiling(&self) -> Vec<Arc<str>> {
        let running = self.host.lock();
        let host = running.as_ref().map(|running| &running.host);
        host.map(|host| host.compiling()).unwrap_or_default()
    }

    /// Makes the next load compile again what could not be compiled.
    pub fn forget_failures(&self) {
        if let Some(running) = &*self.host.lock() {
            running.host.forget_failures();
        }
    }

    /// Loads the certificates and plugins of a checked file.
    pub fn complete(
        &self,
        mut loaded: LoadedConfig,
        former: &PluginSnapshot,
        patience: CompileWait,
    ) -> Result<PreparedConfig, PrepareError> {
        // Looked at before they are loaded: a change in between is seen as one.
        let files = named_files(&loaded.config);
        let mut unusable = read_certificates(&mut loaded);
        warn_of_absent_files(&mut loaded);
        let credentials = read_credentials(&mut loaded, &mut unusable);
        let tls = listener_tls::read(&mut loaded, &mut unusable);
        let models: Vec<_> = loaded.config.models.iter().cloned().map(Arc::new).collect();
        let plugins = match self.plugins(&loaded, &models, former, patience) {
            Ok(plugins) if unusable.is_empty() => Ok(plugins),
            Ok(_) => Err(unusable),
            Err(problems) => Err([unusable, problems].concat()),
        };
        match plugins {
            Ok(plugins) => {
                let left_out = plugins
                    .warnings()
                    .iter()
                    .map(|found| loaded.places.problem(&found.key, found.message.clone()));
                let left_out: Vec<Problem> = left_out.collect();
                loaded.warnings.extend(left_out);
                let live = |(file, live): (NamedFile, bool)| live.then_some(file);
                Ok(PreparedConfig {
                    files: files.into_iter().filter_map(live).collect(),
                    loaded,
                    models,
                    plugins,
                    credentials,
                    tls,
                })
            }
            Err(problems) => Err(PrepareError {
                problems,
                files: files.into_iter().map(|(file, _)| file).collect(),
            }),
        }
    }

    fn plugins(
        &self,
        loaded: &LoadedConfig,
        models: &[Arc<ModelSpec>],
        former: &PluginSnapshot,
        patience: CompileWait,
    ) -> Result<PluginSnapshot, Vec<Problem>> {
        let specs = &loaded.config.plugins;
        let host = self.host(!specs.is_empty()).map_err(|message| {
            vec![Problem {
                path: "state_dir".to_owned(),
                ..Problem::of_file(message)
            }]
        })?;
        let plugins = host.load_within(former, specs, models, patience);
        plugins.map_err(|problems| {
            let place = |found: PluginProblem| loaded.places.problem(&found.key, found.message);
            let mut problems: Vec<_> = problems.into_iter().map(place).collect();
            problems.sort_by_key(|problem| problem.line);
            problems
        })
    }

    /// The host, started when it is first needed: a gateway without plugins keeps nothing on the
    /// disk.
    fn host(&self, has_plugins: bool) -> Result<Arc<Host>, String> {
        let mut running = self.host.lock();
        if let Some(running) = &*running
            && (running.keeps || !has_plugins)
        {
            return Ok(Arc::clone(&running.host));
        }
        let settings = HostSettings {
            cache_dir: self.cache_dir(has_plugins)?,
            metrics: Arc::clone(&self.metrics),
            captures: Arc::clone(&self.captures),
            compiler: current_executable(),
            compiled: Arc::clone(&self.compiled),
            ..HostSettings::default()
        };
        let host = Host::start(settings).map_err(|error| error.to_string())?;
        *running = Some(PluginRuntime {
            host: Arc::clone(&host),
            keeps: has_plugins,
        });
        Ok(host)
    }

    fn cache_dir(&self, has_plugins: bool) -> Result<Option<PathBuf>, String> {
        let Some(state_dir) = self.state_dir.as_ref().filter(|_| has_plugins) else {
            return Ok(None);
        };
        state_dir::create(state_dir).map_err(|error| {
            format!(
                "{} cannot be made: {error}; compiled plugins are kept there, name a directory this process may write",
                state_dir.display()
            )
        })?;
        Ok(Some(state_dir.join(CACHE)))
    }

    /// Counters of the host.
    pub fn host_counts(&self) -> HostCounts {
        let running = self.host.lock();
        let host = running.as_ref().map(|running| &running.host);
        host.map(|host| host.counts()).unwrap_or_default()
    }

    /// Applies the instance settings of a configuration in force.
    pub fn apply(&self, config: &Config) {
        if let Some(running) = &*self.host.lock() {
            let host = &running.host;
            host.allow_warm_mib(config.limits.warm_guests_mib);
        }
        self.retain_metrics(config);
    }

    /// Drops instances of plugins that are not called any more.
    pub fn expire_instances(&self) {
        let host = self.host.lock().as_ref().map(|at| Arc::clone(&at.host));
        if let Some(host) = host {
            host.expire_guests();
        }
    }

    /// Drops the series of plugins and counters that `config` does not name.
    fn retain_metrics(&self, config: &Config) {
        self.metrics.retain(|name| {
            let named = config.plugins.iter().find(|plugin| *plugin.name == *name);
            named.map(|plugin| &*plugin.counters)
        });
    }
}

/// The executable of this process, also when another has replaced it on disk since.
fn current_executable() -> Option<PathBuf> {
    match cfg!(target_os = "linux") {
        true => Some("/proc/self/exe".into()),
        false => std::env::current_exe().ok(),
    }
}

/// Reads the files that endpoints' certificates are checked by; what is wrong with them.
fn read_certificates(loaded: &mut LoadedConfig) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (at, model) in loaded.config.models.iter_mut().enumerate() {
        for (nth, endpoint) in model.endpoints.iter_mut().enumerate() {
            let Some(file) = &mut endpoint.ca_file else {
                continue;
            };
            match read_ca_file(&file.path) {
                Ok(pem) => file.pem = pem,
                Err(fault) => {
                    let key = format!("models[{at}].endpoints[{nth}].ca_file");
                    problems.push(loaded.places.problem(&key, fault));
                }
            }
        }
    }
    problems
}

/// Warns of finetunes that lack a file, which does not keep their models from being served.
fn warn_of_absent_files(loaded: &mut LoadedConfig) {
    let mut absent = Vec::new();
    for (at, model) in loaded.config.models.iter().enumerate() {
        for (nth, finetune) in model.finetunes.iter().enumerate() {
            let mut files = finetune.files.iter().enumerate();
            let Some((place, file)) = files.find(|(_, file)| !file.exists()) else {
                continue;
            };
            let key = format!("models[{at}].finetunes[{nth}].files[{place}]");
            let message = format!(
                "{} is not there: requests for this finetune are refused with 3039 until it is",
                file.display()
            );
            absent.push(loaded.places.problem(&key, message));
        }
    }
    absent.truncate(ABSENT_FILES_MAX);
    loaded.warnings.extend(absent);
}

/// Reads what other nodes are shown, with what is wrong with it and what will be.
fn read_credentials(
    loaded: &mut LoadedConfig,
    problems: &mut Vec<Problem>,
) -> Option<Arc<NodeCredentials>> {
    let peers = loaded.config.listen.peers.as_ref()?;
    let config = &loaded.config;
    let read = NodeCredentials::read(&peers.tls, config.cluster.as_ref(), &config.node.id);
    let places = &loaded.places;
    let place = |CredentialFault { file, message }| {
        let key = match file {
            CredentialFile::Crl => format!("cluster.{}", file.key()),
            _ => format!("listen.peers.tls.{}", file.key()),
        };
        places.problem(&key, message)
    };
    match read {
        Ok((credentials, warnings)) => {
            loaded.warnings.extend(warnings.into_iter().map(place));
            Some(credentials)
        }
        Err(faults) => {
            problems.extend(faults.into_iter().map(place));
            None
        }
    }
}

/// Files of the peers listener, endpoints and plugins, and whether a change of them counts while all is well: a component that has a
/// digest stays what it is.
fn named_files(config: &Config) -> Vec<(NamedFile, bool)> {
    let named = |key: String, path: &Path| NamedFile {
        key,
        file: WatchedFile::read(path.to_owned()),
    };
    let mut files = Vec::new();
    for (file, path) in config
        .listen
        .peers
        .iter()
        .flat_map(|peers| peers.tls.files())
    {
        let key = format!("listen.peers.tls.{}", file.key());
        files.push((named(key, path), true));
    }
    for listener in &config.listen.clients {
        for (key, path) in listener.tls.iter().flat_map(ClientTls::files) {
            let key = format!("listen.clients[{}].tls.{key}", listener.address);
            files.push((named(key, path), true));
        }
    }
    for (key, path) in config.listen.admin.tls.iter().flat_map(ClientTls::files) {
        files.push((named(format!("listen.admin.tls.{key}"), path), true));
    }
    if let Some(crl) = config.cluster.as_ref().and_then(|c| c.crl.as_deref()) {
        files.push((named("cluster.crl".to_owned(), crl), true));
    }
    for model in &config.models {
        for endpoint in &model.endpoints {
            if let Some(file) = &endpoint.ca_file {
                let key = format!("models[{}].endpoints[{}].ca_file", model.id, endpoint.url);
                files.push((named(key, &file.path), true));
            }
        }
    }
    for plugin in &config.plugins {
        let key = format!("plugins[{}]", plugin.name);
        let live = plugin.dev || plugin.optional;
        files.push((named(format!("{key}.file"), &plugin.file), live));
        for (name, path) in &plugin.tables {
            files.push((named(format!("{key}.tables.{name}"), path), true));
        }
    }
    files
}

/// Files that are not as they were, or are named anew, by their keys.
pub fn changed_files(before: &[NamedFile], after: &[NamedFile]) -> Vec<String> {
    let changed = |file: &&NamedFile| !before.contains(file);
    after
        .iter()
        .filter(changed)
        .map(|file| file.key.clone())
        .collect()
}

/// Result of a check.
pub struct CheckedFile {
    /// The configuration with its warnings, or its problems.
    pub outcome: Result<LoadedConfig, Vec<Problem>>,
    /// Memory of its models with a process; none without any, or where the file cannot be read.
    pub host: Option<HostCheck>,
}

/// Checks `file` as a start would, plugins and memory included; keeps nothing.
pub fn check(file: &Path) -> CheckedFile {
    check_loaded(file, config::load(file))
}

/// The same where secrets and files may be elsewhere: what is missing is a warning.
pub fn check_allowing_missing(file: &Path) -> CheckedFile {
    check_loaded(file, allow_missing::load_allowing_missing(file))
}

fn check_loaded(file: &Path, loaded: Result<LoadedConfig, Vec<Problem>>) -> CheckedFile {
    let mut loaded = match loaded {
        Ok(loaded) => loaded,
        Err(problems) => {
            return CheckedFile {
                outcome: Err(problems),
                host: None,
            };
        }
    };
    let (host, mut problems) = gpu_check::check(&mut loaded);
    let loader = Loader::new(file, None, Arc::default());
    let outcome = match loader.complete(loaded, &PluginSnapshot::default(), CompileWait::Whole) {
        Ok(ready) if problems.is_empty() => Ok(ready.loaded),
        Ok(_) => Err(problems),
        Err(unready) => {
            problems.extend(unready.problems);
            problems.sort_by_key(|problem| problem.line);
            Err(problems)
        }
    };
    CheckedFile { outcome, host }
}
