//! Plugin host of the process: loads plugins and makes snapshots of them.
//!
//! Answers no requests: makes [`PluginSnapshot`]s, off the request path. The engine, its ticking thread and
//! the pool begin with the first Wasm plugin and end with the host.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use infergate_core::model::ModelSpec;
use infergate_core::{Millis, ModelId};
use parking_lot::Mutex;
use thiserror::Error;
use tokio::sync::Notify;

use crate::plugin::loading::compile::{CompileWait, Compilers};
use crate::plugin::loading::component_file::{CheckedComponent, check, fingerprint};
use crate::plugin::loading::load::RevisionLoader;
use crate::plugin::loading::names;
use crate::plugin::loading::resolve::Resolver;
use crate::plugin::loading::settings::{merged_settings, settings_of};
use crate::plugin::loading::snapshot::{PluginProblem, PluginSnapshot, SnapshotData};
use crate::plugin::runtime::background::BackgroundQueue;
use crate::plugin::runtime::capture::Captures;
use crate::plugin::runtime::code_cache::CodeCache;
use crate::plugin::runtime::context::HostContext;
use crate::plugin::runtime::engine::{EnginePurpose, WasmRuntime};
use crate::plugin::runtime::instance_pool::InstancePool;
use crate::plugin::runtime::revision::Revision;
use crate::plugin::spec::{PluginSpec, World};
use crate::telemetry::{Clock, PluginMetricsRegistry, off_the_worker};

/// Settings of a host at start.
#[derive(Clone, Debug, Default)]
pub struct HostSettings {
    /// Directory of compiled components; none keeps none.
    pub cache_dir: Option<PathBuf>,
    /// The program that compiles, run as the command `plugin-compiler`; none compiles in this process.
    pub compiler: Option<PathBuf>,
    /// Notified when a component is compiled that no load waited for.
    pub compiled: Arc<Notify>,
    /// Instances alive at once, all plugins together; 0 is the default, 128.
    pub slots: u32,
    /// Registry in which calls are counted.
    pub metrics: Arc<PluginMetricsRegistry>,
    /// Registry of the plugins whose calls are written down.
    pub captures: Arc<Captures>,
}

/// Reason for which a host does not start.
#[derive(Debug, Error)]
pub enum HostError {
    /// The directory of compiled components cannot be trusted or used.
    #[error("cannot keep compiled plugins in {0}: {1}")]
    Cache(PathBuf, String),
    /// No engine could be made.
    #[error("cannot start the plugin engine: {0}")]
    Engine(String),
}

/// Counts of a host, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostCounts {
    /// Guests alive.
    pub instances_live: u32,
    /// Bytes of memory of the guests that wait to be used again.
    pub warm_bytes: u64,
    /// Places of the engine's pool that are taken, by its own count; 0 without a pool.
    pub pool_used: u64,
    /// The deadline clock rests: nothing has run for a while.
    pub is_resting: bool,
    /// Ticks of the deadline clock that were left out because it came late.
    pub ticks_missed: u64,
    /// Compiled components found in the cache.
    pub cache_hits: u64,
    /// Look-ups that found no file.
    pub cache_misses: u64,
    /// Files that were damaged or without our HMAC.
    pub cache_rejected: u64,
}

/// The host of plugins.
pub struct Host {
    slots: u32,
    cache: Option<Arc<CodeCache>>,
    compilers: Compilers,
    metrics: Arc<PluginMetricsRegistry>,
    captures: Arc<Captures>,
    pool: Arc<InstancePool>,
    context: OnceLock<Arc<HostContext>>,
    /// Guards the start of the engine and whole loads: one configuration is loaded at a time.
    loading: Mutex<()>,
}

impl Host {
    /// A host without any plugin.
    ///
    /// # Errors
    /// [`HostError`], with the setting to change.
    pub fn start(settings: HostSettings) -> Result<Arc<Host>, HostError> {
        let open = |directory: &PathBuf| {
            CodeCache::open(directory).map_err(|why| HostError::Cache(directory.clone(), why))
        };
        let cache = settings.cache_dir.as_ref().map(open).transpose()?;
        let cache = cache.map(Arc::new);
        Ok(Arc::new(Host {
            slots: settings.slots,
            compilers: Compilers::new(settings.compiler, cache.clone(), settings.compiled),
            cache,
            metrics: settings.metrics,
            captures: settings.captures,
            pool: Arc::default(),
            context: OnceLock::new(),
            loading: Mutex::new(()),
        }))
    }

