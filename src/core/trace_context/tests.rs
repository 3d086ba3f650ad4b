//! Tests of trace contexts: the examples of the specification, and properties.

use proptest::prelude::*;

use super::*;

const EXAMPLE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

fn parsed(text: &str) -> Result<TraceContext, TraceContextError> {
    TraceContext::parse(text.as_bytes())
}

fn state(lines: &[&str]) -> Option<String> {
    parse_tracestate(lines.iter().map(|line| line.as_bytes()))
}

#[test]
fn the_example_of_the_specification_is_read_and_written() {
    let context = parsed(EXAMPLE).unwrap();
    assert_eq!(
        context.trace_id.to_string(),
        "4bf92f3577b34da6a3ce929d0e0e4736"
    );
    assert_eq!(context.span_id.to_string(), "00f067aa0ba902b7");
    assert!(context.is_sampled());
    assert_eq!(context.to_string(), EXAMPLE);
}

#[test]
fn what_is_not_a_traceparent_is_refused() {
    use TraceContextError::{Field, Length, Version, ZeroId};
    let zero_trace = EXAMPLE.replace("4bf92f3577b34da6a3ce929d0e0e4736", &"0".repeat(32));
    let zero_span = EXAMPLE.replace("00f067aa0ba902b7", &"0".repeat(16));
    for (text, error) in [
        ("", Length),
        (&EXAMPLE[..54], Length),
        (&format!("{EXAMPLE}-"), Length),
        (&format!("{EXAMPLE}0"), Length),
        (&EXAMPLE.replace("00-4b", "ff-4b"), Version),
        (&EXAMPLE.replace("00-4b", "0g-4b"), Version),
        (
            &EXAMPLE.replace("00-4b", "01-4b").replace("-01", "-01."),
            Length,
        ),
        (&EXAMPLE.to_uppercase(), Field),
        (&EXAMPLE.replace("b7-01", "b7_01"), Field),
        (&EXAMPLE.replace("-4bf9", "-4b 9"), Field),
        (&EXAMPLE.replace("-01", "-0x"), Field),
        (&zero_trace, ZeroId),
        (&zero_span, ZeroId),
    ] {
        assert_eq!(parsed(text), Err(error), "{text}");
    }
}

#[test]
fn a_later_version_is_read_as_far_as_it_is_known_and_unknown_flags_are_dropped() {
    let later = EXAMPLE.replace("00-4b", "cc-4b").replace("-01", "-fd");
    for text in [
        later.clone(),
        format!("{later}-what-the-future-will-be-like"),
    ] {
        assert_eq!(parsed(&text), parsed(EXAMPLE), "{text}");
    }
}

#[test]
fn a_tracestate_is_joined_without_its_empty_entries() {
    let two = state(&["rojo=00f067aa0ba902b7 , ,", "congo@a=t61rcWkgMzE,"]);
    assert_eq!(
        two.as_deref(),
        Some("rojo=00f067aa0ba902b7,congo@a=t61rcWkgMzE")
    );
    assert_eq!(state(&[" , ", ""]), None);
}

#[test]
fn an_invalid_tracestate_is_dropped_whole() {
    let many: Vec<String> = (0..33).map(|at| format!("k{at}=1")).collect();
    let long = format!("a={}", "x".repeat(257));
    let large: Vec<String> = (0..9)
        .map(|at| format!("k{at}={}", "x".repeat(250)))
        .collect();
    for wrong in [
        "a",
        "a=",
        "=1",
        "A=1",
        "1a=1",
        "a=1,a=2",
        "a b=1",
        "a=1=2",
        "a=\u{7f}",
        "a=ü",
        "a@=1",
        "@a=1",
        "a@1=1",
        "a@b@c=1",
        "a=1,b",
        &long,
        &many.join(","),
        &large.join(","),
    ] {
        assert_eq!(state(&[wrong]), None, "{wrong}");
    }
    assert!(state(&[&many[..32].join(",")]).is_some());
    assert!(state(&["1a@b=1,a_-*/9= x"]).is_some());
}

