//! Layout of the matrices and vectors of a bucket in the momenta, factors and messages of Dion, and the arithmetic of a
//! step.
//!
//! ```text
//! first message     P of every matrix that is sent in factors, then the gradients of all other tensors
//! second message    R of every matrix that is sent in factors
//! right factors     Q of every matrix, those that are sent in factors first
//! ```

use crate::plugin::Tensor;
use hexagram_logical::codec::factors::{add_product, give_direction, orthonormalize, project, project_back};
use hexagram_logical::encoding::mix;
use hexagram_logical::hash;
use std::ops::Range;

/// Number added to the length of a column before the division by it.
const EPSILON: f64 = 1e-8;

/// Order of a bucket's tensors in messages and factors.
pub(super) struct FactorLayout {
    /// Matrices that are sent in factors.
    sent: Vec<MatrixRange>,
    /// Matrices that send their gradients.
    whole: Vec<MatrixRange>,
    vectors: Vec<Plain>,
    first: usize,
    second: usize,
    right: usize,
}

/// Places of a matrix.
struct MatrixRange {
    elements: Range<usize>,
    rows: usize,
    cols: usize,
    /// Place in the first message: of P, or of the gradient.
    first: Range<usize>,
    /// Place of Q among the right factors, and of R in the second message, if it is sent.
    right: Range<usize>,
    /// Seed of columns without a direction.
    seed: u64,
}

/// Places of a vector, in the bucket and in the first message.
struct Plain {
    elements: Range<usize>,
    first: Range<usize>,
}

/// Coefficients of Lion.
#[derive(Clone, Copy)]
pub(super) struct LionCoefficients {
    pub(super) beta1: f64,
    pub(super) beta2: f64,
}

impl FactorLayout {
    /// Creates the plan for steps whose rank is a fraction of the smaller side of each matrix.
    pub(super) fn new(tensors: &[Tensor], fraction: f64) -> Self {
        let mut plan =
            FactorLayout { sent: vec![], whole: vec![], vectors: vec![], first: 0, second: 0, right: 0 };
        let saves = |tensor: &Tensor| {
            shape(tensor).is_some_and(|(rows, cols)| rank(rows, cols, fraction) * (rows + cols) < rows * cols)
        };
        for tensor in tensors.iter().filter(|tensor| saves(tensor)) {
            plan.add_matrix(tensor, fraction, true);
        }
        plan.second = plan.right;
        for tensor in tensors.iter().filter(|tensor| !saves(tensor)) {
            if shape(tensor).is_some() {
                plan.add_matrix(tensor, fraction, false);
            } else {
                let elements = tensor.elements.clone();
                let first = plan.first..plan.first + elements.len();
                plan.first = first.end;
                plan.vectors.push(Plain { elements, first });
            }
        }
        plan
    }

    fn add_matrix(&mut self, tensor: &Tensor, fraction: f64, sent: bool) {
        let Some((rows, cols)) = shape(tensor) else { return };
        let rank = rank(rows, cols, fraction);
        let first = self.first..self.first + if sent { rank * rows } else { rows * cols };
        let right = self.right..self.right + rank * cols;
        self.first = first.end;
        self.right = right.end;
        let seed = hash::of_bytes(hash::START, tensor.name.bytes());
        let elements = tensor.elements.clone();
        let matrix = MatrixRange { elements, rows, cols, first, right, seed };
        if sent { self.sent.push(matrix) } else { self.whole.push(matrix) }
    }

    /// Returns the number of elements of the first message.
    pub(super) fn first_len(&self) -> usize {
        self.first
    }

    /// Returns the number of elements of the second message.
    pub(super) fn second_len(&self) -> usize {
        self.second
    }

    /// Returns the number of elements of all Q.
    pub(super) fn right_len(&self) -> usize {
        self.right
    }

    /// Returns the multiplications and additions of each part of a step: [`FactorLayout::project`], [`FactorLayout::project_back`] and
    /// [`FactorLayout::direct`].
    pub(super) fn operations(&self) -> [u64; 3] {
        let product = |matrix: &MatrixRange| 2 * (matrix.rows * matrix.right.len()) as u64;
        // Every column is made orthogonal to those before it, twice.
        let orthonormal = |matrix: &MatrixRange| {
            let rank = (matrix.right.len() / matrix.cols) as u64;
            4 * rank * rank * matrix.rows as u64
        };
        let sent: u64 = self.sent.iter().map(product).sum();
        let whole: u64 = self.whole.iter().map(product).sum();
        let matrices = self.sent.iter().chain(&self.whole);
        [sent, 2 * sent + 3 * whole + matrices.map(orthonormal).sum::<u64>(), sent + whole]
    }

