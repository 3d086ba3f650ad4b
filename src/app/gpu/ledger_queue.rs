//! Changes of the ledger, carried out one after the other in the order in which the driver makes them.
//!
//! The lock of the ledger's file has no order of its own. Without the queue a lease could be sought before another one
//! is given back that leaves room for it.

use std::time::Duration;

use infergate_core::vram::{GroupId, LeaseGroup, SlotId};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::Instant;

/// Changes that may wait; further ones are carried out out of order rather than lost.
const CHANGES_MAX: usize = 1024;
/// Time between two tries to give leases back.
const RELEASE_AGAIN_EVERY: Duration = Duration::from_secs(5);

type Change = Box<dyn FnOnce() + Send>;

/// Queue of the changes.
pub(super) struct LedgerQueue {
    sender: mpsc::Sender<Change>,
    /// Until the queue is started.
    receiver: Option<mpsc::Receiver<Change>>,
}

impl LedgerQueue {
    /// Creates a queue that does nothing before it is started.
    pub fn new() -> LedgerQueue {
        let (sender, receiver) = mpsc::channel(CHANGES_MAX);
        LedgerQueue {
            sender,
            receiver: Some(receiver),
        }
    }

    /// Starts to carry changes out, as one of `tasks`.
    pub fn start(&mut self, tasks: &mut JoinSet<()>) {
        if let Some(mut changes) = self.receiver.take() {
            tasks.spawn(async move {
                while let Some(change) = changes.recv().await {
                    // A panic is the end of that change alone.
                    let _ = spawn_blocking(change).await;
                }
            });
        }
    }

    /// Adds a change, which may block.
    pub fn add(&self, tasks: &mut JoinSet<()>, change: impl FnOnce() + Send + 'static) {
        match self.sender.try_send(Box::new(change)) {
            Ok(()) => {}
            Err(TrySendError::Full(change) | TrySendError::Closed(change)) => {
                tracing::warn!("too many changes of the ledger wait: one is made out of order");
                tasks.spawn_blocking(change);
            }
        }
    }
}

/// Leases that are no slot's any more and that the ledger still has, at most one group for each life of a slot.
#[derive(Default)]
pub(super) struct UnreleasedLeases {
    /// Their release is queued, or was carried out after the newest reading.
    leaving: Vec<GroupId>,
    /// Leases that could not be given back.
    groups: Vec<(SlotId, LeaseGroup)>,
    next: Option<Instant>,
}

impl UnreleasedLeases {
    /// Notes that the release of leases is queued. Their memory is free from then on: what is queued behind finds it so.
    pub fn begin(&mut self, group: &LeaseGroup) {
        self.leaving.push(group.id.clone());
    }

    /// Returns whether the release of leases is queued, or was carried out after the newest reading.
    pub fn is_leaving(&self, group: &GroupId) -> bool {
        self.leaving.contains(group)
    }

    /// Forgets what is not among the leases of a new reading.
    pub fn take_reading<'a>(&mut self, groups: impl Iterator<Item = &'a GroupId> + Clone) {
        self.leaving
            .retain(|group| groups.clone().any(|it| it == group));
    }

    /// Keeps leases for a later try.
    pub fn keep(&mut self, slot: SlotId, group: LeaseGroup) {
        self.leaving.retain(|leaving| *leaving != group.id);
        self.groups.push((slot, group));
        self.next
            .get_or_insert_with(|| Instant::now() + RELEASE_AGAIN_EVERY);
    }

    /// Takes the leases that are to be given back now.
    pub fn take_due(&mut self) -> Vec<(SlotId, LeaseGroup)> {
        if self.next.is_none_or(|next| Instant::now() < next) {
            return Vec::new();
        }
        self.next = None;
        std::mem::take(&mut self.groups)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;
    use tokio::sync::Notify;

    use super::*;

    #[tokio::test]
    async fn changes_are_made_in_their_order_and_none_is_lost() {
        let mut queue = LedgerQueue::new();
        let mut tasks = JoinSet::new();
        let made = Arc::new(Mutex::new(Vec::new()));
        let done = Arc::new(Notify::new());
        // One more than the queue holds before it starts.
        for number in 0..=CHANGES_MAX {
            let (made, done) = (Arc::clone(&made), Arc::clone(&done));
            queue.add(&mut tasks, move || {
                let mut made = made.lock();
                made.push(number);
                if made.len() == CHANGES_MAX + 1 {
                    done.notify_one();
                }
            });
        }
        tasks.join_next().await.expect("one out of order").unwrap();
        queue.add(&mut tasks, || panic!("a change that breaks"));
        queue.start(&mut tasks);
        done.notified().await;
        let mut ordered = made.lock().clone();
        ordered.retain(|number| *number < CHANGES_MAX);
        assert!(ordered.is_sorted(), "{ordered:?}");
        assert_eq!(ordered.len(), CHANGES_MAX);
    }

    #[test]
    fn leases_leave_until_a_reading_is_without_them_or_the_ledger_keeps_them() {
        let group = |id: &str| LeaseGroup {
            id: id.to_owned().into(),
            epoch: 1,
        };
        let [first, second, other] = ["g-1", "g-2", "g-3"].map(group);
        let mut unreleased = UnreleasedLeases::default();
        unreleased.begin(&first);
        unreleased.begin(&second);
        // A reading from before the ledger was changed.
        unreleased.take_reading([&first.id, &second.id, &other.id].into_iter());
        assert!(unreleased.is_leaving(&first.id) && unreleased.is_leaving(&second.id));
        assert!(!unreleased.is_leaving(&other.id));
        unreleased.take_reading([&second.id, &other.id].into_iter());
        assert!(!unreleased.is_leaving(&first.id) && unreleased.is_leaving(&second.id));
        let slot = SlotId {
            model: "m".into(),
            number: 0,
        };
        let id = second.id.clone();
        unreleased.keep(slot, second);
        assert!(!unreleased.is_leaving(&id));
    }
}
