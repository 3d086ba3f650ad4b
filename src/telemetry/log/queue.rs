//! Queue of log lines for standard error: a bounded buffer and one writer thread.
//!
//! Never blocks a caller: a line that does not fit is dropped and counted, and the log reports the
//! count once lines are accepted again. Formats nothing.

use std::io::{self, Write};
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use tracing_subscriber::fmt::MakeWriter;

/// Bytes of lines that wait for the writer: some 5,000 lines, which a reader that is merely slow takes in
/// less than a second.
const QUEUE_BYTES_MAX: usize = 1024 * 1024;
/// A buffer that has grown beyond this is not kept.
const KEPT_BYTES_MAX: usize = 64 * 1024;

/// Handle of the writer thread; clones share it.
#[derive(Clone, Debug)]
pub struct LineQueue {
    shared: Arc<LineQueueState>,
    writer: thread::Thread,
    /// Hangs up when the writer thread ends. Guards nothing else.
    done: Arc<Mutex<Receiver<()>>>,
}

#[derive(Debug, Default)]
struct LineQueueState {
    /// Whole lines that the writer has not taken. Held for one copy or one swap.
    waiting: Mutex<Vec<u8>>,
    dropped: AtomicU64,
    closing: AtomicBool,
}

impl LineQueue {
    /// Starts the writer thread, which ends with [`LineQueue::close`] or the process.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(out: impl Write + Send + 'static) -> io::Result<LineQueue> {
        let shared = Arc::new(LineQueueState::default());
        let (alive, done) = mpsc::sync_channel(0);
        let writer = LineWriter {
            shared: Arc::clone(&shared),
            out,
            _alive: alive,
        };
        let thread = thread::Builder::new()
            .name("log".into())
            .spawn(move || writer.run())?;
        Ok(LineQueue {
            shared,
            writer: thread.thread().clone(),
            done: Arc::new(Mutex::new(done)),
        })
    }

    /// Lines dropped since the start.
    pub fn dropped(&self) -> u64 {
        self.shared.dropped.load(Ordering::Relaxed)
    }

    /// Writes what is queued and ends the thread; blocks for at most `limit`.
    pub fn close(&self, limit: Duration) {
        self.shared.closing.store(true, Ordering::Release);
        self.writer.unpark();
        // Ended or not: a reader that takes nothing must not keep the process.
        let _ = self.done.lock().recv_timeout(limit);
    }

    fn push(&self, line: &[u8]) {
        let mut waiting = self.shared.waiting.lock();
        if waiting.len() + line.len() > QUEUE_BYTES_MAX {
            drop(waiting);
            self.shared.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let was_empty = waiting.is_empty();
        waiting.extend_from_slice(line);
        drop(waiting);
        if was_empty {
            self.writer.unpark();
        }
    }
}

/// The subscriber writes each record by one call.
impl Write for &LineQueue {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.push(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for LineQueue {
    type Writer = &'a LineQueue;

    fn make_writer(&'a self) -> &'a LineQueue {
        self
    }
}

struct LineWriter<W> {
    shared: Arc<LineQueueState>,
    out: W,
    /// Dropped with the thread.
    _alive: SyncSender<()>,
}

impl<W: Write> LineWriter<W> {
    fn run(mut self) {
        let mut batch = Vec::new();
        let mut reported = 0;
        loop {
            let closing = self.shared.closing.load(Ordering::Acquire);
            mem::swap(&mut *self.shared.waiting.lock(), &mut batch);
            if batch.is_empty() {
                if closing {
                    return;
                }
                thread::park();
                continue;
            }
            // No place is left to report a failure.
            let _ = self.out.write_all(&batch);
            batch.clear();
            batch.shrink_to(KEPT_BYTES_MAX);
            let dropped = self.shared.dropped.load(Ordering::Relaxed);
            if dropped > reported {
                let lines = dropped - mem::replace(&mut reported, dropped);
                tracing::warn!(
                    lines,
                    "log lines were dropped: standard error did not take them"
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Standard error of which nothing is read until it is allowed.
    struct Stalled {
        go: Receiver<()>,
        seen: Arc<Mutex<Vec<u8>>>,
    }

    impl Write for Stalled {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.go.recv();
            self.seen.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_reader_that_stops_costs_lines_and_never_a_callers_time() {
        let (allow, go) = mpsc::sync_channel::<()>(0);
        let seen = Arc::new(Mutex::new(Vec::new()));
        let out = Stalled {
            go,
            seen: Arc::clone(&seen),
        };
        let lines = LineQueue::start(out).unwrap();
        let line = [b'x'; 1024];
        for _ in 0..3 * QUEUE_BYTES_MAX / line.len() {
            (&lines).write_all(&line).unwrap();
        }
        assert!(lines.dropped() >= (QUEUE_BYTES_MAX / line.len()) as u64);
        drop(allow);
        lines.close(Duration::from_secs(60));
        let written = seen.lock().len() as u64 / 1024;
        assert_eq!(
            written + lines.dropped(),
            3 * (QUEUE_BYTES_MAX / 1024) as u64
        );
    }
}
