//! Gossip: the numbers of every rank become a weighted mean of its own and those of its neighbours.

use super::mixing::Mixing;
use super::neighbours::Neighbours;
use super::schedule::{Schedule, mixing_at};
use crate::centralized::free_to_write;
use crate::{Buffer, Communicator, DType, Error, Primitive, Result};
use hexagram_physical::fingerprint::{CodecDigest, Fingerprint, OperationKind};

impl Communicator {
    /// Averages with neighbours once: `xᵢ ← Σⱼ wᵢⱼ xⱼ` on every rank i, where W is the matrix of `schedule` at
    /// `step`.
    ///
    /// One step for all neighbours, in segments of 512 KiB. Bytes sent per rank: S to every destination, so S in
    /// total for schedules of pairs and of one peer. Memory: for every source 4 segments, or S if that is less. A
    /// rank waits for its neighbours only, and ranks may be several operations apart; messages that arrive before
    /// their receive are kept.
    ///
    /// Determinism: independent of arrival, terms are added in the order of ranks, computed in f64 (16-bit floats: in
    /// f32), and rounded once. Two ranks that average as a pair get equal bits, and so do all ranks with
    /// [`Topology::Complete`](super::Topology::Complete).
    ///
    /// The mean over ranks is preserved if W is doubly stochastic, up to rounding; the table of
    /// [`Topology`](super::Topology) shows how fast ranks agree.
    ///
    /// Source: Lian et al., "Can decentralized algorithms outperform centralized algorithms?", 2017 (D-PSGD).
    ///
    /// # Errors
    /// [`Error::Usage`] for integers, and if the schedule has no matrix for this number of ranks, or one whose rows
    /// do not add up to 1. [`Error::Mismatch`] if ranks differ in element type, length, or matrix and their messages
    /// meet, otherwise [`Error::Deadline`].
    ///
    /// ```
    /// # use hexagram_logical::testing::spawn;
    /// # use hexagram_logical::{Buffer, TransportKind};
    /// # use hexagram_logical::decentralized::Topology;
    /// # spawn(TransportKind::Thread, 4, |comm| {
    /// // Ranks average in pairs: 0 with 1 and 2 with 3, then 0 with 2 and 1 with 3.
    /// let mut x = Buffer::from_slice(&[comm.rank() as f32])?;
    /// for step in 0..2 {
    ///     comm.block_on(comm.gossip(&mut x, &Topology::XorPairs, step))?;
    /// }
    /// assert_eq!(*x.host::<f32>()?, [1.5]);
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    pub fn gossip<'a>(
        &'a self,
        buffer: &'a mut Buffer,
        schedule: &'a dyn Schedule,
        step: u64,
    ) -> Primitive<'a> {
        Box::pin(async move { self.gossip_by(&self.mixing(schedule, step, Stochastic::Rows)?, buffer).await })
    }

    /// Runs [`Communicator::gossip`] with a checked matrix.
    pub(super) async fn gossip_by(&self, mixing: &Mixing, buffer: &mut Buffer) -> Result<()> {
        mixable(buffer)?;
        let fingerprint = fingerprint(mixing, buffer, None);
        self.operate(fingerprint, async |call| Neighbours::of(self, call, mixing).mix(buffer).await).await
    }

    /// Returns the matrix of a step, if it is as stochastic as the operation requires.
    pub(super) fn mixing(&self, schedule: &dyn Schedule, step: u64, needs: Stochastic) -> Result<Mixing> {
        let mixing = mixing_at(schedule, self.size(), step)?;
        let (fit, what, remedy) = match needs {
            Stochastic::Rows => (
                mixing.is_row_stochastic(),
                "a row",
                "make the weights of the sources of each rank add up to 1",
            ),
            Stochastic::Columns => (
                mixing.is_column_stochastic(),
                "a column",
                "make the weights of the destinations of each rank add up to 1: see Mixing::push",
            ),
            Stochastic::Both => (
                mixing.is_doubly_stochastic(),
                "a row or a column",
                "use a doubly stochastic matrix, such as that of Mixing::hastings for any graph",
            ),
        };
        if fit {
            return Ok(mixing);
        }
        Err(Error::usage(format!("{what} of the mixing matrix at step {step} does not add up to 1"), remedy))
    }
}

/// Part of a matrix that must add up to 1.
#[derive(Debug, Clone, Copy)]
pub(super) enum Stochastic {
    Rows,
    Columns,
    Both,
}

/// Fails unless `buffer` supports weights, and can be written now.
pub(super) fn mixable(buffer: &Buffer) -> Result<()> {
    if buffer.dtype().is_float() {
        return free_to_write(buffer);
    }
    let what = format!("{} elements cannot be averaged", buffer.dtype());
    Err(Error::usage(what, format!("use a float type, such as {}", DType::F32)))
}

pub(super) fn fingerprint(mixing: &Mixing, buffer: &Buffer, codec: Option<CodecDigest>) -> Fingerprint {
    let plain = Fingerprint::new(OperationKind::Gossip, buffer.dtype(), buffer.len());
    Fingerprint { root: Some(mixing.digest()), codec, ..plain }
}
