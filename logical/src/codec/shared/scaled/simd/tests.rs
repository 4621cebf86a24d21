//! Codes by definition, one number at a time, and the same bits on every instruction set.

use super::*;
use hexagram_physical::device::kernels::dispatch::each_set;
use hexagram_physical::device::kernels::testing::{bits, canonical, finite, numbers, plain, with_odd};

/// Scales of blocks: none, denormal, plain, the largest, and NaN.
const SCALES: [f32; 7] = [0.0, 1e-45, 3e-39, 0.13, 1.0, f32::MAX, f32::NAN];

fn whole_number(x: f32, s: f32) -> u8 {
    let steps = if s > 0.0 { (x / s).round_ties_even().clamp(-7.0, 7.0) } else { 0.0 };
    (steps + 8.0) as u8
}

fn power_of_two(x: f32, s: f32) -> u8 {
    let part = f64::from((x / s).abs());
    if !(1.0 / 128.0..=1.0).contains(&part) {
        return 0;
    }
    let nearest = (1..=7).rev().min_by(|a, b| {
        let off = |code: &i32| (part - 2f64.powi(code - 7)).abs();
        off(a).total_cmp(&off(b))
    });
    nearest.unwrap_or_default() as u8 | u8::from(x.is_sign_negative()) << 3
}

/// The float next to x/s, ties to the even code, found among all.
fn small_float(x: f32, s: f32) -> u8 {
    if !x.is_finite() {
        return 0x7f;
    }
    let part = if s > 0.0 { f64::from((x / s).abs()).min(448.0) } else { 0.0 };
    let nearest = (0..0x7fu8).min_by(|a, b| {
        let off = |code: &u8| (part - f64::from(value(*code))).abs();
        off(a).total_cmp(&off(b)).then((a % 2).cmp(&(b % 2)))
    });
    nearest.unwrap_or_default() | u8::from(x.is_sign_negative()) << 7
}

/// The value of an E4M3 code, by the format's definition.
fn value(code: u8) -> f32 {
    let exponent = i32::from(code >> 3 & 0xf);
    let fraction = f32::from(code & 7) / 8.0;
    let magnitude = match code & 0x7f {
        0x7f => f32::NAN,
        _ if exponent == 0 => fraction / 64.0,
        _ => (1.0 + fraction) * 2f32.powi(exponent - 7),
    };
    if code >> 7 == 1 { -magnitude } else { magnitude }
}

fn halves(x: &[f32], code: impl Fn(f32) -> u8) -> Vec<u8> {
    x.chunks(2).map(|pair| code(pair[0]) | pair.get(1).map_or(0, |x| code(*x)) << 4).collect()
}

#[test]
fn the_largest_is_found_and_what_is_not_finite_noticed() {
    each_set(|set| {
        for len in 0..200 {
            let x = finite(len, 2);
            let want = x.iter().fold(0.0f32, |most, x| most.max(x.abs()));
            assert_eq!(largest(&x).map(f32::to_bits), Some(want.to_bits()), "{set}, length {len}");
            let mut x = plain(len, 1);
            for at in 0..len {
                for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                    let good = std::mem::replace(&mut x[at], bad);
                    assert_eq!(largest(&x), None, "{set}, {bad} at {at} of {len}");
                    x[at] = good;
                }
            }
        }
    });
}

#[test]
fn codes_are_the_nearest_on_every_set() {
    each_set(|set| {
        for len in (0..130).chain([1000]) {
            for s in SCALES {
                let within: Vec<f32> = plain(len, 5).iter().map(|x| x * s).collect();
                for x in [&within, &finite(len, 3)] {
                    let mut codes = vec![0xee; len.div_ceil(2)];
                    // Numbers beyond seven steps occur in no block, and saturate.
                    pack_int4(x, s, &mut codes);
                    let want = halves(x, |x| whole_number(x, s));
                    assert_eq!(codes, want, "int4, {set}, length {len}, scale {s}");
                    pack_e3m0(x, s, &mut codes);
                    let want = halves(x, |x| power_of_two(x, s));
                    assert_eq!(codes, want, "e3m0, {set}, length {len}, scale {s}");
                }
            }
        }
    });
}

#[test]
fn floats_are_the_nearest_on_every_set() {
    let middles = (0..0x7eu8).flat_map(|code| {
        let half = (value(code) + value(code + 1)) / 2.0;
        [half.next_down(), half, half.next_up(), -half]
    });
    let middles: Vec<f32> = middles.chain(numbers(300, 2)).collect();
    for s in SCALES.into_iter().filter(|s| !s.is_nan()) {
        let want: Vec<u8> = middles.iter().map(|x| small_float(*x, s)).collect();
        each_set(|set| {
            for len in [1, 7, 64, middles.len()] {
                let mut codes = vec![0xee; len];
                pack_e4m3(&middles[..len], s, &mut codes);
                assert_eq!(codes, want[..len], "{set}, length {len}, scale {s}");
            }
        });
    }
}

/// Kernels that decode, and the number of each code by definition.
struct Decoder<'a> {
    name: &'static str,
    unpack: fn(&[u8], f32, &mut [f32]),
    add: fn(&[u8], f32, f32, &mut [f32]),
    number: &'a dyn Fn(usize) -> f32,
    per_byte: usize,
}

#[test]
fn all_codes_decode_to_their_numbers_on_every_set() {
    let bytes: Vec<u8> = (0..1024u32).map(|at| (at * 37 + at / 256) as u8).collect();
    let half = |at: usize| bytes[at / 2] >> (4 * (at % 2)) & 15;
    let whole = |at: usize| f32::from(half(at)) - 8.0;
    let power = |at: usize| match half(at) & 7 {
        0 => 0.0,
        code => 2f32.powi(i32::from(code) - 7) * if half(at) > 7 { -1.0 } else { 1.0 },
    };
    let float = |at: usize| value(bytes[at]);
    let all = [
        Decoder { name: "int4", unpack: unpack_int4, add: add_int4, number: &whole, per_byte: 2 },
        Decoder { name: "e3m0", unpack: unpack_e3m0, add: add_e3m0, number: &power, per_byte: 2 },
        Decoder { name: "e4m3", unpack: unpack_e4m3, add: add_e4m3, number: &float, per_byte: 1 },
    ];
    each_set(|set| {
        for Decoder { name, unpack, add, number, per_byte } in &all {
            for len in (0..80).chain([1000]) {
                let from = &bytes[..usize::div_ceil(len, *per_byte)];
                for s in SCALES {
                    let mut to = with_odd(len, 4);
                    unpack(from, s, &mut to);
                    let want = canonical((0..len).map(|at| s * number(at)));
                    assert_eq!(bits(&to), want, "{name}, {set}, length {len}, scale {s}");
                    let mut to = with_odd(len, 4);
                    add(from, s, 0.3, &mut to);
                    let before = with_odd(len, 4);
                    let want = canonical((0..len).map(|at| before[at] + 0.3 * (s * number(at))));
                    assert_eq!(bits(&to), want, "{name}, {set}, length {len}, scale {s}");
                }
            }
        }
    });
}
