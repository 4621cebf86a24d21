//! Handwritten digits, and the gradient of a linear classifier of them. Nothing here knows of ranks.

use flate2::read::GzDecoder;
use std::io::Read;

/// One row of weights for each digit: 64 pixels and a constant.
pub(crate) const WEIGHTS: [usize; 2] = [CLASSES, INPUTS];
const CLASSES: usize = 10;
const INPUTS: usize = 65;
const FILE: &[u8] = include_bytes!("../../data/digits.csv.gz");

/// Images with what they show: those to learn from, and every fifth to judge the result by.
pub(crate) struct Digits {
    train: Vec<Digit>,
    held_out: Vec<Digit>,
}

type Digit = ([f32; INPUTS], usize);

impl Digits {
    pub(crate) fn load() -> Self {
        let mut text = String::new();
        // The file is compiled in.
        let _ = GzDecoder::new(FILE).read_to_string(&mut text);
        let mut train = Vec::new();
        let mut held_out = Vec::new();
        for (at, line) in text.lines().enumerate() {
            let mut inputs = [1.0; INPUTS];
            let mut label = 0;
            for (pixel, value) in line.split(',').filter_map(|value| value.parse::<u8>().ok()).enumerate() {
                if pixel < INPUTS - 1 {
                    inputs[pixel] = f32::from(value) / 16.0
                } else {
                    label = value.into()
                }
            }
            if at % 5 == 0 { &mut held_out } else { &mut train }.push((inputs, label));
        }
        Digits { train, held_out }
    }

    /// Returns the gradient of the mean cross-entropy of these images, counted beyond the last from the first on.
    pub(crate) fn gradient(&self, weights: &[f32], images: impl ExactSizeIterator<Item = usize>) -> Vec<f32> {
        let mut gradient = vec![0.0; weights.len()];
        let share = 1.0 / images.len() as f32;
        for image in images {
            let (inputs, label) = &self.train[image % self.train.len()];
            let exponentials = scores(weights, inputs).map(f32::exp);
            let sum: f32 = exponentials.iter().sum();
            for (class, row) in gradient.chunks_exact_mut(INPUTS).enumerate() {
                let error = exponentials[class] / sum - f32::from(u8::from(class == *label));
                row.iter_mut().zip(inputs).for_each(|(g, x)| *g += share * error * x);
            }
        }
        gradient
    }

    /// Returns the share of the images held out that are recognized.
    pub(crate) fn accuracy(&self, weights: &[f32]) -> f64 {
        let right = self.held_out.iter().filter(|(inputs, label)| {
            let scores = scores(weights, inputs);
            scores.iter().all(|score| *score <= scores[*label])
        });
        right.count() as f64 / self.held_out.len() as f64
    }
}

fn scores(weights: &[f32], inputs: &[f32; INPUTS]) -> [f32; CLASSES] {
    let mut scores = [0.0; CLASSES];
    for (score, row) in scores.iter_mut().zip(weights.chunks_exact(INPUTS)) {
        *score = row.iter().zip(inputs).map(|(w, x)| w * x).sum();
    }
    scores
}
