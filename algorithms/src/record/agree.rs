//! Agreement of all ranks on whether each could do its part, such as writing a file: either all continue, or all fail
//! with the reason.

use hexagram_logical::{Communicator, Error, ReduceOp, Result};
use std::fmt::Display;
use std::str::FromStr;

/// Maximum length of a text, in bytes.
const LONGEST: usize = 1 << 20;

/// Maximum number of characters of an error that is sent to other ranks.
const TOLD: usize = 2000;

/// Returns the text of every rank, by rank. A collective call.
///
/// # Errors
/// [`Error::Usage`] on all ranks if one announces a text of more than 1 MiB; errors of the communication.
pub(crate) fn gather_texts(comm: &Communicator, mine: &str) -> Result<Vec<String>> {
    let mut longest = [mine.len() as i64];
    comm.blocking().all_reduce(&mut longest, ReduceOp::Max)?;
    // The length of each rank's own text is included.
    let room = 8 + announced("a rank", longest[0], LONGEST, "bytes of text")?;
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

/// Returns the list of every rank, by rank. Items that cannot be parsed are left out. A collective call.
///
/// # Errors
/// As [`gather_texts`].
pub(crate) fn gather_lists<T: Display + FromStr>(comm: &Communicator, mine: &[T]) -> Result<Vec<Vec<T>>> {
    let lines: Vec<String> = mine.iter().map(T::to_string).collect();
    let texts = gather_texts(comm, &lines.join("\n"))?;
    Ok(texts.iter().map(|text| text.lines().filter_map(|line| line.parse().ok()).collect()).collect())
}

/// Returns the number of `things` that a rank announces, if it is plausible: a number from a peer is checked before an
/// allocation.
///
/// # Errors
/// [`Error::Usage`] if it is negative or above `most`.
pub(crate) fn announced(rank: &str, number: i64, most: usize, things: &str) -> Result<usize> {
    usize::try_from(number).ok().filter(|number| *number <= most).ok_or_else(|| {
        let what = format!("{rank} announces {number} {things}, but the maximum is {most}");
        Error::usage(what, "check that all ranks run the same program")
    })
}

/// Returns the first `most` characters of a text, with `…` if there are more.
pub(crate) fn beginning(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// Returns the outcome, if it is a success on every rank; otherwise an error on every rank: its own, or the beginning
/// of the first error of another rank. A collective call.
pub(crate) fn all_or_none<T>(comm: &Communicator, outcome: Result<T>) -> Result<T> {
    let mine = outcome.as_ref().err().map(|error| beginning(&error.to_string(), TOLD)).unwrap_or_default();
    let texts = gather_texts(comm, &mine)?;
    let value = outcome?;
    match texts.iter().position(|text| !text.is_empty()) {
        None => Ok(value),
        Some(rank) => {
            let what = format!("rank {rank} failed: {}", texts[rank]);
            Err(Error::usage(what, "correct the cause there; the other ranks can continue"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hexagram_logical::TransportKind;
    use hexagram_logical::testing::spawn;

    #[test]
    fn a_number_that_cannot_be_meant_is_refused() {
        assert_eq!(announced("rank 0", 3, 3, "things").unwrap(), 3);
        for garbage in [-1, i64::MIN, i64::MAX, 4] {
            let text = announced("rank 0", garbage, 3, "things").unwrap_err().to_string();
            assert!(
                text.starts_with(&format!("rank 0 announces {garbage} things, but the maximum is 3")),
                "{text}"
            );
        }
    }

    #[test]
    fn a_text_too_long_is_refused_on_all_ranks_before_it_is_allocated() {
        let said = spawn(TransportKind::Thread, 2, |comm| {
            let text = "x".repeat(if comm.rank() == 1 { LONGEST + 1 } else { 1 });
            let refused = gather_texts(&comm, &text).unwrap_err().to_string();
            Ok((refused, gather_texts(&comm, "é")?))
        });
        for (refused, texts) in said.unwrap() {
            assert!(refused.contains("a rank announces 1048577 bytes of text"), "{refused}");
            assert_eq!(texts, ["é", "é"]);
        }
    }

    #[test]
    fn others_are_told_the_beginning_of_an_error_however_long_it_is() {
        let said = spawn(TransportKind::Thread, 2, |comm| {
            let long = || Error::usage(format!("no file {}", "é".repeat(LONGEST)), "make one");
            let outcome = if comm.rank() == 1 { Err(long()) } else { Ok(()) };
            Ok(all_or_none(&comm, outcome).unwrap_err().to_string())
        });
        let [told, own]: [String; 2] = said.unwrap().try_into().unwrap();
        assert!(told.starts_with("rank 1 failed: no file éé") && told.contains("é…; correct"), "{told}");
        assert!(told.len() < 3 * TOLD && own.len() > LONGEST, "{} {}", told.len(), own.len());
    }
}
