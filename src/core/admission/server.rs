//! Permits of one model server, shared by every model that has an endpoint there.
//!
//! Independent of requests: only the members with waiters are known. A member is an endpoint of one
//! admission queue. A freed permit is reserved for the waiting member whose turn it is, as a
//! [`Handoff`]; the caller delivers it to that member's admission queue. Turns go by start-time fair
//! queueing (<https://dl.acm.org/doi/10.1145/248156.248171>): long-term shares follow the weights of the
//! waiting accounts. A member that starts to wait is next, except for others that started too.
//!
//! A leaf lock guards the table: held for one call, inside the lock of an admission queue, with nothing
//! locked under it. A take, a release and a change of waiting each cost one; picking visits the
//! server's members.
//!
//! ```text
//! limit 4, used 4    llama: waits, start 17   lora-a: waits, start 12 ← next   lora-b: idle
//! ```

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Step of a grant to a member of weight 1. Weights add up to a million where 1,000 accounts of the
/// largest weight wait, so that a step stays above zero; 2^44 grants fit into a tag.
const STEP: u64 = 1 << 20;

/// Number of an admission queue, unique among those that share servers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GateId(pub u64);

/// Permits of one server.
#[derive(Debug)]
pub struct ServerPermits {
    /// Guards membership and turns, and writes of the two counts.
    table: Mutex<ServerTurns>,
    /// Permits in use or reserved; written under the lock.
    used: AtomicU32,
    /// Limit; written under the lock.
    limit: AtomicU32,
}

#[derive(Debug, Default)]
struct ServerTurns {
    members: Vec<Option<MemberTurn>>,
    /// Start tag of the latest turn: where a member that begins to wait starts.
    now: u64,
}

#[derive(Debug)]
struct MemberTurn {
    gate: GateId,
    is_waiting: bool,
    weight: u64,
    /// Start tag of its next turn.
    start: u64,
}

impl ServerPermits {
    /// Creates a server with `limit` permits, none of them in use.
    pub fn new(limit: u32) -> Arc<ServerPermits> {
        Arc::new(ServerPermits {
            table: Mutex::default(),
            used: AtomicU32::new(0),
            limit: AtomicU32::new(limit),
        })
    }

    /// Changes the limit. Permits above a lower one stay in use; those that a higher one adds go to
    /// waiting members.
    pub fn set_limit(self: &Arc<Self>, limit: u32) -> Vec<Handoff> {
        let mut table = self.table();
        self.limit.store(limit, Ordering::Relaxed);
        std::iter::from_fn(|| self.reserve_next(&mut table)).collect()
    }

    /// Adds an endpoint of the admission queue `gate`, which has `held` permits in use there already.
    pub(super) fn join(self: &Arc<Self>, gate: GateId, held: u32) -> ServerMember {
        let mut table = self.table();
        let entry = MemberTurn {
            gate,
            is_waiting: false,
            weight: 1,
            start: table.now,
        };
        let vacant = table.members.iter().position(Option::is_none);
        let index = vacant.unwrap_or_else(|| {
            table.members.push(None);
            table.members.len() - 1
        });
        table.members[index] = Some(entry);
        self.add_used(held);
        drop(table);
        ServerMember {
            server: Arc::clone(self),
            index,
            held,
        }
    }

    /// Permits in use or reserved, over all members.
    pub fn used(&self) -> u32 {
        self.used.load(Ordering::Relaxed)
    }

    /// Returns the limit.
    pub fn limit(&self) -> u32 {
        self.limit.load(Ordering::Relaxed)
    }

    fn has_room(&self) -> bool {
        self.used() < self.limit()
    }

    fn add_used(&self, count: u32) {
        self.used.fetch_add(count, Ordering::Relaxed);
    }

    /// Reserves a free permit for the waiting member whose turn it is.
    fn reserve_next(self: &Arc<Self>, table: &mut ServerTurns) -> Option<Handoff> {
        if !self.has_room() {
            return None;
        }
        let (index, gate) = table.next_turn()?;
        self.add_used(1);
        Some(Handoff {
            server: Some(Arc::clone(self)),
            gate,
            index,
        })
    }

    /// The table, also after a panic: every change of it is complete when the lock is released.
    fn table(&self) -> MutexGuard<'_, ServerTurns> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ServerTurns {
    /// Charges the waiting member with the earliest start tag for one turn.
    fn next_turn(&mut self) -> Option<(usize, GateId)> {
        let members = self.members.iter_mut().enumerate();
        let waiting = members.filter_map(|(index, entry)| Some((index, entry.as_mut()?)));
        let waiting = waiting.filter(|(_, entry)| entry.is_waiting);
        let (index, entry) = waiting.min_by_key(|(_, entry)| entry.start)?;
        self.now = entry.start;
        entry.start += (STEP / entry.weight.max(1)).max(1);
        Some((index, entry.gate))
    }
}

