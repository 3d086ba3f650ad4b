//! Neurons of the day: what each account has used and what its requests in flight may use.
//!
//! It has no clock: `now` is the time of day in UTC, told by the shell. A request is refused only
//! when what is used and what is reserved have reached the limit; so the last one admitted may
//! overshoot, by at most its own cost, and a limit is never left half used because a large request
//! did not fit. What the account has used at other nodes counts as far as they have told; each node
//! keeps only its own. Inside, neurons are whole millionths: sums are exact and a
//! reservation given back leaves nothing behind.

use std::sync::Arc;

use hashbrown::HashMap;
use serde::{Deserialize, Serialize};

use crate::AccountId;
use crate::model::Tariff;

use super::charge::CHARGE_MAX_NEURONS;

const SECS_PER_DAY: u64 = 86_400;
const MICRO: f64 = 1e6;

/// Output tokens reserved for when the request does not say: Workers AI's own default.
const OUTPUT_TOKENS_ASSUMED: u64 = 256;

/// Seconds since 1970-01-01 00:00 UTC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct UnixSecs(pub u64);

impl UnixSecs {
    /// Days since 1970-01-01; a new one begins at 00:00 UTC.
    pub const fn day(self) -> u64 {
        self.0 / SECS_PER_DAY
    }

    /// Seconds until the next 00:00 UTC, 1 to 86,400.
    pub const fn until_tomorrow(self) -> u64 {
        SECS_PER_DAY - self.0 % SECS_PER_DAY
    }
}

/// Sums of other nodes that are remembered, over all nodes and accounts: 50 nodes with 4,096 accounts
/// each are a fifth less. What is told beyond it does not count.
pub const TOLD_MAX: usize = 262_144;

/// A sum beyond so many times an account's limit is a mistake, or a lie to lock the account out until
/// midnight: requests in flight overshoot a limit by their own cost only.
const TOLD_LIMITS_MAX: u64 = 10;

/// The counters of all accounts that have a limit: their number bounds it, and [`TOLD_MAX`] what
/// others tell.
#[derive(Clone, Debug, Default)]
pub struct Quota {
    day: u64,
    accounts: HashMap<AccountId, Counter>,
    version: u64,
    /// By node and account. A node that is gone has used what it has used.
    told: HashMap<Arc<str>, HashMap<AccountId, Told>>,
    told_count: usize,
    left_out: u64,
    former: Former,
}

/// What was used on the day before, in case that it is still that day: a clock may be ahead, and be
/// right again.
#[derive(Clone, Debug, Default)]
struct Former {
    day: u64,
    used: Vec<(AccountId, u64)>,
}

/// A clock that is back before a day by more than this was ahead when it began that day; less is how
/// clocks are kept right about midnight. Seconds.
const CLOCK_CORRECTION_MAX: u64 = 3_600;

/// What a node has told of an account.
#[derive(Clone, Copy, Debug, Default)]
struct Told {
    /// Of the node's process that told it.
    generation: u64,
    today: u64,
    /// By a clock that is ahead.
    tomorrow: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counter {
    used: u64,
    reserved: u64,
    /// The sum of what other nodes have told of this day. Wide, so that it stays exact whatever they
    /// tell: what is told wrong can be taken back.
    elsewhere: u128,
}

/// Neurons put aside for a request. Consumed by [`Quota::settle`] or [`Quota::give_back`]; it is
/// not a copy, so neither can happen twice.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a reservation that is neither settled nor given back lasts until midnight"]
pub struct Reservation {
    account: AccountId,
    day: u64,
    micro: u64,
}

/// Why nothing can be put aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exhausted {
    /// The limit is used up: nothing more today.
    Used,
    /// The rest is held by requests under way, which may leave some of it.
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
    /// What was used on it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub former_micro: Vec<(AccountId, u64)>,
}

impl QuotaSnapshot {
    /// What was used today, by account, as far as can be told: what was counted on a day that is still
    /// to come was counted by a clock that was ahead.
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

