//! The gate's lock: parking_lot's, or shuttle's where interleavings are explored.
//!
//! No general abstraction: only what the gate calls is here. The feature `shuttle` exists for
//! `gate/interleavings.rs` alone.

#[cfg(not(feature = "shuttle"))]
pub use parking_lot::Mutex;
#[cfg(feature = "shuttle")]
use shuttle::sync::MutexGuard;

/// shuttle's mutex with parking_lot's interface: a panicking holder ends the test anyway.
#[cfg(feature = "shuttle")]
pub struct Mutex<T>(shuttle::sync::Mutex<T>);

#[cfg(feature = "shuttle")]
impl<T> Mutex<T> {
    pub fn new(value: T) -> Mutex<T> {
        Mutex(shuttle::sync::Mutex::new(value))
    }

    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0
            .lock()
            .expect("a panic under the lock ends the exploration")
    }
}
