//! Top-k: of runs and of chunks that are short or long, few or many; whole values and two bits; many equal magnitudes.

use super::numbers::Kind;
use super::{Comparisons, POLICIES, compare, damaged};
use hexagram_logical::codec::{Codec, Keep, TopK};
use hexagram_logical::testing::lengths;

/// Lengths of which all but the last have a block of threads.
const LENGTHS: [usize; 9] = [0, 1, 2, 31, 33, 255, 1000, 8193, 33_001];

#[test]
fn what_is_kept_of_a_run_is_what_the_host_keeps() {
    let mut comparisons = Comparisons::default();
    for keep in
        lengths(&[Keep::Count(1), Keep::Count(300), Keep::Ratio(0.01), Keep::Ratio(0.4), Keep::Ratio(1.0)])
    {
        for len in lengths(&LENGTHS) {
            for policy in POLICIES {
                let codec = TopK::new(keep).unwrap().with_not_finite(policy);
                let kinds = if len < 5000 { 2 } else { 1 };
                comparisons.compare(&codec, len, kinds);
                comparisons.compare(&codec.in_two_bits(), len, kinds);
            }
        }
    }
    for policy in POLICIES {
        let codec = TopK::new(Keep::Ratio(0.03)).unwrap().with_not_finite(policy);
        comparisons.compare(&codec, 35_000, Kind::ALL.len());
        comparisons.compare(&codec.in_two_bits(), 3500, Kind::ALL.len());
    }
}

#[test]
fn what_is_kept_of_chunks_is_what_the_host_keeps() {
    let mut comparisons = Comparisons::default();
    for policy in POLICIES {
        for (size, len) in [(1, 70), (64, 1000), (100, 6450), (4096, 10_000), (usize::MAX, 33_000)] {
            for keep in [Keep::Count(3), Keep::Ratio(0.1)] {
                let codec = TopK::new(keep).unwrap().in_chunks(size).with_not_finite(policy);
                comparisons.compare(&codec, len, 4);
                comparisons.compare(&codec.in_two_bits(), len, 3);
            }
        }
        // Long chunks of which there are few.
        let codec = TopK::new(Keep::Ratio(0.02)).unwrap().in_chunks(33_000).with_not_finite(policy);
        comparisons.compare(&codec, 80_000, 3);
    }
}

#[test]
fn of_equal_magnitudes_the_first_are_kept() {
    for len in [100, 33_500] {
        let mut x: Vec<f32> = (0..len).map(|at| if at % 3 == 0 { 1.5 } else { -1.5 }).collect();
        x[len / 2] = 2.0;
        for k in [1, 2, len / 3, len / 2 + 1, len - 1] {
            compare(&TopK::new(Keep::Count(k)).unwrap(), &x, k);
        }
        // They differ in their last bits alone, or in the middle ones.
        for shift in [0, 11, 21] {
            let x: Vec<f32> =
                (0..len).map(|at| f32::from_bits(0x3f00_0000 | (at as u32 % 7) << shift)).collect();
            compare(&TopK::new(Keep::Count(len / 2)).unwrap(), &x, shift);
        }
    }
}

#[test]
fn a_run_may_have_more_tiles_than_a_block_has_threads() {
    // Of 8192 elements each, which are counted by 512 threads, three times.
    let mut x = vec![0.25; 8_500_000];
    x.iter_mut().step_by(8191).for_each(|x| *x = 0.5);
    compare(&TopK::new(Keep::Count(1500)).unwrap(), &x, 3);
}

#[test]
fn numbers_between_two_bins_are_in_the_even_one() {
    // Their mean is 0 and their deviation 4, so that 3 is half a bin from the mean.
    let threes = [3.0, -3.0].repeat(9);
    let fives = [5.0, -5.0].repeat(7);
    compare(&TopK::new(Keep::Count(32)).unwrap().in_two_bits(), &[threes, fives].concat(), 0);
}

#[test]
fn places_that_cannot_be_are_damage() {
    let x: Vec<f32> = (0..40_000).map(|at| (at % 7919) as f32).collect();
    for codec in [TopK::default(), TopK::default().in_two_bits()] {
        let mut message = vec![0; codec.encoded_len(x.len())];
        codec.encode(&x, &mut message, 1).unwrap();
        compare(&codec, &x, 1);
        // All of the codec's high parts are behind the middle of its places.
        let high = message.len() - 300;
        let one = (high..message.len()).find(|at| message[*at] != 0).unwrap();
        let mut fewer = message.clone();
        fewer[one] &= fewer[one] - 1;
        damaged(&codec, &fewer, x.len(), "a place less");
        let mut more = message.clone();
        *more.last_mut().unwrap() |= 0x80;
        damaged(&codec, &more, x.len(), "a place more");
        let mut all = message.clone();
        all[high..].fill(0xff);
        damaged(&codec, &all, x.len(), "all places of the last ones");
        let mut none = message.clone();
        none[high..].fill(0);
        damaged(&codec, &none, x.len(), "no place of the last ones");
    }
}

#[test]
fn places_that_are_not_in_order_are_damage() {
    // 4 of 40: low parts of 3 bits in two bytes, and one one for each high part.
    let codec = TopK::new(Keep::Count(4)).unwrap();
    let mut message = vec![0; codec.encoded_len(40)];
    let mut x = [0.0; 40];
    x[8..12].fill(1.0);
    codec.encode(&x, &mut message, 1).unwrap();
    assert_eq!(message[16..18], [0b1000_1000, 0b0000_0110], "0, 1, 2 and 3, each of 3 bits");
    for last in 0..3 {
        message[17] = last << 1;
        damaged(&codec, &message, 40, &format!("{last} behind 2"));
    }
}

#[test]
fn a_place_beyond_the_end_is_damage() {
    // 1 of 40: a low part of 5 bits behind the value.
    let codec = TopK::new(Keep::Count(1)).unwrap();
    let mut message = vec![0; codec.encoded_len(40)];
    let mut x = [0.0; 40];
    x[39] = 1.0;
    codec.encode(&x, &mut message, 1).unwrap();
    assert_eq!(message[4], 7);
    message[4] = 8;
    damaged(&codec, &message, 40, "place 40");
}
