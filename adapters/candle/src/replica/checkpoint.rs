//! Checkpoints of a replica: the engine state, the running statistics of the model, and the parameters if an optimizer
//! of candle steps.
//!
//! The state of candle optimizers is private. [`candle_nn::SGD`] has no state, so a training with it continues bit for
//! bit. With other optimizers of candle, a checkpoint would continue with moments of zero, and is refused.

use crate::error::{Error, Result};
use crate::model::{ModelTensor, dtype};
use crate::replica::Replica;
use candle_core::Tensor;
use hexagram_algorithms::checkpoint::{BackgroundSaves, Checkpoints, Record, Snapshots};
use hexagram_algorithms::logical::{self, ReduceOp};
use std::path::PathBuf;

/// Prefix of the names of tensors in a checkpoint that the engine does not have.
const MODEL: &str = "model.";

impl Replica {
    /// Saves all state on which the next steps depend: that of the engine, the running statistics of the model, and its
    /// parameters if an optimizer of candle steps; and `own`, the records of the program. A collective call, between
    /// steps.
    ///
    /// # Errors
    /// [`Error::Hexagram`] on all ranks after steps of a candle optimizer other than [`candle_nn::SGD`], whose state is
    /// not accessible; as [`Checkpoints::save`].
    pub fn save(&mut self, checkpoints: &Checkpoints, own: Record) -> Result<PathBuf> {
        let own = self.with_model(own)?;
        let saved = checkpoints.save(&mut self.engine, own);
        // The background work of the algorithm has been completed, whether or not the state is saved.
        let settled = self.settled();
        let path = saved?;
        settled.map(|()| path)
    }

    /// Begins to save like [`save`](Self::save), and continues while a thread writes the files.
    ///
    /// # Errors
    /// As [`Replica::save`], and as [`BackgroundSaves::begin`].
    pub fn begin_save(&mut self, saves: &mut BackgroundSaves, own: Record) -> Result<()> {
        let own = self.with_model(own)?;
        let begun = saves.begin(&mut self.engine, own);
        let settled = self.settled();
        begun?;
        settled
    }

    /// Waits until the save in progress, if any, is complete and on disk on every host.
    ///
    /// # Errors
    /// As [`BackgroundSaves::finish`].
    pub fn finish_save(&mut self, saves: &mut BackgroundSaves) -> Result<Option<PathBuf>> {
        Ok(saves.finish(&mut self.engine)?)
    }

    /// Keeps the state of this step in memory, and `own`, the records of the program. Call it after each step, on every rank of
    /// a job whose members may change.
    ///
    /// # Errors
    /// [`Error::Hexagram`] after a step of a candle optimizer other than [`candle_nn::SGD`]; as [`Snapshots::keep`].
    pub fn keep(&mut self, kept: &mut Snapshots, own: impl FnOnce() -> Record) -> Result<()> {
        if let Some(optimizer) = self.unreached {
            return Err(private(optimizer));
        }
        if !Snapshots::is_due(&self.engine) {
            return Ok(());
        }
        let own = self.with_tensors(own())?;
        kept.keep(&mut self.engine, || own)?;
        self.settled()
    }

    /// Continues from the state that earlier members have kept; returns the records of the program, or `None` without any. A
    /// collective call, before the first step.
    ///
    /// # Errors
    /// As [`Snapshots::load`].
    pub fn load_kept(&mut self, kept: &mut Snapshots) -> Result<Option<Record>> {
        let Some(own) = kept.load(&mut self.engine)? else { return Ok(None) };
        self.load_tensors(&own)?;
        Ok(Some(own))
    }

    /// Adds the tensors that the engine does not have to the records of the program.
    fn with_model(&mut self, own: Record) -> Result<Record> {
        self.check_reached()?;
        self.with_tensors(own)
    }

    fn with_tensors(&self, mut own: Record) -> Result<Record> {
        for entry in self.saved_apart() {
            own.put_tensor(
                &format!("{MODEL}{}", entry.name),
                entry.var.dims(),
                self.home.to_buffer(&entry.var)?,
            )?;
        }
        Ok(own)
    }

    /// Continues from the newest checkpoint that all ranks have; returns the records that the program had added, or
    /// `None` without a checkpoint. A collective call, before the first step or between steps.
    ///
    /// # Errors
    /// As [`Replica::save`], and as [`Checkpoints::load`].
    pub fn load(&mut self, checkpoints: &Checkpoints) -> Result<Option<Record>> {
        self.load_if(checkpoints, |_| Ok(()))
    }

    /// Continues like [`load`](Self::load), if `fits` accepts the records that the program had added.
    ///
    /// # Errors
    /// As [`Checkpoints::load_if`].
    pub fn load_if(
        &mut self,
        checkpoints: &Checkpoints,
        fits: impl FnOnce(&Record) -> logical::Result<()>,
    ) -> Result<Option<Record>> {
        self.check_reached()?;
        let Some(own) = checkpoints.load_if(&mut self.engine, fits)? else { return Ok(None) };
        self.load_tensors(&own)?;
        Ok(Some(own))
    }

    /// Loads the tensors that the engine does not have. A collective call.
    fn load_tensors(&mut self, own: &Record) -> Result<()> {
        let home = &self.home;
        let mut apart = self.saved_apart();
        let load = |entry: &ModelTensor| {
            let values = &own.tensor(&format!("{MODEL}{}", entry.name))?.values;
            let known = (dtype(&entry.var)?, entry.var.elem_count());
            if (values.dtype(), values.len()) != known {
                let remedy = "load it with the model that it was saved with";
                return Err(Error::usage(format!("the checkpoint has a different `{}`", entry.name), remedy));
            }
            let tensors: Vec<&Tensor> = std::iter::once(entry.var.as_tensor()).chain(&entry.tap).collect();
            home.overwrite(&tensors, &values.read_all()?)
        };
        let loaded = home.exchange(|| apart.try_for_each(load));
        self.report_failure(loaded)?;
        self.settled()
    }

    /// Returns the tensors that the engine does not have.
    pub(crate) fn saved_apart(&self) -> impl Iterator<Item = &ModelTensor> {
        let flat = self.engine.works_on_parameters();
        self.tensors.iter().filter(move |entry| !flat || entry.tap.is_none())
    }

    /// Fails on all ranks if an optimizer on any rank has a state that cannot be saved. A collective call.
    fn check_reached(&self) -> Result<()> {
        let mut unreached = [i32::from(self.unreached.is_some())];
        self.engine.communicator().blocking().all_reduce(&mut unreached, ReduceOp::Max)?;
        if unreached[0] == 0 {
            return Ok(());
        }
        let optimizer = self.unreached.unwrap_or("another rank's optimizer");
        Err(private(optimizer))
    }
}

/// Creates the error for an optimizer whose state is not accessible.
fn private(optimizer: &str) -> Error {
    let what = format!("a checkpoint cannot contain the state of {optimizer}, which is private");
    Error::usage(what, "use an engine optimizer (EngineOptions::optimizer), or SGD of candle")
}
