//! Quantized SGD: unbiased, with exactly the variance that it should have.

use super::*;
use hexagram_logical::codec::{NotFinite, Qsgd};

fn whole(levels: u32) -> Qsgd {
    Qsgd::new(levels).unwrap().with_bucket(1024).unwrap()
}

/// The mean of ‖C(v) − v‖² and of C(v), over seeds.
fn moments(codec: &Qsgd, v: &[f32], seeds: u64) -> (f64, Vec<f64>) {
    let mut variance = 0.0;
    let mut mean = vec![0.0; v.len()];
    for seed in 0..seeds {
        let c = roundtrip(codec, v, seed);
        variance += distance(&c, v) / seeds as f64;
        mean.iter_mut().zip(&c).for_each(|(mean, c)| *mean += f64::from(*c) / seeds as f64);
    }
    (variance, mean)
}

#[test]
fn the_variance_is_that_of_the_paper() {
    let v = [3.0, -4.0, 0.0, 0.0];
    for (levels, want) in [(1, 10.0), (4, 0.625), (5, 0.0)] {
        let (variance, mean) = moments(&whole(levels), &v, 40_000);
        assert!((variance - want).abs() <= 0.03 * want, "{levels} levels: {variance}, not {want}");
        for (mean, v) in mean.iter().zip(v) {
            let bound = 5.0 * (want / 40_000.0).sqrt() + 1e-9;
            assert!((mean - f64::from(v)).abs() <= bound, "{levels} levels: {mean}, not {v}");
        }
    }
    let ones = [1.0f32; 1024];
    for (levels, want) in [(1, 31.0), (4, 7.0), (16, 1.0)] {
        let (variance, _) = moments(&whole(levels), &ones, 400);
        let ratio = variance / 1024.0;
        assert!((ratio - want).abs() < 0.05 * want, "{levels} levels: {ratio}, not {want}");
    }
}

#[test]
fn one_level_has_the_variance_of_both_norms() {
    let v = plain(300, 9);
    let two = squares(&v).sqrt();
    let one = v.iter().map(|x| f64::from(x.abs())).sum::<f64>();
    let (variance, _) = moments(&whole(1), &v, 4000);
    let want = two * (one - two);
    assert!((variance / want - 1.0).abs() < 0.03, "{variance}, not {want}");
}

#[test]
fn the_mean_is_right_for_every_number_of_levels() {
    let v: Vec<f32> = plain(700, 4).iter().map(|x| x * x * x).collect();
    for levels in [1, 2, 3, 5, 7, 100, 127, 1000, 1 << 15] {
        let codec = Qsgd::new(levels).unwrap();
        let seeds = 600;
        let (variance, mean) = moments(&codec, &v, seeds);
        let bias: f64 = mean.iter().zip(&v).map(|(mean, v)| (mean - f64::from(*v)).powi(2)).sum();
        let want = variance / seeds as f64;
        // A sum of 700 independent squares with mean `want` in all: the error exceeds half of it once in a million.
        assert!((bias / want - 1.0).abs() < 0.5, "{levels} levels: {bias}, not {want}");
    }
}

#[test]
fn draws_of_neighbours_are_independent() {
    // One level, constant input: how often two elements are rounded up together.
    let v = [1.0f32; 512];
    let seeds = 2000;
    let codec = Qsgd::new(1).unwrap();
    let all: Vec<Vec<f32>> = (0..seeds).map(|seed| roundtrip(&codec, &v, seed)).collect();
    let up = 1.0 / 512f64.sqrt();
    for distance in [1, 2, 15, 16, 17, 32, 48, 160, 256, 288, 496] {
        let pairs = (512 - distance) as f64 * seeds as f64;
        let together = all.iter().flat_map(|c| c.windows(distance + 1));
        let together = together.filter(|w| w[0] > 0.0 && w[distance] > 0.0).count() as f64;
        let want = pairs * up * up;
        let sigma = (pairs * up * up).sqrt();
        assert!((together - want).abs() < 5.0 * sigma, "distance {distance}: {together}, not {want}");
    }
}

#[test]
fn every_run_comes_back_within_one_level() {
    for x in runs() {
        for count in [1, 3, 6, 127, 30_000] {
            let codec = Qsgd::new(count).unwrap();
            let levels = f64::from(count);
            let c = roundtrip(&codec, &x, 11);
            assert_eq!(c, roundtrip(&codec, &x, 11), "equal seeds, equal messages");
            for (x, c) in x.chunks(512).zip(c.chunks(512)) {
                let unit = squares(x).sqrt() / levels;
                for (x, c) in x.iter().zip(c) {
                    let error = (f64::from(*x) - f64::from(*c)).abs();
                    let rounding = 3e-7 * unit * levels + 3.0 * levels * f64::from(f32::from_bits(1));
                    assert!(error <= unit + rounding, "{} of {x} is {c}, unit {unit}", codec.name());
                    assert!(*c == 0.0 || *x == 0.0 || (*c > 0.0) == (*x > 0.0), "{x} became {c}");
                }
            }
        }
    }
}

#[test]
fn sizes_are_what_the_formula_says() {
    let codec = Qsgd::new(7).unwrap();
    assert_eq!(codec.encoded_len(0), 0);
    assert_eq!(codec.encoded_len(1), 4 + 1);
    assert_eq!(codec.encoded_len(512), 4 + 256);
    assert_eq!(codec.encoded_len(513), 4 + 256 + 4 + 1);
    let d = (1usize << 40) + 3;
    assert_eq!(codec.encoded_len(d), (1 << 31) * 260 + 4 + 2);
    let widths = [(1, 2), (2, 3), (3, 3), (4, 4), (7, 4), (8, 5), (127, 8), (128, 9), (1 << 15, 17)];
    for (levels, bits) in widths {
        assert_eq!(Qsgd::new(levels).unwrap().encoded_len(512), 4 + 64 * bits, "{levels} levels");
    }
    for levels in [0, (1 << 15) + 1, u32::MAX] {
        Qsgd::new(levels).unwrap_err();
    }
    codec.with_bucket(0).unwrap_err();
}

#[test]
fn buckets_of_every_size_come_back() {
    let x = plain(1300, 8);
    for bucket in [1, 2, 17, 100, 511, 513, 600, 1299, 1300, 1301, usize::MAX] {
        let codec = Qsgd::new(127).unwrap().with_bucket(bucket).unwrap();
        let c = roundtrip(&codec, &x, 1);
        let error = distance(&c, &x) / squares(&x);
        assert!(error < 0.04, "bucket {bucket}: {error}");
        if bucket == 1 {
            assert!(error < 1e-12, "a bucket of one is a norm and a sign");
        }
    }
}

#[test]
fn nan_and_infinity_are_refused_or_propagate_or_saturate() {
    let mut x = plain(1200, 1);
    x[700] = f32::NEG_INFINITY;
    x[800] = f32::NAN;
    let codec = Qsgd::new(7).unwrap();
    let error = encoded(&codec, &x, 0).unwrap_err();
    assert!(matches!(error, CodecError::NotFinite { index: 700, value: f32::NEG_INFINITY }), "{error}");
    let c = roundtrip(&codec.with_not_finite(NotFinite::Propagate), &x, 0);
    assert!(c[512..1024].iter().all(|x| x.is_nan()), "all of the bucket");
    assert!(c[..512].iter().chain(&c[1024..]).all(|x| x.is_finite()), "and nothing else");
    let c = roundtrip(&codec.with_not_finite(NotFinite::Saturate), &x, 0);
    assert_eq!((c[700], c[800]), (-f32::MAX, 0.0));
    assert!(c.iter().all(|x| x.is_finite()));
}
