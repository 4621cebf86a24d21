//! The orthonormal discrete cosine transform of small matrices, by its definition.
//!
//! ```text
//! C[k][i] = √(2/n) · cos(π (2i + 1) k / (2n)), in row 0 divided by √2         C Cᵀ = 1
//! Y = C X C′ᵀ        X = Cᵀ Y C′                                             C of X's rows, C′ of its columns
//! ```
//!
//! Sums run in a fixed order, so that every rank gets the same bits (with the same program: the table uses the cosine
//! function of the machine).

/// Discrete cosine transform of vectors of one length.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Dct {
    length: usize,
    /// Matrix C of the transform, row by row.
    table: Vec<f32>,
    /// Transposed matrix Cᵀ.
    transposed: Vec<f32>,
}

impl Dct {
    pub(super) fn new(length: usize) -> Self {
        let n = length as f64;
        let entry = |k: usize, i: usize| {
            let scale = if k == 0 { (1.0 / n).sqrt() } else { (2.0 / n).sqrt() };
            (scale * (std::f64::consts::PI * (2 * i + 1) as f64 * k as f64 / (2.0 * n)).cos()) as f32
        };
        let square = |entry: &dyn Fn(usize, usize) -> f32| {
            (0..length * length).map(|at| entry(at / length, at % length)).collect()
        };
        let table = square(&entry);
        let transposed = square(&|row, column| entry(column, row));
        Dct { length, table, transposed }
    }

    pub(super) fn len(&self) -> usize {
        self.length
    }
}

/// Transforms a matrix, row by row: `block ← C block C′ᵀ`.
pub(super) fn transform(down: &Dct, across: &Dct, block: &mut [f32]) {
    sandwich(&down.table, &across.transposed, (down.length, across.length), block);
}

/// Transforms a matrix back: `block ← Cᵀ block C′`.
pub(super) fn transform_back(down: &Dct, across: &Dct, block: &mut [f32]) {
    sandwich(&down.transposed, &across.table, (down.length, across.length), block);
}

/// Multiplies from both sides: `block ← left · block · right`.
fn sandwich(left: &[f32], right: &[f32], (rows, columns): (usize, usize), block: &mut [f32]) {
    let product = multiply(left, block, rows, columns);
    block.copy_from_slice(&multiply(&product, right, columns, columns));
}

/// Multiplies two matrices: one with `inner` columns, and one with `inner` rows and `columns` columns.
fn multiply(left: &[f32], right: &[f32], inner: usize, columns: usize) -> Vec<f32> {
    let mut product = vec![0.0; left.len() / inner * columns];
    for (to, factors) in product.chunks_exact_mut(columns).zip(left.chunks_exact(inner)) {
        for (factor, row) in factors.iter().zip(right.chunks_exact(columns)) {
            to.iter_mut().zip(row).for_each(|(to, x)| *to += factor * x);
        }
    }
    product
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(len: usize) -> Vec<f32> {
        (0..len).map(|at| ((at * 7919 + 13) % 101) as f32 / 50.0 - 1.0).collect()
    }

    fn furthest(one: &[f32], other: &[f32]) -> f32 {
        one.iter().zip(other).map(|(x, y)| (x - y).abs()).fold(0.0, f32::max)
    }

    #[test]
    fn its_matrix_is_orthonormal() {
        for length in [1, 2, 3, 7, 16, 63, 64] {
            let dct = Dct::new(length);
            let product = multiply(&dct.table, &dct.transposed, length, length);
            let identity = |at: usize| if at / length == at % length { 1.0 } else { 0.0 };
            let identity: Vec<f32> = (0..length * length).map(identity).collect();
            assert!(furthest(&product, &identity) < 1e-6, "{length}: {}", furthest(&product, &identity));
        }
    }

    #[test]
    fn it_goes_there_and_back_and_keeps_the_norm() {
        for (rows, columns) in [(1, 1), (1, 50), (8, 9), (5, 64), (64, 64)] {
            let down = Dct::new(rows);
            let across = Dct::new(columns);
            let before = numbers(rows * columns);
            let mut block = before.clone();
            transform(&down, &across, &mut block);
            let square = |x: &[f32]| x.iter().map(|x| x * x).sum::<f32>();
            assert!((square(&block) / square(&before) - 1.0).abs() < 1e-5);
            transform_back(&down, &across, &mut block);
            assert!(furthest(&block, &before) < 3e-6, "{rows} × {columns}");
        }
    }

    #[test]
    fn a_cosine_is_one_coefficient_and_a_constant_another() {
        let one = Dct::new(1);
        let dct = Dct::new(8);
        let cosine = |i: usize| (std::f32::consts::PI * (2 * i + 1) as f32 * 3.0 / 16.0).cos();
        let mut block: Vec<f32> = (0..8).map(|i| 5.0 + cosine(i)).collect();
        transform(&one, &dct, &mut block);
        let expected = [5.0 * 8f32.sqrt(), 0.0, 0.0, 2.0, 0.0, 0.0, 0.0, 0.0];
        assert!(furthest(&block, &expected) < 1e-5, "{block:?}");
    }
}
