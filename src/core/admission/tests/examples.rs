//! Each test holds a promise, on an admission queue of one or two endpoints.

use super::super::*;
use super::{PermitRequestBuilder, request};
use crate::model::{Algorithm, EndpointSpec, ModelSpec, QueueSpec, Task, WhenUnhealthy};
use crate::{Millis, Refusal};

/// A model with these endpoints and permits, and lines that are never full.
pub(super) fn spec(algorithm: Algorithm, endpoints: &[(&str, u32)]) -> ModelSpec {
    let endpoint = |&(url, max_concurrent_requests): &(&str, u32)| EndpointSpec {
        url: url.into(),
        max_concurrent_requests,
        ..EndpointSpec::default()
    };
    ModelSpec {
        endpoints: endpoints.iter().map(endpoint).collect(),
        queue: QueueSpec {
            algorithm,
            capacity: 1000,
            ..QueueSpec::default()
        },
        ..ModelSpec::new("model".into(), Task::TextGeneration, "openai".into())
    }
}

/// An admission queue at a moment.
pub(super) struct AdmissionFixture {
    pub turnstile: AdmissionQueue,
    pub now: Millis,
}

impl AdmissionFixture {
    pub fn new(spec: &ModelSpec) -> AdmissionFixture {
        AdmissionFixture {
            turnstile: AdmissionQueue::new(spec, Millis(0)),
            now: Millis(0),
        }
    }

    pub fn request(&mut self, ask: PermitRequestBuilder) -> AdmissionOutcome {
        let outcome = self.turnstile.request_permit(ask.build(), self.now, 0);
        self.turnstile.check();
        outcome
    }

    pub fn lease(&mut self, ask: PermitRequestBuilder) -> Grant {
        match self.request(ask) {
            AdmissionOutcome::Leased(grant) => grant,
            other => panic!("leased, not {other:?}"),
        }
    }

    pub fn queue(&mut self, ask: PermitRequestBuilder) -> QueueTicket {
        match self.request(ask) {
            AdmissionOutcome::Queued { ticket, .. } => ticket,
            other => panic!("queued, not {other:?}"),
        }
    }

    pub fn refusal(&mut self, ask: PermitRequestBuilder) -> Refusal {
        match self.request(ask) {
            AdmissionOutcome::Full(refusal) => refusal,
            other => panic!("full, not {other:?}"),
        }
    }

    pub fn release(&mut self, grant: Grant) -> WaiterUpdates {
        let mut wakes = WaiterUpdates::default();
        self.turnstile
            .release(grant.permit, self.now, 0, &mut wakes);
        self.turnstile.check();
        wakes
    }

    pub fn configure(&mut self, spec: &ModelSpec) -> WaiterUpdates {
        let mut wakes = WaiterUpdates::default();
        self.turnstile.configure(spec, self.now, 0, &mut wakes);
        self.turnstile.check();
        wakes
    }

    pub fn set_usable(&mut self, url: &str, usable: bool) -> WaiterUpdates {
        let mut wakes = WaiterUpdates::default();
        let endpoint = self
            .turnstile
            .endpoint(url)
            .expect("endpoint is configured");
        self.turnstile
            .set_usable(endpoint, usable, self.now, 0, &mut wakes);
        self.turnstile.check();
        wakes
    }

    /// Twenty permits held for `hold` each, one after the other.
    pub fn measure(&mut self, hold: u64) {
        for _ in 0..20 {
            let grant = self.lease(request("meter"));
            self.now = self.now + Millis(hold);
            self.release(grant);
        }
    }
}

pub(super) fn tickets(wakes: &WaiterUpdates) -> Vec<QueueTicket> {
    wakes
        .grants
        .iter()
        .filter_map(|grant| grant.ticket)
        .collect()
}

#[test]
fn a_free_permit_is_leased_and_a_returned_one_goes_to_the_next_in_line() {
    let mut door = AdmissionFixture::new(&spec(Algorithm::Fifo, &[("a", 1)]));
    let first = door.lease(request("ant"));
    let [second, third] = [door.queue(request("bee")), door.queue(request("cat"))];

    let wakes = door.release(first);
    assert_eq!(tickets(&wakes), [second]);
    let wakes = door.release(wakes.grants[0]);
    assert_eq!(tickets(&wakes), [third]);
    door.release(wakes.grants[0]);
    assert_eq!(door.turnstile.gauges().used, 0);
}

