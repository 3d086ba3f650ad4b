//! Parser and replay over hand-made recordings whose answers can be worked out by hand.

use serde_json::{Value, json};

use super::*;
use crate::Millis;
use crate::vram::evict::SwapPolicy;

/// Recording in the making: lines as a gateway writes them.
#[derive(Default)]
struct Trace {
    lines: Vec<String>,
}

impl Trace {
    fn line(mut self, ms: u64, event: &str, members: Value) -> Trace {
        let mut line = json!({ "at": "2026-11-25T10:00:00.000Z", "ms": ms, "event": event });
        let all = line.as_object_mut().unwrap();
        all.extend(members.as_object().unwrap().clone());
        self.lines.push(line.to_string());
        self
    }

    /// A card of so many MiB, and models of 14,000 MiB with so many permits.
    fn host(self, ms: u64, card_mib: u64, models: &[(&str, u32)]) -> Trace {
        let models = models.iter().map(|(id, parallel)| {
            json!({
                "id": id, "need_mib": 14_000, "context_mib": 0, "split": "never", "priority": 9, "replicas_min": 0,
                "replicas_max": 1, "parallel": parallel, "keep_alive_ms": null, "expected_load_ms": 99_000,
                "stored_bytes": 0, "asleep_mib": null, "pinned": false, "preload": false,
            })
        });
        let swap = json!({
            "policy": "turns", "turn": 4, "patience": 13, "min_warm_ms": 0, "aging_ms": 25_000,
            "demand_memory_ms": 60_000, "loads_per_device": 1, "loads_per_host": 2,
        });
        let device = json!({
            "id": "GPU-0", "index": 0, "kind": "gpu", "name": "card", "total_mib": card_mib, "reserve_mib": 0,
            "outside_mib": 0,
        });
        let models: Vec<Value> = models.collect();
        self.line(
            ms,
            "models",
            json!({ "swap": swap, "models": models, "devices": [device] }),
        )
    }

    /// Requests of a second, of 1 s each with a permit.
    fn demand(self, ms: u64, model: &str, arrivals: u32, refused: u32) -> Trace {
        let members = json!({
            "model": model, "span_ms": 1000, "arrivals": arrivals, "refused": refused, "accounts": 1, "priority": 5,
            "service_ms": 1000, "waiting": 0, "waited_ms": 700, "longest_wait_ms": 700,
        });
        self.line(ms, "demand", members)
    }

    /// A load of 10 s and a stop of 2 s.
    fn times(self, ms: u64, model: &str) -> Trace {
        let slot = format!("{model}#0");
        let to = |to: &str| json!({ "model": model, "slot": slot, "from": "draining", "to": to });
        self.line(
            ms,
            "load",
            json!({ "model": model, "slot": slot, "kind": "load", "took_ms": 10_000 }),
        )
        .line(ms, "transition", to("stopping"))
        .line(ms + 2000, "transition", to("cold"))
    }

    fn read(&self) -> Result<Recording, RecordingError> {
        let mut reader = RecordingReader::default();
        for line in &self.lines {
            reader.take(line.as_bytes()).unwrap();
        }
        reader.finish()
    }
}

fn lru() -> ReplayOptions {
    ReplayOptions {
        policy: Some(SwapPolicy::Lru),
        ..ReplayOptions::default()
    }
}

/// A request for each of two models, of which the card holds one.
fn contention() -> Trace {
    let trace = Trace::default().host(1000, 24_000, &[("a", 1), ("b", 1)]);
    let trace = trace.demand(2000, "a", 1, 0).demand(31_000, "b", 1, 0);
    trace.times(50_000, "a").times(60_000, "b")
}

