//! The neurons of the day: held for a request when it is admitted, settled when it is priced.
//!
//! Not the decision (the core's [`Quota`]) and not the file (`app`, from [`QuotaStore::changes_since`]). Only accounts
//! with a limit are counted, so their number bounds it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use infergate_core::billing::{Quota, QuotaExhaustion, QuotaReservation, QuotaSnapshot, UnixSecs};
use infergate_core::routing::cluster::NodeId;
use infergate_core::{AccountId, Refusal};
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::ConfigSnapshot;
use crate::telemetry::Clock;

/// The counters of all accounts with a limit.
pub struct QuotaStore {
    clock: Clock,
    /// Guards a table of numbers; held for one look-up by requests at their begin and end, and by
    /// the writer while it copies.
    quota: Mutex<Quota>,
    /// Sums of accounts without a limit here, and those beyond reason.
    omitted: AtomicU64,
    /// Notified when the snapshot to persist differs.
    changed: Notify,
}

impl QuotaStore {
    /// Counters that go on from those of a former process.
    pub fn restore(kept: &QuotaSnapshot, clock: Clock) -> Arc<QuotaStore> {
        let quota = Quota::restore(kept, unix_secs(clock));
        Arc::new(QuotaStore {
            clock,
            quota: Mutex::new(quota),
            omitted: AtomicU64::new(0),
            changed: Notify::new(),
        })
    }

    /// Holds `amount` neurons of the account's day.
    ///
    /// # Errors
    /// Its limit is reached, by what is used or by what is held.
    pub fn reserve(
        self: &Arc<Self>,
        account: &AccountId,
        amount: f64,
        limit: u64,
    ) -> Result<QuotaGuard, QuotaExhaustion> {
        let now = unix_secs(self.clock);
        let reservation = self.change(|quota| quota.reserve(account, amount, limit, now));
        Ok(QuotaGuard {
            store: Arc::clone(self),
            reservation: Some(reservation?),
        })
    }

    /// Checks that the account's day has anything left, whatever requests in flight may still use.
    ///
    /// # Errors
    /// [`Refusal::QuotaUsed`].
    pub fn check(&self, account: &AccountId, limit: u64) -> Result<(), Refusal> {
        match self
            .quota
            .lock()
            .is_spent(account, limit, unix_secs(self.clock))
        {
            true => Err(Refusal::QuotaUsed),
            false => Ok(()),
        }
    }

    /// Neurons the account has used today, at this node.
    #[cfg(test)]
    pub fn used(&self, account: &AccountId) -> f64 {
        self.quota.lock().used(account, unix_secs(self.clock))
    }

    /// Neurons the account has used today, at this node and, as far as reported, at others.
    pub fn used_by_all(&self, account: &AccountId) -> f64 {
        let now = unix_secs(self.clock);
        let quota = self.quota.lock();
        quota.used(account, now) + quota.used_elsewhere(account, now)
    }

