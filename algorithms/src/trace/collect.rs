//! The gathering of the spans of all ranks at rank 0.

use super::RankTrace;
use super::clock::{Alignment, Offset, TraceClock, align};
use super::record::{LIMIT, Recorder, Span};
use crate::record::announced;
use hexagram_logical::{Communicator, Result};
use std::time::Duration;

/// Records of one rank, on its own clock.
pub(crate) struct RankRecords {
    pub(crate) clock: TraceClock,
    pub(crate) training: Recorder,
    pub(crate) communication: Recorder,
    /// Offsets of all ranks at the beginning of the trace, on rank 0.
    pub(crate) first: Vec<Offset>,
}

/// Gathers the records of all ranks at rank 0. A collective call.
///
/// Messages: those of an alignment, and two from every rank to rank 0, of 24 bytes and of 64 bytes per span.
pub(crate) fn gather(comm: &Communicator, mine: RankRecords) -> Result<Option<Vec<RankTrace>>> {
    let last = align(comm, &mine.clock)?;
    let RankRecords { training, communication, first, .. } = mine;
    let Recorder { spans: training, device: enqueued, dropped, .. } = training;
    let Recorder { spans: hooks, device, dropped: missed, .. } = communication;
    let dropped = dropped + missed + enqueued.dropped + device.dropped;
    let error = enqueued.error.max(device.error).as_nanos() as i64;
    let spans = [training, hooks, enqueued.known, device.known].concat();
    if comm.rank() != 0 {
        comm.blocking().send(&[spans.len() as i64, dropped as i64, error], 0)?;
        let words: Vec<i64> = spans.iter().flat_map(|span| span.to_words()).collect();
        comm.blocking().send(&words, 0)?;
        return Ok(None);
    }
    let alignments = first.into_iter().zip(last).map(|(first, last)| Alignment { first, last });
    let mut own = Some((spans, dropped, error));
    let mut ranks = Vec::new();
    for (rank, alignment) in alignments.enumerate() {
        let (spans, dropped, error) = match own.take() {
            Some(own) => own,
            None => receive(comm, rank)?,
        };
        let peer = &comm.world().health().peers()[comm.world_ranks()[rank]];
        ranks.push(RankTrace {
            host: peer.host.clone(),
            pid: peer.pid,
            spans: spans.into_iter().map(|span| aligned(span, &alignment)).collect(),
            dropped,
            clock_error: Duration::from_nanos(alignment.error().saturating_add(error).unsigned_abs()),
        });
    }
    Ok(Some(ranks))
}

fn receive(comm: &Communicator, rank: usize) -> Result<(Vec<Span>, u64, i64)> {
    let mut lengths = [0i64; 3];
    comm.blocking().recv(&mut lengths, rank)?;
    let [spans, dropped, error] = lengths;
    // Those of the training thread and of the communication thread.
    let spans = announced(&format!("rank {rank}"), spans, 2 * LIMIT, "spans of its trace")?;
    let mut words = vec![0i64; spans * Span::WORDS];
    comm.blocking().recv(&mut words, rank)?;
    let (words, _) = words.as_chunks();
    let spans = words.iter().map(|words| Span::from_words(*words)).collect::<Result<_>>()?;
    Ok((spans, dropped as u64, error))
}

fn aligned(span: Span, alignment: &Alignment) -> Span {
    Span { start: alignment.shift(span.start), end: alignment.shift(span.end), ..span }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hexagram_logical::TransportKind;
    use hexagram_logical::testing::spawn;

    #[test]
    fn spans_that_no_rank_can_have_are_refused_before_they_are_allocated() {
        let said = spawn(TransportKind::Thread, 2, |comm| {
            let mut said = Vec::new();
            for garbage in [-1, i64::MAX, 2 * LIMIT as i64 + 1] {
                match comm.rank() {
                    0 => said.push((garbage, receive(&comm, 1).unwrap_err().to_string())),
                    _ => comm.blocking().send(&[garbage, 0, 0], 0)?,
                }
            }
            Ok(said)
        });
        for (garbage, said) in said.unwrap().concat() {
            assert!(said.contains(&format!("rank 1 announces {garbage} spans of its trace")), "{said}");
        }
    }
}
