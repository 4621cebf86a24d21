//! Elementwise arithmetic over several buffers, on the device of the buffers: the steps of optimizers and moments.
//!
//! The host loop is in Rust. The entry of a `.cu` file next to it gives the same bits: where a stored value may be NaN,
//! both make it canonical.

use crate::float_ext::FloatExt;
use hexagram_logical::device::kernels::widest;
#[cfg(feature = "cuda")]
use hexagram_logical::device::program::{Argument, Launch, Module, Program};
use hexagram_logical::device::{Kernel, Operands, apply_all};
use hexagram_logical::{Buffer, Error, ReadView, Result, WriteView};
use std::fmt::Debug;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;

/// Arithmetic on elements of type `T`: reads `R` elements and writes `W` elements at each index.
pub(crate) trait Elementwise<T, const R: usize, const W: usize>:
    Debug + Send + Sync + 'static
{
    /// Computes on the host, on runs of equal length. Always inlined, so that it uses the vector instructions of the
    /// machine.
    fn run(&self, reads: [&[T]; R], writes: [&mut [T]; W]);

    /// Returns the entry for a GPU.
    #[cfg(feature = "cuda")]
    fn entry(&self) -> KernelEntry;
}

/// Entry of a GPU module for elementwise work. Its parameters are pointers to the runs, inputs first, then the length
/// and the scalars.
#[cfg(feature = "cuda")]
pub(crate) struct KernelEntry {
    /// Module of the entry.
    pub module: &'static Module,
    /// Name of the entry.
    pub name: &'static str,
    /// Arguments after the length.
    pub scalars: Vec<Argument>,
}

/// Returns the name of an entry for a type of elements, f32 or f64.
#[cfg(feature = "cuda")]
pub(crate) fn name_for<T: FloatExt>([narrow, wide]: [&'static str; 2]) -> &'static str {
    if T::DTYPE == hexagram_logical::DType::F64 { wide } else { narrow }
}

/// Runs elementwise work on parts of buffers; each part covers the same range of elements in all of them.
///
/// # Errors
/// [`Error::Usage`] unless the buffers have the same type and length, and the ranges are within it.
pub(crate) fn each<T: FloatExt, E: Elementwise<T, R, W>, const R: usize, const W: usize>(
    parts: Vec<(Range<usize>, E)>,
    reads: [&Buffer; R],
    writes: [&Buffer; W],
) -> Result<()> {
    let len = alike::<T>(&reads, &writes)?;
    within(len, parts.iter().map(|(range, _)| range))?;
    if parts.iter().all(|(range, _)| range.is_empty()) {
        return Ok(());
    }
    run(Arc::new(PartsKernel { parts, elements: PhantomData }), &reads, &writes)
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

/// Returns the common length of all buffers; fails unless they have one, and elements of type `T`.
pub(crate) fn alike<T: FloatExt>(reads: &[&Buffer], writes: &[&Buffer]) -> Result<usize> {
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

/// Fails unless all ranges have `len` elements.
pub(crate) fn within<'a>(len: usize, mut ranges: impl Iterator<Item = &'a Range<usize>>) -> Result<()> {
    let outside = ranges.find(|range| range.start > range.end || range.end > len);
    outside.map_or(Ok(()), |range| Err(not_within(len, range)))
}

fn not_within(len: usize, range: &Range<usize>) -> Error {
    let what = format!("elements {} to {} were given of {len}", range.start, range.end);
    Error::usage(what, "give sections and tensors of the bucket")
}

/// Kernel that works on parts of its operands.
#[derive(Debug)]
struct PartsKernel<T, E, const R: usize, const W: usize> {
    parts: Vec<(Range<usize>, E)>,
    elements: PhantomData<T>,
}

impl<T: FloatExt, E: Elementwise<T, R, W>, const R: usize, const W: usize> Kernel
    for PartsKernel<T, E, R, W>
{
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

/// Returns the operands of a kernel, from the start of a range, as arguments.
#[cfg(feature = "cuda")]
pub(crate) fn runs<T: FloatExt>(
    operands: Range<usize>,
    range: &Range<usize>,
) -> impl Iterator<Item = Argument> + use<T> {
    let start = range.start * size_of::<T>();
    operands.map(move |operand| Argument::OperandAt(operand, start))
}
