//! The context of a hook, in addition to the bucket: the ranks, the step, and arithmetic on buffers.

use super::metrics::{Combine, MetricsCollector};
use super::ranks::Ranks;
use hexagram_logical::codec::{Codec, LinearCodec, OneRound};
use hexagram_logical::decentralized::{GossipOptions, Mixing, Schedule, mixing_at};
use hexagram_logical::device::measure;
use hexagram_logical::encoding::{Encoding, Feedback, mix};
use hexagram_logical::{Buffer, Communicator, DType, Error, Hierarchy, Queue, ReduceOp, Result};
use std::sync::Arc;

/// Access of a bucket to the other ranks, in one step.
#[derive(Clone)]
pub struct Context {
    pub(crate) comm: Communicator,
    /// Hosts and leaders, if the engine options request hierarchical communication.
    pub(crate) hierarchy: Option<Hierarchy>,
    pub(crate) bucket: usize,
    pub(crate) present: StepInfo,
    pub(crate) metrics: MetricsCollector,
    /// Queue of the memory of the bucket, and its number of elements.
    pub(crate) queue: Queue,
    pub(crate) elements: usize,
}

/// One step of the training loop.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct StepInfo {
    pub(crate) step: u64,
    /// Number of steps before the first step of the algorithm.
    pub(crate) begun: u64,
    /// Number of optimizer steps before this one on this rank: smaller if the loop has skipped some.
    pub(crate) updates: u64,
    pub(crate) learning_rate: Option<f64>,
    /// Learning rate to compare with the other ranks, if the optimizer has several.
    pub(crate) compared_rate: Option<f64>,
    /// Loss of this rank, if the training loop has set it.
    pub(crate) loss: Option<f64>,
    /// Seed in the engine options.
    pub(crate) seed: u64,
    /// Number of gradients of this step before the current one.
    pub(crate) evaluation: u32,
}

impl StepInfo {
    /// Returns [`Context::own_step`].
    pub(crate) fn own_step(&self) -> u64 {
        self.step.saturating_sub(self.begun)
    }
}

impl Context {
    /// Returns the communicator of all ranks, in the lane of the bucket.
    pub fn comm(&self) -> &Communicator {
        &self.comm
    }

    /// Returns the ranks to average over: flat, or hosts first.
    fn ranks(&self) -> Ranks {
        Ranks::new(&self.comm, self.hierarchy.as_ref())
    }

    /// Returns true if the engine options request hierarchical communication.
    pub fn is_hierarchical(&self) -> bool {
        self.hierarchy.is_some()
    }

    /// Returns the number of ranks.
    pub fn size(&self) -> usize {
        self.comm.size()
    }

    /// Returns this rank.
    pub fn rank(&self) -> usize {
        self.comm.rank()
    }

    /// Returns the number of optimizer steps before this one, counted from the first of this training, including those
    /// before a checkpoint.
    pub fn step(&self) -> u64 {
        self.present.step
    }

    /// Returns true in the last step of each round of `period` steps, counted from the first step of the training.
    ///
    /// It is equal on all ranks if they wait for each other. `period` is at least 1.
    pub fn ends_round(&self, period: u64) -> bool {
        (self.step() + 1).is_multiple_of(period)
    }

    /// Returns the number of steps of this algorithm before this one: 0 in its first step, whether that is the first of
    /// the training or the first after [`DataParallel::switch`](crate::DataParallel::switch). Checkpoints and changes
    /// of the buckets do not reset it, unless a different number of ranks loads a checkpoint and a part of the state begins
    /// anew. Use it for warm-ups; if ranks wait for each other, it is equal on all of them.
    pub fn own_step(&self) -> u64 {
        self.present.own_step()
    }

    /// Returns the number of gradients of this step before the current one: 0 unless the algorithm takes
    /// [several](crate::Algorithm::evaluations).
    pub fn evaluation(&self) -> u32 {
        self.present.evaluation
    }

