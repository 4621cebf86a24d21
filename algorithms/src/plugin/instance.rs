//! Algorithms without their types: what the engine and the registry work with.

use crate::plugin::Bucket;
use crate::plugin::Context;
use crate::plugin::Fields;
use crate::plugin::unwritten::hook_on_parameters;
use crate::plugin::{Algorithm, Needs, Trigram};
use hexagram_logical::{Buffer, Result};
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

/// Future of a hook under way.
pub type HookFuture<'a, T = ()> = Pin<Box<dyn Future<Output = Result<T>> + 'a>>;

/// Algorithm of any type, as the engine and the registry work with it. Implemented for every [`Algorithm`].
pub trait AnyAlgorithm: fmt::Debug + Send + Sync + 'static {
    /// Returns [`Algorithm::name`].
    fn name(&self) -> &'static str;
    /// Returns [`Algorithm::trigram`].
    fn trigram(&self) -> Trigram;
    /// Returns [`Algorithm::keeps_replicas_identical`].
    fn keeps_replicas_identical(&self) -> bool;
    /// Returns [`Algorithm::needs`].
    fn needs(&self) -> Needs;
    /// Returns the name of a hook that is written and never called, since the algorithm does not ask for
    /// [`Needs::parameters`].
    fn uncalled_hook(&self) -> Option<&'static str>;
    /// Starts to work on a bucket: calls [`Algorithm::state`].
    ///
    /// # Errors
    /// As [`Algorithm::state`].
    fn instance<'a>(
        self: Arc<Self>,
        context: &'a Context,
        bucket: &'a Bucket,
    ) -> HookFuture<'a, Box<dyn Instance>>;
}

/// Algorithm together with its state of one bucket. Its hooks are those of [`Algorithm`].
#[allow(missing_docs, reason = "the algorithm's own hooks")]
pub trait Instance {
    fn before_forward<'a>(&'a mut self, context: &'a Context, parameters: &'a Buffer) -> HookFuture<'a>;
    fn gradients_ready<'a>(&'a mut self, context: &'a Context, bucket: &'a mut Bucket) -> HookFuture<'a>;
    fn after_backward<'a>(&'a mut self, context: &'a Context, bucket: &'a mut Bucket) -> HookFuture<'a>;
    fn after_step<'a>(&'a mut self, context: &'a Context, bucket: &'a mut Bucket) -> HookFuture<'a>;
    fn settle<'a>(&'a mut self, context: &'a Context, bucket: &'a mut Bucket) -> HookFuture<'a>;
    /// Calls [`Algorithm::checkpoint`].
    ///
    /// # Errors
    /// As [`Algorithm::checkpoint`].
    fn checkpoint(&mut self, fields: &mut Fields) -> Result<()>;
}

struct Typed<A: Algorithm> {
    algorithm: Arc<A>,
    state: A::State,
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

    fn needs(&self) -> Needs {
        Algorithm::needs(self)
    }

    fn uncalled_hook(&self) -> Option<&'static str> {
        if Algorithm::needs(self).parameters { None } else { hook_on_parameters::<A>() }
    }

    fn instance<'a>(
        self: Arc<Self>,
        context: &'a Context,
        bucket: &'a Bucket,
    ) -> HookFuture<'a, Box<dyn Instance>> {
        Box::pin(async move {
            let state = self.state(context, bucket).await?;
            Ok(Box::new(Typed { algorithm: self, state }) as Box<dyn Instance>)
        })
    }
}

impl<A: Algorithm> Instance for Typed<A> {
    fn before_forward<'a>(&'a mut self, context: &'a Context, parameters: &'a Buffer) -> HookFuture<'a> {
        Box::pin(self.algorithm.before_forward(context, &mut self.state, parameters))
    }

    fn gradients_ready<'a>(&'a mut self, context: &'a Context, bucket: &'a mut Bucket) -> HookFuture<'a> {
        Box::pin(self.algorithm.gradients_ready(context, &mut self.state, bucket))
    }

    fn after_backward<'a>(&'a mut self, context: &'a Context, bucket: &'a mut Bucket) -> HookFuture<'a> {
        Box::pin(self.algorithm.after_backward(context, &mut self.state, bucket))
    }

    fn after_step<'a>(&'a mut self, context: &'a Context, bucket: &'a mut Bucket) -> HookFuture<'a> {
        Box::pin(self.algorithm.after_step(context, &mut self.state, bucket))
    }

    fn settle<'a>(&'a mut self, context: &'a Context, bucket: &'a mut Bucket) -> HookFuture<'a> {
        Box::pin(self.algorithm.settle(context, &mut self.state, bucket))
    }

    fn checkpoint(&mut self, fields: &mut Fields) -> Result<()> {
        self.algorithm.checkpoint(&mut self.state, fields)
    }
}
