//! Sums of f32 slices: what landing reductions and decoders are made of.

use super::Set;

dispatched!(
    /// `to ← to + from`, of equal lengths.
    pub fn add(from: &[f32], to: &mut [f32]) = add_kernel
);

dispatched!(
    /// `to ← to + weight × from`, of equal lengths; product and sum are rounded one by one.
    pub fn add_scaled(weight: f32, from: &[f32], to: &mut [f32]) = add_scaled_kernel
);

#[inline(always)]
fn add_kernel<S: Set>(_: S, from: &[f32], to: &mut [f32]) {
    for_each(from, to, |x, y| y + x);
}

#[inline(always)]
fn add_scaled_kernel<S: Set>(_: S, weight: f32, from: &[f32], to: &mut [f32]) {
    for_each(from, to, |x, y| y + weight * x);
}

#[inline(always)]
fn for_each(from: &[f32], to: &mut [f32], combine: impl Fn(f32, f32) -> f32) {
    for (x, y) in from.iter().zip(to) {
        *y = combine(*x, *y);
    }
}

#[cfg(test)]
mod tests {
    use super::super::dispatch::each_set;
    use super::super::testing::{bits, numbers};
    use super::*;

    #[test]
    fn sums_agree_with_a_loop() {
        each_set(|set| {
            for len in 0..300 {
                let (x, y) = (numbers(len, 1), numbers(len, 2));
                let mut sum = y.clone();
                add(&x, &mut sum);
                let want: Vec<f32> = x.iter().zip(&y).map(|(x, y)| y + x).collect();
                assert_eq!(bits(&sum), bits(&want), "{set}, length {len}");
                let mut sum = y.clone();
                add_scaled(0.3, &x, &mut sum);
                let want: Vec<f32> = x.iter().zip(&y).map(|(x, y)| y + 0.3 * x).collect();
                assert_eq!(bits(&sum), bits(&want), "{set}, length {len}");
            }
        });
    }
}
