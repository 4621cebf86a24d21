//! The description of an algorithm.

use super::{Clipping, Needs, Optimizers, Trigram};

/// Description of an algorithm with its present options: its name, its trigram, and the properties that the engine
/// needs before the first step. All but the first two have defaults.
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
    /// Name for users, in kebab case.
    pub name: &'static str,
    /// Trigram: one of the eight ways to communicate.
    pub trigram: Trigram,
    /// Source: the paper, in one line. Empty by default.
    pub source: &'static str,
    /// True if all replicas are bit-identical after every step. Default: true for centralized synchronous algorithms.
    pub keeps_replicas_identical: bool,
    /// True if a step depends on parameters in the state, such as those at the start of a round. Then only the
    /// algorithm itself may move the parameters between its steps: [`SlowMo`](crate::slowmo::SlowMo) refuses it as its
    /// base. If false, the default, moving all replicas by the same amount moves their mean by that amount.
    pub remembers_parameters: bool,
    /// True if the state keeps unchanged gradients of this rank from one step to the next: one that is not finite would
    /// stay there, and a framework that scales the loss itself could not skip its step. Default: false.
    pub remembers_gradients: bool,
    /// Number of steps, at least 1, after which the communication repeats itself, after warm-ups: measurements of whole
    /// periods are valid for all later steps. 1 if the communication is the same in every step. `None`, the default, if
    /// it is unknown, as for an adaptive algorithm: then every step is measured or simulated.
    pub period: Option<u64>,
    /// True if its hooks use the [learning rate](crate::Context::learning_rate). Default: false.
    pub needs_learning_rate: bool,
    /// Requirements that the engine must meet.
    pub needs: Needs,
    /// Gradients to clip, if the engine options request clipping.
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
