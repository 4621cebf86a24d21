//! Payloads of large messages: a few pieces at a time between a view and MPI, from the first to the last.
//!
//! MPI reads and writes the view itself, unless the bytes are reduced or the memory is borrowed: then a piece passes
//! through staging, which is bounded whatever the length.

use super::link::{Remote, RequestSet};
use crate::error::Result;
use crate::memory::ReadView;
use crate::memory::landing::Landing;
use crate::transport::{Received, Ticket};
use std::ffi::c_int;
use std::ptr;

/// Bytes of a piece: large enough to cost nothing, far below the largest count of MPI.
const PIECE: usize = 1 << 20;
/// Number of pieces in flight at a time.
const WINDOW: usize = 4;

/// Division of one payload into pieces, and their progress.
struct Pieces {
    peer: Remote,
    tag: c_int,
    length: usize,
    /// Bytes given to MPI.
    posted: usize,
    /// Bytes that MPI has finished.
    done: usize,
}

impl Pieces {
    /// Returns offset and length of the next piece, or `None` after the last and while enough are in flight.
    fn next(&mut self, under_way: usize) -> Option<(usize, usize)> {
        let start = self.posted;
        let length = PIECE.min(self.length - start);
        if length == 0 || under_way == WINDOW {
            return None;
        }
        self.posted += length;
        Some((start, length))
    }

    /// Returns offset and length of the oldest piece in flight, which is complete.
    fn arrived(&mut self) -> (usize, usize) {
        let start = self.done;
        let length = PIECE.min(self.length - start);
        self.done += length;
        (start, length)
    }
}

/// Memory that pieces pass through, if they do.
struct PieceBuffers(Vec<Box<[u8]>>);

impl PieceBuffers {
    /// Allocates memory for the pieces in flight if it is needed.
    fn new(needed: bool, length: usize) -> Self {
        let pieces = if needed { length.div_ceil(PIECE).min(WINDOW) } else { 0 };
        PieceBuffers((0..pieces).map(|_| vec![0; PIECE.min(length)].into()).collect())
    }

    /// Returns true if pieces pass through this memory.
    fn is_used(&self) -> bool {
        !self.0.is_empty()
    }

    /// Returns the memory of the piece at offset `start`, or `None` if pieces go straight to the view.
    fn at(&mut self, start: usize) -> Option<&mut [u8]> {
        self.0.get_mut(start / PIECE % WINDOW).map(|piece| &mut piece[..])
    }
}

/// Source or destination of a payload.
enum TransferEnd {
    Out(ReadView),
    In(Landing),
}

/// Memory that a transfer uses.
struct TransferMemory {
    /// The view; `None` once the transfer was abandoned and MPI does not use the view.
    end: Option<TransferEnd>,
    /// First byte of the view, if MPI uses it directly.
    direct: *mut u8,
    staging: PieceBuffers,
}

/// Payload in flight.
pub(super) struct PayloadTransfer {
    /// Ticket, or `None` once the transfer was abandoned.
    pub(super) ticket: Option<Ticket>,
    pieces: Pieces,
    requests: RequestSet<TransferMemory>,
}

impl PayloadTransfer {
    /// Creates the transfer of `view` to rank `to`.
    pub(super) fn out(to: Remote, tag: c_int, ticket: Ticket, view: ReadView) -> Self {
        let bytes = view.bytes();
        let length = bytes.len();
        let direct = bytes.as_ptr().cast_mut();
        let staged = view.is_lent();
        Self::new(
            Pieces { peer: to, tag, length, posted: 0, done: 0 },
            ticket,
            TransferEnd::Out(view),
            direct,
            staged,
        )
    }

    /// Creates the transfer of `length` bytes, which fit the landing, from a rank under a tag.
    pub(super) fn into(
        (peer, tag): (Remote, c_int),
        ticket: Ticket,
        mut landing: Landing,
        length: usize,
    ) -> Self {
        let lent = landing.view().is_lent();
        let direct = landing.direct().map_or(ptr::null_mut(), <[u8]>::as_mut_ptr);
        let staged = lent || direct.is_null();
        let pieces = Pieces { peer, tag, length, posted: 0, done: 0 };
        Self::new(pieces, ticket, TransferEnd::In(landing), direct, staged)
    }

    /// Creates a transfer from its parts.
    fn new(pieces: Pieces, ticket: Ticket, end: TransferEnd, direct: *mut u8, staged: bool) -> Self {
        let staging = PieceBuffers::new(staged, pieces.length);
        let requests = RequestSet::new(TransferMemory { end: Some(end), direct, staging });
        PayloadTransfer { ticket: Some(ticket), pieces, requests }
    }

    /// Returns the result of the complete transfer.
    pub(super) fn got(&self) -> Received {
        Received { peer: self.pieces.peer.rank, bytes: self.pieces.length }
    }

    /// Returns true if all bytes have moved.
    pub(super) fn is_done(&self) -> bool {
        self.pieces.done == self.pieces.length
    }

    /// Moves the bytes that are ready. Returns the number of bytes that MPI has finished since the last call.
    pub(super) fn progress(&mut self) -> Result<usize> {
        let before = self.pieces.done;
        loop {
            while let Some((start, length)) = self.pieces.next(self.requests.pending()) {
                self.post(start, length)?;
            }
            if self.requests.test()?.is_none() {
                return Ok(self.pieces.done - before);
            }
            let (start, length) = self.pieces.arrived();
            let TransferMemory { end, staging, .. } = self.requests.held();
            if let (Some(TransferEnd::In(landing)), Some(staged)) = (end, staging.at(start)) {
                landing.push(&staged[..length]);
            }
        }
    }

    /// Hands one piece to MPI.
    fn post(&mut self, start: usize, length: usize) -> Result<()> {
        let Pieces { peer: Remote { comm, place: peer, .. }, tag, .. } = self.pieces;
        let outwards = matches!(self.requests.held().end, Some(TransferEnd::Out(_)));
        let place = |held: &mut TransferMemory| match (&held.end, held.staging.at(start)) {
            (Some(TransferEnd::Out(view)), Some(staged)) => {
                staged[..length].copy_from_slice(&view.bytes()[start..][..length]);
                staged.as_mut_ptr()
            }
            (_, Some(staged)) => staged.as_mut_ptr(),
            // In bounds, as the view has `pieces.length` bytes.
            (_, None) => held.direct.wrapping_add(start),
        };
        // SAFETY: the view excludes all other users of its memory, which contains these bytes. A piece of staging is
        // not reused before its request is done, since there is one per request.
        unsafe {
            if outwards {
                comm.send(peer, tag, &mut self.requests, |held| (place(held).cast_const(), length))
            } else {
                comm.receive(Some(peer), tag, &mut self.requests, |held| (place(held), length))
            }
        }
    }

    /// Posts no more requests, cancels those that MPI has not begun, and releases the view. If MPI is using the view,
    /// its release waits for [`PayloadTransfer::is_over`].
    pub(super) fn abandon(&mut self) {
        self.ticket = None;
        if matches!(self.requests.held().end, Some(TransferEnd::In(_))) {
            self.requests.cancel();
        }
        if self.requests.pending() == 0 || self.requests.held().staging.is_used() {
            self.requests.held().end = None;
        }
    }

    /// Returns true once MPI uses none of its memory.
    pub(super) fn is_over(&mut self) -> bool {
        self.requests.settle()
    }
}
