//! Count of requests in flight, and the flag that ends keep-alive before shutdown.
//!
//! Not a fixed sleep: the last request that ends wakes the waiter.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::sync::Notify;

/// Shared by the app, which drains, and every request, which counts.
#[derive(Default)]
pub struct Drain {
    draining: AtomicBool,
    in_flight: AtomicUsize,
    /// Connections with answers that their sockets have not taken.
    unsent: AtomicUsize,
    idle: Notify,
}

impl Drain {
    /// From now on connections are not kept alive and readiness fails. Requests are still served.
    pub fn begin(&self) {
        self.draining.store(true, Ordering::Release);
    }

    /// Returns whether this node shuts down.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    /// Requests between their first byte and their event.
    pub fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Acquire)
    }

    /// Counts a request until the guard is dropped.
    pub fn enter(self: &Arc<Drain>) -> InFlight {
        self.in_flight.fetch_add(1, Ordering::AcqRel);
        InFlight(Arc::clone(self))
    }

    /// Counts a connection whose answers may not have left until the guard is dropped.
    pub fn hold(self: &Arc<Drain>) -> UnsentAnswers {
        self.unsent.fetch_add(1, Ordering::AcqRel);
        UnsentAnswers(Arc::clone(self))
    }

    /// Returns when no request is in flight and all answers have left.
    pub async fn idle(&self) {
        loop {
            let idle = self.idle.notified();
            tokio::pin!(idle);
            // Registered before the count is read, so that the last one out cannot be missed.
            idle.as_mut().enable();
            if self.in_flight() == 0 && self.unsent.load(Ordering::Acquire) == 0 {
                return;
            }
            idle.await;
        }
    }
}

/// Counts one request in flight; released by drop.
pub struct InFlight(Arc<Drain>);

impl Drop for InFlight {
    fn drop(&mut self) {
        if self.0.in_flight.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.idle.notify_waiters();
        }
    }
}

/// Counts one connection with unsent answers, or without a first request; released by drop.
pub struct UnsentAnswers(Arc<Drain>);

impl Drop for UnsentAnswers {
    fn drop(&mut self) {
        if self.0.unsent.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.idle.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn idle_comes_with_the_last_request_that_ends() {
        let drain = Arc::new(Drain::default());
        let (one, two) = (drain.enter(), drain.enter());
        let waiting = drain.idle();
        tokio::pin!(waiting);
        assert!(futures_util::poll!(&mut waiting).is_pending());
        drop(one);
        assert!(futures_util::poll!(&mut waiting).is_pending());
        drop(two);
        waiting.await;
    }
}
