//! Tests of webhooks: schedule of deliveries, filters, ids and the throttle.

use super::*;

const NOW: Millis = Millis(1_000_000);

fn failed(status: u16, retry_after_secs: u64) -> DeliveryResult {
    DeliveryResult::of_status(status, Some(Millis::from_secs(retry_after_secs)))
}

fn retry_secs(decision: DeliveryDecision) -> u64 {
    match decision {
        DeliveryDecision::RetryAt(at) => at.since(NOW).0 / 1000,
        other => panic!("{other:?}"),
    }
}

#[test]
fn twelve_attempts_spread_over_76_hours() {
    let total: u64 = DELIVERY_DELAYS.iter().map(|delay| delay.0).sum();
    assert_eq!(DELIVERY_DELAYS.len(), 12);
    assert_eq!(total / 3_600_000, 75);
}

#[test]
fn a_retry_comes_within_a_fifth_of_its_delay_and_covers_that_range() {
    let result = failed(500, 0);
    for attempts in 1..12_u32 {
        let delay = DELIVERY_DELAYS[attempts as usize].0;
        let (mut least, mut most) = (u64::MAX, 0);
        let mut random = 7_u64;
        for _ in 0..2000 {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let DeliveryDecision::RetryAt(at) = result.decide(attempts, random >> 11, NOW) else {
                panic!("attempt {attempts} is not the last");
            };
            let waited = at.since(NOW).0;
            assert!(waited >= delay * 4 / 5 && waited <= delay * 6 / 5);
            (least, most) = (least.min(waited), most.max(waited));
        }
        assert!(least < delay * 82 / 100 && most > delay * 118 / 100);
    }
}

#[test]
fn the_twelfth_failure_is_the_last() {
    for attempts in [12, 13, u32::MAX] {
        let decision = failed(500, 10).decide(attempts, 0, NOW);
        assert_eq!(decision, DeliveryDecision::Dead);
    }
    // A count that was lost is taken for the first attempt.
    assert!(retry_secs(failed(500, 0).decide(0, 0, NOW)) <= 6);
}

#[test]
fn answers_decide() {
    let decide = |status| DeliveryResult::of_status(status, None).decide(1, 0, NOW);
    for status in 200..300 {
        assert_eq!(decide(status), DeliveryDecision::Done);
    }
    assert_eq!(decide(410), DeliveryDecision::Dead);
    for status in [100, 199, 301, 302, 307, 308, 400, 404, 408, 429, 500, 503] {
        assert_eq!(retry_secs(decide(status)), 4, "{status}");
    }
    let silent = DeliveryResult::Failed {
        status: None,
        retry_after: None,
    };
    assert_eq!(retry_secs(silent.decide(2, 0, NOW)), 24);
}

#[test]
fn retry_after_is_obeyed_for_429_and_503_up_to_an_hour() {
    let decide = |status, secs, attempts| retry_secs(failed(status, secs).decide(attempts, 0, NOW));
    assert_eq!(decide(429, 100, 1), 100);
    assert_eq!(decide(503, 100, 1), 100);
    assert_eq!(decide(500, 100, 1), 4);
    assert_eq!(decide(503, 100_000, 1), 3600);
    // The schedule's delay is longer.
    assert_eq!(decide(503, 100, 6), 5760);
}

#[test]
fn late_moments_saturate() {
    let decision = failed(503, u64::MAX).decide(1, u64::MAX, Millis::MAX);
    assert_eq!(decision, DeliveryDecision::RetryAt(Millis::MAX));
}

#[test]
fn a_filter_names_events_and_is_all_without_a_word() {
    let parse = |words: &[&str]| WebhookFilter::parse(words.iter().copied());
    let events = |filter: WebhookFilter| filter.events().collect::<Vec<_>>();
    assert_eq!(events(WebhookFilter::default()), WebhookEvent::ALL);
    assert_eq!(parse(&[]), Ok(WebhookFilter::default()));
    let some = parse(&["completed", "logs", "logs"]).unwrap();
    assert_eq!(events(some), [WebhookEvent::Logs, WebhookEvent::Completed]);
    for word in ["", "Completed", "all", "logs ", "outputs"] {
        assert_eq!(parse(&["start", word]), Err(WebhookFilterError));
    }
}

