//! The lines to learn: those that ship, those of a file, or random ones of log-normal lengths.

use hexagram::sampler::dataset::{Cause, Dataset, Fetch, Items, Lines};
use hexagram::sampler::loader::{Pool, SampleGenerator, WorkerInfo};
use std::path::Path;
use std::sync::Arc;

const SHIPPED: &str = include_str!("../data/texts.txt");
/// Mean and deviation of the logarithm of random lengths: a median of 40 characters, and one line in six above 120.
const LOG_NORMAL: (f64, f64) = (3.7, 1.1);
/// The longest random line.
const LONGEST: f64 = 2000.0;

/// Lines, as the model reads them.
pub(crate) struct Text {
    /// Each line, as numbers of characters, between two zeros.
    pub(crate) lines: Arc<Items<Vec<u8>>>,
    /// Number of characters, the zero included.
    pub(crate) characters: usize,
}

impl Text {
    /// Returns the lines that ship.
    pub(crate) fn shipped() -> Self {
        encode(SHIPPED.lines().map(str::as_bytes))
    }

    /// Reads the lines of a file that are not empty.
    ///
    /// # Errors
    ///
    /// When the file cannot be read, or holds no lines of UTF-8.
    pub(crate) fn read(path: &Path) -> Result<Self, Cause> {
        let lines = Lines::open(path)?;
        let worker = WorkerInfo { id: 0, workers: 1, epoch: 0, base_seed: 0 };
        let pool = Pool::new();
        let read = |index| lines.get(index, &Fetch::new(&worker, &pool, index));
        let lines: Vec<String> = (0..lines.len()).map(read).collect::<Result<_, _>>()?;
        Ok(encode(lines.iter().map(String::as_bytes)))
    }

    /// Draws lines of random letters, of log-normal lengths.
    pub(crate) fn log_normal(lines: usize, seed: u64) -> Self {
        let line = |index| {
            let mut generator = SampleGenerator::new(seed, 0, index);
            // Box and Muller, "A note on the generation of random normal deviates" (1958).
            let radius = 1.0 - generator.next_f64();
            let angle = std::f64::consts::TAU * generator.next_f64();
            let normal = (-2.0 * radius.ln()).sqrt() * angle.cos();
            let length = (LOG_NORMAL.0 + LOG_NORMAL.1 * normal).exp().clamp(1.0, LONGEST) as usize;
            (0..length).map(|_| b'a' + generator.below(26) as u8).collect::<Vec<u8>>()
        };
        let lines: Vec<Vec<u8>> = (0..lines).map(line).collect();
        encode(lines.iter().map(Vec::as_slice))
    }

    /// Returns the number of characters that the model must predict for each line, including its end.
    pub(crate) fn cost(&self, index: usize) -> f64 {
        (self.lines.0[index].len() - 1) as f64
    }
}

/// Numbers the bytes that occur, in their order, from 1 on.
fn encode<'a>(lines: impl Iterator<Item = &'a [u8]> + Clone) -> Text {
    let lines = lines.filter(|line| !line.is_empty());
    let mut numbers = [0u8; 256];
    lines.clone().flatten().for_each(|byte| numbers[usize::from(*byte)] = 1);
    let mut last = 0u8;
    for number in numbers.iter_mut().filter(|number| **number == 1) {
        // UTF-8 uses fewer than 255 different bytes.
        last = last.saturating_add(1);
        *number = last;
    }
    let number = |byte: &u8| numbers[usize::from(*byte)];
    let line = |line: &[u8]| [0].into_iter().chain(line.iter().map(number)).chain([0]).collect();
    Text { lines: Arc::new(Items(lines.map(line).collect())), characters: usize::from(last) + 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_become_numbers_between_zeros() {
        let text = encode([&b"ba"[..], b"", b"c"].into_iter());
        assert_eq!(text.lines.0, [vec![0, 2, 1, 0], vec![0, 3, 0]]);
        assert_eq!((text.characters, text.cost(0)), (4, 3.0));
    }

    #[test]
    fn what_ships_varies_a_lot_in_length() {
        let text = Text::shipped();
        let costs: Vec<f64> = (0..text.lines.len()).map(|index| text.cost(index)).collect();
        assert!(costs.len() > 200 && costs.iter().any(|cost| *cost > 800.0));
        assert!(costs.iter().filter(|cost| **cost < 60.0).count() > 150);
    }

    #[test]
    fn random_lengths_have_their_median() {
        let text = Text::log_normal(2001, 0);
        let mut costs: Vec<f64> = (0..2001).map(|index| text.cost(index)).collect();
        costs.sort_by(f64::total_cmp);
        assert!((36.0..46.0).contains(&costs[1000]), "{}", costs[1000]);
    }
}
