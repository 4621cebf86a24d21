//! The suite: every algorithm on every task, with like and skewed data, few ranks and many, several seeds.

mod errors;
mod estimate;
mod kept;
mod orderings;
mod page;
mod paired;
mod record;
mod results;
mod tuning;

pub use errors::{ErrorsAbove, MeanDifference};
pub use estimate::Estimate;
use kept::keep;
pub use kept::kept;
pub use orderings::{Claim, ORDERING_SEEDS, orderings, places};
pub use page::{create_page, write_pages};
pub use paired::{OrderingVerdict, Paired};
pub use record::{SuiteRecord, TrainingState};
pub use results::{MatrixCell, ResultMeasure, Results};
pub use tuning::{TunedSteps, tune};

use crate::learning_rates::tuned;
use crate::task::{Digits, Quadratics, Task, TextTask};
use crate::training::{Training, train};
use hexagram::algorithms::registry;
use hexagram::physical::runtime;
use hexagram::sampler::Partition;
use hexagram::{AnyAlgorithm, Error, Result};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::collections::BTreeSet;
use std::num::NonZero;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, OnceLock};

/// Partitions of the suite.
pub const PARTITIONS: [Partition; 3] =
    [Partition::Equal, Partition::Dirichlet { alpha: 1.0 }, Partition::Dirichlet { alpha: 0.1 }];

/// Number of seeds of the matrix.
pub const SEEDS: u64 = 5;

/// Task with the number of steps that it is given.
#[derive(Debug, Clone)]
pub struct Lesson {
    /// Model and data.
    pub task: Arc<dyn Task>,
    /// Steps of each rank.
    pub steps: u64,
}

/// Matrix of trainings.
#[derive(Debug, Clone)]
pub struct Suite {
    /// Algorithms to compare, recorded by their names, whatever their options are.
    pub algorithms: Vec<AnyAlgorithm>,
    /// Tasks to compare them on.
    pub lessons: Vec<Lesson>,
    /// Ways to divide the data.
    pub partitions: Vec<Partition>,
    /// Numbers of ranks.
    pub ranks: Vec<usize>,
    /// Seeds from 0 up to this one, which is excluded.
    pub seeds: u64,
    /// Places that published [orderings] need, in the matrix or for variants with options. They run with
    /// [`ORDERING_SEEDS`] seeds.
    pub others: Vec<MatrixCell>,
}

/// One training of the matrix.
#[derive(Debug, Clone)]
pub struct Cell {
    /// Algorithm by which ranks communicate.
    pub algorithm: AnyAlgorithm,
    /// Name or spelling under which the training is recorded.
    pub spelling: String,
    /// Task, with its number of steps.
    pub lesson: Lesson,
    /// Way in which the data are divided.
    pub partition: Partition,
    /// Number of ranks.
    pub ranks: usize,
    /// Seed of everything that is drawn.
    pub seed: u64,
}

impl Suite {
    /// Creates the whole suite of some algorithms: four tasks, three partitions, 4, 8 and 25 ranks, five seeds; and
    /// the sides of published orderings with these algorithms, with ten seeds.
    ///
    /// # Errors
    /// As the tasks' constructors.
    pub fn whole(algorithms: Vec<AnyAlgorithm>) -> Result<Self> {
        let lessons = vec![
            Lesson { task: Arc::new(Quadratics::new(0)?), steps: 200 },
            Lesson { task: Arc::new(Quadratics::noisy(0)?), steps: 200 },
            Lesson { task: Arc::new(Digits::new()?), steps: 300 },
            Lesson { task: Arc::new(TextTask::new()), steps: 200 },
        ];
        let chosen = |name: &str| algorithms.iter().any(|algorithm| algorithm.name() == name);
        let needed = |place: &MatrixCell| place.algorithm.split('(').next().is_some_and(chosen);
        let others = places().into_iter().filter(needed).collect();
        let partitions = PARTITIONS.to_vec();
        Ok(Suite { algorithms, lessons, partitions, ranks: vec![4, 8, 25], seeds: SEEDS, others })
    }

    /// Creates the short form, for tests: quadratics and digits, the most different data, 4 ranks, two seeds.
    ///
    /// # Errors
    /// As [`whole`](Self::whole).
    pub fn short(algorithms: Vec<AnyAlgorithm>) -> Result<Self> {
        let mut suite = Self::whole(algorithms)?;
        suite.lessons.retain(|lesson| ["quadratics", "digits"].contains(&lesson.task.name()));
        suite.partitions.retain(|partition| *partition != PARTITIONS[1]);
        Ok(Suite { ranks: vec![4], seeds: 2, others: Vec::new(), ..suite })
    }

    /// Returns all trainings, those that take longest first.
    ///
    /// # Errors
    /// [`Error::Usage`] if one of [`others`](Self::others) has an unknown algorithm, task or partition.
    pub fn cells(&self) -> Result<Vec<Cell>> {
        let mut cells = self.matrix();
        let matrix: BTreeSet<(MatrixCell, u64)> =
            cells.iter().map(|cell| (cell.place(), cell.seed)).collect();
        for place in &self.others {
            for seed in (0..ORDERING_SEEDS).filter(|seed| !matrix.contains(&(place.clone(), *seed))) {
                cells.push(self.cell(place, seed)?);
            }
        }
        cells.sort_by_key(|cell| std::cmp::Reverse(cell.ranks));
        Ok(cells)
    }

