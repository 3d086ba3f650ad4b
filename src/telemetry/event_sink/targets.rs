//! Targets of a line: the shares of file and socket, and the socket's sender.
//!
//! Not the file itself, which is the writer's. Lines of another kind than inference events have no shares and pass as they
//! are. Called by the writer thread.

use std::sync::Arc;

use super::config::EventsConfig;
use super::sample::Sampler;
use super::socket::{EventSocket, SOCKET_QUEUE_LINES, SocketTally, WATCHDOG};

/// Targets of the events of one configuration.
pub(super) struct EventTargets {
    /// Whether the lines are inference events.
    is_sampled: bool,
    file: Sampler,
    socket: Option<(EventSocket, Sampler)>,
    /// Room for the socket's form of a line.
    line: Vec<u8>,
}

impl EventTargets {
    /// Targets by the configuration.
    pub fn new(config: &EventsConfig, tally: &Arc<SocketTally>) -> EventTargets {
        let mut targets = EventTargets {
            is_sampled: true,
            file: Sampler::new(1.0, fastrand::Rng::new()),
            socket: None,
            line: Vec::new(),
        };
        targets.configure(config, tally);
        targets
    }

    /// The lines are none of inference events: they are whole, and carry no `sample_interval`.
    pub fn pass_as_they_are(&mut self) {
        self.is_sampled = false;
    }

    /// Follows another configuration. A socket that is configured as before keeps its connection and its queue; nobody
    /// waits for the end of another one.
    pub fn configure(&mut self, config: &EventsConfig, tally: &Arc<SocketTally>) {
        let share = config.file.as_ref().map_or(1.0, |file| file.sample);
        self.file = Sampler::new(share, fastrand::Rng::new());
        let former = self.socket.take();
        let Some(wanted) = &config.unix_socket else {
            return;
        };
        let socket = match former.filter(|(socket, _)| socket.config() == wanted) {
            Some((socket, _)) => Ok(socket),
            None => EventSocket::start(wanted, tally, (SOCKET_QUEUE_LINES, WATCHDOG)),
        };
        match socket {
            Ok(socket) => {
                let sampler = Sampler::new(config.sample, fastrand::Rng::new());
                self.socket = Some((socket, sampler));
            }
            Err(error) => tracing::error!(%error, "no thread for events.unix_socket"),
        }
    }

    /// Ends the socket, and waits for what its receiver takes.
    pub fn close(&mut self) {
        if let Some((socket, _)) = self.socket.take() {
            socket.close();
        }
    }

    /// Returns whether there is a socket.
    pub fn has_socket(&self) -> bool {
        self.socket.is_some()
    }

    /// Completes the line that begins at `begin` of the batch, and hands it to the socket. False where the file does not get
    /// it: the batch is then without it.
    pub fn complete(&mut self, batch: &mut Vec<u8>, begin: usize) -> bool {
        if !self.is_sampled {
            return true;
        }
        if let Some((socket, sampler)) = &mut self.socket
            && sampler.takes()
        {
            self.line.clear();
            self.line.extend_from_slice(&batch[begin..]);
            sampler.close_line(&mut self.line);
            socket.offer(&self.line);
        }
        let is_kept = self.file.takes();
        match is_kept {
            true => self.file.close_line(batch),
            false => batch.truncate(begin),
        }
        is_kept
    }
}
