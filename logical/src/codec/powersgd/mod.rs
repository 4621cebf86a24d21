//! PowerSGD: matrices as products of two thin ones, computed by one step of power iteration per operation (Vogels et
//! al. 2019).
//!
//! ```text
//! P ← Σ_i M_i Q          all-reduced: r rows(M) elements a matrix
//! P̂ ← orthogonalized P
//! Q ← Σ_i M_iᵀ P̂         all-reduced: r cols(M) elements a matrix, and all tensors that are no matrices
//! M ← P̂ Qᵀ
//! ```
//!
//! Q is kept, and is the start of the next operation (warm start), with normalized columns. A column without a
//! direction (at the start, after a matrix of smaller rank, after NaN) is drawn from the seed. If the mean of the M_i
//! has rank r or less, the result is exact; otherwise, use error feedback for the rest.
//!
//! Memory: r (rows + cols) elements per matrix, the columns of Q before those of P̂. Every rank orthogonalizes by
//! itself, in a fixed order and double precision, and gets the same bits.

pub mod factors;

use super::shared::not_finite::refuse;
use super::{CodecError, LinearCodec, NotFinite, Round};
use crate::encoding::mix;
use crate::options_text::Options;
use factors::{add_product, give_direction, orthonormalize, project, project_back};
use hexagram_physical::device::kernels::all_finite;
use hexagram_physical::{Error, Result};
use std::borrow::Cow;
use std::ops::Range;

/// Saturation value of infinity: products of such numbers are still finite.
const LARGEST: f32 = (1u128 << 96) as f32;

/// Codec of low-rank factors of the matrices in a bucket.
#[derive(Debug, Clone, PartialEq)]
pub struct PowerSgd {
    shapes: Vec<(usize, usize)>,
    rank: usize,
    /// Minimum ratio of the size of a matrix to that of its factors.
    saving: f64,
    not_finite: NotFinite,
    matrices: Vec<MatrixSlice>,
    /// Tensors that are not compressed.
    plain: Vec<Range<usize>>,
    /// First element after the tensors.
    tail: usize,
}

/// Place of a matrix, row by row.
#[derive(Debug, Clone, Copy, PartialEq)]
struct MatrixSlice {
    start: usize,
    rows: usize,
    cols: usize,
}

impl PowerSgd {
    /// Creates a codec for a bucket of consecutive tensors with these shapes (rows, columns). Elements after the
    /// tensors are not compressed, and neither are tensors that factors of this rank would not make smaller, such as
    /// vectors.
    ///
    /// # Errors
    /// [`Error::Usage`] if the rank is 0, or the tensors exceed the address space.
    pub fn new(shapes: &[(usize, usize)], rank: usize) -> Result<Self> {
        let mut len = 0usize;
        for &(rows, cols) in shapes {
            len = rows.checked_mul(cols).and_then(|tensor| len.checked_add(tensor)).ok_or_else(|| {
                Error::usage(format!("{rows} × {cols} is not a tensor in memory"), "use shapes in elements")
            })?;
        }
        let shapes = shapes.to_vec();
        let not_finite = NotFinite::default();
        let codec =
            PowerSgd { shapes, rank, saving: 1.0, not_finite, matrices: vec![], plain: vec![], tail: len };
        codec.sorted()
    }

    /// Sets the minimum ratio of the size of a matrix to that of its factors, by default 1: a matrix is compressed if
    /// saving · r · (rows + columns) < rows · columns, and sent unchanged otherwise.
    ///
    /// # Errors
    /// [`Error::Usage`] if it is below 1.
    pub fn with_saving(self, saving: f64) -> Result<Self> {
        PowerSgd { saving, ..self }.sorted()
    }

    /// Checks the options, and divides the tensors into compressed and uncompressed ones.
    fn sorted(mut self) -> Result<Self> {
        Options::check("powersgd", |options| {
            options.field("rank", &mut self.rank, 1.., "rank of the factors")?;
            options.field("saving", &mut self.saving, 1.0.., "least ratio of a matrix to its factors")
        })?;
        self.matrices.clear();
        self.plain.clear();
        let mut start = 0;
        for &(rows, cols) in &self.shapes {
            let end = start + rows * cols;
            let factors = self.rank.saturating_mul(rows + cols) as f64;
            if self.saving * factors < (rows * cols) as f64 {
                self.matrices.push(MatrixSlice { start, rows, cols });
            } else {
                self.plain.push(start..end);
            }
            start = end;
        }
        Ok(self)
    }

    /// Sets the treatment of NaN and infinity. They propagate to their whole matrix, as NaN. If they saturate,
    /// infinity becomes ±2⁹⁶.
    #[must_use]
    pub fn with_not_finite(self, not_finite: NotFinite) -> Self {
        PowerSgd { not_finite, ..self }
    }

    fn plain(&self, len: usize) -> impl Iterator<Item = Range<usize>> {
        self.plain.iter().cloned().chain(std::iter::once(self.tail..len))
    }

    /// Returns the number of elements of all P, or of all Q.
    fn factors(&self, side: impl Fn(&MatrixSlice) -> usize) -> usize {
        self.matrices.iter().map(|matrix| self.rank * side(matrix)).sum()
    }

