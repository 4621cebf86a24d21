//! The checkpoints of a training: when it saves one, how it handles a failed save, and how a run resumes from one.
//!
//! The training continues during a save, and learns of its outcome at the next one, or at its own end. A failed save, for
//! example because the disk is full, does not end the training: it continues, and the next save tries again.

use super::provenance::MadeWith;
use super::{RunError, RunOptions, Trained, position};
use hexagram::Error;
use hexagram::algorithms::checkpoint::{BackgroundSaves, Checkpoints, Record, Snapshots};
use hexagram::sampler::loader::{DataLoader, LoaderState};

/// The checkpoints of one training, on one rank; none if they are off.
pub(super) struct Saves {
    saves: Option<BackgroundSaves>,
    every: u64,
    made_with: MadeWith,
    /// Step of the last save that has begun.
    step: u64,
    tried: u64,
    failed: u64,
    /// True if the last save failed.
    lacks_the_last: bool,
}

/// Place at which a training resumes.
#[derive(Default)]
pub(super) struct Resumed {
    /// Number of the epoch.
    pub(super) epoch: u64,
    /// Differences from the options and data that the checkpoint was made with.
    pub(super) changed: Vec<String>,
}

impl Saves {
    /// Creates the saves that the options ask for, of a training that is made with these options and data.
    pub(super) fn new(options: &RunOptions, made_with: MadeWith, is_elastic: bool) -> Self {
        let any_ranks = options.change || options.is_restarted || is_elastic;
        let peers = options.checkpoint_peers;
        let checkpoints = options.checkpoint.as_ref();
        let saves = checkpoints
            .map(|root| BackgroundSaves::new(Checkpoints { any_ranks, peers, ..Checkpoints::new(root) }));
        Saves { saves, every: options.every, made_with, step: 0, tried: 0, failed: 0, lacks_the_last: false }
    }