#[test]
fn ids_have_numbers_where_a_kind_repeats() {
    let id = |event: WebhookEvent| event.webhook_id("j1", 3);
    let ids = WebhookEvent::ALL.map(id);
    assert_eq!(
        ids,
        ["j1-start", "j1-output-3", "j1-logs-3", "j1-completed"]
    );
}

fn throttle() -> IntermediateThrottle {
    IntermediateThrottle::new(WebhookFilter::default())
}

fn take(throttle: &mut IntermediateThrottle, now: u64) -> Option<(WebhookEvent, u64)> {
    let taken = throttle.take(Millis(now))?;
    Some((taken.event, taken.number))
}

#[test]
fn offers_within_the_interval_are_one_notification() {
    let mut throttle = throttle();
    throttle.offer(WebhookEvent::Output, Millis(0));
    assert_eq!(take(&mut throttle, 0), Some((WebhookEvent::Output, 1)));
    throttle.finish();
    for now in 1..400 {
        throttle.offer(WebhookEvent::Output, Millis(now));
        assert_eq!(take(&mut throttle, now), None);
    }
    assert_eq!(throttle.next_due(), Some(Millis(500)));
    assert_eq!(take(&mut throttle, 500), Some((WebhookEvent::Output, 2)));
    throttle.finish();
    assert_eq!(throttle.next_due(), None);
}

#[test]
fn kinds_have_intervals_of_their_own_and_one_flight_together() {
    let mut throttle = throttle();
    throttle.offer(WebhookEvent::Output, Millis(0));
    throttle.offer(WebhookEvent::Logs, Millis(1));
    assert_eq!(take(&mut throttle, 1), Some((WebhookEvent::Output, 1)));
    assert_eq!((throttle.next_due(), take(&mut throttle, 9)), (None, None));
    throttle.finish();
    assert_eq!(take(&mut throttle, 10), Some((WebhookEvent::Logs, 1)));
    // A slow receiver: both kinds are offered again and take turns.
    throttle.offer(WebhookEvent::Output, Millis(20));
    throttle.offer(WebhookEvent::Logs, Millis(20));
    throttle.finish();
    assert_eq!(take(&mut throttle, 5000), Some((WebhookEvent::Output, 2)));
    throttle.offer(WebhookEvent::Output, Millis(5000));
    throttle.finish();
    assert_eq!(take(&mut throttle, 9000), Some((WebhookEvent::Logs, 2)));
}

#[test]
fn the_start_goes_first_and_once() {
    let mut throttle = throttle();
    throttle.offer(WebhookEvent::Logs, Millis(0));
    throttle.offer(WebhookEvent::Start, Millis(5));
    throttle.offer(WebhookEvent::Completed, Millis(5));
    assert_eq!(take(&mut throttle, 5), Some((WebhookEvent::Start, 1)));
    throttle.offer(WebhookEvent::Start, Millis(6));
    throttle.finish();
    assert_eq!(take(&mut throttle, 9000), Some((WebhookEvent::Logs, 1)));
    throttle.finish();
    assert_eq!(throttle.next_due(), None);
}

#[test]
fn nothing_is_due_after_the_close() {
    let mut throttle = throttle();
    throttle.offer(WebhookEvent::Output, Millis(0));
    take(&mut throttle, 0);
    throttle.offer(WebhookEvent::Logs, Millis(1));
    throttle.close();
    assert!(throttle.is_in_flight());
    throttle.finish();
    throttle.offer(WebhookEvent::Output, Millis(2));
    assert_eq!(
        (throttle.next_due(), take(&mut throttle, 9000)),
        (None, None)
    );
}

#[test]
fn events_outside_the_filter_are_not_sent() {
    let filter = WebhookFilter::parse(["logs", "completed"]).unwrap();
    let mut throttle = IntermediateThrottle::new(filter);
    throttle.offer(WebhookEvent::Start, Millis(0));
    throttle.offer(WebhookEvent::Output, Millis(0));
    assert_eq!(throttle.next_due(), None);
    throttle.offer(WebhookEvent::Logs, Millis(0));
    assert_eq!(take(&mut throttle, 0), Some((WebhookEvent::Logs, 1)));
}
