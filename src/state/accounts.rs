//! Keys → accounts, each account's pace, and its requests under way.
//!
//! Not access to models. Keys are compared by their SHA-256, in constant time, before any body is read; one
//! that was accepted before is known by a keyed hash. The key itself is never kept.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use hashbrown::HashMap;
use infergate_core::admission::rate::Rate;
use infergate_core::model::{AccountSpec, KeyHash, Task, counted_task};
use infergate_core::{AccountId, Millis, Refusal};
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::body_budget::AccountBytes;
use super::key_memory::KeyMemory;
use super::presented_key::presented_key;
use super::rate_lines::{REQUEST_LINES, RateLines, TOKEN_LINES};
use crate::http1::Fields;

/// An account as the pipeline uses it.
pub struct Account {
    /// As configured in this generation.
    pub spec: Arc<AccountSpec>,
    /// Its requests per minute, when limited. Guards one small counter; shared by the generations
    /// of the account, so that a reload forgives nothing.
    requests: Option<Arc<Mutex<Rate>>>,
    /// The same of single tasks; empty for most accounts.
    tasks: Box<[TaskRate]>,
    /// Bytes of its request bodies that are held; shared by the generations of the account.
    pub bodies: AccountBytes,
    /// Its tokens per minute, likewise.
    tokens: Option<Arc<Mutex<Rate>>>,
    /// Its requests under way; shared by all generations.
    in_flight: Arc<AtomicU32>,
}

/// Requests per minute of one task.
struct TaskRate {
    task: Task,
    /// Name under which nodes count them.
    count_name: AccountId,
    /// Guards one small counter; shared by the generations of the account.
    rate: Arc<Mutex<Rate>>,
}

/// Retry delay of an account at its concurrency limit: one of its requests may end at any time.
const CONCURRENCY_RETRY_AFTER: Millis = Millis(1000);

impl Account {
    /// Returns whether responses carry rate limit headers.
    pub fn has_rates(&self) -> bool {
        self.requests.is_some() || self.tokens.is_some()
    }

    /// Counts a request that may use `tokens` tokens among those under way, until the value returned is
    /// dropped; nothing where the account has no such limits.
    ///
    /// # Errors
    /// [`Refusal::RateLimited`].
    pub fn enter(
        self: &Arc<Account>,
        tokens: impl FnOnce() -> u64,
        now: impl FnOnce() -> Millis,
    ) -> Result<Option<AccountGuard>, Refusal> {
        if self.spec.max_concurrent.is_none() && self.tokens.is_none() {
            return Ok(None);
        }
        let limit = self.spec.max_concurrent.unwrap_or(u32::MAX);
        let more = |count: u32| (count < limit).then_some(count + 1);
        let order = Ordering::AcqRel;
        if self
            .in_flight
            .fetch_update(order, Ordering::Acquire, more)
            .is_err()
        {
            // It was counted in the pace, and costs nothing.
            self.refund_unit();
            return Err(Refusal::RateLimited {
                retry_after: CONCURRENCY_RETRY_AFTER,
            });
        }
        // From here on the drop gives back.
        let mut entered = AccountGuard {
            account: Arc::clone(self),
            is_in_flight: true,
            tokens: 0,
        };
        if let Some(rate) = &self.tokens {
            let tokens = tokens();
            rate.lock().take_many(tokens, now())?;
            entered.tokens = tokens;
        }
        Ok(Some(entered))
    }

    /// Charges a job, whose run may use `tokens` tokens; nothing where the account has no such limit. Runs are not
    /// among the requests under way.
    ///
    /// # Errors
    /// [`Refusal::RateLimited`].
    pub fn enter_job(
        self: &Arc<Account>,
        tokens: u64,
        now: Millis,
    ) -> Result<Option<AccountGuard>, Refusal> {
        let Some(rate) = &self.tokens else {
            return Ok(None);
        };
        rate.lock().take_many(tokens, now)?;
        Ok(Some(AccountGuard {
            account: Arc::clone(self),
            is_in_flight: false,
            tokens,
        }))
    }

