//! Sender of events to a socket in the file system: a bounded queue and a thread of its own.
//!
//! Never blocks the writer of events. A line that the receiver has not taken [`WATCHDOG`] after it was handed over is
//! dropped, so that a receiver that hangs or is away costs lines and nothing else. The connection is made anew
//! where it breaks. Not a record of what is billed: that is the file.

use std::io::{self, ErrorKind, Write};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender, TrySendError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use infergate_core::Millis;
use infergate_core::vram::HostTime;
use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use serde::Serialize;

use super::config::{EventSocketConfig, SocketTransport};
use crate::telemetry::host_time;

/// Lines that may wait for the receiver: 24 MiB of usual ones.
pub const SOCKET_QUEUE_LINES: usize = 16_384;

/// Time for the receiver to take a line.
pub const WATCHDOG: Duration = Duration::from_secs(10);

/// Between two tries to reach a receiver that is away.
const RECONNECT_INTERVAL: Duration = Duration::from_millis(500);
/// Longest wait in one system call, for a place in the receiver's queue of connections or for room. So long an ending
/// gateway waits for a receiver that takes nothing.
const CALL_LIMIT: Duration = Duration::from_millis(200);

/// Counts since the start; `events.unix_socket` of `/state`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SocketCounts {
    /// Lines that the socket has taken.
    pub sent: u64,
    /// All that were not sent and will not be: the sum of the four below.
    pub dropped: u64,
    /// Dropped because the queue was full.
    pub dropped_overrun: u64,
    /// Dropped because the receiver did not take them in 10 seconds.
    pub dropped_late: u64,
    /// Dropped because they are longer than a datagram can be.
    pub dropped_too_long: u64,
    /// Dropped because the gateway ended, or another socket was configured.
    pub dropped_closed: u64,
    /// The last failure to send, none once sending works again.
    pub last_error: Option<String>,
}

impl SocketCounts {
    /// Results with their counts, as labels of a metric.
    pub fn results(&self) -> [(&'static str, u64); 5] {
        [
            ("sent", self.sent),
            ("overrun", self.dropped_overrun),
            ("late", self.dropped_late),
            ("too-long", self.dropped_too_long),
            ("closed", self.dropped_closed),
        ]
    }
}

/// Counts of the sender, over all sockets that were configured.
#[derive(Default)]
pub(super) struct SocketTally {
    sent: AtomicU64,
    dropped_overrun: AtomicU64,
    dropped_late: AtomicU64,
    dropped_too_long: AtomicU64,
    dropped_closed: AtomicU64,
    /// Held by the sender and by `counts`, for one clone.
    last_error: Mutex<Option<String>>,
}

impl SocketTally {
    /// Counts since the start.
    pub fn counts(&self) -> SocketCounts {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let [overrun, late, too_long, closed] = [
            &self.dropped_overrun,
            &self.dropped_late,
            &self.dropped_too_long,
            &self.dropped_closed,
        ]
        .map(get);
        SocketCounts {
            sent: get(&self.sent),
            dropped: overrun + late + too_long + closed,
            dropped_overrun: overrun,
            dropped_late: late,
            dropped_too_long: too_long,
            dropped_closed: closed,
            last_error: self.last_error.lock().clone(),
        }
    }
}

/// A line on its way to the receiver.
struct SocketLine {
    text: Box<[u8]>,
    late_at: HostTime,
}

/// Handle of the sender's thread. Dropping it ends the thread, after what the receiver takes without being waited for,
/// and waits for nothing: its holder writes the file.
pub(super) struct EventSocket {
    config: EventSocketConfig,
    watchdog: Duration,
    tally: Arc<SocketTally>,
    /// None once it is being dropped.
    lines: Option<SyncSender<SocketLine>>,
    is_closing: Arc<AtomicBool>,
    /// Wakes the thread from a pause.
    sender: thread::Thread,
    /// Taken by `close`.
    thread: Option<JoinHandle<()>>,
}

impl EventSocket {
    /// Starts the sender.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(
        config: &EventSocketConfig,
        tally: &Arc<SocketTally>,
        (queue_lines, watchdog): (usize, Duration),
    ) -> io::Result<EventSocket> {
        let (lines, waiting) = mpsc::sync_channel(queue_lines);
        let is_closing = Arc::new(AtomicBool::new(false));
        let sender = SocketSender {
            config: config.clone(),
            tally: Arc::clone(tally),
            is_closing: Arc::clone(&is_closing),
            open: None,
            next_try: host_time(),
            is_failing: false,
        };
        let thread = thread::Builder::new()
            .name("event-socket".into())
            .spawn(move || sender.run(&waiting))?;
        Ok(EventSocket {
            config: config.clone(),
            watchdog,
            tally: Arc::clone(tally),
            lines: Some(lines),
            is_closing,
            sender: thread.thread().clone(),
            thread: Some(thread),
        })
    }

    /// The configuration that it was started with.
    pub fn config(&self) -> &EventSocketConfig {
        &self.config
    }

    /// Ends the thread and waits for its end: lines that the receiver takes are sent before the process goes.
    pub fn close(mut self) {
        let thread = self.thread.take();
        drop(self);
        // A panic of the thread has been reported by the panic hook.
        let _ = thread.map(JoinHandle::join);
    }

