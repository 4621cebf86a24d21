//! Random-k: few places and all, scaled and not, and every treatment of NaN and infinity.

use super::numbers::Kind;
use super::{Comparisons, POLICIES};
use hexagram_logical::codec::{Keep, LinearCodec, NotFinite, OneRound, RandomK};
use hexagram_logical::testing::lengths;
use std::sync::Arc;

#[test]
fn messages_and_what_they_decode_to_are_the_hosts() {
    let mut comparisons = Comparisons::default();
    for keep in
        lengths(&[Keep::Count(1), Keep::Count(7), Keep::Ratio(0.01), Keep::Ratio(0.7), Keep::Ratio(1.0)])
    {
        for len in lengths(&[0, 1, 2, 6, 7, 8, 100, 1000, 5003]) {
            for policy in POLICIES {
                comparisons.compare(&RandomK::new(keep).unwrap().with_not_finite(policy), len, 2);
                comparisons.compare(&RandomK::unbiased(keep).unwrap().with_not_finite(policy), len, 3);
            }
        }
    }
    for policy in POLICIES {
        let codec = RandomK::unbiased(Keep::Ratio(0.1)).unwrap().with_not_finite(policy);
        comparisons.compare(&codec, 3000, 2 * Kind::ALL.len());
    }
}

/// The reduced messages: the same numbers without the seed; decoding adds to nothing.
#[test]
fn linear_messages_and_what_they_decode_to_are_the_hosts() {
    let mut comparisons = Comparisons { weights: &[None], ..Comparisons::default() };
    let mut compare = |codec: RandomK, policy: NotFinite, len: usize, kinds: usize| {
        let codec: Arc<dyn LinearCodec> = Arc::new(codec.with_not_finite(policy));
        let one_round = OneRound::of(&codec, len, len as u64 + 1).unwrap();
        comparisons.compare(&one_round, len, kinds);
    };
    for keep in lengths(&[Keep::Count(1), Keep::Count(7), Keep::Ratio(0.01), Keep::Ratio(1.0)]) {
        for len in lengths(&[0, 1, 2, 7, 8, 1000, 5003]) {
            for policy in POLICIES {
                compare(RandomK::new(keep).unwrap(), policy, len, 2);
                compare(RandomK::unbiased(keep).unwrap(), policy, len, 2);
            }
        }
    }
    for policy in POLICIES {
        compare(RandomK::unbiased(Keep::Ratio(0.1)).unwrap(), policy, 3000, 2 * Kind::ALL.len());
    }
}