    fn finite<'a>(&self, from: &'a [f32]) -> Result<Cow<'a, [f32]>, CodecError> {
        if all_finite(from) {
            return Ok(Cow::Borrowed(from));
        }
        match self.not_finite {
            NotFinite::Refuse => Err(refuse(from, 0, f32::is_finite)),
            NotFinite::Propagate => Ok(Cow::Borrowed(from)),
            NotFinite::Saturate => {
                let saturated = |x: &f32| match x {
                    x if x.is_finite() => *x,
                    x if x.is_nan() => 0.0,
                    x => LARGEST.copysign(*x),
                };
                Ok(Cow::Owned(from.iter().map(saturated).collect()))
            }
        }
    }

    fn check(what: &str, len: usize, want: usize) -> Result<(), CodecError> {
        if len == want {
            return Ok(());
        }
        Err(CodecError::damaged(format!("{len} elements of {what}, not {want}")))
    }

    /// Computes P = M Q of every matrix.
    fn project(&self, from: &[f32], seed: u64, memory: &mut [f32], mut to: &mut [f32]) {
        for (number, (matrix, (q, _))) in self.matrices.iter().zip(self.memories(memory)).enumerate() {
            for (c, q) in q.chunks_mut(matrix.cols).enumerate() {
                give_direction(q, mix(mix(seed ^ number as u64) ^ c as u64));
            }
            let (p, rest) = to.split_at_mut(self.rank * matrix.rows);
            project(matrix.of(from), matrix.cols, q, p);
            to = rest;
        }
    }

    /// Computes Q = Mᵀ P̂ of every matrix, where `reduced` is P, and copies all other elements.
    fn project_back(&self, from: &[f32], mut reduced: &[f32], memory: &mut [f32], mut to: &mut [f32]) {
        for (matrix, (_, p_hat)) in self.matrices.iter().zip(self.memories(memory)) {
            let (p, rest) = reduced.split_at(p_hat.len());
            orthonormalize(p, matrix.rows, p_hat);
            reduced = rest;
            let (q, rest) = to.split_at_mut(self.rank * matrix.cols);
            project_back(matrix.of(from), matrix.cols, p_hat, q);
            to = rest;
        }
        for range in self.plain(from.len()) {
            let (part, rest) = to.split_at_mut(range.len());
            part.copy_from_slice(&from[range]);
            to = rest;
        }
    }

    /// Returns the part of the memory of every matrix: the columns of Q and of P̂.
    fn memories<'a>(&'a self, memory: &'a mut [f32]) -> impl Iterator<Item = (&'a mut [f32], &'a mut [f32])> {
        let mut rest = memory;
        self.matrices.iter().map(move |matrix| {
            let (q, after) = std::mem::take(&mut rest).split_at_mut(self.rank * matrix.cols);
            let (p, after) = after.split_at_mut(self.rank * matrix.rows);
            rest = after;
            (q, p)
        })
    }
}

impl MatrixSlice {
    fn of<'a>(&self, from: &'a [f32]) -> &'a [f32] {
        &from[self.start..self.start + self.rows * self.cols]
    }
}

impl LinearCodec for PowerSgd {
    fn name(&self) -> String {
        let sizes = self.shapes.iter().flat_map(|(rows, cols)| [*rows as u64, *cols as u64]);
        let count = self.shapes.len();
        let shapes = sizes.fold(0, |hash, size| mix(hash ^ size));
        let PowerSgd { rank, saving, not_finite, .. } = self;
        format!("powersgd(rank {rank}, saving {saving}, {count} tensors of shapes {shapes:x}, {not_finite})")
    }

    fn fits(&self, len: usize) -> Result<()> {
        if len >= self.tail {
            return Ok(());
        }
        let what = format!("PowerSGD for {} elements got {len}", self.tail);
        Err(Error::usage(what, "create a codec for each bucket, from the shapes of its tensors"))
    }

    fn rounds(&self) -> usize {
        2
    }

    fn message_len(&self, round: usize, len: usize) -> usize {
        match round {
            0 => self.factors(|matrix| matrix.rows),
            _ => self.factors(|matrix| matrix.cols) + self.plain(len).map(|range| range.len()).sum::<usize>(),
        }
    }

    fn memory_len(&self, _: usize) -> usize {
        self.factors(|matrix| matrix.rows + matrix.cols)
    }

    fn encode(&self, round: Round<'_>, memory: &mut [f32], to: &mut [f32]) -> Result<(), CodecError> {
        let len = round.from.len();
        Self::check("tensors", len, len.max(self.tail))?;
        Self::check("memory", memory.len(), self.memory_len(len))?;
        Self::check("message", to.len(), self.message_len(round.number, len))?;
        let from = self.finite(round.from)?;
        if round.number == 0 {
            self.project(&from, round.seed, memory, to);
        } else {
            Self::check("reduced message", round.reduced.len(), self.message_len(0, len))?;
            self.project_back(&from, round.reduced, memory, to);
        }
        Ok(())
    }

    fn decode(&self, reduced: &[f32], memory: &mut [f32], to: &mut [f32], _: u64) -> Result<(), CodecError> {
        let len = to.len();
        Self::check("tensors", len, len.max(self.tail))?;
        Self::check("memory", memory.len(), self.memory_len(len))?;
        Self::check("reduced message", reduced.len(), self.message_len(1, len))?;
        let mut reduced = reduced;
        for (matrix, (q, p)) in self.matrices.iter().zip(self.memories(memory)) {
            let (new, rest) = reduced.split_at(q.len());
            q.copy_from_slice(new);
            reduced = rest;
            let to = &mut to[matrix.start..matrix.start + matrix.rows * matrix.cols];
            to.fill(0.0);
            add_product(1.0, p, q, matrix.cols, to);
        }
        for range in self.plain(len) {
            let (part, rest) = reduced.split_at(range.len());
            to[range].copy_from_slice(part);
            reduced = rest;
        }
        Ok(())
    }
}
