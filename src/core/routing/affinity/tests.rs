//! Memories of prompts and adapters.

use std::sync::Arc;

use proptest::prelude::*;

use super::*;

fn url(at: usize) -> Arc<str> {
    format!("http://e{at}").into()
}

#[test]
fn a_prompt_has_a_hash_for_each_whole_block_of_its_first_sixteen() {
    let prompt: Vec<u8> = (0..40_000u32).map(|at| (at % 251) as u8).collect();
    assert_eq!(block_hashes(&prompt[..1023]).len(), 0);
    assert_eq!(block_hashes(&prompt[..2048]).len(), 2);
    let whole = block_hashes(&prompt);
    assert_eq!(whole.len(), BLOCKS_MAX);
    assert_eq!(block_hashes(&prompt[..5000])[..], whole[..4]);
    let mut other = prompt.clone();
    other[1500] ^= 1;
    let other = block_hashes(&other);
    assert_eq!(other[0], whole[0]);
    assert!((1..BLOCKS_MAX).all(|at| other[at] != whole[at]));
}

#[test]
fn equal_blocks_at_different_places_differ() {
    let hashes = block_hashes(&vec![0; 4096]);
    let mut sorted = hashes.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    assert_eq!(sorted.len(), 4);
}

#[test]
fn the_share_is_counted_from_the_beginning() {
    let mut memory = PrefixMemory::new(64);
    memory.remember(&url(0), &[1, 2, 3, 4]);
    memory.remember(&url(1), &[2, 3]);
    assert_eq!(memory.share("http://e0", &[1, 2, 3, 9]), 750);
    assert_eq!(memory.share("http://e1", &[1, 2, 3]), 0);
    assert_eq!(memory.share("http://e0", &[]), 0);
    assert_eq!(memory.share("http://nowhere", &[1]), 0);
    memory.retain(|endpoint| endpoint != "http://e0");
    assert_eq!(memory.share("http://e0", &[1, 2, 3, 4]), 0);
}

#[test]
fn what_was_not_used_for_longest_is_forgotten_ends_before_beginnings() {
    let mut memory = PrefixMemory::new(BLOCKS_MAX);
    let long: Vec<u64> = (0..16).collect();
    memory.remember(&url(0), &long);
    memory.remember(&url(0), &[100, 101]);
    assert_eq!(memory.share("http://e0", &long), 875);
    assert_eq!(memory.share("http://e0", &[100, 101]), 1000);
    assert_eq!(memory.blocks(), 16);
}

#[test]
fn an_adapter_is_where_it_was_sent_last() {
    let mut adapters = AdapterMemory::default();
    let (one, two) = (lora_number("one"), lora_number("two"));
    assert_ne!(one, two);
    adapters.remember(&url(0), one);
    assert_eq!(adapters.affinity("http://e0", Some(one)), 1000);
    adapters.remember(&url(0), two);
    assert_eq!(adapters.affinity("http://e0", Some(one)), 0);
    assert_eq!(adapters.affinity("http://e0", None), 0);
    assert_eq!(adapters.affinity("http://e1", None), 0);
    adapters.retain(|_| false);
    assert_eq!(adapters.affinity("http://e0", Some(two)), 0);
}

#[test]
fn endpoints_have_a_bound() {
    let mut memory = PrefixMemory::new(16);
    for at in 0..ENDPOINTS_MAX + 5 {
        memory.remember(&url(at), &[7]);
    }
    assert_eq!(memory.blocks(), ENDPOINTS_MAX);
}

proptest! {
    #[test]
    fn it_remembers_what_a_list_of_the_recent_would(prompts in proptest::collection::vec((0..2usize, proptest::collection::vec(0..40u64, 0..8)), 0..60)) {
        let capacity = BLOCKS_MAX + 4;
        let mut memory = PrefixMemory::new(capacity);
        let mut lists = [Vec::new(), Vec::new()];
        for (endpoint, hashes) in prompts {
            let list: &mut Vec<u64> = &mut lists[endpoint];
            let known = hashes.iter().take_while(|hash| list.contains(hash)).count();
            let share = if hashes.is_empty() { 0 } else { known * 1000 / hashes.len() };
            prop_assert_eq!(memory.share(&url(endpoint), &hashes), share as u16);
            memory.remember(&url(endpoint), &hashes);
            for hash in hashes.iter().rev() {
                list.retain(|other| other != hash);
                list.push(*hash);
                if list.len() > capacity {
                    list.remove(0);
                }
            }
            prop_assert_eq!(memory.blocks(), lists[0].len() + lists[1].len());
        }
    }
}
