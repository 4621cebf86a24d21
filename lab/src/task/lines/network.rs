//! An Elman network that predicts each character of a line from those before it.
//!
//! ```text
//! h(t) = tanh(E[x(t)] + W h(t-1) + b);  p(t) = softmax(O h(t) + c);  loss = -Σ ln p(t)[x(t+1)]
//! ```
//! Source: Elman, "Finding structure in time" (Cognitive Science 14, 1990); gradients by backpropagation through time.

use crate::arithmetic::{
    add_product, add_product_transposed, add_rows, add_scaled, add_transposed_product, cross_entropy, dot,
    repeated,
};
use crate::task::ModelValues;

/// Units of the hidden layer.
pub(super) const HIDDEN: usize = 24;

/// Network for a number of different symbols.
#[derive(Debug)]
pub(super) struct Network {
    pub(super) symbols: usize,
}

impl Network {
    /// Returns the names and shapes of the parameters: E, W, b, O and c.
    pub(super) fn shapes(&self) -> [(&'static str, Vec<usize>); 5] {
        let symbols = self.symbols;
        [
            ("embedding", vec![symbols, HIDDEN]),
            ("recurrent.weight", vec![HIDDEN, HIDDEN]),
            ("recurrent.bias", vec![HIDDEN]),
            ("out.weight", vec![symbols, HIDDEN]),
            ("out.bias", vec![symbols]),
        ]
    }

    /// Returns the hidden layer before the first character and after each, and the logits of the characters after them.
    pub(super) fn forward(&self, values: &ModelValues, inputs: &[usize]) -> (Vec<f32>, Vec<f32>) {
        let [embedding, recurrent, bias, out, out_bias] = std::array::from_fn(|at| &values[at]);
        let mut hidden = vec![0.0; (inputs.len() + 1) * HIDDEN];
        for (at, input) in inputs.iter().enumerate() {
            let (before, after) = hidden[at * HIDDEN..][..2 * HIDDEN].split_at_mut(HIDDEN);
            let embedded = &embedding[input * HIDDEN..][..HIDDEN];
            for (row, after) in after.iter_mut().enumerate() {
                let weights = &recurrent[row * HIDDEN..][..HIDDEN];
                *after = (embedded[row] + bias[row] + dot(weights, before)).tanh();
            }
        }
        let mut logits = repeated(out_bias, inputs.len());
        add_product_transposed(&mut logits, &hidden[HIDDEN..], out, HIDDEN);
        (hidden, logits)
    }

    /// Adds `share` of the gradient of a line's mean loss to `gradient`, and returns the sum of its losses.
    pub(super) fn backward(
        &self,
        values: &ModelValues,
        line: &[usize],
        share: f32,
        gradient: &mut ModelValues,
    ) -> f64 {
        let inputs = &line[..line.len() - 1];
        let (hidden, mut errors) = self.forward(values, inputs);
        let loss = cross_entropy(&mut errors, &line[1..]);
        errors.iter_mut().for_each(|error| *error *= share);
        let (before, after) = (&hidden[..inputs.len() * HIDDEN], &hidden[HIDDEN..]);
        add_rows(&mut gradient[4], &errors);
        add_transposed_product(&mut gradient[3], &errors, after, HIDDEN);
        let mut slopes = vec![0.0; after.len()];
        add_product(&mut slopes, &errors, &values[3], HIDDEN);
        let mut carried = vec![0.0; HIDDEN];
        for (slope, after) in slopes.chunks_exact_mut(HIDDEN).zip(after.chunks_exact(HIDDEN)).rev() {
            add_scaled(slope, 1.0, &carried);
            slope.iter_mut().zip(after).for_each(|(slope, after)| *slope *= 1.0 - after * after);
            carried.fill(0.0);
            add_product(&mut carried, slope, &values[1], HIDDEN);
        }
        add_rows(&mut gradient[2], &slopes);
        add_transposed_product(&mut gradient[1], &slopes, before, HIDDEN);
        for (input, slope) in inputs.iter().zip(slopes.chunks_exact(HIDDEN)) {
            add_scaled(&mut gradient[0][input * HIDDEN..][..HIDDEN], 1.0, slope);
        }
        loss
    }
}
