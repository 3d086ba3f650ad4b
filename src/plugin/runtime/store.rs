//! Instance of a component: a wasmtime store with limits and a deadline, for one call at a time.
//!
//! Does not decide whether an instance may be used again. The deadline is set in one place
//! ([`GuestInstance::arm`]), before anything of the guest runs, `start` functions included. A store in which
//! anything went wrong is dropped by its owner; nothing here brings one back.

use std::sync::Arc;

use wasmtime::component::InstancePre;
use wasmtime::{
    Error, PoolConcurrencyLimitError, ResourceLimiter, Store, Trap, UpdateDeadline, WasmBacktrace,
};

use crate::plugin::failure::Failure;
use crate::plugin::runtime::bindings;
use crate::plugin::runtime::engine::{
    EnginePurpose, InstanceSlot, MEMORIES_PER_COMPONENT, TABLE_MAX_ELEMENTS, WasmRuntime,
};
use crate::plugin::runtime::grants::Grants;
use crate::plugin::runtime::tariff_table::TariffTable;
use crate::plugin::runtime::ticker::TickHandle;
use crate::plugin::spec::Bounds;
use crate::telemetry::PluginMetrics;
use crate::telemetry::clock;
use crate::telemetry::plugin_metrics::LiveInstance;

/// The worlds have no resources; what guests make among themselves is theirs to bound.
const HANDLES_MAX: usize = 64;
/// Core instances, tables and memories of one store.
const PARTS_MAX: usize = 16;
/// About what the host keeps of a guest besides its memories and tables.
const GUEST_BYTES: usize = 16 << 10;
/// Reason for which a guest is not made; see [`CallError::engine_is_full`].
const ENGINE_FULL: &str = "the engine is full";

/// State in a store: the guest's limits and grants.
pub struct GuestState {
    pub limits: GuestLimits,
    pub grants: Arc<Grants>,
    /// Id of the running request; kept only where the plugin may log.
    pub request_id: String,
    /// Suppresses log lines and counts: the call is a repetition.
    pub is_repetition: bool,
    /// Tariffs that the guest was handed.
    pub tariffs: TariffTable,
    counts_fuel: bool,
    deadline: GuestDeadline,
    ticks: TickHandle,
}

/// Processor time of a guest, counted from its first tick on. A guest whose thread did not run has
/// used none: on a busy machine no guest is ended for having waited.
#[derive(Clone, Copy, Debug, Default)]
struct GuestDeadline {
    budget_us: u64,
    /// Processor time of the thread at the first tick of the call.
    from_us: Option<u64>,
}

impl GuestDeadline {
    /// Called at each tick: checks the deadline.
    fn tick(&mut self, used_us: u64) -> UpdateDeadline {
        let from_us = *self.from_us.get_or_insert(used_us);
        let left_us = (from_us + self.budget_us).saturating_sub(used_us);
        match left_us {
            0 => UpdateDeadline::Interrupt,
            left_us => UpdateDeadline::Continue(left_us.div_ceil(1000)),
        }
    }
}

/// Memory and tables of one guest.
#[derive(Debug)]
pub struct GuestLimits {
    memory_max_bytes: usize,
    /// All memories together, now.
    pub memory_bytes: usize,
    /// All tables together, now.
    table_elements: usize,
    /// True when more memory was requested than granted, since the last call began.
    pub denied: bool,
}

impl ResourceLimiter for GuestLimits {
    fn memory_growing(
        &mut self,
        current: usize,
        desired: usize,
        _maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        let bytes = self.memory_bytes + desired.saturating_sub(current);
        if bytes > self.memory_max_bytes {
            self.denied = true;
            return Ok(false);
        }
        self.memory_bytes = bytes;
        Ok(true)
    }

    fn table_growing(
        &mut self,
        current: usize,
        desired: usize,
        _maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        let fits = desired <= TABLE_MAX_ELEMENTS;
        self.denied |= !fits;
        if fits {
            self.table_elements += desired.saturating_sub(current);
        }
        Ok(fits)
    }

    fn instances(&self) -> usize {
        PARTS_MAX
    }

    fn tables(&self) -> usize {
        PARTS_MAX
    }

