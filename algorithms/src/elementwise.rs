//! Arithmetic on the elements at one place of several buffers, done where the buffers are: what steps of optimizers and
//! moments are.
//!
//! The host's loop is in Rust, and an entry of a `.cu` file beside it has its bits: what both store is canonical where
//! it may be NaN.

use crate::real::Real;
use hexagram_logical::device::kernels::widest;
#[cfg(feature = "cuda")]
use hexagram_logical::device::program::{Argument, Launch, Module, Program};
use hexagram_logical::device::{Kernel, Operands, apply_all};
use hexagram_logical::{Buffer, Error, ReadView, Result, WriteView};
use std::fmt::Debug;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;

/// Arithmetic on elements of type `T`, of which `R` are read at each place, and `W` written.
pub(crate) trait Elementwise<T, const R: usize, const W: usize>:
    Debug + Send + Sync + 'static
{
    /// Does the work on the host, on runs of equal length. Always inlined, so that it has the instructions of the machine.
    fn run(&self, reads: [&[T]; R], writes: [&mut [T]; W]);

    /// Returns the entry that does it on a GPU.
    #[cfg(feature = "cuda")]
    fn entry(&self) -> Entry;
}

/// Entry of a module that does some work on elements. Its parameters are pointers to the runs, those that are read
/// first, their length, and then the scalars.
#[cfg(feature = "cuda")]
pub(crate) struct Entry {
    /// Module of the entry.
    pub module: &'static Module,
    /// Name of the entry.
    pub name: &'static str,
    /// Arguments after the length.
    pub scalars: Vec<Argument>,
}

/// Returns the name of an entry for a type of elements, f32 or f64.
#[cfg(feature = "cuda")]
pub(crate) fn name_for<T: Real>([narrow, wide]: [&'static str; 2]) -> &'static str {
    if T::DTYPE == hexagram_logical::DType::F64 { wide } else { narrow }
}

/// Does work on parts of buffers: each on a range of the elements of all of them.
///
/// # Errors
/// [`Error::Usage`] unless the buffers are of one type and length, and the ranges within it.
pub(crate) fn each<T: Real, E: Elementwise<T, R, W>, const R: usize, const W: usize>(
    parts: Vec<(Range<usize>, E)>,
    reads: [&Buffer; R],
    writes: [&Buffer; W],
) -> Result<()> {
    let len = alike::<T>(&reads, &writes)?;
    within(len, parts.iter().map(|(range, _)| range))?;
    if parts.iter().all(|(range, _)| range.is_empty()) {
        return Ok(());
    }
    run(Arc::new(Parts { parts, elements: PhantomData }), &reads, &writes)
}

/// Runs a kernel on whole buffers.
///
/// # Errors
/// As [`apply_all`].
pub(crate) fn run(kernel: Arc<dyn Kernel>, reads: &[&Buffer], writes: &[&Buffer]) -> Result<()> {
    let reads: Vec<ReadView> = reads.iter().map(|buffer| buffer.read_all()).collect::<Result<_>>()?;
    let mut writes: Vec<WriteView> = writes.iter().map(|buffer| buffer.write_all()).collect::<Result<_>>()?;
    apply_all(kernel, &reads, &mut writes)
}

/// Returns the length that all buffers have; fails unless they have one, and elements of type `T`.
pub(crate) fn alike<T: Real>(reads: &[&Buffer], writes: &[&Buffer]) -> Result<usize> {
    let mut all = reads.iter().chain(writes);
    let len = all.next().map_or(0, |buffer| buffer.len());
    match reads.iter().chain(writes).find(|buffer| (buffer.dtype(), buffer.len()) != (T::DTYPE, len)) {
        None => Ok(len),
        Some(other) => {
            let what = format!("{} × {} were given with {len} × {}", other.len(), other.dtype(), T::DTYPE);
            Err(Error::usage(what, "give buffers of one type and length"))
        }
    }
}

/// Fails unless all ranges are of `len` elements.
pub(crate) fn within<'a>(len: usize, mut ranges: impl Iterator<Item = &'a Range<usize>>) -> Result<()> {
    let outside = ranges.find(|range| range.start > range.end || range.end > len);
    outside.map_or(Ok(()), |range| Err(not_within(len, range)))
}

fn not_within(len: usize, range: &Range<usize>) -> Error {
    let what = format!("elements {} to {} were given of {len}", range.start, range.end);
    Error::usage(what, "give sections and tensors of the bucket")
}

/// Kernel that does work on parts of its operands.
#[derive(Debug)]
struct Parts<T, E, const R: usize, const W: usize> {
    parts: Vec<(Range<usize>, E)>,
    elements: PhantomData<T>,
}

impl<T: Real, E: Elementwise<T, R, W>, const R: usize, const W: usize> Kernel for Parts<T, E, R, W> {
    fn run(&self, operands: Operands<'_>) -> Result<()> {
        let (reads, mut writes) = operands.all::<T, R, W>()?;
        for (range, work) in &self.parts {
            let reads = reads.map(|run| &run[range.clone()]);
            let writes = writes.each_mut().map(|run| &mut run[range.clone()]);
            widest(|| work.run(reads, writes));
        }
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn program(&self) -> Option<Program> {
        let module = self.parts.first()?.1.entry().module;
        let launches = self.parts.iter().filter(|(range, _)| !range.is_empty()).map(|(range, work)| {
            let entry = work.entry();
            let runs = runs::<T>(0..R + W, range);
            let arguments = runs.chain([Argument::U64(range.len() as u64)]).chain(entry.scalars);
            Launch::over(entry.name, range.len(), arguments.collect())
        });
        Some(Program::in_turn(module, launches.collect(), 0))
    }
}

/// Returns some operands of a kernel from the beginning of a range on, as arguments.
#[cfg(feature = "cuda")]
pub(crate) fn runs<T: Real>(
    operands: Range<usize>,
    range: &Range<usize>,
) -> impl Iterator<Item = Argument> + use<T> {
    let start = range.start * size_of::<T>();
    operands.map(move |operand| Argument::OperandAt(operand, start))
}
