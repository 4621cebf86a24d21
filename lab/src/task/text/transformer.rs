//! A transformer of one layer with its gradient written by hand.
//!
//! ```text
//! x = E[characters] + P
//! x ← x + attention(norm(x) W_qkv) W_o        two heads, causal
//! x ← x + relu(norm(x) W₁ + b₁) W₂ + b₂
//! logits = norm(x) W_out                      norm(x) = gain · x / √(mean x² + ε)
//! ```

use crate::arithmetic::{
    add_product, add_product_transposed, add_rows, add_scaled, add_transposed_product, dot, repeated,
};
use crate::task::{GradientReady, ModelValues};
use hexagram::Result;

/// Characters of a window.
pub(super) const CONTEXT: usize = 24;
/// Width of the model.
const WIDTH: usize = 32;
/// Width of the layer in the middle of the feed-forward part.
const INNER: usize = 64;
const HEADS: usize = 2;
/// Width of a head.
const HEAD: usize = WIDTH / HEADS;
/// Least mean square that a norm divides by.
const EPSILON: f32 = 1e-5;

/// Numbers of the parameters.
const EMBED: usize = 0;
const POSITIONS: usize = 1;
const GAIN_1: usize = 2;
const QKV: usize = 3;
const JOIN: usize = 4;
const GAIN_2: usize = 5;
const IN_WEIGHT: usize = 6;
const IN_BIAS: usize = 7;
const OUT_WEIGHT: usize = 8;
const OUT_BIAS: usize = 9;
const GAIN_3: usize = 10;
const LOGITS: usize = 11;

/// Shape of a transformer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Transformer {
    /// Number of different characters.
    pub(super) symbols: usize,
}

/// Results of a forward pass that the backward pass needs.
pub(super) struct ForwardResults {
    x: Vec<f32>,
    normed: Vec<f32>,
    qkv: Vec<f32>,
    /// Attention of each sequence, head and character to those of its sequence.
    attention: Vec<f32>,
    mixed: Vec<f32>,
    x_2: Vec<f32>,
    normed_2: Vec<f32>,
    inner: Vec<f32>,
    x_3: Vec<f32>,
    normed_3: Vec<f32>,
    pub(super) logits: Vec<f32>,
}

impl Transformer {
    /// Returns names and shapes of the parameters.
    pub(super) fn shapes(self) -> Vec<(&'static str, Vec<usize>)> {
        vec![
            ("embed.characters", vec![self.symbols, WIDTH]),
            ("embed.positions", vec![CONTEXT, WIDTH]),
            ("attention.gain", vec![WIDTH]),
            ("attention.qkv", vec![WIDTH, 3 * WIDTH]),
            ("attention.out", vec![WIDTH, WIDTH]),
            ("layer.gain", vec![WIDTH]),
            ("layer.in.weight", vec![WIDTH, INNER]),
            ("layer.in.bias", vec![INNER]),
            ("layer.out.weight", vec![INNER, WIDTH]),
            ("layer.out.bias", vec![WIDTH]),
            ("logits.gain", vec![WIDTH]),
            ("logits.weight", vec![WIDTH, self.symbols]),
        ]
    }

    /// Computes the logits of the next characters of whole windows.
    pub(super) fn forward(self, values: &ModelValues, inputs: &[usize]) -> ForwardResults {
        let rows = inputs.len();
        let mut x: Vec<f32> = values[POSITIONS].repeat(rows / CONTEXT);
        for (x, &input) in x.chunks_exact_mut(WIDTH).zip(inputs) {
            add_scaled(x, 1.0, &values[EMBED][input * WIDTH..][..WIDTH]);
        }
        let normed = norm(&x, &values[GAIN_1]);
        let mut qkv = vec![0.0; rows * 3 * WIDTH];
        add_product(&mut qkv, &normed, &values[QKV], 3 * WIDTH);
        let (attention, mixed) = attend(&qkv, rows);
        let mut x_2 = x.clone();
        add_product(&mut x_2, &mixed, &values[JOIN], WIDTH);
        let normed_2 = norm(&x_2, &values[GAIN_2]);
        let mut inner = repeated(&values[IN_BIAS], rows);
        add_product(&mut inner, &normed_2, &values[IN_WEIGHT], INNER);
        inner.iter_mut().for_each(|entry| *entry = entry.max(0.0));
        let mut x_3 = x_2.clone();
        add_scaled(&mut x_3, 1.0, &repeated(&values[OUT_BIAS], rows));
        add_product(&mut x_3, &inner, &values[OUT_WEIGHT], WIDTH);
        let normed_3 = norm(&x_3, &values[GAIN_3]);
        let mut logits = vec![0.0; rows * self.symbols];
        add_product(&mut logits, &normed_3, &values[LOGITS], self.symbols);
        ForwardResults { x, normed, qkv, attention, mixed, x_2, normed_2, inner, x_3, normed_3, logits }
    }

