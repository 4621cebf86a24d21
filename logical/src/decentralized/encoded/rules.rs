//! One round of encoded gossip by each rule; the lines below are those of the table in `encoded`.

use super::super::mixing::Mixing;
use super::super::neighbours::Neighbours;
use crate::encoding::{Encoding, FeedbackLink};
use crate::{Buffer, Call, Communicator, DType, Error, Part, ReceiveMode, Result};
use std::sync::Arc;

/// Decoded estimates: x̂ᵢ of this rank (with extrapolation, x′), and the sum of all, including x̂ᵢ.
pub(super) struct Copies {
    pub(super) own: Arc<Buffer>,
    pub(super) neighbours: Arc<Buffer>,
    /// Digest of the matrix of the sum, plus 1; initially 0.
    graph: Arc<Buffer>,
}

impl Copies {
    pub(super) fn of(encoding: &mut Encoding, x: &Buffer) -> Result<Self> {
        let state = encoding.state_mut();
        let mut entry = |name| Ok(state.entry(x, name, DType::F32, x.len())?.0);
        let own = entry("own")?;
        let neighbours = entry("neighbours")?;
        let graph = state.control("graph", DType::I64, 1)?.0;
        Ok(Copies { own, neighbours, graph })
    }

    /// Fails if a different matrix was used before, since the estimates of its neighbours are unknown.
    pub(super) fn check(&self, mixing: &Mixing) -> Result<()> {
        let known = self.graph.host::<i64>()?[0];
        if known == 0 || known == number(mixing) {
            return Ok(());
        }
        let what = "the state of an encoding belongs to the neighbours of a different graph";
        Err(Error::usage(what, "use one mixing matrix, or call gossip_synchronize after a change"))
    }

    /// Returns the feedback link of the messages of this rank.
    fn link(&self) -> FeedbackLink {
        FeedbackLink::Difference(Arc::clone(&self.own))
    }

    pub(super) fn belong_to(&self, mixing: &Mixing) -> Result<()> {
        self.graph.write_all()?.copy_from(&Buffer::from_slice(&[number(mixing)])?.read_all()?)
    }
}

fn number(mixing: &Mixing) -> i64 {
    i64::from(mixing.digest()) + 1
}

/// Running round of encoded gossip.
pub(super) struct GossipRound<'a> {
    pub(super) comm: &'a Communicator,
    pub(super) call: &'a Call<'a>,
    pub(super) mixing: &'a Mixing,
    /// Numbers of this rank, xᵢ.
    pub(super) x: &'a Buffer,
    pub(super) encoding: &'a Encoding,
    /// Consensus step γ.
    pub(super) consensus: f64,
}

