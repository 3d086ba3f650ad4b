//! The gate as other modules see it, without a socket.

use std::collections::BTreeMap;

use infergate_core::admission::{ClassChoice, EndpointOrder, PermitClass};
use infergate_core::model::{Algorithm, EndpointSpec, PermitScope, QueueSpec};
use infergate_core::routing::cluster::ModelLoad;

use super::fixtures::{PERMITS, ask, spec, targets};
use super::*;
use crate::upstream::process_permits::{PermitReport, PermitSide, ProcessPermits};

#[test]
fn an_endpoint_that_left_is_no_target_while_its_permit_is_out() {
    let model = spec(Algorithm::Fair);
    let gate = AdmissionGate::new(&model, targets(&model), Clock::start());
    let (_, Ok(GateEntry::Leased(permit))) = gate.request_permit(ask("a")) else {
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
    let gate = AdmissionGate::new(&model, targets(&model), Clock::start());
    let mut held = Vec::new();
    let mut line = Vec::new();
    for _ in 0..4 {
        match gate.request_permit(ask("a")).1 {
            Ok(GateEntry::Leased(permit)) => held.push(permit),
            Ok(GateEntry::Queued(waiter)) => line.push(waiter),
            Err(refusal) => panic!("{refusal:?}"),
        }
    }
    held.pop();
    // The first in the queue has been told by now; leaving passes its permit on.
    drop(line.remove(0));
    assert!(line[0].grant.try_recv().is_ok());
    assert_eq!((gate.gauges().used, gate.gauges().depth), (2, 0));
}

#[tokio::test]
async fn a_permit_says_which_class_was_served_and_why() {
    let model = spec(Algorithm::Fair);
    let gate = AdmissionGate::new(&model, targets(&model), Clock::start());
    let mut held: Vec<_> = (0..PERMITS)
        .map(|_| gate.request_permit(ask("a")).1)
        .collect();
    let durable = PermitRequest {
        class: PermitClass::Durable,
        ..ask("a")
    };
    let Ok(GateEntry::Queued(mut waiter)) = gate.request_permit(durable).1 else {
        panic!("every permit is in use");
    };
    assert_eq!(gate.state().0.durable_waiting, 1);
    held.pop();
    let permit = waiter.granted().await.unwrap();
    let expected = ClassTurn {
        class: PermitClass::Durable,
        choice: ClassChoice::OnlyWaiting,
    };
    assert_eq!(permit.turn, expected);
    assert!(permit.waited_us > 0);
    let (state, _) = gate.state();
    assert_eq!((state.last_turn, state.durable_used), (Some(expected), 1));
}

#[test]
fn others_are_told_of_endpoints_in_use_only_and_of_no_line_where_there_is_none() {
    let mut model = spec(Algorithm::Fair);
    model.endpoints.push(endpoint("http://127.0.0.1:2", 5, 0));
    let gate = AdmissionGate::new(&model, targets(&model), Clock::start());
    let held = gate.request_permit(ask("a"));
    let standing = gate.model_load();
    assert_eq!((standing.permits, standing.free), (7, 6));
    assert_eq!((standing.queued, standing.ttft_us), (0, 0));
    assert!(standing.queue_room > 0);
    for (target, _) in gate.targets() {
        target.load.lock().record_response(700, 900);
    }
    assert_eq!(gate.model_load().ttft_us, 700);
    drop(held);
    gate.configure(
        &ModelSpec {
            endpoints: Vec::new(),
            ..model
        },
        Vec::new(),
    );
    let none = gate.model_load();
    let expected = ModelLoad {
        // From how long the permit was held, which was no time or some.
        wait_ms: none.wait_ms,
        ..ModelLoad::default()
    };
    assert_eq!(none, expected);
}

fn endpoint(url: &str, permits: u32, priority: u32) -> EndpointSpec {
    EndpointSpec {
        url: url.into(),
        max_concurrent_requests: permits,
        priority,
        ..EndpointSpec::default()
    }
}

/// Snapshot of each endpoint: URL, permits used and there, rank, whether it was tried.
fn rows(found: &AdmissionSnapshot) -> Vec<(&str, u32, u32, Option<u8>, bool)> {
    let endpoints = found.endpoints();
    endpoints
        .map(|e| (e.url, e.used, e.limit, e.rank, e.avoided))
        .collect()
}

#[test]
fn who_asks_is_told_what_there_was_at_the_moment_of_the_answer() {
    let model = ModelSpec {
        endpoints: vec![
            endpoint("http://127.0.0.1:1", 1, 0),
            endpoint("http://127.0.0.1:2", 1, 3),
        ],
        ..spec(Algorithm::Fifo)
    };
    let gate = AdmissionGate::new(&model, targets(&model), Clock::start());
    let (found, first) = gate.request_permit(ask("a"));
    let first_only = [
        ("http://127.0.0.1:1", 1, 1, Some(0), false),
        ("http://127.0.0.1:2", 0, 1, Some(3), false),
    ];
    assert_eq!(rows(&found), first_only);
    let order = EndpointOrder::new([(7, EndpointId(1)), (9, EndpointId(0))]);
    let (found, second) = gate.request_permit(PermitRequest {
        avoid: vec![EndpointId(0)],
        endpoint_order: Some(Arc::new(order)),
        ..ask("a")
    });
    let by_order = [
        ("http://127.0.0.1:2", 1, 1, Some(7), false),
        ("http://127.0.0.1:1", 1, 1, Some(9), true),
    ];
    assert_eq!(rows(&found), by_order);
    assert!(matches!(
        (first, second),
        (Ok(GateEntry::Leased(_)), Ok(GateEntry::Leased(_)))
    ));
}

#[test]
fn of_many_endpoints_a_permit_at_once_tells_of_its_own_and_a_refusal_of_the_first_few() {
    let url = |port: usize| format!("http://127.0.0.1:{port}");
    let endpoints = (1..=20).map(|port| endpoint(&url(port), 1, 0)).collect();
    let queue = QueueSpec {
        capacity: 0,
        ..spec(Algorithm::Fifo).queue
    };
    let model = ModelSpec {
        endpoints,
        queue,
        ..spec(Algorithm::Fifo)
    };
    let gate = AdmissionGate::new(&model, targets(&model), Clock::start());
    let mut held = Vec::new();
    for _ in 0..20 {
        let (found, Ok(GateEntry::Leased(permit))) = gate.request_permit(ask("a")) else {
            panic!("a permit is free");
        };
        let own = (&*permit.target.url, 1, 1, Some(0), false);
        assert_eq!((rows(&found), found.omitted()), (vec![own], 19));
        held.push(permit);
    }
    let (found, refused) = gate.request_permit(ask("a"));
    assert!(matches!(refused, Err(Refusal::QueueFull { .. })));
    assert_eq!((rows(&found).len(), found.omitted()), (8, 12));
    assert_eq!((found.gauges.used, found.gauges.limit), (20, 20));
}

/// A gate for a model of its own name at the servers of `model`.
fn gate_of(servers: &Arc<SharedServers>, model: &ModelSpec, id: &str) -> Arc<AdmissionGate> {
    let model = ModelSpec {
        id: id.into(),
        ..model.clone()
    };
    AdmissionGate::with_servers(servers, &model, targets(&model), Clock::start())
}

#[test]
fn models_on_one_server_share_its_permits_and_a_freed_one_goes_to_the_model_that_waits() {
    let model = spec(Algorithm::Fair);
    let servers = Arc::default();
    let (one, other) = (
        gate_of(&servers, &model, "one"),
        gate_of(&servers, &model, "other"),
    );
    let mut held = Vec::new();
    for gate in [&one, &other] {
        let (_, Ok(GateEntry::Leased(permit))) = gate.request_permit(ask("a")) else {
            panic!("a permit is free");
        };
        held.push(permit);
    }
    assert_eq!((one.model_load().free, other.model_load().free), (0, 0));
    let (found, Ok(GateEntry::Queued(mut waiter))) = other.request_permit(ask("b")) else {
        panic!("both permits are out");
    };
    assert_eq!(rows(&found)[0].1, 2);
    assert!(waiter.grant.try_recv().is_err());
    drop(held.remove(0));
    assert!(waiter.grant.try_recv().is_ok());
    assert_eq!((one.gauges().used, other.gauges().used), (0, 2));
}

#[test]
fn a_permit_for_a_waiter_that_left_goes_back_to_the_model_that_waits_beside_it() {
    let mut model = spec(Algorithm::Fair);
    model.endpoints[0].max_concurrent_requests = 1;
    let servers = Arc::default();
    let (one, other) = (
        gate_of(&servers, &model, "one"),
        gate_of(&servers, &model, "other"),
    );
    let (_, Ok(GateEntry::Leased(held))) = one.request_permit(ask("a")) else {
        panic!("a permit is free");
    };
    let (_, Ok(GateEntry::Queued(leaves))) = other.request_permit(ask("b")) else {
        panic!("the permit is out");
    };
    let (_, Ok(GateEntry::Queued(mut stays))) = one.request_permit(ask("a")) else {
        panic!("the permit is out");
    };
    drop(held);
    drop(leaves);
    assert!(stays.grant.try_recv().is_ok());
    assert_eq!((one.gauges().used, other.gauges().used), (1, 0));
}

#[test]
fn two_processes_have_one_permit_and_who_waits_in_the_older_one_is_first() {
    let mut model = spec(Algorithm::Fair);
    model.endpoints[0].max_concurrent_requests = 1;
    let processes: [Arc<SharedServers>; 2] = Default::default();
    let [old, new] = processes.each_ref().map(|it| gate_of(it, &model, "one"));
    let owned = processes[0].all().into_iter();
    let owned = owned.map(|(name, server)| (name, server.limit())).collect();
    let none = BTreeMap::new();
    let ending = ProcessPermits::new(&processes[0], PermitSide::Ending, &none);
    let beginning = ProcessPermits::new(&processes[1], PermitSide::Beginning, &owned);
    let exchange = || {
        beginning.take(&ending.report());
        ending.take(&beginning.report());
    };
    let (_, Ok(GateEntry::Leased(held))) = old.request_permit(ask("a")) else {
        panic!("the permit is free");
    };
    let queued = |gate: &Arc<AdmissionGate>| match gate.request_permit(ask("a")) {
        (_, Ok(GateEntry::Queued(waiter))) => waiter,
        _ => panic!("the permit is out"),
    };
    let used = || (old.gauges().used, new.gauges().used);
    let (later, earlier) = (queued(&new), queued(&old));
    exchange();
    drop(held);
    exchange();
    assert_eq!(used(), (1, 0), "who waits in the old process is first");
    drop(earlier);
    exchange();
    assert_eq!(used(), (0, 1));
    // A request that comes to the old process late waits for the next freed one.
    let late = queued(&old);
    exchange();
    drop(later);
    exchange();
    exchange();
    assert_eq!(used(), (1, 0));
    drop(late);
    exchange();
    beginning.take_all();
    let (_, Ok(GateEntry::Leased(_))) = new.request_permit(ask("a")) else {
        panic!("the old process has ended");
    };
}

#[test]
fn permits_of_an_older_process_count_at_a_server_that_is_learned_of_later() {
    let model = spec(Algorithm::Fair);
    let server = model.endpoints[0].server();
    let servers = Arc::default();
    let owned = BTreeMap::from([(server.clone(), PERMITS)]);
    let beginning = ProcessPermits::new(&servers, PermitSide::Beginning, &owned);
    let given = |count| PermitReport {
        given: BTreeMap::from([(server.clone(), count)]),
        ..PermitReport::default()
    };
    beginning.take(&given(1));
    let gate = gate_of(&servers, &model, "one");
    let (_, Ok(GateEntry::Leased(_held))) = gate.request_permit(ask("a")) else {
        panic!("one was given before");
    };
    let (_, Ok(GateEntry::Queued(mut waiter))) = gate.request_permit(ask("a")) else {
        panic!("the other one is the older process's");
    };
    beginning.take(&given(1));
    assert!(waiter.grant.try_recv().is_ok());
}

#[test]
fn a_model_with_permits_of_its_own_shares_them_with_no_other() {
    let mut model = spec(Algorithm::Fair);
    model.endpoints[0].permits = PermitScope::Model;
    let servers = Arc::default();
    let (one, other) = (
        gate_of(&servers, &model, "one"),
        gate_of(&servers, &model, "other"),
    );
    let held: Vec<_> = (0..4)
        .map(|n| if n % 2 == 0 { &one } else { &other }.request_permit(ask("a")))
        .collect();
    let leased = |entry: &(AdmissionSnapshot, _)| matches!(entry.1, Ok(GateEntry::Leased(_)));
    assert!(held.iter().all(leased));
}
