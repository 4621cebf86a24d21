//! Cuts tensors into blocks for the transform: matrices of up to 64 × 64 for weights, runs of up to 64 for vectors. All
//! blocks of a tensor have the same size.

use super::dct::{Dct, transform, transform_back};
use crate::plugin::Tensor;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Longest side of a block.
const LONGEST: usize = 64;

/// Blocks of a bucket. Their coefficients are stored in the order of the tensors of the bucket, one block after
/// another.
#[derive(Debug)]
pub(super) struct DctBlocks {
    grids: Vec<Grid>,
}

/// Blocks of one tensor.
#[derive(Debug)]
struct Grid {
    elements: Range<usize>,
    /// Number of columns of the tensor as a matrix.
    columns: usize,
    /// Transforms of a block's rows and columns.
    down: Arc<Dct>,
    across: Arc<Dct>,
}

impl DctBlocks {
    pub(super) fn new(tensors: &[Tensor]) -> Self {
        let mut known = BTreeMap::new();
        let mut side = |length: usize| {
            let side = (1..=LONGEST).rev().find(|side| length.is_multiple_of(*side)).unwrap_or(1);
            Arc::clone(known.entry(side).or_insert_with(|| Arc::new(Dct::new(side))))
        };
        let grid = |tensor: &Tensor| {
            let (rows, columns) = tensor.matrix().unwrap_or((1, tensor.elements.len()));
            Grid { elements: tensor.elements.clone(), columns, down: side(rows), across: side(columns) }
        };
        let grids = tensors.iter().filter(|tensor| !tensor.elements.is_empty()).map(grid).collect();
        DctBlocks { grids }
    }

    /// Returns the range of each block among the coefficients, in order.
    pub(super) fn places(&self) -> impl Iterator<Item = Range<usize>> {
        self.grids.iter().flat_map(|grid| {
            let starts = grid.elements.clone().step_by(grid.block());
            starts.map(|start| start..start + grid.block())
        })
    }

    /// Returns the number of multiplications and additions of a transform of all blocks. Per element, the pass along a
    /// side of length l takes l of each; there is one pass per side.
    pub(super) fn operations(&self) -> u64 {
        let of_grid = |grid: &Grid| 2 * (grid.elements.len() * (grid.down.len() + grid.across.len())) as u64;
        self.grids.iter().map(of_grid).sum()
    }

    /// Transforms all blocks: `coefficients ← transform of elements`.
    pub(super) fn transform(&self, elements: &[f32], coefficients: &mut [f32]) {
        for grid in &self.grids {
            let from = &elements[grid.elements.clone()];
            let blocks = coefficients[grid.elements.clone()].chunks_exact_mut(grid.block());
            for (number, block) in blocks.enumerate() {
                for (row, to) in grid.rows_of(number).zip(block.chunks_exact_mut(grid.across.len())) {
                    to.copy_from_slice(&from[row]);
                }
                transform(&grid.down, &grid.across, block);
            }
        }
    }

    /// Transforms all blocks back: `elements ← inverse transform of coefficients`. Overwrites the coefficients with the
    /// elements, too, block by block.
    pub(super) fn transform_back(&self, coefficients: &mut [f32], elements: &mut [f32]) {
        for grid in &self.grids {
            let to = &mut elements[grid.elements.clone()];
            let blocks = coefficients[grid.elements.clone()].chunks_exact_mut(grid.block());
            for (number, block) in blocks.enumerate() {
                transform_back(&grid.down, &grid.across, block);
                for (row, from) in grid.rows_of(number).zip(block.chunks_exact(grid.across.len())) {
                    to[row].copy_from_slice(from);
                }
            }
        }
    }
}

impl Grid {
    /// Returns the number of elements in a block.
    fn block(&self) -> usize {
        self.down.len() * self.across.len()
    }

    /// Returns the ranges of the rows of a block in the tensor.
    fn rows_of(&self, block: usize) -> impl Iterator<Item = Range<usize>> {
        let height = self.down.len();
        let width = self.across.len();
        let columns = self.columns;
        let above = block / (columns / width) * height;
        let left = block % (columns / width) * width;
        (above..above + height).map(move |row| row * columns + left..row * columns + left + width)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensors(shapes: &[&[usize]]) -> Vec<Tensor> {
        let mut end = 0;
        let tensor = |shape: &&[usize]| {
            let start = end;
            end += shape.iter().product::<usize>();
            Tensor { name: "t".into(), shape: shape.to_vec(), elements: start..end }
        };
        shapes.iter().map(tensor).collect()
    }

    #[test]
    fn sides_are_the_largest_divisors_up_to_64() {
        let blocks = DctBlocks::new(&tensors(&[&[128, 100], &[70], &[0, 3], &[16, 3, 3, 3], &[], &[67]]));
        let sizes: Vec<usize> = blocks.places().map(|place| place.len()).collect();
        let expected = [vec![64 * 50; 4], vec![35; 2], vec![16 * 27], vec![1; 1 + 67]].concat();
        assert_eq!(sizes, expected);
        assert!(blocks.places().zip(blocks.places().skip(1)).all(|(one, next)| one.end == next.start));
    }

    #[test]
    fn every_element_comes_back_to_its_place() {
        let blocks = DctBlocks::new(&tensors(&[&[6, 130], &[128], &[4, 5, 26]]));
        let elements: Vec<f32> = (0..6 * 130 + 128 + 520).map(|at| at as f32).collect();
        let mut coefficients = vec![0.0; elements.len()];
        let mut back = vec![0.0; elements.len()];
        blocks.transform(&elements, &mut coefficients);
        blocks.transform_back(&mut coefficients, &mut back);
        assert!(elements.iter().zip(&back).all(|(x, y)| (x - y).abs() < 1e-2));
    }
}
