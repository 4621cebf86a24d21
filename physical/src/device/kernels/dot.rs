//! Inner products, for low-rank codecs.

use super::sets::set::Set;
use super::{Float, LANES};

dispatched!(
    /// Returns Σ x y, of equal lengths, in four times 16 sums that are added pairwise.
    pub fn dot(x: &[f32], y: &[f32]) -> f32 = dot_kernel
);

#[inline(always)]
fn dot_kernel<S: Set>(_: S, x: &[f32], y: &[f32]) -> f32 {
    let mut a = [0.0; LANES];
    let mut b = [0.0; LANES];
    let mut c = [0.0; LANES];
    let mut d = [0.0; LANES];
    let (x, x_rest) = x.as_chunks::<LANES>();
    let (y, y_rest) = y.as_chunks::<LANES>();
    let mut x = x.chunks_exact(4);
    let mut y = y.chunks_exact(4);
    for (x, y) in x.by_ref().zip(y.by_ref()) {
        add_products(&x[0], &y[0], &mut a);
        add_products(&x[1], &y[1], &mut b);
        add_products(&x[2], &y[2], &mut c);
        add_products(&x[3], &y[3], &mut d);
    }
    for (x, y) in x.remainder().iter().zip(y.remainder()) {
        add_products(x, y, &mut a);
    }
    for ((x, y), sum) in x_rest.iter().zip(y_rest).zip(&mut b) {
        *sum += x * y;
    }
    for lane in 0..LANES {
        a[lane] = (a[lane] + b[lane]) + (c[lane] + d[lane]);
    }
    for half in [8, 4, 2, 1] {
        for lane in 0..half {
            a[lane] += a[lane + half];
        }
    }
    a[0].canonical()
}

#[inline(always)]
fn add_products(x: &[f32; LANES], y: &[f32; LANES], sums: &mut [f32; LANES]) {
    for lane in 0..LANES {
        sums[lane] += x[lane] * y[lane];
    }
}

#[cfg(test)]
mod tests {
    use super::super::dispatch::each_set;
    use super::super::testing::{numbers, plain};
    use super::*;

    #[test]
    fn products_are_the_same_on_every_set_and_near_the_truth() {
        let mut first: Vec<u32> = Vec::new();
        each_set(|set| {
            let sums: Vec<f32> = (0..300).map(|len| dot(&plain(len, 1), &plain(len, 2))).collect();
            for (len, sum) in sums.iter().enumerate() {
                let x = plain(len, 1);
                let y = plain(len, 2);
                let want: f64 = x.iter().zip(&y).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum();
                assert!((f64::from(*sum) - want).abs() < 1e-5, "{set}, length {len}: {sum}, not {want}");
            }
            let bits: Vec<u32> = sums.iter().map(|sum| sum.to_bits()).collect();
            first = if first.is_empty() { bits.clone() } else { std::mem::take(&mut first) };
            assert_eq!(bits, first, "{set}");
            assert!(dot(&numbers(99, 1), &plain(99, 1)).is_nan());
        });
    }
}
