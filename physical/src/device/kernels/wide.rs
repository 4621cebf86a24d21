//! Sums of f32 slices in f64, for weighted sums that round once.

use super::Float;
use super::sets::set::Set;

dispatched!(
    /// Computes `to ← weight × from`, of equal lengths.
    pub fn scaled_wide(weight: f64, from: &[f32], to: &mut [f64]) = scaled_kernel
);

dispatched!(
    /// Computes `to ← to + weight × from`, of equal lengths; product and sum are rounded one by one.
    pub fn add_scaled_wide(weight: f64, from: &[f32], to: &mut [f64]) = add_scaled_kernel
);

dispatched!(
    /// Rounds `from` to `to`, of equal lengths, each to the nearest f32, and every NaN to the canonical NaN.
    pub fn narrow(from: &[f64], to: &mut [f32]) = narrow_kernel
);

#[inline(always)]
fn scaled_kernel<S: Set>(_: S, weight: f64, from: &[f32], to: &mut [f64]) {
    for (x, y) in from.iter().zip(to) {
        *y = weight * f64::from(*x);
    }
}

#[inline(always)]
fn add_scaled_kernel<S: Set>(_: S, weight: f64, from: &[f32], to: &mut [f64]) {
    for (x, y) in from.iter().zip(to) {
        *y += weight * f64::from(*x);
    }
}

#[inline(always)]
fn narrow_kernel<S: Set>(_: S, from: &[f64], to: &mut [f32]) {
    for (x, y) in from.iter().zip(to) {
        *y = (*x as f32).canonical();
    }
}

#[cfg(test)]
mod tests {
    use super::super::dispatch::each_set;
    use super::super::testing::{bits, canonical, with_odd};
    use super::*;

    #[test]
    fn wide_sums_agree_with_a_loop() {
        each_set(|set| {
            for len in 0..300 {
                let x = with_odd(len, 1);
                let y = with_odd(len, 2);
                let mut sum = vec![0.0; len];
                let mut out = vec![0.0; len];
                scaled_wide(0.3, &x, &mut sum);
                add_scaled_wide(-1.0 / 3.0, &y, &mut sum);
                narrow(&sum, &mut out);
                let both = x.iter().zip(&y).map(|(x, y)| (f64::from(*x), f64::from(*y)));
                let want = both.map(|(x, y)| (0.3 * x + (-1.0 / 3.0) * y) as f32);
                assert_eq!(bits(&out), canonical(want), "{set}, length {len}");
            }
        });
    }
}
