//! One round of encoded gossip, by each of its rules: the lines below are those of the table in `encoded`.

use super::super::mixing::Mixing;
use super::super::neighbours::Neighbours;
use crate::encoding::Encoding;
use crate::{Buffer, Call, Communicator, DType, Error, Land, Part, Result};
use std::sync::Arc;

/// What is known of what everyone has decoded: one's own x̂ᵢ (with extrapolation, x′), and the sum of all, x̂ᵢ included.
pub(super) struct Copies {
    pub(super) own: Arc<Buffer>,
    pub(super) neighbours: Arc<Buffer>,
    /// The digest of the matrix that the sum was formed with, and 1; 0 at first.
    graph: Arc<Buffer>,
}

impl Copies {
    pub(super) fn of(comm: &Communicator, encoding: &mut Encoding, len: usize) -> Result<Self> {
        let mut entry = |name, dtype, len| {
            encoding.state_mut().entry(comm.device(), name, dtype, len).map(|(buffer, _)| buffer)
        };
        Ok(Copies {
            own: entry("own", DType::F32, len)?,
            neighbours: entry("neighbours", DType::F32, len)?,
            graph: entry("graph", DType::I64, 1)?,
        })
    }

    /// Fails if another matrix has been used, as nothing is known of what its neighbours have decoded.
    pub(super) fn check(&self, mixing: &Mixing) -> Result<()> {
        let known = self.graph.host::<i64>()?[0];
        if known == 0 || known == number(mixing) {
            return Ok(());
        }
        let what = "an encoding remembers what neighbours of another graph have sent";
        Err(Error::usage(what, "keep to one mixing matrix, or call gossip_synchronize after it has changed"))
    }

    pub(super) fn belong_to(&self, mixing: &Mixing) -> Result<()> {
        self.graph.write(0..1)?.bytes_mut().copy_from_slice(&number(mixing).to_le_bytes());
        Ok(())
    }
}

fn number(mixing: &Mixing) -> i64 {
    i64::from(mixing.digest()) + 1
}

/// A round under way.
pub(super) struct Round<'a> {
    pub(super) comm: &'a Communicator,
    pub(super) call: &'a Call<'a>,
    pub(super) mixing: &'a Mixing,
    /// xᵢ.
    pub(super) x: &'a Buffer,
    pub(super) encoding: &'a Encoding,
    /// γ.
    pub(super) consensus: f64,
}

impl Round<'_> {
    pub(super) async fn without_feedback(&self) -> Result<()> {
        let mixed = self.scratch()?;
        self.say(self.x, &mixed, 1.0, &[(-1.0, &mixed)]).await?;
        self.comm.sum(&[(1.0, None), (self.consensus, Some(&mixed))], self.x)
    }

    /// DeepSqueeze.
    pub(super) async fn with_error(&self, error: &Buffer) -> Result<()> {
        let mixed = self.scratch()?;
        self.comm.sum(&[(1.0, Some(self.x)), (1.0, None)], error)?;
        self.say(error, &mixed, 1.0, &[(-1.0, &mixed), (-1.0, error)]).await?;
        self.comm.sum(&[(1.0, None), (self.consensus, Some(&mixed))], self.x)
    }

    /// CHOCO.
    pub(super) async fn difference_before(&self, copies: &Copies) -> Result<()> {
        let Copies { own, neighbours, .. } = copies;
        let difference = self.scratch()?;
        self.comm.sum(&[(1.0, Some(self.x)), (-1.0, Some(own))], &difference)?;
        self.say(&difference, neighbours, 1.0, &[(1.0, own)]).await?;
        let gamma = self.consensus;
        self.comm.sum(&[(1.0, None), (gamma, Some(neighbours)), (-gamma, Some(own))], self.x)
    }

    /// DCD.
    pub(super) async fn difference_after(&self, copies: &Copies) -> Result<()> {
        let Copies { own, neighbours, .. } = copies;
        let difference = self.scratch()?;
        let gamma = self.consensus;
        let terms = [(1.0, Some(self.x)), (gamma, Some(&**neighbours)), (-1.0 - gamma, Some(own))];
        self.comm.sum(&terms, &difference)?;
        self.say(&difference, neighbours, 1.0, &[(1.0, own)]).await?;
        self.comm.sum(&[(1.0, Some(own))], self.x)
    }

    /// ECD.
    pub(super) async fn extrapolate(&self, copies: &Copies) -> Result<()> {
        let Copies { own: last, neighbours, .. } = copies;
        let extrapolation = self.scratch()?;
        let gamma = self.consensus;
        let t = (self.encoding.state().operations() + 1) as f64;
        self.comm.sum(&[(1.0, None), (gamma, Some(neighbours)), (-gamma, Some(last))], self.x)?;
        self.comm.sum(&[(1.0 - t / 2.0, Some(last)), (t / 2.0, Some(self.x))], &extrapolation)?;
        self.comm.sum(&[(1.0, Some(self.x))], last)?;
        self.comm.sum(&[(1.0 - 2.0 / t, None)], neighbours)?;
        self.say(&extrapolation, neighbours, 2.0 / t, &[]).await
    }

    fn scratch(&self) -> Result<Buffer> {
        self.comm.scratch(DType::F32, self.x.len())
    }

    /// Encodes `what` as qᵢ and sends it: `sum ← sum + factor Σⱼ wᵢⱼ qⱼ`, in the order of ranks, and besides
    /// `to ← to + weight qᵢ` for each of `own`.
    async fn say(&self, what: &Buffer, sum: &Buffer, factor: f64, own: &[(f32, &Buffer)]) -> Result<()> {
        let Round { comm, call, mixing, encoding, .. } = *self;
        let codec = &**encoding.codec();
        let rank = comm.rank();
        let neighbours = Neighbours::of(comm, call, mixing);
        let largest = codec.encoded_len(what.len());
        let message = comm.scratch(DType::U8, largest)?;
        let inboxes = neighbours.inboxes(DType::U8, largest)?;

        let bytes =
            call.encode(codec, Part::whole(what), Part::whole(&message), encoding.draw(&[rank as u64]))?;
        let said = || Part::of(&message, 0..bytes);
        let mut flight = neighbours.post(0, said(), &inboxes, 0..largest, Land::AtMost)?;
        for (weight, to) in own {
            call.decode(codec, rank, said(), Some(*weight), Part::whole(to))?;
        }
        let mut arriving = inboxes.iter();
        for (from, weight) in mixing.row(rank) {
            let weight = Some((factor * weight) as f32);
            if from == rank {
                call.decode(codec, rank, said(), weight, Part::whole(sum))?;
            } else if let Some(inbox) = arriving.next() {
                let heard = Part::of(inbox, 0..flight.next().await?);
                call.decode(codec, from, heard, weight, Part::whole(sum))?;
            }
        }
        flight.land().await
    }
}

impl Communicator {
    /// `to ← Σ weight × term` on whole buffers; a term `None` is `to` itself.
    pub(super) fn sum(&self, terms: &[(f64, Option<&Buffer>)], to: &Buffer) -> Result<()> {
        let read = |term: &Option<&Buffer>| term.map(|buffer| buffer.read(0..buffer.len())).transpose();
        let views: Vec<_> = terms.iter().map(|(_, term)| read(term)).collect::<Result<_>>()?;
        let terms: Vec<_> =
            terms.iter().zip(&views).map(|((weight, _), view)| (*weight, view.as_ref())).collect();
        self.device().weighted_sum(&terms, &mut to.write(0..to.len())?)
    }
}
