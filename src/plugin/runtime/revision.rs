//! Revision of a plugin: one component with one set of settings, limits and grants. Immutable.
//!
//! Knows nothing of its fallback. Every call of a guest goes through [`Revision::call`]: breaker, guest,
//! deadline, class of failure, and what is learned from it. Lives as long as a snapshot or a request holds
//! it; its idle instances go with it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use infergate_core::Millis;
use infergate_core::task::TaskDescription;
use parking_lot::Mutex;
use wasmtime::Store;
use wasmtime::component::{Component, InstancePre};

use crate::plugin::failure::Failure;
use crate::plugin::json::schema::Schema;
use crate::plugin::runtime::breaker::{
    Breaker, BreakerEffect, BreakerState, CallOrigin, CallPermit,
};
use crate::plugin::runtime::call::{Caller, HookCall, slow_by_size};
use crate::plugin::runtime::call_stats::CallStats;
use crate::plugin::runtime::capture::{CallRecord, Capture};
use crate::plugin::runtime::context::HostContext;
use crate::plugin::runtime::grants::Grants;
use crate::plugin::runtime::instance_pool::InstanceOwner;
use crate::plugin::runtime::store::{
    CallError, ExportIndices, Exports, GuestInstance, GuestState, InstanceTemplate,
};
use crate::plugin::spec::{Bounds, InstancePolicy, World};
use crate::telemetry::clock::rfc3339;
use crate::telemetry::event::PluginIdentity;
use crate::telemetry::plugin_metrics::{CallResult, PluginHook};
use crate::telemetry::{PluginMetrics, off_the_worker};

/// Calls one guest answers before it is replaced: bounds what a leak can add up to.
pub const CALLS_MAX: u32 = 10_000;
/// A guest that has grown to more than this many times its first size is replaced.
const GROWTH_MAX: usize = 2;
/// Growth below this is a heap's first page, not a leak.
const GROWTH_FREE_BYTES: usize = 1 << 20;
/// Above this a task's hook, or the making of any guest, leaves the worker to others while it runs.
const SLOW_US: u32 = 1_000;
/// Hooks with a longer deadline may be slow at all.
const INLINE_DEADLINE_MS: u32 = 5;
/// Guests that are made take at least this long a deadline for it, whatever the hook's.
const SETUP_DEADLINE_MS: u32 = 5;
/// A guest is handed at most one in so many bytes of its memory. A guest holds its input twice at least (as
/// text and as parsed) and then its answer. With larger inputs a client could exhaust its memory at will, and
/// open its breaker for every account.
pub const INPUT_SHARE: usize = 4;
/// A hook with so large an input leaves its worker, however fast others were.
const LARGE_INPUT_BYTES: usize = 64 << 10;

/// A compiled component, linked to what was granted.
#[derive(Clone)]
pub struct LinkedCode {
    pub component: Component,
    pub pre: InstancePre<GuestState>,
    pub indices: ExportIndices,
}

/// Parts of a revision, all of them checked.
pub struct RevisionParts {
    pub identity: Arc<PluginIdentity>,
    pub fingerprint: [u8; 32],
    pub world: World,
    pub code: LinkedCode,
    pub settings: Arc<str>,
    pub bounds: Bounds,
    pub policy: InstancePolicy,
    pub grants: Arc<Grants>,
}

/// Description that a task returned, with its schemas compiled.
#[derive(Default)]
pub struct CompiledDescription {
    pub description: TaskDescription,
    pub input: Option<Schema>,
    pub output: Option<Schema>,
}

/// Check of a revision by calls whose answers are known.
pub trait SelfCheck: Send + Sync {
    /// Name of the first call that fails, and how it differs; none where all succeed.
    fn first_failure(&self, revision: &Revision) -> Option<(String, String)>;
}

/// Component with its settings, grants and limits; immutable.
pub struct Revision {
    pub parts: RevisionParts,
    pub described: CompiledDescription,
    pub tally: CallStats,
    /// Calls whose answers are known, repeated when the revision is in doubt; none without fixtures.
    pub self_check: Option<Box<dyn SelfCheck>>,
    /// Moment at which it was made, RFC 3339.
    pub loaded_at: Arc<str>,
    /// Capture shared by all revisions of the plugin.
    pub capture: Arc<Capture>,
    /// Held counters of the plugin, all its revisions together.
    metrics: Arc<PluginMetrics>,
    context: Arc<HostContext>,
    /// Tells guests of revisions apart; never used twice in a process.
    number: u64,
    /// Guards a few words; taken twice a call.
    breaker: Mutex<Breaker>,
    /// Weak reference to itself, for work that outlives the call; absent in a variant for tools.
    self_ref: OnceLock<Weak<Revision>>,
}

