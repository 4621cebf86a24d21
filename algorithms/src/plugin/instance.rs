//! Type-erased algorithms, for the engine and the registry.

use crate::plugin::hook_presence::hook_on_parameters;
use crate::plugin::{
    About, Algorithm, Bucket, Clipping, Context, Fields, ImplementedHooks, Needs, Optimizers, Slots, Trigram,
};
use hexagram_logical::options_text::{Catalogues, NamedOptions, Options, OptionsText, no_such};
use hexagram_logical::{Buffer, Result};
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

/// Future of a hook in progress.
pub(crate) type HookFuture<'a, T = ()> = Pin<Box<dyn Future<Output = Result<T>> + 'a>>;

/// Algorithm of any type, for the engine and the registry. Every [`Algorithm`] converts into it, and a clone is as
/// cheap as that of an [`Arc`].
///
/// ```
/// use hexagram::algorithms::{Algorithm, AnyAlgorithm, GradientAllReduce};
///
/// let any = AnyAlgorithm::from(GradientAllReduce);
/// // The methods of the trait do not conflict with those of the type.
/// assert_eq!(any.name(), GradientAllReduce.about().name);
/// assert_eq!(any.trigram().symbol(), '☰');
/// ```
#[derive(Clone)]
pub struct AnyAlgorithm(Arc<dyn Erased>);

/// Defines a method for each of these parts of [`About`].
macro_rules! parts {
    ($($part:ident: $of:ty),* $(,)?) => {
        impl AnyAlgorithm {$(
            #[doc = concat!("Returns the algorithm's `", stringify!($part), "`.")]
            pub fn $part(&self) -> $of {
                self.0.about().$part
            }
        )*}
    };
}

parts! {
    name: &'static str,
    trigram: Trigram,
    source: &'static str,
    keeps_replicas_identical: bool,
    remembers_parameters: bool,
    remembers_gradients: bool,
    needs_learning_rate: bool,
    needs: Needs,
    clipping: Clipping,
    optimizers: Optimizers,
}

impl AnyAlgorithm {
    /// Returns [`Algorithm::without_warm_up`].
    #[must_use]
    pub fn without_warm_up(&self) -> Option<AnyAlgorithm> {
        self.0.without_warm_up()
    }

    /// Returns [`About::period`](About#structfield.period).
    pub fn period(&self) -> Option<u64> {
        self.0.about().period.map(|period| period.max(1))
    }

    /// Returns [`Algorithm::reads_slots`].
    pub fn reads_slots(&self) -> bool {
        self.0.reads_slots()
    }

    /// Returns [`Algorithm::written`].
    pub fn written(&self) -> ImplementedHooks {
        self.0.written()
    }

    /// Returns true if the algorithm has no state: its type has no size.
    pub(crate) fn is_stateless(&self) -> bool {
        self.0.is_stateless()
    }

    /// Returns [`Algorithm::evaluations`].
    pub fn evaluations(&self, own_step: u64) -> u32 {
        self.0.evaluations(own_step)
    }

    /// Returns the reason why communication cannot overlap with the next forward pass under this algorithm
    /// ([`Overlap::Forward`](crate::Overlap::Forward)); `None` if it can.
    pub fn refuses_forward(&self) -> Option<&'static str> {
        if !self.trigram().synchronous {
            return Some("no step waits for the communication of an asynchronous algorithm");
        }
        let before = self.written().before_forward;
        before.then_some("it already communicates during the forward pass, beginning with all parameters")
    }

    /// Returns the spelling with all options.
    pub fn spelling(&self) -> OptionsText {
        self.full()
    }

    /// Returns the algorithm with the options in a spelling; the others keep their values. For algorithms inside the
    /// spelling, use [`Registry::named`](crate::Registry::named), which has their names.
    ///
    /// ```
    /// use hexagram::algorithms::AnyAlgorithm;
    /// use hexagram::algorithms::slowmo::SlowMo;
    ///
    /// let ours = AnyAlgorithm::from(SlowMo { period: 12, ..SlowMo::default() });
    /// let theirs = ours.with(&"slowmo(slow_rate=50%)".parse()?)?;
    /// assert_eq!(theirs.to_string(), "slowmo(period=12, slow_rate=0.5)");
    /// # Ok::<(), hexagram::logical::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Usage`](hexagram_logical::Error::Usage) of one line for the name of another algorithm, an unknown
    /// option, or a value out of range.
    pub fn with(&self, spelling: &OptionsText) -> Result<Self> {
        self.with_known(spelling, &Catalogues::default())
    }

    /// Returns [`AnyAlgorithm::with`], with the codecs and graphs of these catalogues.
    pub(crate) fn with_known(&self, spelling: &OptionsText, known: &Catalogues) -> Result<Self> {
        if spelling.name() != self.name() {
            return Err(no_such("algorithm", spelling.name(), [self.name()]));
        }
        NamedOptions::with(self, spelling, known)
    }

    /// Checks the options.
    ///
    /// # Errors
    /// [`Error::Usage`](hexagram_logical::Error::Usage) of one line, with option, value and range.
    pub fn check(&self) -> Result<()> {
        NamedOptions::check(self)
    }

    /// Creates the handle of something that is not an [`Algorithm`], such as a wrapper of another.
    #[cfg(test)]
    pub(crate) fn of(erased: impl Erased) -> Self {
        AnyAlgorithm(Arc::new(erased))
    }

    /// Returns the name of a hook that is implemented but never called, since the algorithm does not request
    /// [`Needs::parameters`].
    pub(crate) fn uncalled_hook(&self) -> Option<&'static str> {
        self.0.uncalled_hook()
    }

    /// Starts to work on a bucket: calls [`Algorithm::state`].
    ///
    /// # Errors
    /// As [`Algorithm::state`].
    pub(crate) fn instance<'a>(
        &self,
        context: &'a Context,
        bucket: &'a Bucket,
    ) -> HookFuture<'a, Box<dyn Instance>> {
        Arc::clone(&self.0).instance(context, bucket)
    }
}

