//! The plugin trait: what an author of a distributed SGD variant writes.
//!
//! ```
//! use hexagram_algorithms::logical::{Buffer, Communicator, ReduceOp, Result};
//! use hexagram_algorithms::{Algorithm, Trigram};
//!
//! /// Mean of the gradients.
//! struct Mean;
//!
//! impl Algorithm for Mean {
//!     type State = ();
//!
//!     fn name(&self) -> &'static str {
//!         "mean"
//!     }
//!
//!     fn trigram(&self) -> Trigram {
//!         Trigram { centralized: true, synchronous: true, full_precision: true }
//!     }
//!
//!     fn state(&self, _bucket: &Buffer) -> Result<()> {
//!         Ok(())
//!     }
//!
//!     async fn bucket_ready(&self, comm: &Communicator, _: &mut (), bucket: &mut Buffer) -> Result<()> {
//!         comm.all_reduce(bucket, ReduceOp::Mean).await
//!     }
//! }
//! ```

use hexagram_logical::{Buffer, Communicator, Result};
use std::any::Any;
use std::fmt;
use std::pin::Pin;

/// Three yes/no lines: the eight ways to communicate in distributed SGD.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Trigram {
    /// Everyone agrees on one result; otherwise ranks mix with neighbours.
    pub centralized: bool,
    /// Ranks wait for each other in every step.
    pub synchronous: bool,
    /// Numbers travel as they are; otherwise compressed.
    pub full_precision: bool,
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

/// A distributed SGD variant.
///
/// Several buckets are in flight at once, so hooks take `&self` and the bucket's own state. They run on the engine's
/// communication thread, and are `async` so that one bucket's waiting is another's turn.
pub trait Algorithm: Send + Sync + 'static {
    /// What the algorithm remembers of one bucket from step to step, such as an error feedback.
    type State: Send + 'static;

    /// The name that users type, in kebab case.
    fn name(&self) -> &'static str;

    /// Which of the eight it is.
    fn trigram(&self) -> Trigram;

    /// Whether all replicas are bit-identical after every step. Centralized synchronous algorithms promise it.
    fn keeps_replicas_identical(&self) -> bool {
        let Trigram { centralized, synchronous, .. } = self.trigram();
        centralized && synchronous
    }

    /// The state of a bucket before the first step.
    ///
    /// # Errors
    /// If it cannot be allocated.
    fn state(&self, bucket: &Buffer) -> Result<Self::State>;

    /// Called once per step and bucket, when the last gradient of the bucket is there. On return the bucket holds what
    /// the optimizer is to use.
    ///
    /// # Errors
    /// Any error ends the training on every rank.
    fn bucket_ready(
        &self,
        comm: &Communicator,
        state: &mut Self::State,
        bucket: &mut Buffer,
    ) -> impl Future<Output = Result<()>>;
}

/// A hook under way.
pub type HookFuture<'a> = Pin<Box<dyn Future<Output = Result<()>> + 'a>>;

/// Any [`Algorithm`], for an engine that does not know its state. Implemented for all of them.
pub trait AnyAlgorithm: Send + Sync + 'static {
    /// As [`Algorithm::name`].
    fn name(&self) -> &'static str;
    /// As [`Algorithm::trigram`].
    fn trigram(&self) -> Trigram;
    /// As [`Algorithm::keeps_replicas_identical`].
    fn keeps_replicas_identical(&self) -> bool;
    /// As [`Algorithm::state`].
    ///
    /// # Errors
    /// As there.
    fn any_state(&self, bucket: &Buffer) -> Result<Box<dyn Any + Send>>;
    /// As [`Algorithm::bucket_ready`], with a state from `any_state`.
    fn any_bucket_ready<'a>(
        &'a self,
        comm: &'a Communicator,
        state: &'a mut (dyn Any + Send),
        bucket: &'a mut Buffer,
    ) -> HookFuture<'a>;
}

impl<A: Algorithm> AnyAlgorithm for A {
    fn name(&self) -> &'static str {
        Algorithm::name(self)
    }

    fn trigram(&self) -> Trigram {
        Algorithm::trigram(self)
    }

    fn keeps_replicas_identical(&self) -> bool {
        Algorithm::keeps_replicas_identical(self)
    }

    fn any_state(&self, bucket: &Buffer) -> Result<Box<dyn Any + Send>> {
        Ok(Box::new(self.state(bucket)?))
    }

    fn any_bucket_ready<'a>(
        &'a self,
        comm: &'a Communicator,
        state: &'a mut (dyn Any + Send),
        bucket: &'a mut Buffer,
    ) -> HookFuture<'a> {
        Box::pin(async move {
            let state = state.downcast_mut().ok_or_else(|| {
                let what = format!("{} was given another algorithm's state", self.name());
                hexagram_logical::Error::usage(what, "give each algorithm the state that it made")
            })?;
            self.bucket_ready(comm, state, bucket).await
        })
    }
}
