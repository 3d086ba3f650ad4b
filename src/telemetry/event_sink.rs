//! Sink of inference events: a bounded queue, one writer thread, one file of JSON lines, and a socket beside it.
//!
//! Never blocks the caller. Emitting pushes into a queue of [`QUEUE_EVENTS`]. The writer sleeps until there
//! is an event. From then on it looks every [`WRITE_INTERVAL`] until there is none, so a busy gateway pays no
//! system call per event and a crash loses at most one interval. Events that do not fit, or cannot be written,
//! are dropped and counted. Events are emitted by the pipeline's drop guard; the sink is started, reconfigured
//! and closed by `app`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use std::vec::Drain;
use std::{fmt, io};

use bytes::Bytes;
use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::oneshot;

use super::clock::{Clock, TimestampFormatter};
use super::event::InferenceEvent;
use super::rotating_file::RotatingFile;
pub use config::{Durability, EventFileConfig, EventsConfig};
use queue::{EventContent, EventQueue, PushResult, QueuedEvent};
pub use socket::SocketCounts;
use socket::SocketTally;
use targets::EventTargets;

mod config;
mod queue;
mod sample;
mod socket;
mod targets;

/// Events that may wait for the writer: 100 ms of them at 650,000 requests a second, and 32 MiB. As many
/// may be in the writer's hands while a disk hangs.
pub const QUEUE_EVENTS: usize = 65_536;

/// Interval at which the writer looks at the queue while there are events. Half of the 100 ms an event may
/// stay in memory, so that the write itself has the other half.
pub const WRITE_INTERVAL: Duration = Duration::from_millis(50);

/// Bytes gathered for one write: large enough that system calls do not count, small enough that
/// the buffer does not.
const BATCH_BYTES: u64 = 256 * 1024;

/// Result of storing an event that must be on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreResult {
    /// Stored on the disk.
    OnDisk,
    /// Dropped, and counted.
    Lost,
    /// No file is configured.
    NoFile,
}

/// Counts since the start; `events` of `/state`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct EventCounts {
    /// Handed to the sink while a file or a socket was configured.
    pub emitted: u64,
    /// Whole lines in the file.
    pub written: u64,
    /// Left out of the file, because it gets a share of the events.
    pub sampled_out: u64,
    /// All that were not written and will not be: the sum of the three below.
    pub dropped: u64,
    /// Dropped because the queue was full.
    pub dropped_overrun: u64,
    /// Dropped because the file could not be written.
    pub dropped_write_failed: u64,
    /// Dropped because the sink was closed or its file taken out of the configuration.
    pub dropped_closed: u64,
    /// The last failure to write, none once writing works again.
    pub last_error: Option<String>,
    /// The socket; none where it was never configured.
    pub unix_socket: Option<SocketCounts>,
}

/// The handle of the event file. Share it in an `Arc`.
pub struct EventSink {
    shared: Arc<SinkState>,
    queue: Arc<EventQueue>,
    writer: thread::Thread,
    /// Taken by the first `close`; nobody else holds it.
    ending: Mutex<Option<WriterThread>>,
}

struct WriterThread {
    thread: JoinHandle<()>,
    /// Hangs up when the writer thread ends.
    done: Receiver<()>,
}

#[derive(Default)]
struct SinkState {
    /// A file or a socket is configured.
    enabled: AtomicBool,
    closing: AtomicBool,
    /// Another process appends to the same file.
    is_shared: AtomicBool,
    /// The newest configuration, until the writer takes it over. Held by `reconfigure` and the writer, for one
    /// assignment.
    next: Mutex<Option<EventsConfig>>,
    emitted: AtomicU64,
    written: AtomicU64,
    sampled_out: AtomicU64,
    /// A socket is configured, or was.
    has_socket: AtomicBool,
    socket: Arc<SocketTally>,
    dropped_overrun: AtomicU64,
    dropped_write_failed: AtomicU64,
    dropped_closed: AtomicU64,
    /// Held by the writer and by `counts`, for one clone.
    last_error: Mutex<Option<String>>,
}

impl SinkState {
    fn enable(&self, config: &EventsConfig) {
        let has_socket = config.unix_socket.is_some();
        self.has_socket.fetch_or(has_socket, Ordering::Relaxed);
        let enabled = has_socket || config.file.is_some();
        self.enabled.store(enabled, Ordering::Release);
    }
}

