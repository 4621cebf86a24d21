//! A character model: an Elman network that predicts each character of a line from those before it. This file is
//! independent of ranks. The work for a line is proportional to its length.
//!
//! ```text
//! h(t) = tanh(E[x(t)] + W h(t-1) + b);  p(t) = softmax(O h(t) + c);  loss = -Σ ln p(t)[x(t+1)]
//! ```
//! Source: Elman, "Finding structure in time" (Cognitive Science 14, 1990); gradients by backpropagation through time.

use hexagram::sampler::loader::SampleGenerator;
use std::ops::Range;

/// Units of the hidden layer.
const HIDDEN: usize = 24;
/// The longest gradient, per character, that a step follows.
const CLIP: f32 = 1.0;

/// The parameters of the network, in one piece, so that one all-reduce averages all gradients.
pub(crate) struct Model {
    characters: usize,
    parameters: Vec<f32>,
}

/// Ranges of the network's parts among its parameters.
struct Parts {
    embedding: Range<usize>,
    recurrent: Range<usize>,
    bias: Range<usize>,
    output: Range<usize>,
    output_bias: Range<usize>,
}

impl Model {
    /// Creates a network for this many characters, with random parameters; the same on every rank.
    pub(crate) fn new(characters: usize, seed: u64) -> Self {
        let mut generator = SampleGenerator::new(seed, 0, 0);
        let size = parts(characters).output_bias.end;
        let mut draw = || (2.0 * generator.next_f64() - 1.0) as f32 / (HIDDEN as f32).sqrt();
        Model { characters, parameters: (0..size).map(|_| draw()).collect() }
    }

    /// Returns the number of parameters.
    pub(crate) fn size(&self) -> usize {
        self.parameters.len()
    }

    /// Adds the gradient of a line's loss, and returns the loss, in nats. A line begins and ends with character 0,
    /// which occurs nowhere else.
    pub(crate) fn backward(&self, line: &[u8], gradient: &mut [f32]) -> f32 {
        let inputs = &line[..line.len() - 1];
        let targets = &line[1..];
        let (hidden, mut errors, loss) = self.forward(inputs, targets);
        let Parts { embedding, recurrent, bias, output, output_bias } = parts(self.characters);
        let mut carried = [0.0; HIDDEN];
        for (at, input) in inputs.iter().enumerate().rev() {
            let before = &hidden[at * HIDDEN..][..HIDDEN];
            let after = &hidden[(at + 1) * HIDDEN..][..HIDDEN];
            let error = &mut errors[at * self.characters..][..self.characters];
            let mut slope = carried;
            for (row, error) in error.iter().enumerate() {
                let weights = output.start + row * HIDDEN..output.start + (row + 1) * HIDDEN;
                add(&mut slope, *error, &self.parameters[weights.clone()]);
                add(&mut gradient[weights], *error, after);
            }
            add(&mut gradient[output_bias.clone()], 1.0, error);
            slope.iter_mut().zip(after).for_each(|(slope, after)| *slope *= 1.0 - after * after);
            carried = [0.0; HIDDEN];
            for (row, slope) in slope.iter().enumerate() {
                let weights = recurrent.start + row * HIDDEN..recurrent.start + (row + 1) * HIDDEN;
                add(&mut carried, *slope, &self.parameters[weights.clone()]);
                add(&mut gradient[weights], *slope, before);
            }
            add(&mut gradient[embedding.start + usize::from(*input) * HIDDEN..][..HIDDEN], 1.0, &slope);
            add(&mut gradient[bias.clone()], 1.0, &slope);
        }
        loss
    }

