//! Neurons of the day: what each account has used and what its requests in flight may use.
//!
//! Without a clock: `now` is the time in UTC, passed by the shell. A request is refused only when use and
//! reservations have reached the limit. So the last one admitted may overshoot, by at most its own cost;
//! in return no limit stays half used because a large request did not fit. Use at other nodes counts as
//! far as they have reported it; each node keeps only its own. Neurons are stored as whole millionths, so
//! that sums are exact and a released reservation leaves no remainder.

use std::sync::Arc;

use hashbrown::HashMap;
use serde::{Deserialize, Serialize};

use crate::AccountId;
use crate::model::Tariff;

use super::charge::CHARGE_MAX_NEURONS;

const SECS_PER_DAY: u64 = 86_400;
const MICRO: f64 = 1e6;

/// Output tokens reserved where the request has no limit: Workers AI's own default.
const OUTPUT_TOKENS_ASSUMED: u64 = 256;

/// Seconds since 1970-01-01 00:00 UTC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct UnixSecs(pub u64);

impl UnixSecs {
    /// Days since 1970-01-01; a new one begins at 00:00 UTC.
    pub const fn day(self) -> u64 {
        self.0 / SECS_PER_DAY
    }
}

/// Sums of other nodes that are remembered, over all nodes and accounts: 50 nodes with 4,096 accounts
/// each are a fifth less. Reports beyond the bound do not count.
pub const PEER_USAGES_MAX: usize = 262_144;

/// Multiple of an account's limit beyond which a reported sum is implausible: requests in flight
/// overshoot a limit by their own cost only. A false sum would lock the account out until midnight.
const PEER_USAGE_LIMITS_MAX: u64 = 10;

/// The counters of all accounts that have a limit. Bounded by their number, and by [`PEER_USAGES_MAX`] for
/// reports of other nodes.
#[derive(Clone, Debug, Default)]
pub struct Quota {
    day: u64,
    accounts: HashMap<AccountId, AccountCounter>,
    version: u64,
    /// By node and account. The use of a node that has left still counts.
    peer_usage: HashMap<Arc<str>, HashMap<AccountId, PeerUsage>>,
    peer_usage_count: usize,
    dropped_reports: u64,
    former_day: FormerDay,
}

/// Use of the day before, in case that it is still that day: a clock may be ahead and be corrected.
#[derive(Clone, Debug, Default)]
struct FormerDay {
    day: u64,
    used: Vec<(AccountId, u64)>,
}

/// Largest correction of a clock about midnight, in seconds. A clock set back before the day by more was
/// ahead when that day began.
const CLOCK_CORRECTION_MAX: u64 = 3_600;

/// Use of an account as reported by a node, in millionths of a neuron.
#[derive(Clone, Copy, Debug, Default)]
struct PeerUsage {
    /// Generation of the reporting node's process.
    generation: u64,
    today: u64,
    /// Reported with a clock that is ahead.
    tomorrow: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct AccountCounter {
    used: u64,
    reserved: u64,
    /// Cost of requests that are over, until their ends are stored.
    owed: u64,
    /// Sum of the reports of other nodes for this day. 128 bits, so that it stays exact for any report
    /// and a wrong one can be taken back.
    used_elsewhere: u128,
}

/// Neurons put aside for a request. Consumed by [`Quota::settle`] or [`Quota::release`]; not `Copy`, so
/// that neither can happen twice.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a reservation that is neither settled nor given back lasts until midnight"]
pub struct QuotaReservation {
    account: AccountId,
    /// In 32 bits: a reservation is part of each request's state.
    day: u32,
    micro: u64,
    /// The request is over: this is its cost.
    is_owed: bool,
}

/// A day since 1970: enough for ten million years.
fn short(day: u64) -> u32 {
    u32::try_from(day).unwrap_or(u32::MAX)
}

impl AccountCounter {
    /// Use of the day at all nodes, with what is owed here.
    fn spent(&self) -> u128 {
        u128::from(self.used) + u128::from(self.owed) + self.used_elsewhere
    }

    /// Sum to which a reservation of the kind adds.
    fn pending(&mut self, is_owed: bool) -> &mut u64 {
        match is_owed {
            true => &mut self.owed,
            false => &mut self.reserved,
        }
    }
}

/// Reason why no neurons can be reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuotaExhaustion {
    /// The limit is used up for today.
    Used,
    /// The rest is reserved by requests in flight, which may release some of it.
    Held,
}

