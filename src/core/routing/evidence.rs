//! Evidence of failures by account, so that one account with a bad input cannot take a server or
//! plugin from the others.
//!
//! Counts and compares; decides nothing. Failures are corroborated when two accounts had them.
//! Failures of one account alone are corroborated when no other account used the subject in the
//! last minute, and its latest success (or first use) is older than ten seconds. O(1) a request, of
//! constant size. Callers: the ejector of a model's endpoints, the breaker of a plugin.

use std::hash::{DefaultHasher, Hash, Hasher};

use crate::{AccountId, Millis};

/// Failures in a row that are enough: a crashed server has them at once, a flaky one hardly ever.
pub const FAILURES_IN_A_ROW_MAX: u32 = 5;

/// An account is alone when no other one used the subject for so long.
const SOLE_USER_AFTER: Millis = Millis::from_secs(60);

/// A success more recent than this outweighs the failures of a lone account.
const SUCCESS_HOLDS_FOR: Millis = Millis::from_secs(10);

/// An account, distinguished from others without keeping its name: 64 bits of a hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccountKey(u64);

impl From<&AccountId> for AccountKey {
    fn from(account: &AccountId) -> AccountKey {
        let mut hasher = DefaultHasher::new();
        account.as_str().hash(&mut hasher);
        AccountKey(hasher.finish())
    }
}

/// The two accounts seen last, each with its latest time.
#[derive(Clone, Copy, Debug, Default)]
struct LastTwo {
    latest: Option<(AccountKey, Millis)>,
    other: Option<(AccountKey, Millis)>,
}

impl LastTwo {
    fn add(&mut self, account: AccountKey, now: Millis) {
        match &mut self.latest {
            Some((known, at)) if *known == account => *at = now,
            latest => self.other = latest.replace((account, now)),
        }
    }

    /// Returns whether two accounts were seen after `since`.
    fn has_two_after(&self, since: Option<Millis>) -> bool {
        let after = |at: Millis| since.is_none_or(|since| at > since);
        self.other.is_some_and(|(_, at)| after(at))
    }
}

/// Evidence from requests about one server or plugin, by account.
#[derive(Clone, Debug, Default)]
pub struct Evidence {
    users: LastTwo,
    /// First use. Without a success since, failures of two accounts are corroborated already, so that
    /// this matters to the only account there ever was.
    first_use: Option<Millis>,
    failed: LastTwo,
    in_a_row: u32,
    /// Failures in a row of the account that failed last.
    of_one_in_a_row: u32,
    last_success: Option<Millis>,
}

impl Evidence {
    /// Records a valid response to a request of `account`.
    pub fn record_success(&mut self, account: AccountKey, now: Millis) {
        self.record_use(account, now);
        self.last_success = Some(now);
        self.in_a_row = 0;
        self.of_one_in_a_row = 0;
    }

    /// Records a failure that the input of `account` may have caused.
    pub fn record_failure(&mut self, account: AccountKey, now: Millis) {
        self.record_use(account, now);
        let same = self.failed.latest.is_some_and(|(last, _)| last == account);
        self.of_one_in_a_row = match same {
            true => self.of_one_in_a_row.saturating_add(1),
            false => 1,
        };
        self.failed.add(account, now);
        self.in_a_row = self.in_a_row.saturating_add(1);
    }

    /// Failures since the last success.
    pub fn in_a_row(&self) -> u32 {
        self.in_a_row
    }

    /// The account whose request failed last.
    pub fn last_failed_account(&self) -> Option<AccountKey> {
        self.failed.latest.map(|(account, _)| account)
    }

    /// Returns whether the failures since the last success are corroborated.
    pub fn is_corroborated(&self, now: Millis) -> bool {
        self.failed.has_two_after(self.last_success) || self.is_lone_and_stale(now)
    }

    /// Returns whether two accounts failed in the last `span`, with successes between or not.
    pub fn is_corroborated_within(&self, span: Millis, now: Millis) -> bool {
        let since = now.0.checked_sub(span.0).map(Millis);
        self.failed.has_two_after(since) || self.is_lone_and_stale(now)
    }

    /// Returns whether there are enough failures in a row and they are corroborated.
    pub fn is_conclusive(&self, now: Millis) -> bool {
        self.in_a_row >= FAILURES_IN_A_ROW_MAX && self.is_corroborated(now)
    }