    /// Computes the gradient from that of the logits.
    pub(super) fn backward(
        self,
        values: &ModelValues,
        inputs: &[usize],
        passes: &ForwardResults,
        logits: &[f32],
        ready: &mut GradientReady<'_>,
    ) -> Result<()> {
        let mut back = linear_back(values, LOGITS, &passes.normed_3, logits, ready)?;
        back = norm_back(values, GAIN_3, &passes.x_3, &back, ready)?;
        // Of x₃ = x₂ + the layer of norm(x₂).
        let mut bias = vec![0.0; WIDTH];
        add_rows(&mut bias, &back);
        ready(OUT_BIAS, &bias)?;
        let mut inner = linear_back(values, OUT_WEIGHT, &passes.inner, &back, ready)?;
        inner.iter_mut().zip(&passes.inner).filter(|(_, h)| **h <= 0.0).for_each(|(back, _)| *back = 0.0);
        let mut bias = vec![0.0; INNER];
        add_rows(&mut bias, &inner);
        ready(IN_BIAS, &bias)?;
        let normed = linear_back(values, IN_WEIGHT, &passes.normed_2, &inner, ready)?;
        add_scaled(&mut back, 1.0, &norm_back(values, GAIN_2, &passes.x_2, &normed, ready)?);
        // Of x₂ = x + the attention of norm(x).
        let mixed = linear_back(values, JOIN, &passes.mixed, &back, ready)?;
        let qkv = attend_back(passes, &mixed);
        let normed = linear_back(values, QKV, &passes.normed, &qkv, ready)?;
        add_scaled(&mut back, 1.0, &norm_back(values, GAIN_1, &passes.x, &normed, ready)?);
        self.embed_back(inputs, &back, ready)
    }

    fn embed_back(self, inputs: &[usize], back: &[f32], ready: &mut GradientReady<'_>) -> Result<()> {
        let mut positions = vec![0.0; CONTEXT * WIDTH];
        add_rows(&mut positions, back);
        ready(POSITIONS, &positions)?;
        let mut characters = vec![0.0; self.symbols * WIDTH];
        for (back, &input) in back.chunks_exact(WIDTH).zip(inputs) {
            add_scaled(&mut characters[input * WIDTH..][..WIDTH], 1.0, back);
        }
        ready(EMBED, &characters)
    }
}

/// Hands over the gradient of a weight, and returns the gradient of its other factor.
fn linear_back(
    values: &ModelValues,
    weight: usize,
    input: &[f32],
    back: &[f32],
    ready: &mut GradientReady<'_>,
) -> Result<Vec<f32>> {
    let weights = &values[weight];
    let rows = match weight {
        OUT_WEIGHT => INNER,
        _ => WIDTH,
    };
    let columns = weights.len() / rows;
    let mut gradient = vec![0.0; weights.len()];
    add_transposed_product(&mut gradient, input, back, columns);
    ready(weight, &gradient)?;
    let mut of_input = vec![0.0; input.len()];
    add_product_transposed(&mut of_input, back, weights, columns);
    Ok(of_input)
}

/// Returns 1 / √(mean x² + ε).
fn inverse_root(x: &[f32]) -> f32 {
    1.0 / (dot(x, x) / x.len() as f32 + EPSILON).sqrt()
}

fn norm(x: &[f32], gain: &[f32]) -> Vec<f32> {
    let row = |x: &[f32]| -> Vec<f32> {
        let scale = inverse_root(x);
        x.iter().zip(gain).map(|(x, gain)| x * scale * gain).collect()
    };
    x.chunks_exact(gain.len()).flat_map(row).collect()
}