    /// Resumes from the newest checkpoint if there is one, and starts at the beginning otherwise. A collective call.
    ///
    /// The ranks share the samples of the epoch that are left. If options or data that choose the order of samples have
    /// changed, the epoch starts again, and a difference reports it.
    ///
    /// # Errors
    /// If the checkpoint cannot be loaded, or was made with other options or data and those may not change.
    pub(super) fn resume<B: Send + 'static>(
        &self,
        replica: &mut impl Trained,
        loader: &mut DataLoader<B>,
        may_change: bool,
    ) -> Result<Resumed, RunError> {
        let Some(saves) = &self.saves else { return Ok(Resumed::default()) };
        let mut changed = Vec::new();
        let ranks = replica.engine().communicator().size();
        let mut fits = |own: &Record| {
            changed = self.made_with.compare(own, may_change, ranks)?;
            Ok(())
        };
        let Some(own) = replica.load_if(saves.checkpoints(), &mut fits)? else {
            return Ok(Resumed::default());
        };
        resumed(&own, changed, loader, (ranks, may_change))
    }

    /// Continues from the state that earlier members have kept; returns `None` if there is none. A collective call.
    ///
    /// # Errors
    /// If the state cannot be loaded.
    pub(super) fn continue_kept<B: Send + 'static>(
        replica: &mut impl Trained,
        loader: &mut DataLoader<B>,
        kept: &mut Snapshots,
    ) -> Result<Option<Resumed>, RunError> {
        let Some(own) = replica.load_kept(kept)? else { return Ok(None) };
        let ranks = replica.engine().communicator().size();
        resumed(&own, Vec::new(), loader, (ranks, false)).map(Some)
    }

    /// Returns the record that is kept or saved with a state: the position of the loader, and the number of ranks.
    pub(super) fn own(state: &LoaderState, ranks: usize) -> Record {
        let mut own = Record::default();
        position::note(&mut own, state);
        own.note("ranks", ranks);
        own
    }

    /// Fails if the folder is not writable, or belongs to a different training. A collective call, before the first
    /// step.
    ///
    /// # Errors
    /// As [`Checkpoints::check`].
    pub(super) fn check(&self, replica: &impl Trained) -> Result<(), Error> {
        self.saves.as_ref().map_or(Ok(()), |saves| saves.checkpoints().check(replica.engine()))
    }

    /// Returns true if a save is due after this many steps.
    pub(super) fn is_due(&self, steps: u64) -> bool {
        self.saves.is_some() && steps.is_multiple_of(self.every)
    }

    /// Returns true if a save is due at the end of the training: unless that of the last step has begun in this generation.
    pub(super) fn is_due_at_the_end(&self, steps: u64, is_repeated: bool) -> bool {
        self.saves.is_some() && (is_repeated || !self.is_due(steps))
    }

    /// Begins to save the training, and the position of the loader; the save before must be [finished](Self::finish). A
    /// collective call. If it fails, returns a warning on every rank that names the rank with the failure.
    ///
    /// # Errors
    /// Errors of the communication; these end the training.
    pub(super) fn begin(
        &mut self,
        replica: &mut impl Trained,
        state: &LoaderState,
    ) -> Result<Option<String>, RunError> {
        let Some(saves) = &mut self.saves else { return Ok(None) };
        let mut own = Self::own(state, replica.engine().communicator().size());
        self.made_with.note(&mut own);
        self.tried += 1;
        self.step = replica.engine().steps();
        let begun = replica.begin_save(saves, own);
        self.lacks_the_last = begun.is_err();
        self.warning(replica, begun)
    }

    /// Waits for the save in progress, if there is one. A collective call. If it has failed, returns a warning like
    /// [`begin`](Self::begin).
    ///
    /// # Errors
    /// Errors of the communication.
    pub(super) fn finish(&mut self, replica: &mut impl Trained) -> Result<Option<String>, RunError> {
        let Some(saves) = &mut self.saves else { return Ok(None) };
        let finished = replica.finish_save(saves);
        self.lacks_the_last |= finished.is_err();
        self.warning(replica, finished)
    }

    /// Returns the warning of a save that has failed, if the training can continue.
    fn warning(
        &mut self,
        replica: &impl Trained,
        outcome: Result<(), RunError>,
    ) -> Result<Option<String>, RunError> {
        let error = match outcome.map_err(|error| error.downcast::<Error>()) {
            Ok(()) => return Ok(None),
            Err(Ok(error)) if matches!(*error, Error::System { .. } | Error::Usage { .. }) => error,
            Err(Ok(error)) => return Err(error),
            Err(Err(error)) => return Err(error),
        };
        self.failed += 1;
        let step = self.step;
        let rank = replica.engine().communicator().rank();
        // A failure of a different rank begins with its number.
        let who =
            if error.to_string().starts_with("rank ") { String::new() } else { format!("rank {rank}: ") };
        Ok(Some(format!(
            "step {step} is not saved: {who}{error}; the training continues, and tries again at the next save"
        )))
    }

    /// Returns the number of saves that have failed.
    pub(super) fn failed(&self) -> u64 {
        self.failed
    }

    /// Returns true if the newest checkpoint lacks the training's last steps because their save failed.
    pub(super) fn lacks_the_last(&self) -> bool {
        self.lacks_the_last
    }

    /// Returns, at the end, how many saves have failed, if any has.
    pub(super) fn summary(&self) -> Option<String> {
        let Saves { tried, failed, .. } = self;
        let last = if self.lacks_the_last {
            "the last one, too: the end of the training is not saved"
        } else {
            "not the last one"
        };
        (*failed > 0).then(|| format!("{failed} of {tried} saves failed, {last}"))
    }
}

/// Sets the loader to the position in a record; `changed` lists the differences so far.
fn resumed<B: Send + 'static>(
    own: &Record,
    mut changed: Vec<String>,
    loader: &mut DataLoader<B>,
    (ranks, may_change): (usize, bool),
) -> Result<Resumed, RunError> {
    let state = position::noted(own)?;
    let epoch = state.epoch;
    let present = loader.state();
    let saved = if own.notes("ranks") { own.noted("ranks")? } else { ranks };
    if saved != ranks {
        changed.push(format!("{saved} ranks, and now {ranks}"));
    }
    if may_change && (state.seed, state.order) != (present.seed, present.order) {
        changed.push(format!("a different order of samples, so that epoch {} begins anew", epoch + 1));
        loader.set_epoch(epoch);
    } else {
        loader.resume(&state)?;
    }
    Ok(Resumed { epoch, changed })
}
