//! Demand of a model: what waits for it, for how long, and how often it is asked.
//!
//! Not a queue: the admission queue keeps its waiters and reports each change here. A change costs the same for any
//! number of waiters, and so does the debt, from four sums. Times are [`Millis`], debts request-seconds: one request
//! of weight 1 that waits for one second. At most [`REMEMBERED_MAX`] requests are remembered.

use std::collections::VecDeque;

use crate::{AccountId, Millis};

/// Sixteenths of a request in weight 1.
const WEIGHT_ONE: u32 = 16;
/// Weight 32 in sixteenths, that of priority 0.
const WEIGHT_MAX: u32 = 32 * WEIGHT_ONE;
/// Requests that are remembered. More would not make a model more wanted than a card can serve.
const REMEMBERED_MAX: usize = 64;
/// Span over which arrivals are averaged.
const ARRIVALS_SPAN: Millis = Millis::from_secs(180);

/// Weight of a request, in sixteenths within 1/16 and 32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DemandWeight(u32);

impl DemandWeight {
    /// Returns `2^(5 - priority)`: the smaller the priority's number, the more urgent.
    pub const fn of_priority(priority: u8) -> DemandWeight {
        let halvings = if priority > 9 { 9 } else { priority };
        DemandWeight(WEIGHT_MAX >> halvings)
    }

    /// Returns a share of the weight, at least 1/16.
    pub fn scaled(self, percent: u32) -> DemandWeight {
        let scaled = u64::from(self.0) * u64::from(percent) / 100;
        let bounded = scaled.clamp(1, u64::from(WEIGHT_MAX));
        DemandWeight(u32::try_from(bounded).unwrap_or(WEIGHT_MAX))
    }
}

/// Settings of all demands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DemandSettings {
    /// Wait at which a request weighs twice its time.
    pub aging: Millis,
    /// Time for which a request counts that left without an answer of the model.
    pub memory: Millis,
}

impl Default for DemandSettings {
    fn default() -> Self {
        DemandSettings {
            aging: Millis::from_secs(25),
            memory: Millis::from_secs(60),
        }
    }
}

/// A waiter as the demand counts it. The queue keeps it with the waiter and hands it back.
#[must_use = "a waiter that is not handed back is counted for ever"]
#[derive(Debug)]
pub struct WaiterDemand {
    weight: DemandWeight,
    arrived: Millis,
    is_counted: bool,
}

impl WaiterDemand {
    /// Returns whether the waiter makes debt.
    pub const fn is_counted(&self) -> bool {
        self.is_counted
    }
}

/// A request that left without an answer.
#[derive(Clone, Debug)]
struct RememberedRequest {
    account: AccountId,
    weight: DemandWeight,
    arrived: Millis,
    until: Millis,
}

/// Demand of one model.
#[derive(Clone, Debug)]
pub struct Demand {
    settings: DemandSettings,
    waiters: u32,
    sums: DebtSums,
    remembered: VecDeque<RememberedRequest>,
    /// Begin of the time in which something waits and the model serves nothing.
    unserved_since: Option<Millis>,
    /// Weight of the newest request, for waiters that are not counted.
    newest_weight: DemandWeight,
    arrivals: ArrivalRate,
}

impl Demand {
    /// Returns the demand of a model that nothing waits for.
    pub fn new(settings: DemandSettings) -> Demand {
        Demand {
            settings,
            waiters: 0,
            sums: DebtSums::default(),
            remembered: VecDeque::new(),
            unserved_since: None,
            newest_weight: DemandWeight::of_priority(5),
            arrivals: ArrivalRate::default(),
        }
    }

    /// Replaces the settings. Requests that are remembered keep their time.
    pub fn configure(&mut self, settings: DemandSettings) {
        self.settings = settings;
    }

    /// Counts requests that arrive, whether they wait, are served at once or are refused.
    pub fn record_arrivals(&mut self, count: u32, now: Millis) {
        self.arrivals.record(count, now);
    }

    /// Counts a permit of the model: it serves, so that its waiters are not without service from here on.
    pub fn record_grant(&mut self, now: Millis) {
        if self.unserved_since.is_some() {
            self.unserved_since = Some(now);
        }
    }

