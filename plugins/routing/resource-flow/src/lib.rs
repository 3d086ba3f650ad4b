//! `resource-flow`: requests flow to where there is room. Known in the source as resource-flow routing.
//!
//! Room is free permits less the requests that wait there. The first place is drawn in proportion to
//! room, so that many gateways with one view do not all choose the same; the others follow, most room
//! first. Who answered out-of-capacity lately stands further back with each answer in a row. Settings:
//! `ooc_max`, the answers in a row that are overlooked.

use infergate_sdk::rank::{Dice, by_steps, fitness};
use infergate_sdk::{Candidate, Choice, Hints, Plugin, Routing, Settings};

struct ResourceFlow {
    ooc_max: u8,
}

impl Plugin for ResourceFlow {
    fn configure(settings: &mut Settings) -> ResourceFlow {
        ResourceFlow {
            ooc_max: settings.whole("ooc_max", 0..=255, 0) as u8,
        }
    }
}

impl ResourceFlow {
    fn class(&self, candidate: &Candidate) -> (u8, u8, u8) {
        let refusals = candidate.ooc.saturating_sub(self.ooc_max);
        (fitness(candidate), candidate.tier, refusals)
    }

    /// One of the best class, with a chance in proportion to its room; none when nobody has any.
    fn draw(&self, candidates: &[Candidate], seed: u64) -> Option<u32> {
        let best = candidates.iter().map(|c| self.class(c)).min()?;
        let first: Vec<&Candidate> = candidates
            .iter()
            .filter(|c| self.class(c) == best)
            .collect();
        let rooms = first.iter().map(|c| u64::from(room(c)));
        let mut lot = Dice::new(seed).below(rooms.sum());
        for candidate in first {
            match lot.checked_sub(u64::from(room(candidate))) {
                Some(left) => lot = left,
                None => return Some(candidate.id),
            }
        }
        None
    }
}

fn room(candidate: &Candidate) -> u32 {
    candidate.permits_free.saturating_sub(candidate.queue_len)
}

impl Routing for ResourceFlow {
    fn rank(&self, hints: Hints, candidates: Vec<Candidate>) -> Result<Vec<Choice>, String> {
        let drawn = self.draw(&candidates, hints.seed);
        // The id makes every step a candidate's own.
        Ok(by_steps(&candidates, |c| {
            let after = (Some(c.id) != drawn, u32::MAX - room(c), c.id);
            ((self.class(c), after), ())
        }))
    }
}

infergate_sdk::export_routing!(ResourceFlow);
