//! The tick by which guests' deadlines are measured: one thread of its own, once a millisecond.
//!
//! It is not on the async runtime, where it would starve exactly when it is needed. A late tick is
//! counted and not made up for; what a guest has used is asked of its thread's own clock at each tick.
//! Owned by the engine's runtime; dropping it ends and joins the thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use wasmtime::EngineWeak;

use crate::telemetry::Clock;

/// The unit of deadlines.
const TICK: Duration = Duration::from_millis(1);
/// A tick this late has missed at least one.
const LATE_US: u64 = 2_000;

/// The ticking thread.
pub struct Ticker {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    /// Whether to end; shared with the thread only.
    ended: Mutex<bool>,
    wake: Condvar,
    missed: AtomicU64,
}

impl Ticker {
    /// Starts ticking.
    ///
    /// # Errors
    /// When the operating system gives no thread.
    pub fn start(engine: EngineWeak, clock: Clock) -> std::io::Result<Ticker> {
        let shared = Arc::new(Shared::default());
        let of_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("plugin-ticker".into())
            .spawn(move || of_thread.tick(&engine, clock))?;
        Ok(Ticker {
            shared,
            thread: Some(thread),
        })
    }

    /// Ticks that came so late that others were left out.
    pub fn missed(&self) -> u64 {
        self.shared.missed.load(Ordering::Relaxed)
    }
}

impl Shared {
    fn tick(&self, engine: &EngineWeak, clock: Clock) {
        let mut last_us = clock.micros();
        let mut ended = self.ended.lock();
        while !*ended {
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
