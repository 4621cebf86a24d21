//! 16-bit floats, little endian, at any alignment.

use super::sets::set::Set;
use super::{Float, LANES, from_fn};

dispatched!(
    /// Rounds each number to f16, to the nearest, ties to even. Returns true if all results are finite. `to` has 2
    /// bytes for each.
    pub fn f32_to_f16(from: &[f32], to: &mut [u8]) -> bool = narrow_f16
);

dispatched!(
    /// Rounds each number to bf16, to the nearest, ties to even. Returns true if all results are finite. `to` has 2
    /// bytes for each.
    pub fn f32_to_bf16(from: &[f32], to: &mut [u8]) -> bool = narrow_bf16
);

dispatched!(
    /// Computes `to ← from`, with 2 bytes for each f16.
    pub fn f16_to_f32(from: &[u8], to: &mut [f32]) = widen_f16
);

dispatched!(
    /// Computes `to ← from`, with 2 bytes for each bf16.
    pub fn bf16_to_f32(from: &[u8], to: &mut [f32]) = widen_bf16
);

dispatched!(
    /// Computes `to ← to + weight × from`, with 2 bytes for each f16.
    pub fn add_f16(from: &[u8], weight: f32, to: &mut [f32]) = add_wide_f16
);

dispatched!(
    /// Computes `to ← to + weight × from`, with 2 bytes for each bf16.
    pub fn add_bf16(from: &[u8], weight: f32, to: &mut [f32]) = add_wide_bf16
);

const F16_INFINITY: u16 = 0x7c00;
const BF16_INFINITY: u16 = 0x7f80;

#[inline(always)]
fn narrow_f16<S: Set>(set: S, from: &[f32], to: &mut [u8]) -> bool {
    let mut largest = [0; LANES];
    let (from, from_rest) = from.as_chunks::<LANES>();
    let (to, to_rest) = to.as_chunks_mut::<2>().0.as_chunks_mut::<LANES>();
    for (x, to) in from.iter().zip(to) {
        narrow_lanes(set, x, to, &mut largest);
    }
    let mut x = [0.0; LANES];
    let mut last = [[0; 2]; LANES];
    x[..from_rest.len()].copy_from_slice(from_rest);
    narrow_lanes(set, &x, &mut last, &mut largest);
    to_rest.copy_from_slice(&last[..to_rest.len()]);
    largest.iter().all(|size| *size < F16_INFINITY)
}

#[inline(always)]
fn narrow_lanes<S: Set>(set: S, x: &[f32; LANES], to: &mut [[u8; 2]; LANES], largest: &mut [u16; LANES]) {
    let narrow = set.f16_of(*x);
    *to = from_fn(|lane| narrow[lane].to_le_bytes());
    *largest = from_fn(|lane| largest[lane].max(narrow[lane] & 0x7fff));
}

#[inline(always)]
fn narrow_bf16<S: Set>(_: S, from: &[f32], to: &mut [u8]) -> bool {
    let mut largest = 0;
    for (x, to) in from.iter().zip(to.as_chunks_mut().0) {
        let bits = x.to_bits();
        // Half of the last place that is kept is added, but for a tie that would round to odd.
        let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
        let narrow = (if x.is_nan() { bits >> 16 | 0x40 } else { rounded }) as u16;
        *to = narrow.to_le_bytes();
        largest = largest.max(narrow & 0x7fff);
    }
    largest < BF16_INFINITY
}

#[inline(always)]
fn widen_f16<S: Set>(set: S, from: &[u8], to: &mut [f32]) {
    with_f16(set, from, to, |x, _| x);
}

#[inline(always)]
fn add_wide_f16<S: Set>(set: S, from: &[u8], weight: f32, to: &mut [f32]) {
    with_f16(set, from, to, |x, to| (to + weight * x).canonical());
}

#[inline(always)]
fn with_f16<S: Set>(set: S, from: &[u8], to: &mut [f32], combine: impl Fn(f32, f32) -> f32) {
    let (from, from_rest) = from.as_chunks::<2>().0.as_chunks::<LANES>();
    let (to, to_rest) = to.as_chunks_mut::<LANES>();
    for (x, to) in from.iter().zip(to) {
        let x = set.f32_of(from_fn(|lane| u16::from_le_bytes(x[lane])));
        *to = from_fn(|lane| combine(x[lane], to[lane]));
    }
    let mut last = [[0; 2]; LANES];
    last[..from_rest.len()].copy_from_slice(from_rest);
    let x = set.f32_of(from_fn(|lane| u16::from_le_bytes(last[lane])));
    to_rest.iter_mut().zip(x).for_each(|(to, x)| *to = combine(x, *to));
}

