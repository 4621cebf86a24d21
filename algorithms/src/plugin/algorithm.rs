//! The plugin trait: the interface that an author of a distributed SGD variant implements.

use crate::plugin::hook_presence::{NotImplemented, writes_slots_ready};
use crate::plugin::{About, Bucket, Context, Fields, ImplementedHooks, Slots};
use hexagram_logical::options_text::Options;
use hexagram_logical::{Buffer, Result};
use std::fmt;

/// One of the eight ways to communicate in distributed SGD, as three yes/no lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Trigram {
    /// True if all ranks agree on one result; otherwise ranks mix with neighbours.
    pub centralized: bool,
    /// True if ranks wait for each other in every step.
    pub synchronous: bool,
    /// True if numbers are sent in full precision; otherwise compressed.
    pub full_precision: bool,
}

impl Trigram {
    /// Returns the trigram as one character, with the line for centralized at the top; a line is whole for true and
    /// broken for false.
    pub fn symbol(self) -> char {
        match (self.centralized, self.synchronous, self.full_precision) {
            (true, true, true) => '☰',
            (true, true, false) => '☴',
            (true, false, true) => '☲',
            (true, false, false) => '☶',
            (false, true, true) => '☱',
            (false, true, false) => '☵',
            (false, false, true) => '☳',
            (false, false, false) => '☷',
        }
    }
}

impl fmt::Display for Trigram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = |yes: bool, one: &'static str, other: &'static str| if yes { one } else { other };
        write!(
            f,
            "{}, {}, {}",
            line(self.centralized, "centralized", "decentralized"),
            line(self.synchronous, "synchronous", "asynchronous"),
            line(self.full_precision, "full precision", "low precision")
        )
    }
}

/// Division of the model into buckets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Buckets {
    /// Buckets with the size in the engine options: for communication during the backward pass.
    #[default]
    BySize,
    /// One bucket for each element type: for communication once a step or less, or by a service.
    Whole,
}

/// Requirements of an algorithm, which the engine meets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Needs {
    /// Division of the model into buckets.
    pub buckets: Buckets,
    /// True if hooks read or write parameters. If false, [`Bucket::parameters`] is empty, and the hooks
    /// [`before_forward`](Algorithm::before_forward), [`evaluated`](Algorithm::evaluated),
    /// [`slots_ready`](Algorithm::slots_ready) and [`after_step`](Algorithm::after_step) are not called: the engine
    /// refuses an algorithm that implements one of these without parameters.
    pub parameters: bool,
}