/// An endpoint's share in its server's permits. Its drop releases all of them.
#[derive(Debug)]
pub(super) struct ServerMember {
    server: Arc<ServerPermits>,
    index: usize,
    /// Permits in use through this member.
    held: u32,
}

impl ServerMember {
    /// Returns whether a permit was free a moment ago: read without the lock, so only [`ServerMember::take`] is sure.
    pub fn has_room(&self) -> bool {
        self.server.has_room()
    }

    /// Returns whether requests wait for a permit of the server, at any other member.
    pub fn have_others_waiting(&self) -> bool {
        let table = self.server.table();
        let mut others = table.members.iter().enumerate();
        others.any(|(index, entry)| {
            index != self.index && entry.as_ref().is_some_and(|entry| entry.is_waiting)
        })
    }

    /// Permits in use or reserved at the server, over all members.
    pub fn server_used(&self) -> u32 {
        self.server.used()
    }

    pub fn is_member_of(&self, server: &Arc<ServerPermits>) -> bool {
        Arc::ptr_eq(&self.server, server)
    }

    /// Returns whether `handoff` is reserved for this member.
    pub fn is_target_of(&self, handoff: &Handoff) -> bool {
        let server = handoff.server.as_ref();
        self.index == handoff.index && server.is_some_and(|server| self.is_member_of(server))
    }

    /// Takes a permit if one is free.
    pub fn take(&mut self) -> bool {
        let _table = self.server.table();
        let free = self.server.has_room();
        if free {
            self.server.add_used(1);
            self.held += 1;
        }
        free
    }

    /// Takes the permit of a handoff that is reserved for this member.
    pub fn accept(&mut self, mut handoff: Handoff) {
        handoff.server = None;
        self.held += 1;
    }

    /// Releases a permit; a waiting member may get it.
    pub fn release(&mut self) -> Option<Handoff> {
        let mut table = self.server.table();
        self.held -= 1;
        self.server.used.fetch_sub(1, Ordering::Relaxed);
        self.server.reserve_next(&mut table)
    }

    /// Requests wait for this member: `weight` is that of their accounts together.
    pub fn set_waiting(&self, weight: u64) {
        let mut table = self.server.table();
        let now = table.now;
        if let Some(entry) = table.members[self.index].as_mut() {
            if !entry.is_waiting {
                entry.start = entry.start.max(now);
            }
            entry.is_waiting = true;
            entry.weight = weight;
        }
    }

    /// No request waits for this member any more.
    pub fn set_idle(&self) {
        if let Some(entry) = self.server.table().members[self.index].as_mut() {
            entry.is_waiting = false;
        }
    }
}

impl Drop for ServerMember {
    fn drop(&mut self) {
        let mut table = self.server.table();
        table.members[self.index] = None;
        self.server.used.fetch_sub(self.held, Ordering::Relaxed);
    }
}

/// A freed permit, reserved for a waiting member: to be delivered to its admission queue by
/// [`AdmissionQueue::accept`](super::AdmissionQueue::accept). A drop frees it without a notification of the
/// waiters; [`AdmissionQueue::poll`](super::AdmissionQueue::poll) finds it.
#[derive(Debug)]
#[must_use = "a waiting request depends on its delivery"]
pub struct Handoff {
    /// None once it was taken or passed on.
    server: Option<Arc<ServerPermits>>,
    gate: GateId,
    index: usize,
}

impl Handoff {
    /// Returns the admission queue it is reserved for.
    pub fn gate(&self) -> GateId {
        self.gate
    }

    /// Passes the permit on to the next waiting member, if there is one. The member that declines counts as
    /// idle until it announces waiters again.
    pub fn decline(mut self) -> Option<Handoff> {
        let server = self.server.take()?;
        let mut table = server.table();
        let entry = table.members[self.index].as_mut();
        if let Some(entry) = entry.filter(|entry| entry.gate == self.gate) {
            entry.is_waiting = false;
        }
        server.used.fetch_sub(1, Ordering::Relaxed);
        server.reserve_next(&mut table)
    }
}

impl Drop for Handoff {
    fn drop(&mut self) {
        if let Some(server) = &self.server {
            let _table = server.table();
            server.used.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Servers of an admission queue's endpoints.
pub struct ServerMembership<'a> {
    /// Number of the admission queue, by which handoffs find it.
    pub gate: GateId,
    /// The server of an endpoint; none where the endpoint's limit is its own.
    pub server_of: &'a dyn Fn(&crate::model::EndpointSpec) -> Option<Arc<ServerPermits>>,
}

impl ServerMembership<'_> {
    /// Every endpoint has permits of its own.
    pub const NONE: ServerMembership<'static> = ServerMembership {
        gate: GateId(0),
        server_of: &|_| None,
    };
}
