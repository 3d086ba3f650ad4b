//! Shuffle sharding: each account uses a few of a deployable's flows, chosen by hash.
//!
//! Knows no queue: which flow of a hand is the shorter is the table's to see. Hands come from rendezvous hashing
//! (<https://en.wikipedia.org/wiki/Rendezvous_hashing>), so that one shard more changes few hands. The hash is our
//! own and never changes: all nodes and all releases deal the same hands. O(shards log shards).

use crate::AccountId;

/// Most shards of a deployable; more count as this.
pub const SHARDS_MAX: u16 = 1024;

/// Sizes of shuffle sharding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandSize {
    /// Shards in all, 1 to [`SHARDS_MAX`].
    pub shards: u16,
    /// Shards of one account, 1 to `shards`.
    pub hand: u16,
}

/// Returns the shards of an account, numbered from 0, the heaviest by hash first. Sizes out of their bounds count as
/// the nearest bound.
pub fn deal_hand(deployable: &str, account: &AccountId, size: HandSize) -> Vec<u16> {
    let shards = size.shards.clamp(1, SHARDS_MAX);
    let weigh = |shard: u16| (weigh_shard(deployable, account, shard), shard);
    let mut weights: Vec<_> = (0..shards).map(weigh).collect();
    weights.sort_unstable_by(|one, other| other.cmp(one));
    weights.truncate(usize::from(size.hand.clamp(1, shards)));
    weights.into_iter().map(|(_, shard)| shard).collect()
}

/// Weight of a shard for an account: FNV-1a (<https://datatracker.ietf.org/doc/html/draft-eastlake-fnv>) over the
/// parts, then the finalizer of splitmix64 (<https://prng.di.unimi.it/splitmix64.c>), as FNV alone spreads the last
/// bytes too little.
fn weigh_shard(deployable: &str, account: &AccountId, shard: u16) -> u64 {
    // No text contains 255: parts cannot run into each other.
    let parts = [deployable.as_bytes(), &[255], account.as_str().as_bytes()];
    let bytes = parts.into_iter().flatten().copied();
    let bytes = bytes.chain([255]).chain(shard.to_le_bytes());
    let fnv = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    let mixed = (fnv ^ (fnv >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: HandSize = HandSize { shards: 8, hand: 2 };

    fn deal(account: u32, size: HandSize) -> Vec<u16> {
        deal_hand("vp-1", &format!("account-{account}").as_str().into(), size)
    }

    #[test]
    fn a_hand_is_distinct_shards_and_the_same_each_time() {
        for account in 0..1000 {
            let hand = deal(account, SIZE);
            assert!(hand.len() == 2 && hand[0] != hand[1] && hand.iter().all(|shard| *shard < 8));
            assert_eq!(hand, deal(account, SIZE));
        }
    }

    #[test]
    fn hands_do_not_change_with_a_release() {
        let hands: Vec<_> = (0..6).map(|account| deal(account, SIZE)).collect();
        assert_eq!(hands, PINNED);
        assert_eq!(weigh_shard("", &"".into(), 0), PINNED_WEIGHT);
    }

    #[test]
    fn shards_and_pairs_of_shards_are_dealt_evenly() {
        let mut shards = [0_u32; 8];
        let mut pairs = [[0_u32; 8]; 8];
        for account in 0..28_000 {
            let hand = deal(account, SIZE);
            let (first, second) = (usize::from(hand[0]), usize::from(hand[1]));
            shards[first] += 1;
            shards[second] += 1;
            pairs[first.min(second)][first.max(second)] += 1;
        }
        assert!(
            shards.iter().all(|count| (6700..7300).contains(count)),
            "{shards:?}"
        );
        let dealt = pairs.iter().flatten().filter(|count| **count > 0);
        assert_eq!(dealt.clone().count(), 28);
        assert!(
            dealt.clone().all(|count| (850..1150).contains(count)),
            "{pairs:?}"
        );
    }

    #[test]
    fn deployables_deal_different_hands_to_one_account() {
        let hands = |deployable: &str| deal_hand(deployable, &"a".into(), SIZE);
        let same = (0..2800).filter(|n| hands(&format!("vp-{n}")) == hands("vp-x"));
        // Ordered pairs: one in 56.
        assert!((20..90).contains(&same.count()));
    }

    #[test]
    fn one_shard_more_changes_only_hands_that_hold_it() {
        let more = HandSize { shards: 9, hand: 2 };
        let mut changed = 0;
        for account in 0..9000 {
            let (before, after) = (deal(account, SIZE), deal(account, more));
            if after.contains(&8) {
                changed += 1;
                assert!(
                    after
                        .iter()
                        .all(|shard| *shard == 8 || before.contains(shard))
                );
            } else {
                assert_eq!(before, after);
            }
        }
        assert!((1800..2200).contains(&changed), "{changed}");
    }

    #[test]
    fn sizes_are_brought_into_their_bounds() {
        assert_eq!(deal(1, HandSize { shards: 0, hand: 0 }), [0]);
        let few = HandSize { shards: 3, hand: 9 };
        assert_eq!(deal(1, few).len(), 3);
        let most = HandSize {
            shards: u16::MAX,
            hand: u16::MAX,
        };
        assert_eq!(deal(1, most).len(), usize::from(SHARDS_MAX));
    }

    const PINNED: [[u16; 2]; 6] = [[1, 3], [7, 6], [3, 7], [4, 1], [7, 5], [6, 7]];
    const PINNED_WEIGHT: u64 = 0xcfd571c85fedd1ec;
}
