//! One collective executed by MPI, piece by piece, in place if possible, and through staging otherwise.
//!
//! The pieces depend only on values that are equal on all ranks, so that all ranks make the same calls. They bound
//! the staging, and keep counts far below the largest `int`.

use super::collectives::CollectiveViews;
use super::library::MpiStartup;
use super::link::{MpiComm, RequestSet};
use super::operators::{Operator, operator};
use crate::device;
use crate::error::Result;
use crate::memory::ReadView;
use crate::memory::dtype::{DType, ReduceOp};
use crate::transport::fingerprint::{Fingerprint, OperationKind};
use mpi::ffi;
use std::ffi::{c_int, c_void};
use std::ops::Range;

/// Bytes of a piece, of all ranks' blocks together.
const PIECE: usize = 8 << 20;

/// Operation, its operator and its division into pieces.
#[derive(Clone, Copy)]
struct RunPlan {
    comm: MpiComm,
    ranks: usize,
    what: Fingerprint,
    operator: Operator,
    /// Number of elements in the buffer, or in one rank's block.
    len: usize,
    /// Number of those elements in one piece.
    piece: usize,
    /// True if one side holds blocks of all ranks.
    blocks: bool,
    staged: bool,
}

/// Memory that a collective uses.
struct RunMemory {
    views: Option<CollectiveViews>,
    /// Memory for one piece of each side.
    staging: Box<[u64]>,
}

/// Collective carried out by MPI.
pub(super) struct CollectiveRun {
    plan: RunPlan,
    /// Number of elements that are complete.
    done: usize,
    /// Elements that MPI works on.
    under_way: Option<Range<usize>>,
    /// True once all is complete. A barrier has no elements, and must still be awaited.
    finished: bool,
    bytes: usize,
    requests: RequestSet<RunMemory>,
}

impl CollectiveRun {
    /// Plans the operation. MPI gets the first piece with [`CollectiveRun::progress`].
    pub(super) fn new(
        comm: MpiComm,
        ranks: usize,
        what: Fingerprint,
        views: CollectiveViews,
    ) -> Result<Self> {
        let (input, output) = &views;
        let size = what.dtype.size();
        let blocks = matches!(what.operation, OperationKind::AllGather | OperationKind::ReduceScatter);
        let bytes = output.byte_len();
        let input_bytes = input.as_ref().map_or(0, |view| view.byte_len());
        let whole = bytes.max(input_bytes) / size;
        let (len, piece) = if blocks { (whole / ranks, PIECE / size / ranks) } else { (whole, PIECE / size) };
        let piece = piece.max(1);
        let borrowed = input.as_ref().is_some_and(ReadView::is_lent) || output.is_lent();
        // Contributions are divided before the sum, and the input must not be changed.
        let divides = what.operation == OperationKind::ReduceScatter && divides_first(&what);
        let staged = borrowed || divides || (blocks && len > piece);
        let room = if staged { len.min(piece) * if blocks { ranks + 1 } else { 1 } * size } else { 0 };
        let operator = operator(what.reduce.unwrap_or(ReduceOp::Sum), what.dtype)?;
        let plan = RunPlan { comm, ranks, what, operator, len, piece, blocks, staged };
        let held = RunMemory { views: Some(views), staging: vec![0; room.div_ceil(8)].into() };
        let finished = len == 0 && what.operation != OperationKind::Barrier;
        Ok(CollectiveRun { plan, done: 0, under_way: None, finished, bytes, requests: RequestSet::new(held) })
    }

    /// Returns the bytes of the output.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns true if the result is complete.
    pub(super) fn is_done(&self) -> bool {
        self.finished
    }