/// Owner of the instance that a call needs, and the idle instance if there is one.
struct InstanceClaim<'a> {
    owner: InstanceOwner<'a>,
    /// True when the instance may be kept for another call.
    may_keep: bool,
    idle: Option<Box<GuestInstance>>,
    /// Suppresses log lines and counts.
    is_repetition: bool,
}

/// Result of a call, with the error of the guest.
type CallOutcome<T> = Result<T, Box<CallError>>;

impl Revision {
    /// Revision without any call yet.
    pub fn new(context: Arc<HostContext>, parts: RevisionParts) -> Revision {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        Revision {
            metrics: context.metrics.plugin(&parts.identity.name),
            capture: context.captures.of(&parts.identity.name),
            loaded_at: rfc3339(context.runtime.clock.wall()).into(),
            parts,
            described: CompiledDescription::default(),
            tally: CallStats::default(),
            self_check: None,
            context,
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            breaker: Mutex::new(Breaker::default()),
            self_ref: OnceLock::new(),
        }
    }

    /// The revision as it is used from now on.
    pub fn into_shared(self) -> Arc<Revision> {
        let revision = Arc::new(self);
        // Set once: the revision is not shared yet.
        let _ = revision.self_ref.set(Arc::downgrade(&revision));
        revision
    }

    /// State of its breaker.
    pub fn breaker_state(&self) -> BreakerState {
        self.breaker.lock().state()
    }

    /// True when it has answered calls, nearly all of them well.
    pub fn has_good_record(&self) -> bool {
        self.tally.has_good_record()
    }

    /// Context shared by all revisions of the host.
    pub fn context(&self) -> &Arc<HostContext> {
        &self.context
    }

    /// Calls a guest. `invoke` gets an instance under its deadline and returns the checked answer of the guest.
    /// Anything but an answer or a rejection counts against the revision.
    ///
    /// # Errors
    /// The class of the failure; it has been logged and counted.
    pub fn call<T>(
        &self,
        hook: HookCall,
        caller: Option<Caller<'_>>,
        invoke: impl FnOnce(&mut Store<GuestState>, &Exports) -> wasmtime::Result<Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let clock = self.context.runtime.clock;
        let began_us = clock.micros();
        let Some(pass) = self.breaker.lock().admit(Millis(began_us / 1000)) else {
            self.count_skipped(hook);
            return Err(Failure::Unavailable("its breaker is open"));
        };
        let claim = self.claim(caller);
        let label = hook.label();
        let by = CallOrigin {
            account: claim.owner.account_digest(),
            hook: label.map_or(0, |hook| hook as usize),
        };
        let is_slow = self.is_slow(hook, claim.idle.is_some());
        let ended = off_the_worker(is_slow, || self.call_caught(hook, caller, claim, invoke));
        let ended = ended.map_err(|call_error| slow_by_size(hook, call_error));
        let ended_us = clock.micros();
        let took_us = ended_us.saturating_sub(began_us);
        self.tally.record_duration(took_us);
        let result = match &ended {
            Ok(_) => CallResult::Answered,
            Err(call_error) => result_of(&call_error.failure),
        };
        self.observe(label, result, took_us);
        match ended {
            Ok(answer) => {
                let now = Millis(ended_us / 1000);
                self.breaker.lock().record_end(pass, by, true, now);
                Ok(answer)
            }
            Err(call_error) => {
                let opened = self.record_failure(hook, (pass, by), &call_error.failure);
                if !matches!(call_error.failure, Failure::Rejected(_)) {
                    self.tally.count_failure(&call_error.failure);
                    self.log_failure(hook, caller, &call_error, took_us, opened);
                }
                Err(call_error.failure)
            }
        }
    }