    /// The plugins of a configuration. Blocks for as long as compiling takes: never on a worker.
    ///
    /// # Errors
    /// All problems, each with its key; `former` stays in force then.
    pub fn load(
        &self,
        former: &PluginSnapshot,
        specs: &[PluginSpec],
        models: &[Arc<ModelSpec>],
    ) -> Result<PluginSnapshot, Vec<PluginProblem>> {
        self.load_within(former, specs, models, CompileWait::Whole)
    }

    /// Loads the plugins of a configuration, as far as they are compiled by then. The others
    /// ([`PluginSnapshot::compiling`]) are compiled on, and the models that need them keep their former slots
    /// ([`PluginSnapshot::is_held`]).
    ///
    /// # Errors
    /// All problems, each with its key; `former` stays in force then.
    pub fn load_within(
        &self,
        former: &PluginSnapshot,
        specs: &[PluginSpec],
        models: &[Arc<ModelSpec>],
        patience: CompileWait,
    ) -> Result<PluginSnapshot, Vec<PluginProblem>> {
        let _turn = self.loading.lock();
        let mut problems = names::problems(specs, models);
        let mut loading = LoadState::new(former, specs, models, patience);
        self.revisions(&mut loading, &mut problems);
        if !problems.is_empty() {
            return Err(problems);
        }
        let LoadState {
            ready,
            warnings,
            compiling,
            digests: wanted,
            ..
        } = loading;
        if let Some(context) = self.context.get() {
            // With nothing left to compile, nothing is waited for either.
            let wanted = if compiling.is_empty() { &[] } else { &*wanted };
            self.compilers.keep_only(&context.runtime.engine, wanted);
        }
        let held = held_models(specs, models, &compiling);
        let resolver = Resolver {
            former,
            specs,
            ready: &ready,
        };
        let mut slots = HashMap::new();
        for (at, model) in models.iter().enumerate() {
            let kept = former.inner.models.get(&model.id);
            if !held.contains(&model.id) {
                slots.insert(model.id.clone(), resolver.model(at, model, &mut problems));
            } else if let Some(kept) = kept {
                slots.insert(model.id.clone(), kept.clone());
            }
        }
        if !problems.is_empty() {
            return Err(problems);
        }
        let kept = kept_revisions(former, &compiling, &held).cloned();
        let active = distinct(ready.into_values().chain(kept));
        let policies = specs
            .iter()
            .filter(|spec| spec.world == World::RoutingPolicy);
        let inner = SnapshotData {
            models: slots,
            active,
            modes: policies
                .map(|spec| (Arc::clone(&spec.name), spec.mode))
                .collect(),
            warnings,
            compiling,
            held,
        };
        Ok(PluginSnapshot {
            inner: Arc::new(inner),
        })
    }

    /// Memory that waiting guests may keep together from now on, in MiB; 0 keeps none.
    pub fn allow_warm_mib(&self, mib: u64) {
        let bytes = mib.saturating_mul(1 << 20);
        self.pool
            .allow_bytes(usize::try_from(bytes).unwrap_or(usize::MAX));
    }

    /// Drops instances that were idle for a minute. To be called about once a second; on a worker
    /// of several it leaves the worker while memory is given back.
    pub fn expire_guests(&self) {
        if let Some(context) = self.context.get() {
            self.expire_guests_at(context.runtime.clock.now());
        }
    }

    pub(crate) fn expire_guests_at(&self, now: Millis) {
        let idle = self.pool.expire(now);
        off_the_worker(!idle.is_empty(), || drop(idle));
    }

    /// Plugins that are compiled now, in order.
    pub fn compiling(&self) -> Vec<Arc<str>> {
        self.compilers.running()
    }

    /// Makes the next load compile again what could not be compiled.
    pub fn forget_failures(&self) {
        self.compilers.forget_failures();
    }

    /// Counts of this host.
    pub fn counts(&self) -> HostCounts {
        use std::sync::atomic::Ordering::Relaxed;
        let mut counts = HostCounts::default();
        if let Some(context) = self.context.get() {
            counts.instances_live = context.runtime.slots.live();
            counts.warm_bytes = self.pool.held_bytes() as u64;
            counts.ticks_missed = context.runtime.ticker.missed();
            counts.is_resting = context.runtime.ticker.is_resting();
            let pool = context.runtime.engine.pooling_allocator_metrics();
            counts.pool_used = pool.map_or(0, |pool| pool.component_instances());
        }
        if let Some(cache) = &self.cache {
            counts.cache_hits = cache.counts().hits.load(Relaxed);
            counts.cache_misses = cache.counts().misses.load(Relaxed);
            counts.cache_rejected = cache.counts().rejected.load(Relaxed);
        }
        counts
    }