#[test]
fn a_permit_given_back_twice_counts_once() {
    let mut door = AdmissionFixture::new(&spec(Algorithm::Fifo, &[("a", 2)]));
    let [first, _second] = [door.lease(request("ant")), door.lease(request("ant"))];
    door.release(first);
    door.release(first);
    assert_eq!(door.turnstile.gauges().used, 1);
}

#[test]
fn cancelled_waiter_returns_its_place() {
    let mut one_place = spec(Algorithm::Fair, &[("a", 1)]);
    one_place.queue.capacity = 1;
    let mut door = AdmissionFixture::new(&one_place);
    door.lease(request("ant"));
    let waiting = door.queue(request("ant"));
    assert!(matches!(
        door.refusal(request("ant")),
        Refusal::QueueFull { .. }
    ));

    assert!(door.turnstile.cancel(waiting, door.now));
    assert!(!door.turnstile.cancel(waiting, door.now));
    door.queue(request("ant"));
}

#[test]
fn a_line_is_bounded_per_account_when_fair_and_for_all_when_not() {
    for (algorithm, other_fits) in [
        (Algorithm::Fair, true),
        (Algorithm::TokenFair, true),
        (Algorithm::Fifo, false),
        (Algorithm::Priority, false),
    ] {
        let mut bounded = spec(algorithm, &[("a", 2)]);
        bounded.queue.capacity = 1;
        let mut door = AdmissionFixture::new(&bounded);
        for _ in 0..2 {
            door.lease(request("ant"));
        }
        for _ in 0..2 {
            door.queue(request("ant"));
        }
        assert!(matches!(
            door.refusal(request("ant")),
            Refusal::QueueFull { .. }
        ));
        assert_eq!(
            matches!(
                door.request(request("bee")),
                AdmissionOutcome::Queued { .. }
            ),
            other_fits
        );
    }
}

#[test]
fn all_lines_together_are_bounded_too_but_a_resumed_request_always_fits() {
    let mut bounded = spec(Algorithm::Fair, &[("a", 1)]);
    bounded.queue.total_capacity = 2;
    let mut door = AdmissionFixture::new(&bounded);
    door.lease(request("ant"));
    door.queue(request("ant"));
    door.queue(request("bee"));
    assert!(matches!(
        door.refusal(request("cat")),
        Refusal::QueueFull { .. }
    ));
    door.queue(request("cat").resumed());
}

#[test]
fn a_request_that_is_bounded_elsewhere_always_fits_and_takes_no_place_from_others() {
    for algorithm in [
        Algorithm::Fifo,
        Algorithm::Fair,
        Algorithm::Priority,
        Algorithm::TokenFair,
    ] {
        let mut bounded = spec(algorithm, &[("a", 1)]);
        (bounded.queue.capacity, bounded.queue.total_capacity) = (1, 1);
        let mut door = AdmissionFixture::new(&bounded);
        let held = door.lease(request("ant"));
        let jobs: Vec<QueueTicket> = (0..8)
            .map(|_| door.queue(request("ant").bounded_elsewhere()))
            .collect();
        let live = door.queue(request("ant"));
        assert!(
            matches!(door.refusal(request("ant")), Refusal::QueueFull { .. }),
            "{algorithm:?}"
        );
        // What is done to jobs gives no place to others either.
        assert!(door.turnstile.cancel(jobs[7], door.now));
        assert_eq!(door.turnstile.free_slots(), 0);
        assert_eq!(tickets(&door.release(held)), [jobs[0]]);
        assert!(matches!(
            door.refusal(request("ant")),
            Refusal::QueueFull { .. }
        ));
        assert!(door.turnstile.cancel(live, door.now));
        assert_eq!(door.turnstile.free_slots(), 1);
        door.queue(request("ant"));
    }
}

#[test]
fn who_does_not_want_to_wait_is_told_that_it_is_busy() {
    let mut door = AdmissionFixture::new(&spec(Algorithm::Fair, &[("a", 1)]));
    door.lease(request("ant").no_wait());
    let retry_after = Millis(1000);
    assert_eq!(
        door.refusal(request("ant").no_wait()),
        Refusal::Busy { retry_after }
    );
}

