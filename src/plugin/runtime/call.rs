//! A hook as it is called: by name, with a deadline that its input lengthens.
//!
//! Calls nothing. A task's input may be a picture of many MiB, which takes its time to read; every other hook
//! is handed little.

use std::hash::BuildHasher;
use std::sync::LazyLock;

use hashbrown::DefaultHashBuilder;
use infergate_core::AccountId;

use crate::plugin::failure::Failure;
use crate::plugin::runtime::breaker::CallOrigin;
use crate::plugin::runtime::store::CallError;
use crate::telemetry::plugin_metrics::PluginHook;

/// Processor time in ms that a task's hook has for each MiB of its input, beside its deadline. The slowest shipped tasks
/// read a list of bytes: more than 70 where another thread runs on the same core of a slow processor.
const DEADLINE_MS_PER_MIB: u32 = 150;
/// From so many bytes on, an input is slow by its size: whose call it makes run past its deadline is
/// too large, and the plugin not to blame.
const SLOW_INPUT_BYTES: usize = 1 << 20;

/// Account and request of a call.
#[derive(Clone, Copy, Debug)]
pub struct Caller<'a> {
    /// Guests are never shared between accounts.
    pub account: &'a AccountId,
    /// For the log lines of the plugin.
    pub request_id: &'a str,
}

/// A hook, with how long it may take.
#[derive(Clone, Copy, Debug)]
pub struct HookCall {
    pub name: &'static str,
    pub deadline_ms: u32,
    /// Bytes of what it is handed.
    pub input_bytes: usize,
}

impl HookCall {
    /// The hook with a task's input, which takes the longer the larger it is.
    pub fn with_input(self, input_bytes: usize) -> HookCall {
        let mib = u32::try_from(input_bytes >> 20).unwrap_or(u32::MAX);
        let more_ms = mib.saturating_mul(DEADLINE_MS_PER_MIB);
        HookCall {
            deadline_ms: self.deadline_ms.saturating_add(more_ms),
            input_bytes,
            ..self
        }
    }

    /// The hook as a label; none for the calls of tools.
    pub fn label(self) -> Option<PluginHook> {
        PluginHook::from_name(self.name)
    }

    /// The call as the breaker sees it.
    pub fn origin(self, caller: Option<Caller<'_>>) -> CallOrigin {
        CallOrigin {
            account: caller.map(|caller| account_digest(caller.account)),
            hook: self.label().map_or(0, |hook| hook as usize),
        }
    }
}

/// A deadline that passed over an input which is slow by its size is the input's fault.
pub fn slow_by_size(hook: HookCall, mut call_error: Box<CallError>) -> Box<CallError> {
    let is_slow = hook.name == "prepare" && hook.input_bytes >= SLOW_INPUT_BYTES;
    if is_slow && call_error.failure == Failure::Deadline {
        let bytes = hook.input_bytes;
        call_error.failure = Failure::TooSlow { bytes };
    }
    call_error
}

/// Digest of an account, the same for as long as the process runs.
pub fn account_digest(account: &AccountId) -> u64 {
    static HASHER: LazyLock<DefaultHashBuilder> = LazyLock::new(DefaultHashBuilder::default);
    HASHER.hash_one(account)
}
