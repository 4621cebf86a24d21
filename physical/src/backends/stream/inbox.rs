//! Incoming frames from one peer: parsed from pieces of any size, landed as they arrive.

use super::frame::Header;
use crate::memory::landing::WIDEST;
use crate::transport::matching::Posted;
use crate::transport::{HEADER_BYTES, Label, Ticket};

/// Destination of the payload that is arriving.
pub(super) enum PayloadSink {
    /// A posted receive, directly.
    Landing(Box<Posted>),
    /// Separate memory until its receive is posted. It grows with the bytes that have arrived, not with the announced
    /// length.
    Early(Vec<u8>),
    /// Nowhere: its receive was cancelled or refused it.
    Discard,
}

/// Destination of the next bytes that are read from a stream.
pub(super) enum ReadTarget<'a> {
    /// The view of a receive.
    Direct(&'a mut [u8]),
    /// A staging buffer, to be pushed afterwards: at most `at_most` bytes, after skipping `skip`, so that elements
    /// have the alignment of the buffer.
    Staging { skip: usize, at_most: usize },
}

/// Maximum bytes per read before a header. They hold a whole small message, or several; those of a large one are
/// copied once more than the rest.
const BETWEEN: usize = 16 * 1024;

/// Returns the number of bytes to read for the rest of a payload and the header after it.
fn with_next(missing: u64) -> usize {
    usize::try_from(missing).unwrap_or(usize::MAX).saturating_add(BETWEEN)
}

/// Position in the stream: in a header or in a payload.
enum InboxState {
    Header { bytes: [u8; HEADER_BYTES], filled: usize },
    Payload { label: Label, missing: u64, sink: PayloadSink },
}

/// Parser of the frames from one peer.
pub(super) struct FrameParser {
    state: InboxState,
}

/// Next step, as decided by the bytes so far.
pub(super) enum FrameEvent {
    /// A header is complete: choose a sink with [`FrameParser::open`].
    Opened(Header),
    /// A payload is complete.
    Closed(Label, PayloadSink),
    /// The bytes are not valid frames.
    Damaged,
}

impl FrameParser {
    /// Creates an inbox that expects a header.
    pub(super) fn new() -> Self {
        FrameParser { state: InboxState::Header { bytes: [0; HEADER_BYTES], filled: 0 } }
    }

    /// Directs the payload announced by the last header to `sink`. An empty payload is complete immediately.
    pub(super) fn open(&mut self, header: Header, sink: PayloadSink) -> Option<FrameEvent> {
        self.state = InboxState::Payload { label: header.label, missing: header.length, sink };
        self.close_if_complete()
    }

    /// Consumes a prefix of `bytes`, shortening it. Stops at the first event.
    pub(super) fn push(&mut self, bytes: &mut &[u8]) -> Option<FrameEvent> {
        match &mut self.state {
            InboxState::Header { bytes: header, filled } => {
                let take = (HEADER_BYTES - *filled).min(bytes.len());
                let (now, later) = bytes.split_at(take);
                header[*filled..][..take].copy_from_slice(now);
                *filled += take;
                *bytes = later;
                if *filled < HEADER_BYTES {
                    return None;
                }
                Some(Header::from_bytes(header).map_or(FrameEvent::Damaged, FrameEvent::Opened))
            }
            InboxState::Payload { missing, sink, .. } => {
                let take = usize::try_from(*missing).unwrap_or(usize::MAX).min(bytes.len());
                let (now, later) = bytes.split_at(take);
                match sink {
                    PayloadSink::Landing(posted) => posted.landing.push(now),
                    PayloadSink::Early(early) => early.extend_from_slice(now),
                    PayloadSink::Discard => {}
                }
                *missing -= take as u64;
                *bytes = later;
                self.close_if_complete()
            }
        }
    }

    /// Returns the destination of the next bytes.
    pub(super) fn read_target(&mut self) -> ReadTarget<'_> {
        match &mut self.state {
            InboxState::Payload { sink: PayloadSink::Landing(posted), missing, .. } => {
                let skip = posted.landing.odd();
                let at_most = with_next(*missing);
                let missing = usize::try_from(*missing).unwrap_or(usize::MAX);
                match posted.landing.direct() {
                    // The view may be longer than the message.
                    Some(view) => ReadTarget::Direct(&mut view[..missing]),
                    None => ReadTarget::Staging { skip, at_most },
                }
            }
            InboxState::Payload { missing, .. } => {
                ReadTarget::Staging { skip: 0, at_most: with_next(*missing) }
            }
            InboxState::Header { filled, .. } => {
                ReadTarget::Staging { skip: *filled % WIDEST, at_most: BETWEEN }
            }
        }
    }

    /// Counts bytes stored in [`ReadTarget::Direct`].
    pub(super) fn stored(&mut self, bytes: usize) -> Option<FrameEvent> {
        if let InboxState::Payload { missing, sink: PayloadSink::Landing(posted), .. } = &mut self.state {
            posted.landing.stored(bytes);
            *missing -= bytes as u64;
        }
        self.close_if_complete()
    }

    /// Returns the event of a complete payload, if it is complete.
    fn close_if_complete(&mut self) -> Option<FrameEvent> {
        if !matches!(self.state, InboxState::Payload { missing: 0, .. }) {
            return None;
        }
        match std::mem::replace(&mut self.state, FrameParser::new().state) {
            InboxState::Payload { label, sink, .. } => Some(FrameEvent::Closed(label, sink)),
            InboxState::Header { .. } => None,
        }
    }

    /// Returns the receive into which bytes are landing.
    pub(super) fn ticket(&self) -> Option<Ticket> {
        match &self.state {
            InboxState::Payload { sink: PayloadSink::Landing(posted), .. } => Some(posted.ticket),
            _ => None,
        }
    }

    /// Gives a new receive the early payload that is arriving, if it is the one that the receive waits for; otherwise
    /// returns the receive.
    pub(super) fn adopt(&mut self, mut posted: Posted) -> Option<Posted> {
        match &mut self.state {
            InboxState::Payload { label, missing, sink } if *label == posted.label => {
                let PayloadSink::Early(early) = sink else { return Some(posted) };
                if !posted.landing.fits(early.len() as u64 + *missing) {
                    return Some(posted);
                }
                posted.landing.push(early);
                *sink = PayloadSink::Landing(Box::new(posted));
                None
            }
            _ => Some(posted),
        }
    }

    /// Stops landing into the view of a cancelled receive.
    pub(super) fn cancel(&mut self, ticket: Ticket) {
        if let InboxState::Payload { sink, .. } = &mut self.state
            && matches!(sink, PayloadSink::Landing(posted) if posted.ticket == ticket)
        {
            *sink = PayloadSink::Discard;
        }
    }
}