    /// Returns the index of the round in this step, from 0, for an algorithm that communicates every `interval` steps,
    /// including the first; `None` in the steps between. It depends only on the step, so checkpoints and changes of the
    /// buckets do not reset it.
    pub fn round(&self, interval: u64) -> Option<u64> {
        let round = self.step().checked_div(interval)?;
        self.step().is_multiple_of(interval).then_some(round)
    }

    /// Returns the index of the bucket in the plan.
    pub fn bucket(&self) -> usize {
        self.bucket
    }

    /// Returns the learning rate of this step.
    ///
    /// # Errors
    /// [`Error::Usage`] if the training loop has not set it.
    pub fn learning_rate(&self) -> Result<f64> {
        self.present.learning_rate.ok_or_else(|| {
            Error::usage(
                "the algorithm needs the learning rate",
                "set the option `learning_rate`, or call `set_learning_rate`",
            )
        })
    }

    /// Returns the loss of this step on this rank, as set by [`DataParallel::set_loss`](crate::DataParallel::set_loss).
    ///
    /// # Errors
    /// [`Error::Usage`] if the training loop has not set it.
    pub fn loss(&self) -> Result<f64> {
        self.present.loss.ok_or_else(|| {
            Error::usage(
                "the algorithm needs the loss",
                "call `set_loss` before the backward pass, in every step",
            )
        })
    }

    /// Reports a number of this step by name, for users: [`DataParallel::metrics`] returns it after the step, combined
    /// with those of other buckets by `rule`. `train` writes it to metrics.jsonl. It is local to this rank, and never
    /// sent. A number from [`state`](crate::Algorithm::state) or [`settle`](crate::Algorithm::settle) belongs to no
    /// step, and is dropped.
    ///
    /// ```
    /// use hexagram::logical::Result;
    /// use hexagram::algorithms::{Bucket, Combine, Context};
    ///
    /// /// Shows how long the gradients are, all buckets together.
    /// fn show(context: &Context, bucket: &Bucket) -> Result<()> {
    ///     context.metric("gradient_norm", Combine::Norm, context.norm(&bucket.gradients)?)
    /// }
    /// ```
    ///
    /// [`DataParallel::metrics`]: crate::DataParallel::metrics
    ///
    /// # Errors
    /// [`Error::Usage`] if the name has a different rule in the same step.
    pub fn metric(&self, name: &str, rule: Combine, value: f64) -> Result<()> {
        self.metrics.add(name, rule, value)
    }

    /// Returns a seed for random numbers that are equal on all ranks, and different in each step and bucket. It depends
    /// only on these and on [`EngineOptions::seed`](crate::EngineOptions::seed), so a resumed training draws the same
    /// numbers as an uninterrupted one; with other bucket sizes the numbers differ.
    pub fn shared_seed(&self) -> u64 {
        let words = [self.step(), self.bucket as u64];
        words.iter().fold(mix(self.present.seed), |hash, word| mix(hash ^ word))
    }

    /// Returns a seed for random numbers that differ between ranks; see [`Context::shared_seed`].
    pub fn own_seed(&self) -> u64 {
        mix(self.shared_seed() ^ (self.rank() as u64 + 1))
    }

    /// Creates an encoding for this bucket; its random numbers differ from those of the other buckets.
    pub fn encoding(&self, codec: Arc<dyn Codec>, feedback: Feedback) -> Encoding {
        self.prepare(&*codec);
        Encoding::new(codec).with_feedback(feedback).with_seed(self.bucket as u64)
    }

    /// Compiles the programs of a codec on the device of the bucket, before ranks wait for each other.
    fn prepare(&self, codec: &dyn Codec) {
        if let Err(error) = self.queue.prepare_codec(codec, self.elements) {
            // The first use returns the error.
            tracing::debug!("{} is not ready: {error}", codec.name());
        }
    }

