//! Magnitudes: finds the elements that reach a threshold, and the threshold that a number of elements reach.
//!
//! A magnitude is the bits of an f32 without the sign, as a number: of the same order as |x|, NaN above infinity.

use super::sets::set::Set;
use super::{LANES, WIDE, fold};

/// The bits of an f32 that are its magnitude.
pub const MAGNITUDE: u32 = u32::MAX >> 1;

dispatched!(
    /// Returns true if no element is NaN or infinite.
    pub fn all_finite(x: &[f32]) -> bool = all_finite_kernel
);

dispatched!(
    /// Writes the indices of elements with magnitudes of at least `least` to `places`, in order, and returns their
    /// number. The rest of `places` is undefined.
    ///
    /// # Panics
    /// If `x` has 2³² elements, or `places` fewer than [`LANES`] more than `x`.
    pub fn reaching(least: u32, x: &[f32], places: &mut [u32]) -> usize = reaching_kernel
);

dispatched!(
    /// Returns a threshold that at least `few` and at most `many` of these magnitudes reach. If equal magnitudes make
    /// that impossible, returns the largest threshold that `few` reach. `few` is from 1 to the number of magnitudes.
    pub fn threshold(few: usize, many: usize, magnitudes: &[u32]) -> u32 = threshold_kernel
);

#[inline(always)]
fn all_finite_kernel<S: Set>(_: S, x: &[f32]) -> bool {
    let mut largest = [0; WIDE];
    let (rows, rest) = x.as_chunks::<WIDE>();
    for row in rows {
        for (largest, x) in largest.iter_mut().zip(row) {
            *largest = (*largest).max(x.to_bits() & MAGNITUDE);
        }
    }
    fold(largest, u32::max) < f32::INFINITY.to_bits() && rest.iter().all(|x| x.is_finite())
}

#[inline(always)]
fn reaching_kernel<S: Set>(set: S, least: u32, x: &[f32], places: &mut [u32]) -> usize {
    assert!(x.len() <= u32::MAX as usize && places.len() >= x.len() + LANES, "room for every place");
    let mut count = 0;
    let (rows, rest) = x.as_chunks::<LANES>();
    for (number, row) in rows.iter().enumerate() {
        let Some(to) = places[count..].first_chunk_mut() else { break };
        count += set.reaching(least, row, (number * LANES) as u32, to);
    }
    for (place, x) in (rows.len() * LANES..).zip(rest) {
        places[count] = place as u32;
        count += usize::from(x.to_bits() & MAGNITUDE >= least);
    }
    count
}

/// Finds the threshold's bits from the highest on; the first ones are those that all magnitudes have in common.
#[inline(always)]
fn threshold_kernel<S: Set>(_: S, few: usize, many: usize, magnitudes: &[u32]) -> u32 {
    let mut all = u32::MAX;
    let mut any = 0;
    for magnitude in magnitudes {
        all &= magnitude;
        any |= magnitude;
    }
    let open = u32::BITS - (all ^ any).leading_zeros();
    let mut least = (u64::from(any) >> open << open) as u32;
    let mut reached = magnitudes.len();
    for bit in (0..open).rev() {
        if reached <= many {
            break;
        }
        let higher = count_reaching(least | 1 << bit, magnitudes);
        if higher >= few {
            least |= 1 << bit;
            reached = higher;
        }
    }
    least
}

#[inline(always)]
fn count_reaching(least: u32, magnitudes: &[u32]) -> usize {
    let mut count = 0;
    // The count of a lane then fits 32 bits.
    for part in magnitudes.chunks(1 << 30) {
        let mut counts = [0u32; WIDE];
        let (rows, rest) = part.as_chunks::<WIDE>();
        for row in rows {
            for (count, magnitude) in counts.iter_mut().zip(row) {
                *count += u32::from(*magnitude >= least);
            }
        }
        count += fold(counts, |x, y| x + y) as usize;
        count += rest.iter().filter(|magnitude| **magnitude >= least).count();
    }
    count
}

#[cfg(test)]
mod tests {
    use super::super::dispatch::each_set;
    use super::super::testing::{finite, numbers};
    use super::*;

    #[test]
    fn places_agree_with_a_loop() {
        each_set(|set| {
            for len in 0..300 {
                let x = numbers(len, 3);
                for least in [0, 1, 0.5f32.to_bits(), f32::INFINITY.to_bits(), u32::MAX] {
                    let mut places = vec![7; len + LANES];
                    let count = reaching(least, &x, &mut places);
                    let magnitude = |place: &u32| x[*place as usize].to_bits() & MAGNITUDE;
                    let want: Vec<u32> = (0..len as u32).filter(|place| magnitude(place) >= least).collect();
                    assert_eq!(places[..count], want, "{set}, length {len}, {least:#x}");
                }
            }
        });
    }

    #[test]
    fn what_is_not_finite_is_noticed_anywhere() {
        each_set(|set| {
            for len in 0..150 {
                let mut x = finite(len, 1);
                assert!(all_finite(&x), "{set}, length {len}");
                for at in 0..len {
                    for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                        let good = std::mem::replace(&mut x[at], bad);
                        assert!(!all_finite(&x), "{set}, {bad} at {at} of {len}");
                        x[at] = good;
                    }
                }
            }
        });
    }

    #[test]
    fn thresholds_are_reached_by_as_many_as_wanted() {
        each_set(|set| {
            for len in 1..200 {
                let all: Vec<u32> = numbers(len, 2).iter().map(|x| x.to_bits() & MAGNITUDE).collect();
                let equal: Vec<u32> = all.iter().map(|magnitude| magnitude % 3).collect();
                let largest = vec![u32::MAX; len];
                for magnitudes in [all, equal, largest] {
                    let mut sorted = magnitudes.clone();
                    sorted.sort_unstable_by(|x, y| y.cmp(x));
                    for few in [1, 2, len / 3, len - 1, len].map(|few| few.clamp(1, len)) {
                        for many in [few, few + few / 8] {
                            let least = threshold(few, many, &magnitudes);
                            let reached = sorted.iter().filter(|magnitude| **magnitude >= least).count();
                            let exact = least == sorted[few - 1] && reached >= few;
                            let fits = (few..=many).contains(&reached);
                            assert!(fits || exact, "{set}: {reached} of {len} reach, not {few} to {many}");
                        }
                    }
                }
            }
        });
    }
}