    /// Every revision that the configuration needs, by plugin and settings.
    fn revisions(&self, loading: &mut LoadState<'_>, problems: &mut Vec<PluginProblem>) {
        let LoadState {
            former,
            specs,
            models,
            wait,
            ..
        } = *loading;
        for (at, spec) in specs.iter().enumerate() {
            let mut add = |wrong: Vec<(String, String)>, prefix: Option<String>| {
                if let Some((key, _)) = wrong.first() {
                    let metrics = self.metrics.plugin(&spec.name);
                    metrics.record_failed_reload(stage(key, prefix.is_some()));
                }
                for (key, message) in wrong {
                    let key = format!(
                        "{}.{key}",
                        prefix.as_deref().unwrap_or(&format!("plugins[{at}]"))
                    );
                    if spec.optional {
                        let message = format!("{message}; {OPTIONAL}");
                        loading.warnings.push(PluginProblem { key, message });
                    } else {
                        problems.push(PluginProblem { key, message });
                    }
                }
            };
            let checked = match check(spec) {
                Ok(checked) => checked,
                Err(wrong) => {
                    add(wrong, None);
                    if spec.optional {
                        keep_loaded(former, spec, models, &mut loading.ready);
                    }
                    continue;
                }
            };
            loading.digests.push(checked.digest);
            for (settings, of_model) in settings_of(spec, models) {
                match self.revision(former, spec, &checked, &settings, wait.left()) {
                    Ok(Some(revision)) => {
                        let key = (Arc::clone(&spec.name), settings);
                        loading.ready.insert(key, revision);
                    }
                    Ok(None) if loading.compiling.contains(&spec.name) => {}
                    Ok(None) => loading.compiling.push(Arc::clone(&spec.name)),
                    Err(wrong) => add(wrong, of_model.map(|at| format!("models[{at}]"))),
                }
            }
            if spec.optional {
                keep_loaded(former, spec, models, &mut loading.ready);
            }
        }
    }

    /// None while its component is compiled.
    fn revision(
        &self,
        former: &PluginSnapshot,
        spec: &PluginSpec,
        checked: &CheckedComponent,
        settings: &str,
        wait: CompileWait,
    ) -> Result<Option<Arc<Revision>>, Vec<(String, String)>> {
        let (print, _) = fingerprint(spec, checked, settings);
        let same = former
            .inner
            .active
            .iter()
            .find(|known| known.parts.fingerprint == print);
        if let Some(same) = same {
            return Ok(Some(Arc::clone(same)));
        }
        let wrong = |why: String| vec![("file".to_owned(), why)];
        let context = self.context().map_err(wrong)?;
        let loader = RevisionLoader {
            context: &context,
            compilers: &self.compilers,
        };
        loader.load(spec, checked, settings, wait)
    }

    /// The engine and its shared state, started on first need. Called under `loading`.
    fn context(&self) -> Result<Arc<HostContext>, String> {
        if let Some(context) = self.context.get() {
            return Ok(Arc::clone(context));
        }
        let runtime = WasmRuntime::start(self.slots, EnginePurpose::Serve, Clock::start())?;
        let side =
            BackgroundQueue::start().map_err(|why| format!("no thread for its checks: {why}"))?;
        let context = Arc::new(HostContext {
            runtime,
            background: side,
            pool: Arc::clone(&self.pool),
            metrics: Arc::clone(&self.metrics),
            captures: Arc::clone(&self.captures),
        });
        Ok(Arc::clone(self.context.get_or_init(|| context)))
    }
}

/// Advice for an optional plugin that cannot be loaded.
const OPTIONAL: &str =
    "it is optional: the one loaded before serves on, without one what is built in";

/// Revisions by plugin and settings.
type RevisionMap = HashMap<(Arc<str>, String), Arc<Revision>>;

/// State of a load: its inputs, and its results so far.
struct LoadState<'a> {
    former: &'a PluginSnapshot,
    specs: &'a [PluginSpec],
    models: &'a [Arc<ModelSpec>],
    wait: CompileDeadline,
    ready: RevisionMap,
    warnings: Vec<PluginProblem>,
    /// Names of plugins whose component is not compiled yet.
    compiling: Vec<Arc<str>>,
    /// Digests of every component it read.
    digests: Vec<[u8; 32]>,
}

