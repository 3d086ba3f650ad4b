//! The text form, and a request's way there and back.

use std::sync::Arc;

use proptest::prelude::*;

use super::*;

const TEXT: &str =
    "1; visited=a1,b2; deadline_ms=29500; errors=2; capacity=4; hops=1; wait_ms=0; in_flight=3";

fn name(text: &str) -> Arc<str> {
    text.into()
}

fn begin() -> Hops {
    Hops::new(&name("a"), Millis(30_000), 1_000)
}

#[test]
fn the_text_form_is_as_documented() {
    let hops = Hops::parse(TEXT).expect("it is well formed");
    assert_eq!(hops.visited, [name("a1"), name("b2")]);
    assert_eq!(hops.deadline_left, Millis(29_500));
    assert_eq!((hops.hops_left, hops.in_flight), (1, 3));
    assert_eq!(hops.to_string(), TEXT);
}

#[test]
fn anything_odd_is_an_error() {
    let changed = |from: &str, to: &str| {
        assert!(TEXT.contains(from), "{from}");
        TEXT.replacen(from, to, 1)
    };
    let odd = [
        String::new(),
        " ".to_owned() + TEXT,
        TEXT.to_owned() + " ",
        TEXT.to_owned() + "; more=1",
        TEXT.to_owned() + "; ",
        changed("1; ", "2; "),
        changed("1; ", "01; "),
        changed("; ", ";"),
        changed("visited=a1,b2", "visited="),
        changed("visited=a1,b2", "visited"),
        changed("a1,b2", "a1,"),
        changed("a1,b2", "a1,a1"),
        changed("a1,b2", "a1, b2"),
        changed("a1,b2", "a1,b\u{e4}"),
        changed("a1,b2", "a1,b;2"),
        changed("a1,b2", "a1,b\r\n2"),
        changed("a1", &"x".repeat(65)),
        changed("a1,b2", &["n"; 10].join(",")),
        changed("a1,b2", "1,2,3,4,5,6,7,8,9,10"),
        changed("errors=2", "errors=4"),
        changed("errors=2", "errors=-1"),
        changed("errors=2", "errors=+1"),
        changed("errors=2", "errors=02"),
        changed("errors=2", "errors= 2"),
        changed("errors=2", "errors="),
        changed("errors=2", "errors=0x2"),
        changed("errors=2", "ERRORS=2"),
        changed("capacity=4", "capacity=6"),
        changed("hops=1", "hops=3"),
        changed("29500", "86400001"),
        changed("29500", "99999999999999999999999999"),
        changed("in_flight=3", "in_flight=4294967296"),
        changed("errors=2; ", ""),
        changed("errors=2", "errors=2; errors=2"),
        changed("errors=2; capacity=4", "capacity=4; errors=2"),
        "1; visited=".to_owned() + &"a,".repeat(1000),
    ];
    for text in odd {
        assert!(Hops::parse(&text).is_err(), "{text}");
    }
}

#[test]
fn a_request_that_comes_back_to_a_node_does_not_enter() {
    let mut hops = begin();
    let mut at_b = hops.forward(&name("b"), Millis(29_000), Millis::ZERO, 1, true);
    at_b.arrive(&name("b")).expect("it was not here");
    let mut at_a = at_b.forward(&name("a"), Millis(28_000), Millis::ZERO, 1, true);
    assert_eq!(at_a.arrive(&name("a")), Err(HopsError::Loop));
}

#[test]
fn a_request_goes_two_nodes_far_and_no_further() {
    let mut hops = begin();
    let mut at_b = hops.forward(&name("b"), Millis(29_000), Millis::ZERO, 1, true);
    at_b.arrive(&name("b")).expect("it was not here");
    assert!(at_b.may_forward());
    let mut at_c = at_b.forward(&name("c"), Millis(28_000), Millis::ZERO, 1, true);
    at_c.arrive(&name("c")).expect("it was not here");
    assert!(!at_c.may_forward());
}