    /// Moves the bytes that are ready. Returns the number of bytes of this rank that were completed since the last
    /// call.
    pub(super) fn progress(&mut self) -> Result<usize> {
        let before = self.done;
        while !self.finished {
            let Some(range) = self.under_way.clone() else {
                self.post()?;
                continue;
            };
            if self.requests.test()?.is_none() {
                break;
            }
            self.plan.finish(self.requests.held(), &range);
            self.under_way = None;
            self.done = range.end;
            self.finished = range.end == self.plan.len;
        }
        Ok((self.done - before) * self.plan.what.dtype.size())
    }

    /// Hands the next piece to MPI.
    fn post(&mut self) -> Result<()> {
        let plan = self.plan;
        let range = self.done..plan.len.min(self.done + plan.piece);
        plan.prepare(self.requests.held(), &range);
        // SAFETY: the views keep everyone else from their memory; MPI gets parts of them, or of the staging, which is
        // not used again before this request is done.
        unsafe {
            self.requests.start(plan.doing(), |held, request| {
                let (from, to) = plan.sides(held, &range);
                plan.call(from, to, range.len() as c_int, request)
            })?;
        }
        self.under_way = Some(range);
        Ok(())
    }

    /// Posts nothing more, and releases the views unless MPI works on them: then that waits for
    /// [`CollectiveRun::is_over`].
    pub(super) fn abandon(&mut self) {
        if self.requests.pending() == 0 || self.plan.staged {
            self.requests.held().views = None;
        }
    }

    /// Returns true once MPI uses none of its memory. MPI cannot cancel a collective: if another rank never takes part,
    /// this stays false.
    pub(super) fn is_over(&mut self) -> bool {
        self.requests.settle()
    }
}

/// Returns true if contributions are divided before the sum: for the mean of 16-bit floats.
fn divides_first(what: &Fingerprint) -> bool {
    what.reduce == Some(ReduceOp::Mean) && what.dtype.is_half()
}

/// Returns elements `range` of block `index` of blocks of `len` elements, in bytes.
fn of_block(index: usize, len: usize, range: &Range<usize>, dtype: DType) -> Range<usize> {
    let size = dtype.size();
    (index * len + range.start) * size..(index * len + range.end) * size
}

