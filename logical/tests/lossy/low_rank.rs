//! PowerSGD: exact where the mean has a low rank, and near the best approximation where it has not.

use super::*;
use hexagram_logical::codec::{LinearCodec, NotFinite, PowerSgd, Round};

/// One encoded all-reduce (mean) over ranks in this thread; every rank has its own memory.
fn all_reduce(codec: &PowerSgd, ranks: &[Vec<f32>], memories: &mut [Vec<f32>], seed: u64) -> Vec<f32> {
    let len = ranks[0].len();
    codec.fits(len).unwrap();
    let mut reduced = Vec::new();
    for number in 0..codec.rounds() {
        let mut sums = vec![0.0; codec.message_len(number, len)];
        for (from, memory) in ranks.iter().zip(memories.iter_mut()) {
            let mut message = vec![f32::NAN; sums.len()];
            codec.encode(Round { number, from, reduced: &reduced, seed }, memory, &mut message).unwrap();
            sums.iter_mut().zip(message).for_each(|(sum, x)| *sum += x / ranks.len() as f32);
        }
        reduced = sums;
    }
    let mut results: Vec<Vec<f32>> = Vec::new();
    for memory in memories.iter_mut() {
        let mut to = vec![f32::NAN; len];
        codec.decode(&reduced, memory, &mut to, seed).unwrap();
        results.push(to);
    }
    assert!(results.iter().all(|x| bits(x) == bits(&results[0])), "replicas are bit-identical");
    assert!(memories.iter().all(|x| bits(x) == bits(&memories[0])), "and so are memories");
    results.swap_remove(0)
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

fn memories(codec: &PowerSgd, ranks: usize, len: usize) -> Vec<Vec<f32>> {
    vec![vec![0.0; codec.memory_len(len)]; ranks]
}

/// A matrix of rank r at most, row by row.
fn of_rank(r: usize, rows: usize, cols: usize, seed: u64) -> Vec<f32> {
    let mut m = vec![0.0; rows * cols];
    for k in 0..r as u64 {
        let p = plain(rows, seed + 2 * k);
        let q = plain(cols, seed + 2 * k + 1);
        m.chunks_mut(cols).zip(p).for_each(|(row, p)| row.iter_mut().zip(&q).for_each(|(m, q)| *m += p * q));
    }
    m
}

#[test]
fn full_rank_workers_with_a_mean_of_low_rank_are_exact() {
    let rows = 40;
    let cols = 30;
    let codec = PowerSgd::new(&[(rows, cols), (1, 7)], 3).unwrap();
    let mean = of_rank(3, rows, cols, 10);
    let noise = plain(rows * cols, 3);
    let worker = |sign: f32| {
        let mut x: Vec<f32> = mean.iter().zip(&noise).map(|(m, n)| m + sign * n).collect();
        x.extend([sign + 0.5; 9]);
        x
    };
    let ranks = [worker(1.0), worker(-1.0)];
    let result = all_reduce(&codec, &ranks, &mut memories(&codec, 2, ranks[0].len()), 4);
    let error = (distance(&result[..rows * cols], &mean) / squares(&mean)).sqrt();
    assert!(error < 1e-6, "{error}");
    assert_eq!(
        result[rows * cols..],
        [0.5; 9],
        "vectors, and what is behind the tensors, are not compressed"
    );
}

#[test]
fn warm_starts_come_near_the_best_approximation() {
    // H diag(2⁻ᵏ) H, with Hadamard's matrix H: the singular values are 2⁻ᵏ.
    let d = 16;
    let h = |i: usize, j: usize| if (i & j).count_ones().is_multiple_of(2) { 0.25f64 } else { -0.25 };
    let entry = |i: usize, j: usize| (0..d).map(|k| h(i, k) * 0.5f64.powi(k as i32) * h(k, j)).sum::<f64>();
    let m: Vec<f32> = (0..d * d).map(|at| entry(at / d, at % d) as f32).collect();
    let best: f64 = (2..d).map(|k| 0.25f64.powi(k as i32)).sum();
    let codec = PowerSgd::new(&[(d, d)], 2).unwrap();
    for seed in 0..20 {
        let mut memories = memories(&codec, 1, d * d);
        let ratios: Vec<f64> = (0..8)
            .map(|step| {
                let result = all_reduce(&codec, std::slice::from_ref(&m), &mut memories, mix(seed, step));
                (distance(&result, &m) / best).sqrt()
            })
            .collect();
        assert!(ratios[7] <= 1.001, "seed {seed}: {ratios:?}");
        assert!(ratios.windows(2).all(|pair| pair[1] <= pair[0] * 1.0001), "seed {seed}: {ratios:?}");
    }
    // As the reference does: the first column of Q and P from one drawing.
    let mut memories = memories(&codec, 1, d * d);
    let ratios: Vec<f64> = (0..4)
        .map(|_| {
            (distance(&all_reduce(&codec, std::slice::from_ref(&m), &mut memories, 0), &m) / best).sqrt()
        })
        .collect();
    assert!(ratios[3] <= 1.001, "{ratios:?}");
}

fn mix(seed: u64, step: u64) -> u64 {
    seed * 1000 + step
}

#[test]
fn a_memory_that_is_restored_goes_on() {
    let codec = PowerSgd::new(&[(20, 30)], 2).unwrap();
    let x = [plain(600, 1)];
    let mut memory = memories(&codec, 1, 600);
    all_reduce(&codec, &x, &mut memory, 1);
    let mut copy = memory.clone();
    let a = all_reduce(&codec, &x, &mut memory, 2);
    let b = all_reduce(&codec, &x, &mut copy, 2);
    assert_eq!(bits(&a), bits(&b));
    let cold = all_reduce(&codec, &x, &mut memories(&codec, 1, 600), 2);
    assert!(distance(&a, &x[0]) < distance(&cold, &x[0]), "a warm start is nearer");
}

#[test]
fn zeros_lower_ranks_and_every_scale_come_back() {
    let codec = PowerSgd::new(&[(20, 30)], 3).unwrap();
    let mut memory = memories(&codec, 1, 600);
    for step in 0..3 {
        assert_eq!(all_reduce(&codec, &[vec![0.0; 600]], &mut memory, step), [0.0; 600]);
    }
    for r in [1, 3, 2, 3] {
        let m = of_rank(r, 20, 30, 5);
        // The columns that were lost with the rank are drawn anew.
        let result = all_reduce(&codec, std::slice::from_ref(&m), &mut memory, 9);
        assert!((distance(&result, &m) / squares(&m)).sqrt() < 1e-5, "rank {r}");
    }
    for scale in [1e-30f32, 1e30, 1e-20, 1e20] {
        let m: Vec<f32> = of_rank(3, 20, 30, 7).iter().map(|x| x * scale).collect();
        for step in 0..3 {
            let result = all_reduce(&codec, std::slice::from_ref(&m), &mut memory, step);
            assert!((distance(&result, &m) / squares(&m)).sqrt() < 1e-5, "scale {scale}");
        }
    }
}

#[test]
fn only_what_becomes_smaller_is_compressed() {
    let codec = PowerSgd::new(&[(100, 1), (1, 50), (4, 4), (0, 9), (64, 32)], 2).unwrap();
    let plain = 100 + 50 + 16;
    let len = plain + 64 * 32;
    assert_eq!(codec.message_len(0, len), 2 * 64);
    assert_eq!(codec.message_len(1, len), 2 * 32 + plain);
    assert_eq!(codec.message_len(1, len + 5), 2 * 32 + plain + 5);
    assert_eq!(codec.memory_len(len), 2 * 96);
    codec.fits(len - 1).unwrap_err();
    PowerSgd::new(&[(2, 2)], 0).unwrap_err();
    PowerSgd::new(&[(usize::MAX, 2)], 1).unwrap_err();
    let huge = PowerSgd::new(&[(1 << 20, 1 << 20)], 4).unwrap();
    assert_eq!(huge.message_len(0, 1 << 40), 4 << 20);
    assert_ne!(codec.name(), huge.name());
}

#[test]
fn wrong_lengths_are_refused() {
    let codec = PowerSgd::new(&[(20, 30)], 2).unwrap();
    let from = plain(600, 1);
    let mut to = vec![0.0; 600];
    let mut memory = vec![0.0; 100];
    let round = Round { number: 0, from: &from, reduced: &[], seed: 0 };
    codec.encode(round, &mut memory[..99], &mut to[..40]).unwrap_err();
    codec.encode(round, &mut memory, &mut to[..39]).unwrap_err();
    codec.encode(Round { from: &from[..599], ..round }, &mut memory, &mut to[..40]).unwrap_err();
    codec.encode(Round { number: 1, ..round }, &mut memory, &mut to[..60]).unwrap_err();
    codec.decode(&from[..59], &mut memory, &mut to, 0).unwrap_err();
    codec.decode(&from[..60], &mut memory, &mut to[..599], 0).unwrap_err();
}

#[test]
fn nan_and_infinity_are_refused_or_propagate_or_saturate() {
    let codec = PowerSgd::new(&[(20, 30), (20, 30)], 2).unwrap();
    let mut x = plain(1200, 1);
    x[77] = f32::INFINITY;
    x[78] = f32::NAN;
    let round = Round { number: 0, from: &x, reduced: &[], seed: 0 };
    let error = codec.encode(round, &mut vec![0.0; 200], &mut vec![0.0; 80]).unwrap_err();
    assert!(matches!(error, CodecError::NotFinite { index: 77, value: f32::INFINITY }), "{error}");

    let propagates = codec.clone().with_not_finite(NotFinite::Propagate);
    let mut memory = memories(&propagates, 1, 1200);
    let result = all_reduce(&propagates, std::slice::from_ref(&x), &mut memory, 0);
    assert!(result[..600].iter().all(|x| x.is_nan()) && result[600..].iter().all(|x| x.is_finite()));
    let result = all_reduce(&propagates, &[plain(1200, 1)], &mut memory, 1);
    assert!(result.iter().all(|x| x.is_finite()), "it recovers");

    let saturates = codec.with_not_finite(NotFinite::Saturate);
    let mut memory = memories(&saturates, 1, 1200);
    let result = all_reduce(&saturates, std::slice::from_ref(&x), &mut memory, 0);
    assert!(result.iter().all(|x| x.is_finite()));
    assert!(result[77] > 1e28, "{}", result[77]);
}