    /// Hands a line over, newline included. Never blocks.
    pub fn offer(&self, line: &[u8]) {
        let Some(lines) = &self.lines else { return };
        let late_at = host_time() + millis(self.watchdog);
        let text = line.into();
        let dropped = match lines.try_send(SocketLine { text, late_at }) {
            Ok(()) => return,
            Err(TrySendError::Full(_)) => &self.tally.dropped_overrun,
            Err(TrySendError::Disconnected(_)) => &self.tally.dropped_closed,
        };
        dropped.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for EventSocket {
    fn drop(&mut self) {
        self.is_closing.store(true, Ordering::Release);
        self.lines = None;
        self.sender.unpark();
    }
}

enum OpenSocket {
    Stream(UnixStream),
    Datagram(UnixDatagram),
}

impl OpenSocket {
    fn open(config: &EventSocketConfig) -> io::Result<OpenSocket> {
        let path: &Path = &config.path;
        let address = SocketAddrUnix::new(path)?;
        let kind = match config.transport {
            SocketTransport::Stream => SocketType::STREAM,
            SocketTransport::Datagram => SocketType::DGRAM,
        };
        let socket = socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
        // Before the connection is made: a receiver that accepts none would be waited for without an end.
        set_socket_timeout(&socket, Timeout::Send, Some(CALL_LIMIT))?;
        connect(&socket, &address)?;
        Ok(match config.transport {
            SocketTransport::Stream => OpenSocket::Stream(socket.into()),
            SocketTransport::Datagram => OpenSocket::Datagram(socket.into()),
        })
    }

    /// Sends what the socket takes of `rest`: a datagram is sent whole.
    fn send(&mut self, rest: &[u8]) -> io::Result<usize> {
        match self {
            OpenSocket::Stream(stream) => match stream.write(rest)? {
                0 => Err(ErrorKind::WriteZero.into()),
                sent => Ok(sent),
            },
            OpenSocket::Datagram(socket) => socket.send(rest),
        }
    }
}

fn millis(span: Duration) -> Millis {
    Millis(u64::try_from(span.as_millis()).unwrap_or(u64::MAX))
}

/// Reason why a line was not sent.
enum Unsent {
    Late,
    Closing,
    TooLong,
}

/// The thread's own.
struct SocketSender {
    config: EventSocketConfig,
    tally: Arc<SocketTally>,
    is_closing: Arc<AtomicBool>,
    open: Option<OpenSocket>,
    next_try: HostTime,
    /// The last try failed: it is logged when this changes, not each time.
    is_failing: bool,
}

impl SocketSender {
    fn run(mut self, lines: &Receiver<SocketLine>) {
        let mut has_given_up = false;
        while let Ok(line) = lines.recv() {
            let sent = match has_given_up {
                true => Err(Unsent::Closing),
                false => self.send(&line),
            };
            // One wait at the end, not one for each line.
            has_given_up = matches!(sent, Err(Unsent::Closing));
            let counter = match sent {
                Ok(()) => &self.tally.sent,
                Err(Unsent::Late) => &self.tally.dropped_late,
                Err(Unsent::TooLong) => &self.tally.dropped_too_long,
                Err(Unsent::Closing) => &self.tally.dropped_closed,
            };
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Sends a line, over another connection from its begin where one breaks.
    fn send(&mut self, line: &SocketLine) -> Result<(), Unsent> {
        let mut sent = 0;
        loop {
            if host_time() >= line.late_at {
                // Half a line would run into the next one.
                self.open = self.open.take().filter(|_| sent == 0);
                return Err(Unsent::Late);
            }
            let tried = match &mut self.open {
                Some(open) => open.send(&line.text[sent..]),
                None => {
                    sent = 0;
                    self.connect(line.late_at)?;
                    continue;
                }
            };
            match tried {
                Ok(count) => {
                    sent += count;
                    if sent >= line.text.len() {
                        self.note(None);
                        return Ok(());
                    }
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.note(Some("the receiver takes nothing".to_owned()));
                    if self.is_closing.load(Ordering::Acquire) {
                        return Err(Unsent::Closing);
                    }
                }
                Err(error) if Errno::from_io_error(&error) == Some(Errno::MSGSIZE) => {
                    return Err(Unsent::TooLong);
                }
                Err(error) => {
                    self.note(Some(error.to_string()));
                    self.open = None;
                }
            }
        }
    }

    /// Connects once, or waits for the time to try again.
    fn connect(&mut self, late_at: HostTime) -> Result<(), Unsent> {
        let now = host_time();
        let is_closing = self.is_closing.load(Ordering::Acquire);
        if now < self.next_try {
            if is_closing {
                return Err(Unsent::Closing);
            }
            let pause = self.next_try.min(late_at).since(now);
            thread::park_timeout(Duration::from_millis(pause.0));
            return Ok(());
        }
        self.next_try = now + millis(RECONNECT_INTERVAL);
        match OpenSocket::open(&self.config) {
            Ok(open) => self.open = Some(open),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                self.note(Some("the receiver accepts no connection".to_owned()));
            }
            Err(error) => self.note(Some(error.to_string())),
        }
        Ok(())
    }

    fn note(&mut self, problem: Option<String>) {
        let is_failing = problem.is_some();
        if is_failing != self.is_failing {
            let path = self.config.path.display();
            match &problem {
                Some(problem) => {
                    tracing::warn!(%path, problem, "inference events cannot be sent to events.unix_socket; lines are dropped after 10 s");
                }
                None => tracing::info!(%path, "inference events are sent again"),
            }
        } else if !is_failing {
            return;
        }
        self.is_failing = is_failing;
        *self.tally.last_error.lock() = problem;
    }
}

#[cfg(test)]
pub(super) mod tests;
