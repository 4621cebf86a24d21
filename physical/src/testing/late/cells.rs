//! Memory of the late device: host code that dereferences its addresses crashes immediately.

use crate::device::{Allocation, Failure, Kernel, Operands};
use crate::error::{Error, Result};
use crate::memory::{Keeper, Span};
use std::num::NonZeroUsize;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Invalid address: host code that dereferences it crashes immediately.
const NOWHERE: NonZeroUsize = NonZeroUsize::new(0xdead << 48).unwrap();

/// The device's memory: a lock around it, so that only forgotten waits are wrong, and nothing is undefined.
pub(super) struct Cells {
    words: Mutex<Vec<u64>>,
    /// Dropped with the memory.
    _owner: Option<Keeper>,
}

impl Cells {
    fn of(span: &Span) -> Result<&Cells, Failure> {
        let strange = || Failure::Fault(Error::usage("memory of a different device", "copy it"));
        span.keeper().ok_or_else(strange)
    }

    fn words(&self) -> MutexGuard<'_, Vec<u64>> {
        self.words.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a copy of the bytes of a span, as wide as to be aligned to any element.
    pub(super) fn read(span: &Span) -> Result<Vec<u64>, Failure> {
        let cells = Self::of(span)?.words();
        let bytes = &bytemuck::cast_slice::<u64, u8>(&cells)[span.offset()..][..span.byte_len()];
        let mut copy = vec![0u64; bytes.len().div_ceil(8)];
        bytemuck::cast_slice_mut(&mut copy)[..bytes.len()].copy_from_slice(bytes);
        Ok(copy)
    }

    pub(super) fn write<R>(span: &Span, write: impl FnOnce(&mut [u8]) -> R) -> Result<R, Failure> {
        let mut cells = Self::of(span)?.words();
        Ok(write(&mut bytemuck::cast_slice_mut::<u64, u8>(&mut cells)[span.offset()..][..span.byte_len()]))
    }

    /// Makes `kernel` write `to` from the current bytes of `from`.
    pub(super) fn combine<R>(
        from: &Span,
        to: &Span,
        kernel: impl FnOnce(&[u8], &mut [u8]) -> R,
    ) -> Result<R, Failure> {
        let cells = Self::read(from)?;
        let bytes = &bytemuck::cast_slice(&cells)[..from.byte_len()];
        Self::write(to, |to| kernel(bytes, to))
    }
}

/// Allocates zeroed memory at an address that no process can follow.
pub(super) fn allocate(bytes: usize, owner: Option<Keeper>) -> Allocation {
    let address = NonNull::<u8>::without_provenance(NOWHERE);
    let words = Mutex::new(vec![0; bytes.div_ceil(8)]);
    Allocation { address, keeper: Arc::new(Cells { words, _owner: owner }) }
}

/// Runs a kernel on copies of the cells, and stores its output.
pub(super) fn run_on_cells(kernel: &dyn Kernel, reads: &[Span], writes: &[Span]) -> Result<(), Failure> {
    let copies = |spans: &[Span]| spans.iter().map(Cells::read).collect::<Result<Vec<_>, Failure>>();
    let read = copies(reads)?;
    let mut written = copies(writes)?;
    let reads = read.iter().zip(reads);
    let reads = reads.map(|(cells, span)| (span.dtype(), &bytemuck::cast_slice(cells)[..span.byte_len()]));
    let outputs = written.iter_mut().zip(writes);
    let outputs =
        outputs.map(|(cells, span)| (span.dtype(), &mut bytemuck::cast_slice_mut(cells)[..span.byte_len()]));
    let operands = Operands { reads: reads.collect(), writes: outputs.collect() };
    kernel.run(operands).map_err(Failure::Fault)?;
    for (cells, span) in written.iter().zip(writes) {
        Cells::write(span, |to| to.copy_from_slice(&bytemuck::cast_slice(cells)[..to.len()]))?;
    }
    Ok(())
}