    /// Other nodes tell what accounts have used there: node, account, day since 1970-01-01, millionths of a
    /// neuron. Sums of accounts without a limit in `snapshot` are left out: an account that gets its limit
    /// later is reported whole with its next request there. So is what is beyond reason for the account's
    /// limit.
    pub fn record_peer_usage<'a>(
        &self,
        reports: impl IntoIterator<Item = (&'a NodeId, &'a AccountId, u64, u64)>,
        snapshot: &ConfigSnapshot,
    ) {
        self.record_peer_usage_within(reports, |account| snapshot.limit_of(account));
    }

    fn record_peer_usage_within<'a>(
        &self,
        reports: impl IntoIterator<Item = (&'a NodeId, &'a AccountId, u64, u64)>,
        limit_of: impl Fn(&AccountId) -> Option<u64>,
    ) {
        let now = unix_secs(self.clock);
        let mut reports = reports.into_iter().peekable();
        if reports.peek().is_none() {
            return;
        }
        self.change(|quota| {
            for (node, account, day, micro) in reports {
                match limit_of(account) {
                    Some(limit) if Quota::is_plausible(micro, limit) => {
                        let NodeId { name, generation } = node;
                        quota.record_peer_usage(name, *generation, account, day, micro, now);
                    }
                    _ => {
                        self.omitted.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
        });
    }

    /// Sums of other nodes that were left out since the start.
    pub fn omitted(&self) -> u64 {
        let left_out = self.omitted.load(Ordering::Relaxed);
        left_out + self.quota.lock().dropped_reports()
    }

    /// Removes the reports of a node. Returns whether there were any.
    pub fn forget(&self, node: &str) -> bool {
        self.quota.lock().forget(node)
    }

    /// Adds the usage that another process has counted between the snapshots `before` and `after`.
    pub fn absorb(&self, before: &QuotaSnapshot, after: &QuotaSnapshot) {
        let now = unix_secs(self.clock);
        self.change(|quota| quota.absorb(before, after, now));
    }

    /// Waits until there is a change to persist, since the last wait.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Changes the counters, and wakes the writer where the snapshot to persist differs.
    fn change<T>(&self, change: impl FnOnce(&mut Quota) -> T) -> T {
        let mut quota = self.quota.lock();
        let before = quota.version();
        let result = change(&mut quota);
        let is_changed = quota.version() != before;
        drop(quota);
        if is_changed {
            self.changed.notify_one();
        }
        result
    }

    /// Version of the snapshot to persist.
    pub fn version(&self) -> u64 {
        self.quota.lock().version()
    }

    /// Returns the snapshot to persist.
    pub fn snapshot(&self) -> QuotaSnapshot {
        self.quota.lock().snapshot()
    }

    /// Returns the snapshot to persist, where it differs from the one persisted as `version`.
    pub fn changes_since(&self, version: u64) -> Option<(u64, QuotaSnapshot)> {
        let quota = self.quota.lock();
        (quota.version() != version).then(|| (quota.version(), quota.snapshot()))
    }
}

/// Neurons held for one request; given back by drop, unless settled.
pub struct QuotaGuard {
    store: Arc<QuotaStore>,
    /// Taken by whichever of the two comes first.
    reservation: Option<QuotaReservation>,
}

impl QuotaGuard {
    /// The request may cost `amount` neurons instead.
    pub fn exchange(&mut self, amount: f64) {
        if let Some(reservation) = self.reservation.take() {
            let now = unix_secs(self.store.clock);
            let exchange = |quota: &mut Quota| quota.exchange(reservation, amount, now);
            self.reservation = Some(self.store.change(exchange));
        }
    }

    /// The request is over and costs `actual` neurons, once its end is stored. They count against the limit from now on.
    pub fn owe(&mut self, actual: f64) {
        if let Some(reservation) = self.reservation.take() {
            let now = unix_secs(self.store.clock);
            let owe = |quota: &mut Quota| quota.owe(reservation, actual, now);
            self.reservation = Some(self.store.change(owe));
        }
    }

    /// The request cost `actual` neurons.
    pub fn settle(mut self, actual: f64) {
        if let Some(reservation) = self.reservation.take() {
            let now = unix_secs(self.store.clock);
            self.store
                .change(|quota| quota.settle(reservation, actual, now));
        }
    }
}

impl Drop for QuotaGuard {
    fn drop(&mut self) {
        if let Some(reservation) = self.reservation.take() {
            let now = unix_secs(self.store.clock);
            self.store.change(|quota| quota.release(reservation, now));
        }
    }
}

/// A wall clock before 1970 is taken for 1970.
fn unix_secs(clock: Clock) -> UnixSecs {
    UnixSecs(u64::try_from(clock.wall().unix_timestamp()).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::clock::well_before_midnight;

    #[test]
    fn what_is_held_comes_back_by_drop_and_is_used_by_settling() {
        let ledger = QuotaStore::restore(&QuotaSnapshot::default(), well_before_midnight());
        let account = AccountId::from("a");
        let held = ledger.reserve(&account, 8.0, 10).unwrap();
        let second = ledger.reserve(&account, 8.0, 10).unwrap();
        assert!(matches!(
            ledger.reserve(&account, 1.0, 10),
            Err(QuotaExhaustion::Held)
        ));
        drop(second);
        held.settle(9.5);
        assert_eq!(ledger.used(&account), 9.5);
        ledger.reserve(&account, 1.0, 10).unwrap().settle(0.5);
        assert!(ledger.reserve(&account, 0.0, 10).is_err());
    }

    #[test]
    fn what_is_owed_refuses_others_at_once_and_comes_back_by_drop() {
        let ledger = QuotaStore::restore(&QuotaSnapshot::default(), well_before_midnight());
        let account = AccountId::from("a");
        let mut owed = ledger.reserve(&account, 0.0, 1).unwrap();
        assert!(ledger.check(&account, 1).is_ok());
        owed.owe(2.0);
        assert!(ledger.check(&account, 1).is_err());
        drop(owed);
        assert!(ledger.check(&account, 1).is_ok());
        assert_eq!(ledger.used(&account), 0.0);
    }

    #[test]
    fn what_is_used_at_other_nodes_counts_against_the_limit_and_is_kept_by_them() {
        let clock = well_before_midnight();
        let ledger = QuotaStore::restore(&QuotaSnapshot::default(), clock);
        let (account, day) = (AccountId::from("a"), unix_secs(clock).day());
        let (version, _) = ledger.changes_since(u64::MAX).unwrap();
        let node = |name: &str| NodeId {
            name: name.into(),
            generation: 1,
        };
        let (one, other) = (node("one"), node("other"));
        let invented = AccountId::from("invented");
        let limit = |known: &AccountId| (*known == account).then_some(10);
        let record =
            |reports: &[_]| ledger.record_peer_usage_within(reports.iter().copied(), limit);
        record(&[
            (&one, &account, day, 4_000_000),
            (&other, &account, day, 5_000_000),
            (&one, &invented, day, u64::MAX),
            (&one, &account, day, 100_000_001),
        ]);
        assert_eq!(ledger.omitted(), 2);
        let held = ledger.reserve(&account, 1.0, 10).unwrap();
        assert!(ledger.reserve(&account, 1.0, 10).is_err());
        drop(held);
        record(&[(&one, &account, day, 5_000_000)]);
        assert!(ledger.reserve(&account, 1.0, 10).is_err());
        assert_eq!(ledger.used(&account), 0.0);
        assert!(ledger.changes_since(version).is_none());
    }

    #[test]
    fn a_restored_ledger_goes_on_and_tells_only_news() {
        let ledger = QuotaStore::restore(&QuotaSnapshot::default(), well_before_midnight());
        let (version, _) = ledger.changes_since(u64::MAX).unwrap();
        assert!(ledger.changes_since(version).is_none());
        let account = AccountId::from("a");
        ledger.reserve(&account, 8.0, 10).unwrap().settle(3.0);
        let (_, kept) = ledger.changes_since(version).unwrap();
        let restored = QuotaStore::restore(&kept, well_before_midnight());
        assert_eq!(restored.used(&account), 3.0);
    }
}