    fn memories(&self) -> usize {
        MEMORIES_PER_COMPONENT as usize
    }
}

/// Indices of a component's interfaces, looked up once a revision. Absent interfaces are none.
#[derive(Clone)]
pub struct ExportIndices {
    pub lifecycle: Option<bindings::lifecycle::LifecycleOnlyIndices>,
    pub task: Option<bindings::task::TaskOnlyIndices>,
    pub stream: Option<bindings::task_stream::StreamOnlyIndices>,
    pub billing: Option<bindings::billing::BillingOnlyIndices>,
    pub pricing: Option<bindings::pricing::PricingOnlyIndices>,
    pub estimator: Option<bindings::estimator::EstimatorOnlyIndices>,
    pub routing: Option<bindings::routing::RoutingOnlyIndices>,
}

impl ExportIndices {
    /// Probes for every interface.
    pub fn of(pre: &InstancePre<GuestState>) -> ExportIndices {
        ExportIndices {
            lifecycle: bindings::lifecycle::LifecycleOnlyIndices::new(pre).ok(),
            task: bindings::task::TaskOnlyIndices::new(pre).ok(),
            stream: bindings::task_stream::StreamOnlyIndices::new(pre).ok(),
            billing: bindings::billing::BillingOnlyIndices::new(pre).ok(),
            pricing: bindings::pricing::PricingOnlyIndices::new(pre).ok(),
            estimator: bindings::estimator::EstimatorOnlyIndices::new(pre).ok(),
            routing: bindings::routing::RoutingOnlyIndices::new(pre).ok(),
        }
    }
}

/// The typed exports of one guest.
pub struct Exports {
    pub lifecycle: Option<bindings::lifecycle::LifecycleOnly>,
    pub task: Option<bindings::task::TaskOnly>,
    pub stream: Option<bindings::task_stream::StreamOnly>,
    pub billing: Option<bindings::billing::BillingOnly>,
    pub pricing: Option<bindings::pricing::PricingOnly>,
    pub estimator: Option<bindings::estimator::EstimatorOnly>,
    pub routing: Option<bindings::routing::RoutingOnly>,
}

/// A guest. The store goes before the slot does.
pub struct GuestInstance {
    pub store: Store<GuestState>,
    pub exports: Exports,
    /// As an embedder of dynamic values needs it.
    pub raw: wasmtime::component::Instance,
    /// Answered so far.
    pub calls: u32,
    /// Memory when it was ready for its first call.
    pub ready_bytes: usize,
    _slot: InstanceSlot,
    _live: LiveInstance,
}

/// Template from which instances are made.
pub struct InstanceTemplate<'a> {
    pub runtime: &'a WasmRuntime,
    pub pre: &'a InstancePre<GuestState>,
    pub indices: &'a ExportIndices,
    pub bounds: &'a Bounds,
    pub grants: &'a Arc<Grants>,
    /// JSON for `configure`.
    pub settings: &'a str,
    /// Metrics in which the guest is counted.
    pub metrics: &'a PluginMetrics,
    /// Repeats a call: what it logs and counts is left out.
    pub is_repetition: bool,
}

/// Failed attempt at a call.
pub struct CallError {
    pub failure: Failure,
    /// Demangled names of the guest's functions, innermost first.
    pub backtrace: String,
    pub memory_bytes: usize,
    /// Problems that `configure` found: place under the settings, and why.
    pub problems: Vec<(String, String)>,
}

