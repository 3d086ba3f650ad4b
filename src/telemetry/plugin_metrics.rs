//! The metrics of plugins, as counters held ready: a call never looks up a label.
//!
//! Calls no plugin: the plugin host reports here through each plugin's handle, and a scrape reads.
//! Labels come from closed sets: plugins and counters of the configuration, hooks and results of
//! this program. Names and meanings are in `docs/metrics.md`.
//!
//! Bounds: [`HANDLES_MAX`] plugins have series of their own; a plugin's series live as long as it
//! stands in the configuration.

mod labels;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, OnceLock};

use parking_lot::RwLock;
use prometheus::proto::MetricFamily;
use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, Opts, Registry,
};

pub use labels::{CallResult, PluginHook, RepricingResult};

/// Twice what a configuration may declare: names of refused files count until the next good one.
pub const HANDLES_MAX: usize = 512;

/// The label of plugins beyond [`HANDLES_MAX`], and of counters the configuration does not declare.
const OTHER: &str = "(other)";

/// A call that stays in the guest takes microseconds, the longest deadline is half a second.
const CALL_BUCKETS: &[f64] = &[
    1e-6, 2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 0.1, 0.5,
];

/// Result of a look-up of compiled code.
const CACHE_RESULTS: [&str; 3] = ["hit", "miss", "rejected"];

/// State of the plugin host at one moment.
#[derive(Clone, Debug, Default)]
pub struct PluginLevels {
    /// Ticks of the deadline clock that came too late, so far.
    pub ticks_missed: u64,
    /// Compiled components found on the disk, so far.
    pub cache_hits: u64,
    /// Not found.
    pub cache_misses: u64,
    /// Found and not trusted: compiled anew.
    pub cache_rejected: u64,
    /// Plugins in force, and whether the newest revision is left alone.
    pub breakers: Vec<(Arc<str>, bool)>,
}

/// The metrics of all plugins of a process. The plugin host holds it, and so does
/// [`Metrics`](super::Metrics), which renders it.
pub struct PluginMetricsRegistry {
    registry: Registry,
    missed_ticks: IntCounter,
    /// By [`CACHE_RESULTS`].
    cache_lookups: [IntCounter; CACHE_RESULTS.len()],
    /// Written when a plugin is loaded, never per call. In order, so that two scrapes list the
    /// same series alike.
    plugins: RwLock<BTreeMap<Arc<str>, Arc<PluginMetrics>>>,
    other: Arc<PluginMetrics>,
}

impl fmt::Debug for PluginMetricsRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.plugins.read().keys().cloned().collect();
        f.debug_tuple("PluginMetricsRegistry")
            .field(&names)
            .finish()
    }
}

impl Default for PluginMetricsRegistry {
    fn default() -> Self {
        let registry = Registry::new();
        let cache_lookups = counters(
            &registry,
            "infergate_plugin_cache_lookups_total",
            "look-ups of compiled plugins on the disk, by what was found",
            &["result"],
        );
        PluginMetricsRegistry {
            missed_ticks: counter(
                &registry,
                "infergate_plugin_missed_ticks_total",
                "ticks of the plugin deadline clock that came more than one tick late",
            ),
            cache_lookups: CACHE_RESULTS.map(|result| cache_lookups.with_label_values(&[result])),
            plugins: RwLock::default(),
            other: Arc::new(PluginMetrics::new(OTHER)),
            registry,
        }
    }
}

impl PluginMetricsRegistry {
    /// The metrics of the plugin called `name`, made when they are first asked for. Keep the response
    /// beside the revision: a call must not look it up.
    pub fn plugin(&self, name: &str) -> Arc<PluginMetrics> {
        if let Some(metrics) = self.plugins.read().get(name) {
            return Arc::clone(metrics);
        }
        let mut plugins = self.plugins.write();
        if plugins.len() >= HANDLES_MAX && !plugins.contains_key(name) {
            return Arc::clone(&self.other);
        }
        let metrics = plugins
            .entry(name.into())
            .or_insert_with(|| Arc::new(PluginMetrics::new(name)));
        Arc::clone(metrics)
    }

