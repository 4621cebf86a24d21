//! Decodes arbitrary bytes as frames, for the fuzzers in `fuzz/` and the tests that replay their findings.

use super::frame::Header;
use super::inbox::{FrameEvent, FrameParser, PayloadSink, ReadTarget};
use crate::memory::Buffer;
use crate::memory::dtype::{DType, ReduceOp};
use crate::memory::landing::Landing;
use crate::transport::matching::Posted;
use crate::transport::{HEADER_BYTES, ReceiveMode, Source, Ticket};

/// Checks that a header which is accepted stays the same when it is written again, apart from unused bytes.
pub(crate) fn frame_header(data: &[u8]) {
    let Some(bytes) = data.first_chunk::<HEADER_BYTES>() else { return };
    if let Some(header) = Header::from_bytes(bytes) {
        assert_eq!(Header::from_bytes(&header.to_bytes()), Some(header));
    }
}

/// Feeds an inbox. The first byte is the size of the pieces in which the rest arrives, the second selects the place
/// of payloads. Headers are repaired, so that more inputs are accepted.
pub(crate) fn inbox(data: &[u8]) {
    let [piece, kind, bytes @ ..] = data else { return };
    let mut bytes = bytes.to_vec();
    repair(&mut bytes);
    let mut inbox = FrameParser::new();
    let mut kind = *kind;
    let mut read = 0;
    for mut piece in bytes.chunks(usize::from(*piece).max(1)) {
        while !piece.is_empty() {
            let before = piece.len();
            let stored = match inbox.read_target() {
                ReadTarget::Direct(room) => {
                    let bytes = room.len().min(piece.len());
                    room[..bytes].copy_from_slice(&piece[..bytes]);
                    Some(bytes)
                }
                ReadTarget::Staging { .. } => None,
            };
            let mut event = match stored {
                Some(bytes) => {
                    piece = &piece[bytes..];
                    inbox.stored(bytes)
                }
                None => inbox.push(&mut piece),
            };
            assert!(piece.len() < before, "no byte was taken");
            read += before - piece.len();
            while let Some(now) = event.take() {
                match now {
                    FrameEvent::Opened(header) => event = inbox.open(header, sink(header, &mut kind)),
                    FrameEvent::Closed(_, PayloadSink::Early(message)) => {
                        assert!(message.capacity() <= 2 * read + 64, "more memory than bytes");
                    }
                    FrameEvent::Closed(..) => {}
                    FrameEvent::Damaged => return,
                }
            }
        }
    }
}

/// Returns a sink that depends on `kind`.
fn sink(header: Header, kind: &mut u8) -> PayloadSink {
    *kind = kind.wrapping_mul(5).wrapping_add(1);
    let land = [ReceiveMode::Copy, ReceiveMode::Reduce(ReduceOp::Sum)][usize::from(*kind / 8 % 2)];
    match *kind % 4 {
        0 => PayloadSink::Discard,
        1 => PayloadSink::Early(Vec::new()),
        _ => {
            let len = usize::try_from(header.length / 4).unwrap_or(usize::MAX);
            let fits = header.length.is_multiple_of(4) && len <= 1 << 12;
            let view = fits.then(|| Buffer::zeroed(DType::F32, len).and_then(|buffer| buffer.write(0..len)));
            let Some(Ok(view)) = view else { return PayloadSink::Early(Vec::new()) };
            let ticket = Ticket { index: 0, generation: 0 };
            let landing = Landing::new(view, land);
            let source = Source::Any;
            PayloadSink::Landing(Box::new(Posted { ticket, source, label: header.label, landing }))
        }
    }
}

/// Makes a header valid wherever one is expected, if its fields can be.
fn repair(bytes: &mut [u8]) {
    let mut at = 0;
    while let Some(header) = bytes.get_mut(at..).and_then(|rest| rest.first_chunk_mut()) {
        Header::fix_checksum(header);
        let Some(length) = Header::from_bytes(header).and_then(|header| usize::try_from(header.length).ok())
        else {
            return;
        };
        at = at.saturating_add(HEADER_BYTES).saturating_add(length);
    }
}

/// Returns headers and labels for the corpus of the fuzzers, made by their encoders.
#[cfg(test)]
pub(crate) fn seeds() -> Vec<crate::testing::fuzzing::tests::Seed> {
    use crate::transport::Label;
    use crate::transport::fingerprint::{Fingerprint, OperationKind};
    use crate::transport::tag::Tag;
    let label = |kind, dtype, count| Label {
        tag: Tag::new(1, 2, 4, 3).unwrap(),
        fingerprint: Fingerprint::new(kind, dtype, count),
    };
    let sum = label(OperationKind::AllReduce, DType::F32, 16);
    let gather = label(OperationKind::Gather, DType::F64, 0);
    let header = |length, label| Header { length, label }.to_bytes().to_vec();
    vec![
        ("frame_header", "all_reduce", header(64, sum)),
        ("frame_header", "gather", header(0, gather)),
        ("frame_header", "too_long", header(1 << 63, sum)),
        ("label", "all_reduce", [sum.tag.to_bytes(), sum.fingerprint.to_bytes()].concat()),
    ]
}