#[test]
fn priority_comes_before_warm_and_warm_before_arrival() {
    let mut door = AdmissionFixture::new(&spec(Algorithm::Priority, &[("a", 1)]));
    let mut held = door.lease(request("ant"));
    let late = door.queue(request("ant").priority(9).warm());
    let cold = door.queue(request("ant"));
    let warm = door.queue(request("ant").warm());
    let urgent = door.queue(request("bee").priority(0));
    for expected in [urgent, warm, cold, late] {
        let wakes = door.release(held);
        assert_eq!(tickets(&wakes), [expected]);
        held = wakes.grants[0];
    }
}

#[test]
fn a_retry_goes_elsewhere_and_stands_at_the_head_of_its_line() {
    let mut door = AdmissionFixture::new(&spec(Algorithm::Fifo, &[("a", 1), ("b", 1)]));
    let failed = door.lease(request("ant"));
    let other = door.lease(request("ant"));
    door.queue(request("ant"));
    let retry = door.queue(request("bee").resumed().avoiding(failed.endpoint));
    let wakes = door.release(other);
    assert_eq!(tickets(&wakes), [retry]);
    assert_eq!(wakes.grants[0].endpoint, other.endpoint);
}

#[test]
fn who_cannot_start_in_time_is_refused_early_and_told_when_to_come_back() {
    let mut door = AdmissionFixture::new(&spec(Algorithm::Fifo, &[("a", 1)]));
    door.measure(400);
    let now = door.now.0;
    door.lease(request("ant"));
    door.queue(request("ant"));
    // Two more holds of 400 ms before it starts, one of its own, a tenth for the estimate.
    let retry_after = Millis(1000);
    assert_eq!(
        door.refusal(request("ant").deadline(now + 1200)),
        Refusal::CannotStartInTime { retry_after }
    );
    door.queue(request("ant").deadline(now + 1300));
}

#[test]
fn nothing_is_started_late_and_the_next_one_gets_the_permit() {
    let mut door = AdmissionFixture::new(&spec(Algorithm::Fifo, &[("a", 1)]));
    let held = door.lease(request("ant"));
    let passed = door.queue(request("ant").deadline(100));
    let patient = door.queue(request("ant"));
    door.now = Millis(100);
    let wakes = door.release(held);
    assert_eq!(wakes.refusals, [(passed, Refusal::DeadlinePassed)]);
    assert_eq!(tickets(&wakes), [patient]);
}

#[test]
fn who_has_less_time_left_than_service_takes_is_not_started() {
    let mut door = AdmissionFixture::new(&spec(Algorithm::Fifo, &[("a", 1)]));
    door.measure(100);
    let start = door.now.0;
    let held = door.lease(request("ant"));
    let short = door.queue(request("ant").deadline(start + 350));
    let patient = door.queue(request("ant"));
    door.now = Millis(start + 300);
    let wakes = door.release(held);
    assert!(
        matches!(wakes.refusals[..], [(refused, Refusal::CannotStartInTime { .. })] if refused == short)
    );
    assert_eq!(tickets(&wakes), [patient]);
}

#[test]
fn a_free_permit_is_tried_even_when_service_was_slow_before() {
    let mut door = AdmissionFixture::new(&spec(Algorithm::Fifo, &[("a", 1)]));
    door.measure(30_000);
    let deadline = door.now.0 + 5_000;
    door.lease(request("ant").deadline(deadline));
}

#[test]
fn waiters_outlast_a_blip_of_health_where_the_model_waits() {
    let mut door = AdmissionFixture::new(&spec(Algorithm::Fair, &[("a", 1)]));
    door.set_usable("a", false);
    let waiting = door.queue(request("ant"));
    assert_eq!(tickets(&door.set_usable("a", true)), [waiting]);
}

#[test]
fn an_outage_after_an_idle_time_is_waited_out_where_the_model_waits() {
    let mut door = AdmissionFixture::new(&spec(Algorithm::Fair, &[("a", 4)]));
    door.measure(100);
    door.now = door.now + Millis::from_secs(1000);
    door.set_usable("a", false);
    door.now = door.now + Millis::from_secs(300);
    let deadline = door.now.0 + 30_000;
    let waiting = door.queue(request("ant").deadline(deadline));
    assert_eq!(tickets(&door.set_usable("a", true)), [waiting]);
}

