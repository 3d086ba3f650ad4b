//! Answers of the ledger and news of instances, passed to the pool as events of slots.

use std::sync::Arc;

use infergate_core::Millis;
use infergate_core::vram::{Action, LeaseGroup, ServerActivity, SlotEvent, SlotId, SlotState};

use super::Driver;
use crate::app::gpu::instance::{InstanceNews, NewsDetail};
use crate::app::gpu::leases::{self, LeaseRefusal};

impl Driver {
    /// Takes the answer of the ledger. A grant that comes too late goes back: nothing else would release it.
    pub(super) fn take_lease(
        &mut self,
        slot: &SlotId,
        life: u64,
        result: Result<LeaseGroup, LeaseRefusal>,
    ) -> Vec<Action> {
        let present = self.pool.slot_state(slot);
        let is_awaited = present
            .is_some_and(|(state, own)| own == life && matches!(state, SlotState::Acquiring(_)));
        if self.outlets.has_events() {
            let result = match &result {
                Ok(_) if is_awaited => "held",
                Ok(_) => "late",
                Err(_) => "refused",
            };
            // The answer to a former life says nothing of the present one.
            let run = self.slots.get(slot).filter(|run| run.life == life);
            let shares = run.map_or(&[][..], |run| run.asked_for());
            let id = run.and_then(|_| self.instance_of(slot));
            let moment = self.event_moment();
            let event = moment.of_lease((slot, id.as_deref()), result, shares);
            self.outlets.send_event(&event);
        }
        self.note_ledger(&result);
        let event = match result {
            // A wake grows the leases that the slot has: what becomes of them is the slot's.
            Ok(group) if !is_awaited && self.has_group(slot, &group) => return Vec::new(),
            Ok(group) if is_awaited => {
                let reason = self.pool.slot_reason(slot);
                tracing::info!(%slot, reason, "a model is loaded");
                let run = self.slots.entry(slot.clone()).or_default();
                run.group = Some(group);
                run.is_handed_over = false;
                if let Some(grown) = run.grown.take() {
                    run.shares = grown;
                }
                SlotEvent::LeaseHeld
            }
            Ok(group) => {
                tracing::debug!(%slot, "memory was leased too late");
                self.release_group(slot, group);
                return Vec::new();
            }
            Err(reason) => {
                tracing::debug!(%slot, %reason, "no memory was leased");
                if let Some(run) = self.slots.get_mut(slot) {
                    run.grown = None;
                }
                SlotEvent::LeaseRefused
            }
        };
        self.pool.slot_event(slot, life, event, self.moment())
    }

    /// Says once that the ledger cannot be used, and once that it can again.
    fn note_ledger(&mut self, result: &Result<LeaseGroup, LeaseRefusal>) {
        let problem = match result {
            Err(refusal @ LeaseRefusal::Ledger(_)) => Some(refusal.to_string()),
            Ok(_) | Err(LeaseRefusal::NoRoom(_)) => None,
        };
        if problem == self.ledger_problem {
            return;
        }
        match &problem {
            Some(problem) => {
                tracing::warn!("{problem}: no model is loaded; ready models serve on");
            }
            None => tracing::info!("the ledger of device memory can be used again"),
        }
        self.parts.board.set_ledger_problem(problem.clone());
        self.ledger_problem = problem;
    }

    pub(super) fn take_news(&mut self, news: InstanceNews) -> Vec<Action> {
        if news.event == SlotEvent::Slept {
            self.note_sleep(&news.slot);
            return Vec::new();
        }
        if matches!(news.event, SlotEvent::Exited(_)) {
            self.mark_end(&news.slot);
        }
        let event = self.with_activity(&news.slot, news.event);
        let run = self.slots.entry(news.slot.clone()).or_default();
        match news.detail {
            NewsDetail::None => {}
            NewsDetail::Started(started) => {
                // Its keeper has had the leases since before its start.
                run.is_handed_over = true;
                tracing::info!(slot = %news.slot, pid = started.main.pid, port = started.port, instance = %started.instance, "a model's process has started");
                run.started = Some(started);
            }
            NewsDetail::Ready(target) => run.target = Some(target),
            NewsDetail::Exited(report) => {
                let last = report.last_lines.trim_end();
                let last = last.lines().next_back().unwrap_or("");
                let (slot, code, signal) = (&news.slot, report.code, report.signal);
                if run.is_ending_by_order {
                    tracing::info!(%slot, code, signal, "a model's process has ended");
                } else {
                    tracing::warn!(%slot, code, signal, last, "a model's process has ended by itself");
                    run.problem = Some(format!("the process ended: {last}"));
                }
            }
            NewsDetail::NotStarted(reason) => {
                tracing::warn!(slot = %news.slot, reason, "a model's process was not started");
                run.problem = Some(reason);
            }
        }
        let is_loaded = matches!(news.event, SlotEvent::Ready | SlotEvent::Woke);
        if let (true, Some(group)) = (is_loaded, run.group.clone()) {
            let (ledger, slot) = (Arc::clone(&self.parts.ledger), news.slot.to_string());
            self.changes.add(&mut self.tasks, move || {
                leases::hold(&ledger, &slot, &group)
            });
        }
        if news.event == SlotEvent::Ready {
            run.problem = None;
            run.ready_at = Some(self.parts.shared.clock.now());
        }
        self.pool
            .slot_event(&news.slot, news.life, event, self.moment())
    }

    /// Returns the event of a check with what only the gates know: whether the server has a request at all.
    fn with_activity(&self, slot: &SlotId, event: SlotEvent) -> SlotEvent {
        match event {
            SlotEvent::ProbeFailed(_) if self.requests_at(slot) == 0 => {
                SlotEvent::ProbeFailed(ServerActivity::Idle)
            }
            // What a predecessor receives is not seen here.
            SlotEvent::ProbeFailed(_) if self.requests_elsewhere(slot) > 0 => {
                SlotEvent::ProbeFailed(ServerActivity::Busy {
                    without_progress: Millis::ZERO,
                })
            }
            event => event,
        }
    }
}
