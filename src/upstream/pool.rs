//! Open connections that wait for another request, the most recently used first.
//!
//! Connections are opened, and their protocol spoken, elsewhere. The longest wait of one is
//! the core's decision ([`ConnectionUse`](infergate_core::routing::connection_reuse::ConnectionUse)); whether the
//! server has closed it, the kernel's. Looked at when taken, and by [`ConnectionPool::sweep`] twice a second.
//! Bound: [`CONNECTIONS_MAX`] in all; a server that closes after each response has none.

use std::sync::Arc;

use hashbrown::HashMap;
use infergate_core::Millis;
use infergate_core::routing::connection_reuse::CloseHistory;
use parking_lot::Mutex;

use super::connection::UpstreamConnection;
use crate::telemetry::Clock;
use crate::tls::ServerIdentity;

/// Connections kept in all, so that a burst does not pay for handshakes.
const CONNECTIONS_MAX: usize = 1024;
/// Connections of one server that a sweep looks at while it holds the lock, the longest idle first:
/// some twenty microseconds.
const SWEPT_AT_ONCE: usize = 64;

/// The connections of one process to all its servers.
pub(super) struct ConnectionPool {
    /// Its own: of the moments on it none leaves the pool.
    pub clock: Clock,
    /// Guards the lists; held for a look-up, never across a close or a wait.
    servers: Mutex<PooledServers>,
}

#[derive(Default)]
struct PooledServers {
    by_key: HashMap<u64, PooledServer>,
    kept: usize,
}

/// Idle connections of one server, by its address and identity.
#[derive(Default)]
struct PooledServer {
    /// The longest idle first.
    #[expect(
        clippy::vec_box,
        reason = "a response keeps the box: in and out of the list nothing is moved or allocated"
    )]
    idle: Vec<Box<UpstreamConnection>>,
    history: CloseHistory,
}

impl Default for ConnectionPool {
    fn default() -> Self {
        ConnectionPool {
            clock: Clock::start(),
            servers: Mutex::default(),
        }
    }
}

impl ConnectionPool {
    /// The pool's clock.
    pub fn now(&self) -> Millis {
        self.clock.recent()
    }

    /// Takes a connection that is open, silent and within its bounds.
    pub fn take(
        &self,
        key: u64,
        identity: Option<&Arc<ServerIdentity>>,
    ) -> Option<Box<UpstreamConnection>> {
        loop {
            let mut connection = {
                let mut servers = self.servers.lock();
                let found = servers.by_key.get_mut(&key)?.idle.pop()?;
                servers.kept -= 1;
                found
            };
            let now = self.now();
            if !connection.usage.may_serve(now) || !connection.has_identity(identity) {
                continue;
            }
            if connection.is_usable(now) {
                return Some(connection);
            }
            self.record_close(key, connection.usage.idle_for(now));
        }
    }

    /// Keeps a connection whose answer was read whole, or closes it. Its state is checked when it
    /// is taken.
    pub fn keep(&self, key: u64, mut connection: Box<UpstreamConnection>) {
        let now = self.now();
        if !connection.usage.may_serve(now) {
            return;
        }
        connection.rest();
        let mut servers = self.servers.lock();
        let PooledServers { by_key, kept } = &mut *servers;
        let server = by_key.entry(key).or_default();
        if connection.usage.was_reused() {
            server.history.record_reuse();
        }
        let surplus = match server.history.may_keep(now) {
            true => {
                server.idle.push(connection);
                *kept += 1;
                (*kept > CONNECTIONS_MAX).then(|| server.idle.remove(0))
            }
            false => return,
        };
        if surplus.is_some() {
            *kept -= 1;
        }
        drop(servers);
        drop(surplus);
    }

    /// Records that a connection was closed by its server, `idle` after its last answer.
    pub fn record_close(&self, key: u64, idle: Millis) {
        let now = self.now();
        let mut servers = self.servers.lock();
        let server = servers.by_key.entry(key).or_default();
        server.history.record_close(now, idle);
    }

    /// Closes what has waited too long or was closed by its server.
    pub fn sweep(&self) {
        let keys: Vec<u64> = self.servers.lock().by_key.keys().copied().collect();
        for key in keys {
            let now = self.now();
            let mut servers = self.servers.lock();
            let Some(server) = servers.by_key.get_mut(&key) else {
                continue;
            };
            let looked_at = server.idle.len().min(SWEPT_AT_ONCE);
            let mut unfit = Vec::new();
            for at in (0..looked_at).rev() {
                let usage = server.idle[at].usage;
                let is_open = server.idle[at].is_open_and_silent();
                if !is_open {
                    server.history.record_close(now, usage.idle_for(now));
                }
                if !is_open || !usage.may_serve(now) {
                    unfit.push(server.idle.remove(at));
                }
            }
            let is_empty = server.idle.is_empty() && server.history.is_empty(now);
            if is_empty {
                servers.by_key.remove(&key);
            }
            servers.kept -= unfit.len();
            drop(servers);
            drop(unfit);
        }
    }

    /// Connections that wait at the moment.
    #[cfg(test)]
    pub fn kept(&self) -> usize {
        self.servers.lock().kept
    }
}