    /// What another process has counted since `before` was kept counts here as well: it has ended, and
    /// `after` is what it kept last.
    pub fn absorb(&mut self, before: &QuotaSnapshot, after: &QuotaSnapshot, now: UnixSecs) {
        self.turn_to(now);
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

    /// What is to be kept, by account.
    pub fn snapshot(&self) -> QuotaSnapshot {
        let used = self.accounts.iter().filter(|(_, counter)| counter.used > 0);
        let mut used_micro: Vec<(AccountId, u64)> = used
            .map(|(account, counter)| (account.clone(), counter.used))
            .collect();
        used_micro.sort();
        QuotaSnapshot {
            day: self.day,
            used_micro,
            former_day: self.former.day,
            former_micro: self.former.used.clone(),
        }
    }

    /// Counts changes of what [`Quota::snapshot`] holds, so that the shell writes only news.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Returns whether the account has used `limit` neurons today; reservations do not count.
    pub fn is_spent(&mut self, account: &AccountId, limit: u64, now: UnixSecs) -> bool {
        self.turn_to(now);
        let counter = self.accounts.get(account).copied().unwrap_or_default();
        let used = u128::from(counter.used) + counter.elsewhere;
        used >= u128::from(limit.saturating_mul(MICRO as u64))
    }

    /// Puts `amount` neurons aside, unless the day's use and all reservations have reached `limit`.
    ///
    /// # Errors
    /// Which of the two has.
    pub fn reserve(
        &mut self,
        account: &AccountId,
        amount: f64,
        limit: u64,
        now: UnixSecs,
    ) -> Result<Reservation, Exhausted> {
        self.turn_to(now);
        let counter = self.accounts.entry(account.clone()).or_default();
        let limit = u128::from(limit.saturating_mul(MICRO as u64));
        let used = u128::from(counter.used) + counter.elsewhere;
        if used >= limit {
            return Err(Exhausted::Used);
        }
        if used + u128::from(counter.reserved) >= limit {
            return Err(Exhausted::Held);
        }
        let micro = to_micro(amount);
        counter.reserved = counter.reserved.saturating_add(micro);
        Ok(Reservation {
            account: account.clone(),
            day: self.day,
            micro,
        })
    }

    /// Puts `amount` aside in place of what `reservation` holds. Who was admitted stays admitted: it
    /// is not refused, and nobody comes in between.
    pub fn exchange(
        &mut self,
        reservation: Reservation,
        amount: f64,
        now: UnixSecs,
    ) -> Reservation {
        let account = reservation.account.clone();
        self.give_back(reservation, now);
        let micro = to_micro(amount);
        let counter = self.accounts.entry(account.clone()).or_default();
        counter.reserved = counter.reserved.saturating_add(micro);
        Reservation {
            account,
            day: self.day,
            micro,
        }
    }

    /// The request cost `actual` neurons. Counted to the day on which it was admitted: when that is
    /// over, nowhere.
    pub fn settle(&mut self, reservation: Reservation, actual: f64, now: UnixSecs) {
        self.turn_to(now);
        // One of a day that is still to come was made by a clock that was ahead.
        if reservation.day < self.day {
            return;
        }
        let counter = self.accounts.entry(reservation.account).or_default();
        counter.reserved = counter.reserved.saturating_sub(reservation.micro);
        let micro = to_micro(actual);
        counter.used = counter.used.saturating_add(micro);
        self.version += u64::from(micro > 0);
    }

    /// The request cost nothing.
    pub fn give_back(&mut self, reservation: Reservation, now: UnixSecs) {
        self.settle(reservation, 0.0, now);
    }

    /// Another node tells how many millionths of a neuron the account has used there on `day`, today
    /// or, where its clock is ahead, tomorrow. Of one process of a node a sum of a day only grows: less
    /// than before tells nothing. One that was started again is believed afresh, account by account.
    /// What is of another day or beyond [`TOLD_MAX`] is left out.
    pub fn heard(
        &mut self,
        node: &Arc<str>,
        generation: u64,
        account: &AccountId,
        day: u64,
        micro: u64,
        now: UnixSecs,
    ) {
        self.turn_to(now);
        // A node that has used nothing since yesterday tells yesterday's sum: nothing wrong with it.
        if day < self.day {
            return;
        }
        let known = self.told.get_mut(node);
        let is_known = known.is_some_and(|known| known.contains_key(account));
        let is_one_too_many = !is_known && self.told_count >= TOLD_MAX;
        if is_one_too_many || day > self.day + 1 {
            self.left_out += 1;
            return;
        }
        self.told_count += usize::from(!is_known);
        let known = self.told.entry(Arc::clone(node)).or_default();
        let told = known.entry(account.clone()).or_default();
        let before = told.today;
        if told.generation != generation {
            *told = Told {
                generation,
                ..Told::default()
            };
        }
        let sum = match day == self.day {
            true => &mut told.today,
            false => &mut told.tomorrow,
        };
        *sum = micro.max(*sum);
        if told.today != before {
            let counter = self.accounts.entry(account.clone()).or_default();
            counter.elsewhere = counter.elsewhere - u128::from(before) + u128::from(told.today);
        }
    }

    /// Whether another node may have used so many millionths of a neuron of an account with this limit.
    pub fn is_within_reason(micro: u64, limit: u64) -> bool {
        let most = u128::from(limit) * MICRO as u128 * u128::from(TOLD_LIMITS_MAX);
        u128::from(micro) <= most
    }

    /// What a node has told is forgotten, until it tells something else. Whether it had told anything.
    pub fn forget(&mut self, node: &str) -> bool {
        let Some(told) = self.told.remove(node) else {
            return false;
        };
        self.told_count -= told.len();
        for (account, told) in told {
            if let Some(counter) = self.accounts.get_mut(&account) {
                counter.elsewhere = counter.elsewhere.saturating_sub(u128::from(told.today));
            }
        }
        true
    }

    /// Sums that were told and left out since the start.
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Neurons the account has used today at other nodes, as far as they have told.
    pub fn elsewhere(&self, account: &AccountId, now: UnixSecs) -> f64 {
        self.counter(account, now).elsewhere as f64 / MICRO
    }

    /// Neurons the account has used today at this node, reservations not counted.
    pub fn used(&self, account: &AccountId, now: UnixSecs) -> f64 {
        self.counter(account, now).used as f64 / MICRO
    }

    /// Neurons put aside for the account's requests in flight.
    pub fn reserved(&self, account: &AccountId, now: UnixSecs) -> f64 {
        self.counter(account, now).reserved as f64 / MICRO
    }

    fn counter(&self, account: &AccountId, now: UnixSecs) -> Counter {
        if now.day() > self.day {
            return Counter::default();
        }
        self.accounts.get(account).copied().unwrap_or_default()
    }

    /// A new day begins with nothing used. A clock that is set back a little does not bring back the old
    /// one; one that was ahead does, with what was counted meanwhile.
    fn turn_to(&mut self, now: UnixSecs) {
        if now.day() > self.day {
            let is_next = now.day() == self.day + 1;
            self.former = Former {
                day: self.day,
                used: self.snapshot().used_micro,
            };
            self.day = now.day();
            self.accounts.clear();
            self.version += 1;
            self.begin_day(is_next);
        } else if now.day() < self.day
            && now.day() == self.former.day
            && now.0 + CLOCK_CORRECTION_MAX < self.day * SECS_PER_DAY
        {
            self.day = now.day();
            self.version += 1;
            for (account, micro) in std::mem::take(&mut self.former).used {
                self.add(&account, micro);
            }
        }
    }

    /// What was told of this day already, by clocks that are ahead, counts from now on; nothing of it
    /// where days were slept through.
    fn begin_day(&mut self, is_next: bool) {
        let accounts = &mut self.accounts;
        self.told.retain(|_, told| {
            told.retain(|account, told| {
                told.today = std::mem::take(&mut told.tomorrow);
                let stays = is_next && told.today > 0;
                if stays {
                    let counter = accounts.entry(account.clone()).or_default();
                    counter.elsewhere += u128::from(told.today);
                }
                stays
            });
            !told.is_empty()
        });
        self.told_count = self.told.values().map(HashMap::len).sum();
    }
}

/// To the nearest millionth. What is no amount counts as nothing.
fn to_micro(neurons: f64) -> u64 {
    if neurons.is_nan() {
        return 0;
    }
    (neurons.clamp(0.0, CHARGE_MAX_NEURONS) * MICRO).round() as u64
}

/// What a request may come to, in neurons, before it is known: its prompt, about
/// ([`Call::prompt_tokens`](crate::api::Call::prompt_tokens)), and as many output tokens as it asks
/// for, 256 when it does not say, in each of the `outputs` that are generated.
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
