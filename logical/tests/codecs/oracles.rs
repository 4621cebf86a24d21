//! Errors that are known in closed form, or from the papers.

use super::numbers::Draw;
use super::{decode, encode, square};
use hexagram_logical::codec::{Codec, E3M0, Half, MinMax8, Sign};

const MILLION: usize = 1_000_000;

/// ‖x̂ − x‖² / ‖x‖².
fn error(codec: &dyn Codec, x: &[f32]) -> f64 {
    let back = decode(codec, &encode(codec, x, 1).unwrap(), x.len());
    let error = square(x.iter().zip(&back).map(|(x, back)| f64::from(*x) - f64::from(*back)));
    error / square(x.iter().map(|x| f64::from(*x)))
}

fn gaussian() -> Vec<f32> {
    let mut draw = Draw(1);
    (0..MILLION).map(|_| draw.gaussian() as f32).collect()
}

fn within(value: f64, expected: f64, share: f64) {
    assert!((value - expected).abs() <= share * expected, "{value} is not within {share} of {expected}");
}

#[test]
fn eight_bits_of_gaussian_and_student_numbers() {
    let gaussian = gaussian();
    within(error(&MinMax8::whole(), &gaussian).sqrt(), 0.0117, 0.05);
    let mut draw = Draw(3);
    let student: Vec<f32> = (0..MILLION).map(|_| draw.student() as f32).collect();
    within(error(&MinMax8::default(), &student).sqrt(), 0.026, 0.1);
    // The largest outlier determines the range: only then is the error .187.
    let range =
        student.iter().fold(0.0f32, |max, x| max.max(*x)) - student.iter().fold(0.0f32, |min, x| min.min(*x));
    let uniform = f64::from(range) / 255.0 / 12f64.sqrt();
    let rms = (square(student.iter().map(|x| f64::from(*x))) / MILLION as f64).sqrt();
    within(error(&MinMax8::whole(), &student).sqrt(), uniform / rms, 0.02);
    within(error(&MinMax8::whole(), &student).sqrt(), 0.187, 0.6);
}

#[test]
fn eight_bits_lose_half_a_step_at_most() {
    for (scale, offset) in [(1.0f32, 0.0f32), (0.0005, 1000.0), (5e-12, 0.0), (1e-30, 0.0), (1.7e38, 0.0)] {
        let mut draw = Draw(5);
        let x: Vec<f32> = (0..4096).map(|_| (2.0 * draw.uniform() as f32 - 1.0) * scale + offset).collect();
        let back = decode(&MinMax8::whole(), &encode(&MinMax8::whole(), &x, 0).unwrap(), x.len());
        let (min, max) = x.iter().fold((x[0], x[0]), |(min, max), x| (x.min(min), x.max(max)));
        let bound = (f64::from(max) - f64::from(min)) / 510.0 + f64::from(max.abs()) * 3e-7;
        let worst =
            x.iter().zip(&back).map(|(x, y)| (f64::from(*x) - f64::from(*y)).abs()).fold(0.0, f64::max);
        assert!(worst <= bound, "{scale} about {offset}: {worst} exceeds {bound}");
    }
}

#[test]
fn four_bits_are_the_nearest_power_of_two_times_the_largest() {
    let back = |x: &[f32]| decode(&E3M0::default(), &encode(&E3M0::default(), x, 0).unwrap(), x.len());
    // The largest is exact; 1.5 is halfway from 1 to 2, and 1/24 from 0 to 1/12.
    let x = [0.0, -3.0, 2.3, 2.2, 1.125, 1.1, 0.0469, 0.0235, -0.0235, 0.0234, 1e-9];
    let least = 3.0 / 64.0;
    let expected = [0.0, -3.0, 3.0, 1.5, 1.5, 0.75, least, least, -least, 0.0, 0.0];
    assert_eq!(back(&x), expected);
    // However small or large the numbers are.
    for power in [-130, -60, 60, 126] {
        let scaled = |x: &[f32]| x.iter().map(|x| x / 3.0 * 2f32.powi(power)).collect::<Vec<f32>>();
        assert_eq!(back(&scaled(&[3.0, -1.5, 0.75])), scaled(&[3.0, -1.5, 0.75]));
    }
    let gaussian = gaussian();
    // ∫ (1 − r)²/r³ dr / ln 2 from ¾ to 3/2, over numbers of any size.
    within(error(&E3M0::default(), &gaussian), 0.0382, 0.02);
    within(error(&E3M0::in_blocks(2048), &gaussian), 0.0382, 0.02);
}

#[test]
fn four_bits_are_off_by_a_third_at_most_in_a_block_that_is_the_worst() {
    // All but the largest become 0, and just not more.
    for (size, bound) in [(512, 1.0 / 9.0), (2049, 1.0 / 9.0), (20000, 19999.0 / (19999.0 + 16384.0))] {
        let codec = E3M0::in_blocks(size);
        assert!((1.0 - codec.properties().contraction.unwrap() - bound).abs() < 1e-12);
        for other in [1.0 / 128.0, 0.99999 / 128.0, 1.0 / 64.0 * 1.5, 0.75] {
            let x: Vec<f32> = (0..size).map(|at| if at == size / 2 { 1.0 } else { other }).collect();
            let error = error(&codec, &x);
            assert!(error <= bound * 1.0001, "{other} in blocks of {size}: {error} exceeds {bound}");
        }
    }
}

#[test]
fn all_256_levels_are_used_however_small_the_range_is() {
    for (scale, offset) in
        [(1.0f32, 0.0f32), (1e-11, 0.0), (1e-36, 0.0), (1e-42, 0.0), (0.5, 1000.0), (f32::MAX / 255.0, 0.0)]
    {
        let x: Vec<f32> = (0..=255).map(|i| offset + scale * i as f32).collect();
        let message = encode(&MinMax8::whole(), &x, 0).unwrap();
        assert_eq!(message[8..], (0..=255).collect::<Vec<u8>>(), "{scale} about {offset}");
    }
}

#[test]
fn signs_lose_what_their_norms_say() {
    let gaussian = gaussian();
    within(error(&Sign::whole(), &gaussian), 1.0 - 2.0 / std::f64::consts::PI, 0.01);
    within(error(&Sign::default(), &gaussian), 0.363, 0.01);
    let mut draw = Draw(7);
    let x: Vec<f32> = (0..999).map(|_| draw.student() as f32).collect();
    let norm: f64 = x.iter().map(|x| f64::from(x.abs())).sum();
    let exact = 1.0 - norm * norm / (x.len() as f64 * square(x.iter().map(|x| f64::from(*x))));
    within(error(&Sign::whole(), &x), exact, 1e-5);
    let mut one = vec![0.0f32; 1000];
    one[77] = -3.0;
    within(error(&Sign::whole(), &one), 1.0 - 1.0 / 1000.0, 1e-6);
}

#[test]
fn sixteen_bits_lose_their_last_place() {
    let x: Vec<f32> = gaussian().iter().map(|x| x.signum() * x.abs().max(1e-3)).collect();
    for (codec, places) in [(Half::F16, 11), (Half::BF16, 8)] {
        let back = decode(&codec, &encode(&codec, &x, 0).unwrap(), x.len());
        let half_a_place = f32::powi(2.0, -places);
        assert!(x.iter().zip(&back).all(|(x, y)| (x - y).abs() <= half_a_place * x.abs()), "{codec:?}");
        assert!(error(&codec, &x) < f64::from(half_a_place).powi(2) / 2.0, "{codec:?}");
    }
}