    /// Drops the series of plugins that are not configured any more, and of counters that a plugin
    /// does not declare any more: `counters_of` gives a configured plugin's. Called at a reload.
    pub fn retain<'a>(&self, counters_of: impl Fn(&str) -> Option<&'a [Arc<str>]>) {
        self.plugins.write().retain(|name, metrics| {
            let counters = counters_of(name);
            if let Some(counters) = counters {
                metrics.retain_counters(counters);
            }
            counters.is_some()
        });
    }

    /// Takes over what is counted elsewhere; the caller keeps two scrapes from doing so at once.
    pub(super) fn set(&self, levels: &PluginLevels) {
        raise_counter(&self.missed_ticks, levels.ticks_missed);
        let found = [
            levels.cache_hits,
            levels.cache_misses,
            levels.cache_rejected,
        ];
        for (counter, to) in self.cache_lookups.iter().zip(found) {
            raise_counter(counter, to);
        }
        let plugins = self.plugins.read();
        for (plugin, open) in &levels.breakers {
            // One that has just left the configuration does not come back.
            if let Some(metrics) = plugins.get(plugin) {
                metrics.breaker_open.set((*open).into());
            }
        }
    }

    pub(super) fn gather(&self) -> Vec<MetricFamily> {
        let mut plugins: Vec<_> = self.plugins.read().values().cloned().collect();
        if self.other.is_used() {
            plugins.push(Arc::clone(&self.other));
        }
        let mut families = self.registry.gather();
        families.extend(plugins.iter().flat_map(|plugin| plugin.registry.gather()));
        families
    }
}

/// Counters of one plugin; all its revisions share them.
pub struct PluginMetrics {
    registry: Registry,
    calls: IntCounterVec,
    durations: HistogramVec,
    /// Held counters of the hooks that were called: a plugin has no series of hooks it has not.
    hooks: [OnceLock<HookMetrics>; PluginHook::ALL.len()],
    repeats: IntCounterVec,
    instances_live: IntGauge,
    reload_failed: IntCounterVec,
    breaker_open: IntGauge,
    log_dropped: IntCounter,
    guest: IntCounterVec,
    undeclared: OnceLock<IntCounter>,
    /// Counters the guest may add to, in the order they were first asked for.
    guest_counters: RwLock<Vec<(Arc<str>, IntCounter)>>,
}

struct HookMetrics {
    results: [IntCounter; CallResult::ALL.len()],
    duration: Histogram,
}

impl PluginMetrics {
    fn new(plugin: &str) -> PluginMetrics {
        let labels = HashMap::from([("plugin".to_owned(), plugin.to_owned())]);
        let registry = Registry::new_custom(None, Some(labels))
            .expect("without a prefix there is none to be wrong");
        let durations = HistogramVec::new(
            HistogramOpts::new(
                "infergate_plugin_call_duration_seconds",
                "calls of the plugin, checks of its answer included",
            )
            .buckets(CALL_BUCKETS.to_vec()),
            &["hook"],
        )
        .expect("the name is well-formed and the buckets ascend");
        registry
            .register(Box::new(durations.clone()))
            .expect("each name is registered once, in a registry made for it");
        PluginMetrics {
            calls: counters(
                &registry,
                "infergate_plugin_calls_total",
                "calls of the plugin, by what came of them",
                &["hook", "result"],
            ),
            durations,
            hooks: [const { OnceLock::new() }; PluginHook::ALL.len()],
            repeats: counters(
                &registry,
                "infergate_plugin_repeats_total",
                "prices that were worked out again on a fresh instance, by what came of it",
                &["result"],
            ),
            instances_live: gauge(
                &registry,
                "infergate_plugin_instances_live",
                "instances of the plugin in memory",
            ),
            reload_failed: counters(
                &registry,
                "infergate_plugin_reload_failed_total",
                "revisions that were not taken, by how far they came",
                &["stage"],
            ),
            breaker_open: gauge(
                &registry,
                "infergate_plugin_breaker_open",
                "1 while the newest revision is not called",
            ),
            log_dropped: counter(
                &registry,
                "infergate_plugin_log_dropped_total",
                "log lines of the plugin over its rate",
            ),
            guest: counters(
                &registry,
                "infergate_plugin_counter_total",
                "what the plugin itself counts, by the name the configuration gives",
                &["counter"],
            ),
            undeclared: OnceLock::new(),
            guest_counters: RwLock::default(),
            registry,
        }
    }

