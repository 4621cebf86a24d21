//! Handwritten digits and a net of one hidden layer, with its gradient written by hand: real data, on which accuracy
//! means something, in some ten microseconds a sample.
//!
//! ```text
//! h = relu(x W₁ + b₁)      64 pixels → 24
//! y = softmax(h W₂ + b₂)   24 → 10 digits
//! ```
//!
//! Source of the images: Alpaydin and Kaynak, "Optical Recognition of Handwritten Digits", UCI Machine Learning
//! Repository, 1998; see `lab/data/README.md`.

use super::{Evaluation, Ready, Task, Values, largest, parameter};
use crate::arithmetic::{
    add_product, add_product_transposed, add_rows, add_transposed_product, cross_entropy, repeated,
};
use crate::random::Random;
use flate2::read::GzDecoder;
use hexagram::{Error, Parameter, Result};
use std::io::Read;

const FILE: &[u8] = include_bytes!("../../data/digits.csv.gz");
const PIXELS: usize = 64;
const HIDDEN: usize = 24;
const CLASSES: usize = 10;
/// Value of a black pixel in the file.
const INK: f32 = 16.0;
/// One image of so many is held out.
const HELD_OUT_EVERY: usize = 5;
const SHAPES: [(&str, [usize; 2]); 4] = [
    ("hidden.weight", [PIXELS, HIDDEN]),
    ("hidden.bias", [1, HIDDEN]),
    ("out.weight", [HIDDEN, CLASSES]),
    ("out.bias", [1, CLASSES]),
];

/// Digits to be recognized, in batches of 16 for each rank.
#[derive(Debug)]
pub struct Digits {
    train: Images,
    held_out: Images,
}

#[derive(Debug, Default)]
struct Images {
    pixels: Vec<f32>,
    labels: Vec<usize>,
}

impl Images {
    fn push(&mut self, pixels: &[f32], label: usize) {
        self.pixels.extend(pixels);
        self.labels.push(label);
    }

    fn pixels_of(&self, samples: &[usize]) -> Vec<f32> {
        samples.iter().flat_map(|sample| &self.pixels[sample * PIXELS..][..PIXELS]).copied().collect()
    }
}

impl Digits {
    /// Reads the images that are compiled in.
    ///
    /// # Errors
    /// [`Error::System`] if the program was built from a damaged file.
    pub fn new() -> Result<Self> {
        let mut text = String::new();
        let remedy = "build the program from an undamaged lab/data/digits.csv.gz";
        let read = GzDecoder::new(FILE).read_to_string(&mut text);
        read.map_err(|cause| Error::system("read the digits".to_owned(), cause, remedy))?;
        let mut digits = Digits { train: Images::default(), held_out: Images::default() };
        for (at, line) in text.lines().enumerate() {
            let values: Vec<f32> = line.split(',').filter_map(|value| value.parse().ok()).collect();
            if values.len() != PIXELS + 1 {
                return Err(Error::usage(format!("line {} of the digits is damaged", at + 1), remedy));
            }
            let pixels: Vec<f32> = values[..PIXELS].iter().map(|value| value / INK).collect();
            let part =
                if at.is_multiple_of(HELD_OUT_EVERY) { &mut digits.held_out } else { &mut digits.train };
            part.push(&pixels, values[PIXELS] as usize);
        }
        Ok(digits)
    }

    /// Returns the hidden layer and the logits of some images.
    fn forward(values: &Values, pixels: &[f32]) -> (Vec<f32>, Vec<f32>) {
        let rows = pixels.len() / PIXELS;
        let mut hidden = repeated(&values[1], rows);
        add_product(&mut hidden, pixels, &values[0], HIDDEN);
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
        SHAPES.map(|(name, shape)| parameter(name, &shape)).to_vec()
    }

    fn initial(&self, seed: u64) -> Values {
        let mut random = Random::new(seed);
        let of = |(_, [rows, columns]): (&str, [usize; 2])| match rows {
            1 => vec![0.0; columns],
            _ => random.uniform(rows * columns, (6.0 / rows as f64).sqrt()),
        };
        SHAPES.map(of).to_vec()
    }

    fn labels(&self) -> &[usize] {
        &self.train.labels
    }

    fn batch(&self) -> Option<usize> {
        Some(16)
    }

    fn gradient(&self, values: &Values, samples: &[usize], ready: &mut Ready<'_>) -> Result<f64> {
        let pixels = self.train.pixels_of(samples);
        let labels: Vec<usize> = samples.iter().map(|&sample| self.train.labels[sample]).collect();
        let (hidden, mut logits) = Self::forward(values, &pixels);
        let loss = cross_entropy(&mut logits, &labels) / samples.len() as f64;
        let mut out_bias = vec![0.0; CLASSES];
        add_rows(&mut out_bias, &logits);
        ready(3, &out_bias)?;
        let mut out = vec![0.0; HIDDEN * CLASSES];
        add_transposed_product(&mut out, &hidden, &logits, CLASSES);
        ready(2, &out)?;
        let mut back = vec![0.0; hidden.len()];
        add_product_transposed(&mut back, &logits, &values[2], CLASSES);
        back.iter_mut().zip(&hidden).filter(|(_, hidden)| **hidden <= 0.0).for_each(|(back, _)| *back = 0.0);
        let mut bias = vec![0.0; HIDDEN];
        add_rows(&mut bias, &back);
        ready(1, &bias)?;
        let mut weight = vec![0.0; PIXELS * HIDDEN];
        add_transposed_product(&mut weight, &pixels, &back, HIDDEN);
        ready(0, &weight)?;
        Ok(loss)
    }

    /// Judges by the loss over the training images and the accuracy on the held-out ones.
    fn evaluate(&self, values: &Values) -> Evaluation {
        let (_, mut logits) = Self::forward(values, &self.train.pixels);
        let loss = cross_entropy(&mut logits, &self.train.labels) / self.train.labels.len() as f64;
        let (_, logits) = Self::forward(values, &self.held_out.pixels);
        let rows = logits.chunks_exact(CLASSES).zip(&self.held_out.labels);
        let right = rows.filter(|(row, label)| largest(row) == **label).count();
        let accuracy = Some(right as f64 / self.held_out.labels.len() as f64);
        Evaluation { loss, accuracy, distance: None }
    }
}