    /// Returns the hidden layer before and after every character, the error of every prediction, and the loss.
    fn forward(&self, inputs: &[u8], targets: &[u8]) -> (Vec<f32>, Vec<f32>, f32) {
        let Parts { embedding, recurrent, bias, output, output_bias } = parts(self.characters);
        let part = |range: &Range<usize>| &self.parameters[range.clone()];
        let mut hidden = vec![0.0; (inputs.len() + 1) * HIDDEN];
        let mut errors = Vec::with_capacity(inputs.len() * self.characters);
        let mut loss = 0.0;
        for (at, (input, target)) in inputs.iter().zip(targets).enumerate() {
            let (before, after) = hidden[at * HIDDEN..][..2 * HIDDEN].split_at_mut(HIDDEN);
            let embedded = &part(&embedding)[usize::from(*input) * HIDDEN..][..HIDDEN];
            for (row, after) in after.iter_mut().enumerate() {
                let weights = &part(&recurrent)[row * HIDDEN..][..HIDDEN];
                *after = (embedded[row] + part(&bias)[row] + dot(weights, before)).tanh();
            }
            let logits = part(&output).chunks_exact(HIDDEN).zip(part(&output_bias));
            let start = errors.len();
            errors.extend(logits.map(|(weights, bias)| bias + dot(weights, after)));
            loss += softmax_error(&mut errors[start..], usize::from(*target));
        }
        (hidden, errors, loss)
    }

    /// Follows a gradient that has been divided by the number of characters.
    pub(crate) fn descend(&mut self, gradient: &[f32], rate: f32) {
        let length = dot(gradient, gradient).sqrt();
        let rate = if length > CLIP { rate * CLIP / length } else { rate };
        add(&mut self.parameters, -rate, gradient);
    }
}

fn parts(characters: usize) -> Parts {
    let sizes = [characters * HIDDEN, HIDDEN * HIDDEN, HIDDEN, characters * HIDDEN, characters];
    let mut end = 0;
    let [embedding, recurrent, bias, output, output_bias] = sizes.map(|size| {
        end += size;
        end - size..end
    });
    Parts { embedding, recurrent, bias, output, output_bias }
}

/// Makes logits their probabilities less 1 for the target, the gradient of the loss, which is returned.
fn softmax_error(logits: &mut [f32], target: usize) -> f32 {
    let highest = logits.iter().copied().fold(f32::MIN, f32::max);
    logits.iter_mut().for_each(|logit| *logit = (*logit - highest).exp());
    let sum: f32 = logits.iter().sum();
    logits.iter_mut().for_each(|logit| *logit /= sum);
    let loss = -logits[target].max(f32::MIN_POSITIVE).ln();
    logits[target] -= 1.0;
    loss
}

fn dot(one: &[f32], other: &[f32]) -> f32 {
    one.iter().zip(other).map(|(one, other)| one * other).sum()
}

/// Adds a multiple: `to += factor * from`.
fn add(to: &mut [f32], factor: f32, from: &[f32]) {
    to.iter_mut().zip(from).for_each(|(to, from)| *to += factor * from);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gradient_is_the_slope_of_the_loss() {
        let mut model = Model::new(5, 1);
        let line = [0, 3, 1, 4, 4, 2, 1, 0];
        let mut gradient = vec![0.0; model.size()];
        model.backward(&line, &mut gradient);
        let mut ignored = vec![0.0; model.size()];
        for at in (0..model.size()).step_by(17) {
            const STEP: f32 = 1e-2;
            let loss_at = |model: &mut Model, change: f32, ignored: &mut [f32]| {
                let kept = model.parameters[at];
                model.parameters[at] += change;
                let loss = model.backward(&line, ignored);
                model.parameters[at] = kept;
                loss
            };
            let more = loss_at(&mut model, STEP, &mut ignored);
            let less = loss_at(&mut model, -STEP, &mut ignored);
            let slope = (more - less) / (2.0 * STEP);
            assert!((slope - gradient[at]).abs() < 2e-3, "{at}: {slope} {}", gradient[at]);
        }
    }

    #[test]
    fn training_lowers_the_loss() {
        let mut model = Model::new(4, 2);
        let line = [0, 1, 2, 3, 1, 2, 3, 1, 2, 3, 0];
        let mut step = || {
            let mut gradient = vec![0.0; model.size()];
            let loss = model.backward(&line, &mut gradient) / 10.0;
            gradient.iter_mut().for_each(|slope| *slope /= 10.0);
            model.descend(&gradient, 0.5);
            loss
        };
        let first = step();
        let last = (0..200).map(|_| step()).last().unwrap();
        assert!(first > 1.0 && last < 0.2, "{first} {last}");
    }
}