    /// Counts a finished call; the only call that does.
    pub fn record_call(&self, hook: PluginHook, result: CallResult, micros: u64) {
        let held = self.hook(hook);
        held.results[result as usize].inc();
        if result != CallResult::Unavailable {
            held.duration.observe(micros as f64 / 1e6);
        }
    }

    /// Counts a result, already counted as valid, that broke a rule where it was used.
    pub fn record_invalid_result(&self, hook: PluginHook) {
        self.hook(hook).results[CallResult::Invalid as usize].inc();
    }

    /// Counts a repeated price, or one that should have been repeated.
    pub fn record_repricing(&self, result: RepricingResult) {
        self.repeats.with_label_values(&[result.name()]).inc();
    }

    /// Returns the count of this result so far.
    #[cfg(test)]
    pub fn repricings(&self, result: RepricingResult) -> u64 {
        self.repeats.with_label_values(&[result.name()]).get()
    }

    /// Counts an instance in memory for as long as the returned guard lives.
    pub fn live_instance(&self) -> LiveInstance {
        self.instances_live.inc();
        LiveInstance(self.instances_live.clone())
    }

    /// Counts a rejected revision; `stage` is a word of this program.
    pub fn record_failed_reload(&self, stage: &'static str) {
        self.reload_failed.with_label_values(&[stage]).inc();
    }

    /// Counts a log line over the rate.
    pub fn record_dropped_log(&self) {
        self.log_dropped.inc();
    }

    /// The guest's counter of this name, which the configuration declares. Keep the response.
    pub fn counter(&self, name: &str) -> GuestCounter {
        let mut counters = self.guest_counters.write();
        if let Some((_, counter)) = counters.iter().find(|(known, _)| **known == *name) {
            return GuestCounter(counter.clone());
        }
        let counter = self.guest.with_label_values(&[name]);
        counters.push((name.into(), counter.clone()));
        GuestCounter(counter)
    }

    /// Counts an addition to a counter that the configuration does not declare.
    pub fn record_undeclared_counter(&self) {
        let counter = || self.guest.with_label_values(&[OTHER]);
        self.undeclared.get_or_init(counter).inc();
    }

    /// The guest's counters and their values, for `/state`.
    pub fn counters(&self) -> BTreeMap<Arc<str>, u64> {
        let counters = self.guest_counters.read();
        counters
            .iter()
            .map(|(name, counter)| (Arc::clone(name), counter.get()))
            .collect()
    }

    /// Calls so far, those that were not made because no instance was to be had included.
    pub fn calls(&self) -> u64 {
        self.sum(|_| true)
    }

    /// Returns the part of [`PluginMetrics::calls`] that failed by the plugin's fault.
    pub fn failures(&self) -> u64 {
        self.sum(CallResult::is_failure)
    }

    fn sum(&self, wanted: impl Fn(CallResult) -> bool) -> u64 {
        let called = self.hooks.iter().filter_map(OnceLock::get);
        let results = called.flat_map(|hook| CallResult::ALL.iter().zip(&hook.results));
        results
            .filter(|(result, _)| wanted(**result))
            .map(|(_, counter)| counter.get())
            .sum()
    }

    fn hook(&self, hook: PluginHook) -> &HookMetrics {
        self.hooks[hook as usize].get_or_init(|| HookMetrics {
            results: CallResult::ALL
                .map(|result| self.calls.with_label_values(&[hook.name(), result.name()])),
            duration: self.durations.with_label_values(&[hook.name()]),
        })
    }

    fn retain_counters(&self, declared: &[Arc<str>]) {
        let mut counters = self.guest_counters.write();
        counters.retain(|(name, _)| {
            let stays = declared.contains(name);
            if !stays {
                // It is there: `counter` made it.
                let _ = self.guest.remove_label_values(&[name]);
            }
            stays
        });
    }

