//! Order of deliveries that the sender of ends and the notices of runs share: one set of bounds in flight.
//!
//! Sends nothing. The order is the core's. A run waits for its turn, which its guard gives back by drop; the sender asks
//! for the ends whose turn has come. Notices in flight are at most [`NOTICES_IN_FLIGHT_MAX`]: hanging receivers that are
//! told news leave room for ends.

use std::collections::VecDeque;
use std::sync::Arc;

use hashbrown::{HashMap, HashSet};
use infergate_core::job::receivers::{DeliveryAdmission, DeliveryId, ReceiverLimits, Receivers};
use infergate_core::job::webhook::{DeliveryDecision, DeliveryResult};
use infergate_core::{AccountId, Millis};
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};

use super::client::StoreNow;

/// Notices in flight, of all accounts: half of what may be in flight.
const NOTICES_IN_FLIGHT_MAX: usize = 128;

/// Order of the deliveries of one process.
pub struct DeliveryQueue {
    now: StoreNow,
    /// Held for one step of the order, by the sender and by runs.
    state: Mutex<DeliveryState>,
    /// Notified when the sender may start an end, or has to look at a later moment than it waits for.
    pub changed: Notify,
}

struct DeliveryState {
    receivers: Receivers,
    /// Latest number given to a delivery.
    number: u64,
    /// Runs that wait for the turn of their notice.
    waiting: HashMap<DeliveryId, oneshot::Sender<()>>,
    /// Notices in flight.
    notices: HashSet<DeliveryId>,
    /// Ends whose turn has come; in flight as the order sees them.
    started: VecDeque<DeliveryId>,
}

impl DeliveryQueue {
    /// Creates an empty order.
    pub fn new(limits: ReceiverLimits, now: StoreNow) -> DeliveryQueue {
        DeliveryQueue {
            now,
            state: Mutex::new(DeliveryState {
                receivers: Receivers::new(limits),
                number: 0,
                waiting: HashMap::new(),
                notices: HashSet::new(),
                started: VecDeque::new(),
            }),
            changed: Notify::new(),
        }
    }

    /// Returns the present moment of the order.
    pub fn now(&self) -> Millis {
        Millis((self.now)().0)
    }

    /// Adds the delivery of an end, not to begin before `due`.
    pub fn add(
        &self,
        receiver: &Arc<str>,
        account: &AccountId,
        due: Millis,
    ) -> (DeliveryId, DeliveryAdmission) {
        let mut state = self.state.lock();
        let id = state.next_id();
        (id, state.receivers.add(id, receiver, account, due))
    }

    /// Starts the next end that is due; none when no more may go out now.
    pub fn next(&self) -> Option<DeliveryId> {
        let now = self.now();
        let mut state = self.state.lock();
        state.start_due(now);
        state.started.pop_front()
    }

    /// Earliest moment at which [`next`](Self::next) may start an end without a finish before.
    pub fn next_due(&self) -> Option<Millis> {
        self.state.lock().receivers.next_due()
    }

    /// Ends an attempt to deliver an end.
    pub fn finish(&self, id: DeliveryId, result: DeliveryResult, decision: DeliveryDecision) {
        let now = self.now();
        let mut state = self.state.lock();
        state.receivers.finish(id, result, decision, now);
    }

    /// Takes a delivery out.
    pub fn remove(&self, id: DeliveryId) {
        let mut state = self.state.lock();
        state.started.retain(|started| *started != id);
        state.receivers.remove(id);
    }

    /// Returns the counts.
    #[cfg(test)]
    pub fn status(&self) -> infergate_core::job::receivers::ReceiversStatus {
        self.state.lock().receivers.status()
    }

    /// Changes the ends of one account that may wait. Returns those beyond, which are removed.
    pub fn set_pending_max_per_account(&self, max: usize) -> Vec<DeliveryId> {
        let mut state = self.state.lock();
        state.receivers.set_pending_max_per_account(max)
    }

    /// Waits for the turn of a notice; none where its receiver is failing, or too many notices are in flight.
    pub async fn notice_turn(
        &self,
        receiver: &Arc<str>,
        account: &AccountId,
    ) -> Option<NoticeTurn<'_>> {
        let now = self.now();
        let (turn, granted) = {
            let mut state = self.state.lock();
            let id = state.next_id();
            if !state.receivers.add_notice(id, receiver, account) {
                return None;
            }
            let (grant, granted) = oneshot::channel();
            state.waiting.insert(id, grant);
            state.start_due(now);
            let turn = NoticeTurn {
                queue: self,
                id,
                result: None,
            };
            (turn, granted)
        };
        self.wake_sender();
        granted.await.ok().map(|()| turn)
    }

    fn end_notice(&self, id: DeliveryId, result: Option<DeliveryResult>) {
        let now = self.now();
        {
            let mut state = self.state.lock();
            state.waiting.remove(&id);
            match result {
                Some(result) if state.notices.remove(&id) => {
                    let decision = DeliveryDecision::Done;
                    state.receivers.finish(id, result, decision, now);
                }
                _ => {
                    state.notices.remove(&id);
                    state.receivers.remove(id);
                }
            }
            state.start_due(now);
        }
        self.wake_sender();
    }

    /// Wakes the sender where an end has started, or is due at some moment.
    fn wake_sender(&self) {
        let is_due = {
            let state = self.state.lock();
            !state.started.is_empty() || state.receivers.next_due().is_some()
        };
        if is_due {
            self.changed.notify_one();
        }
    }
}