impl GuestInstance {
    /// Makes a guest and configures it, all of it under one deadline.
    pub fn make(
        template: &InstanceTemplate<'_>,
        slot: InstanceSlot,
        deadline_ms: u32,
    ) -> Result<GuestInstance, Box<CallError>> {
        let guest = GuestState {
            limits: GuestLimits {
                memory_max_bytes: template.bounds.memory_bytes,
                memory_bytes: 0,
                table_elements: 0,
                denied: false,
            },
            grants: Arc::clone(template.grants),
            request_id: String::new(),
            is_repetition: template.is_repetition,
            tariffs: TariffTable::default(),
            counts_fuel: template.runtime.purpose == EnginePurpose::Tools,
            deadline: GuestDeadline::default(),
            ticks: template.runtime.ticker.handle(),
        };
        let mut store = Store::new(&template.runtime.engine, guest);
        store.limiter(|guest| &mut guest.limits);
        store.set_hostcall_fuel(template.bounds.output_bytes);
        store.set_max_component_handles(HANDLES_MAX);
        store.epoch_deadline_callback(|mut store| {
            Ok(store.data_mut().deadline.tick(clock::thread_micros()))
        });
        arm(&mut store, deadline_ms);
        match build(template, &mut store) {
            Ok((raw, exports)) => {
                let ready_bytes = store.data().limits.memory_bytes;
                Ok(GuestInstance {
                    store,
                    exports,
                    raw,
                    calls: 0,
                    ready_bytes,
                    _slot: slot,
                    _live: template.metrics.live_instance(),
                })
            }
            Err(error) => Err(CallError::of(&error, &store)),
        }
    }

    /// Sets the deadline of what runs next.
    pub fn arm(&mut self, deadline_ms: u32) {
        self.store.data_mut().limits.denied = false;
        arm(&mut self.store, deadline_ms);
    }

    /// Memory that the guest takes while it waits: its memories, its tables, and what the host needs
    /// to know of it.
    pub fn held_bytes(&self) -> usize {
        let limits = &self.store.data().limits;
        let tables = limits.table_elements * size_of::<usize>();
        limits.memory_bytes + tables + self.store.data().tariffs.bytes() + GUEST_BYTES
    }

    /// Ends the call: the instance is idle until the next.
    pub fn end_call(&mut self) {
        self.store.data_mut().ticks.end();
    }
}

/// The one place where a deadline is set: the guest traps after it has run for as many milliseconds,
/// one or two more where it lies badly to the ticks.
fn arm(store: &mut Store<GuestState>, deadline_ms: u32) {
    let guest = store.data_mut();
    guest.deadline = GuestDeadline {
        budget_us: u64::from(deadline_ms) * 1000,
        from_us: None,
    };
    guest.ticks.begin();
    store.set_epoch_deadline(1);
    if store.data().counts_fuel {
        // As much as there is: the tools read what is left. Refused only by an engine without fuel.
        let _ = store.set_fuel(u64::MAX);
    }
}

fn build(
    template: &InstanceTemplate<'_>,
    store: &mut Store<GuestState>,
) -> wasmtime::Result<(wasmtime::component::Instance, Exports)> {
    let raw = template.pre.instantiate(&mut *store)?;
    let at = template.indices;
    let exports = Exports {
        lifecycle: at
            .lifecycle
            .as_ref()
            .map(|i| i.load(&mut *store, &raw))
            .transpose()?,
        task: at
            .task
            .as_ref()
            .map(|i| i.load(&mut *store, &raw))
            .transpose()?,
        stream: at
            .stream
            .as_ref()
            .map(|i| i.load(&mut *store, &raw))
            .transpose()?,
        billing: at
            .billing
            .as_ref()
            .map(|i| i.load(&mut *store, &raw))
            .transpose()?,
        pricing: at
            .pricing
            .as_ref()
            .map(|i| i.load(&mut *store, &raw))
            .transpose()?,
        estimator: at
            .estimator
            .as_ref()
            .map(|i| i.load(&mut *store, &raw))
            .transpose()?,
        routing: at
            .routing
            .as_ref()
            .map(|i| i.load(&mut *store, &raw))
            .transpose()?,
    };
    let Some(lifecycle) = &exports.lifecycle else {
        return Err(Error::msg("no interface `lifecycle`"));
    };
    let configured = lifecycle
        .infergate_plugin_lifecycle()
        .call_configure(&mut *store, template.settings)?;
    match configured {
        Ok(()) => Ok((raw, exports)),
        Err(problems) => Err(Error::new(ConfigureError(
            problems.into_iter().map(|p| (p.path, p.message)).collect(),
        ))),
    }
}

/// `configure` said no: place under the settings, and why.
#[derive(Debug)]
pub struct ConfigureError(pub Vec<(String, String)>);

