//! Texts: the one that is compiled in, one of a file, or random lines of log-normal lengths.

use crate::random::Random;
use hexagram::sampler::dataset::{Cause, Dataset, Fetch, Lines};
use hexagram::sampler::loader::{Pool, WorkerInfo};
use std::path::Path;

const EMBEDDED: &str = include_str!("../../../data/texts.txt");
/// Number of random lines.
const RANDOM_LINES: usize = 4096;
/// Mean and deviation of the logarithm of random lengths: a median of 40 characters, and one line in six above 120.
const LOG_NORMAL: (f64, f64) = (3.7, 1.1);
/// The longest random line.
const LONGEST: f64 = 2000.0;

/// Lines, as the network reads them.
#[derive(Debug, Clone, PartialEq)]
pub struct LinesText {
    /// Each line, as numbers of characters, between two zeros, which are nowhere else.
    pub(super) lines: Vec<Vec<usize>>,
    /// Number of different characters, the zero included.
    pub(super) symbols: usize,
}

impl LinesText {
    /// Returns 212 lines of verse and prose.
    pub fn embedded() -> Self {
        encode(EMBEDDED.lines().map(str::as_bytes))
    }

    /// Reads the lines of a file that are not empty.
    ///
    /// # Errors
    /// If the file cannot be read, or is not UTF-8.
    pub fn read(path: &Path) -> Result<Self, Cause> {
        let lines = Lines::open(path)?;
        let worker = WorkerInfo { id: 0, workers: 1, epoch: 0, base_seed: 0 };
        let pool = Pool::new();
        let read = |index| lines.get(index, &Fetch::new(&worker, &pool, index));
        let lines: Vec<String> = (0..lines.len()).map(read).collect::<Result<_, _>>()?;
        Ok(encode(lines.iter().map(String::as_bytes)))
    }

    /// Draws 4096 lines of random letters, of log-normal lengths.
    pub fn log_normal(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let mut line = || -> Vec<u8> {
            let length = (LOG_NORMAL.0 + LOG_NORMAL.1 * random.normal()).exp().clamp(1.0, LONGEST);
            (0..length as usize).map(|_| b'a' + random.below(26) as u8).collect()
        };
        let lines: Vec<Vec<u8>> = (0..RANDOM_LINES).map(|_| line()).collect();
        encode(lines.iter().map(Vec::as_slice))
    }
}

/// Numbers the bytes that occur, in their order, from 1 on.
fn encode<'a>(lines: impl Iterator<Item = &'a [u8]> + Clone) -> LinesText {
    let lines = lines.filter(|line| !line.is_empty());
    let mut numbers = [0; 256];
    lines.clone().flatten().for_each(|byte| numbers[usize::from(*byte)] = 1);
    let mut symbols = 1;
    for number in numbers.iter_mut().filter(|number| **number == 1) {
        *number = symbols;
        symbols += 1;
    }
    let number = |byte: &u8| numbers[usize::from(*byte)];
    let line = |line: &[u8]| [0].into_iter().chain(line.iter().map(number)).chain([0]).collect();
    LinesText { lines: lines.map(line).collect(), symbols }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_become_numbers_between_zeros() {
        let text = encode([&b"ba"[..], b"", b"c"].into_iter());
        assert_eq!(text, LinesText { lines: vec![vec![0, 2, 1, 0], vec![0, 3, 0]], symbols: 4 });
    }

    #[test]
    fn the_text_that_is_compiled_in_varies_a_lot_in_length() {
        let lengths: Vec<usize> = LinesText::embedded().lines.iter().map(Vec::len).collect();
        assert!(lengths.len() == 212 && lengths.iter().any(|length| *length > 800));
        assert!(lengths.iter().filter(|length| **length < 60).count() > 150);
    }

    #[test]
    fn random_lengths_have_their_median() {
        let mut lengths: Vec<usize> =
            LinesText::log_normal(0).lines.iter().map(|line| line.len() - 1).collect();
        lengths.sort_unstable();
        assert!((38..44).contains(&lengths[lengths.len() / 2]), "{}", lengths[lengths.len() / 2]);
    }
}