#[test]
fn a_replay_loads_stops_and_waits_as_long_as_was_recorded() {
    let recording = contention().read().unwrap();
    let figures = replay(&recording, lru());
    // `a` comes at 1.5 s and loads for 10 s; `b` comes at 30.5 s, and has the card after the stop of `a`.
    assert_eq!((figures.loads, figures.swaps, figures.evictions), (2, 1, 1));
    assert_eq!(figures.loading, Millis::from_secs(20));
    assert_eq!((figures.requests, figures.refused), (2, 0));
    assert_eq!(figures.waits.percentile(50), Some(Millis::from_secs(10)));
    assert_eq!(figures.waits.percentile(99), Some(Millis::from_secs(12)));
    assert_eq!(figures.waits.longest(), Millis::from_secs(12));
    assert!((figures.waits.mean_ms(figures.requests) - 11_000.0).abs() < 0.001);
}

#[test]
fn another_card_another_policy_and_another_patience_change_what_is_lost() {
    let recording = contention().read().unwrap();
    let larger = ReplayOptions {
        device_mib: Some(28_000),
        ..lru()
    };
    let figures = replay(&recording, larger);
    assert_eq!((figures.loads, figures.swaps), (2, 0));
    assert_eq!(figures.waits.longest(), Millis::from_secs(10));
    let patience = |patience| {
        let patience = Some(patience);
        let options = ReplayOptions {
            patience,
            ..ReplayOptions::default()
        };
        replay(&recording, options).waits.longest()
    };
    let recorded = replay(&recording, ReplayOptions::default()).waits.longest();
    assert_eq!(recorded, patience(13), "the recorded patience");
    assert!(
        recorded > Millis::from_secs(12),
        "the debt of `b` has to grow"
    );
    assert!(patience(26) > recorded && patience(1) < recorded);
    let small = ReplayOptions {
        device_mib: Some(8000),
        ..ReplayOptions::default()
    };
    let figures = replay(&recording, small);
    assert_eq!(
        (figures.loads, figures.requests, figures.refused),
        (0, 0, 2)
    );
}

#[test]
fn requests_share_permits_and_a_busy_model_keeps_the_card_for_its_turn() {
    let trace = Trace::default().host(1000, 24_000, &[("a", 2), ("b", 1)]);
    let trace = trace.demand(2000, "a", 6, 0).times(50_000, "a");
    let figures = replay(&trace.read().unwrap(), lru());
    // The first two have permits at 11.083 s, the next two a second later, the last two after another.
    assert_eq!(figures.loads, 1);
    assert_eq!(figures.waits.percentile(1), Some(Millis(9_830)));
    assert_eq!(figures.waits.longest(), Millis(11_333));
    // `a` is always busy: under `lru` `b` waits for its end, under `turns` for its turn alone.
    let mut trace = Trace::default().host(1000, 24_000, &[("a", 1), ("b", 1)]);
    for second in 2..400 {
        trace = trace.demand(second * 1000, "a", 2, 0);
        if second % 20 == 0 {
            trace = trace.demand(second * 1000, "b", 1, 0);
        }
    }
    let recording = trace
        .times(500_000, "a")
        .times(500_000, "b")
        .read()
        .unwrap();
    let figures = replay(&recording, lru());
    assert_eq!((figures.loads, figures.swaps), (2, 1));
    assert!(
        figures.waits.longest() > Millis::from_secs(600),
        "{figures:?}"
    );
    let turn = |turn| {
        let turn = Some(turn);
        let options = ReplayOptions {
            turn,
            ..ReplayOptions::default()
        };
        replay(&recording, options)
    };
    assert!(turn(1).loads > turn(8).loads, "{:?} {:?}", turn(1), turn(8));
}

#[test]
fn requests_that_were_refused_bring_a_load_about_and_do_not_wait_for_it() {
    let trace = Trace::default().host(1000, 24_000, &[("a", 1)]);
    let trace = trace.demand(2000, "a", 1, 1).demand(20_000, "a", 1, 1);
    let figures = replay(&trace.times(50_000, "a").read().unwrap(), lru());
    assert_eq!(
        (figures.loads, figures.requests, figures.refused),
        (1, 1, 1)
    );
    assert_eq!(
        figures.waits.longest(),
        Millis::ZERO,
        "served while it is loaded"
    );
}