impl std::fmt::Display for ConfigureError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let rejected: Vec<String> = self
            .0
            .iter()
            .map(|(path, why)| format!("{path}: {why}"))
            .collect();
        write!(f, "configure: {}", rejected.join("; "))
    }
}

impl std::error::Error for ConfigureError {}

impl CallError {
    /// Classifies an error of wasmtime.
    pub fn of(error: &Error, store: &Store<GuestState>) -> Box<CallError> {
        let limits = &store.data().limits;
        Box::new(CallError {
            failure: classify(error, limits.denied),
            backtrace: error
                .downcast_ref::<WasmBacktrace>()
                .map_or_else(String::new, frames),
            memory_bytes: limits.memory_bytes,
            problems: error
                .downcast_ref::<ConfigureError>()
                .map_or_else(Vec::new, |rejected| rejected.0.clone()),
        })
    }

    /// True when the instance was not made because others hold all slots or memory of the engine. Dropping an
    /// idle instance makes room then.
    pub fn engine_is_full(&self) -> bool {
        matches!(self.failure, Failure::Unavailable(why) if why == ENGINE_FULL)
    }

    /// A failure that left no trace in the guest.
    pub fn without_trace(failure: Failure, memory_bytes: usize) -> Box<CallError> {
        Box::new(CallError {
            failure,
            backtrace: String::new(),
            memory_bytes,
            problems: Vec::new(),
        })
    }
}

fn classify(error: &Error, denied: bool) -> Failure {
    if let Some(rejected) = error.downcast_ref::<ConfigureError>() {
        return Failure::Broken(rejected.to_string());
    }
    match error.downcast_ref::<Trap>() {
        Some(Trap::Interrupt) => return Failure::Deadline,
        // A guest that gets no memory gives up by `unreachable`.
        Some(_) if denied => return Failure::Memory,
        Some(trap) => return Failure::Trapped(trap.to_string()),
        None => {}
    }
    if error.is::<PoolConcurrencyLimitError>() {
        return Failure::Unavailable(ENGINE_FULL);
    }
    let text = format!("{:#}", error.root_cause());
    if text.contains("fuel allocated for hostcalls") {
        return Failure::Overrun;
    }
    if denied || text.contains("exceeds memory limits") {
        return Failure::Memory;
    }
    // What is left is about values that do not follow the canonical ABI: addresses outside memory,
    // text that is not UTF-8, cases that the type does not have.
    Failure::Invalid("canonical-abi")
}

fn frames(backtrace: &WasmBacktrace) -> String {
    let lines: Vec<String> = backtrace
        .to_string()
        .lines()
        .skip(1)
        .map(|line| line.trim().to_owned())
        .collect();
    lines.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_whose_parts_are_all_taken_is_full_and_no_fault_of_the_guest() {
        let mut pool = wasmtime::PoolingAllocationConfig::default();
        pool.total_core_instances(1);
        let mut config = wasmtime::Config::new();
        config.allocation_strategy(wasmtime::InstanceAllocationStrategy::Pooling(pool));
        let engine = wasmtime::Engine::new(&config).unwrap();
        let module = wasmtime::Module::new(&engine, wat::parse_str("(module)").unwrap()).unwrap();
        let mut one = Store::new(&engine, ());
        wasmtime::Instance::new(&mut one, &module, &[]).unwrap();
        let mut other = Store::new(&engine, ());
        let full = wasmtime::Instance::new(&mut other, &module, &[]).unwrap_err();
        assert!(CallError::without_trace(classify(&full, false), 0).engine_is_full());
    }

    #[test]
    fn a_deadline_counts_what_the_thread_has_run_since_the_first_tick() {
        let mut deadline = GuestDeadline {
            budget_us: 5_000,
            from_us: None,
        };
        let left = |update| match update {
            UpdateDeadline::Continue(ticks) => Some(ticks),
            _ => None,
        };
        assert_eq!(left(deadline.tick(70_000)), Some(5));
        // Five ticks on the wall, of which it ran for one and a half.
        assert_eq!(left(deadline.tick(71_500)), Some(4));
        assert_eq!(left(deadline.tick(74_999)), Some(1));
        assert_eq!(left(deadline.tick(75_000)), None);
    }
}