impl<'a> LoadState<'a> {
    fn new(
        former: &'a PluginSnapshot,
        specs: &'a [PluginSpec],
        models: &'a [Arc<ModelSpec>],
        patience: CompileWait,
    ) -> LoadState<'a> {
        LoadState {
            former,
            specs,
            models,
            wait: CompileDeadline {
                patience,
                began: Clock::start(),
            },
            ready: HashMap::new(),
            warnings: Vec::new(),
            compiling: Vec::new(),
            digests: Vec::new(),
        }
    }
}

/// Total wait of a load for compilers, and its start.
#[derive(Clone, Copy)]
struct CompileDeadline {
    patience: CompileWait,
    began: Clock,
}

impl CompileDeadline {
    /// Rest of the wait.
    fn left(self) -> CompileWait {
        match self.patience {
            CompileWait::Whole => CompileWait::Whole,
            CompileWait::AtMost(limit) => {
                let passed = Duration::from_micros(self.began.micros());
                CompileWait::AtMost(limit.saturating_sub(passed))
            }
        }
    }
}

/// Models that need a plugin whose component is compiled.
fn held_models(
    specs: &[PluginSpec],
    models: &[Arc<ModelSpec>],
    compiling: &[Arc<str>],
) -> HashSet<ModelId> {
    let waits = |role: &str, name: &Option<Arc<str>>| {
        let waited_for = specs.iter().filter(|spec| compiling.contains(&spec.name));
        waited_for
            .into_iter()
            .any(|spec| spec.world.role() == role && Some(&spec.name) == name.as_ref())
    };
    let models = models.iter().filter(|model| {
        let names = &model.plugins;
        waits("task", &names.task)
            || waits("billing", &names.billing)
            || waits("routing", &names.routing)
    });
    models.map(|model| model.id.clone()).collect()
}

/// Revisions of `former` that stay: those of plugins whose next is compiled, and those that models keep
/// meanwhile.
fn kept_revisions<'a>(
    former: &'a PluginSnapshot,
    compiling: &'a [Arc<str>],
    held: &'a HashSet<ModelId>,
) -> impl Iterator<Item = &'a Arc<Revision>> {
    let of_models = former
        .inner
        .models
        .iter()
        .filter(|(id, _)| held.contains(*id))
        .flat_map(|(_, slots)| slots.revisions.values().filter_map(|chain| chain.first()));
    let active = former.inner.active.iter();
    active
        .filter(|one| compiling.contains(&one.parts.identity.name))
        .chain(of_models)
}

/// Each revision once, by the names of plugins.
fn distinct(revisions: impl Iterator<Item = Arc<Revision>>) -> Vec<Arc<Revision>> {
    let mut distinct: Vec<Arc<Revision>> = Vec::new();
    for revision in revisions {
        if !distinct.iter().any(|known| Arc::ptr_eq(known, &revision)) {
            distinct.push(revision);
        }
    }
    distinct.sort_by(|one, other| one.parts.identity.name.cmp(&other.parts.identity.name));
    distinct
}

/// Fills what could not be loaded of a plugin with the revisions that are in force: a failed load
/// changes nothing.
fn keep_loaded(
    former: &PluginSnapshot,
    spec: &PluginSpec,
    models: &[Arc<ModelSpec>],
    ready: &mut RevisionMap,
) {
    let role = spec.world.role();
    let fits = |one: &&Arc<Revision>| {
        one.parts.identity.name == spec.name && one.parts.world.role() == role
    };
    for (settings, _) in settings_of(spec, models) {
        let key = (Arc::clone(&spec.name), settings);
        if ready.contains_key(&key) {
            continue;
        }
        let same = |one: &&Arc<Revision>| *one.parts.settings == *key.1;
        let of_its_models = || {
            let users = models.iter().filter(|model| {
                role != "routing" || merged_settings(spec, &model.routing) == key.1
            });
            let slots = users.filter_map(|model| former.inner.models.get(&model.id));
            slots
                .filter_map(|slots| slots.revisions.get(role)?.first())
                .find(fits)
        };
        let active = || former.inner.active.iter().filter(fits);
        if let Some(running) = active().find(same).or_else(of_its_models) {
            ready.insert(key, Arc::clone(running));
        }
    }
}

/// Stage that a revision reached, by the key that is wrong; below a model that is its parameters.
fn stage(key: &str, below_model: bool) -> &'static str {
    match key.split(['.', '[', '/']).next() {
        _ if below_model => "configure",
        Some("settings") => "configure",
        Some("sha256") => "digest",
        Some("world") => "world",
        Some("grants" | "counters" | "tables") => "grants",
        _ => "component",
    }
}