    /// Computes the first message: `M ← M + g; P ← M Q` of matrices that are sent in factors, and the gradients of the
    /// rest.
    pub(super) fn project(&self, g: &[f32], momentum: &mut [f32], right: &mut [f32], message: &mut [f32]) {
        for matrix in self.sent.iter().chain(&self.whole) {
            let columns = right[matrix.right.clone()].chunks_exact_mut(matrix.cols);
            columns.enumerate().for_each(|(c, q)| give_direction(q, mix(matrix.seed ^ mix(c as u64))));
        }
        for matrix in &self.sent {
            let m = &mut momentum[matrix.elements.clone()];
            m.iter_mut().zip(&g[matrix.elements.clone()]).for_each(|(m, g)| *m += g);
            project(m, matrix.cols, &right[matrix.right.clone()], &mut message[matrix.first.clone()]);
        }
        let whole = self.whole.iter().map(|matrix| (&matrix.elements, &matrix.first));
        let vectors = self.vectors.iter().map(|vector| (&vector.elements, &vector.first));
        for (elements, first) in whole.chain(vectors) {
            message[first.clone()].copy_from_slice(&g[elements.clone()]);
        }
    }

    /// Computes the second message, `R ← Mᵀ P` of matrices that are sent in factors, then `M ← M − used · P Rᵀ`, and
    /// returns all P, orthonormal. R of the other matrices replaces their Q.
    pub(super) fn project_back(
        &self,
        mean: &[f32],
        used: f64,
        momentum: &mut [f32],
        right: &mut [f32],
        message: &mut [f32],
    ) -> Vec<Vec<f32>> {
        let mut left = Vec::new();
        let mut turn = |matrix: &MatrixRange, p: &[f32], m: &mut [f32], r: &mut [f32]| {
            let mut unit = vec![0.0; p.len()];
            orthonormalize(p, matrix.rows, &mut unit);
            project_back(m, matrix.cols, &unit, r);
            add_product(-used as f32, &unit, r, matrix.cols, m);
            left.push(unit);
        };
        for matrix in &self.sent {
            let m = &mut momentum[matrix.elements.clone()];
            turn(matrix, &mean[matrix.first.clone()], m, &mut message[matrix.right.clone()]);
        }
        for matrix in &self.whole {
            let m = &mut momentum[matrix.elements.clone()];
            m.iter_mut().zip(&mean[matrix.first.clone()]).for_each(|(m, g)| *m += g);
            let q = &mut right[matrix.right.clone()];
            let mut p = vec![0.0; q.len() / matrix.cols * matrix.rows];
            project(m, matrix.cols, q, &mut p);
            turn(matrix, &p, m, q);
        }
        left
    }

    /// Stores the directions of matrices: `Q ← R, columns normalized; direction ← √(rows / columns) P Qᵀ`.
    pub(super) fn direct(&self, mean: &[f32], left: &[Vec<f32>], right: &mut [f32], to: &mut [f32]) {
        right[..mean.len()].copy_from_slice(mean);
        for (matrix, p) in self.sent.iter().chain(&self.whole).zip(left) {
            let q = &mut right[matrix.right.clone()];
            q.chunks_exact_mut(matrix.cols).for_each(normalize);
            let scale = (matrix.rows as f64 / matrix.cols as f64).sqrt() as f32;
            let to = &mut to[matrix.elements.clone()];
            to.fill(0.0);
            add_product(scale, p, q, matrix.cols, to);
        }
    }

    /// Stores the directions of vectors: the signs of Lion.
    pub(super) fn direct_vectors(
        &self,
        mean: &[f32],
        lion: LionCoefficients,
        momentum: &mut [f32],
        to: &mut [f32],
    ) {
        let [weight, decay] = [lion.beta1, lion.beta2].map(|beta| [beta as f32, (1.0 - beta) as f32]);
        for Plain { elements, first } in &self.vectors {
            let places = to[elements.clone()].iter_mut().zip(&mut momentum[elements.clone()]);
            for ((to, m), g) in places.zip(&mean[first.clone()]) {
                let c = weight[0] * *m + weight[1] * g;
                *to = if c == 0.0 { 0.0 } else { c.signum() };
                *m = decay[0] * *m + decay[1] * g;
            }
        }
    }
}

/// Returns the dimensions of a tensor that is stepped as a matrix.
fn shape(tensor: &Tensor) -> Option<(usize, usize)> {
    tensor.matrix().filter(|_| !tensor.elements.is_empty())
}

/// Returns the rank of the steps of a matrix.
fn rank(rows: usize, cols: usize, fraction: f64) -> usize {
    let side = rows.min(cols);
    ((fraction * side as f64).ceil() as usize).clamp(1, side)
}

/// Divides a column by its length.
fn normalize(column: &mut [f32]) {
    let length = column.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt() + EPSILON;
    column.iter_mut().for_each(|x| *x = (f64::from(*x) / length) as f32);
}
