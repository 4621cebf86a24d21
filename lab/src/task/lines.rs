//! Lines of different lengths, of which each character is predicted from those before it: the task whose samples do not
//! cost the same, so that it matters which rank has which. The work for a line is proportional to its length.

mod network;
mod text;

pub use text::LinesText;

use super::{GradientReady, ModelEvaluation, ModelValues, Task, largest, parameter};
use crate::arithmetic::cross_entropy;
use crate::random::Random;
use hexagram::physical::{hash, runtime};
use hexagram::{Parameter, Result};
use network::Network;
use std::time::Duration;

/// One line of this many is held out.
const HELD_OUT_EVERY: usize = 5;

/// Lines whose next characters are to be predicted, in batches of 8 for each rank.
#[derive(Debug)]
pub struct LinesTask {
    network: Network,
    train: Vec<Vec<usize>>,
    held_out: Vec<Vec<usize>>,
    labels: Vec<usize>,
    /// Time that a rank's device takes for a character; zero for that of the processor.
    device: Duration,
}

impl LinesTask {
    /// Creates the task of a text. A rank that computes a gradient takes at least `device` for each character, as if it
    /// had a device of its own.
    pub fn new(text: LinesText, device: Duration) -> Self {
        let network = Network { symbols: text.symbols };
        let (held_out, train): (Vec<_>, Vec<_>) =
            text.lines.into_iter().enumerate().partition(|(index, _)| index % HELD_OUT_EVERY == 0);
        let [train, held_out] =
            [train, held_out].map(|lines| lines.into_iter().map(|(_, line)| line).collect::<Vec<_>>());
        LinesTask { network, labels: vec![0; train.len()], train, held_out, device }
    }

    /// Returns the number of characters to be predicted in each line that is trained on. The end of a line is one.
    pub fn costs(&self) -> Vec<f64> {
        self.train.iter().map(|line| (line.len() - 1) as f64).collect()
    }

    /// Returns a hash of all lines.
    pub fn digest(&self) -> u64 {
        let all = self.train.iter().chain(&self.held_out).flatten();
        hash::of_bytes(hash::START, all.map(|symbol| *symbol as u8))
    }

    /// Returns the loss of some lines, the number of predicted characters, and the number of correct ones.
    fn judge<'a>(
        &self,
        values: &ModelValues,
        lines: impl Iterator<Item = &'a Vec<usize>>,
    ) -> (f64, [usize; 2]) {
        let mut told = (0.0, [0, 0]);
        for line in lines {
            let (inputs, targets) = (&line[..line.len() - 1], &line[1..]);
            let (_, mut logits) = self.network.forward(values, inputs);
            let rows = logits.chunks_exact(self.network.symbols).zip(targets);
            told.1[1] += rows.filter(|(row, target)| largest(row) == **target).count();
            told.1[0] += targets.len();
            told.0 += cross_entropy(&mut logits, targets);
        }
        told
    }
}

impl Task for LinesTask {
    fn name(&self) -> &str {
        "lines"
    }

    fn parameters(&self) -> Vec<Parameter> {
        self.network.shapes().iter().map(|(name, shape)| parameter(name, shape)).collect()
    }

    fn initial(&self, seed: u64) -> ModelValues {
        let mut random = Random::new(seed);
        let bound = 1.0 / (network::HIDDEN as f64).sqrt();
        let shapes = self.network.shapes();
        shapes.iter().map(|(_, shape)| random.uniform(shape.iter().product(), bound)).collect()
    }

    fn labels(&self) -> &[usize] {
        &self.labels
    }

    fn batch(&self) -> Option<usize> {
        Some(8)
    }

    /// Computes the mean gradient of all characters of the lines.
    fn gradient(
        &self,
        values: &ModelValues,
        samples: &[usize],
        ready: &mut GradientReady<'_>,
    ) -> Result<f64> {
        let began = runtime::now();
        let characters: usize = samples.iter().map(|&sample| self.train[sample].len() - 1).sum();
        let mut gradient: ModelValues = values.iter().map(|values| vec![0.0; values.len()]).collect();
        let mut loss = 0.0;
        for &sample in samples {
            let line = &self.train[sample];
            let share = (line.len() - 1) as f32 / characters as f32;
            loss += self.network.backward(values, line, share, &mut gradient);
        }
        runtime::sleep(self.device.mul_f64(characters as f64).saturating_sub(began.elapsed()));
        (0..gradient.len()).rev().try_for_each(|at| ready(at, &gradient[at]))?;
        Ok(loss / characters as f64)
    }

    /// Judges by the loss of a character over the training lines and the accuracy on the held-out ones.
    fn evaluate(&self, values: &ModelValues) -> ModelEvaluation {
        let (loss, [characters, _]) = self.judge(values, self.train.iter());
        ModelEvaluation { loss: loss / characters as f64, accuracy: self.accuracy(values), distance: None }
    }

    fn accuracy(&self, values: &ModelValues) -> Option<f64> {
        let (_, [characters, right]) = self.judge(values, self.held_out.iter());
        Some(right as f64 / characters as f64)
    }
}