impl RunPlan {
    /// Returns an infinitive for errors.
    fn doing(&self) -> &'static str {
        match self.what.operation {
            OperationKind::AllReduce => "all-reduce by MPI",
            OperationKind::Broadcast => "broadcast by MPI",
            OperationKind::AllGather => "all-gather by MPI",
            OperationKind::ReduceScatter => "reduce-scatter by MPI",
            _ => "wait at an MPI barrier",
        }
    }

    /// Copies the elements of this rank to the input of MPI, divided if the division comes first.
    fn prepare(&self, held: &mut RunMemory, range: &Range<usize>) {
        let RunPlan { what, len, ranks, .. } = *self;
        let Some((input, output)) = &mut held.views else { return };
        let staging: &mut [u8] = bytemuck::cast_slice_mut(&mut held.staging);
        let n = range.len() * what.dtype.size();
        let contribution = match (self.staged, what.operation) {
            (true, OperationKind::ReduceScatter) => {
                for index in 0..ranks {
                    let part = of_block(index, len, range, what.dtype);
                    staging[index * n..][..n].copy_from_slice(&whole(input.as_ref())[part]);
                }
                &mut staging[..ranks * n]
            }
            (true, OperationKind::AllGather) => {
                let part = of_block(0, len, range, what.dtype);
                staging[..n].copy_from_slice(&whole(input.as_ref())[part]);
                &mut staging[..n]
            }
            (true, _) => {
                staging[..n].copy_from_slice(&output.bytes()[of_block(0, len, range, what.dtype)]);
                &mut staging[..n]
            }
            (false, _) if self.blocks => return,
            (false, _) => &mut output.bytes_mut()[of_block(0, len, range, what.dtype)],
        };
        if divides_first(&what) {
            device::divide(ranks, what.dtype, contribution);
        }
    }

    /// Returns the addresses of the input and output of MPI.
    fn sides(&self, held: &mut RunMemory, range: &Range<usize>) -> (*const c_void, *mut c_void) {
        let n = range.len() * self.what.dtype.size();
        let input_side = if self.what.operation == OperationKind::ReduceScatter { self.ranks * n } else { n };
        if self.staged {
            let staging: &mut [u8] = bytemuck::cast_slice_mut(&mut held.staging);
            let base = staging.as_mut_ptr();
            let to = if self.blocks { base.wrapping_add(input_side) } else { base };
            return (base.cast_const().cast(), to.cast());
        }
        match &mut held.views {
            Some((input, output)) => {
                let start = if self.blocks { 0 } else { range.start * self.what.dtype.size() };
                let to = output.bytes_mut().as_mut_ptr().wrapping_add(start);
                (whole(input.as_ref()).as_ptr().cast(), to.cast())
            }
            None => (std::ptr::null(), std::ptr::null_mut()),
        }
    }

    /// Starts the operation of MPI.
    ///
    /// # Safety
    /// `from` and `to` point to `count` elements, or `count` for each rank on a side that has blocks.
    unsafe fn call(
        &self,
        from: *const c_void,
        to: *mut c_void,
        count: c_int,
        request: *mut ffi::MPI_Request,
    ) -> c_int {
        let Operator { dtype, op } = self.operator;
        let comm = self.comm.0;
        // SAFETY: promised by the caller.
        unsafe {
            match self.what.operation {
                OperationKind::AllReduce => {
                    let in_place = MpiStartup::get().ok().and_then(|library| library.in_place);
                    let from = in_place.unwrap_or(from);
                    ffi::MPI_Iallreduce(from, to, count, dtype, op, comm, request)
                }
                OperationKind::Broadcast => {
                    let root = self.what.root.unwrap_or(0) as c_int;
                    ffi::MPI_Ibcast(to, count, dtype, root, comm, request)
                }
                OperationKind::AllGather => {
                    ffi::MPI_Iallgather(from, count, dtype, to, count, dtype, comm, request)
                }
                OperationKind::ReduceScatter => {
                    ffi::MPI_Ireduce_scatter_block(from, to, count, dtype, op, comm, request)
                }
                _ => ffi::MPI_Ibarrier(comm, request),
            }
        }
    }

    /// Copies the elements from the output of MPI, and completes means and NaNs.
    fn finish(&self, held: &mut RunMemory, range: &Range<usize>) {
        let RunPlan { what, len, ranks, .. } = *self;
        let Some((_, output)) = &mut held.views else { return };
        let staging: &[u8] = bytemuck::cast_slice(&held.staging);
        let n = range.len() * what.dtype.size();
        let landed = of_block(0, len, range, what.dtype);
        match (self.staged, what.operation) {
            (true, OperationKind::AllGather) => {
                for index in 0..ranks {
                    let part = of_block(index, len, range, what.dtype);
                    output.bytes_mut()[part].copy_from_slice(&staging[(index + 1) * n..][..n]);
                }
            }
            (true, OperationKind::ReduceScatter) => {
                output.bytes_mut()[landed.clone()].copy_from_slice(&staging[ranks * n..][..n]);
            }
            (true, _) => output.bytes_mut()[landed.clone()].copy_from_slice(&staging[..n]),
            (false, _) => {}
        }
        match what.reduce {
            // Division produces the canonical NaN as well.
            Some(ReduceOp::Mean) if !divides_first(&what) => {
                device::divide(ranks, what.dtype, &mut output.bytes_mut()[landed]);
            }
            // If MPI adds and multiplies itself, a NaN may have any payload.
            Some(ReduceOp::Sum | ReduceOp::Product) if ranks > 1 => {
                device::canonicalize(what.dtype, &mut output.bytes_mut()[landed]);
            }
            _ => {}
        }
    }
}

/// Returns the bytes of a view, or none without a view.
fn whole(view: Option<&ReadView>) -> &[u8] {
    view.map_or(&[], ReadView::bytes)
}
