//! Circuit breaker of a revision: a revision that fails too often is not called for a while.
//!
//! Knows nothing of the fallback. Pure: `now` is an argument. Too often is [`FAILURES_MAX`] failures in ten
//! seconds or one call in [`RATE_ONE_IN`] over a minute. A single account cannot take a plugin from the
//! others: failures of two accounts are required, or one account must have been alone for a minute. In that
//! case none of its calls succeeded for ten seconds, or since its first use where none ever did. The fifth
//! failure of one account asks for the fixtures, which decide by themselves. Open, it lets one call through
//! after [`PROBE_AFTER`], whose end alone decides.

use infergate_core::Millis;
use serde::Serialize;

/// Failures in [`WINDOW`] that open it, and failures of one account that ask for the fixtures.
pub const FAILURES_MAX: u32 = 5;
/// Window in which failures count; the rate covers [`LONG`] of them.
const WINDOW: Millis = Millis::from_secs(10);
/// Windows the rate looks at.
const LONG: usize = 6;
/// All of them together: how long an account counts as a user.
const MINUTE: Millis = Millis::from_secs(60);
/// The breaker opens when one call in this many fails, …
pub const RATE_ONE_IN: u64 = 100;
/// … from this many calls and failures on: one bad call in the first few is no rate.
pub const RATE_CALLS_MIN: u64 = 100;
#[allow(missing_docs)]
pub const RATE_FAILURES_MIN: u32 = 3;
/// Time for which it stays open before a call may probe.
pub const PROBE_AFTER: Millis = Millis::from_secs(30);
/// A probe that never came back is not waited for longer than this.
const PROBE_LOST_AFTER: Millis = Millis::from_secs(10);
/// Hooks whose successes are counted apart.
const HOOKS: usize = 16;
/// Accounts whose failures are counted one by one; beyond, the one that failed longest ago is left out.
const ACCOUNTS_COUNTED: usize = 8;

/// State of the breaker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum BreakerState {
    /// Calls go through.
    #[default]
    Closed,
    /// None does.
    Open,
    /// A probe is running.
    HalfOpen,
}

/// Call, as the breaker knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallOrigin {
    /// Digest of the account; none where no account chose the input.
    pub account: Option<u64>,
    /// Number of the hook.
    pub hook: usize,
}

/// Permit for a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallPermit {
    /// An ordinary call.
    Call,
    /// The one that tries, by its number.
    Probe(u32),
}

/// Effect of the end of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BreakerEffect {
    /// The breaker opened over it.
    pub opened: bool,
    /// The fifth failure of its account: the fixtures should be run.
    pub check_due: bool,
}

/// The breaker of one revision.
#[derive(Clone, Debug, Default)]
pub struct Breaker {
    state: BreakerState,
    /// Since when it has its position.
    since: Millis,
    /// The probe that is awaited while it is half open.
    probe: u32,
    /// Calls and failures of the last windows, the newest at `newest % LONG`.
    calls: [u32; LONG],
    failures: [u32; LONG],
    newest: u64,
    /// Moments of the last failures, a ring.
    moments: [Millis; FAILURES_MAX as usize],
    seen: usize,
    using: LastTwo,
    /// Since when the account that called last has done so without another one in between.
    alone_since: Millis,
    failing: LastTwo,
    /// The last two successes of each hook.
    good: [[Option<Millis>; 2]; HOOKS],
    counted: [AccountFailures; ACCOUNTS_COUNTED],
    /// Closed by a probe, and no call has ended since.
    closed_by_probe: bool,
}

/// The two accounts that were last seen, with when.
#[derive(Clone, Copy, Debug, Default)]
struct LastTwo {
    latest: Option<(u64, Millis)>,
    other: Option<(u64, Millis)>,
}

#[derive(Clone, Copy, Debug, Default)]
struct AccountFailures {
    account: u64,
    failures: u32,
    latest: Millis,
}

impl LastTwo {
    fn note(&mut self, account: u64, now: Millis) {
        if self.latest.is_some_and(|(latest, _)| latest != account) {
            self.other = self.latest;
        }
        self.latest = Some((account, now));
    }

