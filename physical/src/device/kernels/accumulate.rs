//! Weighted sums of f32 slices, for decoders.

use super::Float;
use super::sets::set::Set;

dispatched!(
    /// Computes `to ← to + weight × from`, of equal lengths; product and sum are rounded separately.
    pub fn add_scaled(weight: f32, from: &[f32], to: &mut [f32]) = add_scaled_kernel
);

#[inline(always)]
fn add_scaled_kernel<S: Set>(_: S, weight: f32, from: &[f32], to: &mut [f32]) {
    for (x, y) in from.iter().zip(to) {
        *y = (*y + weight * *x).canonical();
    }
}

#[cfg(test)]
mod tests {
    use super::super::dispatch::each_set;
    use super::super::testing::{bits, canonical, with_odd};
    use super::*;

    #[test]
    fn sums_agree_with_a_loop() {
        each_set(|set| {
            for len in 0..300 {
                let x = with_odd(len, 1);
                let y = with_odd(len, 2);
                let mut sum = y.clone();
                add_scaled(0.3, &x, &mut sum);
                let want = x.iter().zip(&y).map(|(x, y)| y + 0.3 * x);
                assert_eq!(bits(&sum), canonical(want), "{set}, length {len}");
            }
        });
    }
}
