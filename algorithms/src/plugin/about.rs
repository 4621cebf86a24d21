//! What an algorithm says of itself.

use super::{Clipping, Needs, Optimizers, Trigram};

/// Description of an algorithm with the options that it has: its name, which of the eight ways it communicates in, and
/// what the engine has to know before the first step. All but the first two have defaults.
///
/// ```
/// use hexagram::algorithms::{About, Trigram};
///
/// let trigram = Trigram { centralized: true, synchronous: true, full_precision: true };
/// let about = About::new("local-sgd", trigram).keeps_replicas_identical(false).period(4);
/// assert!(!about.keeps_replicas_identical && !about.remembers_parameters);
/// ```
#[derive(Debug, Clone, Copy)]
pub struct About {
    /// Name that users type, in kebab case.
    pub name: &'static str,
    /// Way in which it communicates.
    pub trigram: Trigram,
    /// Source: the paper, in a line. Empty by default.
    pub source: &'static str,
    /// True if all replicas are bit-identical after every step. By default centralized synchronous algorithms promise it.
    pub keeps_replicas_identical: bool,
    /// True if a step depends on parameters that the state keeps, such as those at the start of a round. Then only the
    /// algorithm itself may move them between its steps: [`SlowMo`](crate::slowmo::SlowMo) refuses it as its base. Without
    /// it, the default, the mean of the replicas goes along with whatever all of them are moved by.
    pub remembers_parameters: bool,
    /// True if the state keeps gradients of this rank alone, from one step to the next, as they come: one that is not
    /// finite would stay there, and a framework that scales the loss by itself could not leave its step out. By default
    /// it keeps none.
    pub remembers_gradients: bool,
    /// Number of steps, 1 or more, after which what is communicated repeats itself, once warm-ups are over: what is
    /// measured of whole periods holds for all later steps. 1 if every step communicates alike. `None`, the default, if it
    /// is unknown, as of an algorithm that adapts: then every step is measured or simulated.
    pub period: Option<u64>,
    /// True if its hooks ask for the [learning rate](crate::Context::learning_rate). By default they do not.
    pub needs_learning_rate: bool,
    /// What the engine is to provide.
    pub needs: Needs,
    /// Gradients that are clipped, where the engine's options ask for that.
    pub clipping: Clipping,
    /// Optimizers that fit: the engine refuses others before the first step.
    pub optimizers: Optimizers,
}

impl About {
    /// Describes an algorithm with the defaults.
    pub fn new(name: &'static str, trigram: Trigram) -> Self {
        About {
            name,
            trigram,
            source: "",
            keeps_replicas_identical: trigram.centralized && trigram.synchronous,
            remembers_parameters: false,
            remembers_gradients: false,
            period: None,
            needs_learning_rate: false,
            needs: Needs::default(),
            clipping: Clipping::default(),
            optimizers: Optimizers::default(),
        }
    }
}

impl About {
    /// Sets `period`.
    #[must_use]
    pub fn period(self, period: u64) -> Self {
        About { period: Some(period), ..self }
    }
}

macro_rules! setters {
    ($($field:ident: $of:ty),* $(,)?) => {
        impl About {$(
            #[doc = concat!("Sets `", stringify!($field), "`.")]
            #[must_use]
            pub fn $field(self, $field: $of) -> Self {
                About { $field, ..self }
            }
        )*}
    };
}

setters! {
    source: &'static str,
    keeps_replicas_identical: bool,
    remembers_parameters: bool,
    remembers_gradients: bool,
    needs_learning_rate: bool,
    needs: Needs,
    clipping: Clipping,
    optimizers: Optimizers,
}
