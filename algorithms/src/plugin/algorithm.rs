//! The plugin trait: what an author of a distributed SGD variant writes.

use crate::plugin::unwritten::{Unwritten, writes_slots_ready};
use crate::plugin::{About, Bucket, Context, Fields, Slots, Written};
use hexagram_logical::spelling::Options;
use hexagram_logical::{Buffer, Result};
use std::fmt;

/// One of the eight ways to communicate in distributed SGD, as three yes/no lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Trigram {
    /// True if everyone agrees on one result; otherwise ranks mix with neighbours.
    pub centralized: bool,
    /// True if ranks wait for each other in every step.
    pub synchronous: bool,
    /// True if numbers travel as they are; otherwise compressed.
    pub full_precision: bool,
}

impl Trigram {
    /// Returns the three lines as one character, centralized above, whole for the first word of each and broken for the
    /// other.
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

/// Cut of the model into buckets that an algorithm wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Buckets {
    /// Buckets as large as the engine's options say: for what is communicated during the backward pass.
    #[default]
    BySize,
    /// One bucket for each element type: for what is communicated once a step or less, or by a service of its own.
    Whole,
}

/// Requirements of an algorithm, which the engine meets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Needs {
    /// Cut of the model.
    pub buckets: Buckets,
    /// True if hooks read or write parameters. Without it [`Bucket::parameters`] is empty, and the hooks
    /// [`before_forward`](Algorithm::before_forward), [`evaluated`](Algorithm::evaluated),
    /// [`slots_ready`](Algorithm::slots_ready) and [`after_step`](Algorithm::after_step) are not called: the engine
    /// refuses an algorithm that writes one of these all the same.
    pub parameters: bool,
}