    /// Counts a waiter. One more than `permits` of an account makes no debt: a flood weighs as one round of permits.
    pub fn join(
        &mut self,
        weight: DemandWeight,
        counted_of_account: u32,
        permits: u32,
        now: Millis,
    ) -> WaiterDemand {
        let waiter = WaiterDemand {
            weight,
            arrived: now,
            is_counted: counted_of_account < permits,
        };
        self.waiters = self.waiters.saturating_add(1);
        self.begin(weight, now);
        if waiter.is_counted {
            self.sums.add(weight, waiter.arrived);
        }
        waiter
    }

    /// Removes a waiter that has its permit, or whose client has left.
    pub fn leave(&mut self, waiter: WaiterDemand) {
        self.waiters = self.waiters.saturating_sub(1);
        if waiter.is_counted {
            self.sums.remove(waiter.weight, waiter.arrived);
        }
        self.end_if_empty();
    }

    /// Removes a waiter whose time was over, and remembers a counted one.
    pub fn time_out(
        &mut self,
        waiter: WaiterDemand,
        account: &AccountId,
        permits: u32,
        now: Millis,
    ) {
        if waiter.is_counted {
            self.remember(account, waiter.weight, waiter.arrived, permits, now);
        }
        self.leave(waiter);
    }

    /// Remembers a request that was refused because the model could not be ready in time.
    ///
    /// Otherwise a model whose load takes longer than its callers wait is never loaded.
    pub fn refuse(&mut self, account: &AccountId, weight: DemandWeight, permits: u32, now: Millis) {
        self.begin(weight, now);
        self.remember(account, weight, now, permits, now);
        self.end_if_empty();
    }

    /// Forgets the requests that left: the model has become ready, which is all they can bring about.
    pub fn clear_memory(&mut self) {
        while !self.remembered.is_empty() {
            self.forget(0);
        }
        self.end_if_empty();
    }

    /// Forgets requests that were remembered long enough.
    pub fn expire(&mut self, now: Millis) {
        while self
            .remembered
            .front()
            .is_some_and(|first| first.until <= now)
        {
            self.forget(0);
        }
        self.end_if_empty();
    }

    /// Returns what the waits so far weigh: the sum of `w * x * (1 + (x / aging)²)` over the counted.
    ///
    /// Waiters that are not counted weigh together at least as one of them: each has a path to the card.
    pub fn debt(&self, now: Millis) -> f64 {
        let counted = self.sums.debt(now, self.settings.aging);
        let (Some(since), true) = (self.unserved_since, self.waiters > 0) else {
            return counted;
        };
        let mut one = DebtSums::default();
        one.add(self.newest_weight, since);
        counted.max(one.debt(now, self.settings.aging))
    }

    /// Number of requests that wait now.
    pub fn waiters(&self) -> u32 {
        self.waiters
    }

    /// Number of requests that left and count.
    pub fn remembered(&self) -> u32 {
        u32::try_from(self.remembered.len()).unwrap_or(u32::MAX)
    }

    /// Returns since when something waits, or is remembered, and the model serves nothing.
    ///
    /// At least as long as the oldest waiter of a model that is not loaded; callers that give up and others that come
    /// do not begin it anew.
    pub fn unserved_since(&self) -> Option<Millis> {
        self.unserved_since
    }

    /// Returns the requests per second, averaged over 3 minutes.
    pub fn arrivals_per_sec(&self, now: Millis) -> f64 {
        self.arrivals.per_sec(now)
    }

    fn begin(&mut self, weight: DemandWeight, now: Millis) {
        self.newest_weight = weight;
        self.unserved_since.get_or_insert(now);
    }

    fn end_if_empty(&mut self) {
        if self.waiters == 0 && self.remembered.is_empty() {
            self.unserved_since = None;
        }
    }

