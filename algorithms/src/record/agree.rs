//! Agreement of all ranks on whether each could do its own part, such as writing a file: either all go on, or all err with
//! the reason.

use hexagram_logical::{Communicator, Error, ReduceOp, Result};

/// Returns every rank's text, by rank. A collective call.
pub(crate) fn gather_texts(comm: &Communicator, mine: &str) -> Result<Vec<String>> {
    let mut longest = [mine.len() as i64];
    comm.blocking().all_reduce(&mut longest, ReduceOp::Max)?;
    let room = 8 + longest[0] as usize;
    let mut own = vec![0; room];
    own[..8].copy_from_slice(&(mine.len() as u64).to_le_bytes());
    own[8..8 + mine.len()].copy_from_slice(mine.as_bytes());
    let mut all = vec![0u8; room * comm.size()];
    comm.blocking().all_gather(&own, &mut all)?;
    let text = |block: &[u8]| {
        let (len, text) = block.split_at(8);
        let len = len.iter().rev().fold(0, |len, byte| len << 8 | usize::from(*byte));
        String::from_utf8_lossy(&text[..len.min(text.len())]).into_owned()
    };
    Ok(all.chunks_exact(room).map(text).collect())
}

/// Returns the outcome, if it is good on every rank; otherwise an error on every rank, the rank's own or the first
/// other's. A collective call.
pub(crate) fn all_or_none<T>(comm: &Communicator, outcome: Result<T>) -> Result<T> {
    let mine = outcome.as_ref().err().map(Error::to_string).unwrap_or_default();
    let texts = gather_texts(comm, &mine)?;
    let value = outcome?;
    match texts.iter().position(|text| !text.is_empty()) {
        None => Ok(value),
        Some(rank) => {
            let what = format!("rank {rank} failed: {}", texts[rank]);
            Err(Error::usage(what, "correct that there; the other ranks can go on"))
        }
    }
}
