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
    drain_begins: Notify,
    in_flight: AtomicUsize,
    /// Connections with answers that their sockets have not taken.
    unsent: AtomicUsize,
    idle: Notify,
    /// WebSockets that are open.
    websockets: AtomicUsize,
    /// The last moment of connections that go on until then.
    is_ending: AtomicBool,
    ending: Notify,
}

impl Drain {
    /// From now on connections are not kept alive and readiness fails. Requests are still served.
    pub fn begin(&self) {
        self.draining.store(true, Ordering::Release);
        self.drain_begins.notify_waiters();
    }

    /// Returns once this node shuts down.
    pub async fn draining(&self) {
        let draining = self.drain_begins.notified();
        tokio::pin!(draining);
        // Registered before the flag is read, so that the call cannot be missed.
        draining.as_mut().enable();
        if !self.is_draining() {
            draining.await;
        }
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

    /// Counts a WebSocket until the guard is dropped.
    pub fn count_websocket(self: &Arc<Drain>) -> CountedWebSocket {
        self.websockets.fetch_add(1, Ordering::AcqRel);
        CountedWebSocket(Arc::clone(self))
    }

    /// WebSockets that are open.
    pub fn websockets(&self) -> usize {
        self.websockets.load(Ordering::Acquire)
    }

    /// Ends connections that would go on: the time of the drain is over.
    pub fn end_connections(&self) {
        self.is_ending.store(true, Ordering::Release);
        self.ending.notify_waiters();
    }

    /// Returns once [`end_connections`](Self::end_connections) was called.
    pub async fn ending(&self) {
        let ending = self.ending.notified();
        tokio::pin!(ending);
        // Registered before the flag is read, so that the call cannot be missed.
        ending.as_mut().enable();
        if !self.is_ending.load(Ordering::Acquire) {
            ending.await;
        }
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

/// Counts one open WebSocket; released by drop.
pub struct CountedWebSocket(Arc<Drain>);

impl Drop for CountedWebSocket {
    fn drop(&mut self) {
        self.0.websockets.fetch_sub(1, Ordering::AcqRel);
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
