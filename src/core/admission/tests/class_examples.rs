//! Each test holds a promise of the two classes, on an admission queue of one or two endpoints.
//!
//! Not the shares, which `class_shares.rs` measures, nor random events.

use super::super::*;
use super::examples::{AdmissionFixture, spec, tickets};
use super::request;
use crate::model::{Algorithm, ModelSpec, WhenUnhealthy};
use crate::{Millis, Refusal};

fn one_permit() -> AdmissionFixture {
    AdmissionFixture::new(&spec(Algorithm::Fair, &[("a", 1)]))
}

fn with_keep_free(permits: u32, keep_free: u32) -> ModelSpec {
    let mut spec = spec(Algorithm::Fair, &[("a", permits)]);
    spec.jobs.keep_free = keep_free;
    spec
}

#[test]
fn a_class_that_waits_alone_takes_every_permit() {
    let mut door = AdmissionFixture::new(&spec(Algorithm::Fair, &[("a", 3)]));
    let jobs: Vec<Grant> = (0..3)
        .map(|_| door.lease(request("ant").durable()))
        .collect();
    let gauges = door.turnstile.gauges();
    assert_eq!((gauges.used, gauges.durable_used), (3, 3));
    for job in jobs {
        door.release(job);
    }
    for _ in 0..3 {
        let grant = door.lease(request("ant"));
        assert_eq!(grant.turn.choice, ClassChoice::OnlyWaiting);
    }
    assert_eq!(door.turnstile.gauges().durable_used, 0);
}

#[test]
fn durable_requests_never_take_the_permits_that_are_kept_free() {
    let mut door = AdmissionFixture::new(&with_keep_free(2, 1));
    let job = door.lease(request("ant").durable());
    let next = door.queue(request("ant").durable());
    let live = door.lease(request("bee"));
    assert_eq!(live.turn.choice, ClassChoice::CapReached);
    assert!(door.release(live).grants.is_empty());
    let wakes = door.release(job);
    assert_eq!(tickets(&wakes), [next]);
    assert_eq!(wakes.grants[0].turn.class, PermitClass::Durable);
}

#[test]
fn a_raised_cap_lets_durable_requests_in_at_once() {
    let mut door = AdmissionFixture::new(&with_keep_free(2, 1));
    door.lease(request("ant").durable());
    let waiting = door.queue(request("ant").durable());
    assert_eq!(tickets(&door.configure(&with_keep_free(2, 0))), [waiting]);
    assert_eq!(door.turnstile.state(door.now).durable_max, 2);
}

#[test]
fn durable_requests_are_served_in_order_of_arrival_whatever_the_discipline() {
    let mut door = AdmissionFixture::new(&spec(Algorithm::Priority, &[("a", 3)]));
    let held: Vec<Grant> = (0..3).map(|_| door.lease(request("x"))).collect();
    let first = door.queue(request("ant").durable().priority(9));
    let second = door.queue(request("bee").durable().priority(0).weight(100));
    let retry = door.queue(request("ant").durable().resumed());
    let served: Vec<QueueTicket> = held
        .into_iter()
        .flat_map(|grant| tickets(&door.release(grant)))
        .collect();
    assert_eq!(served, [retry, first, second]);
}

#[test]
fn as_many_durable_requests_wait_as_there_are_permits() {
    let mut door = AdmissionFixture::new(&spec(Algorithm::Fair, &[("a", 2)]));
    for _ in 0..2 {
        door.lease(request("ant"));
    }
    let waiting = [(); 2].map(|()| door.queue(request("ant").durable()));
    let retry_after = Millis(1000);
    assert_eq!(
        door.refusal(request("ant").durable()),
        Refusal::QueueFull { retry_after }
    );
    door.queue(request("ant").durable().resumed());
    assert!(door.turnstile.cancel(waiting[0], door.now));
    assert!(door.turnstile.cancel(waiting[1], door.now));
    assert!(!door.turnstile.cancel(waiting[1], door.now));
    door.queue(request("ant").durable());
}

#[test]
fn durable_waiters_take_no_place_from_live_ones() {
    let mut bounded = spec(Algorithm::Fair, &[("a", 2)]);
    (bounded.queue.capacity, bounded.queue.total_capacity) = (1, 1);
    let mut door = AdmissionFixture::new(&bounded);
    for _ in 0..2 {
        door.lease(request("ant"));
    }
    for _ in 0..2 {
        door.queue(request("ant").durable());
    }
    assert_eq!(door.turnstile.free_slots(), 1);
    door.queue(request("ant"));
    let state = door.turnstile.state(door.now);
    assert_eq!((state.depth, state.durable_waiting), (3, 2));
    assert_eq!(state.accounts, [("ant".into(), 1)]);
}

#[test]
fn a_long_durable_hold_refuses_no_live_request() {
    let mut door = one_permit();
    door.measure(100);
    for _ in 0..20 {
        let job = door.lease(request("ant").durable());
        door.now = door.now + Millis::from_secs(1800);
        door.release(job);
    }
    door.lease(request("ant").durable());
    door.now = door.now + Millis::from_secs(600);
    let deadline = door.now.0 + 60_000;
    door.queue(request("bee").deadline(deadline));
    let retry_after = Millis(1000);
    assert_eq!(
        door.refusal(request("bee").no_wait()),
        Refusal::Busy { retry_after }
    );
}

