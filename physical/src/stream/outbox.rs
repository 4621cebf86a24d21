//! Frames on their way out to one peer, in order.

use super::Wire;
use super::frame::{HEADER_BYTES, Header};
use crate::memory::ReadView;
use crate::transport::{Label, Ticket};
use std::collections::VecDeque;
use std::io::{self, IoSlice};

enum Payload {
    View(ReadView),
    /// The rest of a payload whose sender gave up when half of it was written: a stream cannot take bytes back.
    Orphan {
        /// Bytes before the rest.
        gone: usize,
        rest: Vec<u8>,
    },
}

impl Payload {
    fn len(&self) -> usize {
        match self {
            Payload::View(view) => view.bytes().len(),
            Payload::Orphan { gone, rest } => gone + rest.len(),
        }
    }

    /// What follows the first `written` bytes.
    fn after(&self, written: usize) -> &[u8] {
        match self {
            Payload::View(view) => &view.bytes()[written..],
            Payload::Orphan { gone, rest } => &rest[written - gone..],
        }
    }
}

struct Frame {
    ticket: Ticket,
    header: [u8; HEADER_BYTES],
    payload: Payload,
    /// Bytes written, header included.
    written: usize,
}

/// Frames written at once, at most.
const BATCH: usize = 16;

/// What became of a send.
pub(super) enum Sent {
    /// So many more bytes of it are written.
    Partly(Ticket, usize),
    /// All of it is; the payload had so many bytes.
    Wholly(Ticket, usize),
}

#[derive(Default)]
pub(super) struct Outbox {
    frames: VecDeque<Frame>,
}

impl Outbox {
    pub(super) fn push(&mut self, ticket: Ticket, label: Label, view: ReadView) {
        let header = Header { length: view.bytes().len() as u64, label }.to_bytes();
        self.frames.push_back(Frame { ticket, header, payload: Payload::View(view), written: 0 });
    }

    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Writes what fits; reports what moved. Whether anything moved.
    pub(super) fn flush(
        &mut self,
        wire: &mut impl Wire,
        peer: usize,
        mut sent: impl FnMut(Sent),
    ) -> io::Result<bool> {
        let mut moved = false;
        while !self.frames.is_empty() {
            let mut space = [IoSlice::new(&[]); 2 * BATCH];
            let mut written = wire.write(peer, self.parts(&mut space))?;
            if written == 0 {
                break;
            }
            moved = true;
            while let Some(frame) = self.frames.front_mut() {
                let bytes = frame.payload.len();
                let missing = HEADER_BYTES + bytes - frame.written;
                if written < missing {
                    frame.written += written;
                    sent(Sent::Partly(frame.ticket, written));
                    break;
                }
                written -= missing;
                sent(Sent::Wholly(frame.ticket, bytes));
                self.frames.pop_front();
            }
        }
        Ok(moved)
    }

    /// What is to be written next, laid out in `space`.
    fn parts<'s, 'a: 's>(&'a self, space: &'s mut [IoSlice<'a>; 2 * BATCH]) -> &'s [IoSlice<'a>] {
        let pieces = self.frames.iter().take(BATCH).flat_map(|frame| {
            let header = &frame.header[frame.written.min(HEADER_BYTES)..];
            [header, frame.payload.after(frame.written.saturating_sub(HEADER_BYTES))]
        });
        let mut used = 0;
        for (slot, piece) in space.iter_mut().zip(pieces.filter(|piece| !piece.is_empty())) {
            *slot = IoSlice::new(piece);
            used += 1;
        }
        &space[..used]
    }

    /// Withdraws a frame, or keeps a copy of its rest if it has begun. Releases the view either way.
    pub(super) fn cancel(&mut self, ticket: Ticket) {
        self.frames.retain_mut(|frame| {
            if frame.ticket == ticket && frame.written > 0 {
                let gone = frame.written.saturating_sub(HEADER_BYTES);
                frame.payload = Payload::Orphan { gone, rest: frame.payload.after(gone).to_vec() };
            }
            frame.ticket != ticket || frame.written > 0
        });
    }
}
