//! The plugins of one configuration generation: names resolved to slots, model by model.
//!
//! Immutable: a reload makes the next one. A request keeps the one it began with, and a revision lives as
//! long as something holds it.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use infergate_core::ModelId;
use infergate_core::model::ModelSpec;
use serde::Serialize;

use crate::plugin::failure::Failure;
use crate::plugin::roles::billing::slot::BillingSlot;
use crate::plugin::roles::builtin;
use crate::plugin::roles::chain::FallbackChain;
use crate::plugin::roles::routing::slot::{RoutingMode, RoutingSlot};
use crate::plugin::roles::task::slot::TaskSlot;
use crate::plugin::roles::traits::{BillingFormula, TaskHandler};
use crate::plugin::runtime::breaker::BreakerState;
use crate::plugin::runtime::grants::CounterValue;
use crate::plugin::runtime::revision::Revision;
use crate::plugin::spec::{RankMode, World};

/// Problem that keeps the plugins of a configuration from being used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginProblem {
    /// Key in the configuration: `plugins[0].sha256`, `models[2].plugins.task`.
    pub key: String,
    /// The problem and its remedy.
    pub message: String,
}

impl fmt::Display for PluginProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.key, self.message)
    }
}

/// A revision as the admin listener shows it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PluginState {
    /// The plugin's name.
    pub name: Arc<str>,
    /// World of the plugin: what it decides.
    pub world: World,
    /// Digest of the component.
    pub sha256: Arc<str>,
    /// Digest of its settings.
    pub config: Arc<str>,
    /// Granted imports.
    pub grants: Vec<&'static str>,
    /// `active`, or `last-good` for one that stands in when the active one fails.
    pub role: &'static str,
    /// Moment at which this revision was loaded, RFC 3339.
    pub loaded_at: Arc<str>,
    /// Routing policies: `cached` or `per-request`; null for the others.
    pub mode: Option<RankMode>,
    /// `warm` where an account's instances are used again, `fresh` where none is.
    pub instance: &'static str,
    /// Calls of the plugin that are still to be captured; 0 while no capture runs.
    pub capturing: u32,
    /// State of the breaker.
    pub breaker: BreakerState,
    /// Calls so far.
    pub calls: u64,
    /// Failed ones by class.
    pub failures: HashMap<&'static str, u64>,
    /// Microseconds of a call, smoothed.
    pub mean_us: u32,
    /// Microseconds of its fixtures, half and 99 of 100 of them; 0 without fixtures.
    pub fixture_p50_us: u64,
    #[allow(missing_docs)]
    pub fixture_p99_us: u64,
    /// Bytes of memory of one instance under its fixtures.
    pub peak_memory_bytes: u64,
    /// Its counters.
    pub counters: Vec<CounterValue>,
    /// Log lines over its rate.
    pub log_lines_dropped: u64,
    /// Counts of counters it did not declare.
    pub undeclared_counts: u64,
    /// Crashes that were counted and not logged.
    pub crashes_unlogged: u64,
}

/// A snapshot. The default has only what is built in.
#[derive(Clone, Default)]
pub struct PluginSnapshot {
    pub(crate) inner: Arc<SnapshotData>,
}

#[derive(Default)]
pub(crate) struct SnapshotData {
    /// Slots of each model; a model that is absent here has built-in ones by its spec.
    pub models: HashMap<ModelId, ModelSlots>,
    /// Every revision in force, used by a model or not.
    pub active: Vec<Arc<Revision>>,
    /// Mode of calls to each routing policy. Not a part of its revisions: a change of it makes no new one.
    pub modes: HashMap<Arc<str>, RankMode>,
    /// Problems of optional plugins, which do not keep the snapshot from being used.
    pub warnings: Vec<PluginProblem>,
    /// Plugins whose component is still being compiled; the data here is of their former revisions.
    pub compiling: Vec<Arc<str>>,
    /// Models that need one of those and keep what they had.
    pub held: HashSet<ModelId>,
}

/// Slots of one model, and the revisions in them, by role.
#[derive(Clone)]
pub(crate) struct ModelSlots {
    pub task: TaskSlot,
    pub billing: BillingSlot,
    pub routing: RoutingSlot,
    pub revisions: HashMap<&'static str, Vec<Arc<Revision>>>,
}

impl PluginSnapshot {
    /// The task of a model.
    pub fn task(&self, model: &ModelSpec) -> TaskSlot {
        match self.inner.models.get(&model.id) {
            Some(slots) => slots.task.clone(),
            None => TaskSlot::new(Arc::new(FallbackChain::native(native_task(model))), model),
        }
    }

    /// The formula of a model.
    pub fn billing(&self, model: &ModelSpec) -> BillingSlot {
        match self.inner.models.get(&model.id) {
            Some(slots) => slots.billing.clone(),
            None => BillingSlot {
                chain: Arc::new(FallbackChain::<dyn BillingFormula>::native(
                    builtin::formula(),
                )),
            },
        }
    }

    /// The policy of a model.
    pub fn routing(&self, model: &ModelSpec) -> RoutingSlot {
        match self.inner.models.get(&model.id) {
            Some(slots) => slots.routing.clone(),
            None => native_routing(model).unwrap_or_else(|_| no_routing()),
        }
    }