impl EventSink {
    /// Says whether another process appends to the same file, as in an upgrade.
    pub fn set_shared(&self, is_shared: bool) {
        self.shared.is_shared.store(is_shared, Ordering::Relaxed);
    }

    /// Starts a writer of rendered lines alone, of which so many may wait. `what` names them in the log.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start_lines(
        what: &'static str,
        config: &EventsConfig,
        clock: Clock,
        queue_lines: usize,
    ) -> io::Result<EventSink> {
        Self::start_of(Some(what), config, clock, queue_lines, WRITE_INTERVAL)
    }

    /// Starts the writer thread. Without a file, events are dropped silently until
    /// [`reconfigure`](EventSink::reconfigure) names one.
    pub fn start(config: &EventsConfig, clock: Clock) -> io::Result<EventSink> {
        Self::start_with(config, clock, QUEUE_EVENTS, WRITE_INTERVAL)
    }

    fn start_with(
        config: &EventsConfig,
        clock: Clock,
        queue_events: usize,
        write_interval: Duration,
    ) -> io::Result<EventSink> {
        Self::start_of(None, config, clock, queue_events, write_interval)
    }

    fn start_of(
        lines: Option<&'static str>,
        config: &EventsConfig,
        clock: Clock,
        queue_events: usize,
        write_interval: Duration,
    ) -> io::Result<EventSink> {
        let queue = Arc::new(EventQueue::new(queue_events));
        let (alive, done) = mpsc::sync_channel(0);
        let shared = Arc::new(SinkState::default());
        shared.enable(config);
        let mut writer = EventWriter::new(config, clock, &shared, &queue, write_interval, alive);
        if let Some(what) = lines {
            writer.what = what;
            writer.targets.pass_as_they_are();
        }
        let thread = thread::Builder::new()
            .name("events".into())
            .spawn(move || writer.run())?;
        let writer = thread.thread().clone();
        Ok(EventSink {
            shared,
            queue,
            writer,
            ending: Mutex::new(Some(WriterThread { thread, done })),
        })
    }

    /// Hands an event over. Never blocks; makes no system call but the one that wakes a writer at rest.
    pub fn write(&self, event: InferenceEvent) {
        self.push(EventContent::Event(event), None);
    }

    /// Hands over a line that was rendered before, newline included. Never blocks.
    pub fn write_line(&self, line: Bytes) {
        self.push(EventContent::Line(line), None);
    }

    /// Hands an event over and says when it is on the disk. Events of one interval share one
    /// fdatasync. A receiver whose sender is gone means [`StoreResult::Lost`].
    pub fn write_durable(&self, event: InferenceEvent) -> oneshot::Receiver<StoreResult> {
        self.push_durable(EventContent::Event(event))
    }

    /// The same for a line that was rendered before, newline included.
    pub fn write_line_durable(&self, line: Bytes) -> oneshot::Receiver<StoreResult> {
        self.push_durable(EventContent::Line(line))
    }

    fn push_durable(&self, content: EventContent) -> oneshot::Receiver<StoreResult> {
        let (stored, receiver) = oneshot::channel();
        self.push(content, Some(stored));
        self.writer.unpark();
        receiver
    }

    /// Takes over the event file of a new configuration. Events already emitted go to the old one.
    pub fn reconfigure(&self, config: &EventsConfig) {
        *self.shared.next.lock() = Some(config.clone());
        self.shared.enable(config);
        self.writer.unpark();
    }

    /// Counts since the start.
    pub fn counts(&self) -> EventCounts {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let shared = &*self.shared;
        let dropped_overrun = get(&shared.dropped_overrun);
        let dropped_write_failed = shared.dropped_write_failed.load(Ordering::Acquire);
        let dropped_closed = get(&shared.dropped_closed);
        EventCounts {
            emitted: get(&shared.emitted),
            written: get(&shared.written),
            sampled_out: get(&shared.sampled_out),
            dropped: dropped_overrun + dropped_write_failed + dropped_closed,
            dropped_overrun,
            dropped_write_failed,
            dropped_closed,
            last_error: shared.last_error.lock().clone(),
            unix_socket: shared
                .has_socket
                .load(Ordering::Relaxed)
                .then(|| shared.socket.counts()),
        }
    }

    /// Writes what is queued and ends the writer thread; blocks for at most `limit`. False when a
    /// disk that hangs did not let it finish; the thread is then left behind.
    pub fn close(&self, limit: Duration) -> bool {
        self.shared.closing.store(true, Ordering::Release);
        self.writer.unpark();
        let Some(WriterThread { thread, done }) = self.ending.lock().take() else {
            return true;
        };
        match done.recv_timeout(limit) {
            Err(RecvTimeoutError::Timeout) => false,
            Ok(()) | Err(RecvTimeoutError::Disconnected) => thread.join().is_ok(),
        }
    }

    // Inlined, so that the event is moved to its place and not from call to call.
    #[inline]
    fn push(&self, content: EventContent, stored: Option<oneshot::Sender<StoreResult>>) {
        let shared = &*self.shared;
        if !shared.enabled.load(Ordering::Acquire) {
            answer(stored, StoreResult::NoFile);
            return;
        }
        shared.emitted.fetch_add(1, Ordering::Relaxed);
        if shared.closing.load(Ordering::Acquire) {
            shared.dropped_closed.fetch_add(1, Ordering::Relaxed);
            answer(stored, StoreResult::Lost);
            return;
        }
        match self.queue.push(content, stored) {
            PushResult::Queued => {}
            PushResult::QueuedFirst => self.writer.unpark(),
            PushResult::Full(stored) => {
                shared.dropped_overrun.fetch_add(1, Ordering::Relaxed);
                answer(stored, StoreResult::Lost);
            }
            PushResult::Closed(stored) => {
                shared.dropped_closed.fetch_add(1, Ordering::Relaxed);
                answer(stored, StoreResult::Lost);
            }
        }
    }
}

