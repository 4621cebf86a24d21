//! Top-k and random-k: exactly the elements that they should keep, and exactly those.

use super::*;
use hexagram_logical::codec::{Keep, LinearCodec, NotFinite, RandomK, Round, TopK};
use proptest::prelude::*;

fn top(keep: Keep) -> TopK {
    TopK::new(keep).unwrap()
}

/// The selection of top-k, by sorting.
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
fn the_largest_of_every_chunk_are_kept() {
    for x in runs() {
        for (keep, chunk) in [(Keep::Count(3), 16), (Keep::Ratio(0.1), 64), (Keep::Count(9), 5)] {
            let k = |len: usize| match keep {
                Keep::Count(count) => count.min(len),
                Keep::Ratio(ratio) => (len as f64 * ratio).ceil() as usize,
            };
            let want: Vec<f32> = x.chunks(chunk).flat_map(|chunk| largest(chunk, k(chunk.len()))).collect();
            assert_eq!(roundtrip(&top(keep).in_chunks(chunk), &x, 0), want, "{keep} of {chunk}");
        }
    }
}

/// Returns the two-bit form of a run's kept values, in f64: the means of their bins.
fn binned(kept: &[f32]) -> Vec<f64> {
    let values: Vec<f64> = kept.iter().filter(|x| **x != 0.0).map(|x| f64::from(*x)).collect();
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let deviation = (values.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / count).sqrt();
    // Bounds of the bins: −2.25, −0.75 and 0.75 deviations from the mean.
    let bin = |x: f64| [-2.25, -0.75, 0.75].iter().filter(|bound| x - mean > *bound * deviation).count();
    let of = |number: usize| {
        let all = values.iter().filter(|x| bin(**x) == number);
        all.clone().sum::<f64>() / all.count() as f64
    };
    kept.iter().map(|x| if *x == 0.0 { 0.0 } else { of(bin(f64::from(*x))) }).collect()
}

#[test]
fn two_bits_are_the_means_of_four_bins() {
    for (len, seed) in [(2, 1), (3, 2), (64, 3), (500, 4), (5000, 5)] {
        let mut x = plain(len, seed);
        x.iter_mut().step_by(7).for_each(|x| *x *= 9.0);
        for (keep, chunk) in [(Keep::Ratio(1.0), 4096), (Keep::Ratio(0.1), 64)] {
            let codec = top(keep).in_chunks(chunk);
            let kept = roundtrip(&codec, &x, 0);
            let found = roundtrip(&codec.in_two_bits(), &x, 0);
            for (found, want) in found.iter().zip(binned(&kept)) {
                assert!((f64::from(*found) - want).abs() <= 1e-6 * want.abs(), "{found} and not {want}");
            }
            // The bound in the codec's documentation.
            let k = kept.iter().filter(|x| **x != 0.0).count() as f64;
            assert!(squares(&found) >= 0.32 / k.sqrt() * squares(&kept), "{len}: {found:?}");
        }
    }
    // Two opposite numbers, and equal ones.
    let exact = top(Keep::Ratio(1.0)).in_two_bits();
    for x in [vec![3.0, -3.0], vec![-0.1; 9], vec![7.5], vec![0.0; 4], vec![f32::MAX, -f32::MAX, f32::MAX]] {
        assert_eq!(roundtrip(&exact, &x, 0), x);
    }
}

#[test]
fn two_bits_take_the_bytes_of_their_text_and_grow_with_the_run() {
    // 64 of every 4096: 2 + 8 bits each, and 17 bytes.
    let sparse_loco = top(Keep::Ratio(1.0 / 64.0)).in_chunks(4096).in_two_bits();
    let d = 25 * 4096;
    let k = 25 * 64;
    assert_eq!(sparse_loco.encoded_len(d), 16 + k / 4 + (k * 6 + k + (d - 1) / 64).div_ceil(8) + 1);
    for keep in
        [Keep::Count(1), Keep::Count(64), Keep::Ratio(0.01), Keep::Ratio(1.0 / 64.0), Keep::Ratio(0.5)]
    {
        for chunk in [1, 7, 64, 1000] {
            for codec in [
                top(keep).in_chunks(chunk),
                top(keep).in_two_bits(),
                top(keep).in_chunks(chunk).in_two_bits(),
            ] {
                let sizes: Vec<usize> = (0..9000).map(|len| codec.encoded_len(len)).collect();
                assert!(sizes.is_sorted(), "{}: sizes grow with the run", codec.name());
                assert_eq!(sizes[0], 0);
            }
        }
    }
}

#[test]
fn two_bits_of_nan_and_infinity_propagate_or_saturate() {
    let x = [1.0, f32::NAN, -2.0, f32::INFINITY];
    let codec = top(Keep::Ratio(1.0)).in_two_bits();
    let second_chunk = [1.0, 2.0, -2.0, f32::INFINITY];
    let error = encoded(&top(Keep::Count(1)).in_chunks(2).in_two_bits(), &second_chunk, 0).unwrap_err();
    assert!(matches!(error, CodecError::NotFinite { index: 3, .. }), "{error}");
    let c = roundtrip(&codec.with_not_finite(NotFinite::Propagate), &x, 0);
    assert!(c.iter().all(|x| x.to_bits() == f32::NAN.to_bits()), "{c:?}");
    let c = roundtrip(&codec.with_not_finite(NotFinite::Saturate), &x, 0);
    assert!(c[3] == f32::MAX && c.iter().all(|x| x.is_finite()), "{c:?}");
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
    fn a_count_of_every_chunk_is_a_contraction(
        x in proptest::collection::vec(-1e3f32..1e3, 1..100),
        count in 1usize..12,
        chunk in 1usize..20,
    ) {
        let codec = top(Keep::Count(count)).in_chunks(chunk);
        let delta = codec.properties().contraction.unwrap();
        for x in [vec![1.0; x.len()], x] {
            let c = roundtrip(&codec, &x, 0);
            prop_assert!(distance(&c, &x) <= (1.0 - delta) * squares(&x) * (1.0 + 1e-12));
        }
        // The bound is reached.
        let x = vec![1.0; 4 * chunk];
        let lost = distance(&roundtrip(&codec, &x, 0), &x) / squares(&x);
        prop_assert!((lost - (1.0 - delta)).abs() < 1e-12, "{} of {}, and not {}", count, chunk, delta);
    }

    #[test]
    fn top_k_agrees_with_sorting(x in proptest::collection::vec(-4i8..4, 0..300), k in 1usize..300) {
        let x: Vec<f32> = x.into_iter().map(f32::from).collect();
        prop_assert_eq!(roundtrip(&top(Keep::Count(k)), &x, 0), largest(&x, k.min(x.len())));
    }
}