    /// The lines that tell a client how much of its limits is left, as OpenAI writes them.
    pub fn rate_lines(&self, now: Millis) -> RateLines {
        let mut lines = RateLines::default();
        for (rate, names) in [
            (&self.requests, &REQUEST_LINES),
            (&self.tokens, &TOKEN_LINES),
        ] {
            if let Some(rate) = rate {
                lines.push_openai(names, &rate.lock().status(now));
            }
        }
        lines
    }

    /// Returns the lines of the Replicate API: what is left of the requests of a minute, and whole seconds until all are.
    pub fn request_rate_lines(&self, now: Millis) -> RateLines {
        let mut lines = RateLines::default();
        if let Some(rate) = &self.requests {
            lines.push_replicate(&rate.lock().status(now));
        }
        lines
    }

    /// Takes one request of the account's pace, unless as many requests are under way as the account may
    /// have.
    ///
    /// # Errors
    /// [`Refusal::RateLimited`] with the time until the next one passes.
    pub fn take_unit(&self, now: Millis) -> Result<(), Refusal> {
        let is_full = |limit| self.in_flight.load(Ordering::Acquire) >= limit;
        if self.spec.max_concurrent.is_some_and(is_full) {
            return Err(Refusal::RateLimited {
                retry_after: CONCURRENCY_RETRY_AFTER,
            });
        }
        self.requests
            .as_ref()
            .map_or(Ok(()), |pace| pace.lock().take(now))
    }

    /// Takes one request of the account's pace for a task; false where there is none, which costs a look. The unit of all
    /// tasks was taken before, and is given back with a refusal.
    ///
    /// # Errors
    /// [`Refusal::TaskRateLimited`] with the time until the next one passes.
    pub fn take_task_unit(&self, task: Task, now: Millis) -> Result<bool, Refusal> {
        let Some(pace) = self.task_pace(task) else {
            return Ok(false);
        };
        let taken = pace.lock().take(now);
        match taken {
            Ok(()) => Ok(true),
            Err(refusal) => {
                self.refund_unit();
                Err(Refusal::TaskRateLimited {
                    message: task.limit_message(),
                    retry_after: refusal.retry_after().unwrap_or_default(),
                })
            }
        }
    }

    /// Gives a request of a task back.
    pub fn refund_task_unit(&self, task: Task) {
        if let Some(pace) = self.task_pace(task) {
            pace.lock().refund();
        }
    }

    fn task_pace(&self, task: Task) -> Option<&Mutex<Rate>> {
        let found = self.tasks.iter().find(|limited| limited.task == task);
        found.map(|limited| &*limited.rate)
    }

    /// Gives the request back: it was refused for capacity and cost nothing.
    pub fn refund_unit(&self) {
        if let Some(pace) = &self.requests {
            pace.lock().refund();
        }
    }
}

/// A request among those under way of its account; given back by drop, with the tokens it was charged
/// unless they were settled.
pub struct AccountGuard {
    account: Arc<Account>,
    /// Counted among those under way.
    is_in_flight: bool,
    tokens: u64,
}

