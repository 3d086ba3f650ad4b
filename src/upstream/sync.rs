//! The gate's lock: parking_lot's. In unit tests it may be shuttle's as well, where interleavings are explored.
//!
//! No general abstraction: only what the gate calls is here.

#[cfg(not(test))]
pub use parking_lot::Mutex;

#[cfg(test)]
pub use explorable::{Mutex, exploring};

#[cfg(test)]
mod explorable {
    use std::cell::Cell;
    use std::ops::{Deref, DerefMut};

    thread_local! {
        static IS_EXPLORING: Cell<bool> = const { Cell::new(false) };
    }

    /// Runs `explore` with every lock that it makes on this thread being shuttle's, which runs all tasks of a schedule on
    /// the thread that explores.
    pub fn exploring(explore: impl FnOnce()) {
        IS_EXPLORING.set(true);
        let _exploration = Exploration;
        explore();
    }

    /// Ends by drop: a failed exploration panics, and its thread may run the next test.
    struct Exploration;

    impl Drop for Exploration {
        fn drop(&mut self) {
            IS_EXPLORING.set(false);
        }
    }

    /// parking_lot's mutex, or shuttle's with the same interface: a panicking holder ends the exploration anyway.
    pub enum Mutex<T> {
        Real(parking_lot::Mutex<T>),
        Explored(shuttle::sync::Mutex<T>),
    }

    impl<T> Mutex<T> {
        pub fn new(value: T) -> Mutex<T> {
            if IS_EXPLORING.get() {
                Mutex::Explored(shuttle::sync::Mutex::new(value))
            } else {
                Mutex::Real(parking_lot::Mutex::new(value))
            }
        }

        /// Returns whether shuttle switches tasks at this lock.
        pub fn is_explored(&self) -> bool {
            matches!(self, Mutex::Explored(_))
        }

        pub fn lock(&self) -> MutexGuard<'_, T> {
            match self {
                Mutex::Real(mutex) => MutexGuard::Real(mutex.lock()),
                Mutex::Explored(mutex) => MutexGuard::Explored(
                    mutex
                        .lock()
                        .expect("a panic under the lock ends the exploration"),
                ),
            }
        }
    }

    pub enum MutexGuard<'a, T> {
        Real(parking_lot::MutexGuard<'a, T>),
        Explored(shuttle::sync::MutexGuard<'a, T>),
    }

    impl<T> Deref for MutexGuard<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            match self {
                MutexGuard::Real(guard) => guard,
                MutexGuard::Explored(guard) => guard,
            }
        }
    }

    impl<T> DerefMut for MutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            match self {
                MutexGuard::Real(guard) => guard,
                MutexGuard::Explored(guard) => guard,
            }
        }
    }
}