#[inline(always)]
fn widen_bf16<S: Set>(_: S, from: &[u8], to: &mut [f32]) {
    with_bf16(from, to, |x, _| x);
}

#[inline(always)]
fn add_wide_bf16<S: Set>(_: S, from: &[u8], weight: f32, to: &mut [f32]) {
    with_bf16(from, to, |x, to| (to + weight * x).canonical());
}

#[inline(always)]
fn with_bf16(from: &[u8], to: &mut [f32], combine: impl Fn(f32, f32) -> f32) {
    for (x, to) in from.as_chunks().0.iter().zip(to) {
        *to = combine(f32::from_bits(u32::from(u16::from_le_bytes(*x)) << 16), *to);
    }
}

#[cfg(test)]
mod tests {
    use super::super::dispatch::each_set;
    use super::super::testing::{bits, canonical, finite, with_odd};
    use super::*;
    use ::half::{bf16, f16};

    type Narrow = fn(&[f32], &mut [u8]) -> bool;
    type Widen = fn(&[u8], &mut [f32]);
    type Add = fn(&[u8], f32, &mut [f32]);
    /// A format's kernels, and the same of the half crate, element by element.
    type Kernels = (Narrow, Widen, Add, fn(f32) -> u16, fn(u16) -> f32);

    const KERNELS: [Kernels; 2] = [
        (f32_to_f16, f16_to_f32, add_f16, |x| f16::from_f32(x).to_bits(), |x| f16::from_bits(x).to_f32()),
        (
            f32_to_bf16,
            bf16_to_f32,
            add_bf16,
            |x| bf16::from_f32(x).to_bits(),
            |x| bf16::from_bits(x).to_f32(),
        ),
    ];

    fn codes(bytes: &[u8]) -> Vec<u16> {
        bytes.as_chunks().0.iter().map(|code| u16::from_le_bytes(*code)).collect()
    }

    #[test]
    fn every_length_agrees_with_a_loop() {
        for (narrow, widen, add, narrow_one, widen_one) in KERNELS {
            each_set(|set| {
                for len in 0..300 {
                    let x = with_odd(len, 3);
                    let mut message = vec![0; 2 * len + 1];
                    narrow(&x, &mut message[1..]);
                    let want: Vec<u16> = x.iter().map(|x| narrow_one(*x)).collect();
                    assert_eq!(codes(&message[1..]), want, "{set}, length {len}");

                    let mut wide = vec![0.0; len];
                    widen(&message[1..], &mut wide);
                    let exact: Vec<f32> = want.iter().map(|code| widen_one(*code)).collect();
                    assert_eq!(bits(&wide), bits(&exact), "{set}, length {len}");

                    let mut sum = with_odd(len, 4);
                    let want = canonical(sum.iter().zip(&exact).map(|(to, x)| to + 0.3 * x));
                    add(&message[1..], 0.3, &mut sum);
                    assert_eq!(bits(&sum), want, "{set}, length {len}");
                }
            });
        }
    }

    #[test]
    fn every_code_and_its_neighbours_round_alike() {
        for (narrow, widen, _, narrow_one, widen_one) in KERNELS {
            each_set(|set| {
                let all: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
                let mut wide = vec![0.0; 1 << 16];
                widen(&all, &mut wide);
                let want: Vec<f32> = (0..=u16::MAX).map(widen_one).collect();
                assert!(canonical(wide.clone()) == canonical(want), "{set}");
                // Ties lie halfway between two codes; these are all ties, and their neighbours.
                for offset in [0, 1, 0xfff, 0x1000, 0x1001, 0x7fff, 0x8000, 0x8001, 0xffff] {
                    let x: Vec<f32> = wide.iter().map(|x| f32::from_bits(x.to_bits() ^ offset)).collect();
                    let mut message = vec![0; 2 << 16];
                    narrow(&x, &mut message);
                    let want: Vec<u16> = x.iter().map(|x| narrow_one(*x)).collect();
                    assert!(codes(&message) == want, "{set}, offset {offset:x}");
                }
            });
        }
    }

    #[test]
    fn what_is_not_finite_is_noticed_anywhere() {
        each_set(|set| {
            for (narrow, overflows) in [(f32_to_f16 as Narrow, 65520.0), (f32_to_bf16, f32::MAX)] {
                for at in 0..70 {
                    let mut x: Vec<f32> = finite(70, 5).iter().map(|x| x % 60000.0).collect();
                    assert!(narrow(&x, &mut [0; 140]), "{set}");
                    for bad in [f32::NAN, f32::INFINITY, -f32::INFINITY, overflows, -overflows] {
                        x[at] = bad;
                        assert!(!narrow(&x, &mut [0; 140]), "{set}, {bad} at {at}");
                    }
                }
            }
        });
    }
}
