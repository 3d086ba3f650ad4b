//! Measures how long a poll of a task holds its worker.
//!
//! A held worker serves no other task, and may keep all other sockets from being polled. Time is
//! read from the kernel's coarse clock, twice a poll, a few nanoseconds each; its step is 1 to 10
//! ms. Work that has left its worker ([`off_the_worker`]) does not count.

use std::cell::Cell;
use std::pin::Pin;
use std::task::{Context, Poll};

use prometheus::core::Collector;
use prometheus::{Counter, IntCounter, Registry};
use rustix::time::{ClockId, clock_gettime};
use tokio::runtime::{Handle, RuntimeFlavor};

use super::clock::PollClock;

/// Milliseconds of one poll above which its worker counts as blocked.
pub const BLOCKED_MS: u64 = 50;

thread_local! {
    /// The poll under way has left its worker to others.
    static LEFT: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work` where it holds up no other request: the worker hands its other tasks to another thread
/// first. Outside of a runtime of several workers, or when `leaves` is false, it runs as it is.
pub fn off_the_worker<T>(leaves: bool, work: impl FnOnce() -> T) -> T {
    let on_a_worker = leaves
        && Handle::try_current()
            .is_ok_and(|handle| handle.runtime_flavor() == RuntimeFlavor::MultiThread);
    if !on_a_worker {
        return work();
    }
    LEFT.set(true);
    let done = tokio::task::block_in_place(work);
    PollClock::expire();
    done
}

/// Runs a task and reports each of its polls that held its worker for `BLOCKED_MS` or longer.
// Not an `async fn`: its future would have room for the task beside the box, for as long as a connection lives.
pub fn watched<F: Future>(
    task: F,
    blocked: impl Fn(u64) + Unpin,
) -> impl Future<Output = F::Output> {
    WatchedTask {
        task: Box::pin(task),
        blocked,
    }
}

struct WatchedTask<F, B> {
    task: Pin<Box<F>>,
    blocked: B,
}

impl<F: Future, B: Fn(u64) + Unpin> Future for WatchedTask<F, B> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, ctx: &mut Context<'_>) -> Poll<F::Output> {
        let began_ms = coarse_ms();
        LEFT.set(false);
        let _clock = PollClock::begin();
        let polled = self.task.as_mut().poll(ctx);
        let held_ms = coarse_ms().saturating_sub(began_ms);
        if held_ms >= BLOCKED_MS && !LEFT.get() {
            (self.blocked)(held_ms);
        }
        polled
    }
}

fn coarse_ms() -> u64 {
    #[cfg(target_os = "linux")]
    let now = clock_gettime(ClockId::MonotonicCoarse);
    #[cfg(not(target_os = "linux"))]
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.cast_unsigned() * 1000 + now.tv_nsec.cast_unsigned() / 1_000_000
}

/// Counters of workers that were held.
pub(super) struct WorkerMetrics {
    times: IntCounter,
    seconds: Counter,
}

impl WorkerMetrics {
    /// Registers them.
    pub fn new(registry: &Registry) -> WorkerMetrics {
        let times = IntCounter::new(
            "infergate_workers_blocked_total",
            "times that one step of a request held its worker for 50 ms or longer",
        );
        let seconds = Counter::new(
            "infergate_workers_blocked_seconds_total",
            "seconds for which they were held then",
        );
        let times = times.expect("the name is a metric's");
        let seconds = seconds.expect("the name is a metric's");
        for counter in [
            Box::new(times.clone()) as Box<dyn Collector>,
            Box::new(seconds.clone()),
        ] {
            let registered = registry.register(counter);
            registered.expect("the name is registered once");
        }
        WorkerMetrics { times, seconds }
    }

    /// Records a worker that was held for so long.
    pub fn record_blocked(&self, held_ms: u64) {
        self.times.inc();
        self.seconds.inc_by(held_ms as f64 / 1000.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// Holds its thread for a while without giving it back.
    fn hold() {
        let until = coarse_ms() + BLOCKED_MS * 2;
        while coarse_ms() < until {
            std::hint::spin_loop();
        }
    }

    fn counted(leaves: bool) -> u64 {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .build()
            .unwrap();
        let seen = Arc::new(AtomicU64::new(0));
        let of_task = Arc::clone(&seen);
        let task = watched(async move { off_the_worker(leaves, hold) }, move |_| {
            of_task.fetch_add(1, Ordering::Relaxed);
        });
        runtime.block_on(async {
            let mut tasks = tokio::task::JoinSet::new();
            tasks.spawn(task);
            tasks.join_next().await
        });
        seen.load(Ordering::Relaxed)
    }

    #[test]
    fn a_poll_that_holds_its_worker_is_reported_and_one_that_left_it_is_not() {
        assert_eq!(counted(false), 1);
        assert_eq!(counted(true), 0);
    }
}