#[test]
fn a_sampler_follows_the_sender_or_the_ratio() {
    let recorded = parsed(EXAMPLE).unwrap();
    let unrecorded = parsed(&EXAMPLE.replace("-01", "-00")).unwrap();
    let start = |ratio, follows, parent| {
        let started = Sampler::new(ratio, follows).start(Some(parent), || [1, 2, 3]);
        started.is_some()
    };
    for ratio in [0.0, 1.0] {
        assert!(start(ratio, true, &recorded));
        assert!(!start(ratio, true, &unrecorded));
        assert_eq!(start(ratio, false, &recorded), ratio == 1.0);
        assert_eq!(start(ratio, false, &unrecorded), ratio == 1.0);
    }
    let child = Sampler::new(0.0, true).start(Some(&recorded), || [1, 2, 3]);
    assert_eq!(
        child.unwrap().to_string(),
        "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000003-01"
    );
}

#[test]
fn the_ratio_is_kept_over_many_traces() {
    let sampler = Sampler::new(0.1, true);
    let seed = SpanId::from_random(7);
    let draw = |ordinal: u64| u64::from_be_bytes(seed.child(ordinal).to_bytes());
    let taken = (0..10_000).filter(|&at| sampler.start(None, || [1, draw(at), 1]).is_some());
    let taken = taken.count();
    assert!((900..1100).contains(&taken), "{taken}");
}

#[test]
fn parts_of_a_span_have_ids_of_their_own() {
    let span = SpanId::from_random(u64::MAX);
    let mut ids: Vec<String> = (0..1000).map(|at| span.child(at).to_string()).collect();
    ids.push(span.to_string());
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 1001);
    assert_eq!(span.child(3), span.child(3));
}

proptest! {
    #[test]
    fn what_is_written_is_read(high: u64, low: u64, span: u64, is_sampled: bool) {
        let trace_id = TraceId::from_random([high, low]);
        let context = TraceContext::root(trace_id, SpanId::from_random(span), is_sampled);
        let text = context.to_string();
        prop_assert_eq!(text.len(), TRACEPARENT_BYTES);
        prop_assert_eq!(parsed(&text), Ok(context));
        prop_assert_eq!(context.is_sampled(), is_sampled);
    }

    #[test]
    fn whatever_is_read_is_written_in_one_form(text in proptest::collection::vec(any::<u8>(), 0..80)) {
        if let Ok(context) = TraceContext::parse(&text) {
            prop_assert_eq!(TraceContext::parse(context.to_string().as_bytes()), Ok(context));
        }
    }

    #[test]
    fn a_text_with_one_byte_changed_is_refused_or_of_the_same_form(at in 0..55_usize, byte: u8) {
        let mut text = EXAMPLE.as_bytes().to_vec();
        text[at] = byte;
        if TraceContext::parse(&text).is_ok() {
            prop_assert!(matches!(byte, b'0'..=b'9' | b'a'..=b'f' | b'-'));
        }
    }

    #[test]
    fn a_tracestate_that_is_taken_is_taken_again(line in "[ -~\t]{0,120}") {
        if let Some(once) = state(&[&line]) {
            prop_assert_eq!(state(&[&once]), Some(once.clone()));
        }
    }

    #[test]
    fn the_random_bits_of_a_trace_decide_alike_everywhere(high: u64, low: u64, ratio in 0.0..1.0_f64) {
        let sampler = Sampler::new(ratio, false);
        let here = sampler.start(None, || [high, low, 1]);
        let parent = TraceContext::root(TraceId::from_random([high, low]), SpanId::from_random(9), true);
        prop_assert_eq!(here.is_some(), sampler.start(Some(&parent), || [0, 0, 2]).is_some());
    }
}