    /// Returns the training at a place, which need not be in the matrix.
    ///
    /// # Errors
    /// [`Error::Usage`] if the algorithm, task or partition is unknown.
    pub fn cell(&self, place: &MatrixCell, seed: u64) -> Result<Cell> {
        let lesson = self.lessons.iter().find(|lesson| lesson.task.name() == place.task);
        let partition = PARTITIONS.iter().find(|partition| partition.to_string() == place.partition);
        let (Some(lesson), Some(partition)) = (lesson, partition) else {
            let what = format!("{place}: the suite has no such task or partition");
            return Err(Error::usage(what, "name one of its tasks and partitions"));
        };
        let own = self.algorithms.iter().find(|algorithm| algorithm.name() == place.algorithm);
        Ok(Cell {
            algorithm: own.cloned().map_or_else(|| registry::named(&place.algorithm), Ok)?,
            spelling: place.algorithm.clone(),
            lesson: lesson.clone(),
            partition: *partition,
            ranks: place.ranks,
            seed,
        })
    }

    /// Returns the trainings of the matrix.
    fn matrix(&self) -> Vec<Cell> {
        let mut cells = Vec::new();
        for lesson in &self.lessons {
            for &partition in &self.partitions {
                for seed in 0..self.seeds {
                    for &ranks in &self.ranks {
                        let of = |algorithm: &AnyAlgorithm| Cell {
                            algorithm: algorithm.clone(),
                            spelling: algorithm.name().to_owned(),
                            lesson: lesson.clone(),
                            partition,
                            ranks,
                            seed,
                        };
                        cells.extend(self.algorithms.iter().map(of));
                    }
                }
            }
        }
        cells
    }
}

impl Cell {
    /// Returns the place, which identifies this training.
    pub fn place(&self) -> MatrixCell {
        MatrixCell {
            algorithm: self.spelling.clone(),
            task: self.lesson.task.name().to_owned(),
            partition: self.partition.to_string(),
            ranks: self.ranks,
        }
    }

    /// Runs the training. A training also counts as a record if it diverges, and ends when a codec gets NaN or
    /// infinity.
    ///
    /// # Errors
    /// As [`train`].
    pub fn run(&self) -> Result<SuiteRecord> {
        let tuned = tuned(&self.spelling, self.lesson.task.name());
        let training = Training {
            algorithm: tuned.applied(&self.algorithm)?,
            learning_rate: tuned.learning_rate.into(),
            ranks: self.ranks,
            partition: self.partition,
            seed: self.seed,
            steps: self.lesson.steps,
            records: 20,
            ..Training::of(Arc::clone(&self.lesson.task))
        };
        match train(&training) {
            Ok(outcome) => Ok(SuiteRecord::new(self, &training, &outcome)),
            Err(Error::NotFinite { .. }) => Ok(SuiteRecord::diverged(self, &training)),
            Err(error) => Err(error),
        }
    }
}

/// Runs trainings on all processors, each on one, and hands over each record when it is ready, in any order.
///
/// # Errors
/// The first error of a training, or of `take`; running trainings are then abandoned.
pub fn run_all(cells: Vec<Cell>, mut take: impl FnMut(SuiteRecord) -> Result<()>) -> Result<()> {
    let workers = std::thread::available_parallelism().map_or(1, NonZero::get);
    let cells = Arc::new(cells);
    let next = Arc::new(AtomicUsize::new(0));
    let failed = Arc::new(OnceLock::new());
    let (records, finished) = channel();
    for worker in 0..workers {
        let cells = Arc::clone(&cells);
        let next = Arc::clone(&next);
        let failed = Arc::clone(&failed);
        let records = records.clone();
        let work = move || {
            stay_on_a_core(worker);
            while let Some(cell) = cells.get(next.fetch_add(1, Ordering::Relaxed)) {
                if failed.get().is_some() || records.send(guarded(cell)).is_err() {
                    return;
                }
            }
        };
        runtime::spawn("hexagram-suite", work)?;
    }
    drop(records);
    while let Ok(record) = runtime::receive(&finished) {
        let taken = record.and_then(&mut take);
        if taken.is_err() {
            let _ = failed.set(());
        }
        taken?;
    }
    Ok(())
}

/// Keeps this thread, and the threads that it starts, on one core: number `number` of the cores that it may use. Ranks in
/// virtual time take turns. On one core the next rank continues immediately, while another core would have to wake for each
/// turn, which takes longer than most turns. If the kernel refuses, trainings are slower and the same.
fn stay_on_a_core(number: usize) {
    let Ok(allowed) = sched_getaffinity(None) else { return };
    let Some(core) = (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core)).nth(number) else { return };
    let mut only = CpuSet::new();
    only.set(core);
    let _ = sched_setaffinity(None, &only);
}

/// Runs a training and turns its panic into an error; otherwise its record would be missing without a sign.
fn guarded(cell: &Cell) -> Result<SuiteRecord> {
    let ran = catch_unwind(AssertUnwindSafe(|| cell.run()));
    let ran = ran.unwrap_or_else(|panic| Err(Error::panicked("the training", &*panic)));
    ran.map_err(|error| named(cell, &error))
}

/// Adds the training's place to its error.
fn named(cell: &Cell, error: &Error) -> Error {
    let what = format!("{} with seed {} failed: {error}", cell.place(), cell.seed);
    Error::usage(what, "run it alone to see why")
}
