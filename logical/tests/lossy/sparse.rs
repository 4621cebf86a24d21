//! Top-k and random-k: exactly the elements that they should keep, and exactly those.

use super::*;
use hexagram_logical::codec::{Keep, LinearCodec, NotFinite, RandomK, Round, TopK};
use proptest::prelude::*;

fn top(keep: Keep) -> TopK {
    TopK::new(keep).unwrap()
}

/// What top-k keeps, by sorting.
fn largest(x: &[f32], k: usize) -> Vec<f32> {
    let mut order: Vec<usize> = (0..x.len()).collect();
    order.sort_by(|a, b| x[*b].abs().total_cmp(&x[*a].abs()).then(a.cmp(b)));
    let mut kept = vec![0.0; x.len()];
    order[..k].iter().for_each(|index| kept[*index] = x[*index]);
    kept
}

#[test]
fn the_largest_are_kept_of_every_run() {
    for x in runs() {
        for k in [1, 2, 7, 100, 4999, 5000] {
            let want = largest(&x, k.min(x.len()));
            assert_eq!(roundtrip(&top(Keep::Count(k)), &x, 0), want, "{k} of {}", x.len());
        }
        let k = (x.len() as f64 * 0.3).ceil() as usize;
        assert_eq!(roundtrip(&top(Keep::Ratio(0.3)), &x, 0), largest(&x, k));
    }
}

#[test]
fn long_runs_of_every_order_are_selected_exactly() {
    let d = 60_000;
    let rising: Vec<f32> = (0..d).map(|i| i as f32).collect();
    let falling: Vec<f32> = rising.iter().rev().copied().collect();
    let equal = vec![1.0f32; d];
    let levels: Vec<f32> = (0..d).map(|i| ((i * 7919) % 5) as f32).collect();
    // Large elements only where a sample that steps through the run does not look, and only where it does.
    let stride = 9;
    let hidden: Vec<f32> = (0..d).map(|i| if i % stride == 4 { 9.0 + i as f32 } else { 1.0 }).collect();
    let shown: Vec<f32> = (0..d).map(|i| if i % stride == 0 { 9.0 + i as f32 } else { 1.0 }).collect();
    for x in [rising, falling, equal, levels, hidden, shown, plain(d, 6)] {
        for k in [1, 60, 600, 30_000, d] {
            assert_eq!(roundtrip(&top(Keep::Count(k)), &x, 0), largest(&x, k), "{k}");
        }
    }
}

#[test]
fn equal_magnitudes_keep_the_lower_index() {
    let c = roundtrip(&top(Keep::Count(3)), &[1.0, -2.0, 2.0, -2.0, 2.0], 0);
    assert_eq!(c, [0.0, -2.0, 2.0, -2.0, 0.0]);
}

#[test]
fn messages_take_few_bits_an_index() {
    let d = 1usize << 26;
    let k = 671_089;
    let bytes = top(Keep::Ratio(0.01)).encoded_len(d);
    let bits = (bytes - 4 * k) as f64 * 8.0 / k as f64;
    assert!((8.5..8.7).contains(&bits), "{bits} bits an index");
    let ratios = [0.01, 0.1, 0.25, 0.3, 0.5, 0.9, 1.0].map(Keep::Ratio);
    for keep in (1..40).map(Keep::Count).chain(ratios) {
        let sizes: Vec<usize> = (0..3000).map(|len| top(keep).encoded_len(len)).collect();
        assert!(sizes.is_sorted(), "{keep}: sizes grow with the run");
        assert_eq!(sizes[0], 0);
    }
    let d = (1usize << 50) + 1;
    assert_eq!(top(Keep::Count(2)).encoded_len(d), 8 + (2usize * 49).div_ceil(8) + 1);
}

#[test]
fn places_beyond_four_gigabytes_would_fit_random_messages() {
    let codec = RandomK::new(Keep::Ratio(0.5)).unwrap();
    assert_eq!(Codec::encoded_len(&codec, 1 << 33), 8 + (1 << 34));
}