/// Distributed SGD variant: its declaration, which serves any number of models.
///
/// A step calls the hooks of a bucket in this order:
///
/// | hook | when | what is there |
/// |---|---|---|
/// | [`before_forward`](Self::before_forward) | the forward pass begins; may run until the gradients are ready | parameters, to read |
/// | [`evaluated`](Self::evaluated) | a gradient is there that is not the step's last, if there are several | gradients and parameters |
/// | [`gradients_ready`](Self::gradients_ready) | the backward pass has completed the bucket | gradients and parameters |
/// | [`after_backward`](Self::after_backward) | the backward pass has completed all buckets | the same |
/// | [`slots_ready`](Self::slots_ready) | the engine's optimizer has changed the parameters | the same, and what it remembers |
/// | [`after_step`](Self::after_step) | the optimizer has changed the parameters | gradients and parameters |
/// | [`settle`](Self::settle) | before evaluation, checkpoint, switch, and at the end | the same |
///
/// What is communicated is the hooks' choice: the gradient, a momentum, the parameters, a difference. Whatever
/// `gradients_ready` and `after_backward` leave in the gradients is what the optimizer steps with: x ← x − γ ·
/// gradients for plain SGD, so that an algorithm with a rule of its own leaves its direction there and is run with
/// plain SGD.
///
/// Several buckets are in flight at once, so hooks take `&self` and the bucket's own state. They run on the engine's
/// communication thread, and are `async` so that while one bucket waits, another goes on. On every rank the same hooks
/// are called, in the same order; each bucket communicates in a lane of its own.
///
/// Fields of the declaration must not differ between ranks: its `Debug` output is compared.
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

    /// Returns what it is, with the options that it has.
    fn about(&self) -> About;

    /// Names the options, one a line, each with the values that it may have: so they can be typed and printed, and
    /// wrong ones are refused at the start. Without it, there are none.
    ///
    /// ```
    /// use hexagram::logical::Result;
    /// use hexagram::logical::spelling::above;
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
    /// What [`Options`] says of values that are out of their ranges.
    fn options(&mut self, options: &mut Options) -> Result<()> {
        Ok(())
    }

    /// Returns the same algorithm without the steps at the beginning in which it communicates otherwise than in all later
    /// ones, or with as few of them as it can have: what a measurement of a few steps measures. `None`, as here, if it has
    /// no such steps.
    fn without_warm_up(&self) -> Option<Self> {
        None
    }

    /// Returns the number of gradients that a step takes of its batch, each where [`evaluated`](Self::evaluated) has
    /// moved the parameters after the one before: one, unless it is written. It follows from the algorithm's options
    /// and its [`own_step`](Context::own_step), which it is given, so that it is the same on all ranks. The training
    /// loop is to make the passes, as [`DataParallel::step_with`](crate::DataParallel::step_with) does: one that does
    /// not ends with an error.
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

    /// Makes the state of a bucket before its first step. Parameters, if asked for, are there, and equal on all ranks.
    /// Called for one bucket after another, so that what is opened here is opened in the same order on all ranks.
    ///
    /// # Errors
    /// If it cannot be made. As with all hooks, an error ends the training on every rank.
    fn state(&self, context: &Context, bucket: &Bucket) -> impl Future<Output = Result<Self::State>>;

    /// Runs when a training forward pass begins; before each, if a step takes several gradients. What is started here
    /// overlaps with it, and with the backward pass up to the bucket's gradients.
    ///
    /// # Errors
    /// Any error ends the training on every rank.
    fn before_forward(
        &self,
        context: &Context,
        state: &mut Self::State,
        parameters: &Buffer,
    ) -> impl Future<Output = Result<()>> {
        Unwritten
    }

    /// Runs when a gradient is there that is not the step's last, of those that [`evaluations`](Self::evaluations)
    /// counts. What it leaves in the parameters is where the next gradient is taken;
    /// [`gradients_ready`](Self::gradients_ready), or [`after_backward`](Self::after_backward), has to put back what
    /// the optimizer is to step from. Gradients that it wants to keep it copies. They are not clipped, and nothing
    /// overlaps with the passes of such a step but for the last.
    ///
    /// # Errors
    /// Any error ends the training on every rank.
    fn evaluated(
        &self,
        context: &Context,
        state: &mut Self::State,
        bucket: &mut Bucket,
    ) -> impl Future<Output = Result<()>> {
        Unwritten
    }

    /// Runs when the last gradient of the bucket is there, summed over the passes that only accumulated.
    ///
    /// # Errors
    /// Any error ends the training on every rank.
    fn gradients_ready(
        &self,
        context: &Context,
        state: &mut Self::State,
        bucket: &mut Bucket,
    ) -> impl Future<Output = Result<()>> {
        Unwritten
    }

    /// Runs when the backward pass is over, and this bucket's `gradients_ready` too.
    ///
    /// # Errors
    /// Any error ends the training on every rank.
    fn after_backward(
        &self,
        context: &Context,
        state: &mut Self::State,
        bucket: &mut Bucket,
    ) -> impl Future<Output = Result<()>> {
        Unwritten
    }

    /// Runs when the engine's optimizer has stepped, before [`after_step`](Self::after_step), with what the optimizer
    /// remembers of the bucket: to average momenta beside parameters, for instance. Under an algorithm that writes it
    /// the engine refuses a framework's optimizer, which keeps that to itself.
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
        Unwritten
    }

    /// Returns true if [`slots_ready`](Self::slots_ready) is to be called: by default, if it is written. An algorithm
    /// around another says what that one does.
    fn reads_slots(&self) -> bool {
        writes_slots_ready(Self::slots_ready)
    }

    /// Returns which hooks around a step are to be called: by default, those that are written. An algorithm around
    /// another says what that one does.
    fn written(&self) -> Written {
        Written::of::<Self>()
    }

    /// Runs when the optimizer has stepped.
    ///
    /// # Errors
    /// Any error ends the training on every rank.
    fn after_step(
        &self,
        context: &Context,
        state: &mut Self::State,
        bucket: &mut Bucket,
    ) -> impl Future<Output = Result<()>> {
        Unwritten
    }

    /// Brings to an end what is under way in the background: on return nothing is in flight, on any rank. All ranks
    /// call it, however many steps each of them has made; the next step goes on as if nothing had been.
    ///
    /// # Errors
    /// Any error ends the training on every rank.
    fn settle(
        &self,
        context: &Context,
        state: &mut Self::State,
        bucket: &mut Bucket,
    ) -> impl Future<Output = Result<()>> {
        Unwritten
    }

    /// Returns the weight of this replica's parameters in the mean of all, whose own mean over ranks is 1.
    fn weight(&self, state: &Self::State) -> f64 {
        1.0
    }

    /// Names everything in the state that the next steps depend on, to be saved or loaded. Nothing is in flight.
    ///
    /// # Errors
    /// What [`Fields`] says of a checkpoint that does not fit.
    fn checkpoint(&self, state: &mut Self::State, fields: &mut Fields) -> Result<()> {
        Ok(())
    }
}
