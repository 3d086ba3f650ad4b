//! Tests of reports: one instance step by step, and random histories whose times add up.

use proptest::prelude::*;

use super::*;

const EVERY: Millis = Millis::from_secs(15);

fn times(boot: u64, idle: u64, active: u64, in_flight_ms: u128) -> StateTimes {
    StateTimes {
        boot: Millis(boot),
        idle: Millis(idle),
        active: Millis(active),
        in_flight_ms,
    }
}

#[test]
fn times_of_a_life_are_cut_every_fifteen_seconds_and_at_its_end() {
    let mut meter = InstanceMeter::new(EVERY, Millis(1000));
    assert_eq!(meter.state(), InstanceState::Boot);
    assert!(meter.become_ready(Millis(5000)).is_empty());
    assert!(meter.set_in_flight(2, Millis(9000)).is_empty());
    assert_eq!(meter.state(), InstanceState::Active);
    assert_eq!(meter.due_at(), Millis(16_000));
    let due = meter.set_in_flight(1, Millis(17_000));
    assert_eq!(due, [times(4000, 4000, 7000, 14_000)]);
    assert!(meter.set_in_flight(0, Millis(20_000)).is_empty());
    let end = meter.end(Millis(21_500));
    assert_eq!(end, [times(0, 1500, 4000, 2000 + 3000)]);
}

#[test]
fn a_late_call_cuts_each_report_at_its_own_end() {
    let mut meter = InstanceMeter::new(EVERY, Millis(0));
    meter.become_ready(Millis(0));
    meter.set_in_flight(3, Millis(20_000));
    let due = meter.take_due(Millis(61_000));
    assert_eq!(due.len(), 3);
    assert!(due.iter().all(|times| times.duration() == EVERY));
    assert_eq!(due[0], times(0, 5000, 10_000, 30_000));
    assert_eq!(meter.due_at(), Millis(75_000));
}

#[test]
fn a_long_gap_is_joined_into_a_bounded_number_of_reports() {
    let mut meter = InstanceMeter::new(EVERY, Millis(0));
    let year = Millis::from_secs(365 * 24 * 3600 + 7);
    let due = meter.take_due(year);
    assert_eq!(due.len(), DUE_MAX);
    let sum: u64 = due.iter().map(|times| times.duration().0).sum();
    assert_eq!(sum, year.0 - 7000);
    assert_eq!(meter.end(year), [times(7000, 0, 0, 0)]);
}

#[test]
fn a_report_has_the_members_of_the_contract_in_seconds() {
    let report = InstanceReport {
        instance: InstanceIdentity {
            deployment_key: "qwen-7b".to_owned(),
            docker_image_uri: None,
            hardware: "H100".to_owned(),
            compute_unit: "gpu".to_owned(),
            compute_unit_count: 1,
            instance_id: "qwen-7b#0-00c0ffee".to_owned(),
            instance_metadata: InstanceMetadata {
                node: "a1".to_owned(),
                site: None,
                slot: "qwen-7b#0".to_owned(),
                devices: vec!["GPU-a".to_owned()],
            },
            version: "1.0.0".to_owned(),
        },
        times: times(1500, 1000, 7500, 15_000),
    };
    let json = serde_json::to_value(&report).unwrap();
    let expected = serde_json::json!({
        "deployment_key": "qwen-7b", "docker_image_uri": null, "hardware": "H100", "compute_unit": "gpu",
        "compute_unit_count": 1, "instance_id": "qwen-7b#0-00c0ffee",
        "instance_metadata": { "node": "a1", "site": null, "slot": "qwen-7b#0", "devices": ["GPU-a"] },
        "version": "1.0.0", "active_time": 7.5, "boot_time": 1.5, "idle_time": 1.0,
        "metric_duration": 10.0, "utilization": 0.75, "mean_concurrency": 1.5,
    });
    assert_eq!(json, expected);
}

#[test]
fn outcomes_are_written_as_they_are_named() {
    for status in SetupStatus::ALL {
        assert_eq!(serde_json::to_value(status).unwrap(), status.name());
    }
}

#[test]
fn a_log_is_cut_between_characters() {
    assert_eq!(log_tail(b"short"), "short");
    let long = "é".repeat(LOG_TAIL_MAX);
    let tail = log_tail(&long.as_bytes()[..long.len() - 1]);
    assert!(tail.starts_with('é') && tail.len() <= LOG_TAIL_MAX + 3);
    let plain = "x".repeat(LOG_TAIL_MAX + 9);
    assert_eq!(log_tail(plain.as_bytes()).len(), LOG_TAIL_MAX);
    let binary = vec![0x80; LOG_TAIL_MAX + 9];
    assert!(!log_tail(&binary).is_empty());
}

/// Event of a random history.
#[derive(Clone, Copy, Debug)]
enum Change {
    Ready,
    Wake,
    InFlight(u32),
    Look,
}

fn changes() -> impl Strategy<Value = Vec<(u64, Change)>> {
    let change = prop_oneof![
        1 => Just(Change::Ready),
        1 => Just(Change::Wake),
        6 => (0u32..9).prop_map(Change::InFlight),
        3 => Just(Change::Look),
    ];
    let gap = prop_oneof![8 => 0u64..20_000, 1 => 0u64..4_000_000];
    proptest::collection::vec((gap, change), 0..60)
}

proptest! {
    /// Each millisecond of a life is in one report and one state, and each report but the last covers 15 s.
    #[test]
    fn times_add_up_over_any_history(start in 0u64..100_000, changes in changes()) {
        let (mut now, mut in_flight, mut is_ready) = (Millis(start), 0u32, false);
        let (mut all, mut weighted, mut active) = (Vec::new(), 0u128, 0u64);
        let mut meter = InstanceMeter::new(EVERY, now);
        for (gap, change) in changes {
            now = now + Millis(gap);
            weighted += u128::from(in_flight) * u128::from(gap);
            active += if in_flight > 0 { gap } else { 0 };
            all.extend(match change {
                Change::Ready => { is_ready = true; meter.become_ready(now) }
                Change::Wake => { is_ready = false; in_flight = 0; meter.begin_wake(now) }
                Change::InFlight(count) => {
                    in_flight = if is_ready { count } else { 0 };
                    meter.set_in_flight(count, now)
                }
                Change::Look => meter.take_due(now),
            });
            prop_assert!(meter.due_at() > now);
        }
        let whole = all.len();
        all.extend(meter.end(now));
        for (nth, times) in all.iter().enumerate() {
            let seconds = serde_json::to_value(times).unwrap();
            let part = |name: &str| seconds[name].as_f64().unwrap();
            let sum = part("active_time") + part("boot_time") + part("idle_time");
            prop_assert!((sum - part("metric_duration")).abs() < 0.001);
            prop_assert!((0.0..=1.0).contains(&part("utilization")));
            if nth < whole && part("metric_duration") < 3600.0 {
                prop_assert_eq!(times.duration().0 % EVERY.0, 0);
            }
        }
        let sum = |time: fn(&StateTimes) -> u64| all.iter().map(time).sum::<u64>();
        prop_assert_eq!(sum(|times| times.duration().0), now.0 - start);
        prop_assert_eq!(sum(|times| times.active.0), active);
        prop_assert_eq!(all.iter().map(|times| times.in_flight_ms).sum::<u128>(), weighted);
    }
}