#[test]
fn waiters_are_refused_with_the_last_healthy_endpoint_where_the_model_refuses() {
    let mut refusing = spec(Algorithm::Fair, &[("a", 1), ("b", 1)]);
    refusing.queue.when_unhealthy = WhenUnhealthy::Refuse;
    let mut door = AdmissionFixture::new(&refusing);
    door.lease(request("ant"));
    door.lease(request("ant"));
    let waiting = door.queue(request("ant"));

    assert!(door.set_usable("a", false).refusals.is_empty());
    let wakes = door.set_usable("b", false);
    assert_eq!(wakes.refusals, [(waiting, Refusal::NoHealthyEndpoint)]);
    assert_eq!(door.refusal(request("ant")), Refusal::NoHealthyEndpoint);
}

#[test]
fn requests_wait_for_an_endpoint_to_come_back_for_as_long_as_the_model_says() {
    let mut door = AdmissionFixture::new(&spec(Algorithm::Fair, &[("a", 1)]));
    door.lease(request("ant").deadline(900_000));
    let waiting = door.queue(request("ant").deadline(900_000));
    let expired = |door: &mut AdmissionFixture, now: Millis| {
        let mut wakes = WaiterUpdates::default();
        door.turnstile.expire_unhealthy(now, &mut wakes);
        wakes.refusals
    };
    assert_eq!(
        expired(&mut door, Millis::from_secs(60)),
        [],
        "it is in use"
    );
    door.now = Millis::from_secs(60);
    door.set_usable("a", false);
    door.now = Millis::from_secs(62);
    let later = door.queue(request("bee").deadline(900_000));
    assert_eq!(expired(&mut door, Millis::from_secs(64)), []);
    let refused = |ticket| [(ticket, Refusal::NoHealthyEndpoint)];
    assert_eq!(expired(&mut door, Millis::from_secs(65)), refused(waiting));
    assert_eq!(expired(&mut door, Millis::from_secs(67)), refused(later));
}

#[test]
fn requests_wait_no_longer_for_endpoints_that_all_keep_failing() {
    let mut door = AdmissionFixture::new(&spec(Algorithm::Fifo, &[("a", 1)]));
    let first = door.lease(request("ant"));
    let waiting = [door.queue(request("ant")), door.queue(request("bee"))];
    door.now = Millis::from_secs(3);
    let later = door.queue(request("ant"));
    let last = door.queue(request("bee"));

    // The latest success is three seconds old: the next ones are not given up yet.
    door.turnstile.set_failing(Some(Millis::ZERO));
    let wakes = door.release(first);
    assert_eq!(tickets(&wakes), [waiting[0]]);
    door.now = Millis::from_secs(5);
    let wakes = door.release(wakes.grants[0]);
    assert_eq!(wakes.refusals, [(waiting[1], Refusal::NoHealthyEndpoint)]);
    assert_eq!(tickets(&wakes), [later], "it has waited for two seconds");

    let mut expired = WaiterUpdates::default();
    let now = Millis::from_secs(8);
    door.turnstile.expire_unhealthy(now, &mut expired);
    assert_eq!(expired.refusals, [(last, Refusal::NoHealthyEndpoint)]);
    door.now = now;
    let patient = door.queue(request("ant"));
    door.turnstile.set_failing(None);
    door.turnstile
        .expire_unhealthy(Millis::from_secs(60), &mut expired);
    assert!(door.turnstile.cancel(patient, door.now), "it still waits");
}

#[test]
fn who_has_another_model_to_go_to_does_not_wait_for_an_endpoint_to_come_back() {
    let mut door = AdmissionFixture::new(&spec(Algorithm::Fair, &[("a", 1)]));
    door.lease(request("ant"));
    let patient = door.queue(request("ant"));
    let leaving = [
        door.queue(request("bee").with_alternative()),
        door.queue(request("ant").with_alternative()),
    ];

    let refused = door.set_usable("a", false).refusals;
    assert_eq!(refused.len(), 2);
    for ticket in leaving {
        assert!(refused.contains(&(ticket, Refusal::NoHealthyEndpoint)));
    }
    assert_eq!(
        door.refusal(request("bee").with_alternative()),
        Refusal::NoHealthyEndpoint
    );
    assert!(door.turnstile.cancel(patient, door.now), "it still waits");
}

#[test]
fn a_raised_limit_grants_at_once_and_a_lowered_one_holds_from_the_next_grant() {
    let mut door = AdmissionFixture::new(&spec(Algorithm::Fair, &[("a", 1)]));
    let first = door.lease(request("ant"));
    let [second, third] = [door.queue(request("ant")), door.queue(request("ant"))];

    let wakes = door.configure(&spec(Algorithm::Fair, &[("a", 2)]));
    assert_eq!(tickets(&wakes), [second]);
    door.configure(&spec(Algorithm::Fair, &[("a", 1)]));
    assert!(door.release(first).grants.is_empty());
    assert_eq!(tickets(&door.release(wakes.grants[0])), [third]);
}

