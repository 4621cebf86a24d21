//! Errors that are known in closed form, or from the papers.

use super::numbers::Draw;
use super::{decode, encode, square};
use hexagram_logical::codec::{Codec, Half, MinMax8, Sign};

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
    // The range of the whole is that of its largest outlier: only then is .187 the error.
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
