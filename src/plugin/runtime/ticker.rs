//! The tick by which guests' deadlines are measured: one thread of its own, once a millisecond.
//!
//! Runs on a thread of its own: the async runtime would starve it exactly when it is needed. A late tick is
//! counted and not made up for; what a guest has used is asked of its thread's own clock at each tick. After
//! [`REST_AFTER_TICKS`] without a running guest it rests until one begins, so that a gateway nobody asks
//! wakes no processor. Owned by the engine's runtime; dropping it ends and joins the thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};
use wasmtime::EngineWeak;

use crate::telemetry::Clock;

/// The unit of deadlines.
const TICK: Duration = Duration::from_millis(1);
/// A tick this late has missed at least one.
const LATE_US: u64 = 2_000;
/// Under load a guest runs at each of them: then no call pays for waking the thread.
const REST_AFTER_TICKS: u32 = 2;

/// The ticking thread.
pub struct Ticker {
    shared: Arc<TickerState>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct TickerState {
    /// Set to end the thread; shared with the thread only.
    ended: Mutex<bool>,
    wake: Condvar,
    missed: AtomicU64,
    /// Guests that run.
    running: AtomicUsize,
    /// True while the ticks rest, until `wake` is called; changed under the lock of `ended`.
    rests: AtomicBool,
}

/// Registration of a running guest: while one exists, the ticks come. Ended by drop as well.
pub struct TickHandle {
    shared: Arc<TickerState>,
    lasts: bool,
}

impl TickHandle {
    /// The guest runs from now on.
    pub fn begin(&mut self) {
        if std::mem::replace(&mut self.lasts, true) {
            return;
        }
        // Told before it is asked whether the thread rests, as the thread rests before it asks
        // whether anybody runs: one of the two sees the other.
        self.shared.running.fetch_add(1, Ordering::SeqCst);
        if self.shared.rests.load(Ordering::SeqCst) {
            let _ended = self.shared.ended.lock();
            self.shared.rests.store(false, Ordering::SeqCst);
            self.shared.wake.notify_all();
        }
    }

    /// Ends the call: the guest is idle until the next.
    pub fn end(&mut self) {
        if std::mem::replace(&mut self.lasts, false) {
            self.shared.running.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

impl Drop for TickHandle {
    fn drop(&mut self) {
        self.end();
    }
}

impl Ticker {
    /// Starts ticking.
    ///
    /// # Errors
    /// The operating system gives no thread.
    pub fn start(engine: EngineWeak, clock: Clock) -> std::io::Result<Ticker> {
        let shared = Arc::new(TickerState::default());
        let of_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("plugin-ticker".into())
            .spawn(move || of_thread.tick(&engine, clock))?;
        Ok(Ticker {
            shared,
            thread: Some(thread),
        })
    }

    /// The turns of a guest that does not run yet.
    pub fn handle(&self) -> TickHandle {
        TickHandle {
            shared: Arc::clone(&self.shared),
            lasts: false,
        }
    }

    /// True when the ticker rests until a guest runs.
    pub fn is_resting(&self) -> bool {
        self.shared.rests.load(Ordering::Relaxed)
    }

    /// Ticks that came so late that others were left out.
    pub fn missed(&self) -> u64 {
        self.shared.missed.load(Ordering::Relaxed)
    }
}

impl TickerState {
    fn tick(&self, engine: &EngineWeak, clock: Clock) {
        let mut last_us = clock.micros();
        let mut idle_ticks = 0;
        let mut ended = self.ended.lock();
        while !*ended {
            idle_ticks = match self.running.load(Ordering::SeqCst) {
                0 => idle_ticks + 1,
                _ => 0,
            };
            if idle_ticks > REST_AFTER_TICKS {
                self.rest(&mut ended);
                last_us = clock.micros();
                idle_ticks = 0;
            }
            self.wake.wait_for(&mut ended, TICK);
            let Some(engine) = engine.upgrade() else {
                return;
            };
            engine.increment_epoch();
            let now_us = clock.micros();
            let gap_us = now_us.saturating_sub(last_us);
            if gap_us >= LATE_US {
                self.missed.fetch_add(gap_us / 1000 - 1, Ordering::Relaxed);
            }
            last_us = now_us;
        }
    }

    /// Waits until a guest runs, or the end.
    fn rest(&self, ended: &mut MutexGuard<'_, bool>) {
        self.rests.store(true, Ordering::SeqCst);
        while !**ended
            && self.rests.load(Ordering::SeqCst)
            && self.running.load(Ordering::SeqCst) == 0
        {
            self.wake.wait(ended);
        }
        self.rests.store(false, Ordering::SeqCst);
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        *self.shared.ended.lock() = true;
        self.shared.wake.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been reported by the panic hook.
            let _ = thread.join();
        }
    }
}