/// The counters as they are kept across a restart. Reservations are not: their requests ended
/// with the process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QuotaSnapshot {
    /// Days since 1970-01-01.
    pub day: u64,
    /// Millionths of a neuron, by account.
    pub used_micro: Vec<(AccountId, u64)>,
    /// The day before that was counted on; the clock may have been ahead since.
    #[serde(default)]
    pub former_day: u64,
    /// Millionths of a neuron used on the day before, by account.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub former_micro: Vec<(AccountId, u64)>,
}

impl QuotaSnapshot {
    /// Use of today, by account. Counts of a future day belong to today: the clock was ahead then.
    fn today(&self, now: UnixSecs) -> impl Iterator<Item = (&AccountId, u64)> {
        let days = [
            (self.day, &self.used_micro),
            (self.former_day, &self.former_micro),
        ];
        let days = days.into_iter().filter(move |(day, _)| *day >= now.day());
        let used = days.flat_map(|(_, used)| used);
        used.map(|(account, micro)| (account, *micro))
    }
}

impl Quota {
    /// Counters as they were when the snapshot was taken; empty when that was a day that is over.
    pub fn restore(snapshot: &QuotaSnapshot, now: UnixSecs) -> Quota {
        let mut quota = Quota {
            day: now.day(),
            ..Quota::default()
        };
        for (account, micro) in snapshot.today(now) {
            quota.add(account, micro);
        }
        quota
    }

    /// Adds the use that another, ended process has counted: the difference between `before` and its last
    /// snapshot, `after`.
    pub fn absorb(&mut self, before: &QuotaSnapshot, after: &QuotaSnapshot, now: UnixSecs) {
        self.advance_to(now);
        let mut known: HashMap<&AccountId, u64> = HashMap::new();
        for (account, micro) in before.today(now) {
            *known.entry(account).or_default() += micro;
        }
        for (account, micro) in after.today(now) {
            let counted = known.remove(account).unwrap_or(0);
            self.add(account, micro.saturating_sub(counted));
        }
        self.version += 1;
    }

    fn add(&mut self, account: &AccountId, micro: u64) {
        let counter = self.accounts.entry(account.clone()).or_default();
        counter.used = counter.used.saturating_add(micro);
    }

    /// State to keep across a restart, by account.
    pub fn snapshot(&self) -> QuotaSnapshot {
        let used = self.accounts.iter().filter(|(_, counter)| counter.used > 0);
        let mut used_micro: Vec<(AccountId, u64)> = used
            .map(|(account, counter)| (account.clone(), counter.used))
            .collect();
        used_micro.sort();
        QuotaSnapshot {
            day: self.day,
            used_micro,
            former_day: self.former_day.day,
            former_micro: self.former_day.used.clone(),
        }
    }

    /// Number of changes to [`Quota::snapshot`], so that the shell writes only changed states.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Returns whether the account has used `limit` neurons today, or owes them; reservations do not count.
    pub fn is_spent(&mut self, account: &AccountId, limit: u64, now: UnixSecs) -> bool {
        self.advance_to(now);
        let counter = self.accounts.get(account).copied().unwrap_or_default();
        counter.spent() >= u128::from(limit.saturating_mul(MICRO as u64))
    }

    /// Puts `amount` neurons aside, unless the day's use and all reservations have reached `limit`.
    ///
    /// # Errors
    /// The limit is reached; the [`QuotaExhaustion`] names by which of the two.
    pub fn reserve(
        &mut self,
        account: &AccountId,
        amount: f64,
        limit: u64,
        now: UnixSecs,
    ) -> Result<QuotaReservation, QuotaExhaustion> {
        self.advance_to(now);
        let counter = self.accounts.entry(account.clone()).or_default();
        let limit = u128::from(limit.saturating_mul(MICRO as u64));
        let spent = counter.spent();
        if spent >= limit {
            return Err(QuotaExhaustion::Used);
        }
        if spent + u128::from(counter.reserved) >= limit {
            return Err(QuotaExhaustion::Held);
        }
        let micro = to_micro(amount);
        counter.reserved = counter.reserved.saturating_add(micro);
        Ok(QuotaReservation {
            account: account.clone(),
            day: short(self.day),
            micro,
            is_owed: false,
        })
    }