#[test]
fn a_durable_request_is_not_refused_for_a_long_wait_but_never_started_late() {
    let mut door = one_permit();
    for _ in 0..20 {
        let job = door.lease(request("ant").durable());
        door.now = door.now + Millis::from_secs(100);
        door.release(job);
    }
    let job = door.lease(request("ant").durable());
    let deadline = door.now.0 + 1000;
    let short = door.queue(request("ant").durable().deadline(deadline));
    door.now = Millis(deadline);
    let wakes = door.release(job);
    assert_eq!(wakes.refusals, [(short, Refusal::DeadlinePassed)]);
}

#[test]
fn durable_requests_wait_while_no_endpoint_is_healthy() {
    let mut refusing = spec(Algorithm::Fair, &[("a", 2)]);
    refusing.queue.when_unhealthy = WhenUnhealthy::Refuse;
    let mut door = AdmissionFixture::new(&refusing);
    let held = [door.lease(request("ant")), door.lease(request("ant"))];
    let live = door.queue(request("ant"));
    let durable = door.queue(request("ant").durable().with_alternative());
    let wakes = door.set_usable("a", false);
    assert_eq!(wakes.refusals, [(live, Refusal::NoHealthyEndpoint)]);
    let later = door.queue(request("ant").durable());

    door.now = Millis::from_secs(3600);
    let mut wakes = WaiterUpdates::default();
    door.turnstile.set_failing(Some(Millis::ZERO));
    door.turnstile.expire_unhealthy(door.now, &mut wakes);
    assert!(wakes.refusals.is_empty());
    for grant in held {
        assert!(door.release(grant).grants.is_empty());
    }
    assert_eq!(tickets(&door.set_usable("a", true)), [durable, later]);
}

#[test]
fn durable_requests_are_evicted_with_the_last_endpoint() {
    let mut door = one_permit();
    let held = door.lease(request("ant"));
    let waiting = door.queue(request("ant").durable());
    let wakes = door.configure(&spec(Algorithm::Fair, &[]));
    assert_eq!(wakes.refusals, [(waiting, Refusal::Evicted)]);
    assert_eq!(door.refusal(request("ant").durable()), Refusal::Evicted);
    door.release(held);
}

#[test]
fn durable_waiters_stay_when_the_algorithm_changes() {
    let mut door = one_permit();
    let held = door.lease(request("ant"));
    let live = door.queue(request("ant"));
    let durable = door.queue(request("ant").durable());
    let mut fifo = spec(Algorithm::Fifo, &[("a", 1)]);
    fifo.queue.capacity = 1;
    assert!(door.configure(&fifo).refusals.is_empty());
    let first = door.release(held);
    let second = door.release(first.grants[0]);
    let mut served = [tickets(&first), tickets(&second)].concat();
    served.sort_unstable();
    assert_eq!(served, [live, durable]);
}

#[test]
fn a_durable_permit_is_detached_and_lost_with_its_lease() {
    let mut door = one_permit();
    let job = door.lease(request("ant").durable());
    let waiting = door.queue(request("ant"));
    assert!(door.turnstile.detach(job.permit, Millis(100)));
    let mut wakes = WaiterUpdates::default();
    let expired = door.turnstile.expire_detached(Millis(100), 0, &mut wakes);
    assert_eq!((expired, tickets(&wakes)), (1, vec![waiting]));
    let gauges = door.turnstile.gauges();
    assert_eq!((gauges.used, gauges.durable_used), (1, 0));
    door.turnstile.check();
}

#[test]
fn state_shows_which_class_was_served_last_and_why() {
    let mut door = one_permit();
    assert_eq!(door.turnstile.state(door.now).last_turn, None);
    let job = door.lease(request("ant").durable());
    door.queue(request("ant"));
    door.queue(request("ant").durable());
    door.now = Millis(1000);
    let turn = door.release(job).grants[0].turn;
    let expected = ClassTurn {
        class: PermitClass::Live,
        choice: ClassChoice::LessService,
    };
    assert_eq!(turn, expected);
    assert_eq!(door.turnstile.state(door.now).last_turn, Some(expected));
}

#[test]
fn one_durable_request_at_a_time_gets_no_more_than_its_share() {
    let mut door = one_permit();
    let (mut live_ms, mut durable_ms) = (0, 0);
    let mut held = door.lease(request("ant"));
    for _ in 0..2000 {
        door.queue(request("ant"));
        // The next job asks once the former one's permit has gone to a live request.
        let gauges = door.turnstile.gauges();
        if gauges.durable_waiting == 0 && gauges.durable_used == 0 {
            door.queue(request("job").durable());
        }
        let (time, hold) = match held.turn.class {
            PermitClass::Live => (&mut live_ms, 100),
            PermitClass::Durable => (&mut durable_ms, 10_000),
        };
        *time += hold;
        door.now = door.now + Millis(hold);
        held = door.release(held).grants[0];
    }
    let percent = durable_ms * 100 / (durable_ms + live_ms);
    assert!((22..=28).contains(&percent), "{percent} %");
}