/// Distributed SGD variant: its definition, which can serve any number of models.
///
/// A step calls the hooks of a bucket in this order:
///
/// | hook | when | available data |
/// |---|---|---|
/// | [`before_forward`](Self::before_forward) | the forward pass begins; may run until the gradients are ready | parameters, read-only |
/// | [`evaluated`](Self::evaluated) | a gradient is complete that is not the last of the step, if there are several | gradients and parameters |
/// | [`gradients_ready`](Self::gradients_ready) | the backward pass has completed the bucket | gradients and parameters |
/// | [`after_backward`](Self::after_backward) | the backward pass has completed all buckets | the same |
/// | [`slots_ready`](Self::slots_ready) | the engine optimizer has changed the parameters | the same, and the optimizer state |
/// | [`after_step`](Self::after_step) | the optimizer has changed the parameters | gradients and parameters |
/// | [`settle`](Self::settle) | before evaluation, checkpoint, switch, and at the end | the same |
///
/// The hooks choose the data to communicate: the gradient, a momentum, the parameters, a difference. The optimizer
/// steps with the contents of the gradients after `gradients_ready` and `after_backward`: x ← x − γ · gradients for
/// plain SGD. So an algorithm with its own update rule leaves its direction there, and is used with plain SGD.
///
/// Several buckets are in progress at the same time, so hooks take `&self` and the state of one bucket. They run on the
/// communication thread of the engine, and are `async`, so that other buckets continue while one waits. Every rank
/// calls the same hooks in the same order; each bucket communicates in its own lane.
///
/// Fields of the definition must not differ between ranks: the `Debug` output is compared.
///
/// ```
/// use hexagram::logical::{Buffer, ReduceOp, Result};
/// use hexagram::algorithms::{About, Algorithm, Bucket, Context, Trigram};
///
/// /// Mean of the gradients.
/// #[derive(Debug, Clone)]
/// struct Mean;
///
/// impl Algorithm for Mean {
///     type State = ();
///
///     fn about(&self) -> About {
///         About::new("mean", Trigram { centralized: true, synchronous: true, full_precision: true })
///     }
///
///     async fn state(&self, _: &Context, _: &Bucket) -> Result<()> {
///         Ok(())
///     }
///
///     async fn gradients_ready(&self, context: &Context, _: &mut (), bucket: &mut Bucket) -> Result<()> {
///         context.comm().all_reduce(&mut bucket.gradients, ReduceOp::Mean).await
///     }
/// }
/// ```
#[allow(unused_variables, reason = "default hooks do nothing with theirs")]
pub trait Algorithm: Clone + fmt::Debug + Send + Sync + 'static {
    /// State of one bucket from step to step, such as an error feedback. It stays on the communication thread.
    type State: 'static;

    /// Returns the description, with the present options.
    fn about(&self) -> About;

    /// Declares the options, one per line, each with its range of values. So they can be parsed and printed, and
    /// invalid values are refused at the start. By default, there are none.
    ///
    /// ```
    /// use hexagram::logical::Result;
    /// use hexagram::logical::options_text::above;
    /// use hexagram::algorithms::Options;
    ///
    /// struct Pull {
    ///     period: u64,
    ///     strength: f64,
    /// }
    ///
    /// impl Pull {
    ///     fn options(&mut self, options: &mut Options) -> Result<()> {
    ///         options.field("period", &mut self.period, 1.., "steps from one pull to the next")?;
    ///         options.field("strength", &mut self.strength, above(0.0).up_to(1.0), "share of the way to the mean")
    ///     }
    /// }
    /// ```
    ///
    /// # Errors
    /// As [`Options`], for values out of range.
    fn options(&mut self, options: &mut Options) -> Result<()> {
        Ok(())
    }

    /// Returns this algorithm without its warm-up, or with the shortest one it allows, so that a few measured steps are
    /// representative. `None`, the default, if it has no warm-up.
    fn without_warm_up(&self) -> Option<Self> {
        None
    }

    /// Returns the number of gradients that a step takes of its batch; [`evaluated`](Self::evaluated) has moved the
    /// parameters before each but the first. Default: one. It follows from the options of the algorithm and the
    /// argument, its [`own_step`](Context::own_step), so it is the same on all ranks. The training loop must make the
    /// passes, as [`DataParallel::step_with`](crate::DataParallel::step_with) does; otherwise it ends with an error.
    ///
    /// Sharpness-aware minimization (Foret et al., ICLR 2021) steps with the gradient at x + ρ g / ‖g‖:
    ///
    /// ```
    /// use hexagram::logical::{Buffer, Result};
    /// use hexagram::algorithms::{About, Algorithm, Bucket, Buckets, Context, Needs, Trigram};
    ///
    /// #[derive(Debug, Clone)]
    /// struct Sam {
    ///     radius: f64,
    /// }
    ///
    /// impl Algorithm for Sam {
    ///     /// Parameters x of the step.
    ///     type State = Buffer;
    ///     fn about(&self) -> About {
    ///         let trigram = Trigram { centralized: true, synchronous: true, full_precision: true };
    ///         About::new("sam", trigram).needs(Needs { buckets: Buckets::Whole, parameters: true })
    ///     }
    ///
    ///     fn evaluations(&self, _: u64) -> u32 {
    ///         2
    ///     }
    ///
    ///     async fn state(&self, context: &Context, bucket: &Bucket) -> Result<Buffer> {
    ///         context.copy_of(&bucket.parameters)
    ///     }
    ///
    ///     async fn evaluated(&self, context: &Context, x: &mut Buffer, bucket: &mut Bucket) -> Result<()> {
    ///         context.mean(&mut bucket.gradients).await?;
    ///         context.copy(&bucket.parameters, x)?;
    ///         let norm = context.norm(&bucket.gradients)?.max(f64::MIN_POSITIVE);
    ///         context.add_scaled(self.radius / norm, &bucket.gradients, &bucket.parameters)
    ///     }
    ///
    ///     async fn gradients_ready(&self, context: &Context, x: &mut Buffer, bucket: &mut Bucket) -> Result<()> {
    ///         context.copy(x, &bucket.parameters)?;
    ///         context.mean(&mut bucket.gradients).await
    ///     }
    /// }
    /// ```
    fn evaluations(&self, own_step: u64) -> u32 {
        1
    }

    /// Creates the state of a bucket before its first step. Parameters, if requested, are available, and equal on all
    /// ranks. Called for one bucket after another, so that channels opened here are opened in the same order on all
    /// ranks.
    ///
    /// # Errors
    /// If the state cannot be created. As for all hooks, an error ends the training on every rank.
    fn state(&self, context: &Context, bucket: &Bucket) -> impl Future<Output = Result<Self::State>>;

    /// Runs at the beginning of a training forward pass; before each, if a step takes several gradients. It overlaps
    /// with that pass, and with the backward pass up to the gradients of the bucket.
    ///
    /// # Errors
    /// Any error ends the training on every rank.
    fn before_forward(
        &self,
        context: &Context,
        state: &mut Self::State,
        parameters: &Buffer,
    ) -> impl Future<Output = Result<()>> {
        NotImplemented
    }

    /// Runs when a gradient is complete that is not the last of the step, of those that
    /// [`evaluations`](Self::evaluations) counts. The next gradient is taken at the parameters that this hook leaves.
    /// [`gradients_ready`](Self::gradients_ready) or [`after_backward`](Self::after_backward) must restore the
    /// parameters from which the optimizer steps. The hook must copy gradients that it keeps. They are not clipped, and
    /// only the last pass of such a step overlaps with communication.
    ///
    /// # Errors
    /// Any error ends the training on every rank.
    fn evaluated(
        &self,
        context: &Context,
        state: &mut Self::State,
        bucket: &mut Bucket,
    ) -> impl Future<Output = Result<()>> {
        NotImplemented
    }

    /// Runs when the last gradient of the bucket is complete, summed over accumulating passes.
    ///
    /// # Errors
    /// Any error ends the training on every rank.
    fn gradients_ready(
        &self,
        context: &Context,
        state: &mut Self::State,
        bucket: &mut Bucket,
    ) -> impl Future<Output = Result<()>> {
        NotImplemented
    }

    /// Runs after the backward pass, and after `gradients_ready` of this bucket.
    ///
    /// # Errors
    /// Any error ends the training on every rank.
    fn after_backward(
        &self,
        context: &Context,
        state: &mut Self::State,
        bucket: &mut Bucket,
    ) -> impl Future<Output = Result<()>> {
        NotImplemented
    }

    /// Runs after the step of the engine optimizer, before [`after_step`](Self::after_step), with the optimizer state
    /// of the bucket: to average momenta in addition to parameters, for example. The engine refuses optimizers of a
    /// framework under an algorithm that implements it, since their state is not accessible.
    ///
    /// ```
    /// use hexagram::logical::Result;
    /// use hexagram::algorithms::plugin::{About, Algorithm, Bucket, Context, Needs, Slots, Trigram};
    ///
    /// /// Local SGD with momentum, of which all ranks have the mean after every 8th step.
    /// #[derive(Debug, Clone)]
    /// struct SharedMomentum;
    ///
    /// impl Algorithm for SharedMomentum {
    ///     # type State = ();
    ///     # fn about(&self) -> About {
    ///     #     let trigram = Trigram { centralized: true, synchronous: true, full_precision: true };
    ///     #     let needs = Needs { parameters: true, ..Needs::default() };
    ///     #     About::new("shared-momentum", trigram).keeps_replicas_identical(false).needs(needs)
    ///     # }
    ///     # async fn state(&self, _: &Context, _: &Bucket) -> Result<()> { Ok(()) }
    ///     async fn slots_ready(
    ///         &self,
    ///         context: &Context,
    ///         _: &mut (),
    ///         bucket: &mut Bucket,
    ///         slots: &mut Slots,
    ///     ) -> Result<()> {
    ///         if context.ends_round(8) {
    ///             context.mean(&mut bucket.parameters).await?;
    ///             context.mean(slots.get_mut("momentum")?).await?;
    ///         }
    ///         Ok(())
    ///     }
    /// }
    /// ```
    ///
    /// # Errors
    /// Any error ends the training on every rank.
    fn slots_ready(
        &self,
        context: &Context,
        state: &mut Self::State,
        bucket: &mut Bucket,
        slots: &mut Slots,
    ) -> impl Future<Output = Result<()>> {
        NotImplemented
    }

    /// Returns true if [`slots_ready`](Self::slots_ready) must be called: by default, if it is implemented. A wrapper
    /// of another algorithm returns the value of the inner one.
    fn reads_slots(&self) -> bool {
        writes_slots_ready(Self::slots_ready)
    }

    /// Returns the hooks around a step that must be called: by default, those that are implemented. A wrapper of
    /// another algorithm returns the value of the inner one.
    fn written(&self) -> ImplementedHooks {
        ImplementedHooks::of::<Self>()
    }

    /// Runs after the optimizer step.
    ///
    /// # Errors
    /// Any error ends the training on every rank.
    fn after_step(
        &self,
        context: &Context,
        state: &mut Self::State,
        bucket: &mut Bucket,
    ) -> impl Future<Output = Result<()>> {
        NotImplemented
    }

    /// Completes the background work: on return, no communication is in progress on any rank. All ranks call it, after
    /// any number of steps each; the next step continues without a difference.
    ///
    /// # Errors
    /// Any error ends the training on every rank.
    fn settle(
        &self,
        context: &Context,
        state: &mut Self::State,
        bucket: &mut Bucket,
    ) -> impl Future<Output = Result<()>> {
        NotImplemented
    }

    /// Returns the weight of the parameters of this replica in the mean of all; the weights have a mean of 1 over
    /// ranks.
    fn weight(&self, state: &Self::State) -> f64 {
        1.0
    }

    /// Declares the parts of the state on which the next steps depend, for saving or loading. No communication is in
    /// progress. Parts inside [`Fields::shared`] or [`Fields::averaged`] survive if a different number of ranks loads the
    /// checkpoint; others begin anew then.
    ///
    /// # Errors
    /// As [`Fields`], for a checkpoint that does not fit.
    fn checkpoint(&self, state: &mut Self::State, fields: &mut Fields) -> Result<()> {
        Ok(())
    }
}