    /// Writes an ended call down, where a capture runs. `bytes` is about what its
    /// arguments have.
    pub fn capture<T>(
        &self,
        hook: HookCall,
        caller: Option<Caller<'_>>,
        (ended, bytes): (&Result<T, Failure>, usize),
        args: impl FnOnce() -> serde_json::Value,
    ) {
        if self.capture.left() == 0 {
            return;
        }
        let made = CallRecord {
            identity: &self.parts.identity,
            settings: &self.parts.settings,
            tables: &self.parts.grants.attached,
            hook,
            caller,
            time: rfc3339(self.context.runtime.clock.wall()),
        };
        self.capture.record(&made, ended, bytes, args);
    }

    /// True when a call would be made now.
    pub fn is_available(&self) -> bool {
        let now = self.context.runtime.clock.recent();
        self.breaker.lock().would_admit(now)
    }

    /// Counts a call that its breaker kept from it.
    pub fn count_skipped(&self, hook: HookCall) {
        self.tally.count_failure(&Failure::Unavailable("breaker"));
        self.observe(hook.label(), CallResult::Unavailable, 0);
    }

    /// True when a guest can take so many bytes. A call that is too large is not made, and the breaker does
    /// not learn of it: the size is chosen by the client or the model server.
    ///
    /// # Errors
    /// [`Failure::TooLarge`]; it has been counted.
    pub fn check_input_size(&self, hook: HookCall, bytes: usize) -> Result<(), Failure> {
        let max = self.parts.bounds.memory_bytes / INPUT_SHARE;
        if bytes <= max {
            return Ok(());
        }
        let failure = Failure::TooLarge { bytes, max };
        self.tally.count_failure(&failure);
        self.observe(hook.label(), CallResult::Unavailable, 0);
        Err(failure)
    }

    /// Reports an answer that passed the checks of its call and broke a rule where it was used.
    pub fn report_invalid(&self, hook: HookCall, caller: Caller<'_>, rule: &'static str) {
        let failure = Failure::Invalid(rule);
        let now = self.context.runtime.clock.now();
        let by = hook.origin(Some(caller));
        let ended = self.breaker.lock().revoke_success(by, now);
        let opened = self.run_due_check(ended);
        self.tally.count_failure(&failure);
        if let Some(hook) = hook.label() {
            self.metrics.record_invalid_result(hook);
        }
        self.log_failure(
            hook,
            Some(caller),
            &CallError::without_trace(failure, 0),
            0,
            opened,
        );
    }

    /// Records a failure of the revision; true when its breaker opened over it.
    fn record_failure(
        &self,
        hook: HookCall,
        (pass, by): (CallPermit, CallOrigin),
        failure: &Failure,
    ) -> bool {
        let now = self.context.runtime.clock.now();
        let ended = {
            let mut breaker = self.breaker.lock();
            match failure {
                // It was not called, or its input takes too long to read.
                Failure::Unavailable(_) | Failure::TooLarge { .. } | Failure::TooSlow { .. } => {
                    breaker.cancel(pass, now);
                    BreakerEffect::default()
                }
                Failure::Rejected(_) => breaker.record_end(pass, by, true, now),
                // Metrics a formula can make nothing of are the model server's, or the client's.
                Failure::Broken(_) if matches!(hook.name, "price" | "estimate") => {
                    breaker.record_end(pass, by, true, now)
                }
                _ => breaker.record_end(pass, by, false, now),
            }
        };
        self.run_due_check(ended)
    }

    /// Schedules the fixtures where one account keeps failing; true when the breaker opened.
    fn run_due_check(&self, ended: BreakerEffect) -> bool {
        if ended.check_due && self.self_check.is_some() {
            self.run_in_background(Revision::run_self_check);
        }
        ended.opened
    }

    /// Queues `work` for the background thread, which skips it when the revision is gone by then; false when
    /// the queue is full.
    pub fn run_in_background(&self, work: impl FnOnce(&Revision) + Send + 'static) -> bool {
        let Some(shared) = self.self_ref.get().map(Weak::clone) else {
            return false;
        };
        self.context.background.offer(move || {
            if let Some(revision) = shared.upgrade() {
                work(&revision);
            }
        })
    }