    /// Replaces the amount of `reservation` by `amount`, in one step. An admitted request stays admitted
    /// and is never refused here.
    pub fn exchange(
        &mut self,
        reservation: QuotaReservation,
        amount: f64,
        now: UnixSecs,
    ) -> QuotaReservation {
        let account = reservation.account.clone();
        self.release(reservation, now);
        let micro = to_micro(amount);
        let counter = self.accounts.entry(account.clone()).or_default();
        counter.reserved = counter.reserved.saturating_add(micro);
        QuotaReservation {
            account,
            day: short(self.day),
            micro,
            is_owed: false,
        }
    }

    /// The request is over and costs `actual` neurons once its end is stored. They count against the limit from now on,
    /// to the day on which it was admitted; a release gives them back.
    pub fn owe(
        &mut self,
        reservation: QuotaReservation,
        actual: f64,
        now: UnixSecs,
    ) -> QuotaReservation {
        self.advance_to(now);
        if reservation.day < short(self.day) {
            return reservation;
        }
        let QuotaReservation { account, day, .. } = reservation;
        let counter = self.accounts.entry(account.clone()).or_default();
        let pending = counter.pending(reservation.is_owed);
        *pending = pending.saturating_sub(reservation.micro);
        let micro = to_micro(actual);
        counter.owed = counter.owed.saturating_add(micro);
        QuotaReservation {
            account,
            day,
            micro,
            is_owed: true,
        }
    }

    /// Counts the `actual` cost of the request, in neurons, to the day on which it was admitted; not at
    /// all when that day is over.
    pub fn settle(&mut self, reservation: QuotaReservation, actual: f64, now: UnixSecs) {
        self.advance_to(now);
        // One of a day that is still to come was made by a clock that was ahead.
        if reservation.day < short(self.day) {
            return;
        }
        let counter = self.accounts.entry(reservation.account).or_default();
        let pending = counter.pending(reservation.is_owed);
        *pending = pending.saturating_sub(reservation.micro);
        let micro = to_micro(actual);
        counter.used = counter.used.saturating_add(micro);
        self.version += u64::from(micro > 0);
    }

    /// Releases the reservation of a request without cost.
    pub fn release(&mut self, reservation: QuotaReservation, now: UnixSecs) {
        self.settle(reservation, 0.0, now);
    }

    /// Records the use of an account at another node, in millionths of a neuron. `day` is today or, where
    /// the node's clock is ahead, tomorrow. Within one process of a node the sum of a day only grows, so a
    /// smaller one is ignored. After a restart of the node the new sum replaces the old one, account by
    /// account. Reports of another day or beyond [`PEER_USAGES_MAX`] are dropped.
    pub fn record_peer_usage(
        &mut self,
        node: &Arc<str>,
        generation: u64,
        account: &AccountId,
        day: u64,
        micro: u64,
        now: UnixSecs,
    ) {
        self.advance_to(now);
        // A node without use since yesterday still reports yesterday's sum; this is no error.
        if day < self.day {
            return;
        }
        let known = self.peer_usage.get_mut(node);
        let is_known = known.is_some_and(|known| known.contains_key(account));
        let is_one_too_many = !is_known && self.peer_usage_count >= PEER_USAGES_MAX;
        if is_one_too_many || day > self.day + 1 {
            self.dropped_reports += 1;
            return;
        }
        self.peer_usage_count += usize::from(!is_known);
        let known = self.peer_usage.entry(Arc::clone(node)).or_default();
        let usage = known.entry(account.clone()).or_default();
        let before = usage.today;
        if usage.generation != generation {
            *usage = PeerUsage {
                generation,
                ..PeerUsage::default()
            };
        }
        let sum = match day == self.day {
            true => &mut usage.today,
            false => &mut usage.tomorrow,
        };
        *sum = micro.max(*sum);
        if usage.today != before {
            let counter = self.accounts.entry(account.clone()).or_default();
            counter.used_elsewhere =
                counter.used_elsewhere - u128::from(before) + u128::from(usage.today);
        }
    }

    /// Returns whether this use at another node, in millionths, is plausible for an account with this limit.
    pub fn is_plausible(micro: u64, limit: u64) -> bool {
        let most = u128::from(limit) * MICRO as u128 * u128::from(PEER_USAGE_LIMITS_MAX);
        u128::from(micro) <= most
    }