#[test]
fn what_was_recorded_is_counted_from_its_own_events() {
    let trace = contention().line(
        70_000,
        "swap",
        json!({ "model": "b", "slot": "b#0", "victims": ["a#0", "c#0"] }),
    );
    let recording = trace
        .line(71_000, "of a later version", json!({ "x": 1 }))
        .read()
        .unwrap();
    let figures = recording.figures();
    assert_eq!((figures.loads, figures.swaps, figures.evictions), (2, 1, 2));
    assert_eq!(figures.loading, Millis::from_secs(20));
    assert_eq!(
        (figures.requests, figures.waits.longest()),
        (2, Millis(700))
    );
    assert_eq!(
        figures.waits.percentile(99),
        None,
        "single waits are not recorded"
    );
    assert_eq!(recording.rule().unwrap().turn, 4);
    assert_eq!(recording.span(), Millis::from_secs(30));
}

#[test]
fn a_start_of_the_gateway_begins_anew_with_nothing_loaded() {
    let again = contention();
    let mut twice = contention();
    twice.lines.extend(again.lines);
    let (once, twice) = (contention().read().unwrap(), twice.read().unwrap());
    assert_eq!(twice.span(), Millis::from_secs(60));
    let (once, twice) = (replay(&once, lru()), replay(&twice, lru()));
    assert_eq!(
        (twice.loads, twice.requests),
        (2 * once.loads, 2 * once.requests)
    );
    assert_eq!(twice.waits.longest(), once.waits.longest());
}

#[test]
fn a_configuration_that_comes_later_adds_and_removes_models() {
    let trace = Trace::default().host(1000, 30_000, &[("a", 1), ("b", 1)]);
    let trace = trace
        .demand(2000, "a", 1, 0)
        .host(20_000, 30_000, &[("b", 1)]);
    let trace = trace.host(21_000, 30_000, &[("b", 1)]);
    let trace = trace.demand(30_000, "a", 1, 0).demand(40_000, "b", 1, 0);
    let figures = replay(&trace.times(50_000, "a").read().unwrap(), lru());
    assert_eq!(
        (figures.loads, figures.requests, figures.refused),
        (2, 2, 1)
    );
    // `b` was never loaded: its load takes as long as was expected.
    assert_eq!(figures.loading, Millis(109_000));
}

#[test]
fn requests_that_came_before_their_configuration_was_written_are_played() {
    let recording = Trace::default()
        .host(10_900, 24_000, &[("a", 1)])
        .demand(11_000, "a", 1, 0)
        .times(30_000, "a")
        .read()
        .unwrap();
    let figures = replay(&recording, lru());
    assert_eq!(
        (figures.requests, figures.refused, figures.loads),
        (1, 0, 1)
    );
}

#[test]
fn a_recording_without_models_or_demand_is_none() {
    let none = Trace::default().demand(2000, "a", 1, 0);
    assert_eq!(none.read().unwrap_err(), RecordingError::NoHost);
    let none = Trace::default().host(1000, 24_000, &[("a", 1)]);
    assert_eq!(none.read().unwrap_err(), RecordingError::NoDemand);
    let late = Trace::default()
        .demand(500, "a", 3, 0)
        .host(1000, 24_000, &[("a", 1)]);
    let recording = late.demand(2000, "a", 1, 0).read().unwrap();
    assert_eq!(
        (recording.left_out(), replay(&recording, lru()).requests),
        (1, 1)
    );
}