    /// Calls a fresh instance, outside of breaker and statistics; its log lines and counts are suppressed.
    ///
    /// # Errors
    /// The class of the failure.
    pub fn call_fresh<T>(
        &self,
        hook: HookCall,
        invoke: impl FnOnce(&mut Store<GuestState>, &Exports) -> wasmtime::Result<Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let claim = InstanceClaim {
            owner: InstanceOwner::of(self.number, None),
            may_keep: false,
            idle: None,
            is_repetition: true,
        };
        let ended = self.call_caught(hook, None, claim, invoke);
        ended.map_err(|call_error| call_error.failure)
    }

    /// Uses no instance again from now on.
    pub fn disable_reuse(&self) {
        self.tally.is_stateful.store(true, Ordering::Relaxed);
        self.context.pool.forget(self.number);
    }

    /// Counters of the plugin, all its revisions together.
    pub fn metrics(&self) -> &PluginMetrics {
        &self.metrics
    }

    /// Runs the fixtures once more; the breaker opens when one fails.
    fn run_self_check(&self) {
        let check = self.self_check.as_ref();
        if let Some((fixture, difference)) = check.and_then(|check| check.first_failure(self)) {
            self.breaker.lock().open(self.context.runtime.clock.now());
            tracing::error!(
                plugin = &*self.parts.identity.name,
                sha256 = &*self.parts.identity.sha256,
                fixture,
                difference,
                "one account's calls of a plugin failed, and so does its fixture: bypassed for 30 s"
            );
        }
    }

    /// Makes an instance outside of breaker and statistics: for loading and tools.
    pub fn make_instance(&self, deadline_ms: u32) -> Result<GuestInstance, Box<CallError>> {
        self.new_instance(deadline_ms, false)
    }

    fn new_instance(
        &self,
        deadline_ms: u32,
        is_silent: bool,
    ) -> Result<GuestInstance, Box<CallError>> {
        let context = &self.context;
        let template = InstanceTemplate {
            runtime: &context.runtime,
            pre: &self.parts.code.pre,
            indices: &self.parts.code.indices,
            bounds: &self.parts.bounds,
            grants: &self.parts.grants,
            settings: &self.parts.settings,
            metrics: &self.metrics,
            is_repetition: is_silent,
        };
        // An idle instance makes room. Another caller may be quicker to take it, but each pass there is
        // one idle instance less.
        loop {
            let Some(slot) = context.runtime.slots.take() else {
                if context.pool.evict() {
                    continue;
                }
                let busy = Failure::Unavailable("every instance is busy");
                return Err(CallError::without_trace(busy, 0));
            };
            match GuestInstance::make(&template, slot, deadline_ms) {
                Err(call_error) if call_error.engine_is_full() && context.pool.evict() => {}
                made => return made,
            }
        }
    }