#[test]
fn nan_and_infinity_are_refused_or_come_first_or_saturate() {
    let mut x = plain(20_000, 1);
    x[5000] = f32::NAN;
    x[9000] = f32::NEG_INFINITY;
    x[19_000] = f32::NAN;
    let codec = top(Keep::Ratio(0.01));
    let error = encoded(&codec, &x, 0).unwrap_err();
    assert!(matches!(error, CodecError::NotFinite { index: 5000, .. }), "{error}");
    let c = roundtrip(&codec.with_not_finite(NotFinite::Propagate), &x, 0);
    assert!(c[5000].is_nan() && c[19_000].is_nan() && c[9000] == f32::NEG_INFINITY);
    let c = roundtrip(&codec.with_not_finite(NotFinite::Saturate), &x, 0);
    assert!(c[5000] == 0.0 && c[9000] == -f32::MAX && c.iter().all(|x| x.is_finite()));
    let all = [f32::NAN; 5];
    let c = roundtrip(&top(Keep::Count(2)).with_not_finite(NotFinite::Saturate), &all, 0);
    assert_eq!(c, [0.0; 5]);
    let c = roundtrip(&top(Keep::Count(2)).with_not_finite(NotFinite::Propagate), &all, 0);
    assert_eq!(c.iter().filter(|x| x.is_nan()).count(), 2);

    let codec = RandomK::new(Keep::Ratio(0.01)).unwrap();
    let error = encoded(&codec, &x, 0).unwrap_err();
    assert!(matches!(error, CodecError::NotFinite { index: 5000, .. }), "{error}");
    let c = roundtrip(&codec.with_not_finite(NotFinite::Propagate), &x, 0);
    assert_eq!(c.iter().filter(|x| x.is_nan()).count(), 200, "whatever is kept tells of it");
    let codec = RandomK::unbiased(Keep::Ratio(1.0)).unwrap().with_not_finite(NotFinite::Saturate);
    let c = roundtrip(&codec, &x, 0);
    assert_eq!((c[5000], c[9000], c[0]), (0.0, -f32::MAX, x[0]));
}

#[test]
fn random_places_keep_the_part_that_they_should() {
    let x = plain(50, 3);
    let k = 20.0;
    let seeds = 20_000;
    let contraction = RandomK::new(Keep::Count(20)).unwrap();
    let unbiased = RandomK::unbiased(Keep::Count(20)).unwrap();
    let mut lost = 0.0;
    let mut variance = 0.0;
    let mut mean = [0.0f64; 50];
    for seed in 0..seeds {
        let c = roundtrip(&contraction, &x, seed);
        assert_eq!(c.iter().zip(&x).filter(|(c, x)| c == x).count(), 20);
        lost += distance(&c, &x) / seeds as f64;
        let c = roundtrip(&unbiased, &x, seed);
        variance += distance(&c, &x) / seeds as f64;
        mean.iter_mut().zip(&c).for_each(|(mean, c)| *mean += f64::from(*c) / seeds as f64);
    }
    let all = squares(&x);
    assert!((lost / all - (1.0 - k / 50.0)).abs() < 0.01, "{}", lost / all);
    assert!((variance / all - (50.0 / k - 1.0)).abs() < 0.02, "{}", variance / all);
    for (mean, x) in mean.iter().zip(&x) {
        let sigma = f64::from(x.abs()) * (1.5 / seeds as f64).sqrt();
        assert!((mean - f64::from(*x)).abs() <= 5.0 * sigma, "{mean}, not {x}");
    }
}

#[test]
fn random_k_is_linear_while_it_is_encoded() {
    let x = plain(1000, 1);
    let y = plain(1000, 2);
    let codec = RandomK::unbiased(Keep::Ratio(0.1)).unwrap();
    let mut total = vec![0.0; LinearCodec::message_len(&codec, 0, 1000)];
    assert_eq!(total.len(), 100);
    for from in [&x, &y] {
        let mut message = vec![f32::NAN; 100];
        let round = Round { number: 0, from, reduced: &[], seed: 5 };
        LinearCodec::encode(&codec, round, &mut [], &mut message).unwrap();
        total.iter_mut().zip(message).for_each(|(total, part)| *total += part);
    }
    let mut sum = vec![f32::NAN; 1000];
    LinearCodec::decode(&codec, &total, &mut [], &mut sum, 5).unwrap();
    let x = roundtrip(&codec, &x, 5);
    let y = roundtrip(&codec, &y, 5);
    let want: Vec<f32> = x.iter().zip(&y).map(|(x, y)| x + y).collect();
    assert_eq!(sum, want);
    LinearCodec::decode(&codec, &total[1..], &mut [], &mut sum, 5).unwrap_err();
}

proptest! {
    #[test]
    fn top_k_is_a_contraction(x in proptest::collection::vec(-1e3f32..1e3, 1..200), ratio in 0.001f64..1.0) {
        let codec = top(Keep::Ratio(ratio));
        let delta = codec.properties().contraction.unwrap();
        let c = roundtrip(&codec, &x, 0);
        prop_assert!(distance(&c, &x) <= (1.0 - delta) * squares(&x) * (1.0 + 1e-12));
    }

    #[test]
    fn top_k_agrees_with_sorting(x in proptest::collection::vec(-4i8..4, 0..300), k in 1usize..300) {
        let x: Vec<f32> = x.into_iter().map(f32::from).collect();
        prop_assert_eq!(roundtrip(&top(Keep::Count(k)), &x, 0), largest(&x, k.min(x.len())));
    }
}