impl Drop for EventSink {
    fn drop(&mut self) {
        self.shared.closing.store(true, Ordering::Release);
        self.writer.unpark();
    }
}

impl fmt::Debug for EventSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventSink")
            .field("counts", &self.counts())
            .finish_non_exhaustive()
    }
}

fn answer(waiting: Option<oneshot::Sender<StoreResult>>, stored: StoreResult) {
    if let Some(waiting) = waiting {
        // The waiter may have gone, with the client.
        let _ = waiting.send(stored);
    }
}

/// The writer thread's own.
struct EventWriter {
    shared: Arc<SinkState>,
    queue: Arc<EventQueue>,
    write_interval: Duration,
    clock: Clock,
    stamp: TimestampFormatter,
    file: Option<RotatingFile>,
    targets: EventTargets,
    /// Room for what is taken from the queue; empty between two turns.
    taken: Vec<QueuedEvent>,
    batch: Vec<u8>,
    waiting: Vec<oneshot::Sender<StoreResult>>,
    /// The last write failed: it is logged when this changes, not each time.
    failing: bool,
    /// Name of the lines in the log.
    what: &'static str,
    /// Dropped with the thread, which `close` waits for.
    _alive: SyncSender<()>,
}

impl EventWriter {
    fn new(
        config: &EventsConfig,
        clock: Clock,
        shared: &Arc<SinkState>,
        queue: &Arc<EventQueue>,
        write_interval: Duration,
        alive: SyncSender<()>,
    ) -> EventWriter {
        EventWriter {
            shared: Arc::clone(shared),
            queue: Arc::clone(queue),
            write_interval,
            clock,
            stamp: TimestampFormatter::default(),
            file: config
                .file
                .as_ref()
                .map(|file| RotatingFile::new(file.settings())),
            targets: EventTargets::new(config, &shared.socket),
            taken: Vec::new(),
            batch: Vec::new(),
            waiting: Vec::new(),
            failing: false,
            what: "inference events",
            _alive: alive,
        }
    }

    fn run(mut self) {
        loop {
            let closing = self.shared.closing.load(Ordering::Acquire);
            if self.shared.next.lock().is_some() {
                // What was emitted before the new configuration goes to the old file.
                if self.file.is_some() {
                    self.write_queued();
                }
                self.take_over();
            }
            let has_written = self.write_queued();
            if closing {
                // Those who looked at `closing` just before it was set.
                self.queue.close();
                self.write_queued();
                self.targets.close();
                return;
            }
            self.wait(has_written);
        }
    }

    /// Sleeps until there may be something to do. Woken early by `write_durable`, `reconfigure` and `close`.
    fn wait(&self, has_written: bool) {
        if has_written {
            // More are likely to come: they are gathered, and none of them wakes this thread.
            thread::park_timeout(self.write_interval);
        } else if self.queue.begin_rest() {
            thread::park();
        }
    }

