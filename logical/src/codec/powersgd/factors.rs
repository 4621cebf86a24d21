//! Arithmetic of matrices of low rank, given as products P Qᵀ of thin ones: one step of power iteration. For codecs,
//! and for algorithms that use the factors themselves.
//!
//! ```text
//! P ← M Q                  project
//! P̂ ← orthonormalized P    orthonormalize
//! Q ← Mᵀ P̂                 project_back
//! M ← M + w P̂ Qᵀ           add_product
//! ```
//!
//! Matrices are stored row by row, factors column by column. All operations have a fixed order, so that ranks with
//! equal inputs get equal bits.

use crate::encoding::mix;
use hexagram_physical::device::kernels::add_scaled;
use hexagram_physical::device::kernels::dot::dot;

/// Part of a column that must remain after orthogonalization; otherwise the column is dropped.
const DEPENDENT: f64 = 1.0 / (1u64 << 40) as f64;

/// Computes `p ← M q` for every column q of Q, which has `cols` elements.
pub fn project(matrix: &[f32], cols: usize, q: &[f32], p: &mut [f32]) {
    let rows = matrix.len() / cols.max(1);
    for (q, p) in q.chunks_exact(cols.max(1)).zip(p.chunks_exact_mut(rows.max(1))) {
        p.iter_mut().zip(matrix.chunks_exact(cols)).for_each(|(p, row)| *p = dot(row, q));
    }
}

/// Computes `q ← Mᵀ p` for every column p of P; Q has columns of `cols` elements.
pub fn project_back(matrix: &[f32], cols: usize, p: &[f32], q: &mut [f32]) {
    let rows = matrix.len() / cols.max(1);
    for (p, q) in p.chunks_exact(rows.max(1)).zip(q.chunks_exact_mut(cols.max(1))) {
        q.fill(0.0);
        matrix.chunks_exact(cols).zip(p).for_each(|(row, p)| add_scaled(*p, row, q));
    }
}

/// Computes `M ← M + weight P Qᵀ`; Q has columns of `cols` elements.
pub fn add_product(weight: f32, p: &[f32], q: &[f32], cols: usize, matrix: &mut [f32]) {
    let rows = matrix.len() / cols.max(1);
    for (i, row) in matrix.chunks_exact_mut(cols.max(1)).enumerate() {
        let columns = p.chunks_exact(rows).zip(q.chunks_exact(cols));
        columns.for_each(|(p, q)| add_scaled(weight * p[i], q, row));
    }
}

/// Normalizes a column to length 1; draws it at random if it has no direction.
pub fn give_direction(column: &mut [f32], seed: u64) {
    let square = |column: &[f32]| column.iter().map(|x| f64::from(*x) * f64::from(*x)).sum::<f64>();
    let mut squares = square(column);
    if !(squares.is_finite() && squares > 0.0) {
        for (number, x) in column.iter_mut().enumerate() {
            let word = mix(seed.wrapping_add(number as u64));
            // An odd number of 25 bits: uniform between −1 and 1, and not 0.
            *x = ((word >> 40) as i64 * 2 + 1 - (1 << 24)) as f32 / (1 << 24) as f32;
        }
        squares = square(column);
    }
    let norm = squares.sqrt();
    column.iter_mut().for_each(|x| *x = (f64::from(*x) / norm) as f32);
}

/// Orthonormalizes columns of `rows` elements by the Gram-Schmidt method in double precision, with every projection
/// subtracted twice, after which the rest is orthogonal (Giraud et al. 2005). Columns that depend on earlier ones
/// become 0.
pub fn orthonormalize(from: &[f32], rows: usize, to: &mut [f32]) {
    let mut done: Vec<Vec<f64>> = Vec::new();
    for (from, to) in from.chunks(rows.max(1)).zip(to.chunks_mut(rows.max(1))) {
        let mut column: Vec<f64> = from.iter().map(|x| f64::from(*x)).collect();
        let before = inner(&column, &column).sqrt();
        for other in done.iter().chain(&done) {
            let along = inner(other, &column);
            column.iter_mut().zip(other).for_each(|(x, y)| *x -= along * y);
        }
        let norm = inner(&column, &column).sqrt();
        if norm <= before * DEPENDENT {
            column.fill(0.0);
        } else {
            column.iter_mut().for_each(|x| *x /= norm);
        }
        to.iter_mut().zip(&column).for_each(|(to, x)| *to = *x as f32);
        done.push(column);
    }
}

fn inner(x: &[f64], y: &[f64]) -> f64 {
    x.iter().zip(y).map(|(x, y)| x * y).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_step_finds_a_matrix_of_its_rank() {
        // Two rows of three columns, of rank 1.
        let matrix = [2.0, 4.0, -2.0, 1.0, 2.0, -1.0];
        let mut q = [0.0; 3];
        give_direction(&mut q, 7);
        let mut p = [0.0; 2];
        project(&matrix, 3, &q, &mut p);
        let mut unit = [0.0; 2];
        orthonormalize(&p, 2, &mut unit);
        project_back(&matrix, 3, &unit, &mut q);
        let mut rest = matrix;
        add_product(-1.0, &unit, &q, 3, &mut rest);
        assert!(rest.iter().all(|x| x.abs() < 1e-6), "{rest:?}");
    }

    #[test]
    fn columns_are_orthonormal_and_those_that_depend_on_others_are_0() {
        let mut found = [1.0f32; 9];
        orthonormalize(&[3.0, 0.0, 4.0, 6.0, 0.0, 8.0, 0.0, -2.0, 0.0], 3, &mut found);
        assert_eq!(found, [0.6, 0.0, 0.8, 0.0, 0.0, 0.0, 0.0, -1.0, 0.0]);
    }

    #[test]
    fn no_elements_are_left_alone() {
        project(&[], 0, &[], &mut []);
        project_back(&[], 0, &[], &mut []);
        add_product(1.0, &[], &[], 0, &mut []);
        orthonormalize(&[], 0, &mut []);
    }
}