#[test]
fn a_removed_endpoint_gets_nothing_more_and_its_replacement_serves_the_line() {
    let mut door = AdmissionFixture::new(&spec(Algorithm::Fair, &[("a", 1)]));
    let old = door.lease(request("ant"));
    let waiting = door.queue(request("ant"));
    let wakes = door.configure(&spec(Algorithm::Fair, &[("b", 1)]));
    assert_eq!(tickets(&wakes), [waiting]);
    assert!(
        door.turnstile
            .state(door.now)
            .endpoints
            .iter()
            .any(|endpoint| endpoint.draining)
    );

    door.release(old);
    assert_eq!(door.turnstile.endpoint("a"), None);
}

#[test]
fn a_new_algorithm_takes_the_waiters_over_in_order_and_refuses_those_that_do_not_fit() {
    let mut door = AdmissionFixture::new(&spec(Algorithm::Fair, &[("a", 1)]));
    let held = door.lease(request("ant"));
    let ant: Vec<QueueTicket> = (0..3).map(|_| door.queue(request("ant"))).collect();
    let bee = door.queue(request("bee"));

    let mut fifo = spec(Algorithm::Fifo, &[("a", 1)]);
    fifo.queue.capacity = 3;
    let wakes = door.configure(&fifo);
    assert_eq!(wakes.refusals, [(bee, Refusal::Evicted)]);
    assert_eq!(tickets(&door.release(held)), [ant[0]]);
}

#[test]
fn a_reserved_slot_counts_and_a_lost_lease_gives_it_to_the_next() {
    let mut door = AdmissionFixture::new(&spec(Algorithm::Fair, &[("a", 1)]));
    let (permit, _) = door
        .turnstile
        .reserve(door.now, 0)
        .expect("a permit is free");
    door.turnstile.assign(permit);
    assert!(door.turnstile.detach(permit, Millis(100)));
    let waiting = door.queue(request("ant"));
    assert!(door.turnstile.renew(permit, Millis(200)));

    let mut wakes = WaiterUpdates::default();
    assert_eq!(
        door.turnstile.expire_detached(Millis(199), 0, &mut wakes),
        0
    );
    assert_eq!(
        door.turnstile.expire_detached(Millis(200), 0, &mut wakes),
        1
    );
    assert_eq!(tickets(&wakes), [waiting]);
    assert!(!door.turnstile.renew(permit, Millis(300)));
}

#[test]
fn state_tells_who_waits_and_what_is_out() {
    let mut bounded = spec(Algorithm::Fair, &[("a", 1)]);
    bounded.queue.capacity = 2;
    let mut door = AdmissionFixture::new(&bounded);
    door.measure(100);
    door.lease(request("ant"));
    door.queue(request("bee"));
    door.queue(request("ant"));
    door.queue(request("bee"));

    let state = door.turnstile.state(door.now);
    assert_eq!((state.depth, state.capacity), (3, 2));
    assert_eq!(state.expected_wait, Millis(400));
    assert_eq!(state.accounts, [("ant".into(), 1), ("bee".into(), 2)]);
    let endpoint = &state.endpoints[0];
    assert_eq!((&*endpoint.url, endpoint.used, endpoint.limit), ("a", 1, 1));
}

#[test]
fn a_hundred_thousand_accounts_that_have_passed_leave_nothing_behind() {
    for algorithm in [Algorithm::Fair, Algorithm::TokenFair] {
        let mut door = AdmissionFixture::new(&spec(algorithm, &[("a", 1)]));
        let mut held = door.lease(request("first"));
        for number in 0..100_000 {
            let asked = request(&format!("account {number}")).build();
            assert!(matches!(
                door.turnstile.request_permit(asked, door.now, 0),
                AdmissionOutcome::Queued { .. }
            ));
            let mut wakes = WaiterUpdates::default();
            door.turnstile.release(held.permit, door.now, 0, &mut wakes);
            held = wakes.grants[0];
        }
        door.turnstile.check();
        assert!(door.turnstile.state(door.now).accounts.is_empty());
    }
}