    fn is_used(&self) -> bool {
        self.calls() > 0 || self.instances_live.get() > 0
    }
}

/// An instance in memory, counted until it is dropped.
#[derive(Debug)]
pub struct LiveInstance(IntGauge);

impl Drop for LiveInstance {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// A counter that a guest may add to.
#[derive(Clone, Debug)]
pub struct GuestCounter(IntCounter);

impl GuestCounter {
    /// Adds; it wraps at 2^64 as Prometheus counters do.
    pub fn add(&self, delta: u64) {
        self.0.inc_by(delta);
    }

    /// Its value.
    pub fn get(&self) -> u64 {
        self.0.get()
    }
}

/// Brings a counter up to a count that is kept elsewhere.
fn raise_counter(counter: &IntCounter, to: u64) {
    counter.inc_by(to.saturating_sub(counter.get()));
}

fn counters(registry: &Registry, name: &str, help: &str, labels: &[&str]) -> IntCounterVec {
    let family = IntCounterVec::new(Opts::new(name, help), labels)
        .expect("the name and labels are well-formed constants");
    registry
        .register(Box::new(family.clone()))
        .expect("each name is registered once, in a registry made for it");
    family
}

fn counter(registry: &Registry, name: &str, help: &str) -> IntCounter {
    let counter = IntCounter::new(name, help).expect("the name is a well-formed constant");
    registry
        .register(Box::new(counter.clone()))
        .expect("each name is registered once, in a registry made for it");
    counter
}

fn gauge(registry: &Registry, name: &str, help: &str) -> IntGauge {
    let gauge = IntGauge::new(name, help).expect("the name is a well-formed constant");
    registry
        .register(Box::new(gauge.clone()))
        .expect("each name is registered once, in a registry made for it");
    gauge
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_label_set_is_in_the_order_of_its_enum() {
        let ordered = |place: usize, at: usize| place == at;
        assert!(
            PluginHook::ALL
                .iter()
                .enumerate()
                .all(|(at, hook)| ordered(*hook as usize, at))
        );
        assert!(
            CallResult::ALL
                .iter()
                .enumerate()
                .all(|(at, result)| ordered(*result as usize, at))
        );
        assert!(CALL_BUCKETS.is_sorted_by(|a, b| a < b));
    }

    #[test]
    fn a_rejection_is_a_call_and_no_failure() {
        let metrics = PluginMetricsRegistry::default().plugin("p");
        metrics.record_call(PluginHook::Prepare, CallResult::Answered, 10);
        metrics.record_call(PluginHook::Prepare, CallResult::Rejected, 10);
        metrics.record_call(PluginHook::Finish, CallResult::Trapped, 10);
        assert_eq!((metrics.calls(), metrics.failures()), (3, 1));
    }

    #[test]
    fn handles_of_one_name_are_one_and_names_beyond_the_bound_share_one() {
        let all = PluginMetricsRegistry::default();
        assert!(Arc::ptr_eq(&all.plugin("p"), &all.plugin("p")));
        for n in 0..HANDLES_MAX {
            all.plugin(&format!("p{n}")).record_failed_reload("read");
        }
        let late = all.plugin("late");
        assert!(Arc::ptr_eq(&late, &all.plugin("later")));
        all.retain(|name| (name == "p").then_some(&[] as &[Arc<str>]));
        assert!(!Arc::ptr_eq(&late, &all.plugin("late")));
    }

    #[test]
    fn a_counter_leaves_with_its_declaration() {
        let all = PluginMetricsRegistry::default();
        let metrics = all.plugin("p");
        metrics.counter("stays").add(2);
        metrics.counter("goes").add(3);
        metrics.counter("stays").add(1);
        let declared: Vec<Arc<str>> = vec!["stays".into()];
        all.retain(|_| Some(&declared));
        assert_eq!(metrics.counters(), BTreeMap::from([("stays".into(), 3)]));
        assert_eq!(metrics.counter("goes").get(), 0);
    }
}