    /// Writes what is in the queue now, batch by batch, so that a new configuration gets its turn under any
    /// load. Returns whether there was something.
    fn write_queued(&mut self) -> bool {
        let mut taken = std::mem::take(&mut self.taken);
        self.queue.take(&mut taken);
        let has_any = !taken.is_empty();
        let mut events = taken.drain(..);
        while !events.as_slice().is_empty() {
            let count = self.fill_batch(&mut events);
            self.write_batch(count);
        }
        drop(events);
        self.taken = taken;
        has_any
    }

    /// Formats events into the batch, one at least; returns their number.
    fn fill_batch(&mut self, events: &mut Drain<'_, QueuedEvent>) -> usize {
        let bytes_max = match &self.file {
            Some(file) => file.batch_max_bytes().min(BATCH_BYTES) as usize,
            None => BATCH_BYTES as usize,
        };
        let now_us = self.clock.micros();
        let wall = self.clock.wall();
        self.batch.clear();
        let mut count = 0;
        for QueuedEvent { content, stored } in events {
            let begin = self.batch.len();
            match content {
                EventContent::Event(event) => {
                    let ago = Duration::from_micros(now_us.saturating_sub(event.ended_us));
                    event.write_line(self.stamp.text(wall - ago), &mut self.batch);
                }
                EventContent::Line(line) => self.batch.extend_from_slice(&line),
            }
            self.waiting.extend(stored);
            match self.targets.complete(&mut self.batch, begin) {
                true => count += 1,
                false => drop(self.shared.sampled_out.fetch_add(1, Ordering::Relaxed)),
            }
            if self.batch.len() >= bytes_max {
                break;
            }
        }
        count
    }

    fn take_over(&mut self) {
        let Some(next) = self.shared.next.lock().take() else {
            return;
        };
        let file = next.file.as_ref();
        self.file = file.map(|file| RotatingFile::new(file.settings()));
        self.targets.configure(&next, &self.shared.socket);
    }

    fn write_batch(&mut self, count: usize) {
        if self.file.is_none() {
            // The first events after a file was configured may come before the next look at it.
            self.take_over();
        }
        let Some(file) = &mut self.file else {
            // With a socket alone that is no loss.
            if !self.targets.has_socket() {
                self.shared
                    .dropped_closed
                    .fetch_add(count as u64, Ordering::Relaxed);
            }
            self.answer_all(StoreResult::NoFile);
            return;
        };
        if count == 0 {
            // Nothing more will come of those that were left out.
            self.answer_all(StoreResult::OnDisk);
            return;
        }
        file.set_shared(self.shared.is_shared.load(Ordering::Relaxed));
        let appended = file.append(&self.batch);
        let written = appended.line_count.unwrap_or(count).min(count) as u64;
        let lost = (count as u64).saturating_sub(written);
        let mut problem = appended.problem;
        if !self.waiting.is_empty()
            && lost == 0
            && let Err(unsynced) = file.sync()
        {
            problem = Some(unsynced);
        }
        let stored = match problem {
            None => StoreResult::OnDisk,
            Some(_) => StoreResult::Lost,
        };
        // The reason goes before the count: a reader that sees a drop counted finds its reason.
        self.note(problem);
        self.shared.written.fetch_add(written, Ordering::Relaxed);
        self.shared
            .dropped_write_failed
            .fetch_add(lost, Ordering::Release);
        self.answer_all(stored);
    }

    fn answer_all(&mut self, stored: StoreResult) {
        for waiting in self.waiting.drain(..) {
            answer(Some(waiting), stored);
        }
    }

    fn note(&mut self, problem: Option<io::Error>) {
        match problem {
            Some(problem) => {
                if !self.failing {
                    tracing::warn!(%problem, "cannot write {}, dropping them", self.what);
                }
                self.failing = true;
                *self.shared.last_error.lock() = Some(problem.to_string());
            }
            None if self.failing => {
                tracing::info!("{} are written again", self.what);
                self.failing = false;
                *self.shared.last_error.lock() = None;
            }
            None => {}
        }
    }
}

impl Drop for EventWriter {
    fn drop(&mut self) {
        // After a panic as well: no event shall wait for a writer that is gone.
        self.queue.close();
        let mut left = Vec::new();
        self.queue.take(&mut left);
        let dropped = &self.shared.dropped_closed;
        dropped.fetch_add(left.len() as u64, Ordering::Relaxed);
        for QueuedEvent { stored, .. } in left {
            answer(stored, StoreResult::Lost);
        }
    }
}

#[cfg(test)]
mod tests;
