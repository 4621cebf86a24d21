//! Handwritten digits and a net of one hidden layer, with its gradient written by hand: real data, on which accuracy
//! means something, in some ten microseconds a sample.
//!
//! ```text
//! h = relu(x W₁ + b₁)      64 pixels → 24, or 128 of the wide net
//! y = softmax(h W₂ + b₂)   24 → 10 digits
//! ```
//!
//! Source of the images: Alpaydin and Kaynak, "Optical Recognition of Handwritten Digits", UCI Machine Learning
//! Repository, 1998; see `lab/data/README.md`.

mod images;

pub use images::{CLASSES, Images, PIXELS, SIDE};

use super::{GradientReady, ModelEvaluation, ModelValues, Task, largest, parameter};
use crate::arithmetic::{
    add_product, add_product_transposed, add_rows, add_transposed_product, cross_entropy, repeated,
};
use crate::random::Random;
use hexagram::{Parameter, Result};

/// Width of the hidden layer with which the suite compares algorithms.
const NARROW: usize = 24;
/// Width with which 98 % of the held-out digits are recognized.
const WIDE: usize = 128;

/// Digits to be recognized, in batches of 16 for each rank.
#[derive(Debug)]
pub struct Digits {
    hidden: usize,
    train: Images,
    held_out: Images,
}

impl Digits {
    /// Creates the task with a narrow net and the images that are compiled in.
    ///
    /// # Errors
    /// [`Error::System`](hexagram::Error::System) if the program was built from a damaged file.
    pub fn new() -> Result<Self> {
        Ok(Self::of(NARROW, &Images::embedded()?))
    }

    /// Creates the task with a wide net, of some images.
    pub fn wide(images: &Images) -> Self {
        Self::of(WIDE, images)
    }

    fn of(hidden: usize, images: &Images) -> Self {
        let [train, held_out] = images.split();
        Digits { hidden, train, held_out }
    }

    /// Returns the images to learn from.
    pub fn images(&self) -> &Images {
        &self.train
    }

    /// Returns the names and shapes of the parameters.
    fn shapes(&self) -> [(&'static str, [usize; 2]); 4] {
        let hidden = self.hidden;
        [
            ("hidden.weight", [PIXELS, hidden]),
            ("hidden.bias", [1, hidden]),
            ("out.weight", [hidden, CLASSES]),
            ("out.bias", [1, CLASSES]),
        ]
    }

    /// Returns the hidden layer and the logits of some images.
    fn forward(values: &ModelValues, pixels: &[f32]) -> (Vec<f32>, Vec<f32>) {
        let rows = pixels.len() / PIXELS;
        let mut hidden = repeated(&values[1], rows);
        add_product(&mut hidden, pixels, &values[0], values[1].len());
        hidden.iter_mut().for_each(|entry| *entry = entry.max(0.0));
        let mut logits = repeated(&values[3], rows);
        add_product(&mut logits, &hidden, &values[2], CLASSES);
        (hidden, logits)
    }
}

impl Task for Digits {
    fn name(&self) -> &str {
        "digits"
    }

    fn parameters(&self) -> Vec<Parameter> {
        self.shapes().map(|(name, shape)| parameter(name, &shape)).to_vec()
    }

    fn initial(&self, seed: u64) -> ModelValues {
        let mut random = Random::new(seed);
        let of = |(_, [rows, columns]): (&str, [usize; 2])| match rows {
            1 => vec![0.0; columns],
            _ => random.uniform(rows * columns, (6.0 / rows as f64).sqrt()),
        };
        self.shapes().map(of).to_vec()
    }

    fn labels(&self) -> &[usize] {
        self.train.labels()
    }

    fn batch(&self) -> Option<usize> {
        Some(16)
    }

    fn gradient(
        &self,
        values: &ModelValues,
        samples: &[usize],
        ready: &mut GradientReady<'_>,
    ) -> Result<f64> {
        let batch = self.train.select(samples);
        let (hidden, mut logits) = Self::forward(values, batch.pixels());
        let loss = cross_entropy(&mut logits, batch.labels()) / samples.len() as f64;
        let mut out_bias = vec![0.0; CLASSES];
        add_rows(&mut out_bias, &logits);
        ready(3, &out_bias)?;
        let mut out = vec![0.0; self.hidden * CLASSES];
        add_transposed_product(&mut out, &hidden, &logits, CLASSES);
        ready(2, &out)?;
        let mut back = vec![0.0; hidden.len()];
        add_product_transposed(&mut back, &logits, &values[2], CLASSES);
        back.iter_mut().zip(&hidden).filter(|(_, hidden)| **hidden <= 0.0).for_each(|(back, _)| *back = 0.0);
        let mut bias = vec![0.0; self.hidden];
        add_rows(&mut bias, &back);
        ready(1, &bias)?;
        let mut weight = vec![0.0; PIXELS * self.hidden];
        add_transposed_product(&mut weight, batch.pixels(), &back, self.hidden);
        ready(0, &weight)?;
        Ok(loss)
    }

    /// Judges by the loss over the training images and the accuracy on the held-out ones.
    fn evaluate(&self, values: &ModelValues) -> ModelEvaluation {
        let (_, mut logits) = Self::forward(values, self.train.pixels());
        let loss = cross_entropy(&mut logits, self.train.labels()) / self.train.len() as f64;
        ModelEvaluation { loss, accuracy: self.accuracy(values), distance: None }
    }

    fn accuracy(&self, values: &ModelValues) -> Option<f64> {
        let (_, logits) = Self::forward(values, self.held_out.pixels());
        let rows = logits.chunks_exact(CLASSES).zip(self.held_out.labels());
        let right = rows.filter(|(row, label)| largest(row) == **label).count();
        Some(right as f64 / self.held_out.len() as f64)
    }
}
