//! Matrix products, row by row, for the tasks. They are fast enough for models of some thousand parameters. Sums have
//! a fixed order, so results are the same on every machine; exponentials and logarithms are the system's.

/// Partial sums of a dot product, which the compiler keeps in one register.
const LANES: usize = 8;

/// Adds `a · b` to `out`: a is rows × inner, b is inner × columns.
pub(crate) fn add_product(out: &mut [f32], a: &[f32], b: &[f32], columns: usize) {
    let inner = b.len() / columns;
    for (out, a) in out.chunks_exact_mut(columns).zip(a.chunks_exact(inner)) {
        for (factor, b) in a.iter().zip(b.chunks_exact(columns)) {
            add_scaled(out, *factor, b);
        }
    }
}

/// Adds `a · bᵀ` to `out`: a is rows × inner, b is columns × inner.
pub(crate) fn add_product_transposed(out: &mut [f32], a: &[f32], b: &[f32], inner: usize) {
    let columns = b.len() / inner;
    for (out, a) in out.chunks_exact_mut(columns).zip(a.chunks_exact(inner)) {
        for (out, b) in out.iter_mut().zip(b.chunks_exact(inner)) {
            *out += dot(a, b);
        }
    }
}

/// Adds `aᵀ · b` to `out`: a is inner × rows, b is inner × columns.
pub(crate) fn add_transposed_product(out: &mut [f32], a: &[f32], b: &[f32], columns: usize) {
    let rows = out.len() / columns;
    for (a, b) in a.chunks_exact(rows).zip(b.chunks_exact(columns)) {
        for (out, factor) in out.chunks_exact_mut(columns).zip(a) {
            add_scaled(out, *factor, b);
        }
    }
}

/// Adds `factor · b` to `out`.
pub(crate) fn add_scaled(out: &mut [f32], factor: f32, b: &[f32]) {
    for (out, b) in out.iter_mut().zip(b) {
        *out += factor * b;
    }
}

/// Adds each row of `rows` to `out`.
pub(crate) fn add_rows(out: &mut [f32], rows: &[f32]) {
    for row in rows.chunks_exact(out.len()) {
        add_scaled(out, 1.0, row);
    }
}

/// Returns `bias` once for each of `rows` rows.
pub(crate) fn repeated(bias: &[f32], rows: usize) -> Vec<f32> {
    bias.repeat(rows)
}

/// Returns the sum of products.
pub(crate) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0f32; LANES];
    let whole = a.len() - a.len() % LANES;
    for (a, b) in a[..whole].chunks_exact(LANES).zip(b[..whole].chunks_exact(LANES)) {
        for lane in 0..LANES {
            sums[lane] += a[lane] * b[lane];
        }
    }
    let rest: f32 = a[whole..].iter().zip(&b[whole..]).map(|(a, b)| a * b).sum();
    sums.iter().sum::<f32>() + rest
}

/// Replaces each row of logits by the gradient of its mean cross entropy, and returns the sum of the losses.
///
/// Rows become (softmax − one-hot of the label) / number of rows.
pub(crate) fn cross_entropy(logits: &mut [f32], labels: &[usize]) -> f64 {
    let classes = logits.len() / labels.len();
    let share = 1.0 / labels.len() as f32;
    let mut loss = 0.0;
    for (row, &label) in logits.chunks_exact_mut(classes).zip(labels) {
        loss -= f64::from(log_softmax(row, label));
        row[label] -= 1.0;
        row.iter_mut().for_each(|entry| *entry *= share);
    }
    loss
}

/// Replaces logits by probabilities, and returns the logarithm of one of them.
fn log_softmax(row: &mut [f32], label: usize) -> f32 {
    let most = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let of_label = row[label] - most;
    row.iter_mut().for_each(|entry| *entry = (*entry - most).exp());
    let sum: f32 = row.iter().sum();
    row.iter_mut().for_each(|entry| *entry /= sum);
    of_label - sum.ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_are_those_of_matrices() {
        let a = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]; // 2 × 3
        let b = [1.0, 0.0, 2.0, 1.0, 0.0, 3.0]; // 3 × 2
        let mut out = [0.5; 4];
        add_product(&mut out, &a, &b, 2);
        assert_eq!(out, [5.5, 11.5, 14.5, 23.5]);
        let b_transposed = [1.0, 2.0, 0.0, 0.0, 1.0, 3.0];
        let mut out = [0.5; 4];
        add_product_transposed(&mut out, &a, &b_transposed, 3);
        assert_eq!(out, [5.5, 11.5, 14.5, 23.5]);
        let a_transposed = [1.0, 4.0, 2.0, 5.0, 3.0, 6.0];
        let mut out = [0.5; 4];
        add_transposed_product(&mut out, &a_transposed, &b, 2);
        assert_eq!(out, [5.5, 11.5, 14.5, 23.5]);
        let long: Vec<f32> = (0..19).map(|x| x as f32).collect();
        assert_eq!(dot(&long, &long), 2109.0);
    }

    #[test]
    fn cross_entropy_is_that_of_softmax() {
        let mut logits = [0.0, 3f32.ln(), 1000.0, 1000.0];
        let loss = cross_entropy(&mut logits, &[1, 0]);
        assert!((loss - (4f64 / 3.0).ln() - 2f64.ln()).abs() < 1e-6, "{loss}");
        let expected = [0.125, -0.125, -0.25, 0.25];
        assert!(logits.iter().zip(expected).all(|(found, expected)| (found - expected).abs() < 1e-6));
    }
}
