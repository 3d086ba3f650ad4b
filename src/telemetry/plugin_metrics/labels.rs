//! Closed sets of label values: hooks of plugins, results of their calls, results of repricing.
//!
//! Not the counters. The names are those of `docs/metrics.md` and of events.

/// A function of a plugin's interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PluginHook {
    /// `lifecycle.configure`.
    Configure,
    /// `task.describe`.
    Describe,
    /// `task.prepare`.
    Prepare,
    /// `task.finish`.
    Finish,
    /// `task-stream.push`.
    Push,
    /// `task-stream.close`.
    Close,
    /// `billing.price`.
    Price,
    /// `estimator.estimate`.
    Estimate,
    /// `routing.rank`.
    Rank,
}

impl PluginHook {
    /// Every hook, in the order of the enum.
    pub const ALL: [PluginHook; 9] = [
        PluginHook::Configure,
        PluginHook::Describe,
        PluginHook::Prepare,
        PluginHook::Finish,
        PluginHook::Push,
        PluginHook::Close,
        PluginHook::Price,
        PluginHook::Estimate,
        PluginHook::Rank,
    ];

    /// Its name in events and on labels: the function's in the interface.
    pub const fn name(self) -> &'static str {
        match self {
            PluginHook::Configure => "configure",
            PluginHook::Describe => "describe",
            PluginHook::Prepare => "prepare",
            PluginHook::Finish => "finish",
            PluginHook::Push => "push",
            PluginHook::Close => "close",
            PluginHook::Price => "price",
            PluginHook::Estimate => "estimate",
            PluginHook::Rank => "rank",
        }
    }

    /// The hook of this name.
    pub fn from_name(name: &str) -> Option<PluginHook> {
        PluginHook::ALL.into_iter().find(|hook| hook.name() == name)
    }
}

/// Result of one call of a plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CallResult {
    /// A response that passed the host's checks.
    Answered,
    /// The plugin rejected the client's input: not a failure.
    Rejected,
    /// The plugin reports a fault of its own.
    Broken,
    /// The plugin trapped.
    Trapped,
    /// The call exceeded its deadline.
    Deadline,
    /// The call exceeded its memory limit.
    Memory,
    /// The call copied more between guest and host than allowed.
    Overrun,
    /// The result broke a rule of the interface.
    Invalid,
    /// Not called: its breaker is open or no instance was free.
    Unavailable,
}

impl CallResult {
    /// Every result, in the order of the enum.
    pub const ALL: [CallResult; 9] = [
        CallResult::Answered,
        CallResult::Rejected,
        CallResult::Broken,
        CallResult::Trapped,
        CallResult::Deadline,
        CallResult::Memory,
        CallResult::Overrun,
        CallResult::Invalid,
        CallResult::Unavailable,
    ];

    /// Its name on labels.
    pub const fn name(self) -> &'static str {
        match self {
            CallResult::Answered => "answered",
            CallResult::Rejected => "rejected",
            CallResult::Broken => "broken",
            CallResult::Trapped => "trapped",
            CallResult::Deadline => "deadline",
            CallResult::Memory => "memory",
            CallResult::Overrun => "overrun",
            CallResult::Invalid => "invalid",
            CallResult::Unavailable => "unavailable",
        }
    }

    /// The result of this name.
    pub fn from_name(name: &str) -> Option<CallResult> {
        CallResult::ALL
            .into_iter()
            .find(|result| result.name() == name)
    }

    /// Returns whether the plugin, and not the client, is to blame.
    pub const fn is_failure(self) -> bool {
        !matches!(self, CallResult::Answered | CallResult::Rejected)
    }
}

/// Result of computing a price again on a fresh instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RepricingResult {
    /// The same price.
    Same,
    /// Another price, or none: the price depends on state of the instance.
    Different,
    /// No instance was free, or it ran past its deadline.
    Unknown,
    /// Too many waited: it was left out.
    Dropped,
}

impl RepricingResult {
    /// Its name on labels.
    pub const fn name(self) -> &'static str {
        match self {
            RepricingResult::Same => "same",
            RepricingResult::Different => "different",
            RepricingResult::Unknown => "unknown",
            RepricingResult::Dropped => "dropped",
        }
    }
}