#[test]
fn after_two_refusals_a_request_settles_for_a_line_and_a_large_one_does_at_once() {
    let left = Millis(20_000);
    let mut hops = begin();
    let mut waits = Vec::new();
    for _ in 0..3 {
        waits.push(hops.may_wait(left));
        hops.budget.record_out_of_capacity();
    }
    assert_eq!(waits, [Millis::ZERO, Millis::ZERO, left]);
    let large = Hops::new(&name("a"), Millis(30_000), 1 << 20);
    assert_eq!(large.may_wait(left), left);
}

#[test]
fn a_request_that_is_better_back_does_not_go_on() {
    let mut hops = begin();
    let mut at_b = hops.forward(&name("b"), Millis(29_000), Millis::ZERO, 1, false);
    at_b.arrive(&name("b")).expect("it was not here");
    assert!(!at_b.may_forward() && hops.may_forward());
}

#[test]
fn what_a_node_tells_back_is_settled_and_whom_it_asked_is_not_asked_again() {
    let mut hops = begin();
    let sent = hops.forward(&name("b"), Millis(29_000), Millis::ZERO, 1, true);
    let mut at_b = sent.clone();
    at_b.arrive(&name("b")).expect("it was not here");
    let to_c = at_b.forward(&name("c"), Millis(28_000), Millis::ZERO, 1, true);
    let mut at_c = to_c.clone();
    at_c.arrive(&name("c")).expect("it was not here");
    at_c.budget.record_error();
    at_b.settle_returned(&to_c, &at_c).expect("it follows");
    assert!(at_b.budget.record_out_of_capacity());

    hops.settle_returned(&sent, &at_b).expect("it follows");
    assert_eq!(hops.visited, [name("a"), name("b"), name("c")]);
    assert_eq!((hops.budget.errors_left, hops.budget.capacity_left), (2, 4));
}

#[test]
fn an_answer_that_gives_back_more_than_was_lent_is_not_believed() {
    let mut hops = begin();
    let sent = hops.forward(&name("b"), Millis(29_000), Millis::ZERO, 1, true);
    let mut generous = sent.clone();
    generous.arrive(&name("b")).expect("it was not here");
    generous.budget.errors_left = 3;
    let before = hops.clone();
    assert_eq!(
        hops.settle_returned(&sent, &generous),
        Err(HopsError::NotOurs)
    );
    let mut forgetful = sent.clone();
    forgetful.visited.clear();
    assert_eq!(
        hops.settle_returned(&sent, &forgetful),
        Err(HopsError::NotOurs)
    );
    assert_eq!(hops, before);
}

prop_compose! {
    fn any_hops()(
        names in prop::collection::hash_set("[A-Za-z0-9._-]{1,64}", 1..=VISITED_MAX),
        deadline_ms in 0..=DEADLINE_LEFT_MAX.0,
        wait_ms in 0..=DEADLINE_LEFT_MAX.0,
        errors_left in 0..=ERRORS_MAX,
        capacity_left in 0..=CAPACITY_ATTEMPTS_SMALL,
        hops_left in 0..=HOPS_MAX,
        in_flight: u32,
    ) -> Hops {
        Hops {
            visited: names.iter().map(|text| name(text)).collect(),
            deadline_left: Millis(deadline_ms),
            budget: AttemptBudget { errors_left, capacity_left },
            hops_left,
            wait_max: Millis(wait_ms),
            in_flight,
        }
    }
}

proptest! {
    #[test]
    fn what_is_written_is_read_as_it_was(hops in any_hops()) {
        let text = hops.to_string();
        prop_assert!(text.len() <= TEXT_BYTES_MAX);
        prop_assert_eq!(Hops::parse(&text), Ok(hops));
    }

    #[test]
    fn whatever_is_read_is_written_as_it_was(text in any::<String>(), at in 0..90_usize, byte in any::<char>()) {
        if let Ok(hops) = Hops::parse(&text) {
            prop_assert_eq!(hops.to_string(), text);
        }
        let mut changed: Vec<char> = TEXT.chars().collect();
        changed[at.min(TEXT.len() - 1)] = byte;
        let changed: String = changed.into_iter().collect();
        if let Ok(hops) = Hops::parse(&changed) {
            prop_assert_eq!(hops.to_string(), changed);
        }
    }
}
