//! Rule that decides which model gets memory next: a load, a swap, or to wait.
//!
//! Not what carries it out: the caller starts the step, and asks again once memory or demand has changed. Values and
//! `now` in, a value out; equal input gives equal output. Models and residents are named by their places in the lists
//! that are given. `benches/swap.rs` has the figures of the rule and of others.

use super::contender::{ColdModel, Resident};
use super::evict::{Eviction, EvictionLimits, Evictions, SwapPolicy, WaitReason};
use super::fit::{DeviceRoom, DeviceShare};
use crate::Millis;

/// Settings of the rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwapRule {
    /// Policy.
    pub policy: SwapPolicy,
    /// Time that a busy resident keeps its memory while another model waits, in units of both load times.
    pub turn: u32,
    /// Factor by which a debt must exceed the cost of an eviction.
    pub patience: u32,
    /// Time from ready on in which a resident is no victim.
    pub min_warm: Millis,
}

impl SwapRule {
    /// Rule of an operator's order and of pins: the residents used least recently leave, at any cost.
    pub const ORDER: SwapRule = SwapRule {
        policy: SwapPolicy::Turns,
        turn: 0,
        patience: 0,
        min_warm: Millis::ZERO,
    };
}

impl Default for SwapRule {
    fn default() -> Self {
        SwapRule {
            policy: SwapPolicy::Turns,
            turn: 4,
            patience: 13,
            min_warm: Millis::ZERO,
        }
    }
}

/// Reason for a swap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwapReason {
    /// The debt exceeds the cost by the patience.
    DebtAboveCost,
    /// The turn of a victim is over, and the model has waited as long.
    TurnOver,
    /// The victims were used least recently.
    LeastRecentlyUsed,
    /// An operator has ordered the model, or it is pinned.
    Order,
}

impl SwapReason {
    /// Returns the name in logs and events.
    pub const fn name(self) -> &'static str {
        match self {
            SwapReason::DebtAboveCost => "debt_above_cost",
            SwapReason::TurnOver => "turn_over",
            SwapReason::LeastRecentlyUsed => "least_recently_used",
            SwapReason::Order => "order",
        }
    }
}

/// Step that comes next.
#[derive(Clone, Debug, PartialEq)]
pub enum SwapStep {
    /// Memory is free for a model.
    Load {
        /// Place among the cold models.
        model: usize,
        /// Memory to lease.
        shares: Vec<DeviceShare>,
    },
    /// Residents leave, and the memory that they free is the model's.
    Swap {
        /// Place among the cold models.
        model: usize,
        /// Places among the residents, ascending.
        victims: Vec<usize>,
        /// Memory to lease once they are gone.
        shares: Vec<DeviceShare>,
        /// Cost of the eviction, request-seconds.
        cost: f64,
        /// Reason.
        reason: SwapReason,
    },
    /// No load now.
    Wait,
}

/// Decision, with the reasons of the models that it leaves waiting.
#[derive(Clone, Debug, PartialEq)]
pub struct SwapDecision {
    /// Step that comes next.
    pub step: SwapStep,
    /// Places of cold models with debt that are not loaded, each with its reason; in the order of the rule.
    pub waiting: Vec<(usize, WaitReason)>,
}

impl SwapRule {
    /// Decides what is loaded next on devices that take a load now.
    ///
    /// A device that loads, is reserved for a model or is closed is left out of `rooms`. A choice made before its load is
    /// over would know less than one made then, and could not begin earlier.
    pub fn next_step(
        &self,
        cold: &[ColdModel],
        residents: &[Resident<'_>],
        rooms: &[DeviceRoom],
        now: Millis,
    ) -> SwapDecision {
        let order = self.order(cold);
        let mut waiting = Vec::with_capacity(order.len());
        let largest_mib = rooms.iter().map(|room| room.free_mib).max().unwrap_or(0);
        for &model in &order {
            if cold[model].is_beyond(largest_mib) {
                continue;
            }
            if let Some(shares) = cold[model].place(rooms) {
                let others = order.iter().filter(|other| **other != model);
                waiting.extend(others.map(|other| (*other, WaitReason::OtherFirst)));
                let step = SwapStep::Load { model, shares };
                return SwapDecision { step, waiting };
            }
        }
        let limits = EvictionLimits {
            policy: self.policy,
            turn: self.turn,
            min_warm: self.min_warm,
        };
        let mut evictions = Evictions::new(limits, residents, rooms, now);
        let mut step = SwapStep::Wait;
        for model in order {
            if step != SwapStep::Wait {
                waiting.push((model, WaitReason::OtherFirst));
                continue;
            }
            let cost_max = cold[model].debt / f64::from(self.patience);
            match evictions.cheapest(&cold[model], cost_max) {
                Ok(eviction) => step = self.swap(model, eviction),
                Err(reason) => {
                    if reason == WaitReason::TurnNotOver {
                        evictions.reserve(&cold[model]);
                    }
                    waiting.push((model, reason));
                }
            }
        }
        SwapDecision { step, waiting }
    }

    /// Returns the cold models with debt: the greatest debt per load time first, or the longest wait.
    pub(super) fn order(&self, cold: &[ColdModel]) -> Vec<usize> {
        let with_debt = cold.iter().enumerate().filter(|(_, it)| it.debt > 0.0);
        // Worked out once for each model: a comparison would divide twice. The bits of numbers that are not negative are in
        // the order of the numbers.
        let mut keys: Vec<(u64, usize)> = with_debt
            .map(|(nth, model)| match self.policy {
                SwapPolicy::Turns => (!model.debt_per_load().to_bits(), nth),
                SwapPolicy::Lru => (model.unserved_since.0, nth),
            })
            .collect();
        keys.sort_unstable();
        keys.into_iter().map(|(_, nth)| nth).collect()
    }

    fn swap(&self, model: usize, eviction: Eviction) -> SwapStep {
        let reason = match self.policy {
            SwapPolicy::Lru => SwapReason::LeastRecentlyUsed,
            SwapPolicy::Turns if eviction.ends_turn => SwapReason::TurnOver,
            SwapPolicy::Turns => SwapReason::DebtAboveCost,
        };
        SwapStep::Swap {
            model,
            victims: eviction.victims,
            shares: eviction.shares,
            cost: eviction.cost,
            reason,
        }
    }
}

#[cfg(test)]
#[path = "schedule/tests.rs"]
mod tests;
