//! Tests of the arithmetic on levels: kernels of all instruction sets against loops.

use super::*;
use hexagram_physical::device::kernels::dispatch::each_set;
use hexagram_physical::device::kernels::testing::{canonical, finite, numbers, plain, with_odd};

const KEY: u64 = 0x0123_4567_89ab_cdef;

/// Returns the code of one element, drawn step by step.
fn code(levels: Levels, norm: f32, index: usize, x: f32) -> u64 {
    let mut state = start(KEY)[index % LANES];
    for _ in 0..=index / LANES {
        state = state.wrapping_mul(69069).wrapping_add(1);
    }
    let fraction = 31 - levels.bits();
    let largest = (levels.count() << fraction) as f32;
    let fixed = (x.abs() * (largest / norm)).min(largest) as u64;
    let level = (fixed + u64::from(state >> (32 - fraction))) >> fraction;
    level | u64::from(x.is_sign_negative()) << (levels.bits() - 1)
}

/// The message, bit by bit.
fn packed(levels: Levels, norm: f32, x: &[f32]) -> Vec<u8> {
    let bits = levels.bits();
    let mut to = vec![0; levels.packed_len(x.len())];
    for index in 0..x.len() {
        let code = code(levels, norm, index, x[index]);
        for bit in 0..bits {
            let in_line = index as u32 * bits + bit;
            let at = if x.len() == BLOCK { in_lanes(bits, index, bit) } else { in_line };
            to[at as usize / 8] |= ((code >> bit & 1) as u8) << (at % 8);
        }
    }
    to
}

/// Where a bit of a code is in a block.
fn in_lanes(bits: u32, index: usize, bit: u32) -> u32 {
    let row = index as u32 / 16;
    let lane = index as u32 % 16;
    let in_lane = row * bits + bit;
    in_lane / 32 * 512 + lane * 32 + in_lane % 32
}

#[test]
fn levels_agree_with_a_loop() {
    each_set(|set| {
        for levels in [1, 2, 4, 7, 100, 127, 1000, Levels::MOST].map(|levels| Levels::new(levels).unwrap()) {
            for len in (0..300).step_by(7).chain(496..=512) {
                let x: Vec<f32> = finite(len, 1).iter().map(|x| x * 1e-20).collect();
                let norm = (x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt() as f32).max(1e-20);
                let mut message = vec![0xa5; levels.packed_len(len)];
                encode_levels(levels, norm, KEY, &x, &mut message);
                assert_eq!(message, packed(levels, norm, &x), "{set}, {levels:?}, length {len}");

                let unit = norm / levels.count() as f32;
                let before = with_odd(len, 2);
                let decoded = |index: usize| {
                    let code = code(levels, norm, index, x[index]) as u32;
                    let level = code & ((1 << (levels.bits() - 1)) - 1);
                    let value = level as f32 * unit;
                    if level == code { value } else { -value }
                };
                for fresh in [false, true] {
                    let mut to = before.clone();
                    assert!(decode_levels(levels, unit, 0.3, fresh, &message, &mut to));
                    let old = |index: usize| if fresh { 0.0 } else { before[index] };
                    let want: Vec<f32> = (0..len).map(|i| old(i) + decoded(i) * 0.3).collect();
                    let zero = |x: &[f32]| canonical(x.iter().map(|x| x + 0.0));
                    assert_eq!(zero(&to), zero(&want), "{set}, {levels:?}, length {len}");
                }
            }
        }
    });
}

#[test]
fn levels_beyond_the_largest_are_noticed() {
    let levels = Levels::new(6).unwrap();
    for len in [5, BLOCK] {
        let message = vec![0xff; levels.packed_len(len)];
        assert!(!decode_levels(levels, 1.0, 1.0, true, &message, &mut vec![0.0; len]));
    }
}

#[test]
fn sums_of_squares_agree_with_a_loop_and_among_sets() {
    let mut first: Vec<f64> = Vec::new();
    each_set(|set| {
        let mut sums = Vec::new();
        for len in (0..300).chain([512, 513, 1024, 5000]) {
            for scale in [1.0, 1e-30, 1e-42, 1e25] {
                let x: Vec<f32> = plain(len, 1).iter().map(|x| x * scale).collect();
                let want: f64 = x.iter().map(|x| f64::from(*x).powi(2)).sum();
                let sum = sum_of_squares(&x);
                assert!((sum - want).abs() <= 1e-6 * want, "{set}, length {len}: {sum}, not {want}");
                sums.push(sum);
            }
            let x = numbers(len, 3);
            let finite = finite(len, 3);
            assert_eq!(sum_of_squares(&x).is_finite(), x.iter().all(|x| x.is_finite()), "{set}");
            assert!(sum_of_squares(&finite).is_finite(), "{set}");
        }
        first = if first.is_empty() { sums.clone() } else { std::mem::take(&mut first) };
        assert_eq!(sums, first, "{set}");
    });
}
