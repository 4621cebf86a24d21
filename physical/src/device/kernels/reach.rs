//! Which elements reach a threshold: what selecting the largest begins with.

use super::{LANES, Set};

dispatched!(
    /// Writes to `places` where `|x| ≥ from_bits(least)`, in order, NaN counting as larger than infinity: how many there
    /// are.
    ///
    /// # Panics
    /// If `x` has more than 65 536 elements, or `places` fewer than `x`.
    pub fn reaching(least: u32, x: &[f32], places: &mut [u16]) -> usize = reaching_kernel
);

#[inline(always)]
fn reaching_kernel<S: Set>(_: S, least: u32, x: &[f32], places: &mut [u16]) -> usize {
    assert!(x.len() <= 1 << 16 && places.len() >= x.len(), "room for every place");
    let reaches = |x: &f32| x.to_bits() & (u32::MAX >> 1) >= least;
    let mut count = 0;
    let (rows, rest) = x.as_chunks::<LANES>();
    for (number, row) in rows.iter().enumerate() {
        let mut largest = 0;
        for x in row {
            largest = (x.to_bits() & (u32::MAX >> 1)).max(largest);
        }
        if largest >= least {
            for (lane, x) in row.iter().enumerate() {
                places[count] = (number * LANES + lane) as u16;
                count += usize::from(reaches(x));
            }
        }
    }
    for (lane, x) in rest.iter().enumerate() {
        places[count] = (rows.len() * LANES + lane) as u16;
        count += usize::from(reaches(x));
    }
    count
}

#[cfg(test)]
mod tests {
    use super::super::dispatch::each_set;
    use super::super::testing::numbers;
    use super::*;

    #[test]
    fn places_agree_with_a_loop() {
        each_set(|set| {
            for len in 0..300 {
                let x = numbers(len, 3);
                for least in [0, 1, 0.5f32.to_bits(), f32::INFINITY.to_bits(), u32::MAX] {
                    let mut places = vec![0; len];
                    let count = reaching(least, &x, &mut places);
                    let magnitude = |place: &u16| x[usize::from(*place)].to_bits() & (u32::MAX >> 1);
                    let want: Vec<u16> = (0..len as u16).filter(|place| magnitude(place) >= least).collect();
                    assert_eq!(places[..count], want, "{set}, length {len}, {least:#x}");
                }
            }
        });
    }
}
