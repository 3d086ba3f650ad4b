//! Wasmtime engine of the process, with its instance slots and its epoch ticker.
//!
//! Loads no plugin. Guests get no WASI, no threads, no async, no clock; the same guest gives the same answer
//! on every machine. Made when the first Wasm plugin is, so that a gateway without one pays nothing. A second
//! kind of engine counts fuel, for author tools only: fuel instruments code.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use wasmtime::{
    Config, Engine, InstanceAllocationStrategy, OptLevel, PoolingAllocationConfig, Strategy,
    WasmFeatures,
};

use crate::plugin::runtime::ticker::Ticker;
use crate::telemetry::Clock;

/// Guests alive at once unless the host's settings differ.
pub const SLOTS_DEFAULT: u32 = 128;
/// More would reserve more address space than a process has: each slot reserves 4 GiB four times.
const SLOTS_MAX: u32 = 1024;
/// Largest memory a configuration may grant one guest.
pub const MEMORY_MAX_BYTES: usize = 128 << 20;
/// Limit of the wasm stack; it lies on the worker's, which has 2 MiB.
const STACK_MAX_BYTES: usize = 256 << 10;
/// Pages a slot keeps, so that a guest of small stack begins without page faults.
const KEEP_MEMORY_BYTES: usize = 256 << 10;
const KEEP_TABLE_BYTES: usize = 16 << 10;
/// A component made by the usual tools has three core instances, one of several libraries has more.
const CORE_INSTANCES_PER_COMPONENT: u32 = 16;
/// QuickJS has one, its stubs of WASI another, the glue between them a third.
pub const MEMORIES_PER_COMPONENT: u32 = 4;
/// Elements of one table.
pub const TABLE_MAX_ELEMENTS: usize = 20_000;
/// Frames in the log of a crash.
const BACKTRACE_FRAMES: usize = 24;

/// Instructions that a guest may consist of. All others are refused at load.
pub fn features() -> WasmFeatures {
    let mut features = WasmFeatures::default();
    for off in [
        WasmFeatures::THREADS,
        WasmFeatures::SHARED_EVERYTHING_THREADS,
        WasmFeatures::MEMORY64,
        WasmFeatures::MULTI_MEMORY,
        WasmFeatures::EXCEPTIONS,
        WasmFeatures::LEGACY_EXCEPTIONS,
        WasmFeatures::FUNCTION_REFERENCES,
        WasmFeatures::GC,
        WasmFeatures::GC_TYPES,
        WasmFeatures::CUSTOM_PAGE_SIZES,
        WasmFeatures::STACK_SWITCHING,
        WasmFeatures::WIDE_ARITHMETIC,
        WasmFeatures::MEMORY_CONTROL,
        WasmFeatures::CM_ASYNC,
        WasmFeatures::CM_ASYNC_STACKFUL,
        WasmFeatures::CM_MORE_ASYNC_BUILTINS,
        WasmFeatures::CM_THREADING,
        WasmFeatures::CM_ERROR_CONTEXT,
    ] {
        features.remove(off);
    }
    features
}

/// Selects the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EnginePurpose {
    /// Requests: deadlines only.
    Serve,
    /// Author tools: fuel as well.
    Tools,
}

/// The engine with what belongs to it.
pub struct WasmRuntime {
    /// Dropped, and its thread joined, before the engine goes.
    pub ticker: Ticker,
    pub engine: Engine,
    pub slots: Arc<InstanceSlots>,
    pub clock: Clock,
    pub purpose: EnginePurpose,
}

impl WasmRuntime {
    /// An engine with room for `slots` guests.
    ///
    /// # Errors
    /// The operating system has no memory or thread for it.
    pub fn start(slots: u32, purpose: EnginePurpose, clock: Clock) -> Result<WasmRuntime, String> {
        let slots = match slots {
            0 => SLOTS_DEFAULT,
            slots => slots.min(SLOTS_MAX),
        };
        let engine = match Engine::new(&config(purpose, Some(slots))) {
            Ok(engine) => engine,
            Err(problem) => {
                tracing::warn!(
                    problem = format!("{problem:#}"),
                    "no address space for a pool of plugin instances: each is allocated on demand, which is slower"
                );
                Engine::new(&config(purpose, None)).map_err(|problem| format!("{problem:#}"))?
            }
        };
        let ticker = Ticker::start(engine.weak(), clock)
            .map_err(|problem| format!("cannot start the thread of plugin deadlines: {problem}"))?;
        Ok(WasmRuntime {
            engine,
            slots: Arc::new(InstanceSlots {
                all: slots,
                used: AtomicU32::new(0),
            }),
            clock,
            purpose,
            ticker,
        })
    }
}

