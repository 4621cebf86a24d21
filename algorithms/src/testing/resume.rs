//! A test that an algorithm continues from a checkpoint without a difference: [`resumes_exactly`].

use super::{Setup, Trainer};
use crate::checkpoint::{Checkpoints, Record};
use crate::plugin::AnyAlgorithm;
use hexagram_logical::testing::spawn;
use hexagram_logical::{Communicator, Error, Result, TransportKind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Temporary directory of this process, removed when it is dropped.
pub struct Scratch(PathBuf);

impl Scratch {
    /// Creates a path that does not exist yet.
    #[allow(clippy::new_without_default, reason = "each is another")]
    pub fn new() -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        Scratch(std::env::temp_dir().join(format!("hexagram-{}-{number}", std::process::id())))
    }

    /// Returns its path.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Trains `before` + `after` steps without a break, and the same with a checkpoint in between from which new engines
/// continue. Compares the complete state of the engines, bit for bit on every rank: parameters, optimizer state and
/// algorithm state; and first that the loaded state equals the saved one. Asynchronous algorithms depend on timing: for
/// them it compares only the loaded state, and checks that they continue.
///
/// # Errors
/// [`Error::Usage`] with the difference; as [`Trainer::step`] and [`Checkpoints::save`].
pub fn resumes_exactly<A: Into<AnyAlgorithm>>(
    ranks: usize,
    before: usize,
    after: usize,
    setup: &(impl Fn() -> Setup + Sync),
    algorithm: impl Fn() -> A + Sync,
) -> Result<()> {
    let scratch = Scratch::new();
    let run = |comm: Communicator| {
        let mut unbroken = new(&comm, algorithm(), setup(), 1.0)?;
        train(&comm, &mut unbroken, 0, before + after)?;
        let expected = unbroken.engine().checkpoint().save()?;
        drop(unbroken);

        let checkpoints = Checkpoints::new(scratch.path());
        let mut first = new(&comm, algorithm(), setup(), 1.0)?;
        train(&comm, &mut first, 0, before)?;
        checkpoints.save(first.engine(), Record::default())?;
        let saved = first.engine().checkpoint().save()?;
        drop(first);
        // Other values at the start: all state is in the checkpoint.
        let mut second = new(&comm, algorithm(), setup(), -3.0)?;
        checkpoints.load(second.engine())?;
        same(&saved, &second.engine().checkpoint().save()?)?;
        train(&comm, &mut second, before, after)?;
        let found = second.engine().checkpoint().save()?;
        if algorithm().into().trigram().synchronous { same(&expected, &found) } else { Ok(()) }
    };
    spawn(TransportKind::Thread, ranks, run).map(drop)
}

/// Shapes of several tensors, in several buckets with a suitable setup.
const SHAPES: [&[usize]; 4] = [&[40, 9], &[40], &[7, 40], &[7]];

fn new(
    comm: &Communicator,
    algorithm: impl Into<AnyAlgorithm>,
    setup: Setup,
    scale: f32,
) -> Result<Trainer<f32>> {
    let values = |shape: &&[usize]| {
        let len = shape.iter().product();
        (0..len).map(|at: usize| scale * ((at * 37 % 101) as f32 / 50.0 - 1.0)).collect()
    };
    let initial: Vec<Vec<f32>> = SHAPES.iter().map(values).collect();
    Trainer::with_shapes(comm, algorithm, setup, &initial, &SHAPES.map(<[usize]>::to_vec))
}

/// Steps on a function that differs between ranks and steps, and is not quadratic.
fn train(comm: &Communicator, trainer: &mut Trainer<f32>, first: usize, steps: usize) -> Result<()> {
    for step in first..first + steps {
        trainer.step(|index, x| {
            let target = |at: usize| ((at * 7 + comm.rank() * 31 + step * 13 + index) % 101) as f32 / 101.0;
            x.iter().enumerate().map(|(at, x)| (x - target(at)) * (1.0 + 0.1 * x.sin())).collect()
        })?;
    }
    Ok(())
}

/// Fails unless two records are equal, bit for bit.
fn same(expected: &Record, found: &Record) -> Result<()> {
    let differs = |name: &str| {
        let what = format!("after a resume, `{name}` differs from an uninterrupted training");
        Error::usage(what, "name everything that the next steps depend on in the algorithm's `checkpoint`")
    };
    let names =
        |record: &Record| -> Vec<String> { record.tensors().map(|(name, _)| name.to_owned()).collect() };
    let left = names(expected);
    let right = names(found);
    if let Some(name) =
        left.iter().find(|name| !right.contains(name)).or(right.iter().find(|name| !left.contains(name)))
    {
        return Err(differs(name));
    }
    for (name, saved) in expected.tensors() {
        let one = &saved.values;
        let other = &found.tensor(name)?.values;
        let same = one.len() == other.len()
            && one.read_all()?.bytes_on_host()? == other.read_all()?.bytes_on_host()?;
        if !same {
            return Err(differs(name));
        }
    }
    match expected.facts().zip(found.facts()).find(|(one, other)| one != other) {
        Some(((name, _), _)) => Err(differs(name)),
        None => Ok(()),
    }
}
