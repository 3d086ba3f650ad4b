//! A model whose servers are slots: it has a queue while nothing is loaded.

use super::super::*;
use super::examples::{AdmissionFixture, spec};
use super::request;
use crate::model::{Algorithm, EndpointSpec, ModelSpec, WhenUnhealthy};
use crate::{Millis, Refusal};

fn with_slot(permits: u32) -> ModelSpec {
    let mut spec = spec(Algorithm::Fifo, &[]);
    spec.endpoints = vec![EndpointSpec::slot(&spec.id, 0, permits)];
    spec
}

fn cold(model: &ModelSpec) -> AdmissionFixture {
    AdmissionFixture::new(model)
}

fn open(fixture: &mut AdmissionFixture, model: &ModelSpec, usable: bool) -> WaiterUpdates {
    let mut wakes = WaiterUpdates::default();
    let id = fixture.turnstile.endpoint(&model.endpoints[0].url).unwrap();
    fixture
        .turnstile
        .set_usable(id, usable, fixture.now, 0, &mut wakes);
    fixture.turnstile.check();
    wakes
}

#[test]
fn requests_wait_for_a_slot_and_get_its_permits_once_it_is_ready() {
    let model = with_slot(2);
    let mut fixture = cold(&model);
    let tickets: Vec<_> = (0..3).map(|_| fixture.queue(request("a"))).collect();
    // Not a failure of servers: nobody is refused for it, however long it takes.
    fixture.now = Millis(600_000);
    let mut wakes = WaiterUpdates::default();
    fixture.turnstile.expire_unhealthy(fixture.now, &mut wakes);
    assert!(wakes.refusals.is_empty());
    let wakes = open(&mut fixture, &model, true);
    let granted: Vec<_> = wakes
        .grants
        .iter()
        .filter_map(|grant| grant.ticket)
        .collect();
    assert_eq!(granted, tickets[..2]);
    assert!(!fixture.turnstile.is_cold());
    open(&mut fixture, &model, false);
    assert!(fixture.turnstile.is_cold());
}

#[test]
fn a_request_that_goes_on_and_comes_back_arrives_once() {
    let mut fixture = cold(&with_slot(1));
    let first = request("a").with_alternative().build();
    let outcome = fixture.turnstile.request_permit(first, fixture.now, 0);
    let refusal = Refusal::NoHealthyEndpoint;
    assert!(matches!(outcome, AdmissionOutcome::Full(found) if found == refusal));
    fixture.queue(request("a"));
    fixture.queue(request("a").resumed());
    assert_eq!(fixture.turnstile.take_counts().arrivals, 1);
}

#[test]
fn a_request_that_even_a_fast_load_cannot_serve_is_refused_at_once() {
    let model = with_slot(1);
    let mut fixture = cold(&model);
    let mut wakes = WaiterUpdates::default();
    let expected = Readiness::Expected {
        earliest: Millis(5_000),
        expected: Millis(10_000),
    };
    fixture.turnstile.set_readiness(expected, &mut wakes);
    let refusal = fixture.refusal(request("a").deadline(4_999));
    let expected_refusal = Refusal::CannotStartInTime {
        retry_after: Millis(10_000),
    };
    assert_eq!(refusal, expected_refusal);
    // An uncertain estimate refuses nobody whom a fast load would serve.
    fixture.queue(request("a").deadline(5_001));
    assert_eq!(fixture.turnstile.expected_wait(Millis(0)), Millis(10_000));
}

#[test]
fn a_model_that_cannot_be_loaded_refuses_all_who_wait_and_all_who_come() {
    let model = ModelSpec {
        queue: crate::model::QueueSpec {
            when_unhealthy: WhenUnhealthy::Refuse,
            ..with_slot(1).queue
        },
        ..with_slot(1)
    };
    let mut fixture = cold(&model);
    let waiting = fixture.queue(request("a"));
    let mut wakes = WaiterUpdates::default();
    fixture
        .turnstile
        .set_readiness(Readiness::Never, &mut wakes);
    assert_eq!(wakes.refusals, [(waiting, Refusal::UpstreamFailed)]);
    assert_eq!(fixture.refusal(request("a")), Refusal::UpstreamFailed);
    // What is ready serves, whatever was expected.
    open(&mut fixture, &model, true);
    fixture.lease(request("a"));
}

#[test]
fn a_reload_keeps_an_open_slot_open_and_a_new_one_closed() {
    let mut model = with_slot(1);
    let mut fixture = cold(&model);
    open(&mut fixture, &model, true);
    model
        .endpoints
        .push(EndpointSpec::slot(&model.id.clone(), 1, 1));
    let mut wakes = WaiterUpdates::default();
    fixture
        .turnstile
        .configure(&model, fixture.now, 0, &mut wakes);
    fixture.lease(request("a"));
    fixture.queue(request("a"));
    let mut seen = 0;
    fixture.turnstile.for_each_waiting(10, |waiting| {
        seen += 1;
        assert_eq!(waiting.account.as_str(), "a");
    });
    assert_eq!(seen, 1);
    // A slot that left and came back is another one.
    let without = ModelSpec {
        endpoints: vec![model.endpoints[1].clone()],
        ..model.clone()
    };
    for spec in [&without, &model] {
        fixture
            .turnstile
            .configure(spec, fixture.now, 0, &mut wakes);
    }
    assert!(wakes.grants.is_empty());
    assert!(fixture.turnstile.is_cold());
}
