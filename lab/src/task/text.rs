//! Characters to be predicted from those before them, by a small transformer: the task with attention, norms,
//! embeddings and matrices of many shapes.
//!
//! The text is from an early state of this project's own files: `lab/data/pages.txt`. Its pages are of different
//! kinds (prose, tables, a shell script, Rust), and a window's label is its page, so that a partition by label gives
//! ranks different languages.

mod transformer;

use super::{GradientReady, ModelEvaluation, ModelValues, Task, largest, parameter};
use crate::arithmetic::cross_entropy;
use crate::random::Random;
use hexagram::{Parameter, Result};
use std::collections::BTreeSet;
use transformer::{CONTEXT, Transformer};

const PAGES: &str = include_str!("../../data/pages.txt");
/// Characters from one window to the next.
const STRIDE: usize = 12;
/// One of this many blocks is held out.
const HELD_OUT_EVERY: usize = 5;
/// Windows in a block, which is held out or trained on as a whole.
const BLOCK: usize = 10;
/// One of this many held-out windows is evaluated.
const EVALUATED_EVERY: usize = 6;

/// Next characters to be predicted, in batches of 2 windows of 24 characters for each rank.
#[derive(Debug)]
pub struct TextTask {
    transformer: Transformer,
    /// Pages as numbers of characters, one after the other.
    characters: Vec<usize>,
    /// Beginning of each window that is trained on.
    train: Vec<usize>,
    labels: Vec<usize>,
    held_out: Vec<usize>,
}

impl Default for TextTask {
    fn default() -> Self {
        Self::new()
    }
}

impl TextTask {
    /// Creates the task of the pages that are compiled in.
    pub fn new() -> Self {
        let pages: Vec<&str> = PAGES.split('\u{c}').collect();
        let alphabet: Vec<char> = pages.concat().chars().collect::<BTreeSet<_>>().into_iter().collect();
        let number = |character: char| alphabet.binary_search(&character).unwrap_or_default();
        let mut text = TextTask {
            transformer: Transformer { symbols: alphabet.len() },
            characters: Vec::new(),
            train: Vec::new(),
            labels: Vec::new(),
            held_out: Vec::new(),
        };
        for (label, page) in pages.iter().enumerate() {
            text.add(label, page.chars().map(number).collect());
        }
        text
    }

    /// Adds a page's windows: most blocks to train on, the others held out. Windows at the border of two blocks
    /// overlap by half.
    fn add(&mut self, label: usize, page: Vec<usize>) {
        let first = self.characters.len();
        let windows = (page.len() - CONTEXT - 1) / STRIDE;
        for window in 0..windows {
            let begin = first + window * STRIDE;
            if (window / BLOCK).is_multiple_of(HELD_OUT_EVERY) {
                self.held_out.push(begin);
            } else {
                self.train.push(begin);
                self.labels.push(label);
            }
        }
        self.characters.extend(page);
    }

    /// Returns the characters of some windows, and the next of each.
    fn windows(&self, begins: impl Iterator<Item = usize> + Clone) -> (Vec<usize>, Vec<usize>) {
        let of = |ahead: usize| {
            let window = move |begin: usize| &self.characters[begin + ahead..][..CONTEXT];
            begins.clone().flat_map(window).copied().collect()
        };
        (of(0), of(1))
    }
}

impl Task for TextTask {
    fn name(&self) -> &str {
        "text"
    }

    fn parameters(&self) -> Vec<Parameter> {
        self.transformer.shapes().into_iter().map(|(name, shape)| parameter(name, &shape)).collect()
    }

    fn initial(&self, seed: u64) -> ModelValues {
        let mut random = Random::new(seed);
        let of = |(name, shape): (&str, Vec<usize>)| -> Vec<f32> {
            match shape[..] {
                [count] if name.ends_with("gain") => vec![1.0; count],
                [count] => vec![0.0; count],
                _ if name.starts_with("embed") => random.uniform(shape.iter().product(), 0.5),
                _ => random.uniform(shape.iter().product(), (3.0 / shape[0] as f64).sqrt()),
            }
        };
        self.transformer.shapes().into_iter().map(of).collect()
    }

    fn labels(&self) -> &[usize] {
        &self.labels
    }

    fn batch(&self) -> Option<usize> {
        Some(2)
    }

    fn gradient(
        &self,
        values: &ModelValues,
        samples: &[usize],
        ready: &mut GradientReady<'_>,
    ) -> Result<f64> {
        let (inputs, targets) = self.windows(samples.iter().map(|&sample| self.train[sample]));
        let passes = self.transformer.forward(values, &inputs);
        let mut logits = passes.logits.clone();
        let loss = cross_entropy(&mut logits, &targets) / targets.len() as f64;
        self.transformer.backward(values, &inputs, &passes, &logits, ready)?;
        Ok(loss)
    }

    /// Judges by the loss and the accuracy on a part of the held-out windows.
    fn evaluate(&self, values: &ModelValues) -> ModelEvaluation {
        let (inputs, targets) = self.windows(self.held_out.iter().copied().step_by(EVALUATED_EVERY));
        let mut logits = self.transformer.forward(values, &inputs).logits;
        let rows = logits.chunks_exact(self.transformer.symbols).zip(&targets);
        let right = rows.filter(|(row, target)| largest(row) == **target).count();
        let loss = cross_entropy(&mut logits, &targets) / targets.len() as f64;
        ModelEvaluation { loss, accuracy: Some(right as f64 / targets.len() as f64), distance: None }
    }
}
