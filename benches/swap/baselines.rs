//! Rules of other gateways, to compare with.
//!
//! Not the rule of this gateway. Both have the memory, the permits and the times of a stop that it has.

use std::collections::VecDeque;

use crate::card::{Card, CardState, Policy};
use crate::trace::TraceRequest;

/// One queue for all models, as Ollama has it: its head blocks all that is behind it until its model is ready.
#[derive(Default)]
pub struct FifoLru {
    queue: VecDeque<TraceRequest>,
    victim: Option<usize>,
}

impl Policy for FifoLru {
    fn arrive(&mut self, _: &mut Card, request: TraceRequest) {
        self.queue.push_back(request);
    }

    fn act(&mut self, card: &mut Card) {
        while let Some(head) = self.queue.front()
            && card.models[head.model].state == CardState::Ready
            && self.victim != Some(head.model)
        {
            card.models[head.model].queue.push_back(*head);
            self.queue.pop_front();
        }
        // A victim serves all that it has taken, beyond its permits too, before it stops.
        if let Some(victim) = self.victim {
            if card.models[victim].is_idle() {
                card.drain(victim);
                self.victim = None;
            }
            return;
        }
        if let Some(head) = self.queue.front()
            && !card.is_swapping()
        {
            if card.models[head.model].mib <= card.free_mib {
                card.load(head.model);
            } else if let Some(idle) = least_recently_used(card, true) {
                card.drain(idle);
            } else {
                self.victim = least_recently_used(card, false);
            }
        }
    }
}

/// Serves ready models at once and swaps one at a time, as llama-swap does: a busy model is never evicted.
///
/// The oldest request whose model fits beside all busy ones comes first
/// (<https://github.com/mostlygeek/llama-swap/blob/main/internal/router/scheduler/fifo.go>).
#[derive(Default)]
pub struct Collating {
    next: Option<usize>,
}

impl Policy for Collating {
    fn act(&mut self, card: &mut Card) {
        if card.is_swapping() {
            return;
        }
        if let Some(next) = self.next.take() {
            card.load(next);
            return;
        }
        let cold = card.models.iter().enumerate();
        let mut waiting: Vec<(u64, usize)> = cold
            .filter(|(_, model)| model.state == CardState::Cold)
            .filter_map(|(nth, model)| Some((model.queue.front()?.at_ms, nth)))
            .collect();
        waiting.sort_unstable();
        for (_, model) in waiting {
            if let Some(victims) = idle_victims(card, card.models[model].mib) {
                if victims.is_empty() {
                    card.load(model);
                } else {
                    victims.iter().for_each(|victim| card.drain(*victim));
                    self.next = Some(model);
                }
                return;
            }
        }
    }
}

/// Returns the idle models to evict for a need, least recently used first; `None` if they do not suffice.
fn idle_victims(card: &Card, mib: u64) -> Option<Vec<usize>> {
    let mut free_mib = card.free_mib;
    let mut victims = Vec::new();
    let ready = card.models.iter().enumerate();
    let mut idle: Vec<(u64, usize)> = ready
        .filter(|(_, model)| model.state == CardState::Ready && model.is_idle())
        .map(|(nth, model)| (model.used_ms, nth))
        .collect();
    idle.sort_unstable();
    for (_, victim) in idle {
        if free_mib < mib {
            free_mib += card.models[victim].mib;
            victims.push(victim);
        }
    }
    (free_mib >= mib).then_some(victims)
}

fn least_recently_used(card: &Card, only_idle: bool) -> Option<usize> {
    let ready = card.models.iter().enumerate();
    ready
        .filter(|(_, model)| model.state == CardState::Ready && (model.is_idle() || !only_idle))
        .min_by_key(|(_, model)| model.used_ms)
        .map(|(nth, _)| nth)
}