#[test]
fn a_line_that_is_no_event_is_an_error() {
    for bad in [
        "",
        "[]",
        "{}",
        r#"{"ms":1}"#,
        r#"{"ms":-1,"event":"load"}"#,
        r#"{"ms":1,"event":"demand","model":"a"}"#,
    ] {
        let error = RecordingReader::default().take(bad.as_bytes()).unwrap_err();
        assert!(
            matches!(error, TraceLineError::Malformed(_)),
            "{bad}: {error}"
        );
    }
    let mut reader = RecordingReader::default();
    let flood = Trace::default().demand(1000, "a", u32::MAX, 0);
    let host = Trace::default().host(1000, 24_000, &[("a", 1)]);
    reader.take(host.lines[0].as_bytes()).unwrap();
    let error = reader.take(flood.lines[0].as_bytes()).unwrap_err();
    assert!(matches!(error, TraceLineError::TooManyRequests), "{error}");
}

mod tally {
    use super::super::DemandTally;
    use crate::model::KeepLoaded;
    use crate::vram::demand::DemandWeight;
    use crate::vram::demand_look::{DemandLook, SeenRequest};
    use crate::{AccountId, Millis};

    fn look(joined: &[u64], arrivals: u32) -> DemandLook {
        let waiting = joined.iter().map(|joined| SeenRequest {
            joined: Millis(*joined),
            deadline: Millis::MAX,
            account: AccountId::from(if joined % 2 == 0 { "even" } else { "odd" }),
            weight: DemandWeight::of_priority(5),
            priority: 3,
        });
        DemandLook {
            waiting: waiting.collect(),
            refused: Vec::new(),
            arrivals,
            grants: 0,
            most_urgent: None,
            in_flight: 0,
            permits: 4,
            is_usable: false,
            kept_alive: None,
            own_keep_alive: KeepLoaded::Always,
        }
    }

    #[test]
    fn a_model_has_a_line_a_second_at_most_and_none_without_requests() {
        let mut tally = DemandTally::default();
        let mut lines = Vec::new();
        for quarter in 0..40 {
            let now = Millis(1000 + 250 * quarter);
            let arrivals = u32::from(quarter < 20);
            tally.add(&look(&[], arrivals), Some(Millis(70)), now);
            lines.extend(tally.take_line(now).map(|line| (now, line)));
        }
        assert!(
            lines
                .windows(2)
                .all(|two| two[1].0.since(two[0].0) >= Millis(1000))
        );
        let arrivals: u32 = lines.iter().map(|(_, line)| line.arrivals).sum();
        assert_eq!((arrivals, lines.len()), (20, 6));
        assert!(
            lines
                .iter()
                .all(|(_, line)| line.span_ms <= 1000 || line.arrivals == 1)
        );
        assert_eq!(lines[0].1.service_ms, Some(70));
    }

    #[test]
    fn waits_are_added_up_from_look_to_look_and_the_rest_has_a_line_of_its_own() {
        let mut tally = DemandTally::default();
        tally.add(&look(&[], 0), None, Millis(10_000));
        tally.add(&look(&[10_101, 10_200], 2), None, Millis(10_300));
        let line = tally.take_line(Millis(10_300)).unwrap();
        assert_eq!((line.span_ms, line.arrivals, line.waiting), (300, 2, 2));
        assert_eq!((line.waited_ms, line.longest_wait_ms), (299, 199));
        assert_eq!((line.accounts, line.priority), (2, 3));
        // One has left by the next look, the other by the one after it.
        tally.add(&look(&[10_200], 0), None, Millis(11_300));
        assert_eq!(tally.take_line(Millis(11_300)), None, "one waits still");
        tally.add(&look(&[], 0), None, Millis(12_300));
        let line = tally.take_line(Millis(12_300)).unwrap();
        assert_eq!((line.arrivals, line.waiting, line.waited_ms), (0, 0, 2000));
        assert_eq!(line.longest_wait_ms, 1100);
        tally.add(&look(&[], 0), None, Millis(20_000));
        assert_eq!(tally.take_line(Millis(20_000)), None);
    }
}
