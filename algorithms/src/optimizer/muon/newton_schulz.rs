//! Orthogonalization of matrices without a decomposition: a Newton–Schulz iteration of the fifth order.
//!
//! ```text
//! X ← G / max(‖G‖, 1e-7)              Frobenius norm; Gᵀ instead of G if it has more rows than columns
//! A ← X Xᵀ                            in each round
//! X ← a X + (b A + c A²) X            a, b, c = 3.4445, −4.7750, 2.0315
//! ```
//!
//! A round replaces each singular value s of X by a s + b s³ + c s⁵ and keeps the singular vectors: after five rounds,
//! all that were not tiny are between 0.7 and 1.2. Cost: 2 m²(2n + m) operations per round for m × n elements, m ≤ n.
//! `muon.cu` has the same sums in the same order; it computes only one of the two symmetric halves of A and A².
//!
//! Source: Jordan et al., "Muon: an optimizer for hidden layers in neural networks", 2024, with these coefficients.

use crate::float_ext::{FloatExt, norm};

/// Coefficients a, b and c of the iteration.
pub(super) const COEFFICIENTS: [f64; 3] = [3.4445, -4.7750, 2.0315];
/// Smallest norm by which a matrix is divided.
const LEAST_NORM: f64 = 1e-7;
/// Number of rows of the right factor that a product processes together, few enough for a cache.
const ROWS_AT_A_TIME: usize = 64;

/// Replaces a matrix, in row-major order, by one with the same singular vectors and singular values of about 1.
pub(crate) fn orthogonalize<T: FloatExt>(matrix: &mut [T], (rows, columns): (usize, usize), rounds: u32) {
    if rows > columns {
        let mut wide = transposed(matrix, (rows, columns));
        orthogonalize(&mut wide, (columns, rows), rounds);
        matrix.copy_from_slice(&transposed(&wide, (columns, rows)));
        return;
    }
    let scale = T::of(1.0 / norm(matrix).max(LEAST_NORM));
    matrix.iter_mut().for_each(|x| *x = *x * scale);
    let [a, b, c] = COEFFICIENTS.map(T::of);
    let mut next = vec![T::ZERO; matrix.len()];
    for _ in 0..rounds {
        let mut gram = vec![T::ZERO; rows * rows];
        add_product(matrix, &transposed(matrix, (rows, columns)), columns, &mut gram);
        let mut square = vec![T::ZERO; rows * rows];
        add_product(&gram, &gram, rows, &mut square);
        gram.iter_mut().zip(&square).for_each(|(gram, square)| *gram = b * *gram + c * *square);
        next.iter_mut().zip(&*matrix).for_each(|(next, x)| *next = a * *x);
        add_product(&gram, matrix, rows, &mut next);
        matrix.copy_from_slice(&next);
    }
}

/// Returns the transpose of a matrix of rows × columns.
fn transposed<T: FloatExt>(matrix: &[T], (rows, columns): (usize, usize)) -> Vec<T> {
    let mut to = vec![T::ZERO; matrix.len()];
    for (row, elements) in matrix.chunks_exact(columns.max(1)).enumerate() {
        elements.iter().enumerate().for_each(|(column, x)| to[column * rows + row] = *x);
    }
    to
}

/// Adds the product of two matrices to a third; the first has `inner` columns, and the second `inner` rows.
fn add_product<T: FloatExt>(left: &[T], right: &[T], inner: usize, to: &mut [T]) {
    let Some(columns) = right.len().checked_div(inner).filter(|columns| *columns > 0) else { return };
    for start in (0..inner).step_by(ROWS_AT_A_TIME) {
        let block = start..inner.min(start + ROWS_AT_A_TIME);
        for (to, left) in to.chunks_exact_mut(columns).zip(left.chunks_exact(inner)) {
            for k in block.clone() {
                let factor = left[k];
                let right = &right[k * columns..(k + 1) * columns];
                to.iter_mut().zip(right).for_each(|(to, x)| *to += factor * *x);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Matrix with the singular values 0.5 and 2, whose directions are not axes.
    fn skew() -> Vec<f64> {
        let (sin, cos) = 0.3f64.sin_cos();
        // R(0.3) · diag(2, 0.5) · [I 0], with a column of zeros.
        vec![2.0 * cos, -0.5 * sin, 0.0, 2.0 * sin, 0.5 * cos, 0.0]
    }

    #[test]
    fn a_round_maps_singular_values_by_its_polynomial_and_keeps_their_vectors() {
        let mut found = skew();
        orthogonalize(&mut found, (2, 3), 1);
        let length = 4.25f64.sqrt();
        let map = |s: f64| {
            let s = s / length;
            3.4445 * s - 4.775 * s.powi(3) + 2.0315 * s.powi(5)
        };
        let (sin, cos) = 0.3f64.sin_cos();
        let expected = [map(2.0) * cos, -map(0.5) * sin, 0.0, map(2.0) * sin, map(0.5) * cos, 0.0];
        for (found, expected) in found.iter().zip(expected) {
            assert!((found - expected).abs() < 1e-14, "{found} and not {expected}");
        }
    }

    #[test]
    fn a_tall_matrix_is_done_as_its_transpose() {
        let mut wide = skew();
        let mut tall = transposed(&wide, (2, 3));
        orthogonalize(&mut wide, (2, 3), 5);
        orthogonalize(&mut tall, (3, 2), 5);
        assert_eq!(transposed(&tall, (3, 2)), wide);
    }

    #[test]
    fn no_gradient_and_no_elements_are_left_as_they_are() {
        let mut zeros = [0.0f32; 6];
        orthogonalize(&mut zeros, (2, 3), 5);
        assert_eq!(zeros, [0.0; 6]);
        orthogonalize::<f32>(&mut [], (2, 0), 5);
    }
}
