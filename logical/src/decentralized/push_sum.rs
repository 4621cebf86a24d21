//! Push-sum: averaging over directed graphs, on which ranks do not know the weights of their numbers at other ranks.

use super::gossip::{Stochastic, fingerprint, mixable};
use super::mixing::Mixing;
use super::neighbours::{BESIDE, Neighbours};
use super::schedule::Schedule;
use crate::{Buffer, Communicator, DType, Error, Part, Primitive, ReceiveMode, Result};
use hexagram_physical::fingerprint::{Fingerprint, OperationKind};

impl Communicator {
    /// Mixes over a directed graph: `xᵢ ← Σⱼ pᵢⱼ xⱼ` and `weightᵢ ← Σⱼ pᵢⱼ weightⱼ` on every rank i, where P is the
    /// matrix of `schedule` at `step`, whose *columns* add up to 1: every rank distributes all of its numbers.
    ///
    /// ```text
    /// xᵢ ← first numbers, weightᵢ ← 1
    /// at every step: push_sum(x, weight);  zᵢ = xᵢ / weightᵢ
    /// ```
    ///
    /// The sums of all xᵢ and of all weights are preserved, and every zᵢ converges to the mean, if messages reach all
    /// ranks within a bounded number of steps. Keep `weight` together with x: if it is reset to 1 at each step, the
    /// limit differs.
    ///
    /// Steps, memory and determinism as [`Communicator::gossip`]. Bytes sent per rank: S + 8 to every destination.
    /// Source: Kempe, Dobra and Gehrke, "Gossip-based computation of aggregate information", 2003; for training,
    /// Assran, Loizou, Ballas and Rabbat, "Stochastic gradient push for distributed deep learning", 2019 (SGP).
    ///
    /// # Errors
    /// [`Error::Usage`] for integers and weights that are not positive, and if the schedule has no matrix for this
    /// number of ranks, or one whose columns do not add up to 1; as [`Communicator::gossip`].
    ///
    /// ```
    /// # use hexagram_logical::testing::spawn;
    /// # use hexagram_logical::{Buffer, TransportKind};
    /// # use hexagram_logical::decentralized::Topology;
    /// # spawn(TransportKind::Thread, 4, |comm| {
    /// let mut x = Buffer::from_slice(&[comm.rank() as f32])?;
    /// let mut weight = 1.0;
    /// for step in 0..2 {
    ///     comm.block_on(comm.push_sum(&mut x, &mut weight, &Topology::OnePeerExponential, step))?;
    /// }
    /// assert_eq!(f64::from(x.host::<f32>()?[0]) / weight, 1.5);
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    pub fn push_sum<'a>(
        &'a self,
        buffer: &'a mut Buffer,
        weight: &'a mut f64,
        schedule: &'a dyn Schedule,
        step: u64,
    ) -> Primitive<'a> {
        Box::pin(async move {
            self.push_sum_by(&self.mixing(schedule, step, Stochastic::Columns)?, buffer, weight).await
        })
    }

    /// Runs [`Communicator::push_sum`] with a checked matrix.
    pub(super) async fn push_sum_by(
        &self,
        mixing: &Mixing,
        buffer: &mut Buffer,
        weight: &mut f64,
    ) -> Result<()> {
        mixable(buffer)?;
        if !(weight.is_finite() && *weight > 0.0) {
            let what = format!("{weight} is not a valid weight of a push-sum");
            return Err(Error::usage(what, "begin with 1, and pass the weight of the previous call"));
        }
        let fingerprint =
            Fingerprint { operation: OperationKind::PushSum, ..fingerprint(mixing, buffer, None) };
        self.operate(fingerprint, async |call| {
            let neighbours = Neighbours::of(self, call, mixing);
            let own = Buffer::from_slice(&[*weight])?;
            let inboxes = neighbours.inboxes(&own, DType::F64, 1)?;
            let weights = neighbours.post(BESIDE, Part::whole(&own), &inboxes, 0..1, ReceiveMode::Copy)?;
            neighbours.mix(buffer).await?;
            weights.land().await?;
            neighbours.add_up(&inboxes, 0..1, &own, 0..1)?;
            *weight = own.host::<f64>()?[0];
            Ok(())
        })
        .await
    }
}