    /// Two accounts were seen within a span that ends now.
    fn are_two(&self, now: Millis, span: Millis) -> bool {
        self.other.is_some_and(|(_, at)| now.since(at) < span)
    }
}

impl Breaker {
    /// Permits a call now, which must end with [`Breaker::record_end`]; none while it is open.
    pub fn admit(&mut self, now: Millis) -> Option<CallPermit> {
        if !self.would_admit(now) {
            return None;
        }
        if self.state == BreakerState::Closed {
            return Some(CallPermit::Call);
        }
        self.set_state(BreakerState::HalfOpen, now);
        self.probe = self.probe.wrapping_add(1);
        Some(CallPermit::Probe(self.probe))
    }

    /// Result that [`Breaker::admit`] would return, without making this call the probe.
    pub fn would_admit(&self, now: Millis) -> bool {
        match self.state {
            BreakerState::Closed => true,
            BreakerState::Open => now.since(self.since) >= PROBE_AFTER,
            BreakerState::HalfOpen => now.since(self.since) >= PROBE_LOST_AFTER,
        }
    }

    /// A call ended.
    pub fn record_end(
        &mut self,
        pass: CallPermit,
        by: CallOrigin,
        good: bool,
        now: Millis,
    ) -> BreakerEffect {
        match self.state {
            BreakerState::Closed => self.count(by, good, now),
            // A call that began before it opened is no evidence about now.
            BreakerState::Open => BreakerEffect::default(),
            BreakerState::HalfOpen if pass != CallPermit::Probe(self.probe) => {
                BreakerEffect::default()
            }
            BreakerState::HalfOpen if good => {
                *self = Breaker {
                    since: now,
                    probe: self.probe,
                    closed_by_probe: true,
                    ..Breaker::default()
                };
                BreakerEffect::default()
            }
            BreakerState::HalfOpen => self.open(now),
        }
    }

    /// Turns a successful call into a failed one, because its answer was of no use.
    pub fn revoke_success(&mut self, by: CallOrigin, now: Millis) -> BreakerEffect {
        if self.state != BreakerState::Closed {
            return BreakerEffect::default();
        }
        if self.closed_by_probe {
            return self.open(now);
        }
        let good = &mut self.good[by.hook % HOOKS];
        *good = [good[1], good[1]];
        self.count(by, false, now)
    }

    /// Cancels an admitted call that was not made; a probe may be tried again.
    pub fn cancel(&mut self, pass: CallPermit, now: Millis) {
        if self.state == BreakerState::HalfOpen && pass == CallPermit::Probe(self.probe) {
            self.set_state(BreakerState::Open, now - PROBE_AFTER);
        }
    }

    /// Opens it, whatever the counts.
    pub fn open(&mut self, now: Millis) -> BreakerEffect {
        self.set_state(BreakerState::Open, now);
        BreakerEffect {
            opened: true,
            check_due: false,
        }
    }

    /// State of the breaker.
    pub fn state(&self) -> BreakerState {
        self.state
    }

    fn set_state(&mut self, position: BreakerState, now: Millis) {
        self.state = position;
        self.since = now;
    }

    fn count(&mut self, by: CallOrigin, good: bool, now: Millis) -> BreakerEffect {
        self.closed_by_probe = false;
        self.advance_windows(now);
        let at = (self.newest % LONG as u64) as usize;
        self.calls[at] = self.calls[at].saturating_add(1);
        if let Some(account) = by.account {
            if self
                .using
                .latest
                .is_none_or(|(latest, _)| latest != account)
            {
                self.alone_since = now;
            }
            self.using.note(account, now);
        }
        if good {
            let known = &mut self.good[by.hook % HOOKS];
            *known = [Some(now), known[0]];
            return BreakerEffect::default();
        }
        self.failures[at] = self.failures[at].saturating_add(1);
        self.moments[self.seen % self.moments.len()] = now;
        self.seen += 1;
        let check_due = by.account.is_some_and(|account| {
            self.failing.note(account, now);
            self.is_fifth_failure(account, now)
        });
        match self.exceeds_limits(by, now) {
            true => self.open(now),
            false => BreakerEffect {
                opened: false,
                check_due,
            },
        }
    }