/// Hands over the gradient of a norm's gain, and returns that of its input.
fn norm_back(
    values: &ModelValues,
    gain: usize,
    x: &[f32],
    back: &[f32],
    ready: &mut GradientReady<'_>,
) -> Result<Vec<f32>> {
    let mut of_gain = vec![0.0; WIDTH];
    let mut of_x = Vec::with_capacity(x.len());
    for (x, back) in x.chunks_exact(WIDTH).zip(back.chunks_exact(WIDTH)) {
        let scale = inverse_root(x);
        let scaled: Vec<f32> = back.iter().zip(&values[gain]).map(|(back, gain)| back * gain).collect();
        let along = dot(&scaled, x) * scale.powi(3) / WIDTH as f32;
        of_x.extend(scaled.iter().zip(x).map(|(scaled, x)| scaled * scale - along * x));
        of_gain.iter_mut().zip(x).zip(back).for_each(|((sum, x), back)| *sum += x * scale * back);
    }
    ready(gain, &of_gain)?;
    Ok(of_x)
}

/// Returns the offset in `qkv` of the query of a character and head. The key follows [`WIDTH`] after it, the value
/// twice that.
fn place(row: usize, head: usize) -> usize {
    row * 3 * WIDTH + head * HEAD
}

/// Returns, for each row of attention, the first row of its sequence, its head, and its own row.
fn places(rows: usize) -> impl Iterator<Item = (usize, usize, usize)> {
    (0..rows / CONTEXT).flat_map(|sequence| {
        let first = sequence * CONTEXT;
        (0..HEADS).flat_map(move |head| (first..first + CONTEXT).map(move |row| (first, head, row)))
    })
}

/// Returns the attention of each character to those before it and itself, and the values that it mixes.
fn attend(qkv: &[f32], rows: usize) -> (Vec<f32>, Vec<f32>) {
    let scale = 1.0 / (HEAD as f32).sqrt();
    let mut attention = vec![0.0; rows * HEADS * CONTEXT];
    let mut mixed = vec![0.0; rows * WIDTH];
    for ((first, head, row), weights) in places(rows).zip(attention.chunks_exact_mut(CONTEXT)) {
        let query = &qkv[place(row, head)..][..HEAD];
        let seen = row - first + 1;
        for (other, weight) in weights[..seen].iter_mut().enumerate() {
            *weight = scale * dot(query, &qkv[place(first + other, head) + WIDTH..][..HEAD]);
        }
        let most = weights[..seen].iter().copied().fold(f32::NEG_INFINITY, f32::max);
        weights[..seen].iter_mut().for_each(|weight| *weight = (*weight - most).exp());
        let sum: f32 = weights[..seen].iter().sum();
        weights[..seen].iter_mut().for_each(|weight| *weight /= sum);
        let out = &mut mixed[row * WIDTH + head * HEAD..][..HEAD];
        for (other, weight) in weights[..seen].iter().enumerate() {
            add_scaled(out, *weight, &qkv[place(first + other, head) + 2 * WIDTH..][..HEAD]);
        }
    }
    (attention, mixed)
}

/// Returns the gradient of queries, keys and values from that of attention's output.
fn attend_back(passes: &ForwardResults, mixed: &[f32]) -> Vec<f32> {
    let qkv = &passes.qkv;
    let scale = 1.0 / (HEAD as f32).sqrt();
    let mut back = vec![0.0; qkv.len()];
    let rows = mixed.len() / WIDTH;
    for ((first, head, row), weights) in places(rows).zip(passes.attention.chunks_exact(CONTEXT)) {
        let out = &mixed[row * WIDTH + head * HEAD..][..HEAD];
        let seen = row - first + 1;
        let mut of_weights = [0.0f32; CONTEXT];
        for other in 0..seen {
            let value = place(first + other, head) + 2 * WIDTH;
            of_weights[other] = dot(out, &qkv[value..][..HEAD]);
            add_scaled(&mut back[value..][..HEAD], weights[other], out);
        }
        let mean = dot(&of_weights[..seen], &weights[..seen]);
        for other in 0..seen {
            let of_score = scale * weights[other] * (of_weights[other] - mean);
            let query = place(row, head);
            let key = place(first + other, head) + WIDTH;
            add_scaled(&mut back[query..][..HEAD], of_score, &qkv[key..][..HEAD]);
            add_scaled(&mut back[key..][..HEAD], of_score, &qkv[query..][..HEAD]);
        }
    }
    back
}
