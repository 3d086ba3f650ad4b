//! Properties of the policies that need no settings; examples are in the gateway's core.

use alloc::vec;

use super::{Health, SplitMix64, in_order, site_number};

#[test]
fn the_fittest_condition_comes_first() {
    let classes = Health::ALL.map(Health::fitness);
    assert!(classes.is_sorted());
    assert_eq!(
        Health::ALL.iter().filter(|health| health.is_fit()).count(),
        2
    );
}

#[test]
fn equal_keys_share_a_step_and_the_lower_id_is_first() {
    let choices = in_order(vec![(1, 0, 7), (0, 1, 3), (1, 0, 2), (0, 0, 9)]);
    let found: vec::Vec<_> = choices
        .iter()
        .map(|choice| (choice.id, choice.step))
        .collect();
    assert_eq!(found, [(9, 0), (3, 0), (2, 1), (7, 1)]);
}

#[test]
fn a_number_below_nothing_is_nothing() {
    assert_eq!(SplitMix64::new(7).next_below(0), 0);
    assert_ne!(site_number(""), 0);
}
