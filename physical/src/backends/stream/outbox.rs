//! Outgoing frames to one peer, in order.

use super::Link;
use super::frame::Header;
use crate::memory::ReadView;
use crate::transport::{HEADER_BYTES, Label, Ticket};
use std::collections::VecDeque;
use std::io::{self, IoSlice};

/// Payload of an outgoing frame.
enum FramePayload {
    /// The sender's view.
    View(ReadView),
    /// Copy of the rest of a payload whose sender has cancelled after a part was written: a stream cannot take bytes back.
    Abandoned {
        /// Number of payload bytes before the rest.
        offset: usize,
        rest: Vec<u8>,
    },
}

impl FramePayload {
    /// Returns the bytes of the payload.
    fn len(&self) -> usize {
        match self {
            FramePayload::View(view) => view.byte_len(),
            FramePayload::Abandoned { offset, rest } => offset + rest.len(),
        }
    }

    /// Returns the bytes after the first `written` ones.
    fn after(&self, written: usize) -> &[u8] {
        match self {
            FramePayload::View(view) => &view.bytes()[written..],
            FramePayload::Abandoned { offset, rest } => &rest[written - offset..],
        }
    }
}

/// Outgoing frame.
struct Frame {
    ticket: Ticket,
    header: [u8; HEADER_BYTES],
    payload: FramePayload,
    /// Bytes written, header included.
    written: usize,
}

/// Maximum number of frames per write.
const BATCH: usize = 16;

/// Progress of a send.
pub(super) enum SendProgress {
    /// Number of further bytes that are written.
    Partially(Ticket, usize),
    /// All of it is written; the payload had this number of bytes.
    Completely(Ticket, usize),
}

/// Queue of frames to one peer.
#[derive(Default)]
pub(super) struct FrameQueue {
    frames: VecDeque<Frame>,
}

impl FrameQueue {
    /// Queues a frame.
    pub(super) fn push(&mut self, ticket: Ticket, label: Label, view: ReadView) {
        let header = Header { length: view.byte_len() as u64, label }.to_bytes();
        self.frames.push_back(Frame { ticket, header, payload: FramePayload::View(view), written: 0 });
    }

    /// Returns true if no frame is queued.
    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Writes as much as the stream takes, and reports progress to `sent`. Returns true if anything was written.
    pub(super) fn flush(
        &mut self,
        link: &mut impl Link,
        mut sent: impl FnMut(SendProgress),
    ) -> io::Result<bool> {
        let mut moved = false;
        while !self.frames.is_empty() {
            let mut space = [IoSlice::new(&[]); 2 * BATCH];
            let mut written = link.write(self.parts(&mut space))?;
            if written == 0 {
                break;
            }
            moved = true;
            while let Some(frame) = self.frames.front_mut() {
                let bytes = frame.payload.len();
                let missing = HEADER_BYTES + bytes - frame.written;
                if written < missing {
                    frame.written += written;
                    sent(SendProgress::Partially(frame.ticket, written));
                    break;
                }
                written -= missing;
                sent(SendProgress::Completely(frame.ticket, bytes));
                self.frames.pop_front();
            }
        }
        Ok(moved)
    }

    /// Collects the next bytes to write in `space`.
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

    /// Withdraws a frame, or keeps a copy of its rest if it has begun or is among the next `committed` bytes. Releases
    /// the view either way.
    pub(super) fn cancel(&mut self, ticket: Ticket, committed: usize) {
        let mut before = 0;
        self.frames.retain_mut(|frame| {
            let resumable = frame.written > 0 || before < committed;
            before += HEADER_BYTES + frame.payload.len() - frame.written;
            if frame.ticket == ticket && resumable {
                let offset = frame.written.saturating_sub(HEADER_BYTES);
                frame.payload =
                    FramePayload::Abandoned { offset, rest: frame.payload.after(offset).to_vec() };
            }
            frame.ticket != ticket || resumable
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::ReadOutcome;
    use super::*;
    use crate::memory::Buffer;
    use crate::memory::dtype::DType;
    use crate::transport::TransportKind;
    use crate::transport::fingerprint::{Fingerprint, OperationKind};
    use crate::transport::tag::Tag;

    /// Keeps all that is written, but accepts nothing before it is open.
    #[derive(Default)]
    struct Kept {
        open: bool,
        bytes: Vec<u8>,
    }

    impl Link for Kept {
        fn path(&self) -> TransportKind {
            TransportKind::Tcp
        }

        fn write(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
            if self.open {
                parts.iter().for_each(|part| self.bytes.extend_from_slice(part));
            }
            Ok(if self.open { parts.iter().map(|part| part.len()).sum() } else { 0 })
        }

        fn read(&mut self, _: &mut [u8]) -> io::Result<ReadOutcome> {
            Ok(ReadOutcome::Nothing)
        }
    }

    #[test]
    fn committed_frames_are_not_withdrawn() {
        let frame = HEADER_BYTES + 8;
        // Nothing is committed; the first frame in part; all of it with one byte of the second.
        for (committed, kept) in [(0, 1), (5, 2), (frame, 2), (frame + 1, 3)] {
            let mut outbox = FrameQueue::default();
            let mut link = Kept::default();
            let tickets = [0, 1, 2].map(|index| Ticket { index, generation: 0 });
            for ticket in tickets {
                let fingerprint = Fingerprint::new(OperationKind::SendRecv, DType::F64, 1);
                let label = Label { tag: Tag::new(0, 0, 0, ticket.index as usize).unwrap(), fingerprint };
                let buffer = Buffer::from_slice(&[f64::from(ticket.index)]).unwrap();
                outbox.push(ticket, label, buffer.read(0..1).unwrap());
            }
            assert!(!outbox.flush(&mut link, |_| panic!("nothing was written")).unwrap());
            outbox.cancel(tickets[0], committed);
            // After the first frame only if that has not left.
            outbox.cancel(tickets[1], committed);
            link.open = true;
            outbox.flush(&mut link, |_| {}).unwrap();
            assert_eq!(link.bytes.len(), kept * frame, "{committed} bytes were committed");
        }
    }
}
