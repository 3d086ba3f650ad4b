//! Promises of the admission queue, by example and by a million random events.

use super::discipline::{Discipline, QueueEstimate, Waiter, Waiters};
use super::slab::SlotKey;
use super::*;
use crate::Millis;

mod class_examples;
mod class_shares;
mod classes;
mod cold;
mod examples;
mod random;
mod shared;

/// A discipline with waiters that have names: `a2` is of account `a`.
pub(super) struct QueueFixture<D> {
    pub discipline: D,
    waiters: Waiters,
    names: Vec<(SlotKey, String)>,
}

impl<D: Discipline> QueueFixture<D> {
    pub fn new(discipline: D) -> QueueFixture<D> {
        QueueFixture {
            discipline,
            waiters: Waiters::new(),
            names: Vec::new(),
        }
    }

    pub fn join(&mut self, name: &str, ask: PermitRequestBuilder) {
        let ask = ask.build();
        let account_line = self.discipline.estimate(&ask).account_queue;
        let place = self.waiters.insert(Waiter {
            request: ask,
            joined: Millis::ZERO,
            account_queue: account_line,
        });
        self.discipline.join(&mut self.waiters, place);
        self.discipline.check(&self.waiters);
        self.names.push((place, name.into()));
    }

    /// All `names` join in turn, each of the account that its first letter names.
    pub fn join_all(&mut self, names: &str) {
        for name in names.split(' ') {
            self.join(name, request(&name[..1]));
        }
    }

    pub fn cancel(&mut self, name: &str) {
        let at = self.names.iter().position(|(_, waiting)| waiting == name);
        let (place, _) = self.names.remove(at.expect("somebody of that name waits"));
        self.discipline.cancel(&mut self.waiters, place);
        self.waiters.remove(place);
        self.discipline.check(&self.waiters);
    }

    /// The names of the next `count` served.
    pub fn serve(&mut self, count: usize) -> String {
        let mut served = Vec::new();
        while served.len() < count
            && let Some(place) = self.discipline.next()
        {
            self.discipline.serve_next(&mut self.waiters);
            self.waiters.remove(place);
            self.discipline.check(&self.waiters);
            let at = self.names.iter().position(|&(waiting, _)| waiting == place);
            served.push(
                self.names
                    .remove(at.expect("only those who wait are served"))
                    .1,
            );
        }
        served.join(" ")
    }

    pub fn serve_all(&mut self) -> String {
        self.serve(usize::MAX)
    }

    pub fn estimate(&self, ask: PermitRequestBuilder) -> QueueEstimate {
        self.discipline.estimate(&ask.build())
    }
}

/// Permit request of `account` with a late deadline, weight 1 and priority 5.
pub(super) fn request(account: &str) -> PermitRequestBuilder {
    PermitRequestBuilder(PermitRequest {
        class: PermitClass::Live,
        account: account.into(),
        weight: 1,
        priority: 5,
        is_warm: false,
        tokens: 1,
        deadline: Millis::MAX,
        no_wait: false,
        avoid: Vec::new(),
        endpoint_order: None,
        is_retry: false,
        is_bounded_elsewhere: false,
        has_alternative: false,
        client: None,
    })
}

/// A permit request, changed where a test needs it.
pub(super) struct PermitRequestBuilder(PermitRequest);

impl PermitRequestBuilder {
    pub fn weight(mut self, weight: u32) -> Self {
        self.0.weight = weight;
        self
    }

    pub fn priority(mut self, priority: u8) -> Self {
        self.0.priority = priority;
        self
    }

    pub fn warm(mut self) -> Self {
        self.0.is_warm = true;
        self
    }

    pub fn tokens(mut self, tokens: u32) -> Self {
        self.0.tokens = tokens;
        self
    }

    pub fn deadline(mut self, deadline: u64) -> Self {
        self.0.deadline = Millis(deadline);
        self
    }

    pub fn no_wait(mut self) -> Self {
        self.0.no_wait = true;
        self
    }

    pub fn resumed(mut self) -> Self {
        self.0.is_retry = true;
        self
    }

    pub fn bounded_elsewhere(mut self) -> Self {
        self.0.is_bounded_elsewhere = true;
        self
    }

    pub fn durable(mut self) -> Self {
        self.0.class = PermitClass::Durable;
        self
    }

    pub fn with_alternative(mut self) -> Self {
        self.0.has_alternative = true;
        self
    }

    pub fn avoiding(mut self, endpoint: EndpointId) -> Self {
        self.0.avoid.push(endpoint);
        self
    }

    pub fn build(self) -> PermitRequest {
        self.0
    }
}