    /// Creates an encoding for this bucket with a codec whose messages are reduced in encoded form.
    pub fn linear_encoding(
        &self,
        codec: Arc<dyn LinearCodec>,
        feedback: Feedback,
    ) -> Encoding<dyn LinearCodec> {
        OneRound::of(&codec, self.elements, 0).iter().for_each(|codec| self.prepare(codec));
        Encoding::linear(codec).with_feedback(feedback).with_seed(self.bucket as u64)
    }

    /// Averages over all ranks: `buffer ← mean over ranks`, hierarchically if the engine options request it.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    pub async fn mean(&self, buffer: &mut Buffer) -> Result<()> {
        self.ranks().mean(buffer).await
    }

    /// Averages over all ranks with weights: `buffer ← Σᵢ wᵢ bufferᵢ / Σᵢ wᵢ`, w being `weight` on each rank;
    /// hierarchically if the engine options request it. It sends 8 bytes in addition to those of [`Context::mean`].
    ///
    /// # Errors
    /// [`Error::Usage`] unless the weights are finite and at least 0, and one is above 0; as [`Context::mean`].
    pub async fn weighted_mean(&self, buffer: &mut Buffer, weight: f64) -> Result<()> {
        let refuse = |what: String| Err(Error::usage(what, "give weights of 0 or more, and one above 0"));
        if !weight.is_finite() || weight < 0.0 {
            return refuse(format!("rank {} has a weight of {weight} in a mean", self.rank()));
        }
        let mut total = buffer.zeroed_same_device(DType::F64, 1)?;
        total.write_all()?.copy_from(&Buffer::from_slice(&[weight])?.read_all()?)?;
        self.mean(&mut total).await?;
        let total = total.host::<f64>()?[0];
        if total <= 0.0 {
            return refuse("all ranks have a weight of 0 in a mean".to_owned());
        }
        // Before the sum, so that elements overflow only if the result does.
        self.scale(weight / total, buffer)?;
        self.mean(buffer).await
    }

    /// Averages like [`Context::mean`], in low precision; hierarchically, only messages between leaders are encoded.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce_encoded`].
    pub async fn mean_encoded(&self, buffer: &mut Buffer, encoding: &mut Encoding) -> Result<()> {
        self.ranks().mean_encoded(buffer, encoding).await
    }

    /// Averages like [`Context::mean`], with sparse messages that every rank sends to every other; hierarchically, only
    /// leaders send them.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce_sparse`].
    pub async fn mean_sparse(&self, buffer: &mut Buffer, encoding: &mut Encoding) -> Result<()> {
        self.ranks().mean_sparse(buffer, encoding).await
    }

    /// Averages like [`Context::mean`], with messages that are reduced in encoded form; hierarchically, only messages
    /// between leaders are encoded.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce_linear`].
    pub async fn mean_linear(
        &self,
        buffer: &mut Buffer,
        encoding: &mut Encoding<dyn LinearCodec>,
    ) -> Result<()> {
        match &self.hierarchy {
            Some(hierarchy) => hierarchy.all_reduce_linear(buffer, ReduceOp::Mean, encoding).await,
            None => self.comm.all_reduce_linear(buffer, ReduceOp::Mean, encoding).await,
        }
    }

    /// Takes a majority vote of the ranks on the sign of every element: `buffer ← sgn(Σᵢ sgn(bufferᵢ))`, where sgn(0)
    /// is 1. Hierarchically, the result has the same bits; only leaders exchange votes, after they have counted those
    /// of their host.
    ///
    /// # Errors
    /// As [`Communicator::majority_vote`].
    pub async fn majority_vote(&self, buffer: &mut Buffer) -> Result<()> {
        match &self.hierarchy {
            Some(hierarchy) => hierarchy.majority_vote(buffer).await,
            None => self.comm.majority_vote(buffer).await,
        }
    }

    /// Runs `work`, which computes a mean, among all ranks; hierarchically, as [`Hierarchy::among_leaders`].
    ///
    /// # Errors
    /// The errors of `work`; as [`Hierarchy::among_leaders`].
    pub async fn among_hosts(
        &self,
        buffer: &mut Buffer,
        work: impl AsyncFnOnce(&Communicator, &mut Buffer) -> Result<()>,
    ) -> Result<()> {
        match &self.hierarchy {
            Some(hierarchy) => hierarchy.among_leaders(buffer, ReduceOp::Mean, work).await,
            None => work(&self.comm, buffer).await,
        }
    }

    /// Runs `work` on the update instead of the gradients: `gradients ← work(γ · gradients) / γ`. So the state of
    /// `work` is in units of the parameters, and stays valid when γ changes. While γ is 0, `work` does not run, and the
    /// gradients become 0.
    ///
    /// # Errors
    /// The errors of `work`; as [`Context::learning_rate`].
    pub async fn as_step(
        &self,
        gradients: &mut Buffer,
        work: impl AsyncFnOnce(&mut Buffer) -> Result<()>,
    ) -> Result<()> {
        let rate = self.learning_rate()?;
        if rate == 0.0 {
            gradients.write_all()?.clear();
            return Ok(());
        }
        self.scale(rate, gradients)?;
        work(gradients).await?;
        self.scale(1.0 / rate, gradients)
    }

    /// Mixes with neighbours: `buffer ← Σⱼ wᵢⱼ bufferⱼ` with the matrix of `round`; hierarchically, hosts take the
    /// place of ranks, each with the mean of its ranks, weighted by their number.
    ///
    /// # Errors
    /// As [`Communicator::gossip`].
    pub async fn gossip(&self, buffer: &mut Buffer, schedule: &dyn Schedule, round: u64) -> Result<()> {
        match &self.hierarchy {
            Some(hierarchy) => hierarchy.gossip(buffer, schedule, round).await,
            None => self.comm.gossip(buffer, schedule, round).await,
        }
    }

    /// Returns the number of mixing members: ranks, or hosts in hierarchical communication.
    pub fn members(&self) -> usize {
        self.hierarchy.as_ref().map_or(self.size(), |hierarchy| hierarchy.hosts().len())
    }

    /// Returns the index of this rank among the mixing members, and the weight of each member (mean 1): 1 for ranks,
    /// proportional to the number of ranks for hosts. `None` on ranks that are not the leader of their host.
    pub fn shares(&self) -> Option<(usize, Vec<f64>)> {
        let Some(hierarchy) = &self.hierarchy else { return Some((self.rank(), vec![1.0; self.size()])) };
        let each = self.members() as f64 / self.size() as f64;
        let weights = hierarchy.hosts().iter().map(|ranks| ranks.len() as f64 * each).collect();
        hierarchy.leaders().map(|leaders| (leaders.rank(), weights))
    }

    /// Returns the matrix with which [`Context::gossip`] mixes in `round`: over ranks or hosts.
    ///
    /// # Errors
    /// As [`mixing_at`].
    pub fn mixing(&self, schedule: &dyn Schedule, round: u64) -> Result<Mixing> {
        match &self.hierarchy {
            Some(hierarchy) => hierarchy.mixing(schedule, round),
            None => mixing_at(schedule, self.size(), round),
        }
    }

    /// Mixes like [`Context::gossip`], in low precision; hierarchically, only messages between leaders are encoded.
    ///
    /// # Errors
    /// As [`Communicator::gossip_encoded`].
    pub async fn gossip_encoded(
        &self,
        buffer: &mut Buffer,
        schedule: &dyn Schedule,
        round: u64,
        encoding: &mut Encoding,
        options: GossipOptions,
    ) -> Result<()> {
        match &self.hierarchy {
            Some(hierarchy) => hierarchy.gossip_encoded(buffer, schedule, round, encoding, options).await,
            None => self.comm.gossip_encoded(buffer, schedule, round, encoding, options).await,
        }
    }

    /// Resets the estimates of the neighbours in an encoding to the present values on the ranks.
    ///
    /// # Errors
    /// As [`Communicator::gossip_synchronize`].
    pub async fn gossip_synchronize(
        &self,
        buffer: &Buffer,
        schedule: &dyn Schedule,
        encoding: &mut Encoding,
    ) -> Result<()> {
        match &self.hierarchy {
            Some(hierarchy) => hierarchy.gossip_synchronize(buffer, schedule, 0, encoding).await,
            None => self.comm.gossip_synchronize(buffer, schedule, 0, encoding).await,
        }
    }

    /// Mixes over a directed graph: `buffer ← Σⱼ pᵢⱼ bufferⱼ` and `weight ← Σⱼ pᵢⱼ weightⱼ` with the column-stochastic
    /// matrix of `round`; hierarchically, hosts take the place of ranks, with one weight per host.
    ///
    /// # Errors
    /// As [`Communicator::push_sum`].
    pub async fn push_sum(
        &self,
        buffer: &mut Buffer,
        weight: &mut f64,
        schedule: &dyn Schedule,
        round: u64,
    ) -> Result<()> {
        match &self.hierarchy {
            Some(hierarchy) => hierarchy.push_sum(buffer, weight, schedule, round).await,
            None => self.comm.push_sum(buffer, weight, schedule, round).await,
        }
    }

    /// Returns a zeroed buffer of the same type and length, on the device of `buffer`.
    ///
    /// # Errors
    /// [`Error::System`] if memory runs out.
    pub fn zeros_like(&self, buffer: &Buffer) -> Result<Buffer> {
        buffer.zeroed_same_device(buffer.dtype(), buffer.len())
    }

    /// Returns a copy of a buffer, on the same device.
    ///
    /// # Errors
    /// [`Error::System`] if memory runs out.
    pub fn copy_of(&self, buffer: &Buffer) -> Result<Buffer> {
        buffer.copied()
    }

    /// Copies all elements: `to ← from`.
    ///
    /// # Errors
    /// [`Error::Usage`] if types or lengths differ.
    pub fn copy(&self, from: &Buffer, to: &Buffer) -> Result<()> {
        to.write_all()?.copy_from(&from.read_all()?)
    }

    /// Returns the square root of the sum of all squares, summed in double precision. On a device, it waits for the
    /// result.
    ///
    /// # Errors
    /// [`Error::Usage`] unless it is f32 or f64.
    pub fn norm(&self, buffer: &Buffer) -> Result<f64> {
        Ok(measure::squares(vec![buffer.read_all()?])?.into_iter().sum::<f64>().sqrt())
    }

    /// Multiplies all elements: `to ← factor · to`.
    ///
    /// # Errors
    /// [`Error::Usage`] for integers.
    pub fn scale(&self, factor: f64, to: &Buffer) -> Result<()> {
        to.write_all()?.scale(factor)
    }

    /// Adds a multiple: `to ← to + weight · from`.
    ///
    /// # Errors
    /// [`Error::Usage`] if types or lengths differ, and for integers.
    pub fn add_scaled(&self, weight: f64, from: &Buffer, to: &Buffer) -> Result<()> {
        to.write_all()?.add_scaled(weight, &from.read_all()?)
    }

    /// Blends two buffers: `to ← own · to + weight · from`.
    ///
    /// # Errors
    /// As [`Context::add_scaled`].
    pub fn blend(&self, own: f64, to: &Buffer, weight: f64, from: &Buffer) -> Result<()> {
        self.combine(own, to, &[(weight, from)])
    }

    /// Combines buffers: `to ← own · to + Σ weight · from`, in the order of the terms, in one pass, rounded once.
    ///
    /// # Errors
    /// As [`Context::add_scaled`].
    pub fn combine(&self, own: f64, to: &Buffer, terms: &[(f64, &Buffer)]) -> Result<()> {
        let views = terms.iter().map(|(_, from)| from.read_all()).collect::<Result<Vec<_>>>()?;
        let terms = terms.iter().zip(&views).map(|((weight, _), view)| (*weight, Some(view)));
        let terms: Vec<_> = std::iter::once((own, None)).chain(terms).collect();
        to.write_all()?.weighted_sum(&terms)
    }
}