impl AccountGuard {
    /// Releases the concurrency unit; its tokens are still to be settled.
    pub fn release_concurrency(&mut self) {
        if std::mem::take(&mut self.is_in_flight) {
            self.account.in_flight.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// A model server worked on the request and used so many tokens; the number charged, when that is
    /// not known.
    pub fn settle(mut self, used: Option<u64>, now: Millis) {
        let charged = std::mem::take(&mut self.tokens);
        if let Some(rate) = &self.account.tokens {
            rate.lock().correct(charged, used.unwrap_or(charged), now);
        }
    }
}

impl Drop for AccountGuard {
    fn drop(&mut self) {
        self.release_concurrency();
        if let Some(rate) = &self.account.tokens {
            // Less can be due at any moment: no clock is needed.
            rate.lock().correct(self.tokens, 0, Millis::ZERO);
        }
    }
}

/// Every account of one configuration generation.
#[derive(Default)]
pub struct Accounts {
    by_key: HashMap<KeyHash, Arc<Account>>,
    /// Keys that were accepted in this generation: a reload begins without any.
    accepted: KeyMemory,
    by_id: HashMap<Arc<str>, Arc<Account>>,
    anonymous: Option<Arc<Account>>,
}

impl Accounts {
    /// The accounts of a new generation; what was used of a pace stays used.
    pub fn next_generation(
        &self,
        specs: &[AccountSpec],
        anonymous_allowed: bool,
        now: Millis,
    ) -> Accounts {
        let mut next = Accounts::default();
        let anonymous = anonymous_allowed.then(AccountSpec::anonymous);
        let unlisted =
            anonymous.filter(|anonymous| specs.iter().all(|spec| spec.id != anonymous.id));
        for spec in specs.iter().chain(&unlisted) {
            let former = self.by_id.get(spec.id.as_str());
            let follow = |per_minute: u32, former: Option<&Arc<Mutex<Rate>>>| match former {
                Some(rate) => {
                    rate.lock().set_limit(per_minute, now);
                    Arc::clone(rate)
                }
                None => Arc::new(Mutex::new(Rate::new(per_minute))),
            };
            let task_rate = |(task, per_minute): (&Task, &NonZeroU32)| {
                let former = former.into_iter().flat_map(|account| &account.tasks);
                let former = former.into_iter().find(|limited| limited.task == *task);
                TaskRate {
                    task: *task,
                    count_name: spec.count_name(*task),
                    rate: follow(per_minute.get(), former.map(|limited| &limited.rate)),
                }
            };
            let account = Arc::new(Account {
                spec: Arc::new(spec.clone()),
                tasks: spec
                    .requests_per_minute_by_task
                    .iter()
                    .map(task_rate)
                    .collect(),
                bodies: former.map_or_else(Arc::default, |account| Arc::clone(&account.bodies)),
                requests: spec.requests_per_minute.map(|per_minute| {
                    follow(
                        per_minute,
                        former.and_then(|account| account.requests.as_ref()),
                    )
                }),
                tokens: spec.tokens_per_minute.map(|per_minute| {
                    follow(
                        per_minute,
                        former.and_then(|account| account.tokens.as_ref()),
                    )
                }),
                in_flight: former
                    .map(|account| Arc::clone(&account.in_flight))
                    .unwrap_or_default(),
            });
            for key in &spec.api_keys_sha256 {
                next.by_key
                    .entry(*key)
                    .or_insert_with(|| Arc::clone(&account));
            }
            if anonymous_allowed && spec.id.as_str() == AccountId::ANONYMOUS {
                next.anonymous = Some(Arc::clone(&account));
            }
            next.by_id.insert(spec.id.as_str().into(), account);
        }
        next
    }

    /// Every account, in no order.
    pub fn specs(&self) -> impl Iterator<Item = &AccountSpec> {
        self.by_id.values().map(|account| &*account.spec)
    }

    /// The account of this name, where it is configured.
    pub fn known(&self, id: &AccountId) -> Option<&Arc<Account>> {
        self.by_id.get(id.as_str())
    }

    /// The account of this name, by the word of another node. An account that is not configured here is
    /// served without limits of its own, and not counted.
    pub fn by_id(&self, id: &AccountId) -> Arc<Account> {
        self.known(id).map(Arc::clone).unwrap_or_else(|| {
            let spec = AccountSpec {
                id: id.clone(),
                ..AccountSpec::anonymous()
            };
            Arc::new(Account {
                spec: Arc::new(spec),
                requests: None,
                tasks: Box::default(),
                bodies: AccountBytes::default(),
                tokens: None,
                in_flight: Arc::default(),
            })
        })
    }

    /// Accounts with a limit a minute of which requests have passed here, and how many; limits of tasks under names of
    /// their own.
    pub fn requests_passed(&self) -> impl Iterator<Item = (&AccountId, u64)> {
        let limited = self.by_id.values().flat_map(|account| {
            let all = account.requests.iter().map(|rate| (&account.spec.id, rate));
            let tasks = account.tasks.iter();
            all.chain(tasks.map(|limited| (&limited.count_name, &limited.rate)))
        });
        let passed = limited.map(|(name, rate)| (name, rate.lock().passed()));
        passed.filter(|(_, passed)| *passed > 0)
    }

    /// Counts requests that passed at another node, where the account has a limit a minute here.
    pub fn count_remote_requests(&self, name: &AccountId, count: u64, now: Millis) {
        let pace = match self.known(name) {
            Some(account) => account.requests.as_deref(),
            None => {
                counted_task(name).and_then(|(account, task)| self.known(&account)?.task_pace(task))
            }
        };
        if let Some(pace) = pace {
            pace.lock().take_remote(count, now);
        }
    }

    /// Returns whether there is one account only.
    pub fn is_single(&self) -> bool {
        self.by_id.len() == 1
    }

    /// The account of this name as configured.
    pub fn spec(&self, id: &AccountId) -> Option<&AccountSpec> {
        Some(&*self.by_id.get(id.as_str())?.spec)
    }

    /// Returns the account of the presented key.
    ///
    /// # Errors
    /// [`Refusal::Unauthenticated`] without a known key, where anonymous requests are not served;
    /// a wrong key is refused even where they are.
    pub fn identify(&self, headers: &Fields) -> Result<&Arc<Account>, Refusal> {
        let Some(key) = presented_key(headers) else {
            return self.anonymous.as_ref().ok_or(Refusal::Unauthenticated);
        };
        self.of_key(key).ok_or(Refusal::Unauthenticated)
    }

    /// Returns the account that has this key.
    fn of_key(&self, key: &[u8]) -> Option<&Arc<Account>> {
        let fingerprint = self.accepted.fingerprint(key);
        if let Some(hash) = self.accepted.find(fingerprint) {
            return self.by_key.get(&hash);
        }
        let hash = KeyHash(Sha256::digest(key).into());
        let (known, account) = self.by_key.get_key_value(&hash)?;
        // The table's look-up compares in its own way; the decision is made here.
        if !bool::from(known.0.ct_eq(&hash.0)) {
            return None;
        }
        self.accepted.remember(fingerprint, hash);
        Some(account)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(lines: &RateLines) -> Vec<(&'static str, String)> {
        let lines = lines.iter();
        lines
            .map(|(name, value)| (name, String::from_utf8(value.to_vec()).unwrap()))
            .collect()
    }

    fn accounts(anonymous: bool) -> Accounts {
        let spec = AccountSpec {
            id: "acme".into(),
            api_keys_sha256: vec![KeyHash(Sha256::digest(b"good").into())],
            requests_per_minute: Some(1),
            neurons_per_day: None,
            ..AccountSpec::anonymous()
        };
        Accounts::default().next_generation(&[spec], anonymous, Millis::ZERO)
    }

    fn headers(name: &'static str, value: &'static str) -> Fields {
        Fields::from_lines(&[(name, value)])
    }

    #[test]
    fn a_key_is_known_by_its_hash_in_any_usual_header() {
        let accounts = accounts(false);
        for (name, value) in [
            ("authorization", "Bearer good"),
            ("authorization", "token good"),
            ("x-api-key", "good"),
        ] {
            assert_eq!(
                accounts
                    .identify(&headers(name, value))
                    .unwrap()
                    .spec
                    .id
                    .as_str(),
                "acme"
            );
        }
        assert!(
            accounts
                .identify(&headers("authorization", "Bearer bad"))
                .is_err()
        );
        assert!(
            accounts
                .identify(&headers("authorization", "Basic good"))
                .is_err()
        );
        assert!(accounts.identify(&Fields::default()).is_err());
    }

    #[test]
    fn an_accepted_key_is_known_without_its_sha_256_until_the_next_reload() {
        let first = accounts(false);
        let is_remembered = |accounts: &Accounts, key: &[u8]| {
            let fingerprint = accounts.accepted.fingerprint(key);
            accounts.accepted.find(fingerprint).is_some()
        };
        let is_known = |accounts: &Accounts, key| {
            let headers = headers("x-api-key", key);
            accounts.identify(&headers).is_ok()
        };
        assert!(!is_known(&first, "bad") && is_known(&first, "good") && is_known(&first, "good"));
        assert!(is_remembered(&first, b"good") && !is_remembered(&first, b"bad"));
        // A key of another SHA-256 shows that none is computed.
        let good = KeyHash(Sha256::digest(b"good").into());
        let planted = first.accepted.fingerprint(b"planted");
        first.accepted.remember(planted, good);
        assert!(is_known(&first, "planted"));

        let second = first.next_generation(&[], false, Millis(1));
        assert!(!is_known(&second, "good") && !is_known(&second, "planted"));
    }

    #[test]
    fn a_wrong_key_is_refused_even_where_no_key_is_needed() {
        let accounts = accounts(true);
        assert_eq!(
            accounts
                .identify(&Fields::default())
                .unwrap()
                .spec
                .id
                .as_str(),
            "anonymous"
        );
        for value in ["Bearer bad", "good", "Basic good", "Bearergood"] {
            let refused = accounts.identify(&headers("authorization", value));
            assert!(refused.is_err(), "{value}");
        }
        for empty in ["Bearer", "Bearer ", "token"] {
            let served = accounts.identify(&headers("authorization", empty));
            assert_eq!(served.unwrap().spec.id.as_str(), "anonymous", "{empty}");
        }
    }

    #[test]
    fn two_keys_are_refused_whichever_of_them_is_known() {
        let accounts = accounts(true);
        for name in ["authorization", "x-api-key"] {
            for keys in [
                ["Bearer good", "Bearer good"],
                ["Bearer good", "Bearer bad"],
            ] {
                let headers = Fields::from_lines(&keys.map(|key| (name, key)));
                assert!(accounts.identify(&headers).is_err(), "{name}");
            }
        }
    }

    #[test]
    fn a_task_has_a_pace_of_its_own_beside_that_of_all() {
        let limit = |per_minute| NonZeroU32::new(per_minute).unwrap();
        let spec = AccountSpec {
            requests_per_minute: Some(9),
            requests_per_minute_by_task: [(Task::TextGeneration, limit(2))].into(),
            ..AccountSpec::anonymous()
        };
        let specs = [spec];
        let accounts = Accounts::default().next_generation(&specs, true, Millis::ZERO);
        let take = |accounts: &Accounts, task, now| {
            let account = accounts.identify(&Fields::default()).unwrap();
            account.take_unit(now)?;
            account.take_task_unit(task, now)
        };
        let account = accounts.identify(&Fields::default()).unwrap();
        let remaining = || text(&account.rate_lines(Millis(0)))[1].1.clone();
        for _ in 0..2 {
            assert_eq!(take(&accounts, Task::TextGeneration, Millis(0)), Ok(true));
        }
        let refused = take(&accounts, Task::TextGeneration, Millis(0)).unwrap_err();
        assert_eq!(refused.retry_after(), Some(Millis(30_000)));
        assert!(refused.row().message.contains("text-generation"));
        assert_eq!(remaining(), "7", "a refusal gives the unit of all back");
        assert_eq!(take(&accounts, Task::TextEmbeddings, Millis(0)), Ok(false));
        assert_eq!(remaining(), "6");
        // A reload forgives nothing.
        let next = accounts.next_generation(&specs, true, Millis(0));
        assert!(take(&next, Task::TextGeneration, Millis(0)).is_err());
        account.refund_task_unit(Task::TextGeneration);
        assert_eq!(take(&next, Task::TextGeneration, Millis(0)), Ok(true));
        assert_eq!(
            take(&next, Task::TextGeneration, Millis(30_000)),
            Ok(true),
            "half a minute later"
        );
    }

    #[test]
    fn requests_of_a_task_at_another_node_count_for_the_task() {
        let spec = AccountSpec {
            requests_per_minute_by_task: [(Task::TextToImage, NonZeroU32::MIN)].into(),
            ..AccountSpec::anonymous()
        };
        let [here, there] = [(), ()].map(|()| {
            Accounts::default().next_generation(std::slice::from_ref(&spec), true, Millis(0))
        });
        let account = |accounts: &Accounts| Arc::clone(accounts.anonymous.as_ref().unwrap());
        account(&there)
            .take_task_unit(Task::TextToImage, Millis(0))
            .unwrap();
        let passed: Vec<_> = there.requests_passed().collect();
        assert_eq!(passed.len(), 1);
        for (name, count) in passed {
            here.count_remote_requests(name, count, Millis(0));
        }
        let full = account(&here).take_task_unit(Task::TextToImage, Millis(0));
        assert!(full.is_err());
        // Names of nobody count for nobody.
        here.count_remote_requests(&"anonymous/unknown".into(), 1, Millis(0));
        here.count_remote_requests(&"b/text-to-image".into(), 1, Millis(0));
    }

    #[test]
    fn a_request_refused_for_those_under_way_uses_up_nothing_of_the_pace() {
        let spec = AccountSpec {
            max_concurrent: Some(1),
            requests_per_minute: Some(3),
            ..AccountSpec::anonymous()
        };
        let accounts = Accounts::default().next_generation(&[spec], true, Millis::ZERO);
        let account = accounts.identify(&Fields::default()).unwrap();
        let remaining = || text(&account.rate_lines(Millis(0)))[1].1.clone();
        account.take_unit(Millis(0)).unwrap();
        account.take_unit(Millis(0)).unwrap();
        let one = account.enter(|| 0, || Millis(0)).unwrap();
        assert_eq!(remaining(), "1");
        // One that came past the first look at the same moment.
        assert!(account.enter(|| 0, || Millis(0)).is_err());
        assert_eq!(remaining(), "2");
        for _ in 0..9 {
            assert!(account.take_unit(Millis(0)).is_err());
        }
        assert_eq!(remaining(), "2");
        drop(one);
        account.take_unit(Millis(0)).unwrap();
        assert_eq!(remaining(), "1");
    }

    #[test]
    fn requests_under_way_are_counted_until_they_end_and_tokens_come_to_what_was_used() {
        let spec = AccountSpec {
            max_concurrent: Some(2),
            tokens_per_minute: Some(600),
            ..AccountSpec::anonymous()
        };
        let accounts = Accounts::default().next_generation(&[spec], true, Millis::ZERO);
        let account = accounts.identify(&Fields::default()).unwrap();
        let enter = |tokens: u64| account.enter(|| tokens, || Millis(0));
        let (one, two) = (enter(100).unwrap(), enter(100).unwrap());
        assert!(matches!(enter(1), Err(Refusal::RateLimited { .. })));
        one.unwrap().settle(Some(300), Millis(0));
        drop(two);
        let lines = text(&account.rate_lines(Millis(0)));
        let left = [
            ("x-ratelimit-limit-tokens", "600".to_owned()),
            ("x-ratelimit-remaining-tokens", "300".to_owned()),
            ("x-ratelimit-reset-tokens", "30s".to_owned()),
        ];
        assert_eq!(lines, left);
        drop(enter(1000).unwrap());
        enter(1000).unwrap().unwrap().settle(None, Millis(0));
        assert!(enter(1).is_err());
        assert_eq!(account.in_flight.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn lines_of_the_replicate_api_count_requests_and_whole_seconds() {
        let spec = AccountSpec {
            requests_per_minute: Some(60),
            tokens_per_minute: Some(600),
            ..AccountSpec::anonymous()
        };
        let accounts = Accounts::default().next_generation(&[spec], true, Millis::ZERO);
        let account = accounts.identify(&Fields::default()).unwrap();
        account.take_unit(Millis(0)).unwrap();
        let left = [
            ("ratelimit-limit", "60".to_owned()),
            ("ratelimit-remaining", "59".to_owned()),
            ("ratelimit-reset", "1".to_owned()),
        ];
        assert_eq!(text(&account.request_rate_lines(Millis(500))), left);
    }

    #[test]
    fn a_reload_does_not_forgive_what_was_used() {
        let first = accounts(false);
        let specs: Vec<_> = first.by_id.values().map(|a| (*a.spec).clone()).collect();
        let use_up = |accounts: &Accounts| {
            let key = headers("x-api-key", "good");
            (0..10)
                .filter(|_| {
                    accounts
                        .identify(&key)
                        .unwrap()
                        .take_unit(Millis(1))
                        .is_ok()
                })
                .count()
        };
        assert!(use_up(&first) >= 1);
        let second = first.next_generation(&specs, false, Millis(1));
        assert_eq!(use_up(&second), 0);
    }
}