impl GossipRound<'_> {
    pub(super) async fn without_feedback(&self) -> Result<()> {
        let mixed = self.scratch()?;
        self.exchange(Part::whole(self.x), &mixed, 1.0, |decode| decode(-1.0, Part::whole(&mixed))).await?;
        sum(&[(1.0, None), (self.consensus, Some(&mixed))], self.x)
    }

    /// Mixes by DeepSqueeze.
    pub(super) async fn with_error(&self, link: &FeedbackLink) -> Result<()> {
        let mixed = self.scratch()?;
        let whole = 0..self.x.len();
        let error = link.compensate_in_place(whole.clone(), Part::whole(self.x))?;
        self.exchange(error, &mixed, 1.0, |decode| {
            decode(-1.0, Part::whole(&mixed))?;
            link.remember_in_place(whole, decode)
        })
        .await?;
        sum(&[(1.0, None), (self.consensus, Some(&mixed))], self.x)
    }

    /// Mixes by CHOCO.
    pub(super) async fn difference_before(&self, copies: &Copies) -> Result<()> {
        let Copies { own, neighbours, .. } = copies;
        let link = copies.link();
        let difference = self.scratch()?;
        let difference = Part::whole(&difference);
        let whole = 0..self.x.len();
        link.compensate_into(whole.clone(), &Part::whole(self.x), &difference)?;
        self.exchange(difference, neighbours, 1.0, |decode| link.remember_in_place(whole, decode)).await?;
        let gamma = self.consensus;
        sum(&[(1.0, None), (gamma, Some(neighbours)), (-gamma, Some(own))], self.x)
    }

    /// Mixes by DCD.
    pub(super) async fn difference_after(&self, copies: &Copies) -> Result<()> {
        let Copies { own, neighbours, .. } = copies;
        let link = copies.link();
        let difference = self.scratch()?;
        let gamma = self.consensus;
        let terms = [(1.0, Some(self.x)), (gamma, Some(&**neighbours)), (-1.0 - gamma, Some(own))];
        sum(&terms, &difference)?;
        let send = Part::whole(&difference);
        let whole = 0..self.x.len();
        self.exchange(send, neighbours, 1.0, |decode| link.remember_in_place(whole, decode)).await?;
        sum(&[(1.0, Some(own))], self.x)
    }

    /// Mixes by ECD.
    pub(super) async fn extrapolate(&self, copies: &Copies) -> Result<()> {
        let Copies { own: last, neighbours, .. } = copies;
        let extrapolation = self.scratch()?;
        let gamma = self.consensus;
        let t = (self.encoding.state().operations() + 1) as f64;
        sum(&[(1.0, None), (gamma, Some(neighbours)), (-gamma, Some(last))], self.x)?;
        sum(&[(1.0 - t / 2.0, Some(last)), (t / 2.0, Some(self.x))], &extrapolation)?;
        sum(&[(1.0, Some(self.x))], last)?;
        sum(&[(1.0 - 2.0 / t, None)], neighbours)?;
        self.exchange(Part::whole(&extrapolation), neighbours, 2.0 / t, |_| Ok(())).await
    }

    fn scratch(&self) -> Result<Buffer> {
        self.x.zeroed_same_device(DType::F32, self.x.len())
    }

    /// Encodes `what` as qᵢ and sends it: `sum ← sum + factor Σⱼ wᵢⱼ qⱼ`, in the order of ranks. While messages are
    /// in transit, `meanwhile` may add qᵢ elsewhere, with the weight that it gets.
    async fn exchange(
        &self,
        what: Part<'_>,
        sum: &Buffer,
        factor: f64,
        meanwhile: impl FnOnce(&dyn Fn(f32, Part<'_>) -> Result<()>) -> Result<()>,
    ) -> Result<()> {
        let GossipRound { comm, call, mixing, encoding, .. } = *self;
        let codec = &**encoding.codec();
        let rank = comm.rank();
        let neighbours = Neighbours::of(comm, call, mixing);
        let largest = codec.encoded_len(what.range.len());
        let message = sum.zeroed_same_device(DType::U8, largest)?;
        let inboxes = neighbours.inboxes(sum, DType::U8, largest)?;

        let bytes = call.encode(codec, what, Part::whole(&message), encoding.draw(&[rank as u64]))?;
        let said = || Part::of(&message, 0..bytes);
        let mut flight = neighbours.post(0, said(), &inboxes, 0..largest, ReceiveMode::AtMost)?;
        meanwhile(&|weight, to| call.decode(codec, rank, said(), Some(weight), to))?;
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

/// Stores `to ← Σ weight × term` on whole buffers; a term `None` is `to` itself.
pub(super) fn sum(terms: &[(f64, Option<&Buffer>)], to: &Buffer) -> Result<()> {
    let read = |term: &Option<&Buffer>| term.map(Buffer::read_all).transpose();
    let views: Vec<_> = terms.iter().map(|(_, term)| read(term)).collect::<Result<_>>()?;
    let terms: Vec<_> =
        terms.iter().zip(&views).map(|((weight, _), view)| (*weight, view.as_ref())).collect();
    to.write_all()?.weighted_sum(&terms)
}
