//! Permits of all servers while two processes send requests there: those that the other process has, and what is said
//! about them.
//!
//! Not the connection between the processes: each side takes the report of the other and makes its own, in turn. Counting
//! is [`PermitsElsewhere`]'s. A server that only one of the two knows is that one's alone.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};

use infergate_core::admission::{GateId, Handoff, PermitsElsewhere, ServerPermits};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::servers::{HandoffReceiver, ServerClaims, SharedServers};

/// Report of one process to the other. Servers are named by the scope of their permits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PermitReport {
    /// Permits that are the other process's from now on.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub given: BTreeMap<String, u32>,
    /// Servers whose permits requests of the process that ends wait for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub wanted: Vec<String>,
    /// Models that requests of the process that ends wait for, while no process of theirs serves.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cold: Vec<String>,
    /// The process that begins has the models of this host.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub has_models: bool,
}

impl PermitReport {
    /// Returns whether it says nothing.
    pub fn is_empty(&self) -> bool {
        self.given.is_empty() && self.wanted.is_empty() && self.cold.is_empty() && !self.has_models
    }
}

/// Part of this process in the hand-over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PermitSide {
    /// The process that ends: each free permit is the other's.
    Ending,
    /// The process that begins: a permit is given where the other waits for it.
    Beginning,
}

/// Permits that another process has, by server. Its drop frees all of them without waking who waits; see
/// [`ProcessPermits::take_all`].
pub struct ProcessPermits {
    side: PermitSide,
    servers: Arc<SharedServers>,
    gate: GateId,
    /// Guards the counts: one lock for an exchange, and for a freed permit that is reserved. The servers' leaf locks are
    /// taken inside it.
    table: Mutex<ProcessTable>,
}

#[derive(Default)]
struct ProcessTable {
    elsewhere: BTreeMap<String, PermitsElsewhere>,
    /// Permits of the other process at servers that this one does not know yet.
    unclaimed: BTreeMap<String, u32>,
    /// Reserved permits that the next report names.
    given: BTreeMap<String, u32>,
    /// Servers at which the other process gets no further permit.
    closed: BTreeSet<String>,
}

impl ProcessPermits {
    /// Counts permits as the other process's: those of `owned`, by the names of servers.
    pub(super) fn new(
        servers: &Arc<SharedServers>,
        side: PermitSide,
        owned: &BTreeMap<String, u32>,
    ) -> Arc<ProcessPermits> {
        let gate = servers.next_gate_id();
        let mut unclaimed = owned.clone();
        let known = servers.all().into_iter();
        let elsewhere = known.map(|(name, server)| {
            let count = unclaimed.remove(&name).unwrap_or(0);
            (name, PermitsElsewhere::new(&server, gate, count))
        });
        let elsewhere = elsewhere.collect();
        let permits = Arc::new(ProcessPermits {
            side,
            servers: Arc::clone(servers),
            gate,
            table: Mutex::new(ProcessTable {
                elsewhere,
                unclaimed,
                ..ProcessTable::default()
            }),
        });
        let receiver: Weak<ProcessPermits> = Arc::downgrade(&permits);
        servers.register(gate, receiver);
        let claims: Weak<ProcessPermits> = Arc::downgrade(&permits);
        servers.add_claims(claims);
        permits
    }

    /// Makes the next report.
    pub fn report(&self) -> PermitReport {
        let mut table = self.table.lock();
        let ProcessTable {
            elsewhere, given, ..
        } = &mut *table;
        let mut report = PermitReport {
            given: std::mem::take(given),
            ..PermitReport::default()
        };
        for (name, elsewhere) in elsewhere {
            if self.side == PermitSide::Ending {
                let free = elsewhere.take_free();
                if free > 0 {
                    *report.given.entry(name.clone()).or_default() += free;
                }
            }
            if self.side == PermitSide::Ending
                && elsewhere.count() > 0
                && elsewhere.is_wanted_here()
            {
                report.wanted.push(name.clone());
            }
        }
        report
    }

    /// Takes a report of the other process.
    pub fn take(&self, report: &PermitReport) {
        let mut handoffs = Vec::new();
        {
            let mut table = self.table.lock();
            let ProcessTable {
                elsewhere,
                unclaimed,
                given,
                closed,
            } = &mut *table;
            for (name, count) in &report.given {
                if let Some(elsewhere) = elsewhere.get_mut(name) {
                    handoffs.extend(elsewhere.give_back(*count));
                } else if let Some(left) = unclaimed.get_mut(name) {
                    *left = left.saturating_sub(*count);
                }
            }
            // The process that ends serves those who wait there first, and gives what is free unasked.
            let wanted = match self.side {
                PermitSide::Ending => &[],
                PermitSide::Beginning => &*report.wanted,
            };
            for name in wanted.iter().filter(|name| !closed.contains(*name)) {
                let Some(elsewhere) = elsewhere.get_mut(name) else {
                    continue;
                };
                match elsewhere.take_one_free() {
                    true => *given.entry(name.clone()).or_default() += 1,
                    false => elsewhere.wait(),
                }
            }
        }
        self.servers.deliver(handoffs);
    }

    /// The other process has ended: everything is this one's.
    pub fn take_all(&self) {
        let handoffs: Vec<Handoff> = {
            let mut table = self.table.lock();
            table.unclaimed.clear();
            let elsewhere = std::mem::take(&mut table.elsewhere);
            drop(table);
            let taken = elsewhere.into_values();
            taken
                .flat_map(|mut elsewhere| elsewhere.give_back(u32::MAX))
                .collect()
        };
        self.servers.deliver(handoffs);
    }
}

impl ServerClaims for ProcessPermits {
    fn claim(&self, name: &str, server: &Arc<ServerPermits>) {
        let mut table = self.table.lock();
        if let Some(count) = table.unclaimed.remove(name) {
            let elsewhere = PermitsElsewhere::new(server, self.gate, count);
            table.elsewhere.insert(name.to_owned(), elsewhere);
        }
    }

    fn count(&self, name: &str) -> u32 {
        let table = self.table.lock();
        let known = table.elsewhere.get(name).map(PermitsElsewhere::count);
        known
            .or_else(|| table.unclaimed.get(name).copied())
            .unwrap_or(0)
    }

    fn set_open(&self, name: &str, is_open: bool) {
        let mut table = self.table.lock();
        let ProcessTable {
            elsewhere, closed, ..
        } = &mut *table;
        if is_open {
            closed.remove(name);
        } else if closed.insert(name.to_owned())
            && let Some(elsewhere) = elsewhere.get(name)
        {
            elsewhere.wait_no_more();
        }
    }
}

impl HandoffReceiver for ProcessPermits {
    fn accept(&self, handoff: Handoff) -> Vec<Handoff> {
        let mut table = self.table.lock();
        let ProcessTable {
            elsewhere, given, ..
        } = &mut *table;
        let mut handoff = handoff;
        for (name, elsewhere) in elsewhere {
            match elsewhere.accept(handoff) {
                Ok(()) => {
                    *given.entry(name.clone()).or_default() += 1;
                    return Vec::new();
                }
                Err(another) => handoff = another,
            }
        }
        drop(table);
        handoff.decline().into_iter().collect()
    }
}