    /// Keeps the newest `permits` requests of an account, and the newest of all.
    fn remember(
        &mut self,
        account: &AccountId,
        weight: DemandWeight,
        arrived: Millis,
        permits: u32,
        now: Millis,
    ) {
        let of_account = |request: &RememberedRequest| request.account == *account;
        let count = self.remembered.iter().filter(|own| of_account(own)).count();
        if count >= usize::try_from(permits.max(1)).unwrap_or(usize::MAX) {
            if let Some(oldest) = self.remembered.iter().position(of_account) {
                self.forget(oldest);
            }
        } else if self.remembered.len() >= REMEMBERED_MAX {
            self.forget(0);
        }
        self.sums.add(weight, arrived);
        self.remembered.push_back(RememberedRequest {
            account: account.clone(),
            weight,
            arrived,
            until: now + self.settings.memory,
        });
    }

    fn forget(&mut self, place: usize) {
        if let Some(request) = self.remembered.remove(place) {
            self.sums.remove(request.weight, request.arrived);
        }
    }
}

/// Sums over counted requests: of weights in sixteenths, times the arrival to the power of 0 to 3.
///
/// Sums wrap, and so do the products of [`DebtSums::debt`]. Its results are exact all the same, as they are far below
/// 2^128: a million requests of the greatest weight reach that in 49 days.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct DebtSums {
    powers: [u128; 4],
    /// Latest arrival: before it there is no wait.
    latest: Millis,
}

impl DebtSums {
    fn add(&mut self, weight: DemandWeight, arrived: Millis) {
        self.change(weight, arrived, u128::wrapping_add);
        self.latest = self.latest.max(arrived);
    }

    fn remove(&mut self, weight: DemandWeight, arrived: Millis) {
        self.change(weight, arrived, u128::wrapping_sub);
    }

    fn change(&mut self, weight: DemandWeight, arrived: Millis, change: fn(u128, u128) -> u128) {
        let mut power = u128::from(weight.0);
        for sum in &mut self.powers {
            *sum = change(*sum, power);
            power = power.wrapping_mul(u128::from(arrived.0));
        }
    }

    /// Expands `(now - t)` and `(now - t)³` over the sums of `t`: exact in whole milliseconds.
    fn debt(&self, now: Millis, aging: Millis) -> f64 {
        let now = u128::from(now.max(self.latest).0);
        let [one, first, second, third] = self.powers;
        let waits = now.wrapping_mul(one).wrapping_sub(first);
        let three = second.wrapping_sub(first.wrapping_mul(now)).wrapping_mul(3);
        let cubes = now.wrapping_mul(one).wrapping_mul(now).wrapping_add(three);
        let cubes = cubes.wrapping_mul(now).wrapping_sub(third);
        let aging = aging.0.max(1) as f64;
        let sixteenths_ms = waits as f64 + cubes as f64 / aging / aging;
        sixteenths_ms / f64::from(WEIGHT_ONE) / 1000.0
    }
}

/// Returns the debt of one request of a priority that has waited so long.
pub fn debt_of_wait(priority: u8, waited: Millis, aging: Millis) -> f64 {
    let mut one = DebtSums::default();
    one.add(DemandWeight::of_priority(priority), Millis::ZERO);
    one.debt(waited, aging)
}

/// Exponentially weighted rate of arrivals.
#[derive(Clone, Copy, Debug, Default)]
struct ArrivalRate {
    /// Rate at `updated`, in arrivals per span.
    per_span: f64,
    updated: Millis,
}

impl ArrivalRate {
    fn record(&mut self, count: u32, now: Millis) {
        self.per_span = self.at(now) + f64::from(count);
        self.updated = self.updated.max(now);
    }

    fn per_sec(&self, now: Millis) -> f64 {
        self.at(now) * 1000.0 / ARRIVALS_SPAN.0 as f64
    }

    /// Decays as `(1 + x / 64)^-64`: e^-x within 1 % of the rate, by multiplications that are the same everywhere.
    fn at(&self, now: Millis) -> f64 {
        let spans = now.since(self.updated).0 as f64 / ARRIVALS_SPAN.0 as f64;
        let mut growth = 1.0 + spans / 64.0;
        for _ in 0..6 {
            growth *= growth;
        }
        self.per_span / growth
    }
}

#[cfg(test)]
#[path = "demand/tests.rs"]
mod tests;