    /// The last failure was one account's fifth in a row (or tenth, and so on): the subject is to be
    /// checked at once, whatever the failures are worth.
    pub fn should_check(&self) -> bool {
        let count = self.of_one_in_a_row;
        count > 0 && count.is_multiple_of(FAILURES_IN_A_ROW_MAX)
    }

    /// Begins a new count of failures, with the accounts and the last success still known.
    pub fn restart(&mut self) {
        self.in_a_row = 0;
        self.of_one_in_a_row = 0;
    }

    /// Latest success, of any account.
    pub fn last_success(&self) -> Option<Millis> {
        self.last_success
    }

    fn record_use(&mut self, account: AccountKey, now: Millis) {
        self.first_use.get_or_insert(now);
        self.users.add(account, now);
    }

    fn is_lone_and_stale(&self, now: Millis) -> bool {
        let is_recent = |at: Millis| now.since(at) < SOLE_USER_AFTER;
        let is_alone = self.users.other.is_none_or(|(_, at)| !is_recent(at));
        let well_at = self.last_success.or(self.first_use);
        is_alone && well_at.is_some_and(|at| now.since(at) >= SUCCESS_HOLDS_FOR)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key(name: &str) -> AccountKey {
        AccountKey::from(&AccountId::from(name))
    }

    #[test]
    fn failures_of_one_account_among_others_are_never_conclusive() {
        let mut evidence = Evidence::default();
        evidence.record_success(key("alice"), Millis(0));
        for at in 1..1000 {
            evidence.record_failure(key("mallory"), Millis(at));
            assert!(!evidence.is_conclusive(Millis(at)));
        }
        evidence.record_failure(key("alice"), Millis(1000));
        assert!(evidence.is_conclusive(Millis(1000)));
    }

    #[test]
    fn a_lone_account_is_believed_when_its_latest_success_is_ten_seconds_old() {
        let mut evidence = Evidence::default();
        evidence.record_success(key("alice"), Millis(0));
        for at in 0..5 {
            evidence.record_failure(key("alice"), Millis(at));
        }
        assert!(!evidence.is_conclusive(Millis(9_999)));
        assert!(evidence.is_conclusive(Millis(10_000)));
    }

    #[test]
    fn a_lone_account_that_never_was_served_is_believed_ten_seconds_after_its_first_use() {
        let mut evidence = Evidence::default();
        for at in 0..100 {
            evidence.record_failure(key("mallory"), Millis(at));
            assert!(!evidence.is_conclusive(Millis(at)));
        }
        assert!(!evidence.is_conclusive(Millis(9_999)));
        assert!(evidence.is_conclusive(Millis(10_000)));
    }

    #[test]
    fn the_fifth_failure_of_one_account_wants_a_check() {
        let mut evidence = Evidence::default();
        let wants: Vec<bool> = (0..10)
            .map(|at| {
                evidence.record_failure(key("mallory"), Millis(at));
                evidence.should_check()
            })
            .collect();
        let fifth = [false, false, false, false, true];
        assert_eq!(wants, [fifth, fifth].concat());
    }

    proptest! {
        #[test]
        fn no_way_of_failing_lets_one_account_conclude_while_another_uses_it(
            steps in proptest::collection::vec((0..3_u8, 0..30_000_u64), 1..200),
        ) {
            let mut evidence = Evidence::default();
            let (mut now, mut alice_at) = (Millis(0), Millis(0));
            evidence.record_success(key("alice"), now);
            for (step, pause) in steps {
                // Alice is there at least once a minute, and is served well.
                now = now + Millis(pause);
                if now.since(alice_at) >= SOLE_USER_AFTER {
                    evidence.record_success(key("alice"), now);
                    alice_at = now;
                }
                match step {
                    0 => {
                        evidence.record_success(key("alice"), now);
                        alice_at = now;
                    }
                    1 => evidence.record_success(key("mallory"), now),
                    _ => evidence.record_failure(key("mallory"), now),
                }
                prop_assert!(!evidence.is_conclusive(now));
                prop_assert!(!evidence.is_corroborated_within(Millis::from_secs(10), now));
            }
        }
    }
}
