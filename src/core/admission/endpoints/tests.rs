//! The table's promises, one a test.

use super::*;

fn spec(url: &str, limit: u32, priority: u32) -> EndpointSpec {
    EndpointSpec {
        url: url.into(),
        max_concurrent_requests: limit,
        priority,
        ..EndpointSpec::default()
    }
}

fn table(specs: &[EndpointSpec]) -> Endpoints {
    let mut table = Endpoints::default();
    let _ = table.configure(specs, &ServerMembership::NONE);
    table
}

fn take(table: &mut Endpoints, avoid: &[EndpointId], random: u64) -> Option<EndpointId> {
    let id = table.choose(avoid, random)?;
    table.take(id);
    table.check();
    Some(id)
}

#[test]
fn a_tier_is_used_only_when_lower_numbers_are_full_or_unusable() {
    let mut table = table(&[spec("spare", 2, 1), spec("main", 1, 0)]);
    let [spare, main] = ["spare", "main"].map(|url| table.find(url));

    assert_eq!(take(&mut table, &[], 7), main);
    assert_eq!(take(&mut table, &[], 7), spare);
    table.release(main.unwrap());
    table.set_usable(main.unwrap(), false);
    assert_eq!(take(&mut table, &[], 7), spare);
    assert_eq!(take(&mut table, &[], 7), None);
}

#[test]
fn the_least_used_of_few_endpoints_is_chosen_for_every_random_number() {
    let specs: Vec<EndpointSpec> = (0..8).map(|n| spec(&format!("e{n}"), 9, 0)).collect();
    let mut table = table(&specs);
    for round in 1..=9 {
        for n in 0..8_u64 {
            take(&mut table, &[], n.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        }
        assert!(table.state().iter().all(|endpoint| endpoint.used == round));
    }
}

#[test]
fn two_choices_among_many_stay_nearly_even() {
    let specs: Vec<EndpointSpec> = (0..64).map(|n| spec(&format!("e{n}"), 1000, 0)).collect();
    let mut table = table(&specs);
    let mut rng = fastrand::Rng::with_seed(64);
    for _ in 0..64 * 100 {
        take(&mut table, &[], rng.u64(..));
    }
    let used: Vec<u32> = table.state().iter().map(|endpoint| endpoint.used).collect();
    assert!(
        used.iter().all(|&used| (95..=105).contains(&used)),
        "{used:?}"
    );
}

#[test]
fn an_avoided_endpoint_is_taken_only_when_no_other_has_a_permit_free() {
    let mut table = table(&[spec("a", 2, 0), spec("b", 1, 1)]);
    let [a, b] = ["a", "b"].map(|url| table.find(url).unwrap());
    assert_eq!(take(&mut table, &[a], 0), Some(b));
    assert_eq!(take(&mut table, &[a], 0), Some(a));
}

#[test]
fn a_removed_endpoint_drains_and_may_come_back_with_its_permits() {
    let mut table = table(&[spec("a", 2, 0)]);
    let a = take(&mut table, &[], 0).unwrap();
    table.set_usable(a, false);

    let _ = table.configure(&[], &ServerMembership::NONE);
    assert!(table.state()[0].draining && table.choose(&[], 0).is_none());
    let _ = table.configure(&[spec("a", 2, 0)], &ServerMembership::NONE);
    assert_eq!(
        take(&mut table, &[], 0),
        Some(a),
        "back, usable, one permit left"
    );
    assert_eq!(take(&mut table, &[], 0), None);

    let _ = table.configure(&[spec("b", 1, 0)], &ServerMembership::NONE);
    table.release(a);
    let b = table.find("b").unwrap();
    assert_ne!(a, b, "an index in use is not given to another");
    table.release(a);
    assert_eq!(table.find("a"), None);
}

#[test]
fn a_lowered_limit_holds_for_the_next_grant() {
    let mut table = table(&[spec("a", 3, 0)]);
    let a = take(&mut table, &[], 0).unwrap();
    take(&mut table, &[], 0);
    let _ = table.configure(&[spec("a", 1, 0)], &ServerMembership::NONE);
    table.release(a);
    assert_eq!(table.choose(&[], 0), None, "one is still out");
    table.release(a);
    assert_eq!(table.choose(&[], 0), Some(a));
}

#[test]
fn an_order_goes_before_tiers_and_what_it_leaves_out_comes_after() {
    let mut table = table(&[
        spec("a", 1, 0),
        spec("b", 1, 5),
        spec("c", 1, 5),
        spec("d", 1, 0),
    ]);
    let [a, b, c, d] = ["a", "b", "c", "d"].map(|url| table.find(url).unwrap());
    let order = EndpointOrder::new([(3, a), (0, b), (1, c)]);
    let next = |table: &mut Endpoints, avoid: &[EndpointId]| {
        let id = table.choose_in_order(&order, avoid, 7)?;
        table.take(id);
        table.check();
        Some(id)
    };
    assert_eq!(
        next(&mut table, &[b]),
        Some(c),
        "the avoided is passed over"
    );
    assert_eq!(next(&mut table, &[]), Some(b));
    assert_eq!(next(&mut table, &[]), Some(a));
    assert_eq!(next(&mut table, &[]), None);
    assert_eq!(table.choose(&[], 7), Some(d));
}

#[test]
fn load_is_spread_within_a_step() {
    let specs: Vec<EndpointSpec> = (0..40).map(|n| spec(&format!("e{n}"), 100, n)).collect();
    let mut table = table(&specs);
    let ids = (0..40).map(|n| table.find(&format!("e{n}")).unwrap());
    let order = EndpointOrder::new(ids.map(|id| (0, id)));
    let mut rng = fastrand::Rng::with_seed(3);
    for _ in 0..40 * 50 {
        let id = table.choose_in_order(&order, &[], rng.u64(..)).unwrap();
        table.take(id);
    }
    let used: Vec<u32> = table.state().iter().map(|endpoint| endpoint.used).collect();
    assert!(used.iter().all(|used| (40..=60).contains(used)), "{used:?}");
}