impl DeliveryState {
    fn next_id(&mut self) -> DeliveryId {
        self.number += 1;
        DeliveryId(self.number)
    }

    /// Starts all that may go out: notices at once, ends for the sender.
    fn start_due(&mut self, now: Millis) {
        while let Some(id) = self.receivers.next(now) {
            let Some(grant) = self.waiting.remove(&id) else {
                self.started.push_back(id);
                continue;
            };
            // Probes are for ends: the result of a notice that was cut would say nothing.
            let may_go = self.notices.len() < NOTICES_IN_FLIGHT_MAX && !self.receivers.is_probe(id);
            if may_go && grant.send(()).is_ok() {
                self.notices.insert(id);
            } else {
                self.receivers.remove(id);
            }
        }
    }
}

/// Turn of a notice, from its place among those that wait to its end.
pub struct NoticeTurn<'a> {
    queue: &'a DeliveryQueue,
    id: DeliveryId,
    result: Option<DeliveryResult>,
}

impl NoticeTurn<'_> {
    /// Records the result for the record of the receiver. A status other than 2xx says nothing: many receivers are made
    /// for ends alone.
    pub fn record(&mut self, result: DeliveryResult) {
        self.result = match result {
            DeliveryResult::Failed {
                status: Some(_), ..
            }
            | DeliveryResult::Gone => None,
            DeliveryResult::Accepted | DeliveryResult::Failed { status: None, .. } => Some(result),
        };
    }
}

impl Drop for NoticeTurn<'_> {
    fn drop(&mut self) {
        self.queue.end_notice(self.id, self.result);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use infergate_core::job::StoreTime;

    use super::*;

    fn queue() -> DeliveryQueue {
        DeliveryQueue::new(ReceiverLimits::default(), Arc::new(|| StoreTime(1000)))
    }

    fn turn<'a>(queue: &'a DeliveryQueue, receiver: &str, account: &str) -> Option<NoticeTurn<'a>> {
        let account = account.into();
        queue
            .notice_turn(&receiver.into(), &account)
            .now_or_never()
            .flatten()
    }

    #[test]
    fn notices_and_ends_share_four_places_and_a_dropped_turn_gives_its_own_back() {
        let queue = queue();
        let (end, _) = queue.add(&"a".into(), &"x".into(), Millis(0));
        assert_eq!(queue.next(), Some(end));
        let held: Vec<_> = (0..10).filter_map(|_| turn(&queue, "a", "x")).collect();
        assert_eq!(held.len(), 3);
        // Those that did not wait have left nothing behind.
        drop(held);
        let status = queue.status();
        assert_eq!((status.in_flight, status.waiting), (1, 0));
        assert!(turn(&queue, "a", "x").is_some());
    }

    #[tokio::test]
    async fn a_notice_waits_for_its_turn_and_an_end_goes_before_it() {
        let queue = queue();
        let mut held: Vec<_> = (0..4).filter_map(|_| turn(&queue, "a", "x")).collect();
        let (receiver, account) = ("a".into(), "x".into());
        let mut waiting = Box::pin(queue.notice_turn(&receiver, &account));
        assert!(waiting.as_mut().now_or_never().is_none());
        let (end, _) = queue.add(&receiver, &account, Millis(0));
        assert_eq!(queue.next(), None);
        held.pop();
        queue.changed.notified().await;
        assert_eq!(queue.next(), Some(end));
        assert!(waiting.as_mut().now_or_never().is_none());
        queue.finish(end, DeliveryResult::Accepted, DeliveryDecision::Done);
        assert_eq!(queue.next(), None);
        assert!(waiting.await.is_some());
    }

    #[test]
    fn a_receiver_that_hangs_costs_other_accounts_and_receivers_no_notice() {
        let queue = queue();
        let held: Vec<_> = (0..256).map(|_| turn(&queue, "hangs", "x")).collect();
        assert_eq!(held.iter().flatten().count(), 4);
        assert!(turn(&queue, "lives", "x").is_some());
        assert!(turn(&queue, "hangs", "y").is_some());
    }

    #[test]
    fn receivers_that_do_not_answer_notices_get_no_more_and_statuses_say_nothing() {
        let unanswered = DeliveryResult::of_status(0, None);
        let failed = DeliveryResult::Failed {
            status: None,
            retry_after: None,
        };
        for (result, is_refused) in [(unanswered, false), (failed, true)] {
            let queue = queue();
            // A delivery that waits keeps the record of the receiver.
            let _ = queue.add(&"a".into(), &"y".into(), Millis(9000));
            for _ in 0..5 {
                turn(&queue, "a", "x").unwrap().record(result);
            }
            assert_eq!(turn(&queue, "a", "x").is_none(), is_refused);
        }
    }

    #[test]
    fn notices_leave_half_of_all_places_to_ends() {
        let queue = queue();
        let turns: Vec<_> = (0..200)
            .filter_map(|number| turn(&queue, &format!("r{number}"), &format!("x{number}")))
            .collect();
        assert_eq!(turns.len(), NOTICES_IN_FLIGHT_MAX);
        let (end, _) = queue.add(&"a".into(), &"x".into(), Millis(0));
        assert_eq!(queue.next(), Some(end));
    }
}
