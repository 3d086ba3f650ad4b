//! The locked shell under shuttle: random schedules of requests that arrive, wait and cancel.
//!
//! A lost waiter shows as a deadlock, a permit granted twice as a count over the limit, a leak as a gauge that is not
//! zero.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use infergate_core::model::Algorithm;

use super::fixtures::{PERMITS, ask, spec, targets};
use super::*;
use crate::upstream::sync::exploring;

const SCHEDULES: usize = 2_000;

/// A request: holds its permit for a moment, or leaves the queue before its turn.
fn hold_or_leave(gate: &Arc<AdmissionGate>, inside: &AtomicU32, account: &str, patient: bool) {
    let permit = match gate.request_permit(ask(account)).1 {
        Ok(GateEntry::Leased(permit)) => Some(permit),
        Ok(GateEntry::Queued(mut waiter)) if patient => {
            shuttle::future::block_on(waiter.granted()).ok()
        }
        Ok(GateEntry::Queued(waiter)) => {
            shuttle::thread::yield_now();
            drop(waiter);
            None
        }
        Err(_) => None,
    };
    if let Some(permit) = permit {
        let now_inside = inside.fetch_add(1, Ordering::SeqCst) + 1;
        assert!(now_inside <= PERMITS, "more inside than permits");
        shuttle::thread::yield_now();
        inside.fetch_sub(1, Ordering::SeqCst);
        drop(permit);
    }
}

fn explore(act: impl Fn(&Arc<AdmissionGate>) + Send + Sync + 'static) {
    let act = Arc::new(act);
    let schedule = move || {
        let model = spec(Algorithm::Fair);
        let gate = AdmissionGate::new(&model, targets(&model), Clock::start());
        assert!(gate.inner.is_explored(), "nothing is explored");
        let inside = Arc::new(AtomicU32::new(0));
        let visitors: Vec<_> = (0..4)
            .map(|n| {
                let (gate, inside) = (Arc::clone(&gate), Arc::clone(&inside));
                shuttle::thread::spawn(move || {
                    for round in 0..2 {
                        let account = if n % 2 == 0 { "a" } else { "b" };
                        hold_or_leave(&gate, &inside, account, (n + round) % 3 != 0);
                    }
                })
            })
            .collect();
        act(&gate);
        for visitor in visitors {
            visitor.join().unwrap();
        }
        let gauges = gate.gauges();
        assert_eq!(
            (gauges.used, gauges.depth),
            (0, 0),
            "a permit or a waiter is left over"
        );
        assert!(gate.inner.lock().waiting.is_empty());
    };
    exploring(|| shuttle::check_random(schedule, SCHEDULES));
}

#[test]
fn no_schedule_loses_a_waiter_or_a_permit() {
    explore(|_| {});
}

#[test]
fn no_schedule_of_an_algorithm_flip_loses_a_waiter_or_a_permit() {
    explore(|gate| {
        for algorithm in [Algorithm::Fifo, Algorithm::TokenFair, Algorithm::Priority] {
            let model = spec(algorithm);
            gate.configure(&model, targets(&model));
            shuttle::thread::yield_now();
        }
    });
}

#[test]
fn no_schedule_of_an_ejection_loses_a_waiter_or_a_permit() {
    explore(|gate| {
        for _ in 0..3 {
            gate.record_check("http://127.0.0.1:1", EndpointSignal::Failure, None);
        }
        shuttle::thread::yield_now();
        for _ in 0..2 {
            gate.record_check("http://127.0.0.1:1", EndpointSignal::Success, None);
        }
    });
}