/// Declares the options of the algorithm.
impl NamedOptions for AnyAlgorithm {
    fn keyword(&self) -> &'static str {
        self.name()
    }

    fn options(&mut self, options: &mut Options) -> Result<()> {
        *self = self.0.visited(options)?;
        Ok(())
    }
}

/// Prints the `Debug` output of the algorithm.
impl fmt::Debug for AnyAlgorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<A: Algorithm> From<A> for AnyAlgorithm {
    fn from(algorithm: A) -> Self {
        AnyAlgorithm(Arc::new(algorithm))
    }
}

impl<A: Algorithm> From<Arc<A>> for AnyAlgorithm {
    fn from(algorithm: Arc<A>) -> Self {
        AnyAlgorithm(algorithm)
    }
}

/// Methods of an [`Algorithm`] that do not depend on its state type, so that they can be called through a pointer.
pub(crate) trait Erased: fmt::Debug + Send + Sync + 'static {
    fn about(&self) -> About;
    fn without_warm_up(&self) -> Option<AnyAlgorithm>;
    fn reads_slots(&self) -> bool;
    fn written(&self) -> ImplementedHooks;
    /// Returns true if [`Algorithm::State`] has no size.
    fn is_stateless(&self) -> bool {
        false
    }
    fn evaluations(&self, own_step: u64) -> u32;
    /// Returns the algorithm after [`Algorithm::options`] with this visitor.
    ///
    /// # Errors
    /// As [`Algorithm::options`].
    fn visited(&self, options: &mut Options) -> Result<AnyAlgorithm>;
    fn uncalled_hook(&self) -> Option<&'static str>;
    fn instance<'a>(
        self: Arc<Self>,
        context: &'a Context,
        bucket: &'a Bucket,
    ) -> HookFuture<'a, Box<dyn Instance>>;
}

impl<A: Algorithm> Erased for A {
    fn about(&self) -> About {
        Algorithm::about(self)
    }

    fn without_warm_up(&self) -> Option<AnyAlgorithm> {
        Algorithm::without_warm_up(self).map(AnyAlgorithm::from)
    }

    fn reads_slots(&self) -> bool {
        Algorithm::reads_slots(self)
    }

    fn written(&self) -> ImplementedHooks {
        Algorithm::written(self)
    }

    fn is_stateless(&self) -> bool {
        size_of::<A::State>() == 0
    }

    fn evaluations(&self, own_step: u64) -> u32 {
        Algorithm::evaluations(self, own_step)
    }

    fn visited(&self, options: &mut Options) -> Result<AnyAlgorithm> {
        let mut own = self.clone();
        own.options(options)?;
        Ok(own.into())
    }

    fn uncalled_hook(&self) -> Option<&'static str> {
        if Algorithm::about(self).needs.parameters { None } else { hook_on_parameters::<A>() }
    }

    fn instance<'a>(
        self: Arc<Self>,
        context: &'a Context,
        bucket: &'a Bucket,
    ) -> HookFuture<'a, Box<dyn Instance>> {
        Box::pin(async move {
            let state = self.state(context, bucket).await?;
            Ok(Box::new(TypedInstance { algorithm: self, state }) as Box<dyn Instance>)
        })
    }
}

/// Defines the hooks of [`Instance`], which are those of [`Algorithm`].
macro_rules! hooks {
    ($($hook:ident($($argument:ident: $of:ty),*);)*) => {
        /// Algorithm with its state of one bucket. Its hooks are those of [`Algorithm`].
        pub(crate) trait Instance {
            $(fn $hook<'a>(&'a mut self, context: &'a Context, $($argument: $of),*) -> HookFuture<'a>;)*
            /// Returns [`Algorithm::weight`].
            fn weight(&self) -> f64;
            /// Calls [`Algorithm::checkpoint`].
            ///
            /// # Errors
            /// As [`Algorithm::checkpoint`].
            fn checkpoint(&mut self, fields: &mut Fields) -> Result<()>;
        }

        impl<A: Algorithm> Instance for TypedInstance<A> {
            $(fn $hook<'a>(&'a mut self, context: &'a Context, $($argument: $of),*) -> HookFuture<'a> {
                Box::pin(self.algorithm.$hook(context, &mut self.state, $($argument),*))
            })*

            fn weight(&self) -> f64 {
                self.algorithm.weight(&self.state)
            }

            fn checkpoint(&mut self, fields: &mut Fields) -> Result<()> {
                self.algorithm.checkpoint(&mut self.state, fields)
            }
        }
    };
}

hooks! {
    before_forward(parameters: &'a Buffer);
    evaluated(bucket: &'a mut Bucket);
    gradients_ready(bucket: &'a mut Bucket);
    after_backward(bucket: &'a mut Bucket);
    slots_ready(bucket: &'a mut Bucket, slots: &'a mut Slots);
    after_step(bucket: &'a mut Bucket);
    settle(bucket: &'a mut Bucket);
}

struct TypedInstance<A: Algorithm> {
    algorithm: Arc<A>,
    state: A::State,
}