/// An engine that compiles for one that serves and runs nothing itself: no pool, whose address space a
/// compiler's limit would not hold.
///
/// # Errors
/// The operating system has no memory for it.
pub fn for_compiler() -> Result<Engine, String> {
    Engine::new(&config(EnginePurpose::Serve, None)).map_err(|problem| format!("{problem:#}"))
}

fn config(purpose: EnginePurpose, slots: Option<u32>) -> Config {
    let mut config = Config::new();
    let on = features();
    config
        .strategy(Strategy::Cranelift)
        .cranelift_opt_level(OptLevel::Speed)
        .cranelift_nan_canonicalization(true)
        .relaxed_simd_deterministic(true)
        .wasm_features(on, true)
        .wasm_features(WasmFeatures::all() - on, false)
        // For wasmtime's own glue between the parts of a component (QuickJS and its stubs of WASI):
        // a guest's modules are held to one memory by `Shape`.
        .wasm_multi_memory(true)
        .concurrency_support(false)
        .epoch_interruption(true)
        .consume_fuel(purpose == EnginePurpose::Tools)
        .max_wasm_stack(STACK_MAX_BYTES)
        .wasm_backtrace_max_frames(NonZeroUsize::new(BACKTRACE_FRAMES));
    if let Some(slots) = slots {
        config.allocation_strategy(InstanceAllocationStrategy::Pooling(pool(slots)));
    }
    config
}

fn pool(slots: u32) -> PoolingAllocationConfig {
    let mut pool = PoolingAllocationConfig::default();
    pool.total_component_instances(slots)
        // As many parts as that many guests can have, so that nothing runs out before the slots do. A
        // core instance costs nothing until it is made, a table 320 KB of address space.
        .total_core_instances(slots.saturating_mul(CORE_INSTANCES_PER_COMPONENT))
        .total_memories(slots.saturating_mul(MEMORIES_PER_COMPONENT))
        .total_tables(slots.saturating_mul(CORE_INSTANCES_PER_COMPONENT))
        .max_core_instances_per_component(CORE_INSTANCES_PER_COMPONENT)
        .max_memories_per_component(MEMORIES_PER_COMPONENT)
        .max_tables_per_component(CORE_INSTANCES_PER_COMPONENT)
        .max_memory_size(MEMORY_MAX_BYTES)
        .table_elements(TABLE_MAX_ELEMENTS)
        .linear_memory_keep_resident(KEEP_MEMORY_BYTES)
        .table_keep_resident(KEEP_TABLE_BYTES)
        .max_unused_warm_slots(slots);
    pool
}

/// Slots for instances. An instance holds one from before it is made until after it is dropped.
#[derive(Debug)]
pub struct InstanceSlots {
    all: u32,
    used: AtomicU32,
}

/// Slot of an instance, released by drop.
#[derive(Debug)]
pub struct InstanceSlot(Arc<InstanceSlots>);

impl InstanceSlots {
    /// A free place, if there is one.
    pub fn take(self: &Arc<InstanceSlots>) -> Option<InstanceSlot> {
        self.used
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, |used| {
                (used < self.all).then_some(used + 1)
            })
            .ok()
            .map(|_| InstanceSlot(Arc::clone(self)))
    }

    /// Guests alive: the gauge `plugin_instances_live`.
    pub fn live(&self) -> u32 {
        self.used.load(Ordering::Acquire)
    }
}

impl Drop for InstanceSlot {
    fn drop(&mut self) {
        self.0.used.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_given_back_by_drop_and_there_are_no_more_than_all() {
        let slots = Arc::new(InstanceSlots {
            all: 2,
            used: AtomicU32::new(0),
        });
        let one = slots.take();
        let two = slots.take();
        assert!(one.is_some() && two.is_some() && slots.take().is_none());
        drop(one);
        assert_eq!(slots.live(), 1);
        assert!(slots.take().is_some());
    }
}
