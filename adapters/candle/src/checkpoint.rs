//! Checkpoints of a replica: what the engine has, the model's running statistics, and the parameters where candle's own
//! optimizer steps.
//!
//! What candle's optimizers remember is private to them. [`candle_nn::SGD`] remembers nothing, so that a training with
//! it goes on bit for bit; with any other of the framework's, a checkpoint would go on from moments of zero, and is
//! refused.

use crate::error::{Error, Result};
use crate::parameters::Entry;
use crate::replica::Replica;
use crate::values::dtype;
use candle_core::Tensor;
use hexagram_algorithms::checkpoint::{Checkpoints, Record};
use hexagram_algorithms::logical::{self, ReduceOp};
use std::path::PathBuf;

/// Prefix of the names of a checkpoint's tensors that the engine does not have.
const MODEL: &str = "model.";

impl Replica {
    /// Saves everything that the next steps depend on: the engine's state, the model's running statistics, and its
    /// parameters where candle's optimizer steps; and `own`, what the program adds. A collective call, between steps.
    ///
    /// # Errors
    /// [`Error::Hexagram`] on all ranks after steps of an optimizer of the framework other than [`candle_nn::SGD`],
    /// whose state is not reached; as [`Checkpoints::save`].
    pub fn save(&mut self, checkpoints: &Checkpoints, own: Record) -> Result<PathBuf> {
        self.check_reached()?;
        let mut own = own;
        for entry in self.saved_apart() {
            own.put_tensor(
                &format!("{MODEL}{}", entry.name),
                entry.var.dims(),
                self.home.to_buffer(&entry.var)?,
            )?;
        }
        let saved = checkpoints.save(&mut self.engine, own);
        // What the algorithm had under way has come to an end, whether or not it is saved.
        let settled = self.settled();
        let path = saved?;
        settled.map(|()| path)
    }

    /// Goes on from the newest checkpoint that all ranks have; returns what the program had added, or `None` if there
    /// is none. A collective call, before the first step or between steps.
    ///
    /// # Errors
    /// As [`Replica::save`], and as [`Checkpoints::load`].
    pub fn load(&mut self, checkpoints: &Checkpoints) -> Result<Option<Record>> {
        self.load_if(checkpoints, |_| Ok(()))
    }

    /// Goes on as [`load`](Self::load), if `fits` accepts what the program had added.
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
        let home = &self.home;
        let mut apart = self.saved_apart();
        let load = |entry: &Entry| {
            let values = &own.tensor(&format!("{MODEL}{}", entry.name))?.values;
            let known = (dtype(&entry.var)?, entry.var.elem_count());
            if (values.dtype(), values.len()) != known {
                let remedy = "load it with the model that it was saved with";
                return Err(Error::usage(format!("the checkpoint has another `{}`", entry.name), remedy));
            }
            let tensors: Vec<&Tensor> = std::iter::once(entry.var.as_tensor()).chain(&entry.tap).collect();
            home.overwrite(&tensors, &values.read_all()?)
        };
        let loaded = home.exchange(|| apart.try_for_each(load));
        self.told(loaded)?;
        self.settled()?;
        Ok(Some(own))
    }

    /// Returns what the engine does not have.
    pub(crate) fn saved_apart(&self) -> impl Iterator<Item = &Entry> {
        let flat = self.engine.works_on_parameters();
        self.tensors.iter().filter(move |entry| !flat || entry.tap.is_none())
    }

    /// Fails on all ranks if the optimizer of one has a state that no checkpoint has. A collective call.
    fn check_reached(&self) -> Result<()> {
        let mut unreached = [i32::from(self.unreached.is_some())];
        self.engine.communicator().blocking().all_reduce(&mut unreached, ReduceOp::Max)?;
        if unreached[0] == 0 {
            return Ok(());
        }
        let optimizer = self.unreached.unwrap_or("another rank's optimizer");
        let what = format!("a checkpoint cannot have what {optimizer} remembers, as its state is private");
        Err(Error::usage(
            what,
            "step with the engine's optimizer (EngineOptions::optimizer), or with candle's SGD",
        ))
    }
}