    fn advance_windows(&mut self, now: Millis) {
        let window = now.0 / WINDOW.0;
        let passed = window.saturating_sub(self.newest).min(LONG as u64);
        for old in 1..=passed {
            let at = ((self.newest + old) % LONG as u64) as usize;
            self.calls[at] = 0;
            self.failures[at] = 0;
        }
        self.newest = self.newest.max(window);
    }

    /// Counts a failure of an account; true for each fifth within a minute of the one before.
    fn is_fifth_failure(&mut self, account: u64, now: Millis) -> bool {
        let known = self
            .counted
            .iter()
            .position(|one| one.account == account && one.failures > 0);
        let oldest = || {
            let all = self.counted.iter().enumerate();
            all.min_by_key(|(_, one)| one.latest.0)
                .map_or(0, |(at, _)| at)
        };
        let at = known.unwrap_or_else(oldest);
        let one = &mut self.counted[at];
        let is_recent = known.is_some() && now.since(one.latest) < MINUTE;
        let failures = if is_recent { one.failures + 1 } else { 1 };
        *one = AccountFailures {
            account,
            failures: failures % FAILURES_MAX,
            latest: now,
        };
        failures == FAILURES_MAX
    }

    fn exceeds_limits(&self, by: CallOrigin, now: Millis) -> bool {
        let ring = self.moments.len();
        // The slot that the next failure would take holds the oldest of the last five.
        let oldest = self.moments[self.seen % ring];
        let burst = self.seen >= ring && now.since(oldest) < WINDOW;
        let calls: u64 = self.calls.iter().map(|n| u64::from(*n)).sum();
        let failures: u32 = self.failures.iter().sum();
        let rate = calls >= RATE_CALLS_MIN
            && failures >= RATE_FAILURES_MIN
            && u64::from(failures) * RATE_ONE_IN >= calls;
        let is_alone = !self.using.are_two(now, MINUTE);
        let well_at = self.good[by.hook % HOOKS][0].unwrap_or(self.alone_since);
        let is_no_ones = by.account.is_none();
        let is_sole = is_alone && now.since(well_at) >= WINDOW;
        let by_two = |span| self.failing.are_two(now, span);
        (burst && (is_no_ones || is_sole || by_two(WINDOW)))
            || (rate && (is_no_ones || by_two(MINUTE)))
            // A lone account may call seldom.
            || (is_sole && self.seen >= ring && now.since(oldest) < MINUTE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn by(account: u64) -> CallOrigin {
        CallOrigin {
            account: Some(account),
            hook: 0,
        }
    }

    /// A failed call of an account; whether the breaker opened.
    fn fail(breaker: &mut Breaker, account: u64, at: u64) -> bool {
        let pass = breaker.admit(Millis(at)).unwrap();
        breaker
            .record_end(pass, by(account), false, Millis(at))
            .opened
    }

    fn succeed(breaker: &mut Breaker, account: u64, at: u64) {
        let pass = breaker.admit(Millis(at)).unwrap();
        breaker.record_end(pass, by(account), true, Millis(at));
    }

    fn opened() -> Breaker {
        let mut breaker = Breaker::default();
        for n in 0..100 {
            succeed(&mut breaker, n, 0);
        }
        for at in 0..u64::from(FAILURES_MAX) {
            if breaker.state() == BreakerState::Closed {
                fail(&mut breaker, at, at);
            }
        }
        assert_eq!(breaker.state(), BreakerState::Open);
        breaker
    }

    #[test]
    fn five_failures_of_two_accounts_in_ten_seconds_open_it_among_however_many_calls() {
        let mut breaker = Breaker::default();
        for n in 0..100_000 {
            succeed(&mut breaker, n % 7, 0);
        }
        assert!(!(0..4).any(|n| fail(&mut breaker, n % 2, n * 2_000)));
        assert!(fail(&mut breaker, 1, 9_999));
        assert_eq!(breaker.admit(Millis(10_000)), None);
    }

    #[test]
    fn one_account_cannot_open_it_for_the_others() {
        let mut breaker = Breaker::default();
        for second in 0..600 {
            succeed(&mut breaker, 1, second * 1000);
            for n in 0..4 {
                assert!(!fail(&mut breaker, 2, second * 1000 + n), "second {second}");
            }
        }
        // Nor where the others were here less than a minute ago, without a call that went well.
        let mut breaker = Breaker::default();
        succeed(&mut breaker, 1, 0);
        assert!(!(0..20).any(|n| fail(&mut breaker, 2, 20_000 + n)));
    }

    #[test]
    fn an_account_that_is_alone_opens_it_once_nothing_has_gone_well_for_ten_seconds() {
        let mut breaker = Breaker::default();
        succeed(&mut breaker, 1, 0);
        assert!(!(1..8).any(|n| fail(&mut breaker, 1, n * 1000)));
        assert!(fail(&mut breaker, 1, 10_000));
        // One that calls seldom, too.
        let mut breaker = Breaker::default();
        let opened: Vec<bool> = (0..5).map(|n| fail(&mut breaker, 1, n * 12_000)).collect();
        assert_eq!(opened, [false, false, false, false, true]);
    }

    #[test]
    fn a_lone_account_that_never_had_a_good_call_opens_it_ten_seconds_after_its_first() {
        let mut breaker = Breaker::default();
        assert!(!(0..100).any(|n| fail(&mut breaker, 1, n * 99)));
        assert!(fail(&mut breaker, 1, 10_000));
        // Nor is the time counted from what another account did long ago.
        let mut breaker = Breaker::default();
        fail(&mut breaker, 1, 0);
        assert!(!(0..100).any(|n| fail(&mut breaker, 2, 90_000 + n * 99)));
        assert!(fail(&mut breaker, 2, 100_000));
    }

    #[test]
    fn successes_of_one_hook_do_not_hide_that_another_always_fails() {
        let mut breaker = Breaker::default();
        let mut opened = false;
        for at in 0..5 {
            let now = Millis(at * 2_500);
            let prepare = CallOrigin { hook: 2, ..by(1) };
            breaker.record_end(CallPermit::Call, prepare, true, now);
            let finish = CallOrigin { hook: 3, ..by(1) };
            opened = breaker
                .record_end(CallPermit::Call, finish, false, now)
                .opened;
        }
        assert!(opened);
    }

    #[test]
    fn the_fifth_failure_of_one_account_asks_for_the_fixtures_and_they_decide() {
        let mut breaker = Breaker::default();
        succeed(&mut breaker, 1, 0);
        let mut due = Vec::new();
        for n in 0..10 {
            succeed(&mut breaker, 1, n);
            let ended = breaker.record_end(CallPermit::Call, by(2), false, Millis(n));
            assert!(!ended.opened);
            due.push(ended.check_due);
        }
        let at: Vec<usize> = (0..10).filter(|n| due[*n]).collect();
        assert_eq!(at, [4, 9]);
        assert!(breaker.open(Millis(11)).opened);
        assert_eq!(breaker.admit(Millis(12)), None);
    }

    #[test]
    fn failures_that_no_account_chose_open_it_by_themselves() {
        let mut breaker = Breaker::default();
        succeed(&mut breaker, 1, 0);
        let no_account = CallOrigin {
            account: None,
            hook: 8,
        };
        let opened = (0..5).any(|n| {
            breaker
                .record_end(CallPermit::Call, no_account, false, Millis(n))
                .opened
        });
        assert!(opened);
    }

    #[test]
    fn failures_far_apart_among_many_calls_do_not_open_it() {
        let mut breaker = Breaker::default();
        for second in 0..600 {
            for n in 0..200 {
                succeed(&mut breaker, n % 3, second * 1000);
            }
            if second % 3 == 0 {
                assert!(
                    !fail(&mut breaker, second % 5, second * 1000),
                    "second {second}"
                );
            }
        }
    }

    #[test]
    fn one_call_in_a_hundred_of_two_accounts_opens_it_from_the_third_failure_on() {
        let mut breaker = Breaker::default();
        let mut opened_at = None;
        for n in 0..2_000_u64 {
            let by = by(n / 100 % 2);
            if breaker
                .record_end(CallPermit::Call, by, n % 100 != 50, Millis(n * 25))
                .opened
            {
                opened_at = Some(n);
                break;
            }
        }
        assert_eq!(opened_at, Some(250));
    }

    #[test]
    fn it_lets_one_call_through_after_thirty_seconds_and_believes_it() {
        let mut breaker = opened();
        assert_eq!(breaker.admit(Millis(29_000)), None);
        assert!(!breaker.would_admit(Millis(29_000)));
        assert!(breaker.would_admit(Millis(30_005)));
        assert!(breaker.would_admit(Millis(30_005)), "nothing was begun");
        let probe = breaker.admit(Millis(30_005)).unwrap();
        assert_eq!(breaker.admit(Millis(30_006)), None, "one probe at a time");
        breaker.record_end(probe, by(1), true, Millis(30_007));
        assert_eq!(breaker.state(), BreakerState::Closed);

        let mut breaker = opened();
        let probe = breaker.admit(Millis(30_005)).unwrap();
        assert!(
            breaker
                .record_end(probe, by(1), false, Millis(30_007))
                .opened
        );
        assert_eq!(breaker.admit(Millis(60_006)), None);
        assert!(breaker.admit(Millis(60_007)).is_some());
    }

    #[test]
    fn only_its_own_probe_closes_it() {
        let mut breaker = opened();
        let lost = breaker.admit(Millis(31_000)).unwrap();
        let probe = breaker.admit(Millis(41_000)).unwrap();
        for late in [CallPermit::Call, lost] {
            breaker.record_end(late, by(1), true, Millis(41_001));
            breaker.record_end(late, by(1), false, Millis(41_001));
            assert_eq!(breaker.state(), BreakerState::HalfOpen);
        }
        breaker.record_end(probe, by(1), true, Millis(41_002));
        assert_eq!(breaker.state(), BreakerState::Closed);
    }

    #[test]
    fn a_probe_whose_answer_was_of_no_use_opens_it_again() {
        let mut breaker = opened();
        let probe = breaker.admit(Millis(31_000)).unwrap();
        breaker.record_end(probe, by(1), true, Millis(31_001));
        assert!(breaker.revoke_success(by(1), Millis(31_001)).opened);
    }

    #[test]
    fn answers_of_no_use_count_as_failures_and_not_as_successes() {
        let mut breaker = Breaker::default();
        let mut opened = 0;
        for n in 0..5 {
            let now = Millis(n * 2_500);
            breaker.record_end(CallPermit::Call, by(1), true, now);
            opened += u32::from(breaker.revoke_success(by(1), now).opened);
        }
        assert_eq!(opened, 1);
    }

    #[test]
    fn a_probe_that_never_came_back_does_not_keep_it_shut() {
        let mut breaker = opened();
        assert!(breaker.admit(Millis(31_000)).is_some());
        assert!(breaker.admit(Millis(40_000)).is_none());
        assert!(breaker.admit(Millis(41_000)).is_some());
    }

    #[test]
    fn a_probe_that_was_not_made_may_be_made_again_at_once() {
        let mut breaker = opened();
        let probe = breaker.admit(Millis(31_000)).unwrap();
        breaker.cancel(probe, Millis(31_000));
        assert!(breaker.admit(Millis(31_001)).is_some());
    }

    #[test]
    fn calls_from_before_it_opened_change_nothing() {
        let mut breaker = opened();
        breaker.record_end(CallPermit::Call, by(1), true, Millis(10));
        breaker.record_end(CallPermit::Call, by(2), false, Millis(11));
        assert_eq!(breaker.state(), BreakerState::Open);
        assert!(breaker.admit(Millis(30_005)).is_some());
    }
}
