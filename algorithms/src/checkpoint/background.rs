//! Saving while the training continues.

use super::{Checkpoints, Record};
use crate::engine::DataParallel;
use hexagram_logical::Result;
use hexagram_logical::asynchronous::{Background, Pending};
use std::path::PathBuf;

/// Checkpoints that a thread writes while the training continues, from a copy of the state.
///
/// The training waits only for the copy, in host memory, which takes the size of the state there; and for the save before, if
/// it is still in progress. Files, order and guarantees are those of [`Checkpoints::save`]: a checkpoint counts only when it is
/// complete on every rank. If a rank fails during a save, that checkpoint is lost, and the previous one remains.
///
/// Use it for all saves of a training in this directory. Dropping it waits for the save in progress, and ignores its
/// outcome: call [`finish`](Self::finish) at the end.
///
/// ```no_run
/// # use hexagram::algorithms::checkpoint::{BackgroundSaves, Checkpoints, Record};
/// # fn train(engine: &mut hexagram::algorithms::DataParallel) -> hexagram::logical::Result<()> {
/// let checkpoints = Checkpoints::new("runs/digits");
/// checkpoints.load(engine)?;
/// let mut saves = BackgroundSaves::new(checkpoints);
/// for step in 0..10_000 {
///     // … train …
///     if step % 100 == 99 {
///         saves.begin(engine, Record::default())?;
///     }
/// }
/// saves.finish(engine)?;
/// # Ok(())
/// # }
/// ```
pub struct BackgroundSaves {
    checkpoints: Checkpoints,
    /// Created by the first save.
    thread: Option<Background>,
    in_progress: Option<Pending<Option<Result<PathBuf>>>>,
}

impl BackgroundSaves {
    /// Creates saves in a directory of checkpoints.
    pub fn new(checkpoints: Checkpoints) -> Self {
        BackgroundSaves { checkpoints, thread: None, in_progress: None }
    }

    /// Returns the directory of checkpoints.
    pub fn checkpoints(&self) -> &Checkpoints {
        &self.checkpoints
    }

    /// Begins to save the state of the engine and the records that the program adds. A collective call, between steps.
    /// Waits for the save before.
    ///
    /// # Errors
    /// The errors of the previous save. The new save has then not begun; call this method again for another attempt. Errors of
    /// [`Checkpoints::save`] that are known before a file is written; [`Error::System`](hexagram_logical::Error::System)
    /// without a thread.
    pub fn begin(&mut self, engine: &mut DataParallel, own: Record) -> Result<()> {
        self.finish(engine)?;
        let snapshot = self.checkpoints.snapshot(engine, own)?;
        let comm = engine.communicator();
        let thread = match self.thread.take() {
            Some(thread) => thread,
            None => comm.block_on(Background::start(comm))?,
        };
        let checkpoints = self.checkpoints.clone();
        self.in_progress = Some(thread.call(async move |comm| Ok(checkpoints.write(comm, snapshot))));
        self.thread = Some(thread);
        Ok(())
    }

    /// Waits for the save in progress. Returns the path of its directory, which is complete and on disk on every host;
    /// `None` if no save is in progress. A collective call.
    ///
    /// # Errors
    /// As [`Checkpoints::save`].
    pub fn finish(&mut self, engine: &mut DataParallel) -> Result<Option<PathBuf>> {
        let Some(pending) = self.in_progress.take() else { return Ok(None) };
        let path = pending.blocking()?.transpose()?;
        self.checkpoints.adopt(engine);
        Ok(path)
    }

    /// Returns true if a save is in progress.
    pub fn is_in_progress(&self) -> bool {
        self.in_progress.as_ref().is_some_and(|pending| !pending.is_done())
    }
}
