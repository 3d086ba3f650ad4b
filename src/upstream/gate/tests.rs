//! The gate as rooms see it, without a socket.

use infergate_core::model::Algorithm;

use super::fixtures::{ask, spec, targets};
use super::*;

#[test]
fn an_endpoint_that_left_is_no_target_while_its_permit_is_out() {
    let model = spec(Algorithm::Fair);
    let gate = Gate::new(&model, targets(&model), Clock::start());
    let Ok(Entry::Leased(permit)) = gate.ask(ask("a")) else {
        panic!("a permit is free");
    };
    let left = ModelSpec {
        endpoints: Vec::new(),
        ..model.clone()
    };
    gate.configure(&left, Vec::new());
    assert!(gate.targets().is_empty());
    assert_eq!(&*permit.target.url, &*model.endpoints[0].url);
    assert_eq!(gate.state().0.endpoints.len(), 1);
    drop(permit);
    assert!(gate.state().0.endpoints.is_empty());
}

#[test]
fn a_grant_nobody_waits_for_any_more_goes_to_the_next() {
    let model = spec(Algorithm::Fair);
    let gate = Gate::new(&model, targets(&model), Clock::start());
    let mut held = Vec::new();
    let mut line = Vec::new();
    for _ in 0..4 {
        match gate.ask(ask("a")) {
            Ok(Entry::Leased(permit)) => held.push(permit),
            Ok(Entry::Queued(waiter)) => line.push(waiter),
            Err(refusal) => panic!("{refusal:?}"),
        }
    }
    held.pop();
    // The first in line has been told by now; leaving passes its permit on.
    drop(line.remove(0));
    assert!(line[0].told.try_recv().is_ok());
    assert_eq!((gate.gauges().used, gate.gauges().depth), (2, 0));
}