    /// Claims the idle instance of this caller, if there is one.
    fn claim<'a>(&self, caller: Option<Caller<'a>>) -> InstanceClaim<'a> {
        let owner = InstanceOwner::of(self.number, caller.map(|caller| caller.account));
        let keeps = self.reuses_instances();
        let waiting = keeps.then(|| self.context.pool.take(owner)).flatten();
        InstanceClaim {
            owner,
            may_keep: keeps,
            idle: waiting,
            is_repetition: false,
        }
    }

    /// True when an instance may answer more than one call.
    pub fn reuses_instances(&self) -> bool {
        let remembers = self.tally.is_stateful.load(Ordering::Relaxed);
        self.parts.policy == InstancePolicy::Auto && !remembers
    }

    /// A slow hook, or a guest that is long in the making, must not hold up the requests that share
    /// its worker.
    fn is_slow(&self, hook: HookCall, is_warm: bool) -> bool {
        let hooks = hook.deadline_ms > INLINE_DEADLINE_MS
            && (self.tally.mean_us.load(Ordering::Relaxed) > SLOW_US
                || hook.input_bytes >= LARGE_INPUT_BYTES);
        hooks || (!is_warm && self.tally.setup_us.load(Ordering::Relaxed) > SLOW_US)
    }

    /// The only way to call a guest. A panic of the host's own code in here ends the call, not the
    /// process.
    fn call_caught<T>(
        &self,
        hook: HookCall,
        caller: Option<Caller<'_>>,
        claim: InstanceClaim<'_>,
        invoke: impl FnOnce(&mut Store<GuestState>, &Exports) -> wasmtime::Result<Result<T, Failure>>,
    ) -> CallOutcome<T> {
        catch_unwind(AssertUnwindSafe(|| {
            self.call_instance(hook, caller, claim, invoke)
        }))
        .unwrap_or_else(|_| {
            Err(CallError::without_trace(
                Failure::Trapped("the host panicked".into()),
                0,
            ))
        })
    }

    fn call_instance<T>(
        &self,
        hook: HookCall,
        caller: Option<Caller<'_>>,
        claim: InstanceClaim<'_>,
        invoke: impl FnOnce(&mut Store<GuestState>, &Exports) -> wasmtime::Result<Result<T, Failure>>,
    ) -> CallOutcome<T> {
        let InstanceClaim {
            owner,
            may_keep: keeps,
            idle: waiting,
            is_repetition: is_silent,
        } = claim;
        let mut instance = match waiting {
            Some(instance) => instance,
            None => Box::new(self.new_instance(self.setup_deadline_ms(hook), is_silent)?),
        };
        if self.parts.grants.log {
            let text = &mut instance.store.data_mut().request_id;
            text.clear();
            text.push_str(caller.map_or("", |caller| caller.request_id));
        }
        instance.arm(hook.deadline_ms);
        let GuestInstance { store, exports, .. } = &mut *instance;
        let answer = invoke(store, exports).map_err(|error| CallError::of(&error, store))?;
        let answer = answer.map_err(|failure| {
            CallError::without_trace(failure, instance.store.data().limits.memory_bytes)
        });
        // Whatever was not an answer has gone, or goes here, with its store.
        let usable = match &answer {
            Ok(_) => true,
            Err(call_error) => matches!(call_error.failure, Failure::Rejected(_)),
        };
        instance.calls += 1;
        if usable && keeps && self.reuses_instances() && !is_worn(&instance) {
            instance.end_call();
            self.context.pool.put(owner, instance);
        }
        answer
    }

    fn setup_deadline_ms(&self, hook: HookCall) -> u32 {
        let measured = self.tally.setup_us.load(Ordering::Relaxed) / 1000;
        hook.deadline_ms.max(SETUP_DEADLINE_MS).max(measured * 4)
    }

    fn observe(&self, hook: Option<PluginHook>, result: CallResult, took_us: u64) {
        if let Some(hook) = hook {
            self.metrics.record_call(hook, result, took_us);
        }
    }

    /// Logs one event per failed call, at a bounded rate.
    fn log_failure(
        &self,
        hook: HookCall,
        caller: Option<Caller<'_>>,
        call_error: &CallError,
        took_us: u64,
        opened: bool,
    ) {
        let PluginIdentity { name, sha256, .. } = &*self.parts.identity;
        let bytes = call_error.memory_bytes as u64;
        self.tally.crash_bytes.fetch_max(bytes, Ordering::Relaxed);
        if opened {
            tracing::error!(
                plugin = &**name,
                sha256 = &**sha256,
                "plugin fails too often: bypassed for 30 s"
            );
        }
        if !self.tally.may_log_crash(self.context.runtime.clock.now()) {
            return;
        }
        tracing::warn!(
            plugin = &**name,
            sha256 = &**sha256,
            hook = hook.name,
            class = call_error.failure.class(),
            failure = %call_error.failure,
            backtrace = call_error.backtrace,
            elapsed_us = took_us,
            memory_bytes = call_error.memory_bytes,
            request_id = caller.map_or("", |caller| caller.request_id),
            "a plugin failed"
        );
    }
}

impl Drop for Revision {
    fn drop(&mut self) {
        self.context.pool.forget(self.number);
    }
}

/// Both tables have a test that their names are the same.
fn result_of(failure: &Failure) -> CallResult {
    CallResult::from_name(failure.class()).unwrap_or(CallResult::Invalid)
}

fn is_worn(instance: &GuestInstance) -> bool {
    let now = instance.store.data().limits.memory_bytes;
    let grown =
        now > instance.ready_bytes * GROWTH_MAX && now - instance.ready_bytes > GROWTH_FREE_BYTES;
    instance.calls >= CALLS_MAX || grown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_class_of_failure_is_a_result_of_the_same_name() {
        for class in Failure::CLASSES {
            assert!(CallResult::from_name(class).is_some(), "{class}");
        }
        assert!(CallResult::from_name("rejected").is_some());
    }
}
