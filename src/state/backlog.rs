//! Bytes of an answer that its model server has sent and its client has not taken yet.
//!
//! Not the reading or writing itself. A stream keeps at most [`STREAM_MAX_BYTES`], all streams together
//! [`TOTAL_MAX_BYTES`]; each read is reserved ahead, so that one over the bound does not happen. With it a
//! server is done with an answer, and its permit free, before a slow client is.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, sleep_until};

/// The most one answer keeps: minutes of text at any pace, and a large image.
const STREAM_MAX_BYTES: u64 = 8 << 20;
/// The most all answers keep together: eight that are full.
const TOTAL_MAX_BYTES: u64 = 64 << 20;
/// Reserved for a read: the most that one brings.
const READ_MAX_BYTES: u64 = 64 << 10;

/// Bytes that all backlogs keep together.
#[derive(Default)]
pub struct BacklogBudget {
    held_bytes: AtomicU64,
}

impl BacklogBudget {
    /// Bytes kept at the moment.
    #[cfg(test)]
    pub fn held_bytes(&self) -> u64 {
        self.held_bytes.load(Ordering::Relaxed)
    }
}

/// Backlog of one response; released by drop.
pub struct Backlog {
    budget: Arc<BacklogBudget>,
    pieces: VecDeque<Bytes>,
    /// In `pieces`.
    bytes: u64,
    /// Bytes taken of the budget: `bytes`, and the reservation for the next read.
    taken: u64,
}

impl Backlog {
    /// Creates an empty backlog.
    pub fn new(budget: &Arc<BacklogBudget>) -> Backlog {
        Backlog {
            budget: Arc::clone(budget),
            pieces: VecDeque::new(),
            bytes: 0,
            taken: 0,
        }
    }

    /// Returns whether the backlog is empty.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Makes room for one read; false where there is none.
    pub fn reserve(&mut self) -> bool {
        let reserved = self.bytes + READ_MAX_BYTES;
        if reserved <= self.taken {
            return true;
        }
        let more = reserved - self.taken;
        let fits = |held: u64| held.checked_add(more).filter(|sum| *sum <= TOTAL_MAX_BYTES);
        let has_room = reserved <= STREAM_MAX_BYTES
            && self
                .budget
                .held_bytes
                .fetch_update(Ordering::AcqRel, Ordering::Acquire, fits)
                .is_ok();
        if has_room {
            self.taken = reserved;
        }
        has_room
    }

    /// Keeps what a read has brought. A task that makes more of it than was read may pass the bound
    /// by that.
    pub fn push(&mut self, piece: Bytes) {
        if !piece.is_empty() {
            self.bytes += piece.len() as u64;
            self.set_taken(self.taken.max(self.bytes));
            self.pieces.push_back(piece);
        }
    }

    /// Takes the oldest piece out.
    pub fn pop(&mut self) -> Option<Bytes> {
        let piece = self.pieces.pop_front()?;
        self.bytes -= piece.len() as u64;
        self.set_taken(self.bytes);
        Some(piece)
    }

    fn set_taken(&mut self, taken: u64) {
        let held = &self.budget.held_bytes;
        match taken >= self.taken {
            true => held.fetch_add(taken - self.taken, Ordering::AcqRel),
            false => held.fetch_sub(self.taken - taken, Ordering::AcqRel),
        };
        self.taken = taken;
    }
}

impl Drop for Backlog {
    fn drop(&mut self) {
        self.set_taken(0);
    }
}

/// Watches how fast a client takes an answer while its backlog is full, in windows of
/// `timeouts.stream_idle_secs`.
pub struct ReaderPace {
    window: Duration,
    /// Bytes to be taken in a window.
    floor: u64,
    ends: Instant,
    /// Bytes taken on the connection when the window began.
    before: u64,
}

impl ReaderPace {
    /// A window begins now, with `sent` bytes taken so far.
    pub fn begin(window: Duration, bytes_per_sec: u64, sent: u64) -> ReaderPace {
        ReaderPace {
            window,
            floor: bytes_per_sec.saturating_mul(window.as_secs()),
            ends: Instant::now() + window,
            before: sent,
        }
    }

    /// Returns once a window has ended with less than its floor.
    pub async fn wait_until_too_slow(&mut self, sent: &AtomicU64) {
        loop {
            sleep_until(self.ends).await;
            let now = sent.load(Ordering::Relaxed);
            if now.saturating_sub(self.before) < self.floor {
                return;
            }
            self.before = now;
            self.ends = Instant::now() + self.window;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(budget: &Arc<BacklogBudget>) -> Backlog {
        let mut backlog = Backlog::new(budget);
        while backlog.reserve() {
            backlog.push(Bytes::from(vec![0; READ_MAX_BYTES as usize]));
        }
        backlog
    }

    #[test]
    fn a_stream_keeps_8_mib_and_all_together_64() {
        let budget = Arc::default();
        let mut all: Vec<Backlog> = (0..9).map(|_| filled(&budget)).collect();
        assert_eq!(all[0].bytes, STREAM_MAX_BYTES);
        assert!(all[8].is_empty());
        assert_eq!(budget.held_bytes(), TOTAL_MAX_BYTES);
        all.remove(0);
        assert!(all[7].reserve());
        drop(all);
        assert_eq!(budget.held_bytes(), 0);
    }

    #[test]
    fn pieces_leave_in_the_order_they_came_and_make_room() {
        let budget = Arc::default();
        let mut backlog = Backlog::new(&budget);
        assert!(backlog.reserve());
        backlog.push("one".into());
        backlog.push("two".into());
        assert_eq!(backlog.pop().as_deref(), Some(&b"one"[..]));
        assert_eq!(budget.held_bytes(), 3);
        assert_eq!(backlog.pop().as_deref(), Some(&b"two"[..]));
        assert_eq!((backlog.pop(), budget.held_bytes()), (None, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_is_too_slow_in_the_first_window_below_the_floor() {
        let sent = AtomicU64::new(100);
        let window = Duration::from_secs(10);
        let mut pace = ReaderPace::begin(window, 2, 100);
        let started = Instant::now();
        sent.store(120, Ordering::Relaxed);
        pace.wait_until_too_slow(&sent).await;
        assert_eq!(started.elapsed().as_secs(), 20);
    }
}
