//! Further slots of a model that serves and has more requests than permits, and their end once fewer suffice.
//!
//! Evicts nothing for a further slot, and takes no room that another model waits for.

use super::action::LoadReason;
use super::record::{ModelRecord, SlotRecord};
use super::{ModelPool, PoolMoment, slot_id};
use crate::vram::slot::{DrainReason, SlotId, SlotState};
use crate::{Millis, ModelId};

/// Debt from which on a further slot is loaded, however fast it loads, request-seconds.
const DEBT_MIN: f64 = 1.0;

impl ModelPool {
    /// Loads a further slot of each model whose requests wait as long, together, as its load takes.
    pub(super) fn load_further(&mut self, at: PoolMoment) {
        let has_cold = {
            let mut waiting = self.models.waiting();
            waiting.any(|(_, it)| it.waits() && it.permits_load(at.now))
        };
        if self.is_draining || has_cold {
            return;
        }
        let growing = self.models.waiting().filter(|(_, it)| it.grows(at.now));
        let growing: Vec<ModelId> = growing.map(|(id, _)| id.clone()).collect();
        for id in growing {
            self.load_one(&id, LoadReason::Growth, at);
        }
    }

    /// Drains the last slot of each model that could have served without it for the time that idle models stay.
    pub(super) fn drain_superfluous(&mut self, at: PoolMoment) {
        let mut over: Vec<SlotId> = Vec::new();
        self.models.look_at_active(|id, model| {
            if model.slots.len() < 2 {
                return;
            }
            let has_superfluous = model.has_superfluous();
            let since = model.superfluous_since.filter(|_| has_superfluous);
            model.superfluous_since = has_superfluous.then(|| since.unwrap_or(at.now));
            if model.shrinks_at().is_some_and(|due| due <= at.now)
                && let Some(number) = model.last_ready()
            {
                model.superfluous_since = None;
                over.push(slot_id(id, number));
            }
        });
        for id in over {
            self.stop(&id, DrainReason::KeepAliveOver, at);
        }
    }
}

impl ModelRecord {
    fn ready(&self) -> usize {
        let states = self.slots.iter().map(|record| record.slot.state());
        states.filter(|state| *state == SlotState::Ready).count()
    }

    fn last_ready(&self) -> Option<usize> {
        let mut states = self.slots.iter().map(|record| record.slot.state());
        states.rposition(|state| state == SlotState::Ready)
    }

    fn grows(&self, now: Millis) -> bool {
        let is_changing = |record: &SlotRecord| {
            let rests = matches!(record.slot.state(), SlotState::Ready | SlotState::Asleep);
            record.is_occupied() && !rests
        };
        // A sleeping slot is woken before a cold one is loaded.
        let Some(kind) = self.way_to_load(now) else {
            return false;
        };
        let load_secs = self.load_times.expected(kind).0 as f64 / 1000.0;
        !self.slots.iter().any(is_changing)
            && self.ready() > 0
            && self.replacements == 0
            && self.demand.waiters > 0
            && self.demand.debt >= load_secs.max(DEBT_MIN)
    }

    /// Returns whether the others could serve all that is served, and nothing waits.
    fn has_superfluous(&self) -> bool {
        let (ready, kept) = (self.ready(), self.kept().max(1));
        let others = u32::try_from(ready.saturating_sub(1)).unwrap_or(u32::MAX);
        ready > kept
            && self.demand.waiters == 0
            && self.demand.in_flight <= others.saturating_mul(self.config.permits)
    }

    /// Moment at which the last slot is drained; none while it is needed.
    pub fn shrinks_at(&self) -> Option<Millis> {
        Some(self.superfluous_since? + self.config.keep_alive?)
    }
}
