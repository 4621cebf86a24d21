//! The Muon step on a GPU: the launches of `muon.cu`, with the same bits as `newton_schulz.rs` for each matrix.
//!
//! Matrices are stepped one after the other, in the same scratch memory. A² is never stored, only the polynomial of A
//! and A².

use super::newton_schulz::COEFFICIENTS;
use super::{MatrixStep, MuonStep, TensorRule};
use crate::elementwise::name_for;
use crate::float_ext::FloatExt;
use crate::optimizer::adam;
use hexagram_logical::device::program::{Argument, Code, Launch, Module, Program};
use hexagram_logical::device::sums::Sums;
use std::ops::Range;

pub(crate) static MODULE: Module = Module { name: "muon", code: Code::Packed(hexagram_ptx::MUON) };

/// Place of the squared norm of a matrix in the scratch memory. The data after it is aligned to `ALIGNMENT` bytes.
const SQUARES: Argument = Argument::Scratch(0);
const ALIGNMENT: usize = 16;
/// Number of threads of a block that works on tiles.
const THREADS: u32 = 256;
/// Rows and columns of a tile of a product, and of a transpose.
const TILE: usize = 64;
const TURNED: usize = 32;

/// Returns the program of a step: matrices first, then AdamW for the other parameters.
pub(super) fn program<T: FloatExt>(step: &MuonStep<T>) -> Program {
    let mut launches = Vec::new();
    let mut others = Vec::new();
    let mut scratch = 0;
    // The offset in the second slot, which does not contain matrices.
    let mut second = 0;
    for (elements, rule) in step.tensors.iter().filter(|(elements, _)| !elements.is_empty()) {
        match rule {
            TensorRule::Matrix(matrix) => {
                let room = MuonScratch::new::<T>(elements.len(), matrix.shape);
                scratch = scratch.max(room.end);
                launches.extend(matrix_step(step, elements, matrix, room));
            }
            TensorRule::Other(rule) => {
                let start = elements.start;
                others.push(rule.launch([start, start, start, second], elements.len()));
                second += elements.len();
            }
        }
    }
    let then =
        if others.is_empty() { Vec::new() } else { vec![Program::in_turn(&adam::MODULES[1], others, 0)] };
    Program { then, ..Program::in_turn(&MODULE, launches, scratch) }
}

/// Scratch memory of a matrix of m × n elements, m ≤ n: 2 m n + m² of them, and sums.
struct MuonScratch {
    sums: Sums,
    /// The matrix.
    matrix: Argument,
    /// A second buffer of its size: first for transposes, then for A, then for the next iterate.
    other: Argument,
    /// The polynomial b A + c A².
    polynomial: Argument,
    /// Total size, in bytes.
    end: usize,
}

impl MuonScratch {
    /// Creates the scratch layout for a matrix of `len` elements of type `T`.
    fn new<T: FloatExt>(len: usize, (rows, columns): (usize, usize)) -> Self {
        let short = rows.min(columns);
        let sums = Sums::new("muon_sums", 1, len, SQUARES, ALIGNMENT);
        let mut end = sums.scratch;
        let [matrix, other, polynomial] = [len, len, short * short].map(|elements| {
            let start = end.next_multiple_of(ALIGNMENT);
            end = start + elements * size_of::<T>();
            Argument::Scratch(start)
        });
        MuonScratch { sums, matrix, other, polynomial, end }
    }
}

/// Returns the launches of a step of a matrix.
fn matrix_step<T: FloatExt>(
    step: &MuonStep<T>,
    elements: &Range<usize>,
    matrix: &MatrixStep<T>,
    room: MuonScratch,
) -> Vec<Launch> {
    let (rows, columns) = matrix.shape;
    let is_tall = rows > columns;
    let len = Argument::U64(elements.len() as u64);
    let operand = |operand| Argument::OperandAt(operand, elements.start * size_of::<T>());
    let name = name_for::<T>(["muon_momentum_f32", "muon_momentum_f64"]);
    let direction = if is_tall { room.other } else { room.matrix };
    let scalars = [step.decay.argument(), step.take.argument(), Argument::U32(step.nesterov.into())];
    let arguments = [operand(0), operand(2), direction, len].into_iter().chain(scalars);
    let mut launches = vec![Launch::over(name, elements.len(), arguments.collect())];
    let wide = if is_tall { (columns, rows) } else { matrix.shape };
    if is_tall {
        launches.push(transposed::<T>(room.other, matrix.shape, room.matrix));
    }
    let [mut direction, other] = orthogonalized::<T>(room, wide, step.rounds, &mut launches);
    if is_tall {
        launches.push(transposed::<T>(direction, wide, other));
        direction = other;
    }
    let name = name_for::<T>(["muon_step_f32", "muon_step_f64"]);
    let arguments = [operand(1), direction, len, matrix.rate.argument(), matrix.keep.argument()];
    launches.push(Launch::over(name, elements.len(), arguments.into()));
    launches
}

/// Adds the launches that orthogonalize the matrix in the scratch memory. Returns the place of the result, and of the
/// other buffer of its size.
fn orthogonalized<T: FloatExt>(
    room: MuonScratch,
    (rows, columns): (usize, usize),
    rounds: u32,
    launches: &mut Vec<Launch>,
) -> [Argument; 2] {
    let MuonScratch { sums, matrix, other, polynomial, .. } = room;
    let len = rows * columns;
    let name = name_for::<T>(["muon_squares_f32", "muon_squares_f64"]);
    launches.push(Launch::summing(name, len, vec![matrix, Argument::U64(len as u64), sums.blocks]));
    launches.extend(sums.launches);
    let name = name_for::<T>(["muon_scale_f32", "muon_scale_f64"]);
    launches.push(Launch::over(name, len, vec![matrix, Argument::U64(len as u64), SQUARES]));
    let [a, b, c] = COEFFICIENTS.map(|coefficient| T::of(coefficient).argument());
    let [m, n] = [rows, columns].map(|side| Argument::U64(side as u64));
    let mut places = [matrix, other];
    for _ in 0..rounds {
        let [matrix, other] = places;
        let name = name_for::<T>(["muon_gram_f32", "muon_gram_f64"]);
        launches.push(over_tiles(name, TILE, (rows, rows), vec![matrix, m, n, other]));
        let name = name_for::<T>(["muon_polynomial_f32", "muon_polynomial_f64"]);
        launches.push(over_tiles(name, TILE, (rows, rows), vec![other, m, b, c, polynomial]));
        let name = name_for::<T>(["muon_next_f32", "muon_next_f64"]);
        launches.push(over_tiles(name, TILE, (rows, columns), vec![polynomial, matrix, m, n, a, other]));
        places = [other, matrix];
    }
    places
}

/// Returns the launch that stores the transpose of a matrix.
fn transposed<T: FloatExt>(from: Argument, (rows, columns): (usize, usize), to: Argument) -> Launch {
    let name = name_for::<T>(["muon_transpose_f32", "muon_transpose_f64"]);
    let [m, n] = [rows, columns].map(|side| Argument::U64(side as u64));
    over_tiles(name, TURNED, (rows, columns), vec![from, m, n, to])
}

/// Returns the launch of an entry whose blocks process the tiles of a matrix.
fn over_tiles(
    entry: &'static str,
    side: usize,
    (rows, columns): (usize, usize),
    arguments: Vec<Argument>,
) -> Launch {
    let tiles = rows.div_ceil(side) * columns.div_ceil(side);
    Launch { entry, blocks: tiles.clamp(1, 65_535) as u32, threads: THREADS, arguments }
}