    /// Every revision in force and those that stand in for them, for the admin listener.
    pub fn state(&self) -> Vec<PluginState> {
        let mut states: Vec<PluginState> = self
            .inner
            .active
            .iter()
            .map(|one| self.state_of(one, "active"))
            .collect();
        let mut seen: Vec<*const Revision> = self.inner.active.iter().map(Arc::as_ptr).collect();
        for revision in self
            .inner
            .models
            .values()
            .flat_map(|slots| slots.revisions.values().flatten())
        {
            if !seen.contains(&Arc::as_ptr(revision)) {
                seen.push(Arc::as_ptr(revision));
                states.push(self.state_of(revision, "last-good"));
            }
        }
        states
    }

    /// Plugins that are optional and could not be loaded, with why.
    pub fn warnings(&self) -> &[PluginProblem] {
        &self.inner.warnings
    }

    /// Plugins of the configuration that are compiled still.
    pub fn compiling(&self) -> &[Arc<str>] {
        &self.inner.compiling
    }

    /// True when a model needs one of [`PluginSnapshot::compiling`]. Such a model has its slots of the former
    /// snapshot. A new model has none and is not to be served before the next snapshot.
    pub fn is_held(&self, model: &ModelId) -> bool {
        self.inner.held.contains(model)
    }

    /// Names of plugins whose revisions are not those of `former`, in order, each once.
    pub fn changed_since(&self, former: &PluginSnapshot) -> Vec<Arc<str>> {
        let lacks = |of: &PluginSnapshot, one: &Arc<Revision>| {
            !of.inner.active.iter().any(|other| Arc::ptr_eq(one, other))
        };
        let new = self.inner.active.iter().filter(|one| lacks(former, one));
        let gone = former.inner.active.iter().filter(|one| lacks(self, one));
        let mut names: Vec<Arc<str>> = new
            .chain(gone)
            .map(|one| Arc::clone(&one.parts.identity.name))
            .collect();
        names.sort();
        names.dedup();
        names
    }

    fn state_of(&self, revision: &Revision, role: &'static str) -> PluginState {
        let mode = self.inner.modes.get(&revision.parts.identity.name);
        PluginState {
            mode: mode.copied(),
            ..state(revision, role)
        }
    }
}

fn state(revision: &Revision, role: &'static str) -> PluginState {
    let (parts, tally) = (&revision.parts, &revision.tally);
    let grants = [
        ("log", parts.grants.log),
        ("counters", parts.grants.counters),
        ("tables", parts.grants.tables),
    ];
    let counted = |at: usize| tally.failures[at].load(Ordering::Relaxed);
    PluginState {
        name: Arc::clone(&parts.identity.name),
        world: parts.world,
        sha256: Arc::clone(&parts.identity.sha256),
        config: Arc::clone(&parts.identity.config),
        grants: grants
            .iter()
            .filter(|(_, on)| *on)
            .map(|(name, _)| *name)
            .collect(),
        role,
        loaded_at: Arc::clone(&revision.loaded_at),
        mode: None,
        instance: if revision.reuses_instances() {
            "warm"
        } else {
            "fresh"
        },
        capturing: revision.capture.left(),
        breaker: revision.breaker_state(),
        calls: tally.calls.load(Ordering::Relaxed),
        failures: Failure::CLASSES
            .iter()
            .enumerate()
            .map(|(at, class)| (*class, counted(at)))
            .collect(),
        mean_us: tally.mean_us.load(Ordering::Relaxed),
        fixture_p50_us: tally.fixture_p50_us.load(Ordering::Relaxed),
        fixture_p99_us: tally.fixture_p99_us.load(Ordering::Relaxed),
        peak_memory_bytes: tally.peak_bytes.load(Ordering::Relaxed),
        counters: parts.grants.counts(),
        log_lines_dropped: parts.grants.usage.dropped.load(Ordering::Relaxed),
        undeclared_counts: parts.grants.usage.undeclared.load(Ordering::Relaxed),
        crashes_unlogged: tally.crashes_unlogged.load(Ordering::Relaxed),
    }
}

/// The built-in task of the model's name for it, or of what the model does.
pub(crate) fn native_task(model: &ModelSpec) -> Arc<dyn TaskHandler> {
    let named = model.plugins.task.as_deref().and_then(builtin::task_named);
    builtin::task(named.unwrap_or(model.task), model.backend.payload())
}

/// No policy.
pub(crate) fn no_routing() -> RoutingSlot {
    RoutingSlot {
        chain: Arc::new(FallbackChain::native(builtin::tiers())),
        mode: RoutingMode::None,
    }
}

/// The built-in policy of the model's name for it, or none.
///
/// # Errors
/// Key below the model's `routing`, and what is wrong there.
pub(crate) fn native_routing(model: &ModelSpec) -> Result<RoutingSlot, Vec<(String, String)>> {
    let Some(name) = model.plugins.routing.as_deref() else {
        return Ok(no_routing());
    };
    let (ranker, mode) = match builtin::policy(name, &model.routing) {
        Some(Ok(policy)) => policy,
        Some(Err(problems)) => return Err(problems),
        None => return Ok(no_routing()),
    };
    Ok(RoutingSlot {
        chain: Arc::new(FallbackChain::native(ranker)),
        mode,
    })
}