    /// Forgets the reports of a node; returns whether there were any.
    pub fn forget(&mut self, node: &str) -> bool {
        let Some(usages) = self.peer_usage.remove(node) else {
            return false;
        };
        self.peer_usage_count -= usages.len();
        for (account, reported) in usages {
            if let Some(counter) = self.accounts.get_mut(&account) {
                counter.used_elsewhere = counter
                    .used_elsewhere
                    .saturating_sub(u128::from(reported.today));
            }
        }
        true
    }

    /// Number of reported sums that were dropped since the start.
    pub fn dropped_reports(&self) -> u64 {
        self.dropped_reports
    }

    /// Neurons the account has used today at other nodes, as far as reported.
    pub fn used_elsewhere(&self, account: &AccountId, now: UnixSecs) -> f64 {
        self.counter(account, now).used_elsewhere as f64 / MICRO
    }

    /// Neurons the account has used today at this node, reservations not counted.
    pub fn used(&self, account: &AccountId, now: UnixSecs) -> f64 {
        self.counter(account, now).used as f64 / MICRO
    }

    /// Neurons put aside for the account's requests in flight.
    #[cfg(test)]
    pub fn reserved(&self, account: &AccountId, now: UnixSecs) -> f64 {
        self.counter(account, now).reserved as f64 / MICRO
    }

    fn counter(&self, account: &AccountId, now: UnixSecs) -> AccountCounter {
        if now.day() > self.day {
            return AccountCounter::default();
        }
        self.accounts.get(account).copied().unwrap_or_default()
    }

    /// Moves to the day of `now`; a new day begins with nothing used. A clock set back a little does not
    /// bring back the old day. A clock that was ahead does, with the use counted meanwhile.
    fn advance_to(&mut self, now: UnixSecs) {
        if now.day() > self.day {
            let is_next = now.day() == self.day + 1;
            self.former_day = FormerDay {
                day: self.day,
                used: self.snapshot().used_micro,
            };
            self.day = now.day();
            self.accounts.clear();
            self.version += 1;
            self.begin_day(is_next);
        } else if now.day() < self.day
            && now.day() == self.former_day.day
            && now.0 + CLOCK_CORRECTION_MAX < self.day * SECS_PER_DAY
        {
            self.day = now.day();
            self.version += 1;
            for (account, micro) in std::mem::take(&mut self.former_day).used {
                self.add(&account, micro);
            }
        }
    }

    /// Counts reports of this day that came early, from clocks that are ahead; none where days were skipped.
    fn begin_day(&mut self, is_next: bool) {
        let accounts = &mut self.accounts;
        self.peer_usage.retain(|_, usages| {
            usages.retain(|account, reported| {
                reported.today = std::mem::take(&mut reported.tomorrow);
                let stays = is_next && reported.today > 0;
                if stays {
                    let counter = accounts.entry(account.clone()).or_default();
                    counter.used_elsewhere += u128::from(reported.today);
                }
                stays
            });
            !usages.is_empty()
        });
        self.peer_usage_count = self.peer_usage.values().map(HashMap::len).sum();
    }
}

/// Rounds to the nearest millionth. A value that is not a number counts as 0.
fn to_micro(neurons: f64) -> u64 {
    if neurons.is_nan() {
        return 0;
    }
    (neurons.clamp(0.0, CHARGE_MAX_NEURONS) * MICRO).round() as u64
}

/// Expected cost of a request in neurons, for its reservation. Prompt tokens are estimated
/// ([`Call::prompt_tokens`](crate::api::Call::prompt_tokens)); output tokens are the requested ones, or 256
/// without a limit, for each of the generated `outputs`.
pub fn reserve_estimate(
    tariff: &Tariff,
    prompt_tokens: u64,
    max_tokens: Option<u64>,
    outputs: u32,
) -> f64 {
    let output_tokens = max_tokens.unwrap_or(OUTPUT_TOKENS_ASSUMED);
    let output_tokens = output_tokens.saturating_mul(outputs.into());
    let cost = |metric: &str, quantity: u64| {
        tariff.coefficients.get(metric).copied().unwrap_or(0.0) * quantity as f64
    };
    let cost = tariff.cost_per_infer
        + cost("input_tokens", prompt_tokens)
        + cost("uncached_input_tokens", prompt_tokens)
        + cost("output_tokens", output_tokens);
    if cost.is_nan() {
        return 0.0;
    }
    cost.clamp(0.0, CHARGE_MAX_NEURONS)
}
