//! Permits of a server that another process has, while two processes send requests there.
//!
//! The transport between the processes is the caller's. Each permit belongs to one process at any time, so that both
//! together never pass the server's limit. A process gives permits away when they are free, and names those it gave;
//! the other one takes them back the same way.

use std::sync::Arc;

use super::server::{GateId, Handoff, ServerMember, ServerPermits};

/// Weight of the other process among the members that wait: its requests are older.
const WEIGHT: u64 = 1 << 10;

/// Permits of one server that are another process's.
pub struct PermitsElsewhere {
    member: ServerMember,
    count: u32,
}

impl PermitsElsewhere {
    /// Counts `count` permits as the other process's, whatever is in use here. Freed ones that it waits for are reserved
    /// as handoffs to `gate`.
    pub fn new(server: &Arc<ServerPermits>, gate: GateId, count: u32) -> PermitsElsewhere {
        PermitsElsewhere {
            member: server.join(gate, count),
            count,
        }
    }

    /// Permits that the other process has.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Takes all permits that are free for the other process, and returns their number: none while requests wait here.
    pub fn take_free(&mut self) -> u32 {
        let mut taken = 0;
        while self.take_one_free() {
            taken += 1;
        }
        taken
    }

    /// Takes a permit for the other process where one is free and no request waits here.
    pub fn take_one_free(&mut self) -> bool {
        let is_taken = !self.member.have_others_waiting() && self.member.take();
        self.count += u32::from(is_taken);
        is_taken
    }

    /// Reserves the next freed permit for the other process.
    pub fn wait(&self) {
        self.member.set_waiting(WEIGHT);
    }

    /// Reserves none any more.
    pub fn wait_no_more(&self) {
        self.member.set_idle();
    }

    /// Returns whether requests wait here for permits of this server.
    pub fn is_wanted_here(&self) -> bool {
        self.member.have_others_waiting()
    }

    /// Takes a permit that was reserved for the other process.
    ///
    /// # Errors
    /// The handoff is for another member.
    pub fn accept(&mut self, handoff: Handoff) -> Result<(), Handoff> {
        if !self.member.is_target_of(&handoff) {
            return Err(handoff);
        }
        self.member.accept(handoff);
        self.member.set_idle();
        self.count += 1;
        Ok(())
    }

    /// The other process has given `count` permits, at most those it has. Returns those that requests here wait for.
    pub fn give_back(&mut self, count: u32) -> Vec<Handoff> {
        let count = count.min(self.count);
        self.count -= count;
        let released = std::iter::repeat_with(|| self.member.release());
        released.take(count as usize).flatten().collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const OTHER: GateId = GateId(1);
    const HERE: GateId = GateId(2);

    #[test]
    fn a_permit_is_one_processes_at_any_time() {
        let (old, new) = (ServerPermits::new(2), ServerPermits::new(2));
        let mut given = PermitsElsewhere::new(&old, OTHER, 0);
        let mut awaited = PermitsElsewhere::new(&new, OTHER, 2);
        let (mut at_old, mut at_new) = (old.join(HERE, 0), new.join(HERE, 0));
        assert!(at_old.take() && !at_new.take());
        at_new.set_waiting(1);
        // One is free, and goes to the request that waits in the new process.
        let mut handoffs = awaited.give_back(given.take_free());
        at_new.accept(handoffs.pop().unwrap());
        assert!(handoffs.is_empty() && given.take_free() == 0);
        at_new.set_idle();
        // A late request of the old process waits: the next freed one of the new process is its.
        at_old.set_waiting(1);
        assert!(given.is_wanted_here() && !awaited.is_wanted_here());
        awaited.wait();
        let handoff = at_new.release().unwrap();
        assert_eq!(handoff.gate(), OTHER);
        awaited.accept(handoff).unwrap();
        assert_eq!((awaited.count(), given.count()), (2, 1));
        assert!(!at_new.take());
        assert_eq!(given.give_back(7).len(), 1, "at most what the other has");
        assert_eq!(given.count(), 0);
    }

    #[test]
    fn requests_that_wait_here_come_first() {
        let old = ServerPermits::new(1);
        let mut given = PermitsElsewhere::new(&old, OTHER, 0);
        let mut here = old.join(HERE, 0);
        assert!(here.take());
        here.set_waiting(1);
        let handoff = here.release().unwrap();
        assert_eq!((handoff.gate(), given.take_free()), (HERE, 0));
        here.accept(handoff);
        here.set_idle();
        assert!(here.release().is_none());
        assert_eq!(given.take_free(), 1);
    }

    /// Gives permits of process `from`; one that waits for them there in the name of `from` sends them back.
    fn give(shares: &mut [PermitsElsewhere; 2], from: usize, count: u32) {
        for handoff in shares[1 - from].give_back(count) {
            assert!(shares[1 - from].accept(handoff).is_ok());
            give(shares, 1 - from, 1);
        }
    }

    proptest! {
        /// Two processes take, release and exchange at random: their uses together stay within the limit.
        #[test]
        fn both_processes_together_stay_within_the_limit(
            limit in 1_u32..5,
            in_use in 0_u32..5,
            steps in prop::collection::vec((0_u8..6, any::<bool>()), 0..200),
        ) {
            let in_use = in_use.min(limit);
            let servers = [ServerPermits::new(limit), ServerPermits::new(limit)];
            let mut shares = [
                PermitsElsewhere::new(&servers[0], OTHER, 0),
                PermitsElsewhere::new(&servers[1], OTHER, limit),
            ];
            let mut here = [servers[0].join(HERE, 0), servers[1].join(HERE, 0)];
            let mut used = [0_u32, 0];
            for _ in 0..in_use {
                prop_assert!(here[0].take());
                used[0] += 1;
            }
            for (step, is_new) in steps {
                let at = usize::from(is_new);
                match step {
                    0 | 1 => used[at] += u32::from(here[at].take()),
                    2 | 3 if used[at] > 0 => {
                        used[at] -= 1;
                        if let Some(handoff) = here[at].release() {
                            prop_assert!(shares[at].accept(handoff).is_ok());
                            give(&mut shares, at, 1);
                        }
                    }
                    4 => {
                        let given = shares[at].take_free();
                        give(&mut shares, at, given);
                    }
                    _ => shares[at].wait(),
                }
                prop_assert!(used[0] + used[1] <= limit);
                prop_assert_eq!(shares[0].count() + shares[1].count(), limit);
            }
        }
    }
}
